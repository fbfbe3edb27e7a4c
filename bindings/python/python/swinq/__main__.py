"""The command ``swinq``."""

import signal
import sys

from ._native import run_command


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    # The program has its own handler. Python's would raise KeyboardInterrupt after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run_command(["swinq", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
