"""Runs agents with a scripted model and the published toolset, and prints as JSON what they were told."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import json

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_withruntime import RuntimeToolset

from withruntime import AsyncRuntime, InvalidRequestError

LARGE = "0123456789abcdef" * (3 * 65536)
RUN, READ, WRITE, LIST = "runtime_exec", "runtime_read_file", "runtime_write_file", "runtime_list_files"
CALLS = {
    "failed": (RUN, {"command": "echo out; echo err >&2; exit 7"}),
    "killed": (RUN, {"command": "kill -9 $$"}),
    "late": (RUN, {"command": "echo part; sleep 60", "timeout_seconds": 1}),
    "long": (RUN, {"command": "seq 1 100000"}),
    "wrote": (WRITE, {"path": "a b/é'.txt", "content": "hé\n"}),
    "read": (READ, {"path": "a b/é'.txt"}),
    "wrote nothing": (WRITE, {"path": "empty", "content": ""}),
    "read nothing": (READ, {"path": "empty"}),
    "wrote 3 MiB": (WRITE, {"path": "large", "content": LARGE}),
    "3 MiB": (RUN, {"command": "sha256sum < large; rm large; printf '\\0\\377' > bin"}),
    "binary": (READ, {"path": "bin"}),
    "missing": (READ, {"path": "none"}),
    "missing elsewhere": (READ, {"path": "/tmp/none"}),
    "wrote elsewhere": (WRITE, {"path": "/tmp/x/y", "content": "there\n"}),
    "read elsewhere": (READ, {"path": "/tmp/x/y"}),
    "not allowed": (WRITE, {"path": "/etc/no", "content": "x"}),
    "listed": (LIST, {}),
}


class Script:
    """A model that makes one call after the other and keeps what it is told."""

    def __init__(self, calls: dict[str, tuple[str, dict]]) -> None:
        self.calls = list(calls.items())
        self.answers: dict[str, object] = {}
        self.tools: list[str] = []
        self.asked = 0

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.tools = [tool.name for tool in info.function_tools]
        if self.asked:
            self.answers[self.calls[self.asked - 1][0]] = messages[-1].parts[-1].content
        if self.asked == len(self.calls):
            return ModelResponse(parts=[TextPart("done")])
        self.asked += 1
        return ModelResponse(parts=[ToolCallPart(*self.calls[self.asked - 1][1])])


async def run(script: Script, toolset: RuntimeToolset) -> Script:
    await Agent(FunctionModel(script), toolsets=[toolset]).run("Go.")
    return script


def boom(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    raise LookupError("the model is gone")


async def main() -> None:
    told: dict[str, object] = {"client": importlib.metadata.version("withruntime")}
    first = await run(Script(CALLS), RuntimeToolset())
    told["tools"], told["answers"] = first.tools, first.answers
    lines = first.answers["long"]["stdout"].splitlines()
    first.answers["long"] = [first.answers["long"]["exit_code"], lines[0], lines[-1]]
    same = hashlib.sha256(LARGE.encode()).hexdigest() in first.answers["3 MiB"]["stdout"]
    first.answers["3 MiB"] = "the same" if same else first.answers["3 MiB"]
    try:
        await Agent(FunctionModel(boom), toolsets=[RuntimeToolset()]).run("Go.")
    except LookupError:
        pass
    async with AsyncRuntime() as client:
        ended = await client.sandboxes.list(labels={"created_by": "pydantic-ai"}, include_stopped=True)
        fields = ("state", "stopReason", "timeoutSeconds", "onLeaseEnd")
        told["of the runs"] = [[sandbox.info[field] for field in fields] async for sandbox in ended]
        async with await client.sandboxes.create(timeout_seconds=600) as sandbox:
            toolset, given = RuntimeToolset(sandbox), {}
            for _ in range(2):
                await run(Script({"kept": (WRITE, {"path": "f", "content": "kept\n"})}), toolset)
            given["after two runs"] = (await sandbox.refresh()).state
            await sandbox.pause()
            given["its file"] = (await run(Script({"f": (READ, {"path": "f"})}), toolset)).answers["f"]
            given["after a pause"] = (await sandbox.refresh()).state
            told["given"] = given
    try:
        await Agent(FunctionModel(boom), toolsets=[RuntimeToolset(create={"vcpu": 99})]).run("Go.")
    except InvalidRequestError as error:
        told["refused"] = str(error).splitlines()[0]
    print(json.dumps(told))


asyncio.run(main())
