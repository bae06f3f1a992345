"""GPU memory, replayed and explained: what PyTorch's caching allocator did, and what it would have done under other settings.

Everything but `enable`, `record` and `watch` works without a GPU and without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._commands import advise, diagnose, diff, report, stats, verify
from ._errors import Error, LostJobs, NoCuda, UsageError
from ._many import Diagnoses, diagnose_many
from ._parkade import VERSION as __version__
from ._record import record
from ._results import Advice, Diagnosis, Difference, Report, Stats, Verification
from ._sweep import Sweep, sweep
from ._watch import Watch, watch

if TYPE_CHECKING:
    from ._enable import EnableError, enable, enabled, policies

for _public in (Error, LostJobs, NoCuda, UsageError):
    # As they are called in programs, and so in what a program prints of one.
    _public.__module__ = __name__

__all__ = [
    "Advice",
    "Diagnoses",
    "Diagnosis",
    "Difference",
    "EnableError",
    "Error",
    "LostJobs",
    "NoCuda",
    "Report",
    "Stats",
    "Sweep",
    "UsageError",
    "Verification",
    "Watch",
    "__version__",
    "advise",
    "diagnose",
    "diagnose_many",
    "diff",
    "enable",
    "enabled",
    "policies",
    "record",
    "report",
    "stats",
    "sweep",
    "verify",
    "watch",
]


def __getattr__(name: str) -> Any:
    # What needs PyTorch and a compiler is not loaded with the rest.
    if name in ("EnableError", "enable", "enabled", "policies"):
        from . import _enable

        return getattr(_enable, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
