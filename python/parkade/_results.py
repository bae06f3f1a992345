"""The results of commands: dataclasses with the keys of docs/json.md.

Their fields are in `_fields.py`, which is generated from the declarations of each command's JSON. Inner objects stay as
they are in the JSON: lists and dictionaries with the types in `_objects.py`. `str()` is what the command prints,
`repr()` is one line, and notebooks show the same answer as HTML.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from . import _fields, _html
from ._errors import Error

if TYPE_CHECKING:
    from ._run import Answer

Object = dict[str, Any]
_T = TypeVar("_T")

#: The outcomes in words.
_OUTCOMES = {"fits": "fits", "gets_past": "gets past", "does_not_fit": "does not fit", "unknown": "may fit"}
#: The variable that has the settings of PyTorch's allocator.
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


class _Record:
    """Has a one-line `repr`: the type and the most important fields."""

    #: The fields that `repr` shows.
    _shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        named = (f"{name}={getattr(self, name)!r}" for name in self._shown)
        return f"{type(self).__name__}({', '.join(named)})"


def _hash(self: Any) -> int:
    """Hashes only the fields that are strings and numbers, because lists and dictionaries have no hash. Equal results
    have equal hashes."""
    values = (getattr(self, of.name) for of in dataclasses.fields(self))
    return hash((type(self), *(value for value in values if value is None or isinstance(value, (str, int, float)))))


@dataclass(frozen=True, repr=False)
class Result(_Record):
    """The fields and methods of every result."""

    #: The command's exit code: 0 success, 1 a check failed, 3 the answer is not known from this file.
    exit_code: int = field(default=0)
    #: The command's entire JSON object.
    data: Object = field(default_factory=dict)
    #: What the command prints.
    text: str = field(default="")
    #: The same for notebooks.
    html: str = field(default="")

    def __str__(self) -> str:
        return self.text or repr(self)

    def _repr_html_(self) -> str:
        return self.html or f"<pre>{escape(str(self))}</pre>"


class _OfRecordedRun(Result):
    """A result about a recorded run. With a policy, the function returns a result about a simulation instead."""

    #: A simulation has the name of its policy here.
    policy: ClassVar[None] = None


@dataclass(frozen=True, repr=False)
class _Drawn(Result):
    """A result with a picture."""

    #: The picture of memory over time.
    svg: str = field(default="")
    #: The page that was written.
    output: str | None = None

    def _repr_html_(self) -> str:
        report: Any = self
        return _html.report(report)


class _Sampled(Result):
    """A result with states of the allocator."""

    @property
    def memory_stats(self) -> dict[str, int]:
        """`torch.cuda.memory_stats()` of the first device at the last requested entry; empty without a trace."""
        stats: Any = self
        moments = stats.devices[0]["moments"] if stats.devices else []
        return dict(moments[-1]["memory_stats"]) if moments else {}


@dataclass(frozen=True, repr=False)
class Verification(_fields.VerificationFields, Result):
    """The result of `verify`."""

    _shown = ("file", "mismatches", "decisions", "ooms", "exit_code")
    __hash__ = _hash

    @property
    def exact(self) -> bool:
        """Whether the replay makes every recorded decision."""
        return self.mismatches == 0


@dataclass(frozen=True, repr=False)
class Recommendation(_fields.RecommendationFields, _Record):
    """The settings that `advise` recommends."""

    _shown = ("settings", "close")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class Option(_fields.OptionFields, _Record):
    """Settings that `advise` tried."""

    _shown = ("settings", "fits", "peak_reserved_bytes")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class Advice(_fields.AdviceFields, Result):
    """The result of `advise`. If the file has no trace, only what was held when it was written: `data["held"]`."""

    __hash__ = _hash

    def __repr__(self) -> str:
        cause = (self.verdict or self.outcome).replace("_", " ")
        return f"Advice({os.path.basename(self.file)!r}: {', '.join([cause, *self._what_helps()])})"

    def _what_helps(self) -> list[str]:
        """Returns what to try first and its outcome, and how many similar runs it completed."""
        if self.verdict == "fits" or self.line is None:
            return ["no settings help"] if self.outcome == "does_not_fit" else []
        first = next((remedy for remedy in self.remedies if remedy["line"] == self.line), None)
        outcome = self.outcome if first is None else first["outcome"]
        helps = [f"{self.line.removeprefix(f'export {VARIABLE}=')} {_OUTCOMES[outcome]}"]
        if first is not None and (base := first["completes_base"]):
            helps.append(f"{base['completed']} of {base['runs']} similar runs completed")
        return helps

    @property
    def line(self) -> str | None:
        """The line to try first: for a shell, or for the program if the line enables one of parkade's policies.

        None if nothing helps except using less memory.
        """
        pasted = (remedy["line"] for remedy in self.remedies if remedy["kind"] != "program")
        return next(pasted, self.recommendation.line if self.recommendation is not None else None)

    def as_env(self) -> dict[str, str]:
        """The environment variables for the best settings, as in `subprocess.run(..., env={**os.environ, **env})`.

        Empty if no settings help.
        """
        settings = self._best_settings()
        return {} if settings is None else {VARIABLE: settings}

    def apply(self) -> None:
        """Sets the best settings in this process and in those that it starts. Call it before CUDA is used.

        Raises `Error` if no settings help, or if CUDA has already been used.
        """
        settings = self._best_settings()
        if settings is None:
            reason = self.verdict or self.outcome
            raise Error(f"no settings help this program ({reason}), so none were applied; print the advice to see why")
        if self.line is not None and self.line.startswith("parkade.enable("):
            warnings.warn(f"{self.line} is likelier to complete the run than these settings", stacklevel=2)
        torch = sys.modules.get("torch")
        if torch is not None:
            if torch.cuda.is_initialized():
                raise Error(
                    "CUDA was used before, and PyTorch reads settings at its first use: call apply() before that, or "
                    "set them when the program starts"
                )
            torch.cuda.memory._set_allocator_settings(settings)
        os.environ[VARIABLE] = settings

    def _best_settings(self) -> str | None:
        if self.recommendation is not None:
            return self.recommendation.settings
        if self.enough and any(remedy["kind"] == "settings" for remedy in self.remedies):
            return self.enough["settings"]
        return None


@dataclass(frozen=True, repr=False)
class DeviceDiagnosis(_fields.DeviceDiagnosisFields, _Record):
    """The result of `diagnose` for one device."""

    _shown = ("device", "verdict", "headline")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class Diagnosis(_fields.DiagnosisFields, Result):
    """The result of `diagnose`."""

    _shown = ("file", "verdicts")
    __hash__ = _hash

    @property
    def verdicts(self) -> list[str]:
        """The verdict on each device."""
        return [device.verdict for device in self.devices]


@dataclass(frozen=True, repr=False)
class Report(_fields.ReportFields, _Drawn, _OfRecordedRun):
    """The result of `report`."""

    _shown = ("file", "output")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class SimulatedReport(_fields.SimulatedReportFields, _Drawn):
    """The result of `report` with a policy."""

    _shown = ("file", "policy", "output")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class Difference(_fields.DifferenceFields, Result):
    """The result of `diff`."""

    __hash__ = _hash

    def __repr__(self) -> str:
        b = "" if self.b is None else f"b={self.b['file']!r}, "
        return f"Difference(a={self.a.get('file')!r}, {b}exceeded={self.exceeded!r}, exit_code={self.exit_code!r})"


@dataclass(frozen=True, repr=False)
class Stats(_fields.StatsFields, _Sampled, _OfRecordedRun):
    """The result of `stats`."""

    _shown = ("file", "settings", "mismatches")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class SimulatedStats(_fields.SimulatedStatsFields, _Sampled):
    """The result of `stats` with a policy."""

    _shown = ("file", "policy", "fits", "peak_reserved_bytes")
    __hash__ = _hash

    @property
    def fits(self) -> bool:
        """Whether every request on every device was served."""
        return all(run["fits"] for run in self.runs)

    @property
    def peak_reserved_bytes(self) -> int:
        """The peak of reserved memory; with several devices, the highest."""
        return max((run["peak_reserved_bytes"] for run in self.runs), default=0)


@dataclass(frozen=True, repr=False)
class Lifetimes(_fields.LifetimesFields, Result):
    """The result of `stats` with `lifetimes=True`."""

    _shown = ("file", "program")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class MessageDiagnosis(_fields.MessageDiagnosisFields, Result):
    """The result of `diagnose` for the text of an out-of-memory error."""

    _shown = ("verdict", "headline")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class Replay(_fields.ReplayFields, Result):
    """The result of `replay`. The keys depend on whether settings or a policy was replayed, and on whether there are
    several devices: `data` has all of them."""

    _shown = ("file", "settings", "policy", "outcome", "peak_reserved_bytes")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class Export(_fields.ExportFields, _OfRecordedRun):
    """The result of `export`: the file that was written."""

    _shown = ("file", "output", "settings")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class SimulatedExport(_fields.SimulatedExportFields, Result):
    """The result of `export` with a policy, or of the requests of a workload."""

    _shown = ("file", "output", "policy")
    __hash__ = _hash


@dataclass(frozen=True, repr=False)
class LargestBatches(_fields.LargestBatchesFields, Result):
    """The result of `largest_batch`."""

    __hash__ = _hash

    def __repr__(self) -> str:
        return f"LargestBatches(points={len(self.points)}, most_batch={self.most_batch})"


@dataclass(frozen=True, repr=False)
class Catalogue(_fields.CatalogueFields, Result):
    """The names that `sweep` accepts."""

    __hash__ = _hash

    def __repr__(self) -> str:
        return f"Catalogue(workloads={len(self.workloads)}, policies={len(self.policies)})"


@dataclass(frozen=True, repr=False)
class Info(_fields.InfoFields, Result):
    """The GPUs of this machine, with their memory and the processes that hold it."""

    __hash__ = _hash

    def __repr__(self) -> str:
        return f"Info(source={self.source!r}, driver={self.driver!r}, devices={len(self.devices)})"


def is_of_log(found: Object) -> bool:
    """Whether the object is what `diagnose` finds in a log, and not in a recording."""
    return "devices" not in found


def log_refusal(path: str) -> str:
    """Returns why a log is not diagnosed as a recording."""
    return f"{path} is a log: parkade.diagnose(message={path!r}) explains the out-of-memory messages in it"


def made(kind: type[_T], data: Object, answer: Answer, **more: Any) -> _T:
    """Returns the result of this type for a command's JSON object, with `more` fields. Its texts name arguments; `data`
    stays as it is.
    """
    words = answer.words
    own = {"exit_code": answer.exit_code, "data": data, "text": words(answer.text), "html": words(answer.html)}
    return _of(kind, {**answer.in_arguments(data), **own, **more})


def _of(kind: type[_T], data: Object) -> _T:
    # Keys may be added to JSON at any time.
    values = {}
    for of in dataclasses.fields(kind):  # type: ignore[arg-type]
        if of.name in data:
            values[of.name] = _value(of.metadata.get("of"), data[of.name])
    return kind(**values)


#: The nested objects of results that have their own class.
_PARTS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Recommendation, Option, DeviceDiagnosis)}
# `typing.get_type_hints` looks for them in the module of the fields, which cannot import this one.
vars(_fields).update(_PARTS)


def _value(part: str | None, value: Any) -> Any:
    if part is None or value is None:
        return value
    kind = _PARTS[part]
    return [_of(kind, item) for item in value] if isinstance(value, list) else _of(kind, value)
