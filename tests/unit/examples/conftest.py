"""Lets the tests import the examples, which are scripts in a folder and no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
