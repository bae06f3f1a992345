"""Writes a snapshot when the running program runs out of memory, and explains what helps.

PyTorch calls an observer before it raises an out-of-memory error, so errors that the program catches count too.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from . import _snapshot
from ._errors import Error, of_memory
from ._html import size
from ._run import Size
from ._torch import cuda

#: A program that catches errors and continues gets a line and a snapshot at most once in this many seconds.
_EVERY = 60.0
#: The search for what helps may take this many seconds: the other processes of the job wait, and the GPU is held.
_AT_MOST = 60.0
#: The default path of the snapshot.
PATH = "oom-{host}-{rank}.pickle"


def say(text: str) -> None:
    """Prints a line on standard error, unless standard error is closed."""
    with contextlib.suppress(OSError, ValueError):
        print(f"parkade: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class _Shortage:
    """The data that PyTorch reports to the observer about an out-of-memory error."""

    device: int
    wanted_bytes: int
    #: The memory that the process may reserve if a fraction was set; if not, the device's memory.
    allowed_bytes: int
    free_bytes: int


class OnOom:
    """Watches this process for out-of-memory errors. `path` is the path of the snapshot, and `ooms` the number of
    errors so far.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = PATH,
        limit: Size | None = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = _snapshot.filled(path)
        self.ooms = 0
        self._limit, self._clock = limit, clock
        self._given = _snapshot.Limit.given(limit)
        _snapshot.check_writable(self.path)
        self._torch: Any = None
        self._process = os.getpid()
        self._last: _Shortage | None = None
        #: The number of errors when the snapshot was last written, and the time of the last line.
        self._written_at: int | None = None
        self._said_at: float | None = None
        self._writing = threading.Lock()

    def __repr__(self) -> str:
        return f"OnOom(path={self.path!r}, ooms={self.ooms})"

    def begin(self, torch: Any) -> None:
        """Records from the first use of CUDA onwards. Does not initialize CUDA for a program that does not use it."""
        self._torch = torch
        later = getattr(torch.cuda, "_lazy_call", None)
        if later is None:
            self._record()
        else:
            later(self._record)

    @property
    def is_own(self) -> bool:
        """Whether this is the watched process, and not a child that it forked."""
        return self._process == os.getpid()

    @property
    def is_recording(self) -> bool:
        """Whether this process has used CUDA, so that there is a history to write."""
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
        """Prints why the program died and what helps, if it ran out of memory."""
        short = of_memory(error)
        if short is None or not self.is_own:
            return
        try:
            if self.is_recording and self._written_at != self.ooms:
                self.write()
        except Exception as problem:
            say(f"the snapshot {self.path} could not be written: {_words(problem)}")
        told = _of_message(short) if self._written_at is None else _of_snapshot(self.path, short)
        if told:
            say("\n".join(["why the program died, and what helps", *told]))

    def _record(self) -> None:
        try:
            if not _snapshot.has_history(self._torch):
                self._torch.cuda.memory._record_memory_history(stacks="python", max_entries=_snapshot.MAX_ENTRIES)
            self._torch._C._cuda_attach_out_of_memory_observer(self._seen)
        except Exception as error:
            # The program must run as it does without parkade.
            say(f"nothing is recorded: {_words(error)}")

    def _seen(self, device: int, wanted: int, allowed: int, free: int) -> None:
        """PyTorch calls this before it raises an out-of-memory error."""
        self.ooms += 1
        self._last = _Shortage(device, wanted, allowed, free)
        now = self._clock()
        if (self._said_at is not None and now - self._said_at < _EVERY) or not self._writing.acquire(blocking=False):
            return
        try:
            self._said_at = now
            said = (
                f"out of memory on device {device}: tried to allocate {size(wanted)}; "
                f"the process may reserve {size(allowed)}, and the device has {size(free)} free"
            )
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
        return _snapshot.smaller_limit(
            last.allowed_bytes if last.allowed_bytes < total else None, reserved + last.free_bytes
        )


def _words(error: BaseException) -> str:
    return f"{error}" if str(error) else type(error).__name__


class _TooLong(Exception):
    """The search for what helps has used up its time."""


def _of_snapshot(path: str, error: BaseException) -> list[str]:
    """Returns lines: why the program died, what `advise` answers, and the commands that show everything and make the
    page.
    """
    from ._inputs import File
    from ._run import run

    page = os.path.splitext(path)[0] + ".html"
    more = [
        f"all    parkade advise {shlex.quote(path)} --all",
        f"page   parkade report {shlex.quote(path)} -o {shlex.quote(page)}",
    ]
    begun = time.monotonic()

    def in_time(*_: object) -> None:
        if time.monotonic() - begun > _AT_MOST:
            raise _TooLong

    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    # The other processes of the job on this machine may search at the same time.
    processors = max(1, (os.cpu_count() or 1) // (int(here) if here.isdigit() and int(here) else 1))
    said: list[str] = []
    try:
        # Options stay as they are, for the commands below the answer.
        answer = run(["advise", "--json"], [File(path, path)], progress=in_time, threads=processors)
        # CUDA or one of its libraries ran out of memory, which PyTorch's history does not have.
        said += [] if answer.object().get("cause") else _of_message(error)
        said += answer.text.splitlines()
    except (_TooLong, KeyboardInterrupt):
        said.append(f"the search for a remedy took too long; to repeat it, run: parkade advise {shlex.quote(path)}")
    except Exception as error:
        said.append(f"parkade could not determine what helps: {_words(error)}")
    return [*said, *more]


def _of_message(error: BaseException) -> list[str]:
    """Returns the lines that follow from the error's text alone, without a snapshot."""
    from ._commands import explain

    try:
        found = explain(error)
    except Error:
        return []
    return [f"cause: {found.headline}", *([f"try: {found.to_try}"] if found.to_try else [])]


def when_torch_is_imported(then: Callable[[Any], None]) -> None:
    """Calls `then` with PyTorch: immediately if the program has already imported it, or as soon as it does.

    Settings that the program makes before its import take effect.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        then(torch)
    else:
        sys.meta_path.insert(0, _AfterTorch(then))


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Lets the other finders find PyTorch, once, and calls a function after PyTorch has been loaded."""

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
                # Restores the loader, because programs may look at it.
                del loader.exec_module
                load(module)
                self._then(module)

            loader.exec_module = exec_module
        return spec


_current: OnOom | None = None


def on_oom(path: str | os.PathLike[str] = PATH, limit: Size | None = "auto") -> OnOom:
    """Writes a snapshot to `path` at every out-of-memory error in PyTorch from now on, including errors that the
    program catches, but at most once a minute, and prints a line about it. If the error ends the program, the cause and
    what helps follow the traceback.

    `parkade run` does the same. Call it before CUDA is used. In `path`, `{rank}` is replaced with the process's rank
    and `{host}` with the machine's name. `limit` is the memory that the process may reserve; the snapshot keeps it, and
    "auto" asks PyTorch. PyTorch records the last 1,000,000 entries of its history. A second call changes the path and
    the limit. Raises `NoCuda` without a GPU.
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
