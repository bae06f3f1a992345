"""Shows the progress of long work with a bar, in a terminal or a notebook, or calls a function."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

#: A function that receives the amount done, the total and the unit. True shows a bar, False does not, and None shows
#: one if standard error is a terminal or a notebook.
Progress = Callable[[int, int, str], object] | bool | None

_WIDTH = 40


@contextlib.contextmanager
def shown(progress: Progress) -> Iterator[Callable[[int, int, str], object] | None]:
    """Yields the function that the work calls, or None."""
    if callable(progress):
        yield progress
    elif progress or (progress is None and _somebody_sees_it()):
        bar = _Bar()
        try:
            yield bar
        finally:
            bar.clear()
    else:
        yield None


def _somebody_sees_it() -> bool:
    # In a notebook, standard error is visible but not a terminal.
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


class _Bar:
    """A bar that overwrites itself."""

    def __init__(self) -> None:
        self.length = 0

    def __call__(self, done: int, of: int, what: str) -> None:
        part = min(done / of, 1.0) if of else 0.0
        filled = round(part * _WIDTH)
        line = f"{'█' * filled}{'░' * (_WIDTH - filled)} {done:,} of {of:,} {what}"
        self._write(line.ljust(self.length))
        self.length = len(line)

    def clear(self) -> None:
        if self.length:
            self._write(" " * self.length + "\r")

    @staticmethod
    def _write(line: str) -> None:
        # Standard error may be closed or accept only ASCII. The work continues.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("\r" + line)
            sys.stderr.flush()
