"""What is done when a running program is out of memory: the snapshot is written, and what helps is said.

PyTorch calls an observer at each out-of-memory error, before it raises it, so that an error that the program catches counts too.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from . import _snapshot
from ._errors import Error, of_memory
from ._html import likely, size
from ._run import Size
from ._torch import cuda

if TYPE_CHECKING:
    from ._results import Advice

#: A program that catches the errors and goes on gets a line, and a snapshot, no more often than this, in seconds.
_EVERY = 60.0
#: What helps is looked for so long, in seconds: other processes of the job wait, and the GPU is held.
_AT_MOST = 60.0
#: A remedy below this probably does not complete the run.
_IMPROBABLE = 0.4
#: Where the snapshot is written, unless something else is asked for.
PATH = "oom-{host}-{rank}.pickle"


def say(text: str) -> None:
    """A line on standard error, which may be closed."""
    try:
        print(f"parkade: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


@dataclass(frozen=True)
class _Shortage:
    """What PyTorch says of an out-of-memory error."""

    device: int
    wanted_bytes: int
    #: What the process may reserve if a fraction was set, else the device's memory.
    allowed_bytes: int
    free_bytes: int


class OnOom:
    """Watches this process for out-of-memory errors. `path` is where the snapshot is written, `ooms` how many there were so far."""

    def __init__(self, path: str | os.PathLike[str] = PATH, limit: Size | None = "auto", clock: Callable[[], float] = time.monotonic) -> None:
        self.path = _snapshot.filled(path)
        self.ooms = 0
        self._limit, self._clock = limit, clock
        self._given = _snapshot.Limit.given(limit)
        _snapshot.check_writable(self.path)
        self._torch: Any = None
        self._process = os.getpid()
        self._last: _Shortage | None = None
        #: How many errors there were when the snapshot was last written, and when that was.
        self._written_at: int | None = None
        self._said_at: float | None = None
        self._writing = threading.Lock()

    def __repr__(self) -> str:
        return f"OnOom(path={self.path!r}, ooms={self.ooms})"

    def begin(self, torch: Any) -> None:
        """Begins to record when CUDA is first used, so that nothing is initialized that the program does not use."""
        self._torch = torch
        later = getattr(torch.cuda, "_lazy_call", None)
        if later is None:
            self._record()
        else:
            later(self._record)

    @property
    def is_own(self) -> bool:
        """Whether this is the process that is watched, and not one that it forked."""
        return self._process == os.getpid()

    @property
    def is_recording(self) -> bool:
        """Whether there is a history to write: this process has used CUDA."""
        return self._torch is not None and self.is_own and bool(self._torch.cuda.is_initialized())

    def write(self) -> None:
        """Writes the snapshot now."""
        found, last = self._torch.cuda, self._last
        snapshot = found.memory._snapshot()
        if self._limit != "auto":
            limit = self._given
        elif last is None:
            limit = _snapshot.found_limit(found, snapshot)
        else:
            limit = self._limit_at(last, snapshot)
        _snapshot.write(self.path, snapshot, limit)
        self._written_at = self.ooms

    def explain(self, error: BaseException) -> None:
        """Says why the program died, if it did so of a lack of memory, and what helps."""
        short = of_memory(error)
        if short is None or not self.is_own:
            return
        try:
            if self.is_recording and self._written_at != self.ooms:
                self.write()
        except Exception as problem:
            say(f"the snapshot {self.path} could not be written: {_words(problem)}")
        told = _of_message(short) if self._written_at is None else _of_snapshot(self.path, short)
        for line in told:
            say(line)

    def _record(self) -> None:
        try:
            if not _snapshot.has_history(self._torch):
                self._torch.cuda.memory._record_memory_history(stacks="python", max_entries=_snapshot.MAX_ENTRIES)
            self._torch._C._cuda_attach_out_of_memory_observer(self._seen)
        except Exception as error:
            # The program must run as it does without.
            say(f"nothing is recorded: {_words(error)}")

    def _seen(self, device: int, wanted: int, allowed: int, free: int) -> None:
        """PyTorch calls this at an out-of-memory error."""
        self.ooms += 1
        self._last = _Shortage(device, wanted, allowed, free)
        now = self._clock()
        if self._said_at is not None and now - self._said_at < _EVERY or not self._writing.acquire(blocking=False):
            return
        try:
            self._said_at = now
            said = f"out of memory on device {device}: tried to allocate {size(wanted)}; the process may reserve {size(allowed)}, and the device has {size(free)} free"
            try:
                self.write()
            except Exception as error:
                say(f"{said}; the snapshot {self.path} could not be written: {_words(error)}")
            else:
                say(f"{said}; the snapshot is {self.path}")
        finally:
            self._writing.release()

    def _limit_at(self, last: _Shortage, snapshot: Any) -> _snapshot.Limit:
        reserved = _snapshot.reserved_bytes(snapshot, last.device)
        total = self._torch.cuda.mem_get_info(last.device)[1]
        return _snapshot.smaller_limit(last.allowed_bytes if last.allowed_bytes < total else None, reserved + last.free_bytes)


def _words(error: BaseException) -> str:
    return f"{error}" if str(error) else type(error).__name__


class _TooLong(Exception):
    """What helps was looked for long enough."""


def _of_snapshot(path: str, error: BaseException) -> list[str]:
    """Why the program died, the line to set, what to check first, and the command that opens the page."""
    from ._commands import advise, diagnose

    page = os.path.splitext(path)[0] + ".html"
    open_it = f"page:  parkade report {shlex.quote(path)} -o {shlex.quote(page)}"
    begun = time.monotonic()

    def in_time(*_: object) -> None:
        if time.monotonic() - begun > _AT_MOST:
            raise _TooLong

    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    # The other processes of the job on this machine may ask too.
    processors = max(1, (os.cpu_count() or 1) // (int(here) if here.isdigit() and int(here) else 1))
    said: list[str] = []
    try:
        found = diagnose(path, progress=in_time)
        said += [f"cause: {device.headline}" for device in found.devices if device.moment == "out_of_memory"]
        # CUDA itself, or one of its libraries, was refused: PyTorch's history does not have it.
        said = said or [line for line in _of_message(error) if line.startswith("cause: ")]
        said += _helps(advise(path, progress=in_time, threads=processors))
    except (_TooLong, KeyboardInterrupt):
        said.append(f"set:   ask for it with: parkade advise {shlex.quote(path)}")
    except Exception as error:
        said.append(f"what helps is not known: {_words(error)}")
    return [*said, open_it]


def _helps(advice: Advice) -> list[str]:
    """The line to set, how likely it completes the run, what to check first, and another way."""
    ways = _ways(advice)
    if not ways:
        return [f"set:   {advice.line}" if advice.line else "set:   nothing that was tried helps"]
    first, *others = ways
    lines = [f"{_KINDS.get(first['kind'], 'do:   ')} {first['line']}"]
    gives = likely(first) or (first["asks"][0] if first["kind"] == "program" and first["asks"] else "")
    lines += [f"       {gives}"] if gives else []
    lines += [f"check: {check}"] if (check := _check(advice, first)) else []
    if others:
        probability = others[0]["completes_probability"]
        chance = "" if probability is None else f" (completes the run with a probability of {probability:.0%})"
        lines.append(f"or:    {others[0]['line']}{chance}")
    return lines


#: What is done with the line of a remedy.
_KINDS = {"settings": "set:  ", "policy": "add:  ", "program": "do:   "}


def _ways(advice: Advice) -> list[Mapping[str, Any]]:
    """The remedies. Where what is pasted probably does not complete the run, what the program must give up comes first: after a crash nothing is pasted blindly."""
    pasted = [remedy for remedy in advice.remedies if remedy["kind"] != "program"]
    reduced = [remedy for remedy in advice.remedies if remedy["kind"] == "program"]
    probability = pasted[0]["completes_probability"] if pasted else None
    return [*reduced, *pasted] if probability is not None and probability < _IMPROBABLE else [*pasted, *reduced]


def _check(advice: Advice, remedy: Mapping[str, Any]) -> str:
    """What to know before the remedy is relied on: what it asks for, then what it may break, what it does break first."""
    if remedy["kind"] == "program":
        return ""
    if remedy["asks"]:
        return "; ".join(remedy["asks"])
    chosen = advice.recommendation
    known = chosen.cautions if chosen is not None and chosen.line == remedy["line"] else []
    concerns = [caution for kind in ("shown", "unknown") for caution in known if caution["in_use"] == kind]
    if concerns:
        return str(concerns[0]["what"])
    return "that the line is set where each process starts; it is read once, when CUDA is first used"


def _of_message(error: BaseException) -> list[str]:
    """The same from the error's text, where there is no snapshot."""
    from ._commands import explain

    try:
        found = explain(error)
    except Error:
        return []
    return [f"cause: {found.headline}", *([f"set:   {found.to_try}"] if found.to_try else [])]


def when_torch_is_imported(then: Callable[[Any], None]) -> None:
    """Calls this with PyTorch: at once if the program has imported it, else when it does. Settings that a program makes before its import hold."""
    torch = sys.modules.get("torch")
    if torch is not None:
        then(torch)
    else:
        sys.meta_path.insert(0, _AfterTorch(then))


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds PyTorch as it would be found without, once, and calls a function after it has been loaded."""

    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None and hasattr(loader, "exec_module"):
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                # As it was, for whoever looks at it.
                del loader.exec_module
                load(module)
                self._then(module)

            loader.exec_module = exec_module
        return spec


_current: OnOom | None = None


def on_oom(path: str | os.PathLike[str] = PATH, limit: Size | None = "auto") -> OnOom:
    """From now on an out-of-memory error of PyTorch, a caught one too, writes the snapshot to `path` and says so in a line, at most once a
    minute; if the program dies of it, the cause and what helps follow the traceback. As `parkade run` does; call it before CUDA is used.

    In `path`, `{rank}` and `{host}` are the process's rank and the machine's name. `limit` is the memory that the process may reserve,
    which is kept in the snapshot; "auto" asks PyTorch. The history of the last 1,000,000 entries is recorded. A second call changes the
    path and the limit. Raises `NoCuda` without a GPU.
    """
    global _current
    cuda()
    import torch

    made = OnOom(path, limit)
    if _current is not None and _current._torch is torch:
        # PyTorch keeps the observer for the life of the process.
        _current.path, _current._limit, _current._given = made.path, made._limit, made._given
        return _current
    made.begin(torch)
    _current = made
    _explain_at_the_end(made)
    return made


def _explain_at_the_end(watcher: OnOom) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        watcher.explain(error)

    sys.excepthook = hook
