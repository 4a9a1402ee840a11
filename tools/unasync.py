"""Writes the client for threads from the client for asyncio, token by token, so that comments and layout survive.

    python tools/unasync.py            write what is stale
    python tools/unasync.py --check    exit 1 and say what is stale

It fails when a rename is used nowhere: a list of renames that nobody needs hides the next mistake.
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    ROOT / "src/withruntime/_async": ROOT / "src/withruntime/_sync",
    ROOT / "tests/unit/withruntime/client_async": ROOT / "tests/unit/withruntime/client_sync",
}
BY_HAND = frozenset({"_io.py", "__init__.py", "conftest.py"})
HEADER = """\
# Generated from {source} by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""

RENAMES = {
    "AsyncAudit": "Audit",
    "AsyncExitStack": "ExitStack",
    "AsyncFiles": "Files",
    "AsyncIterator": "Iterator",
    "AsyncLimits": "Limits",
    "AsyncNetwork": "Network",
    "AsyncPage": "Page",
    "AsyncProcess": "Process",
    "AsyncRuntime": "Runtime",
    "AsyncSandbox": "Sandbox",
    "AsyncSandboxChanges": "SandboxChanges",
    "AsyncSandboxCommands": "SandboxCommands",
    "AsyncSandboxView": "SandboxView",
    "AsyncSandboxes": "Sandboxes",
    "AsyncSecrets": "Secrets",
    "AsyncSnapshots": "Snapshots",
    "AsyncTools": "Tools",
    "AsyncTransfers": "Transfers",
    "AsyncTransport": "Transport",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "_async": "_sync",
    "aclose": "close",
    "aread": "read",
    "asynccontextmanager": "contextmanager",
    "enter_async_context": "enter_context",
}
WORD = re.compile(r"\w+")
KEYWORD_IN_TEXT = re.compile(r"\b(?:await|async(?= (?:with|for|def)\b)) ")
AWAITABLE = re.compile(r"\bAwaitable\[")


def generate(text: str, used: set[str]) -> str:
    """The same module without await, under the names of the other client."""
    text = _without_awaitable(text, used)
    pieces: list[str] = []
    line, column, skipping = 1, 0, False
    lines = [*text.splitlines(keepends=True), ""]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.ENDMARKER:
            break
        if not skipping:
            pieces.append(_between(lines, (line, column), token.start))
        line, column = token.end
        skipping = token.type == tokenize.NAME and token.string in ("async", "await")
        if not skipping:
            pieces.append(_renamed(token, used))
    return "".join(pieces)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The blanks and line ends between two tokens, as they stand."""
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]]
    middle = lines[start[0] : end[0] - 1]
    return "".join([lines[start[0] - 1][start[1] :], *middle, lines[end[0] - 1][: end[1]]])


def _renamed(token: tokenize.TokenInfo, used: set[str]) -> str:
    if token.type in (tokenize.STRING, tokenize.COMMENT):
        return WORD.sub(lambda word: _rename(word.group(), used), KEYWORD_IN_TEXT.sub("", token.string))
    return _rename(token.string, used) if token.type == tokenize.NAME else token.string


def _rename(word: str, used: set[str]) -> str:
    if word in RENAMES:
        used.add(word)
        return RENAMES[word]
    return word


def _without_awaitable(text: str, used: set[str]) -> str:
    """`Awaitable[T]` is T where nobody waits; brackets nest, so this counts them."""
    while (found := AWAITABLE.search(text)) is not None:
        depth, end = 1, found.end()
        while depth:
            depth += {"[": 1, "]": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[found.end() : end - 1] + text[end:]
    return re.sub(r"\bAwaitable, |, Awaitable\b", "", text)


def _tidied(text: str, target: Path) -> str:
    """Shorter names sort and wrap differently, and the lint runs over generated files too."""
    for task in (["check", "--select", "I", "--fix-only", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *task, "--stdin-filename", str(target), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main() -> int:
    check = "--check" in sys.argv[1:]
    used: set[str] = set()
    stale: list[Path] = []
    for source_folder, target_folder in FOLDERS.items():
        wanted = {path.name for path in source_folder.glob("*.py")} - BY_HAND
        for name in sorted(wanted):
            source, target = source_folder / name, target_folder / name
            header = HEADER.format(source=source.relative_to(ROOT))
            text = _tidied(header + generate(source.read_text(), used), target)
            if not target.exists() or target.read_text() != text:
                stale.append(target)
                if not check:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(text)
        for orphan in sorted({path.name for path in target_folder.glob("*.py")} - wanted - BY_HAND):
            stale.append(target_folder / orphan)
            if not check:
                (target_folder / orphan).unlink()
    unused = sorted(set(RENAMES) - used)
    for path in stale:
        print(f"{'stale' if check else 'wrote'} {path.relative_to(ROOT)}")
    if unused:
        print(f"renames that nothing needs: {', '.join(unused)}")
    return 1 if unused or (check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
