"""Gives a model four tools over a sandbox: run, read, write, list. Works with every framework that takes functions.

    from llama_index.core.tools import FunctionTool
    tools = [FunctionTool.from_defaults(fn=tool) for tool in sandbox_tools(sandbox)]

For an `AsyncSandbox` the functions are coroutines (`FunctionTool.from_defaults(async_fn=tool)`).
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any

from withruntime._async.sandbox import AsyncSandbox
from withruntime._async.tools import AsyncTools
from withruntime._sync.sandbox import Sandbox
from withruntime._sync.tools import Tools
from withruntime._tool_text import ToolLimits

SandboxTools = list[Callable[..., Any]]
"""`runtime_exec`, `runtime_read_file`, `runtime_write_file` and `runtime_list_files`, in this order."""

__all__ = ["SandboxTools", "sandbox_tools"]


def sandbox_tools(
    sandbox: Sandbox | AsyncSandbox,
    *,
    root: str = "/workspace",
    timeout_seconds: int = 300,
    max_output_chars: int = 20000,
) -> SandboxTools:
    """The four tools of a sandbox.

    Relative paths are below `root`. A command that names no limit of its own gets `timeout_seconds`. Of output and
    file contents the newest `max_output_chars` characters are told.

    Raises:
        TypeError: it is not a sandbox of this package.
    """
    limits = ToolLimits(root=root, timeout_seconds=timeout_seconds, max_output_chars=max_output_chars)
    return _functions(sandbox, limits)


@singledispatch
def _functions(sandbox: object, limits: ToolLimits) -> SandboxTools:
    raise TypeError(f"sandbox_tools() takes a Sandbox or an AsyncSandbox, not {type(sandbox).__name__}")


@_functions.register
def _(sandbox: Sandbox, limits: ToolLimits) -> SandboxTools:
    return Tools(sandbox, limits).functions()


@_functions.register
def _(sandbox: AsyncSandbox, limits: ToolLimits) -> SandboxTools:
    return AsyncTools(sandbox, limits).functions()
