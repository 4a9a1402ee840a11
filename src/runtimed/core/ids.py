"""Identifiers: lower-case UUIDs, as the adapters expect, each with a type of its own."""

from __future__ import annotations

import re
import uuid
from typing import NewType

SandboxId = NewType("SandboxId", str)
ProcessId = NewType("ProcessId", str)
AccountId = NewType("AccountId", str)
KeyId = NewType("KeyId", str)

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    return str(uuid.uuid4())


def is_id(text: str) -> bool:
    """Whether this is one of our ids (and so never a sandbox's name)."""
    return _UUID.fullmatch(text) is not None
