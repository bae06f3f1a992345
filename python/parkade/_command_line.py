"""The command `parkade`. It is the binary, built as a library; `parkade run` runs the program in this process."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Runs the command in `sys.argv`, and ends the process with the command's exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"] and arguments[1:2] not in (["--help"], ["-h"]):
        from . import _run_program

        _run_program.main(arguments[1:])
    from . import _parkade

    # Ctrl-C ends the command immediately, as with the binary.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_parkade.main(["parkade", *arguments]))
