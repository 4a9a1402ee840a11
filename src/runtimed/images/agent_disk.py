"""Makes the agent's disk: the agent's code and its tools, read-only, one for all images and machines of a kernel."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from runtimed.images.cache import Workplace
from runtimed.images.errors import ImageBuildFailed
from runtimed.images.guest_tools import MOUNTED_AT, compile_python, write_wrapper
from runtimed.images.run import Progress, Runner, contained

FORMAT = 1
"""Part of every disk's address: raise it when the same content would be laid out in another way."""
NEEDS_MIB = 512
SLACK_MIB = 8
STEP_WITHIN_S = 300


@dataclass(frozen=True, kw_only=True)
class AgentParts:
    """What goes on the disk."""

    guest_source: Path
    """The folder of the package runtime_guest."""
    kernel: Path
    """A built kernel: its modules must fit the kernel that runs."""
    kernel_id: str
    tools: Path
    tools_id: str


def guest_source() -> Path:
    """The folder of the agent's code, which is never imported on the host."""
    folder = resources.files("runtime_guest")
    if not isinstance(folder, Path):
        raise ImageBuildFailed("The package runtime_guest must be installed as files, not inside an archive.")
    return folder


def agent_address(source: Path, kernel_id: str, tools_id: str) -> str:
    """Names the disk by the agent's code and by all that lies beside it."""
    digest = hashlib.sha256(json.dumps([FORMAT, kernel_id, tools_id]).encode())
    for path in _files(source):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(source)} {len(content)}\n".encode() + content)
    return "agt_" + digest.hexdigest()[:20]


def build_agent_disk(parts: AgentParts, place: Workplace, runner: Runner, progress: Progress) -> None:
    """Makes `agent.img`, a plain ext4 file: the one filesystem that every distribution's kernel has ready."""
    progress("building the agent's disk", None)
    tree = place.work / "tree"
    shutil.copytree(parts.tools / "tree", tree, symlinks=True)
    shutil.copytree(parts.kernel / "modules", tree / "modules")
    shutil.copy2(parts.kernel / "busybox", tree / "bin/busybox")
    code = tree / "lib/runtime_guest"
    for path in _files(parts.guest_source):
        target = code / path.relative_to(parts.guest_source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    code.mkdir(parents=True, exist_ok=True)
    library = next((tree / "python/lib").glob("python3.*"))
    # Isolated mode takes code only from the interpreter's own library: the link makes the agent a part of it.
    (library / "runtime_guest").symlink_to("../../../lib/runtime_guest")
    compile_python(tree, [code], runner)
    write_wrapper(tree / "bin/init", [f"{MOUNTED_AT}/python/bin/python3", "-I", "-m", "runtime_guest"])
    _write_filesystem(tree, place.result / "agent.img", runner)


def _write_filesystem(tree: Path, image: Path, runner: Runner) -> None:
    files = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    blocks_bytes = sum((path.stat().st_size + 4095) // 4096 * 4096 for path in files)
    with image.open("wb") as file:
        file.truncate(((blocks_bytes * 103 // 100) >> 20 << 20) + (SLACK_MIB << 20))
    # Contained, so that an ordinary user's files are root's on the disk.
    argv = [
        *("mke2fs", "-q", "-F", "-t", "ext4", "-L", "agent", "-b", "4096", "-m", "0"),
        *("-N", str(len(list(tree.rglob("*"))) + 512), "-O", "^has_journal,^resize_inode,^metadata_csum"),
        *("-E", "nodiscard,root_owner=0:0", "-d", str(tree), str(image)),
    ]
    runner.run(contained(argv), within_s=STEP_WITHIN_S)


def _files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*.py") if "__pycache__" not in path.parts)
