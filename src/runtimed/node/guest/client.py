"""Speaks to one machine's agent: identity, health and defaults here, commands and files beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

from runtimed.core.clock import Clock
from runtimed.core.ports import GuestFiles, GuestProcesses
from runtimed.core.specs import UserName
from runtimed.node.channel import Channel
from runtimed.node.guest.decode import ask
from runtimed.node.guest.files import FileClient
from runtimed.node.guest.processes import ProcessClient

PING_WITHIN_S = 5.0
HOLD_WITHIN_S = 1.0
"""A guest that does not answer is captured as it is."""
GROW_WITHIN_S = 60.0
FLUSH_WITHIN_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What makes a restored copy a machine of its own. `entropy` has at least 32 fresh bytes."""

    entropy: bytes
    hostname: str
    machine_id: str
    boot_id: str | None = None
    env: Mapping[str, str] | None = field(default_factory=dict)
    """None leaves environment and user as they are, in a machine that goes on after a pause."""
    user: UserName = "sandbox"
    ca_pem: str | None = None
    """The certificate of the gateway's authority, for what programs trust."""
    copy: bool = False
    """Programs that were alive in its source are told to seed their own generators anew."""


@dataclass(frozen=True, kw_only=True)
class Identified:
    clock_skew_ms: float
    """Guest clock minus host clock after it was set, give or take half the round trip."""
    entropy_reseeded: bool


class GuestClient:
    """Implements core.ports.Guest over one channel; make another one for another channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.processes: GuestProcesses = ProcessClient(channel)
        self.files: GuestFiles = FileClient(channel)

    async def identify(self, identity: Identity, clock: Clock) -> Identified:
        """Give the machine its identity and the time, before anything of a user runs. Repeatable.

        Raises:
            GuestUnresponsive, MachineGone, Interrupted: it may have only a part of it; do not use the machine.
        """
        sent_s, sent_wall_s = clock.monotonic_s(), clock.now_s()
        worked_s, guest_s, reseeded = await ask(
            self.channel,
            "machine.identify",
            {
                "clock_ns": round(sent_wall_s * 1e9),
                "entropy": base64.b64encode(identity.entropy).decode(),
                "hostname": identity.hostname,
                "machine_id": identity.machine_id,
                "boot_id": identity.boot_id,
                "env": None if identity.env is None else dict(identity.env),
                "user": identity.user,
                "ca_pem": identity.ca_pem,
                "copy": identity.copy,
            },
            lambda r: (r.integer("worked_ns") / 1e9, r.integer("clock_ns") / 1e9, r.boolean("entropy_reseeded")),
        )
        round_trip_s = clock.monotonic_s() - sent_s
        # The guest reads its clock last of all: half of what the trip took besides the guest's work lies after that.
        worked_s = min(max(worked_s, 0.0), round_trip_s)
        host_s = sent_wall_s + round_trip_s - (round_trip_s - worked_s) / 2
        return Identified(clock_skew_ms=(guest_s - host_s) * 1e3, entropy_reseeded=reseeded)

    async def hold(self) -> None:
        """Stop what commands have started until the next `identify`.

        Raises GuestUnresponsive, MachineGone, Interrupted.
        """
        await self.channel.request("machine.hold", {}, within_s=HOLD_WITHIN_S)

    async def ping(self) -> None:
        """Raises GuestUnresponsive, MachineGone."""
        await self.channel.ping(within_s=PING_WITHIN_S)

    async def grow(self) -> int:
        """Make the root file system as large as its disk; answers its size in bytes."""
        return await ask(self.channel, "machine.grow", {}, lambda r: r.integer("bytes"), within_s=GROW_WITHIN_S)

    async def settle(self, *, quiet_s: float = 0) -> None:
        """Forget the commands that have run and flush the disks: the machine is about to be saved as a template."""
        await self.channel.request("machine.settle", {"quiet_s": quiet_s})

    async def flush(self) -> None:
        """Bring what was written inside to the machine's disk.

        Raises:
            GuestUnresponsive, MachineGone, Interrupted: it is not known what has arrived.
        """
        await self.channel.request("machine.flush", {}, within_s=FLUSH_WITHIN_S)

    async def power_off(self) -> None:
        """Flush the guest's disks and end the machine from within. The answer comes before the end."""
        await self.channel.request("machine.poweroff", {})

    async def update(self, *, env: dict[str, str], user: UserName) -> None:
        await self.channel.request("machine.update", {"env": env, "user": user})
