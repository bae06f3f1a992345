"""The commands about one recording, and the comparison of two."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import Optional, Union

from ._inputs import Recording, as_file
from ._progress import Progress
from ._results import Advice, Diagnosis, Difference, Report, Stats, Verification, made
from ._run import Size, options, run

Several = Union[str, Iterable[str], None]


def verify(
    recording: Recording,
    *,
    limit: Optional[Size] = None,
    settings: Optional[str] = None,
    profile: Optional[str] = None,
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
    limit: Optional[Size] = None,
    capacity: Optional[Size] = None,
    settings: Several = None,
    only: bool = False,
    policy: Several = None,
    device: Optional[int] = None,
    recorded_limit: Optional[Size] = None,
    profile: Optional[str] = None,
    progress: Progress = None,
    threads: Optional[int] = None,
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


def diagnose(
    recording: Recording,
    *,
    limit: Optional[Size] = None,
    capacity: Optional[Size] = None,
    entry: Optional[int] = None,
    device: Optional[int] = None,
    settings: Optional[str] = None,
    profile: Optional[str] = None,
    progress: Progress = None,
) -> Diagnosis:
    """Says why a recorded program ran out of memory, and where every reserved byte was; without a failure, why more was reserved than allocated.

    `entry` chooses another moment of the trace.
    """
    chosen = options(limit=limit, capacity=capacity, entry=entry, device=device, settings=settings, profile=profile)
    with as_file(recording) as file:
        answer = run(["diagnose", "--json", *chosen], [file], progress=progress)
        return made(Diagnosis, answer.object([file]), answer)


def report(
    recording: Recording,
    output: Union[str, os.PathLike[str], None] = None,
    *,
    limit: Optional[Size] = None,
    capacity: Optional[Size] = None,
    settings: Several = None,
    device: Optional[int] = None,
    profile: Optional[str] = None,
    force: bool = False,
    progress: Progress = None,
) -> Report:
    """Shows what happened in a recorded run: memory over time, who held it at the peak, and the run under other settings.

    With `output` it also writes the page that any browser opens, which searches settings as `advise` does. `force` overwrites that file.
    """
    chosen = options(output=output, limit=limit, capacity=capacity, settings=settings, device=device, profile=profile, force=force)
    with as_file(recording) as file, tempfile.TemporaryDirectory(prefix="parkade-") as folder:
        picture = os.path.join(folder, "timeline.svg")
        answer = run(["report", "--json", f"--svg={picture}", *chosen], [file], progress=progress)
        with open(picture, encoding="utf-8") as svg:
            written = None if output is None else os.fspath(output)
            return made(Report, {**answer.object([file]), "svg": svg.read(), "output": written}, answer)


def diff(
    a: Recording,
    b: Optional[Recording] = None,
    *,
    fail_above: Several = None,
    steps: Optional[tuple[int, int]] = None,
    device: Optional[int] = None,
    recorded_limit: Optional[Size] = None,
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
    entry: Optional[int] = None,
    every: Optional[int] = None,
    steps: Union[bool, str] = False,
    settings: Optional[str] = None,
    capacity: Optional[Size] = None,
    limit: Optional[Size] = None,
    recorded_limit: Optional[Size] = None,
    profile: Optional[str] = None,
    device: Optional[int] = None,
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
        answer = run(["stats", "--json", *chosen], [file], progress=progress)
        return made(Stats, answer.object([file]), answer)
