"""Writes docs/openapi.json from the routes; `--check` only compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from runtimed.api.app import routes

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "openapi.json"


def wanted() -> str:
    return json.dumps(routes().openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> int:
    text = wanted()
    if "--check" in sys.argv[1:]:
        if DOCUMENT.exists() and DOCUMENT.read_text() == text:
            return 0
        print(f"{DOCUMENT} is stale; run tools/openapi.py")
        return 1
    DOCUMENT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
