"""The command line, `runtime`: everything here is done through the public client."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from withruntime.cli.app import app  # the imports take a moment, in which Ctrl-C must not print a traceback

        app(prog_name="runtime")
    except KeyboardInterrupt:
        sys.exit(130)
