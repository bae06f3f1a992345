"""Replays and explains GPU memory: what PyTorch's caching allocator did, and what it would have done under other
settings.

`enable`, `record`, `on_oom` and `watch` need PyTorch and a GPU, and `info` needs a GPU. Everything else needs neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._callbacks import lightning_callback, trainer_callback
    from ._commands import advise, diagnose, diff, explain, export, info, replay, report, stats, verify
    from ._enable import enable, enabled, policies
    from ._errors import EnableError, Error, LostJobs, NoCuda, UsageError
    from ._many import Diagnoses, diagnose_many
    from ._oom import OnOom, on_oom
    from ._parkade import VERSION as __version__
    from ._record import record
    from ._results import (
        Advice,
        Catalogue,
        Diagnosis,
        Difference,
        Export,
        Info,
        LargestBatches,
        Lifetimes,
        MessageDiagnosis,
        Replay,
        Report,
        SimulatedExport,
        SimulatedReport,
        SimulatedStats,
        Stats,
        Verification,
    )
    from ._sweep import Series, Sweep, catalogue, largest_batch, sweep
    from ._watch import Watch, watch

#: The module of each public name. A module is imported when one of its names is first used, so `import parkade` is
#: fast.
_MODULES = {
    "_callbacks": ["lightning_callback", "trainer_callback"],
    "_commands": ["advise", "diagnose", "diff", "explain", "export", "info", "replay", "report", "stats", "verify"],
    "_enable": ["enable", "enabled", "policies"],
    "_errors": ["EnableError", "Error", "LostJobs", "NoCuda", "UsageError"],
    "_many": ["Diagnoses", "diagnose_many"],
    "_oom": ["OnOom", "on_oom"],
    "_parkade": ["__version__"],
    "_record": ["record"],
    "_results": [
        "Advice",
        "Catalogue",
        "Diagnosis",
        "Difference",
        "Export",
        "Info",
        "LargestBatches",
        "Lifetimes",
        "MessageDiagnosis",
        "Replay",
        "Report",
        "SimulatedExport",
        "SimulatedReport",
        "SimulatedStats",
        "Stats",
        "Verification",
    ],
    "_sweep": ["Series", "Sweep", "catalogue", "largest_batch", "sweep"],
    "_watch": ["Watch", "watch"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Advice",
    "Catalogue",
    "Diagnoses",
    "Diagnosis",
    "Difference",
    "EnableError",
    "Error",
    "Export",
    "Info",
    "LargestBatches",
    "Lifetimes",
    "LostJobs",
    "MessageDiagnosis",
    "NoCuda",
    "OnOom",
    "Replay",
    "Report",
    "Series",
    "SimulatedExport",
    "SimulatedReport",
    "SimulatedStats",
    "Stats",
    "Sweep",
    "UsageError",
    "Verification",
    "Watch",
    "__version__",
    "advise",
    "catalogue",
    "diagnose",
    "diagnose_many",
    "diff",
    "enable",
    "enabled",
    "explain",
    "export",
    "info",
    "largest_batch",
    "lightning_callback",
    "on_oom",
    "policies",
    "record",
    "replay",
    "report",
    "stats",
    "sweep",
    "trainer_callback",
    "verify",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), "VERSION" if name == "__version__" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
