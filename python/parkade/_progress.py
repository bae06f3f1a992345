"""Progress of long work: a bar in a terminal or a notebook, or a function of the caller's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

#: A function that is called with what is done, of how much, and of what; a bar or none; or None, a bar where somebody sees it.
Progress = Callable[[int, int, str], object] | bool | None

_WIDTH = 40


@contextlib.contextmanager
def shown(progress: Progress) -> Iterator[Callable[[int, int, str], object] | None]:
    """What the work calls, if anything."""
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
    # A notebook shows standard error, which is no terminal there.
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


class _Bar:
    """A line that is written over."""

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
        # A closed or an ASCII-only standard error must not end the work.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("\r" + line)
            sys.stderr.flush()
