"""The commands about one recording, the comparison of two, and the memory of the GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import overload

from ._errors import Error, UsageError, of_memory
from ._inputs import Recording, as_file
from ._progress import Progress
from ._results import (
    Advice,
    Diagnosis,
    Difference,
    Export,
    Info,
    MessageDiagnosis,
    Replay,
    Report,
    Stats,
    Verification,
    made,
)
from ._run import Answer, Device, Settings, Size, options, run

Path = str | os.PathLike[str]
Several = str | Iterable[str] | None
#: One size, or several, or growth as "2%".
Bounds = Size | Iterable[Size] | None
#: Settings, or a list of them.
SeveralSettings = Settings | Iterable[Settings] | None


def verify(
    recording: Recording,
    *,
    limit: Size | None = None,
    settings: Settings | None = None,
    profile: str | None = None,
    progress: Progress = None,
) -> Verification:
    """Replays a recording under its own settings, and compares every decision with what PyTorch's allocator did.

    `limit` is the recorded run's memory limit, `settings` replaces the settings in the file, `profile` is a release of PyTorch such as "2.11".
    """
    chosen = options(limit=limit, settings=settings, profile=profile)
    with as_file(recording) as file:
        answer = run(["verify", "--json", *chosen], [file], progress=progress)
        return made(Verification, answer.object([file]), answer)


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
    """Tries about eighty settings on a recording's requests, and recommends the ones that help, if any do.

    `limit` is what the process may reserve, `capacity` the memory of another GPU to try. `settings` are tried too, or with `only` alone.
    `policy` names policies of parkade, as `floating-handles`: what they would need in place of PyTorch's allocator is in `policies`.
    `threads` is how many processors may work at once.
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
        return made(Advice, answer.object([file]), answer)


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
    """Says why a recorded program ran out of memory, and where every reserved byte was; without a failure, why more was reserved than allocated.

    `entry` chooses another moment of the trace. `message` is the text of an out-of-memory error, a log with some, or a log's path, instead
    of a recording.
    """
    chosen = options(limit=limit, capacity=capacity, entry=entry, device=device, settings=settings, profile=profile)
    if message is None:
        if recording is None:
            raise UsageError(
                "nothing to diagnose: give a recording, or message= with the text of an out-of-memory error"
            )
        with as_file(recording) as file:
            answer = run(["diagnose", "--json", *chosen], [file], progress=progress)
            return made(Diagnosis, answer.object([file]), answer)
    if recording is not None or chosen:
        raise UsageError("a message is diagnosed alone: leave out the recording and the other arguments")
    if not isinstance(message, str):
        raise TypeError(
            f"message is text, and not {type(message).__name__}: of an exception, parkade.explain(exception) takes it"
        )
    if message.strip() in ("", "-"):
        raise UsageError(f"message is {message!r}, and that is no out-of-memory error")
    answer = run(["diagnose", "--json", f"--message={message}"], progress=progress)
    return made(MessageDiagnosis, answer.object([]), answer)


def explain(error: BaseException | str) -> MessageDiagnosis:
    """Says why memory was out, from the text of a `torch.OutOfMemoryError` alone: no recording is needed.

    The error may also be the cause or the context of the one that is given.
    """
    if isinstance(error, str):
        return diagnose(message=error)
    if not isinstance(error, BaseException):
        raise TypeError(f"explain() takes an exception or its text, and not {type(error).__name__}")
    text = str(of_memory(error) or error)
    return diagnose(message=text or type(error).__name__)


#: Pictures and documents that `report` does not write.
_NOT_WRITTEN = (".png", ".jpg", ".jpeg", ".pdf")


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
) -> Report:
    """Shows what happened in a recorded run: memory over time, who held it at the peak, and the run under other settings.

    With `output` it also writes the page that any browser opens, which searches settings as `advise` does; a name that ends with `.svg`
    gets the picture of memory over time instead. `force` overwrites that file.
    """
    chosen = options(limit=limit, capacity=capacity, settings=settings, device=device, profile=profile, force=force)
    written = None if output is None else os.fsdecode(output)
    ending = os.path.splitext(written or "")[1].lower()
    if ending in _NOT_WRITTEN:
        raise UsageError(f"a report is a page (.html) or a picture (.svg), and {written} is named like neither")
    with as_file(recording) as file, tempfile.TemporaryDirectory(prefix="parkade-") as folder:
        picture = os.path.join(folder, "timeline.svg")
        if ending == ".svg":
            picture = written or picture
        elif written is not None:
            chosen.append(f"--output={written}")
        answer = run(["report", "--json", f"--svg={picture}", *chosen], [file], progress=progress)
        with open(picture, encoding="utf-8") as svg:
            found = answer.object([file])
            # The picture in the temporary folder is nobody's.
            lines = [line for line in answer.text.splitlines() if folder not in line]
            lines += [f"device {device['device']}: {device['what_happened']}" for device in found["devices"]]
            answer.text = "\n".join(lines)
            return made(Report, {**found, "svg": svg.read(), "output": written}, answer)


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
    """Compares two recordings of a program: peaks, what grew, fragmentation, step by step. Of one alone, shows it, or two of its steps.

    `fail_above` bounds the peak of reserved memory: growth as "2%", or a size as "14GiB"; `steps` compares a step of `a` with one of `b`.
    """
    pair = None if steps is None else f"{steps[0]}:{steps[1]}"
    chosen = options(fail_above=fail_above, steps=pair, device=device, recorded_limit=recorded_limit)
    with as_file(a) as first:
        if b is None:
            answer = run(["diff", "--json", *chosen], [first], progress=progress)
            return made(Difference, answer.object([first]), answer)
        with as_file(b) as second:
            answer = run(["diff", "--json", *chosen], [first, second], progress=progress)
            return made(Difference, answer.object([first, second]), answer)


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
) -> Stats:
    """Shows `memory_stats()` and fragmentation at the end of a recording, after an `entry`, `every` so many of them, or after its `steps`.

    `steps` may be the beginning of the annotation that ends a step. With `settings`, of the run under these.
    """
    chosen = options(
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
    with as_file(recording) as file:
        # A table with a row for each of many moments is not made for nothing.
        is_short = every is None and not steps
        answer = run(["stats", "--json", *chosen], [file], progress=progress, with_text=is_short)
        return made(Stats, answer.object([file]), answer)


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
    """Serves a recording's requests again, under other settings or a policy of parkade, with another limit, or on a smaller device.

    `settings` are those of PyTorch's allocator, the recording's own unless given; `policy` is one of `policies()`, in its place.
    `recorded_limit` is the memory limit of the recorded run.
    """
    chosen = options(
        settings=settings, policy=policy, capacity=capacity, limit=limit, recorded_limit=recorded_limit, profile=profile
    )
    with as_file(recording) as file:
        answer = run(["replay", "--json", *chosen], [file], progress=progress)
        return made(Replay, answer.object([file]), answer)


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
) -> Export:
    """Writes the run that a recorded program would have had under other settings: a snapshot for memory_viz, or a trace for Perfetto.

    `format` is "snapshot" or "perfetto", where `blocks` bounds how many blocks become slices. `stop_at_oom` ends the run at its first
    out-of-memory error. `force` overwrites an existing file.
    """
    chosen = options(
        output=output,
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
        raise UsageError("output is '-', which is standard output: give the file to write")
    with as_file(recording) as file:
        answer = run(["export", "--json", *chosen], [file], progress=progress)
        return made(Export, answer.object([file]), answer)


def info() -> Info:
    """The memory of every GPU of this machine, and the processes that hold it. Raises `Error` without a GPU."""
    # In a process of its own: without NVML the CUDA driver is asked, and a context would stay in this one.
    found = [
        subprocess.run([sys.executable, "-m", "parkade", "info", *form], capture_output=True)
        for form in (["--json"], [])
    ]
    first, text = found
    if first.returncode != 0:
        said = first.stderr.decode(errors="replace").strip()
        raise Error(said.removeprefix("parkade: ") or f"parkade info ended with exit code {first.returncode}")
    answer = Answer(first.stdout, (), first.returncode, text.stdout.decode(errors="replace").rstrip("\n"))
    return made(Info, json.loads(first.stdout), answer)
