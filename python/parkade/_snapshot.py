"""Snapshots of the running program: their paths, and the memory limit that they keep."""

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

#: The default number of history entries to keep, which bounds the memory that they take.
MAX_ENTRIES = 1_000_000
#: Launchers of jobs put the number of the process in one of these variables.
_RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def rank() -> str:
    """Returns the number of this process in its job, or 0 if the job has one process."""
    return next((os.environ[name] for name in _RANKS if os.environ.get(name, "").isdigit()), "0")


def filled(path: str | os.PathLike[str]) -> str:
    """Returns the path with `{host}` replaced with the machine's name and `{rank}` with the process's rank."""
    text = os.fsdecode(path)
    if "{rank}" not in text and os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        warnings.warn(
            f"every rank of this job writes {text}, and only the last one's file remains: put {{rank}} into the name",
            stacklevel=4,
        )
    return text.replace("{rank}", rank()).replace("{host}", socket.gethostname())


@contextlib.contextmanager
def beside(path: str) -> Iterator[str]:
    """Yields a path to write to. The file is renamed to `path` at the end of the block, so nobody sees half a file, and
    a killed process leaves the old file.
    """
    part = f"{path}.{os.getpid()}.part"
    try:
        yield part
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            os.remove(part)


def check_writable(path: str) -> None:
    """Raises an OSError if the file cannot be written. Call it before the program runs for hours."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "a folder, but a snapshot is a file", path)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb"):
        pass
    os.remove(part)


@dataclass(frozen=True)
class Limit:
    """The memory that a process may reserve, and the source of that number."""

    limit_bytes: int
    #: `fraction` (`set_per_process_memory_fraction`), `mem_get_info` (what the device has free, and what is reserved)
    #: or `given`.
    limit_source: str

    @classmethod
    def given(cls, limit: Size | None) -> Limit | None:
        """Returns the user's limit, or None for "auto" and for no limit."""
        return None if limit is None or limit == "auto" else cls(size_bytes("limit", limit), "given")


def reserved_bytes(snapshot: Mapping[str, Any], device: int) -> int:
    """Returns the memory of a device that was reserved when the snapshot was taken."""
    return sum(segment["total_size"] for segment in snapshot.get("segments", ()) if segment.get("device", 0) == device)


def found_limit(cuda: Any, snapshot: Mapping[str, Any], device: int | None = None) -> Limit | None:
    """Returns the memory that this process may reserve on a device, by default the current one, or None if PyTorch does
    not tell.
    """
    try:
        device = cuda.current_device() if device is None else device
        free, total = cuda.mem_get_info(device)
        # Older releases of PyTorch lack this function, and reveal a fraction only in out-of-memory errors.
        fraction = getattr(cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)
    except Exception:
        # An older PyTorch or a different allocator. The snapshot then has no limit.
        return None
    return smaller_limit(int(fraction * total) if fraction < 1 else None, free + reserved_bytes(snapshot, device))


def smaller_limit(of_fraction: int | None, of_device: int) -> Limit:
    """Returns the smaller limit, which is the one that bounds the process."""
    if of_fraction is not None and of_fraction <= of_device:
        return Limit(of_fraction, "fraction")
    return Limit(of_device, "mem_get_info")


def with_limit(snapshot: Mapping[str, Any], limit: Limit | None) -> dict[str, Any]:
    """Returns the snapshot with the limit under the key `parkade`, which `advise` and `diagnose` read."""
    kept = {} if limit is None else {"parkade": {"limit_bytes": limit.limit_bytes, "limit_source": limit.limit_source}}
    return {**snapshot, **kept}


def write(path: str, snapshot: Mapping[str, Any], limit: Limit | None) -> None:
    """Writes a snapshot with the limit, in the format that PyTorch uses."""
    with beside(path) as part, open(part, "wb") as file:
        pickle.dump(with_limit(snapshot, limit), file, protocol=4)


def has_history(torch: Any) -> bool:
    """Whether PyTorch is already recording its memory history."""
    return bool(getattr(getattr(torch, "_C", None), "_cuda_isHistoryEnabled", lambda: False)())
