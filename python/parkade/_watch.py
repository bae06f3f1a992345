"""Watches the allocator in a training loop, within a bounded share of the loop's time.

It looks in two ways: at `memory_stats()`, which is cheap, and at a snapshot, which costs more the longer the history
is. Each gets half of the share, and happens only when its likely cost fits. `advise` examines the snapshots on another
thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from . import _snapshot
from ._commands import advise
from ._errors import Error
from ._inputs import _pickled
from ._results import Advice
from ._run import Device, Size, device_number
from ._torch import cuda

#: A function that receives a name, a number and the step, as `SummaryWriter.add_scalar` does.
Scalar = Callable[[str, float, int], object]
#: A function that receives numbers by name, and the step.
_Log = Callable[[dict[str, float], int], object]

#: The assumed cost of an entry of the first snapshot, in seconds; later snapshots are judged by the cost of the earlier
#: ones. With Python stacks of 12 frames, an entry took 0.8 to 1.5 us on an H200 machine (PyTorch 2.11.0), but the first
#: snapshot of a process took 4 s there, because it loads symbols.
_ENTRY_SECONDS = 20e-6
#: The assumed cost of the first look at the statistics, in seconds.
_LOOK_SECONDS = 1e-3
#: The next look may cost this many times the most expensive of the last ones.
_CAUTION = 1.5


def _log_of(writer: Any) -> _Log | None:
    """Returns a function that logs the numbers of a step to a function, a `SummaryWriter` or a wandb run. None logs
    nothing.
    """
    if writer is None:
        return None
    add = getattr(writer, "add_scalar", writer)
    if callable(add):

        def each(numbers: dict[str, float], step: int) -> None:
            for name, value in numbers.items():
                add(name, value, step)

        return each
    if callable(log := getattr(writer, "log", None)):
        # Logged together with the program's next numbers, because wandb drops numbers of an earlier step.
        return lambda numbers, step: log({**numbers, "parkade/step": step}, commit=False)
    raise TypeError(f"callback must be a function, a SummaryWriter or a wandb run, not {type(writer).__name__}")


@dataclass(frozen=True)
class Look:
    """The allocator's state after a step."""

    step: int
    allocated_bytes: int
    reserved_bytes: int
    #: Reserved, not allocated, and in segments that are partly in use: `empty_cache` cannot release it.
    stranded_bytes: int
    #: 1 - allocated / reserved; 0 if nothing is reserved.
    fragmentation: float
    ooms: int
    retries: int
    #: The requests that `enable(rescue=...)` has rescued.
    rescues: int = 0

    def scalars(self) -> dict[str, float]:
        """Returns the numbers by the names under which they are logged."""
        names = ["allocated_bytes", "reserved_bytes", "stranded_bytes", "fragmentation", "ooms", "retries"]
        if self.rescues:
            names.append("rescues")
        return {f"parkade/{name}": getattr(self, name) for name in names}


@dataclass
class _Budget:
    """A share of the elapsed time that may be spent."""

    share: float
    #: The likely cost of the next look, in seconds.
    likely: float
    spent: float = 0.0
    looks: int = 0
    last: list[float] = field(default_factory=list)

    def allows(self, elapsed: float) -> bool:
        return self.spent + self.likely <= self.share * elapsed

    def spend(self, seconds: float) -> None:
        self.spent += seconds
        self.looks += 1
        self.last = [*self.last[-4:], seconds]
        self.likely = max(self.last) * _CAUTION


class Watch:
    """Watches PyTorch's allocator. Call `step()` once in each step. It returns a `Look`, or None if it did not look at
    this step.

    `seen` is the last look, `advice` the result of `advise` for the last snapshot, and `share` the share of the elapsed
    time that was spent.
    """

    def __init__(
        self,
        callback: Scalar | Any = None,
        *,
        share: float = 0.01,
        advice: bool = True,
        limit: Size | None = "auto",
        device: Device | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 0 < share < 1:
            raise ValueError(f"share is {share}, but it must be between 0 and 1: 0.01 is one hundredth of the time")
        self._cuda = cuda()
        self._log_to, self._limit, self._clock = _log_of(callback), limit, clock
        self._device = None if device is None else device_number(device)
        _snapshot.Limit.given(limit)
        half = share / 2 if advice else share
        self._light = _Budget(half, _LOOK_SECONDS)
        self._heavy = _Budget(half, math.inf)
        self._wants_advice = advice
        self._worker: threading.Thread | None = None
        self._begun = clock()
        self._overhead = 0.0
        self._number = -1
        self._told: Advice | None = None
        self.seen: Look | None = None
        self.advice: Advice | None = None
        #: The reason why there is no advice for the last snapshot, for example because it has no history.
        self.no_advice: str | None = None

    def step(self, number: int | None = None) -> Look | None:
        """Call this at the end of each step. Without `number`, the watch counts the steps from 0."""
        begun = self._clock()
        self._number = self._number + 1 if number is None else number
        elapsed = begun - self._begun
        look = None
        # The budget of the cheap looks pays for the calls that do not look.
        if self._light.spent + self._overhead + self._light.likely <= self._light.share * elapsed:
            look = self._look()
            self._log(look)
            self._light.spend(self._clock() - begun)
            self._snapshot(elapsed)
        else:
            self._overhead += self._clock() - begun
        return look

    @property
    def share(self) -> float:
        """The share of the time since the watch began that was spent in its calls."""
        elapsed = self._clock() - self._begun
        return (self._light.spent + self._heavy.spent + self._overhead) / elapsed if elapsed > 0 else 0.0

    @property
    def snapshots(self) -> int:
        """The number of snapshots that were taken."""
        return self._heavy.looks

    def __repr__(self) -> str:
        seen = (
            "nothing seen yet"
            if self.seen is None
            else f"step {self.seen.step}, reserved {self.seen.reserved_bytes} bytes"
        )
        return f"Watch({seen}, {self.snapshots} snapshots, share {self.share:.4f})"

    def close(self, timeout: float | None = 60.0) -> None:
        """Waits for the advice on the last snapshot, for at most `timeout` seconds. None means without a time limit."""
        if self._worker is not None:
            self._worker.join(timeout)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stats(self) -> Mapping[str, int]:
        found: Mapping[str, int] = (
            self._cuda.memory_stats() if self._device is None else self._cuda.memory_stats(self._device)
        )
        return found

    def _look(self) -> Look:
        stats = self._stats()
        allocated, reserved = (stats.get(f"{kind}_bytes.all.current", 0) for kind in ("allocated", "reserved"))
        entries = sum(
            stats.get(f"{kind}.all.{what}", 0) for kind in ("allocation", "segment") for what in ("allocated", "freed")
        )
        if self._heavy.looks == 0:
            self._heavy.likely = _ENTRY_SECONDS * entries
        self.seen = Look(
            step=self._number,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            stranded_bytes=stats.get("inactive_split_bytes.all.current", 0),
            fragmentation=1 - allocated / reserved if reserved else 0.0,
            ooms=stats.get("num_ooms", 0),
            retries=stats.get("num_alloc_retries", 0),
            rescues=stats.get("parkade_rescues", 0),
        )
        return self.seen

    def _log(self, look: Look) -> None:
        if self._log_to is None:
            return
        numbers = look.scalars()
        # The advice that has arrived since the last look.
        if self.advice is not None and self.advice is not self._told:
            self._told = self.advice
            numbers.update({f"parkade/advice/{name}": value for name, value in _of_advice(self.advice).items()})
        self._log_to(numbers, look.step)

    def _snapshot(self, elapsed: float) -> None:
        is_busy = self._worker is not None and self._worker.is_alive()
        if not self._wants_advice or is_busy or not self._heavy.allows(elapsed):
            return
        begun = self._clock()
        try:
            # Pickled on this thread, where its cost is measured. On another thread, it would also delay the loop.
            snapshot = self._cuda.memory._snapshot()
            found = _snapshot.found_limit(self._cuda, snapshot, self._device) if self._limit == "auto" else None
            data = _pickled(_snapshot.with_limit(snapshot, found))
        except Error as error:
            self.no_advice = str(error)
            data = None
        self._heavy.spend(self._clock() - begun)
        if data is not None:
            self._worker = threading.Thread(target=self._advise, args=(data,), name="parkade-watch", daemon=True)
            self._worker.start()

    def _advise(self, data: bytes) -> None:
        try:
            # One thread, because the program needs the others.
            limit = None if self._limit == "auto" else self._limit
            self.advice = advise(data, limit=limit, device=self._device, progress=False, threads=1)
            self.no_advice = None
        except Error as error:
            self.no_advice = str(error)


def _of_advice(advice: Advice) -> dict[str, float]:
    """Returns the numbers of an advice: the memory that the run's own settings and the recommended ones need."""
    numbers: dict[str, float] = {}
    own = next((option for option in advice.options if option.own), None)
    best = advice.recommendation.settings if advice.recommendation is not None else None
    recommended = next((option for option in advice.options if option.settings == best), None)
    for name, option in (("own", own), ("recommended", recommended)):
        if option is not None:
            numbers[f"{name}_peak_reserved_bytes"] = option.peak_reserved_bytes
            numbers[f"{name}_smallest_bytes"] = option.smallest_capacity_bytes
    return numbers


def watch(
    callback: Scalar | Any = None,
    *,
    share: float = 0.01,
    advice: bool = True,
    limit: Size | None = "auto",
    device: Device | None = None,
) -> Watch:
    """Watches PyTorch's allocator in a training loop, and spends at most `share` of the loop's time on it.

    `callback` is a function that receives a name, a number and the step, or a `SummaryWriter`, or a wandb run. With
    `advice`, it also takes snapshots now and then, if `torch.cuda.memory._record_memory_history()` is on, and calls
    `advise` on another thread. `limit` is the memory that the process may reserve; "auto" asks PyTorch. Raises `NoCuda`
    without a GPU.
    """
    return Watch(callback, share=share, advice=advice, limit=limit, device=device)
