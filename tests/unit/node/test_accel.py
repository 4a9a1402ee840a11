"""Which accelerator a host gets: only a boot counts, and it counts once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtimed.core.boot import QemuInstall
from runtimed.node import accel

QEMU = QemuInstall(version=(10, 0, 2), root=None, argv=("qemu",), img_argv=("img",), jail_argv=("qemu",))


class Trial:
    """A boot with KVM that comes out as told."""

    def __init__(self, *, boots: bool) -> None:
        self.boots, self.count = boots, 0

    async def __call__(self) -> bool:
        self.count += 1
        return self.boots


@pytest.fixture
def kvm_there(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: True if path == "/dev/kvm" else real(path, mode))


@pytest.mark.usefixtures("kvm_there")
@pytest.mark.parametrize(("boots", "verdict"), [(True, "kvm"), (False, "tcg")])
async def test_kvm_is_used_exactly_where_a_boot_proved_it_and_the_verdict_is_kept(
    tmp_path: Path, boots: bool, verdict: str
) -> None:
    trial = Trial(boots=boots)

    first = await accel.judge(setting="auto", qemu=QEMU, cache=tmp_path, boots_with_kvm=trial)
    second = await accel.judge(setting="auto", qemu=QEMU, cache=tmp_path, boots_with_kvm=trial)

    assert (first.accel, second.accel) == (verdict, verdict)
    assert first.reason
    assert trial.count == 1


@pytest.mark.usefixtures("kvm_there")
async def test_another_qemu_is_tried_anew(tmp_path: Path) -> None:
    trial = Trial(boots=True)
    newer = QemuInstall(version=(10, 1, 0), root=None, argv=("qemu",), img_argv=("img",), jail_argv=("qemu",))

    await accel.judge(setting="auto", qemu=QEMU, cache=tmp_path, boots_with_kvm=trial)
    await accel.judge(setting="auto", qemu=newer, cache=tmp_path, boots_with_kvm=trial)

    assert trial.count == 2


async def test_without_the_device_nothing_is_tried_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    trial = Trial(boots=True)

    verdict = await accel.judge(setting="auto", qemu=QEMU, cache=tmp_path, boots_with_kvm=trial)

    assert verdict.accel == "tcg"
    assert "/dev/kvm" in verdict.reason
    assert trial.count == 0


async def test_an_operators_word_is_taken_without_a_boot(tmp_path: Path) -> None:
    trial = Trial(boots=False)

    verdict = await accel.judge(setting="kvm", qemu=QEMU, cache=tmp_path, boots_with_kvm=trial)

    assert (verdict.accel, trial.count) == ("kvm", 0)
