"""Recording what a block of code allocates."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

from ._torch import cuda


@dataclass(frozen=True)
class Recorded:
    """A recording that is being made. The file is there when the block has ended."""

    path: str

    def __fspath__(self) -> str:
        return self.path


@contextlib.contextmanager
def record(
    path: Union[str, os.PathLike[str]],
    *,
    stacks: str = "python",
    max_entries: Optional[int] = None,
) -> Iterator[Recorded]:
    """Records PyTorch's memory history while the block runs, and writes the snapshot at its end, also if the block raises.

    `stacks` is "python", or "all" for C++ frames too; `max_entries` keeps the newest entries alone. Raises `NoCuda` without a GPU.
    What the block gets can be given to `advise` and the others afterwards.
    """
    memory = cuda().memory
    recorded = Recorded(os.fspath(path))
    # Before the program runs, which may take hours: can the file be written?
    with open(recorded.path, "ab"):
        pass
    limited = {} if max_entries is None else {"max_entries": max_entries}
    memory._record_memory_history(stacks=stacks, **limited)
    try:
        yield recorded
    finally:
        try:
            memory._dump_snapshot(recorded.path)
        finally:
            memory._record_memory_history(enabled=None)
