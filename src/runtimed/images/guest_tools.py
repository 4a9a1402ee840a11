"""Makes what the agent brings along whatever the image is: its own Python, nft, resize2fs, with their own libraries.

Each is started through the loader that comes with it, so nothing of the image's C library is used, and images with
another one or without any work.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from runtimed.images.apt_sources import Archive
from runtimed.images.cache import Workplace
from runtimed.images.errors import ImageBuildFailed
from runtimed.images.private_apt import open_apt, unpack
from runtimed.images.run import Progress, Runner

FORMAT = 1
"""Part of every tool set's address: raise it when what is made of the same packages changes."""
NEEDS_MIB = 512

MOUNTED_AT = "/run/runtime/guest"
"""Where the agent's disk is in every machine. The programs on it know this path."""
LOADER = "libs/ld.so"

_PACKAGES = ("python3", "nftables", "e2fsprogs")
_PROGRAMS = ("usr/sbin/nft", "usr/sbin/resize2fs")
_LEFT_OUT = (
    *("__pycache__", "EXTERNALLY-MANAGED", "sitecustomize.py", "_pyrepl", "curses", "dbm", "ensurepip", "idlelib"),
    *("pydoc_data", "sqlite3", "test", "tkinter", "turtle.py", "turtledemo", "unittest", "venv", "wsgiref", "xmlrpc"),
)
_LEFT_OUT_EXTENSIONS = ("_test", "_xxtest", "xx", "_curses", "_dbm", "_sqlite3", "_ctypes_test", "readline")
STEP_WITHIN_S = 300


def tools_address(distribution: str, release: str) -> str:
    recipe = [FORMAT, distribution, release, _PACKAGES, _PROGRAMS, _LEFT_OUT, _LEFT_OUT_EXTENSIONS, MOUNTED_AT]
    return "tls_" + hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:20]


def build_tools(archive: Archive, release: str, place: Workplace, runner: Runner, progress: Progress) -> None:
    """Makes `tree/`: what the agent's disk holds besides the agent itself and the kernel's modules."""
    progress(f"fetching the agent's interpreter and tools from {release}", None)
    apt, _ = open_apt(place.work, archive, release, runner)
    root = unpack(apt.download_closure(_PACKAGES), place.work / "root", runner)
    tree = place.result / "tree"
    for name in ("bin", "sbin", "libs", "python/bin", "python/lib"):
        (tree / name).mkdir(parents=True)
    version = _copy_python(root, tree)
    for program in _PROGRAMS:
        shutil.copy2(root / program, tree / "sbin")
    _copy_libraries(root, tree, runner)
    for name, target in {"python3": "python/bin/python3", "nft": "sbin/nft", "resize2fs": "sbin/resize2fs"}.items():
        write_wrapper(tree / "bin" / name, [f"{MOUNTED_AT}/{target}"], then='"$@"')
    progress("compiling the agent's interpreter", None)
    compile_python(tree, [tree / "python/lib" / version], runner)
    (place.result / "tools.json").write_text(json.dumps({"python": version, "release": release}, indent=2) + "\n")


def through_loader(tree: Path, arguments: Sequence[str]) -> list[str]:
    """The command that runs a program of the tree on this host, where it is not mounted at its place."""
    return [str(tree / LOADER), "--library-path", str(tree / "libs"), *arguments]


def write_wrapper(path: Path, arguments: Sequence[str], *, then: str = "") -> None:
    """A program of the disk as a script for the disk's own busybox: no shell of the image is needed."""
    words = [f"{MOUNTED_AT}/{LOADER}", "--library-path", f"{MOUNTED_AT}/libs", *arguments, *([then] if then else [])]
    path.write_text(f"#!{MOUNTED_AT}/bin/busybox sh\nexec {' '.join(words)}\n")
    path.chmod(0o755)


def compile_python(tree: Path, folders: Iterable[Path], runner: Runner) -> None:
    """Compile with the disk's own interpreter; the results do not depend on modification times."""
    # Folders are named relative to the disk, so that tracebacks show the paths that the guest sees.
    for folder in folders:
        inside = f"{MOUNTED_AT}/{folder.relative_to(tree)}"
        runner.run(
            through_loader(
                tree,
                [
                    *(str(tree / "python/bin/python3"), "-I", "-S", "-m", "compileall", "-q", "-j1"),
                    *("--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", inside, str(folder)),
                ],
            ),
            within_s=STEP_WITHIN_S,
        )


def _copy_python(root: Path, tree: Path) -> str:
    libraries = sorted(root.glob("usr/lib/python3.*"))
    if len(libraries) != 1:
        raise ImageBuildFailed("The Python packages have an unknown layout; choose another release.")
    version = libraries[0].name
    target = tree / "python/lib" / version
    shutil.copytree(libraries[0], target, symlinks=True, ignore=_left_out)
    for link in [path for path in target.rglob("*") if path.is_symlink()]:
        link.unlink()  # into /etc and the like, which are not on the disk
    shutil.copy2(root / "usr/bin" / version, tree / "python/bin/python3")
    return version


def _left_out(folder: str, names: list[str]) -> set[str]:
    if Path(folder).name == "lib-dynload":
        return {name for name in names if name.startswith(_LEFT_OUT_EXTENSIONS)}
    return {name for name in names if name in _LEFT_OUT or re.match(r"config-3\.|_ios|_android|_aix|_osx", name)}


def _copy_libraries(root: Path, tree: Path, runner: Runner) -> None:
    """The loader, and every library that a program or an extension of the tree is linked to."""
    loader = next(root.glob("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), None)
    if loader is None:
        raise ImageBuildFailed("The C library package has no loader for x86-64; only amd64 hosts are supported.")
    shutil.copy(loader, tree / LOADER)  # follows the link
    (tree / LOADER).chmod(0o755)
    programs = [tree / "python/bin/python3", *sorted((tree / "sbin").iterdir()), *sorted(tree.rglob("*.cpython-*.so"))]
    # Not linked: glibc loads it by name when a thread ends.
    unwinder = root / "usr/lib/x86_64-linux-gnu/libgcc_s.so.1"
    for library in [*_linked(root, programs, runner), *([unwinder] if unwinder.exists() else [])]:
        shutil.copy(library, tree / "libs" / library.name)


def _linked(root: Path, programs: Iterable[Path], runner: Runner) -> list[Path]:
    folders = f"{root}/usr/lib/x86_64-linux-gnu"
    found: set[Path] = set()
    for program in programs:
        argv = [
            str(root / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
            "--library-path",
            folders,
            "--list",
            str(program),
        ]
        output = runner.run(argv, within_s=STEP_WITHIN_S)
        for name, where in re.findall(r"^\s*(\S+) => (\S+)", output, re.MULTILINE):
            if where == "not":
                raise ImageBuildFailed(
                    f"The packages of {program.name} lack the library {name}; choose another release."
                )
            if Path(where).is_relative_to(root):
                found.add(Path(where))
    return sorted(found)
