"""Lets `python -m withruntime.cli` stand for `runtime`."""

from withruntime.cli import main

main()
