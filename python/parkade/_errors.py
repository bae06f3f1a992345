"""The exceptions of the package."""

from __future__ import annotations


class Error(Exception):
    """Something could not be done: a file is no recording, a recording has no trace, a setting is not valid. The text says why."""


class UsageError(Error, ValueError):
    """An argument is wrong: a size that is none, a release that is not known."""


class NoCuda(Error, RuntimeError):
    """PyTorch is not installed, or sees no GPU, and what was asked for needs both."""


class LostJobs(Error, RuntimeError):
    """The workers of an executor died again and again, and jobs were lost with them."""
