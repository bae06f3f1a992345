"""Runs the studies of `parkade sweep` in this process or on an executor, and yields the same rows, byte for byte; finds
the largest batches, and lists the names.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import IO, TYPE_CHECKING, Any, cast

from . import _arrow, _parkade
from ._errors import Error, UsageError
from ._executors import Executors, in_order, look
from ._progress import Progress, shown
from ._results import Catalogue, LargestBatches, made
from ._run import Answer, Size, at_least_one, call, listed, options, run
from ._words import Words

if TYPE_CHECKING:
    from ._objects import SweepSummary

Path = str | os.PathLike[str]
_Names = str | Iterable[str]
#: Names, descriptions and files of programs.
_Workloads = _Names | Path | Iterable[Path]


class Sweep:
    """The rows of a sweep, in the order of its jobs. `str()` is what `parkade sweep` prints."""

    def __init__(self, header: bytes, lines: list[bytes], arguments: Sequence[str], shown: Sequence[str] = ()) -> None:
        #: The first line of the file of rows, and the other lines, as bytes with their newlines.
        self.header = header
        self.lines = lines
        self._arguments = tuple(arguments)
        #: The options of the answer, which do not change the rows.
        self._shown = tuple(shown)
        self._answer: Answer | None = None

    def __len__(self) -> int:
        return len(self.lines)

    def __repr__(self) -> str:
        return f"Sweep({len(self)} rows)"

    def __str__(self) -> str:
        answer = self._answered()
        return answer.words(answer.text)

    def _repr_html_(self) -> str:
        answer = self._answered()
        return answer.words(answer.html)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries. docs/studies.md explains the columns."""
        return [json.loads(line) for line in self.lines]

    @property
    def summary(self) -> SweepSummary:
        """The means, tests and shares that `parkade sweep --json` prints. docs/json.md explains them."""
        return cast("SweepSummary", self._answered().object())

    def write(self, path: Path) -> None:
        """Writes the same file as `parkade sweep -o`, byte for byte."""
        with open(path, "wb") as file:
            file.write(self.header)
            file.writelines(self.lines)

    def write_html(self, path: Path, *, force: bool = False) -> None:
        """Writes a page with plots and tables, as `parkade sweep --html` does. `force` overwrites an existing file."""
        self._again(*self._shown, *options(html=path, force=force), with_text=False)

    def series(self, step: int | None = None, *, progress: Progress = None) -> Series:
        """The heap over the course of each run with plenty of memory, as `parkade sweep --series` writes it.

        A run has a point at its most reserved and at its most allocated bytes in each part of `step` events; by
        default, it has 500 parts. The runs are made now, in this process.
        """
        with tempfile.TemporaryDirectory(prefix="parkade-") as folder:
            series = os.path.join(folder, "series.csv")
            self._again(*options(bounds=0, series=series, series_step=step), progress=progress, with_text=False)
            with open(series, "rb") as file:
                return Series(file.read())

    def _answered(self, progress: Progress = False) -> Answer:
        if self._answer is None:
            self._answer = self._again(*self._shown, progress=progress)
        return self._answer

    def _again(self, *chosen: str, progress: Progress = False, with_text: bool = True) -> Answer:
        """Runs the command, which runs the jobs that the file of rows lacks: none."""
        with tempfile.TemporaryDirectory(prefix="parkade-") as folder:
            rows = os.path.join(folder, "rows.jsonl")
            self.write(rows)
            arguments = ["sweep", "--json", *self._arguments, f"--output={rows}", *chosen]
            return run(arguments, progress=progress, with_text=with_text)

    def to_arrow(self) -> Any:
        """The rows as a `pyarrow.Table`."""
        return _arrow.rows(self.rows)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The same for libraries that read Arrow's streams, such as pandas and polars."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_parquet(self, path: Path) -> None:
        """Writes that table to a Parquet file."""
        _arrow.write(self.to_arrow(), path)


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
        """The rows as dictionaries. `pool`, `collection` and `stream` are None in the row of the entire heap."""
        texts = ("workload", "policy", "collection")
        return [
            {name: (value if name in texts else int(value)) if value else None for name, value in row.items()}
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
    workloads: _Workloads = "all",
    policies: _Names = "all",
    capacities: str | float | Iterable[str | float] = "1.0,1.02,1.05,1.1,1.25",
    *,
    seeds: int = 1,
    prealloc: float | None = None,
    precision: str | float | Fraction | None = None,
    addresses: str = "driver",
    bounds: int = 0,
    baseline: str | None = None,
    output: Path | None = None,
    executor: Executors = None,
    jobs_per_task: int = 16,
    retries: int = 3,
    progress: Progress = None,
) -> Sweep:
    """Runs workloads, generated and recorded, under allocation policies on simulated devices.

    `catalogue()` lists the names of workloads, policies and address models. `capacities` are factors of LOAD, the most
    bytes live at once, or sizes such as "80GiB". `prealloc` times LOAD is reserved before each program. `precision` is
    the part of LOAD to within which the smallest memory is found, by default 1/256.

    `bounds` is the number of steps spent on packing each program offline, in this process; the summary then has the
    packings, and the requests at which policies first need more. `baseline` is the policy that the summary compares the
    others with.

    `executor` is any `concurrent.futures` executor whose workers have the same build of parkade and find recordings
    under the same paths. Without one, threads of this process do the work. The rows are always the same bytes as
    those of `parkade sweep`. They are written to `output` as they become available; if that file has the beginning of
    the same sweep, the sweep continues there. A task has `jobs_per_task` jobs. A task whose worker died is repeated,
    up to `retries` times.
    """
    at_least_one("jobs_per_task", jobs_per_task)
    arguments = tuple(
        options(
            workloads=_names("workloads", workloads),
            policies=_names("policies", policies),
            capacities=_names("capacities", capacities),
            seeds=seeds,
            prealloc=None if prealloc is None else str(prealloc),
            precision=_part_of_load(precision),
            addresses=addresses,
        )
    )
    shown_with = options(bounds=bounds, baseline=baseline)
    # Wrong options of the answer are found before the work.
    jobs = _jobs((*arguments, *shown_with))
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
    study = Sweep(header, lines, arguments, shown_with)
    if bounds:
        study._answered(progress)
    return study


def largest_batch(
    workloads: _Names | None = None,
    policies: _Names = "all",
    capacities: str | Iterable[str | int] | None = None,
    *,
    most_batch: int | None = None,
    context: Size | None = None,
    progress: Progress = None,
    threads: int | None = None,
) -> LargestBatches:
    """Finds the largest batch that fits, for each training of a transformer, device and policy.

    `workloads` are descriptions such as "transformer:preset=7b,checkpointing=layer,steps=3", whose batch is replaced.
    `capacities` are devices: cards such as "H100-80GB", or sizes. `most_batch` is the largest batch to try, by default
    4096. `context` is the device memory that the driver's context takes, by default 500 MiB.
    """
    chosen = options(
        workloads=None if workloads is None else _names("workloads", workloads),
        policies=_names("policies", policies),
        capacities=None if capacities is None else _names("capacities", capacities),
        most_batch=most_batch,
        context=context,
    )
    answer = run(["sweep", "--largest-batch", "--json", *chosen], progress=progress, threads=threads)
    return made(LargestBatches, answer.object(), answer)


def catalogue() -> Catalogue:
    """Lists the workloads, generators, policies and address models that `sweep` accepts by name."""
    answer = run(["sweep", "--list", "--json"])
    return made(Catalogue, answer.object(), answer)


def _names(name: str, given: Any) -> list[str]:
    """Returns the names in a list, which are not to be mistaken for all."""
    names = [item if isinstance(item, os.PathLike) else str(item) for item in listed(name, given)]
    if not names:
        raise UsageError(f"{name} is an empty list: name at least one, or leave it out")
    return names  # type: ignore[return-value]


def _part_of_load(precision: Any) -> str | None:
    if precision is None or isinstance(precision, str):
        return precision
    try:
        # 1 / 1000 is not exactly a thousandth.
        return str(Fraction(precision).limit_denominator(1_000_000))
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"precision must be a part of LOAD, such as 1/1024, not {precision!r}") from None


@functools.lru_cache(maxsize=1)
def _jobs(arguments: tuple[str, ...]) -> _parkade.Jobs:
    """Returns the jobs of a sweep, which each process reads once."""
    return call(lambda: _parkade.Jobs(["sweep", *arguments]), Words(arguments))


def _rows(arguments: tuple[str, ...], program: str, numbers: Sequence[int]) -> list[bytes]:
    """Returns the lines of these jobs. This runs on the workers."""
    if _parkade.Jobs.program != program:
        raise Error(
            f"a worker has parkade {_parkade.Jobs.program}, but {program} began the sweep: install the same build "
            "everywhere"
        )
    return call(lambda: _jobs(arguments).rows(numbers, look), Words(arguments))


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
