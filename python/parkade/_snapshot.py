"""Snapshots of a program that runs: where they are written, and the memory limit that is kept in them."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import socket
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ._run import Size, size_bytes

#: How many entries of history are kept, unless something else is asked for: a bound on the memory that they take.
MAX_ENTRIES = 1_000_000
#: What starts several processes of a job says in one of these which of them this is.
_RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def rank() -> str:
    """The number of this process in its job; 0 of a job of one."""
    return next((os.environ[name] for name in _RANKS if os.environ.get(name, "").isdigit()), "0")


def filled(path: str | os.PathLike[str]) -> str:
    """The path with the machine's name for `{host}` and the process's rank for `{rank}`."""
    text = os.fsdecode(path)
    if "{rank}" not in text and os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        warnings.warn(
            f"every rank of this job writes {text}, and the last one stays: put {{rank}} into the name", stacklevel=4
        )
    return text.replace("{rank}", rank()).replace("{host}", socket.gethostname())


@contextlib.contextmanager
def beside(path: str) -> Iterator[str]:
    """A path to write to, which becomes `path` when the block has ended: nobody sees half a file, and a process that is killed leaves the old one."""
    part = f"{path}.{os.getpid()}.part"
    try:
        yield part
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            os.remove(part)


def check_writable(path: str) -> None:
    """Raises the usual errors of files if nothing can be written there: before the program runs, which may take hours."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "a folder, and a snapshot is a file", path)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb"):
        pass
    os.remove(part)


@dataclass(frozen=True)
class Limit:
    """The memory that a process may reserve, and how that is known."""

    limit_bytes: int
    #: `fraction` (`set_per_process_memory_fraction`), `mem_get_info` (what the device has free, and what is reserved) or `given`.
    limit_source: str

    @classmethod
    def given(cls, limit: Size | None) -> Limit | None:
        """A limit of the user's. `None` for "auto" and for none."""
        return None if limit is None or limit == "auto" else cls(size_bytes("limit", limit), "given")


def reserved_bytes(snapshot: Mapping[str, Any], device: int) -> int:
    """What a device had reserved when the snapshot was taken."""
    return sum(segment["total_size"] for segment in snapshot.get("segments", ()) if segment.get("device", 0) == device)


def found_limit(cuda: Any, snapshot: Mapping[str, Any], device: int | None = None) -> Limit | None:
    """The memory that this process may reserve on a device, the current one unless given. None where PyTorch does not tell."""
    try:
        device = cuda.current_device() if device is None else device
        free, total = cuda.mem_get_info(device)
        # Older releases of PyTorch do not tell it: there a fraction shows only at an out-of-memory error.
        fraction = getattr(cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)
    except Exception:
        # An older PyTorch, or another allocator. The limit is left out then.
        return None
    return smaller_limit(int(fraction * total) if fraction < 1 else None, free + reserved_bytes(snapshot, device))


def smaller_limit(of_fraction: int | None, of_device: int) -> Limit:
    """Which of both bounds the process."""
    if of_fraction is not None and of_fraction <= of_device:
        return Limit(of_fraction, "fraction")
    return Limit(of_device, "mem_get_info")


def with_limit(snapshot: Mapping[str, Any], limit: Limit | None) -> dict[str, Any]:
    """The snapshot with the limit as a key of its own, which `advise` and `diagnose` read."""
    kept = {} if limit is None else {"parkade": {"limit_bytes": limit.limit_bytes, "limit_source": limit.limit_source}}
    return {**snapshot, **kept}


def write(path: str, snapshot: Mapping[str, Any], limit: Limit | None) -> None:
    """Writes a snapshot with the limit in it, as PyTorch writes its own."""
    with beside(path) as part, open(part, "wb") as file:
        pickle.dump(with_limit(snapshot, limit), file, protocol=4)


def has_history(torch: Any) -> bool:
    """Whether the history of memory is being recorded already."""
    return bool(getattr(getattr(torch, "_C", None), "_cuda_isHistoryEnabled", lambda: False)())
