"""The command `parkade`: the same as the binary, from the same library."""

from __future__ import annotations

import signal
import sys

from . import _parkade


def main() -> None:
    """Runs the command that the process's arguments name, and ends the process with its exit code."""
    # Ctrl-C ends the command at once, as it ends the binary.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_parkade.main(["parkade", *sys.argv[1:]]))
