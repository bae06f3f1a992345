"""Recordings as arguments: a path, bytes, an open file, or the dictionary from `torch.cuda.memory._snapshot()`."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from ._errors import Error

Recording = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Mapping[str, Any]


@dataclass(frozen=True)
class File:
    """A recording as a file."""

    path: str
    #: The name in results: the path, or a placeholder such as `<bytes>`.
    name: str

    def named(self, text: str) -> str:
        """Returns the text with the path of a temporary file replaced by the name."""
        return text if self.path == self.name else text.replace(self.path, self.name)


@contextlib.contextmanager
def as_file(recording: Recording) -> Iterator[File]:
    """Yields the recording as a file. Anything but a path goes to a temporary file, which is removed afterwards."""
    if isinstance(recording, (str, os.PathLike)):
        yield _existing(recording)
        return
    data, name = _bytes(recording)
    with tempfile.TemporaryDirectory(prefix="parkade-") as folder:
        path = os.path.join(folder, "snapshot.pickle")
        with open(path, "wb") as file:
            file.write(data)
        # The copy must not stay in memory while the command runs.
        del data
        yield File(path, name)


def _existing(path: str | os.PathLike[str]) -> File:
    text = os.fspath(path)
    if not isinstance(text, str):
        text = os.fsdecode(text)
    if os.path.isdir(text):
        return _only_file(text)
    # Raises the usual exceptions of files.
    os.stat(text)
    return File(text, text)


def _only_file(folder: str) -> File:
    """Returns the recording in a folder, as the command does if the folder has only one."""
    from . import _parkade

    found = [path for path, refusal in _parkade.inputs([folder])[0] if refusal is None]
    if len(found) == 1:
        return File(found[0], found[0])
    raise IsADirectoryError(
        errno.EISDIR,
        f"a folder with {len(found)} recordings, but this function takes one: call it for each of them, or "
        "parkade.diagnose_many for all; the command `parkade advise FOLDER` finds one setting for all ranks",
        folder,
    )


def _bytes(recording: Any) -> tuple[bytes, str]:
    if isinstance(recording, (bytes, bytearray, memoryview)):
        return bytes(recording), "<bytes>"
    if isinstance(recording, Mapping):
        return _pickled(recording), "<snapshot>"
    if hasattr(recording, "read"):
        data = recording.read()
        if not isinstance(data, bytes):
            raise TypeError("the file must be open in binary mode: open(path, 'rb')")
        name = getattr(recording, "name", None)
        return data, name if isinstance(name, str) else "<file>"
    instead = "; parkade.explain(error) explains an exception" if isinstance(recording, BaseException) else ""
    raise TypeError(
        "a recording is a path, bytes, a binary file or the dictionary of torch.cuda.memory._snapshot(), not "
        f"{type(recording).__name__}{instead}"
    )


def _pickled(snapshot: Mapping[str, Any]) -> bytes:
    if "segments" not in snapshot and "device_traces" not in snapshot:
        raise Error("the dictionary is not a snapshot: it has neither 'segments' nor 'device_traces'")
    try:
        return pickle.dumps(dict(snapshot), protocol=4)
    except Exception as error:
        raise Error(
            f"the dictionary cannot be pickled, so it is not what torch.cuda.memory._snapshot() returned: {error}"
        ) from error
