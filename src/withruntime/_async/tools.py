"""Gives a model four functions to work in a sandbox with: run, read, write, list."""

import posixpath
from collections.abc import Callable
from typing import Any

from withruntime import _tool_text
from withruntime._async.sandbox import AsyncSandbox
from withruntime._calls import whole_text
from withruntime._errors import RuntimeError
from withruntime._tool_text import ENTRIES_MAX, ToolLimits


class AsyncTools:
    """The four functions over one sandbox, which outlives them."""

    def __init__(self, sandbox: AsyncSandbox, limits: ToolLimits) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._root = posixpath.normpath(limits.root)

    def functions(self) -> list[Callable[..., Any]]:
        """Plain functions, since frameworks read names, types and docstrings from those."""

        async def runtime_exec(
            command: str, cwd: str | None = None, timeout_seconds: int | None = None
        ) -> dict[str, Any]:
            """Run a shell command in the sandbox and say how it ended and what it printed.

            Args:
                command: A bash command line, such as `python3 main.py` or `pip install requests`.
                cwd: The folder to run it in, /workspace where none is named. A relative one is below that.
                timeout_seconds: After so many seconds the command is ended, and `timed_out` is true.

            Returns:
                `exit_code`, `stdout`, `stderr` and `timed_out`. Only the newest part of a long output is kept.
                Where the command could not be begun, `exit_code` is null and `stderr` says why.
            """
            return await self._exec(command, cwd, timeout_seconds)

        async def runtime_read_file(path: str) -> str:
            """Read a text file of the sandbox.

            Args:
                path: The file. A relative path is below /workspace.
            """
            return await self._read(path)

        async def runtime_write_file(path: str, content: str) -> str:
            """Write a text file in the sandbox, making its folders and replacing what was there.

            Args:
                path: The file. A relative path is below /workspace.
                content: All of the new text.
            """
            return await self._write(path, content)

        async def runtime_list_files(path: str = ".", depth: int = 1) -> list[dict[str, Any]]:
            """List a folder of the sandbox: path, type and size of each entry.

            Args:
                path: The folder. A relative path is below /workspace.
                depth: How many levels to go down; 1 is the folder's own entries.
            """
            return await self._list(path, depth)

        return [runtime_exec, runtime_read_file, runtime_write_file, runtime_list_files]

    async def _exec(self, command: str, cwd: str | None, timeout_seconds: int | None) -> dict[str, Any]:
        try:
            result = await self._sandbox.exec(
                command,
                cwd=self._path(cwd or self._root),
                timeout_ms=int((timeout_seconds or self._limits.timeout_seconds) * 1000),
            )
        except RuntimeError as error:
            if not _tool_text.is_callers_fault(error):
                raise
            return _tool_text.never_run(_tool_text.failure("", error))
        return _tool_text.exec_answer(result, self._limits.max_output_chars)

    async def _read(self, path: str) -> str:
        full = self._path(path)
        try:
            data = await self._sandbox.files.read(full)
        except RuntimeError as error:
            if not _tool_text.is_callers_fault(error):
                raise
            return _tool_text.failure(full, error)
        return _tool_text.newest(data.decode("utf-8", "replace"), self._limits.max_output_chars)

    async def _write(self, path: str, content: str) -> str:
        full = self._path(path)
        try:
            data = whole_text(content, "content").encode()
            await self._sandbox.files.write(full, data)
        except RuntimeError as error:
            if not _tool_text.is_callers_fault(error):
                raise
            return _tool_text.failure(full, error)
        except ValueError as error:
            return f"{full}: {error}"
        return f"Wrote {len(data)} bytes to {full}"

    async def _list(self, path: str, depth: int) -> list[dict[str, Any]]:
        full = self._path(path)
        try:
            entries = await self._sandbox.files.list(full, depth=max(1, depth), hidden=True, limit=ENTRIES_MAX)
        except RuntimeError as error:
            if not _tool_text.is_callers_fault(error):
                raise
            return [{"path": full, "error": _tool_text.failure(full, error)}]
        return _tool_text.entries_answer(entries, self._limits.max_output_chars)

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._root, path))
