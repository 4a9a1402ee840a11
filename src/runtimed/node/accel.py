"""Finds out what this host can accelerate with, by really booting, and remembers the verdict for this host.

`/dev/kvm` can exist, open and create a machine and still not run an ordinary kernel (nested and paravirtual hosts), so
only a boot counts. The verdict is kept per kernel, processor and QEMU.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from runtimed.core.boot import QemuInstall
from runtimed.node.vmm.argv import Accel, Emulator

AccelSetting = Literal["auto", "kvm", "tcg"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    accel: Accel
    reason: str
    """One clear line for the operator."""


def tsc_khz() -> int:
    """The host's clock rate, which the guest is told because it cannot measure it reliably under emulation."""
    known = Path("/sys/devices/system/cpu/cpu0/tsc_freq_khz")
    if known.exists():
        return int(known.read_text())
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("cpu MHz"):
            return round(float(line.split(":")[1]) * 1000)
    return 1_000_000


def host_key(qemu: QemuInstall) -> str:
    """What a verdict and a template depend on: this processor, this kernel, this QEMU."""
    processor = next(
        (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), ""
    )
    facts = [platform.release(), processor, str(os.cpu_count()), str(qemu.version), str(qemu.root)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


async def judge(
    *, setting: AccelSetting, qemu: QemuInstall, cache: Path, boots_with_kvm: Callable[[], Awaitable[bool]]
) -> Verdict:
    """The accelerator to use. Boots at most once per host; `boots_with_kvm` tries one real kernel."""
    if setting == "tcg":
        return Verdict(accel="tcg", reason="emulation (TCG), because the settings say so")
    if setting == "kvm":
        return Verdict(accel="kvm", reason="KVM, because the settings say so")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        why = "there is no /dev/kvm" if not Path("/dev/kvm").exists() else "/dev/kvm may not be opened by this user"
        return Verdict(accel="tcg", reason=f"emulation (TCG): {why}")
    record = cache / "accel" / f"{host_key(qemu)}.json"
    try:
        return Verdict(**json.loads(record.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        pass
    if await boots_with_kvm():
        verdict = Verdict(accel="kvm", reason="KVM, which booted the kernel of the image on this host")
    else:
        verdict = Verdict(
            accel="tcg", reason="emulation (TCG): /dev/kvm is there, but a kernel did not boot with it on this host"
        )
    record.parent.mkdir(parents=True, exist_ok=True)
    temporary = record.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(asdict(verdict)))
    os.replace(temporary, record)
    return verdict


def emulator(qemu: QemuInstall, verdict: Verdict, *, jailed: bool) -> Emulator:
    command = qemu.jail_argv if jailed else qemu.argv
    return Emulator(command=command, accel=verdict.accel, tsc_khz=tsc_khz())
