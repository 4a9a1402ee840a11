"""What can go wrong while an image, a kernel, an agent disk or QEMU is prepared.

* HostUnavailable
  + ImageBuildFailed        one sentence that names the way out
    - BuildStopped          somebody asked the build to end
    - ToolMissing           a program of the host is not installed
    - CommandFailed         a program said no; its last lines are in `details`
"""

from __future__ import annotations

from collections.abc import Sequence

from runtimed.core.errors import HostUnavailable

PACKAGES_OF_TOOLS = {
    "apt-config": "apt",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "mke2fs": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "newuidmap": "uidmap",
    "setpriv": "util-linux",
    "tar": "tar",
    "unshare": "util-linux",
}
"""Which distribution package brings a program that a build needs."""


class ImageBuildFailed(HostUnavailable):
    """An artifact could not be made. Nothing of the attempt is left on disk."""


class BuildStopped(ImageBuildFailed):
    """The service or the user ended the build."""


class ToolMissing(ImageBuildFailed):
    """A program that a build needs is not on this host."""

    def __init__(self, program: str) -> None:
        package = PACKAGES_OF_TOOLS.get(program, program)
        super().__init__(
            f"Building needs the program {program}, which is not installed: apt-get install {package}",
            details={"program": program, "package": package},
        )


class CommandFailed(ImageBuildFailed):
    """A program ended with an error code, or did not end in time (`code` is None)."""

    def __init__(self, argv: Sequence[str], *, code: int | None, output: str) -> None:
        how = "did not end in time" if code is None else f"ended with code {code}"
        tail = [line for line in output.splitlines() if line.strip()][-8:]
        super().__init__(
            f"{argv[0]} {how}: {' | '.join(tail[-2:]) or 'it said nothing'}",
            details={"argv": list(argv), "code": code, "output": tail},
        )
        self.output = output
