"""Records what a block of code allocates."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _snapshot
from ._run import Size
from ._torch import cuda

if TYPE_CHECKING:
    from ._results import Advice, Diagnosis


@dataclass(frozen=True)
class Recorded:
    """A recording in progress. The file exists once the block has ended."""

    path: str

    def __fspath__(self) -> str:
        return self.path

    def advise(self, **options: Any) -> Advice:
        """Calls `parkade.advise` on this recording. Call it after the block."""
        from ._commands import advise

        return advise(self.path, **options)

    def diagnose(self, **options: Any) -> Diagnosis:
        """Calls `parkade.diagnose` on this recording. Call it after the block."""
        from ._commands import diagnose

        return diagnose(self.path, **options)


@contextlib.contextmanager
def record(
    path: str | os.PathLike[str],
    *,
    stacks: str = "python",
    max_entries: int | None = _snapshot.MAX_ENTRIES,
    limit: Size | None = "auto",
    force: bool = False,
) -> Iterator[Recorded]:
    """Records PyTorch's memory history while the block runs, and writes the snapshot at the end, even if the block
    raises.

    In `path`, `{rank}` is replaced with the process's rank and `{host}` with the machine's name. `stacks` is "python",
    or "all" to include C++ frames. `max_entries` is the number of entries to keep, the newest ones; None keeps all.
    `force` replaces an existing file without a warning. `limit` is the memory that the process may reserve; the
    snapshot keeps it for `advise` and `diagnose`, and "auto" asks PyTorch. Raises `NoCuda` without a GPU.

    If PyTorch is already recording its history, `record` leaves the recording unchanged, and the snapshot also has the
    earlier entries.
    """
    memory = cuda().memory
    given = _snapshot.Limit.given(limit)
    recorded = Recorded(_snapshot.filled(path))
    _snapshot.check_writable(recorded.path)
    if os.path.exists(recorded.path) and not force:
        warnings.warn(
            f"{recorded.path} exists and will be replaced when the block ends: pass force=True to replace it "
            "without this warning",
            stacklevel=3,
        )
    import torch

    was_on = _snapshot.has_history(torch)
    if not was_on:
        limited = {} if max_entries is None else {"max_entries": max_entries}
        memory._record_memory_history(stacks=stacks, **limited)
    try:
        yield recorded
    except BaseException:
        # The caller must see this error, even if the snapshot cannot be written.
        try:
            _write(recorded.path, given, limit)
        except Exception as error:
            warnings.warn(f"the recording {recorded.path} could not be written: {error}", stacklevel=3)
        raise
    else:
        _write(recorded.path, given, limit)
    finally:
        if not was_on:
            memory._record_memory_history(enabled=None)


def _write(path: str, given: _snapshot.Limit | None, limit: Size | None) -> None:
    found = cuda()
    snapshot = found.memory._snapshot()
    kept = given if limit != "auto" else _snapshot.found_limit(found, snapshot)
    _snapshot.write(path, snapshot, kept)
