"""The results of commands: dataclasses with the keys of docs/json.md, their text, and HTML for notebooks.

Fields have the names of the keys. What is deep inside is left as JSON has it: lists and dictionaries. `str()` is what the command prints,
`repr()` is one line.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from . import _html
from ._errors import Error

if TYPE_CHECKING:
    from ._run import Answer

Object = dict[str, Any]
_T = TypeVar("_T")

#: The variable that has the settings of PyTorch's allocator.
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


class _Record:
    """One line as `repr`: the kind and the fields that say most."""

    #: The fields that `repr` names.
    _shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        named = (f"{name}={getattr(self, name)!r}" for name in self._shown)
        return f"{type(self).__name__}({', '.join(named)})"


def _hash(self: Any) -> int:
    """Of the fields that are texts and numbers: equal results have equal ones. Lists and dictionaries have no hash."""
    values = (getattr(self, of.name) for of in dataclasses.fields(self))
    return hash((type(self), *(value for value in values if value is None or isinstance(value, (str, int, float)))))


@dataclass(frozen=True, repr=False)
class Result(_Record):
    """What every result has."""

    #: How the command would end: 0 success, 1 a check failed, 3 the answer is not known from this file.
    exit_code: int = field(default=0)
    #: The whole JSON object of the command.
    data: Object = field(default_factory=dict)
    #: What the command prints.
    text: str = field(default="")
    #: The same for notebooks.
    html: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text or repr(self)

    def _repr_html_(self) -> str:
        return self.html or f"<pre>{escape(str(self))}</pre>"


@dataclass(frozen=True, repr=False)
class Verification(Result):
    """What `verify` found."""

    _shown = ("file", "mismatches", "decisions", "ooms", "exit_code")
    __hash__ = _hash

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict)
    settings: str = ""
    settings_refusal: str | None = None
    settings_origin: str = ""
    profile: str = ""
    profile_seen_from: str | None = None
    limit_bytes: int | None = None
    assumed_limit_bytes: int | None = None
    fraction_of_unknown_memory: float | None = None
    entries: int = 0
    #: Decisions compared, and those that differ.
    decisions: int = 0
    mismatches: int = 0
    first_mismatch: Object | None = None
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    ooms: int = 0
    retries: int = 0
    not_in_file: Object = field(default_factory=dict)
    tolerated: Object = field(default_factory=dict)
    #: Devices whose trace leaves out kinds of entries (`skip_actions`).
    left_out: list[Object] = field(default_factory=list)
    devices: list[Object] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether every recorded decision is the replay's."""
        return self.mismatches == 0


@dataclass(frozen=True, repr=False)
class Recommendation(_Record):
    """The settings that `advise` recommends."""

    _shown = ("settings", "close")
    __hash__ = _hash

    settings: str = ""
    #: The line for a shell.
    line: str = ""
    why: str = ""
    costs: str = ""
    also: str | None = None
    close: bool = False
    cautions: list[Object] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class Option(_Record):
    """Settings that `advise` tried."""

    _shown = ("settings", "fits", "peak_reserved_bytes")
    __hash__ = _hash

    settings: str = ""
    own: bool = False
    given: bool = False
    fits: bool = False
    gets_past: bool = False
    fails_at_entry: int | None = None
    ooms: int = 0
    may_survive: bool = False
    close: bool = False
    peak_reserved_bytes: int = 0
    headroom_bytes: int | None = None
    smallest_capacity_bytes: int = 0
    retries: int = 0
    driver_calls: int = 0
    driver_us: int = 0
    needs_limit: bool = False
    likely: Object | None = None
    timings: Object | None = None
    cautions: list[Object] = field(default_factory=list)
    devices: list[Object] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class Advice(Result):
    """What `advise` found. Without a trace in the file, only what was held when it was written: `data["held"]`."""

    _shown = ("file", "verdict", "outcome", "line")
    __hash__ = _hash

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict)
    #: With the recommended settings: `fits`, `gets_past`, `does_not_fit` or `unknown`.
    outcome: str = ""
    #: How the run's own settings fare: `fits`, `fragmentation`, `streams`, `private_pools`, `capacity` or `undecided`.
    verdict: str | None = None
    close: bool = False
    recommendation: Recommendation | None = field(default=None, metadata={"of": Recommendation})
    own_settings: str = ""
    own_settings_origin: str = ""
    profile: str = ""
    capacity_bytes: int | None = None
    limit_bytes: int | None = None
    recorded_limit_bytes: int | None = None
    hides_more: bool = False
    capacity_hint: Object | None = None
    contradiction: Object | None = None
    verified: bool = False
    mismatches: int = 0
    decisions: int = 0
    #: Whether a replay under the run's own settings needs what the run needed.
    self_check: Object | None = None
    flushes: list[Object] = field(default_factory=list)
    read_otherwise: list[Object] = field(default_factory=list)
    enough: Object | None = None
    survives_oom: bool = False
    endings: list[Object] = field(default_factory=list)
    cause: Object | None = None
    live: list[Object] = field(default_factory=list)
    #: What completes the program, the one to try first in front.
    remedies: list[Object] = field(default_factory=list)
    #: Every setting tried, the run's own first, then the best.
    options: list[Option] = field(default_factory=list, metadata={"of": Option})
    #: What the policies of `policy` need, one each.
    policies: list[Object] = field(default_factory=list)
    otherwise: list[Object] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def line(self) -> str | None:
        """The line to try first: for a shell, or, where it is a policy of parkade, for the program. None if nothing helps but less memory."""
        pasted = (remedy["line"] for remedy in self.remedies if remedy["kind"] != "program")
        return next(pasted, self.recommendation.line if self.recommendation is not None else None)

    def as_env(self) -> dict[str, str]:
        """The variables that a process with the best settings is started with, as for `subprocess.run(..., env={**os.environ, **env})`.

        Empty if no settings help.
        """
        settings = self._best_settings()
        return {} if settings is None else {VARIABLE: settings}

    def apply(self) -> None:
        """Sets the best settings in this process, and for those that it starts. Call it before CUDA is used.

        Raises `Error` if no settings help, or if CUDA was used already.
        """
        settings = self._best_settings()
        if settings is None:
            raise Error(
                f"no settings help this program ({self.verdict or self.outcome}), so there is nothing to apply: print the advice to see what does"
            )
        torch = sys.modules.get("torch")
        if torch is not None:
            if torch.cuda.is_initialized():
                raise Error(
                    "CUDA was used before, and settings are read at its first use: call apply() before that, or set them when the program starts"
                )
            torch.cuda.memory._set_allocator_settings(settings)
        os.environ[VARIABLE] = settings

    def _best_settings(self) -> str | None:
        if self.recommendation is not None:
            return self.recommendation.settings
        if self.enough and any(remedy["kind"] == "settings" for remedy in self.remedies):
            return str(self.enough["settings"])
        return None


@dataclass(frozen=True, repr=False)
class DeviceDiagnosis(_Record):
    """What `diagnose` found about one device."""

    _shown = ("device", "verdict", "headline")
    __hash__ = _hash

    device: int = 0
    #: `fragmentation`, `streams`, `private_pools`, `capacity`, `undecided` or `no_failure`.
    verdict: str = ""
    moment: str = ""
    question: str = ""
    entry: int | None = None
    time_us: int | None = None
    #: The cause in a sentence.
    headline: str = ""
    request: Object | None = field(default=None)
    steps: list[Object] = field(default_factory=list)
    needed_bytes: int = 0
    short_bytes: int | None = None
    unreserved_bytes: int | None = None
    limit: Object = field(default_factory=dict)
    assumed_limit_bytes: int | None = None
    ending: str = ""
    heap_is_for_request: bool = False
    #: Where every reserved byte is.
    heap: Object = field(default_factory=dict)
    heap_before: Object = field(default_factory=dict)
    excess: Object = field(default_factory=dict)
    peaks: Object | None = field(default=None)
    reserved_after_bytes: int = 0
    given_back: Object = field(default_factory=dict)
    ooms: int = 0
    retries: int = 0
    onset: Object | None = field(default=None)
    stacks: list[Object] = field(default_factory=list)
    #: Blocks in use beside free memory: what pins the holes.
    fences: list[Object] = field(default_factory=list)
    exactness: Object | None = field(default=None)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What `diagnose` found."""

    _shown = ("file", "verdicts")
    __hash__ = _hash

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict)
    settings: str = ""
    settings_origin: str = ""
    profile: str = ""
    limit_bytes: int | None = None
    devices: list[DeviceDiagnosis] = field(default_factory=list, metadata={"of": DeviceDiagnosis})

    @property
    def verdicts(self) -> list[str]:
        """The verdict on each device."""
        return [device.verdict for device in self.devices]


@dataclass(frozen=True, repr=False)
class Report(Result):
    """What `report` shows."""

    _shown = ("file", "output")
    __hash__ = _hash

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict)
    settings: str = ""
    settings_origin: str = ""
    profile: str = ""
    limit_bytes: int | None = None
    capacity_bytes: int | None = None
    capacity_hint: Object | None = None
    #: Whether a replay under the run's own settings needs what the run needed.
    self_check: Object | None = None
    #: Each with its curves, holders at the peak, and the run under other settings.
    devices: list[Object] = field(default_factory=list)
    #: The picture of memory over time.
    svg: str = field(default="")
    #: The page that was written.
    output: str | None = None

    def _repr_html_(self) -> str:
        return _html.report(self)


@dataclass(frozen=True, repr=False)
class Difference(Result):
    """What `diff` found."""

    _shown = ("exceeded", "exit_code")
    __hash__ = _hash

    a: Object = field(default_factory=dict)
    b: Object | None = field(default=None)
    devices: list[Object] = field(default_factory=list)
    #: Each bound of `fail_above`, on each device, and whether any is exceeded.
    checks: list[Object] = field(default_factory=list)
    exceeded: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class Stats(Result):
    """What `stats` shows."""

    _shown = ("file", "settings", "mismatches")
    __hash__ = _hash

    file: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict)
    settings: str = ""
    replayed: bool = False
    limit_bytes: int | None = None
    mismatches: int = 0
    #: Each with the moments asked for, and there `memory_stats` and `measures`.
    devices: list[Object] = field(default_factory=list)
    left_out: list[Object] = field(default_factory=list)

    @property
    def memory_stats(self) -> dict[str, int]:
        """`torch.cuda.memory_stats()` of the first device at the last moment asked for; empty without a trace."""
        moments: list[Object] = self.devices[0]["moments"] if self.devices else []
        return dict(moments[-1]["memory_stats"]) if moments else {}


@dataclass(frozen=True, repr=False)
class MessageDiagnosis(Result):
    """What `diagnose` found about the text of an out-of-memory error."""

    _shown = ("verdict", "headline")
    __hash__ = _hash

    device: int | None = None
    rank: int | None = None
    line: int = 0
    complete: bool = False
    missing: list[str] = field(default_factory=list)
    #: Why: `fragmentation`, `capacity`, `limit`, `held_by_others`, `undecided` and others (docs/json.md).
    verdict: str = ""
    #: The cause in a sentence.
    headline: str = ""
    source: str = ""
    #: One line to try.
    to_try: str | None = None
    steps: list[Object] = field(default_factory=list)
    #: Figures of the message, each with `bytes` and `within_bytes`.
    tried: Object | None = None
    block_bytes_least: int | None = None
    block_bytes_most: int | None = None
    total: Object | None = None
    free: Object | None = None
    limit: Object | None = None
    allocated: Object | None = None
    reserved: Object | None = None
    unallocated: Object | None = None
    private_pools: Object | None = None
    live: Object | None = None
    empty: Object | None = None
    needed: Object | None = None
    available: Object | None = None
    held_by_others: Object | None = None
    unallocated_suffices: str | None = None
    available_suffices: str | None = None
    device_had_room: str | None = None
    notes: list[str] = field(default_factory=list)
    first_failure: Object | None = None
    messages: list[Object] = field(default_factory=list)
    other_frameworks: list[Object] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class Replay(Result):
    """What `replay` found. What it prints of a policy, of one device or of several differs in its keys: `data` has them."""

    _shown = ("file", "settings", "policy", "outcome", "peak_reserved_bytes")
    __hash__ = _hash

    file: str = ""
    settings: str | None = None
    settings_origin: str | None = None
    profile: str | None = None
    policy: str | None = None
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict)
    capacity_bytes: int | None = None
    limit_bytes: int | None = None
    recorded_limit_bytes: int | None = None
    #: `fits`, `gets_past`, `does_not_fit` or `unknown`.
    outcome: str = ""
    endings: list[str] = field(default_factory=list)
    doubt: str | None = None
    fits: bool = False
    ooms: int = 0
    fails_at_entry: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    retries: int = 0
    driver_calls: int = 0
    driver_ns: int = 0
    empty_cache_calls: int = 0
    device_errors: int = 0
    assumed_limit_bytes: int | None = None
    recorded: Object | None = None
    #: Whether a replay under the run's own settings needs what the run needed.
    self_check: Object | None = None
    flushes: list[Object] = field(default_factory=list)
    read_otherwise: Object | None = None
    peak_reserved_bytes_earliest: int | None = None
    fits_earliest: bool | None = None
    peak_reserved_bytes_latest: int | None = None
    fits_latest: bool | None = None
    peak_reserved_bytes_least: int | None = None
    peak_reserved_bytes_most: int | None = None
    peak_reserved_bytes_are_likely: bool | None = None
    timings_tried: int | None = None
    timings_fit: int | None = None
    devices: list[Object] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class Export(Result):
    """The file that `export` wrote."""

    _shown = ("file", "output", "settings")
    __hash__ = _hash

    file: str = ""
    output: str = ""
    settings: str | None = None
    profile: str = ""
    #: Which release of PyTorch made the recording.
    made_by: Object = field(default_factory=dict)
    #: Whether a replay under the run's own settings needs what the run needed.
    self_check: Object | None = None
    devices: list[Object] = field(default_factory=list)
    kept_devices: list[int] = field(default_factory=list)
    slices: int | None = None
    left_out_slices: int | None = None


@dataclass(frozen=True, repr=False)
class Info(Result):
    """The GPUs of this machine, with their memory and the processes that hold it."""

    __hash__ = _hash

    source: str = ""
    no_nvml: str | None = None
    driver: str | None = None
    devices: list[Object] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Info(source={self.source!r}, driver={self.driver!r}, devices={len(self.devices)})"


def made(kind: type[_T], data: Object, answer: Answer) -> _T:
    """The result of this kind from a command's JSON object."""
    return _of(kind, {**data, "exit_code": answer.exit_code, "data": data, "text": answer.text, "html": answer.html})


def _of(kind: type[_T], data: Object) -> _T:
    # Keys may be added to JSON at any time.
    values = {}
    for of in dataclasses.fields(kind):  # type: ignore[arg-type]
        if of.name in data:
            values[of.name] = _value(of.metadata.get("of"), data[of.name])
    return kind(**values)


def _value(kind: type[Any] | None, value: Any) -> Any:
    if kind is None or value is None:
        return value
    return [_of(kind, item) for item in value] if isinstance(value, list) else _of(kind, value)
