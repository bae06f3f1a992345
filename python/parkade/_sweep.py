"""Runs the studies of `parkade sweep` in this process or on an executor, and yields the same rows, byte for byte."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from . import _arrow, _html, _parkade
from ._errors import Error
from ._executors import Executors, in_order, look
from ._inputs import File
from ._progress import Progress, shown
from ._run import call, options, run

Path = str | os.PathLike[str]
_Names = str | Iterable[str]


class Sweep:
    """The rows of a sweep, in the order of its jobs."""

    def __init__(self, header: bytes, lines: list[bytes], arguments: Sequence[str]) -> None:
        #: The first line of the file of rows, and the other lines, as bytes with their newlines.
        self.header = header
        self.lines = lines
        self._arguments = tuple(arguments)
        self._summary: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.lines)

    def __repr__(self) -> str:
        return f"Sweep({len(self)} rows)"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries. docs/studies.md explains the columns."""
        return [json.loads(line) for line in self.lines]

    @property
    def summary(self) -> dict[str, Any]:
        """The means, tests and shares that `parkade merge --json` prints. docs/json.md explains them."""
        if self._summary is None:
            with tempfile.TemporaryDirectory(prefix="parkade-") as folder:
                rows, merged = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "merged.jsonl")
                self.write(rows)
                file = File(rows, "<rows>")
                self._summary = run(["merge", "--json", f"--output={merged}"], [file], with_text=False).object([file])
        return self._summary

    def write(self, path: Path) -> None:
        """Writes the same file as `parkade sweep -o`, byte for byte."""
        with open(path, "wb") as file:
            file.write(self.header)
            file.writelines(self.lines)

    def series(self, step: int | None = None, *, progress: Progress = None) -> Series:
        """The heap over the course of each run with plenty of memory, as `parkade sweep --series` writes it.

        A run has a point at its most reserved and at its most allocated bytes in each part of `step` events; by
        default, it has 500 parts. The runs are made now, in this process.
        """
        with tempfile.TemporaryDirectory(prefix="parkade-") as folder:
            rows, series = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "series.csv")
            # The command runs the jobs that the file of rows lacks: none.
            self.write(rows)
            chosen = options(bounds=0, output=rows, series=series, series_step=step)
            run(["sweep", "--json", *self._arguments, *chosen], progress=progress, with_text=False)
            with open(series, "rb") as file:
                return Series(file.read())

    def to_arrow(self) -> Any:
        """The rows as a `pyarrow.Table`."""
        return _arrow.rows(self.rows)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The same for libraries that read Arrow's streams, such as pandas and polars."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_parquet(self, path: Path) -> None:
        """Writes that table to a Parquet file."""
        _arrow.write(self.to_arrow(), path)

    def _repr_html_(self) -> str:
        def over_load(policy: dict[str, Any]) -> str:
            mean = policy["memory_over_load"]
            return "" if mean is None else f"{mean['mean']:.3f}"

        rows = [(policy["policy"], over_load(policy)) for policy in self.summary["policies"]]
        return _html.page(f"{len(self)} jobs", _html.table(["policy", "memory over LOAD"], rows))


class Series:
    """The heap over the course of the runs of a sweep. docs/studies.md explains the columns."""

    def __init__(self, csv: bytes) -> None:
        #: What `parkade sweep --series` writes.
        self.csv = csv

    def __len__(self) -> int:
        return self.csv.count(b"\n") - 1

    def __repr__(self) -> str:
        return f"Series({len(self)} rows)"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries. `pool` and `stream` are None in the row of the entire heap."""
        texts = ("workload", "policy")
        return [
            {name: value if name in texts else int(value) if value else None for name, value in row.items()}
            for row in csv.DictReader(io.StringIO(self.csv.decode()))
        ]

    def write(self, path: Path) -> None:
        """Writes the file of `parkade sweep --series`, byte for byte."""
        with open(path, "wb") as file:
            file.write(self.csv)

    def to_arrow(self) -> Any:
        """The rows as a `pyarrow.Table`."""
        return _arrow.series(self.csv)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The same for libraries that read Arrow's streams, such as pandas and polars."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_parquet(self, path: Path) -> None:
        """Writes that table to a Parquet file."""
        _arrow.write(self.to_arrow(), path)


def sweep(
    workloads: _Names = "all",
    policies: _Names = "all",
    capacities: str | Iterable[str | float] = "1.0,1.02,1.05,1.1,1.25",
    *,
    seeds: int = 1,
    prealloc: float | None = None,
    addresses: str = "driver",
    output: Path | None = None,
    executor: Executors = None,
    jobs_per_task: int = 16,
    retries: int = 3,
    progress: Progress = None,
) -> Sweep:
    """Runs workloads, generated and recorded, under allocation policies on simulated devices.

    `executor` is any `concurrent.futures` executor whose workers have the same build of parkade and find recordings
    under the same paths. Without one, threads of this process do the work. The rows are always the same bytes as
    those of `parkade sweep`. They are written to `output` as they become available; if that file has the beginning of
    the same sweep, the sweep continues there. A task has `jobs_per_task` jobs. A task whose worker died is repeated,
    up to `retries` times.
    """
    if jobs_per_task < 1:
        raise ValueError(f"jobs_per_task is {jobs_per_task}: it must be at least 1")
    arguments = tuple(
        options(
            workloads=_names(workloads),
            policies=_names(policies),
            capacities=_names(capacities),
            seeds=seeds,
            prealloc=None if prealloc is None else str(prealloc),
            addresses=addresses,
        )
    )
    jobs = _jobs(arguments)
    header = jobs.header()
    with _continued(output, header) as (lines, file), shown(progress) as told:
        todo = range(len(lines), jobs.number)
        tasks = [list(todo[start : start + jobs_per_task]) for start in range(0, len(todo), jobs_per_task)]
        work = functools.partial(_rows, arguments, jobs.program)
        for rows in in_order(work, tasks, executor, retries):
            lines += rows
            if file is not None:
                file.writelines(rows)
                file.flush()
            if told is not None:
                told(len(lines), jobs.number, "jobs")
    return Sweep(header, lines, arguments)


def _names(names: str | Iterable[str | float]) -> list[str]:
    return [names] if isinstance(names, str) else [str(name) for name in names]


@functools.lru_cache(maxsize=1)
def _jobs(arguments: tuple[str, ...]) -> _parkade.Jobs:
    """Returns the jobs of a sweep, which each process reads once."""
    return call(lambda: _parkade.Jobs(["sweep", *arguments]))


def _rows(arguments: tuple[str, ...], program: str, numbers: Sequence[int]) -> list[bytes]:
    """Returns the lines of these jobs. This runs on the workers."""
    if _parkade.Jobs.program != program:
        raise Error(
            f"a worker has parkade {_parkade.Jobs.program}, but {program} began the sweep: install the same build "
            "everywhere"
        )
    return call(lambda: _jobs(arguments).rows(numbers, look))


@contextlib.contextmanager
def _continued(output: Path | None, header: bytes) -> Iterator[tuple[list[bytes], IO[bytes] | None]]:
    """Yields the rows that the file has, and the file, positioned after them."""
    if output is None:
        yield [], None
        return
    # The file may be missing, and must not be truncated.
    with open(os.open(output, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        _lock(file, output)
        lines = file.readlines()
        if lines and not lines[-1].endswith(b"\n"):
            # Cut by an interruption.
            lines.pop()
        if lines and lines[0] != header:
            raise Error(
                f"{os.fspath(output)} has rows from a different sweep, or is not a file of rows: choose a different "
                "file, or remove it"
            )
        rows = [json.loads(line) for line in lines[1:]]
        builds = {row["policy"]: _parkade.Jobs.build_of(row["policy"]) for row in rows}
        for row in rows:
            if row.get("program") != builds[row["policy"]]:
                raise Error(
                    f"{os.fspath(output)} has rows of {row['policy']} from a different build of parkade than "
                    f"{builds[row['policy']]}: choose a different file, remove it, or run parkade sweep --renew"
                )
        if any(row["job"] != place for place, row in enumerate(rows)):
            raise Error(
                f"{os.fspath(output)} has gaps, because an addition of policies or seeds was interrupted: "
                "finish it with parkade sweep -o"
            )
        file.seek(sum(map(len, lines)))
        file.truncate()
        if not lines:
            file.write(header)
            file.flush()
        yield lines[1:], file


def _lock(file: IO[bytes], output: Path) -> None:
    """Takes the lock that `parkade sweep` also takes."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Error(f"{os.fspath(output)} is being written by another sweep") from None
    except OSError:
        # A file system without locks.
        return
