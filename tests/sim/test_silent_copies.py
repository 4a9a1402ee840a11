"""A copy whose agent greets and then says nothing is ended and begun again; one that stays silent is refused."""

from __future__ import annotations

import pytest

from runtimed.core.errors import StartFailed
from runtimed.core.ids import SandboxId
from runtimed.wire.streams import Stream

from .emulator import Wire
from .host import Host, spec_of
from .hurried import hurry

BOX = SandboxId("0b9c8a51-4a7e-4f0e-9d6c-1f3f5b7f2a11")
COPY = SandboxId("0b9c8a51-4a7e-4f0e-9d6c-1f3f5b7f2b00")
SNAPSHOT = "snapshot-1"


def silent(times: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The copy's agent does not answer that often; the list grows by each machine that was asked for its identity."""
    answered, asked = Wire._opened, list[str]()

    def opened(wire: Wire, stream: Stream) -> None:
        if stream.method == "machine.identify" and stream.params["machine_id"] == COPY.replace("-", ""):
            asked.append(wire.machine.own.parent.name)
            if len(asked) <= times:
                return
        answered(wire, stream)

    monkeypatch.setattr(Wire, "_opened", opened)
    return asked


async def source(host: Host) -> None:
    await host.serve()
    host.make_template()
    await host.node.start(spec_of(BOX))
    await host.node.snapshot(BOX, SNAPSHOT, "memory")


@pytest.mark.parametrize("how", ["snapshot", "fork"])
def test_a_copy_that_is_silent_once_is_begun_again(how: str, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        await source(host)
        asked = silent(1, monkeypatch)
        if how == "fork":
            await host.node.fork(BOX, [spec_of(COPY)])
        else:
            await host.node.start(spec_of(COPY, snapshot_id=SNAPSHOT))

        assert len(set(asked)) == 2, "the second try is a machine of its own"
        assert host.node.running() == {BOX, COPY}
        assert len(host.emulator.machines) == 2, "the silent one is ended"

    hurry(story())


def test_a_copy_that_stays_silent_is_refused_and_leaves_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        await source(host)
        asked = silent(99, monkeypatch)
        with pytest.raises(StartFailed, match="did not answer"):
            await host.node.start(spec_of(COPY, snapshot_id=SNAPSHOT))

        assert len(set(asked)) == 2
        assert host.node.running() == {BOX}
        assert len(host.emulator.machines) == 1

    hurry(story())
