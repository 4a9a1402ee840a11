"""Real builds from the host's own mirror, and what they give, started on a real microVM."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimed.core.boot import ImageFiles, QemuInstall
from runtimed.images.store import ImageStore

pytestmark = [pytest.mark.system, pytest.mark.slow]

BUILD_S = 240
BOOT_S = 90

AGENT = """
import json, os, subprocess, sys
GUEST = "/run/runtime/guest"
def said(*argv):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return [done.returncode, done.stdout.strip()]
for name in open(GUEST + "/modules/network.order").read().split():
    code, out = said(GUEST + "/bin/busybox", "insmod", f"{GUEST}/modules/{name}.ko")
    assert code == 0, (name, out)
facts = {
    "pid": os.getpid(),
    "python": sys.executable,
    "image has python": os.path.exists("/usr/bin/python3"),
    "grow": said(GUEST + "/bin/resize2fs", "/dev/vda"),
    "size": os.statvfs("/").f_blocks * os.statvfs("/").f_frsize,
    "nft": said(GUEST + "/bin/nft", "add table inet t; list tables"),
    "sudo": said("/bin/su", "runtime", "-c", "sudo -n id -u"),
    "workspace": [os.stat("/workspace").st_uid, os.listdir("/workspace")],
}
print("FACTS " + json.dumps(facts), flush=True)
said(GUEST + "/bin/busybox", "reboot", "-f")
"""


def host_khz() -> int:
    megahertz = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("cpu MHz"))
    return round(float(megahertz.split(":")[1]) * 1000)


def boot(qemu: QemuInstall, files: ImageFiles, disks: list[str], work: Path) -> str:
    """Run a machine until it goes off by itself; answers its console."""
    argv = [
        *qemu.argv,
        *("-M", "microvm,pit=off,pic=off", "-accel", "tcg", "-cpu", "max,la57=off", "-m", "512", "-nodefaults"),
        *("-no-user-config", "-display", "none", "-no-reboot", "-serial", f"file:{work / 'console'}"),
        *("-kernel", str(files.kernel), "-initrd", str(files.initrd)),
        "-append",
        f"console=ttyS0 reboot=t panic=-1 no_timer_check quiet mitigations=off tsc_early_khz={host_khz()}",
        *disks,
    ]
    done = subprocess.run(argv, timeout=BOOT_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (work / "console").read_text(errors="replace")


def disk(path: Path, image_format: str, serial: str) -> list[str]:
    read_only = "on" if image_format == "raw" else "off"
    return [
        "-blockdev",
        f"driver={image_format},node-name={serial},read-only={read_only},file.driver=file,file.filename={path}",
        "-device",
        f"virtio-blk-device,drive={serial},serial={serial}",
    ]


@pytest.fixture
def agent_source(tmp_path: Path) -> Path:
    folder = tmp_path / "runtime_guest"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "__main__.py").write_text(AGENT)
    return folder


def test_an_image_without_python_carries_the_agent_and_its_tools(
    cache_dir: Path, qemu: QemuInstall, agent_source: Path, tmp_path: Path
) -> None:
    files = ImageStore(cache_dir, guest_source=agent_source).ensure("minimal")
    overlay = tmp_path / "disk.qcow2"
    subprocess.run(
        [*qemu.img_argv, *("create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(files.rootfs), str(overlay), "3G")],
        check=True,
    )
    console = boot(qemu, files, [*disk(overlay, "qcow2", "rootfs"), *disk(files.agent_disk, "raw", "agent")], tmp_path)
    found = [line for line in console.splitlines() if line.startswith("FACTS ")]
    assert found, console
    facts = json.loads(found[0].removeprefix("FACTS "))

    assert facts["pid"] == 1
    assert facts["image has python"] is False
    assert facts["grow"][0] == 0, facts["grow"]
    assert facts["size"] > 2.9 * (1 << 30)
    assert facts["nft"] == [0, "table inet t"]
    assert facts["sudo"][1].splitlines()[-1] == "0"
    assert facts["workspace"] == [1000, []]


def test_a_machine_without_its_disk_says_so_and_goes_off(
    cache_dir: Path, qemu: QemuInstall, agent_source: Path, tmp_path: Path
) -> None:
    files = ImageStore(cache_dir, guest_source=agent_source).ensure("minimal")
    console = boot(qemu, files, disk(files.agent_disk, "raw", "agent"), tmp_path)

    assert "runtime-init: no disk has the serial number 'rootfs'" in console.splitlines()


@pytest.fixture
def cache(cache_dir: Path, tmp_path: Path) -> Path:
    """A cache of the test's own, in which only the image is missing."""
    ImageStore(cache_dir).ensure("minimal")
    for kind in ("kernels", "tools", "agents"):
        shutil.copytree(cache_dir / kind, tmp_path / "cache" / kind)
    return tmp_path / "cache"


def test_a_real_build_gives_a_clean_filesystem_and_leaves_nothing_else(cache: Path) -> None:
    files = ImageStore(cache).ensure("minimal", lambda line, share=None: print(line, flush=True))
    check = subprocess.run(["e2fsck", "-fn", str(files.rootfs)], capture_output=True, text=True)

    assert check.returncode == 0, check.stdout
    assert not list(cache.glob(".building-*"))
    assert str(cache) not in Path("/proc/mounts").read_text()
    assert rooted_below(cache) == []


BUILDER = """
import sys
from pathlib import Path
from runtimed.images.run import ending_on_sigterm
from runtimed.images.store import ImageStore
with ending_on_sigterm():
    ImageStore(Path(sys.argv[1])).ensure("minimal", lambda line, share=None: print(line, flush=True))
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_builder_that_is_ended_takes_its_programs_and_mounts_with_it(cache: Path, ending: signal.Signals) -> None:
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(cache)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert builder.stdout is not None
    for line in builder.stdout:
        if line.startswith("installing essential packages"):
            break
    else:
        pytest.fail("the build ended before it could be ended")
    assert within(BUILD_S, lambda: bool(rooted_below(cache))), "the build never entered the image"

    builder.send_signal(ending)
    builder.wait(timeout=BUILD_S)

    assert within(10, lambda: not rooted_below(cache))
    assert str(cache) not in Path("/proc/mounts").read_text()
    assert len(list(cache.glob(".building-*"))) == (1 if ending is signal.SIGKILL else 0)
    ImageStore(cache).remove_leftovers()
    assert not list(cache.glob(".building-*"))


def rooted_below(folder: Path) -> list[int]:
    """Processes that run inside an image below this folder, or whose working folder is there."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                places = [os.readlink(f"/proc/{name}/{link}") for link in ("root", "cwd")]
            except OSError:
                continue
            if any(place.startswith(str(folder)) for place in places):
                found.append(int(name))
    return found


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
