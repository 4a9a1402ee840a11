"""The command line, `runtime`: everything here is done through the public client."""

import signal


def main() -> None:
    """Run the command line and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until there is something to clean up, Ctrl-C ends the program like any other, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from withruntime.cli.app import app

    app(prog_name="runtime")
