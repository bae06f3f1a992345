"""Work for any `concurrent.futures` executor: results in the order of the tasks, and tasks that died with their workers done again."""

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

#: An executor, or a function that makes one: a pool that broke cannot be used again.
Executors = Executor | Callable[[], Executor] | None

#: So many tasks are handed over at once; the others follow as these are done.
_WINDOW = 1000
#: How often signals are looked for, in seconds.
_LOOK_EVERY = 0.2

_stop = threading.local()


class Stopped(Exception):
    """The caller does not wait for this work any more."""


def look(*_: object) -> None:
    """Ends work in a thread of this process that nobody waits for. It is what such work calls to report its progress."""
    event = getattr(_stop, "event", None)
    if event is not None and event.is_set():
        raise Stopped


@contextlib.contextmanager
def _own_threads() -> Iterator[Executor]:
    """As many threads as processors: parkade's work leaves the interpreter free."""
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
    """The results of `work` on each task, in the order of the tasks.

    `work` and the tasks go to other processes, so they must be picklable. A task whose worker died is done again. Raises `LostJobs` where
    one was lost more than `retries` times, or so many pools broke in a row without finishing anything.
    """
    if executor is None:
        with _own_threads() as pool:
            yield from _Run(work, tasks, pool, None, retries).results()
    elif isinstance(executor, Executor) or not callable(executor):
        yield from _Run(work, tasks, executor, None, retries).results()
    else:
        yield from _Run(work, tasks, executor(), executor, retries).results()


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
        """The next task that is done, and its result; None where one was lost, or nothing has happened for a while."""
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
                f"task {number + 1} of {len(self.tasks)} was lost {self.lost[number]} times with the workers that did it: {error}. "
                "A worker that is killed usually had too little memory"
            ) from error

    def _renew(self, error: BrokenExecutor) -> None:
        """Another pool in place of one that broke, which fails all of its tasks at once."""
        self.breaks += 1
        if self.breaks > self.retries:
            raise LostJobs(
                f"{self.breaks} pools broke in a row without finishing a task: {error}. "
                "A process that is killed usually had too little memory; use fewer workers"
            ) from error
        self.todo = deque(sorted({*self.todo, *self.flying.values()}))
        self.flying.clear()
        warnings.warn(
            f"a process of the pool died; {len(self.todo)} tasks go on in a new pool", RuntimeWarning, stacklevel=2
        )
        broken, self.pool = self.pool, self._another(error)
        if self.is_own:
            broken.shutdown(wait=False)
        self.is_own = True

    def _another(self, error: BrokenExecutor) -> Executor:
        if self.make is not None:
            return self.make()
        if isinstance(self.pool, ProcessPoolExecutor):
            # As the broken one, where that can be seen.
            workers, context = getattr(self.pool, "_max_workers", None), getattr(self.pool, "_mp_context", None)
            return ProcessPoolExecutor(workers, mp_context=context)
        raise LostJobs(
            f"the executor broke: {error}. Give a function that makes one, so that the rest can go on in another"
        ) from error


def _is_loss(error: BaseException) -> bool:
    """Whether a task failed because its worker died, and not by itself."""
    if isinstance(error, (BrokenExecutor, CancelledError)):
        return True
    # Dask gives a task up after several workers died with it. It is not imported for this.
    return type(error).__name__ == "KilledWorker" and type(error).__module__.startswith("distributed")
