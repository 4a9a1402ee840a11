"""Builds the service out of its parts, serves it until it is told to stop, and takes it apart again."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TypeVar

import uvicorn
from starlette.types import ASGIApp, Message

from runtimed import VERSION
from runtimed.api.admission import CallLimits
from runtimed.api.app import build_app
from runtimed.api.auditing import Auditor
from runtimed.api.idempotency import Idempotency
from runtimed.api.metrics import Metrics
from runtimed.api.presence import Presence
from runtimed.api.services import Services
from runtimed.control.egress_log import EgressLog
from runtimed.control.forks import Forks
from runtimed.control.idle import Idle
from runtimed.control.leases import Leases
from runtimed.control.life import LifeParts, Lives
from runtimed.control.load import MeasuredLoad
from runtimed.control.metering import Metering
from runtimed.control.moves import Moves
from runtimed.control.networks import Secrets, Ways
from runtimed.control.recovery import Recovery
from runtimed.control.sandboxes import Sandboxes
from runtimed.control.sleep import Sleep
from runtimed.control.snapshots import Snapshots
from runtimed.core.clock import Clock, SystemClock
from runtimed.core.errors import RuntimedError
from runtimed.core.ports import Node
from runtimed.core.tasks import spawn
from runtimed.core.wait import wait_for
from runtimed.egress.gateway import Gateway
from runtimed.gateway_parts import fingerprint_key, forbidden_ports, make_gateway, make_sealer
from runtimed.host import make_host
from runtimed.money_parts import make_metering, make_money
from runtimed.node.usage import cpu_us
from runtimed.open_store import open_store
from runtimed.pruning import prune_in_background
from runtimed.settings import CommandError, Settings
from runtimed.state_folder import StateFolder
from runtimed.store.accounts import Accounts
from runtimed.store.answers import AnswerStore
from runtimed.store.audit import AuditStore, RequestCounts
from runtimed.store.database import Database
from runtimed.store.egress_records import EgressRecordStore
from runtimed.store.egress_secrets import SecretStore
from runtimed.store.sandboxes import SandboxStore
from runtimed.store.snapshots import SnapshotStore

LISTENING_WITHIN_S = 10.0
REQUESTS_END_WITHIN_S = 5
"""What still runs has this long for its answer; the rest is cut."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class CannotServe(CommandError):
    """One sentence that says why the service cannot start, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """The parts of a running service that something is done with."""

    app: ASGIApp
    services: Services
    egress_log: EgressLog
    lives: Lives
    leases: Leases
    idle: Idle
    snapshots: Snapshots
    metering: Metering
    recovery: Recovery


async def build_service(
    settings: Settings, *, node: Node, database: Database, clock: Clock, gateway: Gateway | None = None
) -> Service:
    """Everything but the sockets. Takes over what an earlier service left, so its node is not prepared yet."""
    answers, gateway = AnswerStore(database), gateway or make_gateway(settings, clock)
    secrets = Secrets(door=gateway, store=SecretStore(database), clock=clock)
    await secrets.load()
    egress_log = EgressLog(EgressRecordStore(database), clock)
    await egress_log.follow(gateway)
    money = make_money(settings, node=node, database=database, clock=clock, door=gateway)
    parts = LifeParts(
        node=node,
        store=SandboxStore(database),
        clock=clock,
        ways=Ways(gateway),
        till=money.charging,
        seal=make_sealer(settings),
    )
    lives = Lives(parts)
    sleep, recovery = Sleep(lives, parts), Recovery(lives, parts)
    snapshots = Snapshots(lives=lives, parts=parts, store=SnapshotStore(database))
    await recovery.recover()
    await snapshots.recover()
    metering = make_metering(settings, money, lives=lives, database=database, clock=clock)
    await metering.settle_ended()
    await answers.abandon_running()
    sandboxes = Sandboxes(lives=lives, sleep=sleep, snapshots=snapshots, parts=parts)
    services = Services(
        presence=Presence(),
        sandboxes=sandboxes,
        moves=Moves(lives=lives, sleep=sleep, store=parts.store),
        forks=Forks(lives=lives, sleep=sleep, snapshots=snapshots, parts=parts),
        snapshots=snapshots,
        secrets=secrets,
        accounting=money.accounting,
        auditor=Auditor(AuditStore(database), RequestCounts(database), clock),
        clock=clock,
        egress=gateway,
        egress_records=egress_log,
        forbidden_ports=forbidden_ports(settings),
        accounts=Accounts(database, clock),
        idempotency=Idempotency(answers, clock, secret=fingerprint_key(settings)),
        limits=CallLimits(per_sandbox=settings.exec_per_sandbox, total=settings.exec_total),
        metrics=Metrics(sandboxes),
        closing=asyncio.Event(),
        region=settings.region,
        default_image=settings.image,
    )
    load = MeasuredLoad(
        requests=services.limits.under_way,
        vmm_pid=node.vmm_pid,
        process_cpu_us=cpu_us,
        traffic=lambda sandbox_id: gateway.traffic(sandbox_id).moved,
    )
    return Service(
        app=build_app(services, clock),
        services=services,
        egress_log=egress_log,
        lives=lives,
        leases=Leases(
            lives=lives, sleep=sleep, sandboxes=parts.store, answers=answers, clock=clock, till=money.charging
        ),
        idle=Idle(lives=lives, sleep=sleep, node=node, load=load, clock=clock),
        snapshots=snapshots,
        metering=metering,
        recovery=recovery,
    )


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Answers the exit code; says one sentence where it cannot start."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    # Its line for a WebSocket holds the whole query, and so a terminal's command; we log the request ourselves.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    folder = StateFolder(settings.state_dir)
    try:
        folder.make()
        with folder.held():
            run(_serve(settings, folder))
    except CommandError as error:
        sys.stderr.write(f"runtimed: {error}\n")
        return 1
    except RuntimedError as error:
        hint = f" {error.hint}" if error.hint else ""
        sys.stderr.write(f"runtimed: {error.message}{hint}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - the last boundary: whoever waits for the service reads the last line
        _log.exception("the service ended by a fault of its own")
        sys.stderr.write(f"runtimed: a fault of its own ended the service ({type(error).__name__}: {error})\n")
        return 1
    return 0


def run(work: Coroutine[object, object, None]) -> None:
    """Run on uvloop where it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


async def _serve(settings: Settings, folder: StateFolder) -> None:
    folder.withdraw()
    told = Told(stop=asyncio.Event(), end_sandboxes=settings.end_sandboxes or settings.vmm == "fake")
    told.listen()
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(_listen(settings)))
        database = await open_store(settings)
        stack.push_async_callback(database.close)
        await _ensure_key(folder, Accounts(database, clock))
        last = await stack.enter_async_context(contextlib.AsyncExitStack())
        gateway = make_gateway(settings, clock)
        host = await _unless(told.stop, _refused(make_host(settings, clock, folder.say, gateway)))
        if host is None:
            return
        if isinstance(host, RuntimedError):
            raise host
        # What runs when the service goes, whatever makes it go, is adopted by the next one.
        stack.push_async_callback(host.close, end_machines=False)
        service = await build_service(settings, node=host, database=database, clock=clock, gateway=gateway)
        last.push_async_callback(service.egress_log.close)  # after the host, whose connections end with it
        stack.push_async_callback(service.services.idempotency.close)
        stack.push_async_callback(service.services.auditor.close)
        stack.callback(folder.withdraw)
        if isinstance(refused := await _unless(told.stop, _refused(host.prepare())), RuntimedError):
            raise refused
        if not told.stop.is_set():
            if settings.vmm != "fake":  # whose templates are in its state folder
                spawn(asyncio.to_thread(prune_in_background, settings, clock.now_s()), name="prune the cache")
            await _answer(service, listener, folder, told)


@dataclass(kw_only=True)
class Told:
    """What the operator has said by signals."""

    stop: asyncio.Event
    end_sandboxes: bool
    """Whether they end with the service. A fake host's machines cannot be found again."""

    def listen(self) -> None:
        """SIGTERM and SIGINT stop the service; SIGUSR1 says that its sandboxes are to end with it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        loop.add_signal_handler(signal.SIGUSR1, self._end_sandboxes)

    def _end_sandboxes(self) -> None:
        self.end_sandboxes = True


async def _refused(work: Awaitable[T]) -> T | RuntimedError:
    """What the work answers, or what it was refused with."""
    try:
        return await work
    except RuntimedError as error:
        return error


async def _unless(stop: asyncio.Event, work: Coroutine[object, object, T]) -> T | None:
    """What the work answers; None, and the work cancelled, when `stop` comes first."""
    working = spawn(work, name="prepare the host")
    stopping = spawn(stop.wait(), name="wait for a signal")
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait({working})
        return None
    finally:
        stopping.cancel()


async def _answer(service: Service, listener: socket.socket, folder: StateFolder, told: Told) -> None:
    """Serve until told to stop; then refuse what is new, leave or end the machines, and let what runs finish."""
    server = _Server(
        uvicorn.Config(
            service.app,
            lifespan="off",
            ws="websockets-sansio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=REQUESTS_END_WITHIN_S,
        )
    )
    serving = spawn(server.serve(sockets=[listener]), name="serve")
    reconciling = {
        spawn(service.leases.run(), name="reconcile leases"),
        spawn(service.idle.run(), name="pause idle sandboxes"),
        spawn(service.snapshots.run(), name="expire snapshots"),
        spawn(service.metering.run(), name="meter and charge"),
        spawn(service.metering.run_tidying(), name="join old use"),
        spawn(service.egress_log.run(), name="keep egress records"),
    }

    async def started() -> bool | None:
        return server.started or None

    await _warm(service.app)
    await wait_for("listening", started, within_s=LISTENING_WITHIN_S, every_s=0.01)
    url = _url(listener)
    folder.announce(url, VERSION)
    _log.info("runtimed %s answers on %s", VERSION, url)
    stopping = spawn(told.stop.wait(), name="wait for a signal")
    await asyncio.wait({stopping, serving, *reconciling}, return_when=asyncio.FIRST_COMPLETED)
    folder.withdraw()
    stopping.cancel()
    for task in reconciling:
        task.cancel()
    service.services.closing.set()
    going_on = await service.recovery.leave(end=told.end_sandboxes)
    await service.metering.close()
    folder.say_stopped(going_on=going_on)
    _log.info("stopping: %d sandboxes go on until their leases end", going_on)
    server.should_exit = True
    await serving
    await asyncio.wait(reconciling)


async def _warm(app: ASGIApp) -> None:
    """Answer one request to nobody: the first one builds what all others share, which takes a while."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(_: Message) -> None:
        return

    scope = {"type": "http", "method": "GET", "path": "/healthz", "raw_path": b"/healthz", "query_string": b""}
    await app({**scope, "headers": [], "asgi": {"version": "3.0"}, "scheme": "http", "root_path": ""}, receive, send)


class _Server(uvicorn.Server):
    """Leaves the signals alone: they are the service's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        where = f"{settings.host} port {settings.port}"
        raise CannotServe(f"cannot listen on {where} ({error.strerror}); choose another with --port") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _ensure_key(folder: StateFolder, accounts: Accounts) -> None:
    """The state folder's key is one that works; made at the first start."""
    text = folder.read_key()
    if text is None or await accounts.recognise(text) is None:
        _, text = await accounts.create_key(await accounts.first_account(), name="local", kind="full")
        folder.write_key(text)
