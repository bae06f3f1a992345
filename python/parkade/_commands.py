"""The functions that run a command on one or two recordings, and the function `info`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, overload

from ._errors import Error, UsageError, of_memory
from ._inputs import File, Recording, as_file
from ._progress import Progress
from ._results import (
    Advice,
    Diagnosis,
    Difference,
    Export,
    Info,
    Lifetimes,
    MessageDiagnosis,
    Replay,
    Report,
    SimulatedExport,
    SimulatedReport,
    SimulatedStats,
    Stats,
    Verification,
    is_of_log,
    log_refusal,
    made,
)
from ._run import Answer, Device, Settings, Size, options, run

Path = str | os.PathLike[str]
Several = str | Iterable[str] | None
#: A size, a growth such as "2%", or several of these.
Bounds = Size | Iterable[Size] | None
#: A workload: a name of the catalogue, or a description as `sweep` takes it.
Workload = str | None
#: Settings, or several of them.
SeveralSettings = Settings | Iterable[Settings] | None


def verify(
    recording: Recording,
    *,
    limit: Size | None = None,
    settings: Settings | None = None,
    profile: str | None = None,
    progress: Progress = None,
) -> Verification:
    """Replays a recording under its own settings, and compares every decision with the one that PyTorch's allocator
    made.

    `limit` is the memory limit of the recorded run. `settings` replaces the settings in the file. `profile` is a
    release of PyTorch, such as "2.11".
    """
    chosen = options(limit=limit, settings=settings, profile=profile)
    with as_file(recording) as file:
        answer = run(["verify", "--json", *chosen], [file], progress=progress)
        return made(Verification, answer.object(), answer)


def advise(
    recording: Recording,
    *,
    limit: Size | None = None,
    capacity: Size | None = None,
    settings: SeveralSettings = None,
    only: bool = False,
    policy: Several = None,
    device: Device | None = None,
    recorded_limit: Size | None = None,
    profile: str | None = None,
    progress: Progress = None,
    threads: int | None = None,
) -> Advice:
    """Replays a recording's requests under about eighty settings, and recommends the settings that help, if any do.

    `limit` is the memory that the process may reserve; `capacity` is the memory of a different GPU to try. `settings`
    are tried in addition, or by themselves with `only`. `policy` names policies of parkade, such as `compaction`;
    the result's `policies` state how much memory they would need in place of PyTorch's allocator. `threads` bounds the
    number of threads.
    """
    chosen = options(
        limit=limit,
        capacity=capacity,
        settings=settings,
        only=only,
        policy=policy,
        device=device,
        recorded_limit=recorded_limit,
        profile=profile,
    )
    with as_file(recording) as file:
        answer = run(["advise", "--json", *chosen], [file], progress=progress, threads=threads)
        return made(Advice, answer.object(), answer)


@overload
def diagnose(
    recording: Recording,
    *,
    limit: Size | None = None,
    capacity: Size | None = None,
    entry: int | None = None,
    device: Device | None = None,
    settings: Settings | None = None,
    profile: str | None = None,
    progress: Progress = None,
) -> Diagnosis: ...


@overload
def diagnose(*, message: str, progress: Progress = None) -> MessageDiagnosis: ...


def diagnose(
    recording: Recording | None = None,
    *,
    message: str | None = None,
    limit: Size | None = None,
    capacity: Size | None = None,
    entry: int | None = None,
    device: Device | None = None,
    settings: Settings | None = None,
    profile: str | None = None,
    progress: Progress = None,
) -> Diagnosis | MessageDiagnosis:
    """Explains why a recorded program ran out of memory, and what held every reserved byte. If the program did not run
    out of memory, it explains why more was reserved than allocated.

    `entry` chooses a different point in the trace. `message` replaces the recording: the text of an out-of-memory
    error, a log that contains one, or the path of a log.
    """
    chosen = options(limit=limit, capacity=capacity, entry=entry, device=device, settings=settings, profile=profile)
    if message is None:
        if recording is None:
            raise UsageError(
                "there is nothing to diagnose: pass a recording, or message= with the text of an out-of-memory error"
            )
        with as_file(recording) as file:
            answer = run(["diagnose", "--json", *chosen], [file], progress=progress)
            found = answer.object()
            if is_of_log(found):
                raise UsageError(log_refusal(file.name))
            return made(Diagnosis, found, answer)
    if recording is not None or chosen:
        raise UsageError("message= cannot be combined with a recording or other arguments: leave them out")
    if not isinstance(message, str):
        raise TypeError(
            f"message must be text, not {type(message).__name__}: pass an exception to parkade.explain(exception)"
        )
    if message.strip() in ("", "-"):
        raise UsageError(f"message is {message!r}, which is not an out-of-memory error")
    try:
        answer = run(["diagnose", "--json", f"--message={message}"], progress=progress)
    except Error as error:
        if not os.path.isfile(message):
            raise
        raise Error(f"{message}: {error}; if it is a recording, parkade.diagnose({message!r}) explains it") from None
    return made(MessageDiagnosis, answer.object(), answer)


def explain(error: BaseException | str) -> MessageDiagnosis:
    """Explains a `torch.OutOfMemoryError` from its text, without a recording. `diagnose` explains a recording.

    The out-of-memory error may also be the cause or the context of `error`.
    """
    if isinstance(error, str):
        return diagnose(message=error)
    if not isinstance(error, BaseException):
        raise TypeError(
            f"explain() takes an exception or its text, not {type(error).__name__}: parkade.diagnose(recording) "
            "explains a recording, and parkade.diagnose(message=path) a log"
        )
    text = str(of_memory(error) or error)
    return diagnose(message=text or type(error).__name__)


@contextlib.contextmanager
def _program(recording: Recording | None, workload: Workload) -> Iterator[list[File]]:
    """Yields the file of the program to show; no file for a workload, which the options name."""
    if workload is not None and recording is not None:
        raise UsageError("a recording and workload= are two programs: leave one out")
    if workload is not None:
        yield []
        return
    if recording is None:
        raise UsageError("there is no program: pass a recording, or workload= with the name of a workload")
    with as_file(recording) as file:
        yield [file]


def _is_simulated(found: dict[str, Any]) -> bool:
    """Whether a command's object is about a simulation, and not about a recorded run."""
    return "program" in found


#: The file extensions of formats that `report` cannot write.
_NOT_WRITTEN = (".png", ".jpg", ".jpeg", ".pdf")


@overload
def report(
    recording: Recording,
    output: Path | None = None,
    *,
    limit: Size | None = None,
    capacity: Size | None = None,
    settings: SeveralSettings = None,
    device: Device | None = None,
    profile: str | None = None,
    force: bool = False,
    progress: Progress = None,
) -> Report: ...


@overload
def report(
    recording: Recording | None = None,
    output: Path | None = None,
    *,
    policy: str,
    workload: Workload = None,
    bounds: int | None = None,
    limit: Size | None = None,
    capacity: Size | None = None,
    device: Device | None = None,
    force: bool = False,
    progress: Progress = None,
) -> SimulatedReport: ...


def report(
    recording: Recording | None = None,
    output: Path | None = None,
    *,
    policy: str | None = None,
    workload: Workload = None,
    bounds: int | None = None,
    limit: Size | None = None,
    capacity: Size | None = None,
    settings: SeveralSettings = None,
    device: Device | None = None,
    profile: str | None = None,
    force: bool = False,
    progress: Progress = None,
) -> Report | SimulatedReport:
    """Shows a recorded run: memory over time, what held it at the peak, and the same run under other settings.

    With `output`, it also writes a page for a browser, and tries settings as `advise` does. If the name ends with
    `.svg`, it writes the picture of memory over time instead. `force` overwrites an existing file.

    With `policy`, it shows the same program under a policy of parkade, in place of the recorded run; `limit` and
    `capacity` are then the policy's memory. `workload` is a generated program in place of the recording, which may also
    be a request trace. `bounds` is the number of steps spent on the packing with which the policy is compared.
    """
    chosen = options(
        policy=policy,
        workload=workload,
        bounds=bounds,
        limit=limit,
        capacity=capacity,
        settings=settings,
        device=device,
        profile=profile,
        force=force,
    )
    written = None if output is None else os.fsdecode(output)
    ending = os.path.splitext(written or "")[1].lower()
    if ending in _NOT_WRITTEN:
        raise UsageError(f"a report is a page (.html) or a picture (.svg), but {written} has neither ending")
    with _program(recording, workload) as files, tempfile.TemporaryDirectory(prefix="parkade-") as folder:
        picture = os.path.join(folder, "timeline.svg")
        if ending == ".svg":
            picture = written or picture
        elif written is not None:
            chosen.append(f"--output={written}")
        answer = run(["report", "--json", f"--svg={picture}", *chosen], files, progress=progress)
        with open(picture, encoding="utf-8") as svg:
            found = answer.object()
            # The caller did not ask for the picture in the temporary folder.
            lines = [line for line in answer.text.splitlines() if folder not in line]
            lines += [f"device {device['device']}: {device['what_happened']}" for device in found["devices"]]
            answer.text = "\n".join(lines)
            kind: type[Report | SimulatedReport] = SimulatedReport if _is_simulated(found) else Report
            return made(kind, found, answer, svg=svg.read(), output=written)


def diff(
    a: Recording,
    b: Recording | None = None,
    *,
    fail_above: Bounds = None,
    steps: tuple[int, int] | None = None,
    device: Device | None = None,
    recorded_limit: Size | None = None,
    progress: Progress = None,
) -> Difference:
    """Compares two recordings of a program: their peaks, what grew, and fragmentation, step by step. With one
    recording, it shows that recording or compares two of its steps.

    `fail_above` bounds the peak of reserved memory by a growth such as "2%" or a size such as "14GiB". `steps` is a
    pair: a step of `a`, and the step of `b` to compare it with.
    """
    pair = None
    if steps is not None:
        if not isinstance(steps, Sequence) or isinstance(steps, str) or len(steps) != 2:
            raise TypeError(f"steps must be a pair of steps, such as (10, 500), not {steps!r}")
        pair = f"{steps[0]}:{steps[1]}"
    chosen = options(fail_above=fail_above, steps=pair, device=device, recorded_limit=recorded_limit)
    with as_file(a) as first:
        if b is None:
            answer = run(["diff", "--json", *chosen], [first], progress=progress)
            return made(Difference, answer.object(), answer)
        with as_file(b) as second:
            answer = run(["diff", "--json", *chosen], [first, second], progress=progress)
            return made(Difference, answer.object(), answer)


@overload
def stats(
    recording: Recording,
    *,
    entry: int | None = None,
    every: int | None = None,
    steps: bool | str = False,
    settings: Settings | None = None,
    capacity: Size | None = None,
    limit: Size | None = None,
    recorded_limit: Size | None = None,
    profile: str | None = None,
    device: Device | None = None,
    progress: Progress = None,
) -> Stats: ...


@overload
def stats(
    recording: Recording | None = None,
    *,
    policy: str,
    workload: Workload = None,
    bounds: int | None = None,
    entry: int | None = None,
    every: int | None = None,
    steps: bool | str = False,
    capacity: Size | None = None,
    limit: Size | None = None,
    recorded_limit: Size | None = None,
    device: Device | None = None,
    progress: Progress = None,
) -> SimulatedStats: ...


@overload
def stats(
    recording: Recording | None = None,
    *,
    workload: Workload = None,
    lifetimes: Literal[True],
    recorded_limit: Size | None = None,
    device: Device | None = None,
    progress: Progress = None,
) -> Lifetimes: ...


def stats(
    recording: Recording | None = None,
    *,
    policy: str | None = None,
    workload: Workload = None,
    bounds: int | None = None,
    lifetimes: bool = False,
    entry: int | None = None,
    every: int | None = None,
    steps: bool | str = False,
    settings: Settings | None = None,
    capacity: Size | None = None,
    limit: Size | None = None,
    recorded_limit: Size | None = None,
    profile: str | None = None,
    device: Device | None = None,
    progress: Progress = None,
) -> Stats | SimulatedStats | Lifetimes:
    """Computes `memory_stats()` and fragmentation at the end of a recording, after the entry `entry`, after `every` so
    many entries, or after each step (`steps`).

    `steps` may also be the beginning of the annotation that ends a step. With `settings`, the numbers are those of the
    run under them.

    With `policy`, they are those of the same program under a policy of parkade, and the `runs` of the `SimulatedStats`
    state how it went and where the policy first needs more memory than the best packing, on which `bounds` steps are
    spent. `workload` is a generated program in place of the recording, which may also be a request trace. With
    `lifetimes`, the `Lifetimes` state how long the program's buffers live.
    """
    chosen = options(
        policy=policy,
        workload=workload,
        bounds=bounds,
        lifetimes=lifetimes,
        entry=entry,
        every=every,
        steps=steps,
        settings=settings,
        capacity=capacity,
        limit=limit,
        recorded_limit=recorded_limit,
        profile=profile,
        device=device,
    )
    with _program(recording, workload) as files:
        answer = run(["stats", "--json", *chosen], files, progress=progress)
        found = answer.object()
        if lifetimes:
            return made(Lifetimes, found, answer)
        kind: type[Stats | SimulatedStats] = SimulatedStats if _is_simulated(found) else Stats
        return made(kind, found, answer)


def replay(
    recording: Recording,
    *,
    settings: Settings | None = None,
    policy: str | None = None,
    capacity: Size | None = None,
    limit: Size | None = None,
    recorded_limit: Size | None = None,
    profile: str | None = None,
    progress: Progress = None,
) -> Replay:
    """Replays a recording's requests under other settings, under a policy of parkade, with a different limit, or on a
    smaller device.

    `settings` are settings of PyTorch's allocator, by default those of the recording. `policy` is a name from
    `policies()`, and replaces PyTorch's allocator. `recorded_limit` is the memory limit of the recorded run.
    """
    chosen = options(
        settings=settings, policy=policy, capacity=capacity, limit=limit, recorded_limit=recorded_limit, profile=profile
    )
    with as_file(recording) as file:
        answer = run(["replay", "--json", *chosen], [file], progress=progress)
        return made(Replay, answer.object(), answer)


@overload
def export(
    recording: Recording,
    output: Path,
    *,
    settings: Settings | None = None,
    capacity: Size | None = None,
    limit: Size | None = None,
    recorded_limit: Size | None = None,
    profile: str | None = None,
    format: str = "snapshot",
    blocks: int | None = None,
    device: Device | None = None,
    stop_at_oom: bool = False,
    force: bool = False,
    progress: Progress = None,
) -> Export: ...


@overload
def export(
    recording: Recording | None = None,
    output: Path | None = None,
    *,
    policy: str,
    workload: Workload = None,
    capacity: Size | None = None,
    limit: Size | None = None,
    recorded_limit: Size | None = None,
    format: str = "snapshot",
    blocks: int | None = None,
    device: Device | None = None,
    force: bool = False,
    progress: Progress = None,
) -> SimulatedExport: ...


@overload
def export(
    recording: None = None,
    output: Path | None = None,
    *,
    workload: str,
    format: Literal["requests"],
    force: bool = False,
    progress: Progress = None,
) -> SimulatedExport: ...


def export(
    recording: Recording | None = None,
    output: Path | None = None,
    *,
    policy: str | None = None,
    workload: Workload = None,
    settings: Settings | None = None,
    capacity: Size | None = None,
    limit: Size | None = None,
    recorded_limit: Size | None = None,
    profile: str | None = None,
    format: str = "snapshot",
    blocks: int | None = None,
    device: Device | None = None,
    stop_at_oom: bool = False,
    force: bool = False,
    progress: Progress = None,
) -> Export | SimulatedExport:
    """Writes the run that a recorded program would have had under other settings, as a snapshot for memory_viz or a
    trace for Perfetto.

    `output` is the file to write. `format` is "snapshot", "perfetto" or "requests" (the requests alone, docs/trace.md);
    with "perfetto", `blocks` limits the number of blocks that become slices. `stop_at_oom` ends the run at its first
    out-of-memory error. `force` overwrites an existing file.

    With `policy`, the run is that under a policy of parkade. `workload` is a generated program in place of the
    recording, which may also be a request trace.
    """
    if output is None:
        raise UsageError("there is no file to write: pass output=")
    chosen = options(
        output=output,
        policy=policy,
        workload=workload,
        settings=settings,
        capacity=capacity,
        limit=limit,
        recorded_limit=recorded_limit,
        profile=profile,
        format=format,
        blocks=blocks,
        device=device,
        stop_at_oom=stop_at_oom,
        force=force,
    )
    if os.fsdecode(output) == "-":
        raise UsageError("output is '-', which means standard output: pass the path of a file")
    with _program(recording, workload) as files:
        answer = run(["export", "--json", *chosen], files, progress=progress)
        found = answer.object()
        kind: type[Export | SimulatedExport] = SimulatedExport if _is_simulated(found) else Export
        return made(kind, found, answer)


def info() -> Info:
    """Returns the memory of every GPU of this machine, and the processes that hold it. Raises `Error` without a GPU."""
    # In a separate process: without NVML, the command asks the CUDA driver, which would leave a context in this one.
    found = [
        subprocess.run([sys.executable, "-m", "parkade", "info", *form], capture_output=True)
        for form in (["--json"], [])
    ]
    first, text = found
    if first.returncode != 0:
        said = first.stderr.decode(errors="replace").strip()
        raise Error(said.removeprefix("parkade: ") or f"parkade info ended with exit code {first.returncode}")
    answer = Answer(first.stdout, first.returncode, text.stdout.decode(errors="replace").rstrip("\n"))
    return made(Info, answer.object(), answer)
