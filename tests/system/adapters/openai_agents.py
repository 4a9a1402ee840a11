"""Runs a scripted sandbox agent and sessions of the published adapter, and prints as JSON what was seen."""

from __future__ import annotations

import asyncio
import importlib.metadata
import io
import json
import os
import re
from collections.abc import Awaitable
from pathlib import Path

from agents import Model, ModelResponse, Runner, Usage
from agents.run import RunConfig
from agents.sandbox import SandboxAgent, SandboxRunConfig, entries
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from openai_agents_withruntime import RuntimeCloudSandboxClient, RuntimeCloudSandboxClientOptions

PATCHES = (
    "*** Begin Patch\n*** Add File: w.py\n+x = input('n? ')\n+print(int(x) * 7)\n*** End Patch\n",
    "*** Begin Patch\n*** Update File: w.py\n@@\n-print(int(x) * 7)\n+print(int(x) * 8)\n*** End Patch\n",
)
CALLS = [
    ("exec_command", {"cmd": "echo hi; pwd; exit 4"}),
    ("apply_patch", PATCHES[0]),
    ("apply_patch", PATCHES[1]),
    ("exec_command", {"cmd": "python3 w.py", "tty": True, "yield_time_ms": 1000}),
]
SESSION = re.compile(r"session ID (\d+)")
TURNS_MAX = 60


class Scripted(Model):
    """A model that makes the calls it was given, and then types a number into the terminal that asks for one."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.typed = False

    async def get_response(
        self, system_instructions: object, input: object, *rest: object, **more: object
    ) -> ModelResponse:
        self.said = [item["output"] for item in input if "output" in item] if isinstance(input, list) else []
        call_id = f"call-{len(self.said)}"
        if len(self.said) < len(CALLS):
            name, given = CALLS[len(self.said)]
        elif "Process exited" not in self.said[-1]:
            name, given = "write_stdin", self._next_input()
        else:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            out = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            return ModelResponse(output=[out], usage=Usage(), response_id=None)
        if isinstance(given, str):
            call = ResponseCustomToolCall(type="custom_tool_call", call_id=call_id, name=name, input=given)
        else:
            arguments = json.dumps(given)
            call = ResponseFunctionToolCall(type="function_call", call_id=call_id, name=name, arguments=arguments)
        return ModelResponse(output=[call], usage=Usage(), response_id=None)

    def _next_input(self) -> dict[str, object]:
        """Nothing until the program has asked, however long it takes to begin."""
        ready = "n? " in self.terminal() and not self.typed
        self.typed = self.typed or ready
        session_id = int(SESSION.search(self.said[len(CALLS) - 1])[1])
        return {"session_id": session_id, "chars": "6\n" if ready else "", "yield_time_ms": 1000}

    def terminal(self) -> str:
        return "".join(output.partition("\nOutput:\n")[2] for output in self.said[len(CALLS) - 1 :])

    def stream_response(self, *rest: object, **more: object) -> None:
        raise AssertionError("the story asks for no stream")  # the framework's model has to have this


async def raised(call: Awaitable[object]) -> BaseException | None:
    try:
        await call
    except Exception as error:  # noqa: BLE001 - whatever it is, the story tells its name
        return error
    return None


def name_of(error: BaseException | None) -> str:
    return type(error).__name__


async def printed(session: SandboxSession, command: str, **options: object) -> list[object]:
    ran = await session.exec(command, **options)
    return [ran.exit_code, ran.stdout.decode(), ran.stderr.decode()]


async def run_of_an_agent(client: RuntimeCloudSandboxClient) -> dict[str, object]:
    model, labels = Scripted(), {"created_by": "openai-agents"}
    sandbox = SandboxRunConfig(client=client, options=RuntimeCloudSandboxClientOptions(labels=labels))
    agent = SandboxAgent(name="Coder", instructions="Work.", model=model)
    config = RunConfig(tracing_disabled=True, sandbox=sandbox)
    ran = await Runner.run(agent, "Go.", run_config=config, max_turns=TURNS_MAX)
    ended = [s.state async for s in await client.runtime.sandboxes.list(labels=labels, include_stopped=True)]
    first = model.said[0].splitlines()
    return {
        "first": [line for line in first if not line.startswith(("Chunk ID", "Wall time"))],
        "patched": model.said[1:3],
        "terminal": model.terminal(),
        "final": ran.final_output,
        "afterwards": ended,
    }


async def until(session: SandboxSession, process: int, text: str, printed_before: str) -> tuple[str, int | None]:
    """What a process has printed once `text` is in it, and its exit code when it has ended."""
    so_far, exit_code = printed_before, None
    while text not in so_far and exit_code is None:
        update = await session.pty_write_stdin(session_id=process, chars="", yield_time_s=1)
        so_far, exit_code = so_far + update.output.decode(), update.exit_code
    return so_far, exit_code


async def processes_of(session: SandboxSession) -> dict[str, object]:
    first = await session.pty_exec_start(
        "echo a; echo b >&2; until [ -e go ]; do sleep 0.1; done; exit 5", yield_time_s=0.5
    )
    so_far, exit_code = await until(session, first.process_id, "b\n", first.output.decode())
    assert exit_code is None
    await session.write(Path("go"), io.BytesIO(b""))
    so_far, exit_code = await until(session, first.process_id, "never", so_far)
    for tty in (True, False):
        await session.pty_exec_start("exec sleep 4321", tty=tty, yield_time_s=0.3)
    await session.pty_terminate_all()
    left = (await session.exec("pgrep -c sleep")).stdout.decode()
    return {"printed": sorted(so_far.split()), "exit code": exit_code, "left": left}


async def day_of_a_session(session: SandboxSession, told: dict[str, object]) -> None:
    told["commands"] = {
        "failed": await printed(session, "echo out; echo $FOO; pwd; echo err >&2; exit 3"),
        "late": name_of(await raised(session.exec("sleep 60", timeout=1))),
        "of root": await printed(session, "id -u; echo $FOO", user="root"),
    }
    large = os.urandom(3 * 1024 * 1024 + 5)
    await session.write(Path("large"), io.BytesIO(large))
    await session.write(Path("of root"), io.BytesIO(b"x"), user="root")
    told["files"] = {
        "made": (await session.read(Path("a.txt"))).read().decode(),
        "large": (await session.read(Path("large"))).read() == large,
        "missing": name_of(await raised(session.read(Path("none")))),
        "a folder": name_of(await raised(session.read(Path(".")))),
        "of root": (await session.read(Path("of root"), user="root")).read().decode(),
    }
    told["processes"] = await processes_of(session)
    refused = await raised(session.resolve_exposed_port(8000))
    told["port"] = [name_of(refused), refused.context["code"], refused.__cause__.status]


async def begun(client: RuntimeCloudSandboxClient, manifest: Manifest, **options: object) -> SandboxSession:
    session = await client.create(
        snapshot=LocalSnapshotSpec(base_path=Path.cwd()),
        manifest=manifest,
        options=RuntimeCloudSandboxClientOptions(timeout_seconds=600, **options),
    )
    await session.start()
    return session


async def resumed(client: RuntimeCloudSandboxClient, session: SandboxSession) -> tuple[str, str, bool]:
    """The state of a session's sandbox after its end, the file that was kept, and whether it is the same sandbox."""
    await session.exec("echo kept > f")
    await session.stop()
    state = client.serialize_session_state(session.state)
    await session.shutdown()
    ended = (await client.runtime.sandboxes.get(session.state.sandbox_id)).state
    again = await client.resume(client.deserialize_session_state(state))
    await again.start()
    kept = (await again.exec("cat f")).stdout.decode()
    same = again.state.sandbox_id == session.state.sandbox_id
    again._inner.state.pause_on_exit = False
    await client.delete(again)
    return ended, kept, same


async def main() -> None:
    told: dict[str, object] = {"client": importlib.metadata.version("withruntime")}
    client = RuntimeCloudSandboxClient()
    told["agent"] = await run_of_an_agent(client)
    # Outside the sandbox's home every file goes by a copy in it.
    outside = Manifest(root="/app", entries={"a.txt": entries.File(content=b"hello\n")})
    session = await begun(client, outside, env={"FOO": "bar"}, exposed_ports=(8000,))
    await day_of_a_session(session, told)
    told["as an archive"] = await resumed(client, session)
    inside = Manifest(root="/workspace/p")
    session = await begun(client, inside, workspace_persistence="snapshot", snapshot_retention_days=1)
    told["as a snapshot"] = await resumed(client, session)
    told["paused"] = await resumed(client, await begun(client, inside, pause_on_exit=True))
    await client.aclose()
    print(json.dumps(told))


asyncio.run(main())
