"""The command `parkade`: the same as the binary, from the same library. `parkade run` runs the program in this process."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Runs the command that the process's arguments name, and ends the process with its exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"] and arguments[1:2] not in (["--help"], ["-h"]):
        from . import _run_program

        _run_program.main(arguments[1:])
    from . import _parkade

    # Ctrl-C ends the command at once, as it ends the binary.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_parkade.main(["parkade", *arguments]))
