"""The audit chain: every line carries the hash of the one before, so that an edited, missing or moved line is found.

line 1 --hash--> line 2 --hash--> line 3 ...      the head (number and hash of the newest) is kept apart,
                                                  so that lines cut off at the end are missed as well
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from runtimed.core.ids import AccountId
from runtimed.core.wording import are, counted

GENESIS = "0" * 64
"""What the first line carries in place of a hash."""
PROBLEMS_MAX = 100
"""Problems that are named one by one; a chain with more is beyond repair by hand."""

Detail = str | int | bool | None


@dataclass(frozen=True, kw_only=True)
class AuditEvent:
    """Something that changed, and who changed it. Never the arguments of a command, a value or a secret."""

    at_ms: int
    account_id: AccountId
    action: str
    """What was done, as `noun.verb`: `sandbox.create`, `key.revoke`."""
    target: str
    """Id of what it was done to."""
    actor: str
    """`key:ID`, `session:ID`, `operator`, or `service` for what a lease or limit ended."""
    address: str = ""
    """Where the request came from."""
    request_id: str = ""
    outcome: str = "done"
    """`done`, or the code of the refusal."""
    details: Mapping[str, Detail] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AuditLine:
    """One event in its place. Never changed, never removed."""

    number: int
    """1, 2, 3, ..."""
    event: AuditEvent
    previous: str
    """Hash of the line before."""
    hash: str

    def digest(self) -> str:
        """The hash that this line must have."""
        content = {"number": self.number, "previous": self.previous, "event": asdict(self.event)}
        # One spelling for each content: sorted names, no spaces, ASCII.
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ChainHead:
    """The newest line of a chain."""

    number: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A place where the chain is not what it was when it was written."""

    number: int
    message: str


def follow(head: ChainHead, event: AuditEvent) -> AuditLine:
    """The line that comes after `head`."""
    line = AuditLine(number=head.number + 1, event=event, previous=head.hash, hash="")
    return replace(line, hash=line.digest())


def head_of(line: AuditLine) -> ChainHead:
    return ChainHead(number=line.number, hash=line.hash)


def verify(
    lines: Iterable[AuditLine], *, head: ChainHead | None = None, after: ChainHead | None = None
) -> list[Problem]:
    """Every place where lines, in the order given, were edited, removed, added or moved; none when all is well.

    Args:
        lines: The chain, or its end after the line `after`. Read one at a time: a chain may be long.
        head: The newest line as it is kept apart from the lines; with it a cut-off end is found.
        after: Where to begin; None is the start of the chain.
    """
    problems, last = list[Problem](), after or ChainHead()
    for line in lines:
        if len(problems) >= PROBLEMS_MAX:
            return problems
        if line.number != last.number + 1:
            problems.append(Problem(number=line.number, message=_place(line.number, last.number)))
        elif line.previous != last.hash:
            message = "does not follow the line before it: that line was replaced, or this one was"
            problems.append(Problem(number=line.number, message=message))
        if line.hash != line.digest():
            problems.append(Problem(number=line.number, message="was edited: its hash does not fit its content"))
        last = head_of(line)
    if head is not None and head != last:
        missing = head.number - last.number
        message = (
            f"{counted(missing, 'line')} {are(missing)} missing at the end"
            if missing > 0
            else "is not the newest line that was written"
        )
        problems.append(Problem(number=last.number, message=message))
    return problems


def _place(number: int, before: int) -> str:
    if number > before + 1:
        missing = number - before - 1
        return f"{counted(missing, 'line')} {are(missing)} missing before it"
    return f"is out of order: it comes after line {before}"
