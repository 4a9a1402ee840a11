"""The one door for short subprocesses of the service: each is logged, bounded in time and has no standard input."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Finished:
    code: int
    stdout: str
    stderr: str


async def run(argv: Sequence[str], *, within_s: float, env: Mapping[str, str] | None = None) -> Finished:
    """Run to the end and answer what it said; the caller judges the exit code.

    Raises:
        FileNotFoundError: there is no such program.
        TimeoutError: it ran longer than `within_s` seconds and was killed.
    """
    _log.debug("run %s", shlex.join(argv))
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
    )
    try:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate()
    except TimeoutError:
        raise TimeoutError(f"{argv[0]} did not end within {within_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Finished(
        code=process.returncode or 0, stdout=out.decode(errors="replace"), stderr=err.decode(errors="replace")
    )
