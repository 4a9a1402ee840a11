"""A cancel or Ctrl-C at any moment leaves no sandbox and no command behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from scripted_server import Reply, Request, ScriptedServer, answer, ndjson

from withruntime import AsyncSandbox, Sandbox

EXEC = "/v1/sandboxes/a:exec"
SIGNAL = "/v1/sandboxes/a/processes/p:signal"
OUTPUT = "/v1/sandboxes/a/processes/p/output"


async def seen(service: ScriptedServer, method: str, path: str, count: int = 1) -> None:
    async with asyncio.timeout(20):
        while len(service.sent(method, path)) < count:
            await asyncio.sleep(0.01)


def begin(command: list[str]) -> subprocess.Popen:
    """As a terminal would: whoever runs the tests may ignore signals (`nohup`), and a command goes on doing so."""

    def heed() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=dict(os.environ), preexec_fn=heed)


class SlowCreate:
    """A create that takes until it is released; a repeat under its key joins it, as the service promises."""

    def __init__(self, service: ScriptedServer) -> None:
        self.released = threading.Event()
        service.on("POST", "/v1/sandboxes", self._create)

    def _create(self, request: Request) -> Reply:
        if request.headers["prefer"] == "wait=0":
            self.released.set()
        return Reply(body=b'{"id": "a", "state": "running"}', hold=self.released)


async def test_a_create_cancelled_in_flight_leaves_nothing(service: ScriptedServer):
    SlowCreate(service)
    creating = asyncio.create_task(AsyncSandbox.create(name="mine"))
    await seen(service, "POST", "/v1/sandboxes")
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating

    first, again = service.sent("POST", "/v1/sandboxes")
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1


async def test_a_create_that_runs_into_a_timeout_leaves_nothing(service: ScriptedServer):
    SlowCreate(service)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await AsyncSandbox.create()

    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55])
async def test_a_block_cancelled_at_any_step_leaves_nothing(service: ScriptedServer, after: int):
    service.on("POST", EXEC, answer({"exitCode": 0, "stdout": "", "stderr": ""}))

    async def block() -> None:
        async with await AsyncSandbox.create() as sandbox:
            while True:
                await sandbox.exec("true")

    working = asyncio.create_task(block())
    for _ in range(after):  # so many turns of the event loop, wherever that is
        await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    # The order of what arrives says nothing: a request whose sender has left may be read after all others.
    assert bool(service.sent("POST", "/v1/sandboxes")) == bool(service.sent("DELETE", "/v1/sandboxes/a"))


async def test_a_second_cancel_does_not_hold_up_the_deletion(service: ScriptedServer):
    released = threading.Event()
    service.on("DELETE", "/v1/sandboxes/a", Reply(hold=released))
    entered = asyncio.Event()

    async def block() -> None:
        async with await AsyncSandbox.create():
            entered.set()
            await asyncio.sleep(60)

    working = asyncio.create_task(block())
    await entered.wait()
    working.cancel()
    await seen(service, "DELETE", "/v1/sandboxes/a")
    working.cancel()
    await asyncio.sleep(0)
    assert not working.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_a_cancelled_command_is_ended_in_the_sandbox(service: ScriptedServer):
    begun = ndjson({"type": "start", "processId": "p"}, {"type": "stdout", "data": "x", "offset": 0})
    service.on("POST", EXEC, Reply(chunks=begun.chunks, hold_end=service.closing))
    service.on("POST", SIGNAL, answer({}))
    sandbox, heard = await AsyncSandbox.connect("a"), asyncio.Event()
    running = asyncio.create_task(sandbox.exec("sleep 60", on_stdout=lambda _: heard.set()))
    await heard.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    (sent,) = service.sent("POST", SIGNAL)
    assert sent.json == {"signal": "SIGTERM"}


async def test_a_command_cancelled_before_it_was_said_to_start_is_found_by_its_key_and_ended(service: ScriptedServer):
    started = ndjson({"type": "start", "processId": "p", "replayed": True})
    service.on("POST", EXEC, Reply(hold=service.closing), started)
    service.on("POST", SIGNAL, answer({}))
    sandbox = await AsyncSandbox.connect("a")
    running = asyncio.create_task(sandbox.exec("sleep 60", timeout_ms=100_000))
    await seen(service, "POST", EXEC)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert len(service.sent("POST", SIGNAL)) == 1


async def test_a_reader_that_works_slowly_is_not_interrupted_by_the_stream_s_own_time(service: ScriptedServer):
    service.on("POST", EXEC, ndjson({"type": "start", "processId": "p"}, {"type": "exit", "exitCode": 0}))
    sandbox = await AsyncSandbox.connect("a")
    events = []
    async for event in sandbox.exec_stream("true", timeout_ms=1):
        await asyncio.sleep(0.05)
        events.append(event["type"])

    assert events == ["start", "exit"]


def test_ctrl_c_in_a_create_leaves_nothing(service: ScriptedServer):
    SlowCreate(service)
    main = threading.main_thread()

    def press() -> None:
        deadline = time.monotonic() + 20
        while not service.sent("POST", "/v1/sandboxes") and time.monotonic() < deadline:
            time.sleep(0.01)
        signal.pthread_kill(main.ident or 0, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        Sandbox.create()
    presser.join()

    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_run_leaves_no_sandbox_and_gives_its_exit_code(service: ScriptedServer, number: int):
    service.on("POST", "/v1/sandboxes/a/processes", answer({"id": "p", "state": "running", "outputEncoding": "base64"}))
    service.on("GET", "/v1/sandboxes/a/processes/p", answer({"id": "p", "state": "killed"}))
    service.on("GET", OUTPUT, Reply(hold=service.closing))
    service.on("POST", SIGNAL, answer({}))
    command = [sys.executable, "-m", "withruntime.cli", "sandbox", "run", "--", "sleep", "60"]
    child = begin(command)
    asyncio.run(seen(service, "GET", OUTPUT))
    child.send_signal(number)

    assert child.wait(20) == 128 + number
    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1
    assert len(service.sent("POST", SIGNAL)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_run_while_it_creates_leaves_no_sandbox(service: ScriptedServer, number: int):
    SlowCreate(service)
    command = [sys.executable, "-m", "withruntime.cli", "sandbox", "run", "--", "true"]
    child = begin(command)
    asyncio.run(seen(service, "POST", "/v1/sandboxes"))
    child.send_signal(number)

    assert child.wait(20) == 128 + number
    assert len(service.sent("DELETE", "/v1/sandboxes/a")) == 1
