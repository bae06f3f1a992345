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
    # Raises the usual exceptions of files.
    if os.path.isdir(text):
        raise IsADirectoryError(errno.EISDIR, "a folder; parkade.diagnose_many takes folders", text)
    os.stat(text)
    return File(text, text)


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
    kind = type(recording).__name__
    raise TypeError(
        "a recording is a path, bytes, a binary file or the dictionary of torch.cuda.memory._snapshot(), and not "
        f"{kind}"
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
