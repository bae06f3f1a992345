"""Diagnoses many recordings, such as a folder with one per rank, in this process or on an executor."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from . import _arrow, _html, _parkade
from ._errors import Error
from ._executors import Executors, in_order, look
from ._inputs import File
from ._progress import Progress, shown
from ._results import Diagnosis, is_of_log, log_refusal, made
from ._run import Answer, Settings, Size, listed, options, run

Path = str | os.PathLike[str]


class Diagnoses:
    """The diagnoses of many recordings, in the order of the files."""

    def __init__(self, lines: list[bytes], options: Sequence[str] = ()) -> None:
        #: The output of `parkade diagnose --json` for each file: a line of JSON, with its newline.
        self.lines = lines
        self._options = tuple(options)
        self._text: str | None = None

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Diagnosis | Error]:
        """Yields the diagnosis of each file, or the error if a file could not be diagnosed."""
        return map(_result, self.lines)

    @overload
    def __getitem__(self, place: int) -> Diagnosis | Error: ...

    @overload
    def __getitem__(self, place: slice) -> Diagnoses: ...

    def __getitem__(self, place: int | slice) -> Diagnosis | Error | Diagnoses:
        return Diagnoses(self.lines[place], self._options) if isinstance(place, slice) else _result(self.lines[place])

    def __repr__(self) -> str:
        files = f"{len(self)} file{'' if len(self) == 1 else 's'}"
        failed = sum("error" in json.loads(line) for line in self.lines)
        return f"Diagnoses({files}, {failed} of which could not be diagnosed)" if failed else f"Diagnoses({files})"

    def __str__(self) -> str:
        """Returns what `parkade diagnose` prints for these files. The command reads them again, once."""
        if self._text is None:
            files = [json.loads(line)["file"] for line in self.lines]
            if not files:
                return repr(self)
            command = [sys.executable, "-m", "parkade", "diagnose", *self._options, "--", *files]
            done = subprocess.run(command, capture_output=True)
            said = done.stdout or done.stderr
            self._text = said.decode(errors="replace").rstrip("\n")
        return self._text

    def write(self, path: Path) -> None:
        """Writes the lines to a file."""
        with open(path, "wb") as file:
            file.writelines(self.lines)

    def to_arrow(self) -> Any:
        """Returns a `pyarrow.Table` with a row for each device of each file. A file that could not be diagnosed has one
        row, with `error`.
        """
        return _arrow.diagnoses(map(json.loads, self.lines))

    def to_parquet(self, path: Path) -> None:
        """Writes that table to a Parquet file."""
        _arrow.write(self.to_arrow(), path)

    def _repr_html_(self) -> str:
        rows = []
        for found in map(json.loads, self.lines):
            if "error" in found:
                rows.append((found["file"], "", found["error"]))
            rows += [(found["file"], device["verdict"], device["headline"]) for device in found.get("devices", [])]
        return _html.page(f"{len(self)} recordings", _html.table(["recording", "verdict", "cause"], rows))


def diagnose_many(
    paths: Path | Iterable[Path],
    *,
    limit: Size | None = None,
    capacity: Size | None = None,
    settings: Settings | None = None,
    profile: str | None = None,
    executor: Executors = None,
    retries: int = 3,
    progress: Progress = None,
) -> Diagnoses:
    """Diagnoses the recordings at these paths; a folder stands for the recordings in it.

    `executor` is any `concurrent.futures` executor whose workers can import parkade and read the files. Without one,
    threads of this process do the work. The result is the same. A file whose worker died is tried again, up to
    `retries` times.
    """
    given = listed("paths", paths)
    files, _ = _parkade.inputs(given)
    chosen = tuple(options(limit=limit, capacity=capacity, settings=settings, profile=profile))
    tasks = [(path, refusal) for path, refusal in files]
    lines: list[bytes] = []
    with shown(progress) as told:
        for line in in_order(functools.partial(_line, chosen), tasks, executor, retries):
            lines.append(line)
            if told is not None:
                told(len(lines), len(tasks), "files")
    return Diagnoses(lines, chosen)


def _line(chosen: tuple[str, ...], task: tuple[str, str | None]) -> bytes:
    """Returns the line for a file. This runs on the workers."""
    path, refusal = task
    if refusal is not None:
        return _failure(path, refusal)
    try:
        file = File(path, path)
        answer = run(["diagnose", "--json", *chosen], [file], progress=look, threads=1, with_text=False)
        return _failure(path, log_refusal(path)) if is_of_log(answer.object()) else answer.printed
    except ValueError:
        # Wrong arguments are wrong for every file.
        raise
    except Error as error:
        return _failure(path, str(error))


def _failure(path: str, message: str) -> bytes:
    # The command's wording for several files.
    return _parkade.failure(path, message if message.startswith(path) else f"{path}: {message}")


def _result(line: bytes) -> Diagnosis | Error:
    found = json.loads(line)
    if "error" in found:
        return Error(found["error"])
    return made(Diagnosis, found, Answer(line))
