"""The results of commands: dataclasses with the keys of docs/json.md, and HTML for notebooks.

Fields have the names of the keys. What is deep inside is left as JSON has it: lists and dictionaries.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from . import _html

if TYPE_CHECKING:
    from ._run import Answer

Object = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Result:
    """What every result has."""

    #: How the command would end: 0 success, 1 a check failed, 3 the answer is not known from this file.
    exit_code: int = field(default=0)
    #: The whole JSON object of the command.
    data: Object = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Verification(Result):
    """What `verify` found."""

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict, repr=False)
    settings: str = ""
    settings_refusal: Optional[str] = None
    settings_origin: str = ""
    profile: str = ""
    profile_seen_from: Optional[str] = None
    limit_bytes: Optional[int] = None
    assumed_limit_bytes: Optional[int] = None
    fraction_of_unknown_memory: Optional[float] = None
    entries: int = 0
    #: Decisions compared, and those that differ.
    decisions: int = 0
    mismatches: int = 0
    first_mismatch: Optional[Object] = None
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    ooms: int = 0
    retries: int = 0
    not_in_file: Object = field(default_factory=dict, repr=False)
    tolerated: Object = field(default_factory=dict, repr=False)
    #: Devices whose trace leaves out kinds of entries (`skip_actions`).
    left_out: list[Object] = field(default_factory=list, repr=False)
    devices: list[Object] = field(default_factory=list, repr=False)
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether every recorded decision is the replay's."""
        return self.mismatches == 0

    def _repr_html_(self) -> str:
        return _html.verification(self)


@dataclass(frozen=True)
class Recommendation:
    """The settings that `advise` recommends."""

    settings: str = ""
    #: The line for a shell.
    line: str = ""
    why: str = ""
    costs: str = ""
    also: Optional[str] = None
    close: bool = False
    cautions: list[Object] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Option:
    """Settings that `advise` tried."""

    settings: str = ""
    own: bool = False
    given: bool = False
    fits: bool = False
    gets_past: bool = False
    fails_at_entry: Optional[int] = None
    ooms: int = 0
    may_survive: bool = False
    close: bool = False
    peak_reserved_bytes: int = 0
    headroom_bytes: Optional[int] = None
    smallest_capacity_bytes: int = 0
    retries: int = 0
    driver_calls: int = 0
    driver_us: int = 0
    needs_limit: bool = False
    likely: Optional[Object] = None
    timings: Optional[Object] = None
    cautions: list[Object] = field(default_factory=list, repr=False)
    devices: list[Object] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Advice(Result):
    """What `advise` found. Without a trace in the file, only what was held when it was written: `data["held"]`."""

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict, repr=False)
    #: With the recommended settings: `fits`, `gets_past`, `does_not_fit` or `unknown`.
    outcome: str = ""
    #: How the run's own settings fare: `fits`, `fragmentation`, `streams`, `private_pools`, `capacity` or `undecided`.
    verdict: Optional[str] = None
    close: bool = False
    recommendation: Optional[Recommendation] = field(default=None, metadata={"of": Recommendation})
    own_settings: str = ""
    own_settings_origin: str = ""
    profile: str = ""
    capacity_bytes: Optional[int] = None
    limit_bytes: Optional[int] = None
    recorded_limit_bytes: Optional[int] = None
    hides_more: bool = False
    capacity_hint: Optional[Object] = None
    contradiction: Optional[Object] = None
    verified: bool = False
    mismatches: int = 0
    decisions: int = 0
    #: Whether a replay under the run's own settings needs what the run needed.
    self_check: Optional[Object] = None
    flushes: list[Object] = field(default_factory=list, repr=False)
    read_otherwise: list[Object] = field(default_factory=list, repr=False)
    enough: Optional[Object] = None
    survives_oom: bool = False
    endings: list[Object] = field(default_factory=list, repr=False)
    cause: Optional[Object] = None
    live: list[Object] = field(default_factory=list, repr=False)
    #: What completes the program, the one to try first in front.
    remedies: list[Object] = field(default_factory=list, repr=False)
    #: Every setting tried, the run's own first, then the best.
    options: list[Option] = field(default_factory=list, repr=False, metadata={"of": Option})
    #: What the policies of `policy` need, one each.
    policies: list[Object] = field(default_factory=list, repr=False)
    otherwise: list[Object] = field(default_factory=list, repr=False)
    notes: list[str] = field(default_factory=list, repr=False)
    seconds: float = 0.0

    def _repr_html_(self) -> str:
        return _html.advice(self)


@dataclass(frozen=True)
class DeviceDiagnosis:
    """What `diagnose` found about one device."""

    device: int = 0
    #: `fragmentation`, `streams`, `private_pools`, `capacity`, `undecided` or `no_failure`.
    verdict: str = ""
    moment: str = ""
    question: str = ""
    entry: Optional[int] = None
    time_us: Optional[int] = None
    #: The cause in a sentence.
    headline: str = ""
    request: Optional[Object] = field(default=None, repr=False)
    steps: list[Object] = field(default_factory=list, repr=False)
    needed_bytes: int = 0
    short_bytes: Optional[int] = None
    unreserved_bytes: Optional[int] = None
    limit: Object = field(default_factory=dict, repr=False)
    assumed_limit_bytes: Optional[int] = None
    ending: str = ""
    heap_is_for_request: bool = False
    #: Where every reserved byte is.
    heap: Object = field(default_factory=dict, repr=False)
    heap_before: Object = field(default_factory=dict, repr=False)
    excess: Object = field(default_factory=dict, repr=False)
    peaks: Optional[Object] = field(default=None, repr=False)
    reserved_after_bytes: int = 0
    given_back: Object = field(default_factory=dict, repr=False)
    ooms: int = 0
    retries: int = 0
    onset: Optional[Object] = field(default=None, repr=False)
    stacks: list[Object] = field(default_factory=list, repr=False)
    #: Blocks in use beside free memory: what pins the holes.
    fences: list[Object] = field(default_factory=list, repr=False)
    exactness: Optional[Object] = field(default=None, repr=False)
    notes: list[str] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Diagnosis(Result):
    """What `diagnose` found."""

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict, repr=False)
    settings: str = ""
    settings_origin: str = ""
    profile: str = ""
    limit_bytes: Optional[int] = None
    devices: list[DeviceDiagnosis] = field(default_factory=list, metadata={"of": DeviceDiagnosis})

    def _repr_html_(self) -> str:
        return _html.diagnosis(self)


@dataclass(frozen=True)
class Report(Result):
    """What `report` shows."""

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict, repr=False)
    settings: str = ""
    settings_origin: str = ""
    profile: str = ""
    limit_bytes: Optional[int] = None
    capacity_bytes: Optional[int] = None
    capacity_hint: Optional[Object] = None
    #: Whether a replay under the run's own settings needs what the run needed.
    self_check: Optional[Object] = None
    #: Each with its curves, holders at the peak, and the run under other settings.
    devices: list[Object] = field(default_factory=list, repr=False)
    #: The picture of memory over time.
    svg: str = field(default="", repr=False)
    #: The page that was written.
    output: Optional[str] = None

    def _repr_html_(self) -> str:
        return _html.report(self)


@dataclass(frozen=True)
class Difference(Result):
    """What `diff` found."""

    a: Object = field(default_factory=dict, repr=False)
    b: Optional[Object] = field(default=None, repr=False)
    devices: list[Object] = field(default_factory=list, repr=False)
    #: Each bound of `fail_above`, on each device, and whether any is exceeded.
    checks: list[Object] = field(default_factory=list)
    exceeded: bool = False
    notes: list[str] = field(default_factory=list)

    def _repr_html_(self) -> str:
        return _html.difference(self)


@dataclass(frozen=True)
class Stats(Result):
    """What `stats` shows."""

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict, repr=False)
    settings: str = ""
    replayed: bool = False
    limit_bytes: Optional[int] = None
    mismatches: int = 0
    #: Each with the moments asked for, and there `memory_stats` and `measures`.
    devices: list[Object] = field(default_factory=list, repr=False)
    left_out: list[Object] = field(default_factory=list)

    @property
    def memory_stats(self) -> dict[str, int]:
        """`torch.cuda.memory_stats()` of the first device at the last moment asked for; empty without a trace."""
        moments: list[Object] = self.devices[0]["moments"] if self.devices else []
        return dict(moments[-1]["memory_stats"]) if moments else {}

    def _repr_html_(self) -> str:
        return _html.stats(self)


def made(kind: type[_T], data: Object, answer: Answer) -> _T:
    """The result of this kind from a command's JSON object."""
    made = _of(kind, {**data, "exit_code": answer.exit_code, "data": data})
    return made


def _of(kind: type[_T], data: Object) -> _T:
    # Keys may be added to JSON at any time.
    values = {}
    for of in dataclasses.fields(kind):  # type: ignore[arg-type]
        if of.name in data:
            values[of.name] = _value(of.metadata.get("of"), data[of.name])
    return kind(**values)


def _value(kind: Optional[type[Any]], value: Any) -> Any:
    if kind is None or value is None:
        return value
    return [_of(kind, item) for item in value] if isinstance(value, list) else _of(kind, value)
