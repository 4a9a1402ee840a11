"""The cache loses what nothing needs any more, and nothing that any service, sandbox or template stands on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimed import pruning
from runtimed.images.cache import Artifact, Cache, Workplace
from runtimed.images.errors import ImageBuildFailed
from runtimed.images.run import silent
from runtimed.node import unused
from runtimed.settings import CommandError, Settings
from runtimed.state_folder import StateFolder

NOW_S = 1_000_000_000.0
"""Long ago, so that what a test really uses is used later than all of this."""
DAY_S = 86_400


@dataclass
class Host:
    """A cache with a few things in it, and the state folders of two services that share it."""

    cache_dir: Path
    settings: Settings
    other: Settings

    def make(self, place: str, *, days_ago: float, needs: list[str] | None = None) -> Path:
        folder = self.cache_dir / place
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 8192)
        if needs is not None:
            (folder / unused.NEEDS).write_text(json.dumps([str(self.cache_dir / need) for need in needs]))
        self.last_used(folder, days_ago)
        return folder

    def last_used(self, folder: Path, days_ago: float) -> None:
        os.utime(folder, times=(NOW_S - days_ago * DAY_S,) * 2)

    def record(self, settings: Settings, shelf: str, names: list[str]) -> Path:
        """A machine, paused sandbox or snapshot of a state folder that stands on these places of the cache."""
        folder = settings.state_dir / shelf / "one"
        folder.mkdir(parents=True)
        name = "machine.json" if shelf == "machines" else "kept.json"
        files = [str(self.cache_dir / place / "file") for place in names]
        (folder / name).write_text(json.dumps({"plan": {"image": dict(enumerate(files))}}))
        return folder

    def prune(self, *, keep_days: float = 14, dry_run: bool = False) -> set[str]:
        pruned = pruning.prune(self.settings, now_s=NOW_S, keep_days=keep_days, dry_run=dry_run)
        return {one.place for one in pruned.removed}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(pruning, "_current", lambda settings: {("agents", "today")})
    cache = tmp_path / "cache"
    both = [Settings(state_dir=tmp_path / name, cache_dir=cache) for name in ("one", "two")]
    for settings in both:
        settings.state_dir.mkdir()
        pruning.register(settings)
    return Host(cache_dir=cache, settings=both[0], other=both[1])


def test_what_is_old_and_needed_by_nothing_goes_with_its_size_told(host: Host) -> None:
    old = host.make("agents/old", days_ago=15)
    host.make("agents/young", days_ago=13)
    host.make("agents/today", days_ago=400)

    (removed,) = pruning.prune(host.settings, now_s=NOW_S, keep_days=14, dry_run=False).removed

    assert (removed.place, removed.bytes, round(removed.unused_days)) == ("agents/old", 8192, 15)
    assert not old.exists()
    assert sorted(os.listdir(host.cache_dir / "agents")) == ["today", "young"]


@pytest.mark.parametrize("kind", ["images", "kernels", "tools", "agents", "qemu", "templates"])
def test_a_dry_run_says_the_same_and_removes_nothing(host: Host, kind: str) -> None:
    folder = host.make(f"{kind}/old", days_ago=15)

    assert host.prune(dry_run=True) == {f"{kind}/old"}
    assert folder.exists()
    assert host.prune() == {f"{kind}/old"}
    assert not folder.exists()


def test_what_is_not_ours_is_never_touched(host: Host) -> None:
    strangers = host.make("strangers/old", days_ago=4000)

    assert host.prune(keep_days=0) == set()
    assert strangers.exists()


@pytest.mark.parametrize("shelf", ["machines", "kept", "snapshots"])
def test_what_a_sandbox_of_another_service_stands_on_stays_until_it_is_gone(host: Host, shelf: str) -> None:
    host.make("images/old", days_ago=99)
    host.make("templates/old", days_ago=99)
    record = host.record(host.other, shelf, ["images/old", "templates/old"])

    assert host.prune() == set()

    (record / ("machine.json" if shelf == "machines" else "kept.json")).unlink()

    assert host.prune() == {"images/old", "templates/old"}


def test_a_record_that_names_the_cache_by_another_way_counts(host: Host, tmp_path: Path) -> None:
    host.make("images/old", days_ago=99)
    (tmp_path / "link").symlink_to(host.cache_dir)
    folder = host.other.state_dir / "kept" / "one"
    folder.mkdir(parents=True)
    (folder / "kept.json").write_text(json.dumps({"rootfs": str(tmp_path / "link/images/old/rootfs.img")}))

    assert host.prune() == set()


def test_a_template_keeps_what_it_stands_on_and_takes_it_along_when_it_goes(host: Host) -> None:
    host.make("agents/old", days_ago=99)
    template = host.make("templates/t", days_ago=1, needs=["agents/old/agent.img"])

    assert host.prune() == set()

    host.last_used(template, 99)

    assert host.prune() == {"templates/t", "agents/old"}


def test_a_held_template_stays_with_all_that_it_stands_on(host: Host, tmp_path: Path) -> None:
    host.make("agents/old", days_ago=99)
    host.make("templates/t", days_ago=99, needs=["agents/old/agent.img"])
    holders = host.cache_dir / "templates/.holders/t"
    holders.mkdir(parents=True)
    (holders / "a").write_text(str(tmp_path / "paused"))
    (tmp_path / "paused").mkdir()

    assert host.prune() == set()

    (tmp_path / "paused").rmdir()

    assert host.prune() == {"templates/t", "agents/old"}


def test_what_a_running_service_has_used_stays_however_long_it_runs(host: Host) -> None:
    host.make("agents/older", days_ago=41)
    host.make("agents/in-use", days_ago=39)
    for entry in (host.cache_dir / ".users").glob("[0-9a-f]*"):
        host.last_used(entry, 40)

    with StateFolder(host.other.state_dir).held():
        assert host.prune() == {"agents/older"}

    assert host.prune() == {"agents/in-use"}


def test_what_was_used_within_the_hour_stays_even_with_zero_days(host: Host) -> None:
    host.make("agents/just-used", days_ago=0.5 / 24)
    host.make("agents/used", days_ago=1.5 / 24)

    assert host.prune(keep_days=0) == {"agents/used"}


def test_a_use_that_comes_between_the_look_and_the_removal_wins(host: Host) -> None:
    cache = Cache(host.cache_dir)
    folder = host.make("agents/a", days_ago=99)
    template = host.make("templates/t", days_ago=99)
    assert cache.use("agents", "a") == folder
    assert unused.use(host.cache_dir / "templates", "t")

    assert not cache.remove_unused("agents", "a", before_s=NOW_S - DAY_S * 30)
    assert not unused.remove_unused(host.cache_dir / "templates", "t", before_s=NOW_S - DAY_S * 30)

    assert folder.exists()
    assert template.exists()


def test_asking_for_an_artifact_notes_its_use(host: Host) -> None:
    folder = host.make("agents/a", days_ago=99)

    Cache(host.cache_dir).ensure(Artifact(kind="agents", key="a", needs_mib=0, make=_never), silent)

    assert host.prune(keep_days=1) == set()
    assert folder.exists()


def test_one_who_asks_while_it_is_pruned_gets_a_whole_one(host: Host) -> None:
    """Twenty rounds of a builder and a pruner that want the same artifact: it is there and whole, or made again."""
    cache = Cache(host.cache_dir)

    def make(place: Workplace) -> None:
        (place.result / "file").write_text("whole")

    wanted = Artifact(kind="agents", key="a", needs_mib=0, make=make)
    for _ in range(20):
        host.last_used(cache.ensure(wanted, silent), 99)
        pruner = threading.Thread(target=cache.remove_unused, args=("agents", "a"), kwargs={"before_s": NOW_S - DAY_S})
        pruner.start()
        folder = cache.ensure(wanted, silent)
        pruner.join()

        assert (folder / "file").read_text() == "whole"


def test_a_state_folder_that_is_gone_is_forgotten(host: Host) -> None:
    host.other.state_dir.rmdir()

    host.prune()

    assert len(list((host.cache_dir / ".users").glob("[0-9a-f]*"))) == 1


def test_nothing_goes_when_what_is_needed_cannot_be_found_out(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = host.make("agents/old", days_ago=99)

    def unknown(settings: Settings) -> set[tuple[str, str]]:
        raise ImageBuildFailed("apt has no sources")

    monkeypatch.setattr(pruning, "_current", unknown)
    with pytest.raises(CommandError, match="apt has no sources"):
        host.prune()

    assert folder.exists()


def test_with_zero_days_set_the_service_removes_nothing(host: Host) -> None:
    folder = host.make("agents/old", days_ago=99)
    for days, there in ((0, True), (14, False)):
        settings = Settings(state_dir=host.settings.state_dir, cache_dir=host.settings.cache_dir, cache_keep_days=days)
        pruning.prune_in_background(settings, NOW_S)

        assert folder.exists() is there


@pytest.fixture
def command(host: Host) -> Iterator[list[str]]:
    folders = ["--state-dir", str(host.settings.state_dir), "--cache-dir", str(host.cache_dir)]
    yield [sys.executable, "-m", "runtimed", "image", "prune", *folders]


def test_the_command_says_what_goes_how_much_and_how_long_unused(host: Host, command: list[str]) -> None:
    folder = host.make("agents/old", days_ago=0)
    os.utime(folder, times=(0, 0))

    dry = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True)
    told = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)

    assert dry.stdout.splitlines()[0].startswith("agents/old ")
    assert dry.stdout.splitlines()[1] == "would free 0 MiB in 1 folder"
    assert [(one["kind"], one["key"], one["bytes"]) for one in told["data"]] == [("agents", "old", 8192)]
    assert not folder.exists()


def _never(place: Workplace) -> None:
    raise AssertionError("it is there")
