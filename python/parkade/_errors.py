"""The exceptions of the package."""

from __future__ import annotations

from collections.abc import Iterator


class Error(Exception):
    """Something could not be done: a file is no recording, a recording has no trace, a setting is not valid. The text says why."""


class UsageError(Error, ValueError):
    """An argument is wrong: a size that is none, a release that is not known."""


class NoCuda(Error, RuntimeError):
    """PyTorch is not installed, or sees no GPU, and what was asked for needs both."""


class LostJobs(Error, RuntimeError):
    """The workers of an executor died again and again, and jobs were lost with them."""


class EnableError(Error, RuntimeError):
    """PyTorch cannot be put on parkade in this process; the text says why and what to do."""


for _error in (Error, UsageError, NoCuda, LostJobs, EnableError):
    # As they are called in programs, and so in what a program prints of one.
    _error.__module__ = "parkade"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def of_memory(error: BaseException | None) -> BaseException | None:
    """The out-of-memory error that this is, or comes from: of PyTorch, or of CUDA and its libraries. Not Python's MemoryError."""
    return next((one for one in chain(error) if "out of memory" in str(one).lower()), None)
