"""The exceptions of the package."""

from __future__ import annotations

from collections.abc import Iterator


class Error(Exception):
    """A call failed: a file is not a recording, a recording has no trace, a setting is not valid. The text says why."""


class UsageError(Error, ValueError):
    """An argument is wrong, such as a size that cannot be read or an unknown release."""


class NoCuda(Error, RuntimeError):
    """The call needs PyTorch and a GPU, and PyTorch is not installed or sees no GPU."""


class LostJobs(Error, RuntimeError):
    """The workers of an executor died repeatedly, and jobs were lost with them."""


class EnableError(Error, RuntimeError):
    """PyTorch cannot run on parkade in this process. The text states the reason, and what to do."""


for _error in (Error, UsageError, NoCuda, LostJobs, EnableError):
    # Tracebacks show the public name.
    _error.__module__ = "parkade"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and the errors that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def of_memory(error: BaseException | None) -> BaseException | None:
    """Returns the out-of-memory error of PyTorch, CUDA or its libraries that this error is or comes from. Python's
    MemoryError is not one.
    """
    return next((one for one in chain(error) if "out of memory" in str(one).lower()), None)
