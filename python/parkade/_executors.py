"""Runs tasks on any `concurrent.futures` executor, yields results in the order of the tasks, and repeats tasks whose
workers died.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from ._errors import LostJobs

#: An executor, or a function that makes one, because a broken pool cannot be used again.
Executors = Executor | Callable[[], Executor] | None

#: The number of tasks that the executor has at a time.
_WINDOW = 1000
#: Seconds between two checks for signals such as Ctrl-C.
_LOOK_EVERY = 0.2

_stop = threading.local()


class Stopped(Exception):
    """The caller no longer waits for this work."""


def look(*_: object) -> None:
    """Work calls this as its progress function. It raises `Stopped` in a thread that nobody waits for any more."""
    event = getattr(_stop, "event", None)
    if event is not None and event.is_set():
        raise Stopped


@contextlib.contextmanager
def _own_threads() -> Iterator[Executor]:
    """Yields a pool with one thread per processor. parkade's work releases the interpreter's lock."""
    event = threading.Event()

    def begin() -> None:
        _stop.event = event

    pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="parkade", initializer=begin)
    try:
        yield pool
    finally:
        event.set()
        pool.shutdown(wait=True, cancel_futures=True)


def in_order(work: Callable[[Any], Any], tasks: Sequence[Any], executor: Executors, retries: int) -> Iterator[Any]:
    """Yields the result of `work` for each task, in the order of the tasks.

    `work` and the tasks must be picklable if the executor has other processes. A task whose worker died is repeated.
    Raises `LostJobs` if a task was lost more than `retries` times, or if more than `retries` pools broke in a row
    without finishing a task.
    """
    if executor is None:
        with _own_threads() as pool:
            yield from _Run(work, tasks, pool, None, retries).results()
    elif hasattr(executor, "submit"):
        yield from _Run(work, tasks, executor, None, retries).results()  # type: ignore[arg-type]
    elif callable(executor):
        yield from _Run(work, tasks, executor(), executor, retries).results()
    else:
        raise TypeError(
            "executor must be a concurrent.futures executor, or a function that makes one, not "
            f"{executor!r} ({type(executor).__name__})"
        )


class _Run:
    def __init__(
        self,
        work: Callable[[Any], Any],
        tasks: Sequence[Any],
        pool: Executor,
        make: Callable[[], Executor] | None,
        retries: int,
    ) -> None:
        self.work, self.tasks, self.pool, self.make, self.retries = work, tasks, pool, make, retries
        self.is_own = make is not None
        self.todo: deque[int] = deque(range(len(tasks)))
        self.flying: dict[Future[Any], int] = {}
        self.done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self.lost: dict[int, int] = {}
        self.breaks = 0

    def results(self) -> Iterator[Any]:
        waiting: dict[int, Any] = {}
        following = 0
        try:
            while following < len(self.tasks):
                self._submit()
                number, result = self._next()
                if number is not None:
                    waiting[number] = result
                while following in waiting:
                    yield waiting.pop(following)
                    following += 1
        finally:
            for future in list(self.flying):
                future.cancel()
            if self.is_own:
                self.pool.shutdown(wait=False)

    def _submit(self) -> None:
        while self.todo and len(self.flying) < _WINDOW:
            number = self.todo.popleft()
            try:
                future = self.pool.submit(self.work, self.tasks[number])
            except BrokenExecutor as error:
                self.todo.appendleft(number)
                self._renew(error)
                continue
            self.flying[future] = number
            future.add_done_callback(self.done.put)

    def _next(self) -> tuple[int | None, Any]:
        """Returns the next finished task and its result, or None if a task was lost or nothing finished for a while."""
        try:
            future = self.done.get(timeout=_LOOK_EVERY)
        except queue.Empty:
            return None, None
        if future not in self.flying:
            return None, None
        number = self.flying.pop(future)
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            self.breaks = 0
            return number, future.result()
        if not _is_loss(error):
            raise error
        self.todo.append(number)
        if isinstance(error, BrokenExecutor):
            self._renew(error)
        else:
            self._count(number, error)
        return None, None

    def _count(self, number: int, error: BaseException) -> None:
        self.lost[number] = self.lost.get(number, 0) + 1
        if self.lost[number] > self.retries:
            raise LostJobs(
                f"task {number + 1} of {len(self.tasks)} was lost {self.lost[number]} times, with its worker each "
                f"time: {error}. A worker that is killed usually had too little memory"
            ) from error

    def _renew(self, error: BrokenExecutor) -> None:
        """Replaces a broken pool, and queues its tasks again."""
        self.breaks += 1
        if self.breaks > self.retries:
            raise LostJobs(
                f"{self.breaks} pools broke in a row without finishing a task: {error}. "
                "A process that is killed usually had too little memory; use fewer workers"
            ) from error
        self.todo = deque(sorted({*self.todo, *self.flying.values()}))
        self.flying.clear()
        warnings.warn(
            f"a process of the pool died; {len(self.todo)} tasks continue in a new pool", RuntimeWarning, stacklevel=2
        )
        broken, self.pool = self.pool, self._another(error)
        if self.is_own:
            broken.shutdown(wait=False)
        self.is_own = True

    def _another(self, error: BrokenExecutor) -> Executor:
        if self.make is not None:
            return self.make()
        if isinstance(self.pool, ProcessPoolExecutor):
            # Like the broken one, if its attributes still have these names.
            workers, context = getattr(self.pool, "_max_workers", None), getattr(self.pool, "_mp_context", None)
            return ProcessPoolExecutor(workers, mp_context=context)
        raise LostJobs(
            f"the executor broke: {error}. Pass a function that makes an executor, so that the remaining tasks "
            "can continue in a new one"
        ) from error


def _is_loss(error: BaseException) -> bool:
    """Whether a task failed because its worker died."""
    if isinstance(error, (BrokenExecutor, CancelledError)):
        return True
    # Dask abandons a task after several workers died with it. Compared by name, so that Dask need not be imported.
    return type(error).__name__ == "KilledWorker" and type(error).__module__.startswith("distributed")
