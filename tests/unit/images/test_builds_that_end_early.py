"""A build that ends at any of its steps, in any way, leaves the cache as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimed.core.boot import ImageFiles, QemuInstall
from runtimed.images import qemu
from runtimed.images.errors import BuildStopped, CommandFailed, ImageBuildFailed
from runtimed.images.qemu import ensure_qemu
from runtimed.images.store import ImageStore

from .distribution import ENTRIES, FakeDistribution, Stopped

Ensure = Callable[[Path, FakeDistribution], ImageFiles | QemuInstall]

ENDINGS: dict[str, Callable[[], BaseException]] = {
    "a program fails": lambda: CommandFailed(["program"], code=1, output="no"),
    "a program hangs": lambda: CommandFailed(["program"], code=None, output=""),
    "the service stops it": lambda: BuildStopped("stopped"),
    "Ctrl-C": Stopped,
}


@pytest.fixture
def guest_source(tmp_path: Path) -> Path:
    folder = tmp_path / "runtime_guest"
    folder.mkdir()
    (folder / "__main__.py").write_text("print('agent')\n")
    return folder


@pytest.fixture
def ensure_image(guest_source: Path) -> Ensure:
    def ensure(cache: Path, runner: FakeDistribution) -> ImageFiles:
        return ImageStore(cache, runner=runner, sources=lambda: ENTRIES, guest_source=guest_source).ensure("default")

    return ensure


@pytest.fixture
def ensure_private_qemu(monkeypatch: pytest.MonkeyPatch) -> Ensure:
    monkeypatch.setattr(qemu, "find_host_qemu", lambda runner: None)
    return lambda cache, runner: ensure_qemu(cache, runner=runner, sources=lambda: ENTRIES)


def finished(cache: Path) -> dict[str, list[str]]:
    """The artifacts of the cache, each with its files."""
    return {
        str(artifact.relative_to(cache)): sorted(str(path.relative_to(artifact)) for path in artifact.rglob("*"))
        for artifact in cache.glob("[!.]*/*")
    }


def rests(cache: Path) -> list[str]:
    return [path.name for path in cache.glob(".building-*")]


def end_at_every_step(tmp_path: Path, ensure: Ensure, ending: Callable[[], BaseException]) -> None:
    whole_runner = FakeDistribution()
    ensure(tmp_path / "whole", whole_runner)
    whole = finished(tmp_path / "whole")
    steps = len(whole_runner.calls)
    assert steps > 5

    for step in range(1, steps + 1):
        cache = tmp_path / f"broken-{step}"
        with pytest.raises((ImageBuildFailed, Stopped)):
            ensure(cache, FakeDistribution(break_at=step, error=ending()))
        left = finished(cache)

        assert rests(cache) == [], f"step {step}"
        assert left.items() <= whole.items(), f"step {step}: an artifact is there, but not whole"
        assert left != whole, f"step {step}: the last artifact cannot be there"

        ensure(cache, FakeDistribution())

        assert finished(cache) == whole, f"the next attempt after step {step} makes what is missing"


@pytest.mark.parametrize("ending", [ENDINGS["a program fails"], ENDINGS["Ctrl-C"]], ids=["fails", "Ctrl-C"])
def test_an_image_that_fails_at_any_step_leaves_nothing_half_made(
    tmp_path: Path, ensure_image: Ensure, ending: Callable[[], BaseException]
) -> None:
    end_at_every_step(tmp_path, ensure_image, ending)


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_a_qemu_that_fails_at_any_step_leaves_nothing_half_made(
    tmp_path: Path, ensure_private_qemu: Ensure, ending: Callable[[], BaseException]
) -> None:
    end_at_every_step(tmp_path, ensure_private_qemu, ending)


def test_what_is_there_is_not_made_again(tmp_path: Path, ensure_image: Ensure) -> None:
    first = ensure_image(tmp_path / "cache", FakeDistribution())
    again = FakeDistribution()

    assert ensure_image(tmp_path / "cache", again) == first
    assert again.calls == []


def test_an_image_of_a_recipe_of_one_s_own_is_used_by_its_name_and_the_newest_one_is_meant(
    tmp_path: Path, guest_source: Path
) -> None:
    cache, recipe = tmp_path / "cache", tmp_path / "science.toml"

    def ensure(name: str, runner: FakeDistribution) -> str:
        return (
            ImageStore(cache, runner=runner, sources=lambda: ENTRIES, guest_source=guest_source).ensure(name).image_id
        )

    built = []
    for number in range(2):
        recipe.write_text(f'name = "science"\ncommands = ["echo {number}"]\n')
        built.append(ensure(str(recipe), FakeDistribution()))
        description = cache / "images" / built[-1].rpartition("-")[0] / "image.json"
        os.utime(description, (1000 + number, 1000 + number))
    recipe.unlink()
    runner = FakeDistribution()

    assert built[0] != built[1]
    assert ensure("science", runner) == built[1]
    assert ensure(built[0].rpartition("-")[0], runner) == built[0]
    assert runner.calls == []


def test_new_agent_code_makes_only_a_new_agent_disk(tmp_path: Path, ensure_image: Ensure, guest_source: Path) -> None:
    first = ensure_image(tmp_path / "cache", FakeDistribution())
    (guest_source / "__main__.py").write_text("print('better agent')\n")
    runner = FakeDistribution()
    second = ensure_image(tmp_path / "cache", runner)

    assert isinstance(first, ImageFiles)
    assert isinstance(second, ImageFiles)
    assert second.agent_id != first.agent_id
    assert (second.image_id, second.kernel_id) == (first.image_id, first.kernel_id)
    assert not [call for call in runner.calls if "apt-get" in call[0]], "nothing is fetched for it"


def test_an_image_built_again_is_another_build(tmp_path: Path, guest_source: Path) -> None:
    store = ImageStore(
        tmp_path / "cache", runner=FakeDistribution(), sources=lambda: ENTRIES, guest_source=guest_source
    )
    first = store.ensure("minimal")
    removed = store.remove("minimal")
    second = store.ensure("minimal")

    assert first.image_id.startswith(removed.image_id)
    assert second.image_id.startswith(removed.image_id)
    assert first.image_id != second.image_id, "templates made from the first must not be used with the second"


def test_a_removed_image_is_gone_and_its_kernel_stays(tmp_path: Path, guest_source: Path) -> None:
    store = ImageStore(
        tmp_path / "cache", runner=FakeDistribution(), sources=lambda: ENTRIES, guest_source=guest_source
    )
    files = store.ensure("minimal")
    store.remove("minimal")

    assert store.list() == []
    assert store.find("minimal") is None
    assert not files.rootfs.exists()
    assert files.kernel.exists()
    assert rests(tmp_path / "cache") == []


def test_only_qemu_its_image_tool_and_the_step_down_are_left_in_the_jails_root(
    tmp_path: Path, ensure_private_qemu: Ensure
) -> None:
    install = ensure_private_qemu(tmp_path / "cache", FakeDistribution())

    assert isinstance(install, QemuInstall)
    assert install.root is not None
    programs = sorted(path.name for path in (install.root / "usr/bin").iterdir())
    assert programs == ["qemu-img", "qemu-system-x86_64"]
    assert list((install.root / "usr/sbin").iterdir()) == []
    assert install.version == (10, 0, 2)


def test_current_is_today_s_recipe_and_the_newest_image_of_each_name(tmp_path: Path, guest_source: Path) -> None:
    store = ImageStore(tmp_path / "c", runner=FakeDistribution(), sources=lambda: ENTRIES, guest_source=guest_source)
    files = store.ensure("default")
    before = store.current()
    (guest_source / "__main__.py").write_text("print('a newer agent')\n")

    after = store.current()

    assert {("agents", files.agent_id), ("kernels", files.kernel_id)} <= before
    assert ("images", files.rootfs.parent.name) in before & after
    assert ("agents", files.agent_id) not in after
