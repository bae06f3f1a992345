"""The fields of the results, with the keys of docs/json.md. `_results.py` has the classes with their methods."""

# Generated from the declarations in cli/src by: PARKADE_BLESS=1 cargo test -p parkade-cli schema

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ._objects import (
    AdviseContradicted,
    AdviseDevice,
    AdviseDeviceFlush,
    AdviseEnded,
    AdviseFailure,
    AdviseHint,
    AdviseLikely,
    AdviseLive,
    AdviseOtherwise,
    AdviseReadOtherwise,
    AdviseRemedy,
    AdviseSufficient,
    AdviseTimings,
    AdviseWarning,
    Checked,
    DeviceLeftOut,
    DiagnoseAsked,
    DiagnoseBegan,
    DiagnoseBlockBeside,
    DiagnoseDifference,
    DiagnoseExactness,
    DiagnoseFigure,
    DiagnoseFirst,
    DiagnoseHeap,
    DiagnoseHeld,
    DiagnoseHighest,
    DiagnoseKnownLimit,
    DiagnoseMessage,
    DiagnoseOther,
    DiagnoseReleased,
    DiagnoseStep,
    DiffBounded,
    DiffDevice,
    DiffInput,
    ExportDevice,
    ExportSimulatedDevice,
    InfoDevice,
    MadeBy,
    Needs,
    OtherReading,
    ReadFlush,
    ReplayDevice,
    ReplayRecorded,
    ReportDevice,
    ReportHint,
    ReportSimulatedDevice,
    StatsDevice,
    StatsMissing,
    StatsProgram,
    StatsRun,
    SweepBatchPoint,
    SweepGenerator,
    SweepListedPolicy,
    SweepListedWorkload,
    SweepModel,
    VerifyDevice,
    VerifyMismatch,
    VerifyNotInFile,
    VerifyStatistics,
    VerifyTolerated,
)

if TYPE_CHECKING:
    # `_results.py` puts them here, because it imports this module.
    from ._results import DeviceDiagnosis, Option, Recommendation


def _absent() -> Any:
    """An object that the command did not print."""
    return {}


#: A word that the command did not print.
_WORD: Any = ""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class VerificationFields:
    #: The recording.
    file: str = ""
    #: The settings it was replayed under.
    settings: str = ""
    #: Why PyTorch's parser refuses the file's string.
    settings_refusal: str | None = None
    #: Where they come from.
    settings_origin: Literal["recorded", "recorded values", "assumed", "given"] = _WORD
    #: The PyTorch version.
    profile: str = ""
    #: What in the file excludes other releases.
    profile_seen_from: str | None = None
    #: The release that made the recording.
    made_by: MadeBy = field(default_factory=_absent)
    #: `limit`.
    limit_bytes: int | None = None
    #: Without `limit`: the limit under which garbage collection is as recorded.
    assumed_limit_bytes: int | None = None
    #: The setting `per_process_memory_fraction`, where the device's memory is unknown.
    fraction_of_unknown_memory: float | None = None
    #: The number of entries in the trace.
    entries: int = 0
    #: The number of decisions compared.
    decisions: int = 0
    #: How many decisions differ.
    mismatches: int = 0
    #: The first decision that differs.
    first_mismatch: VerifyMismatch | None = None
    #: The peak of allocated memory.
    peak_allocated_bytes: int = 0
    #: The peak of reserved memory.
    peak_reserved_bytes: int = 0
    #: The number of requests that run out of memory.
    ooms: int = 0
    #: `num_alloc_retries`.
    retries: int = 0
    #: The time taken.
    seconds: float = 0.0
    #: The parts of the file that are not known, with their counts.
    tolerated: VerifyTolerated = field(default_factory=_absent)
    #: The devices whose trace leaves out kinds of entries (`skip_actions`).
    left_out: list[DeviceLeftOut] = field(default_factory=list)
    #: What the file does not show; with several devices, each of `devices` has its own.
    not_in_file: VerifyNotInFile | None = None
    #: With `stats`: the comparison of PyTorch's statistics with the replay's.
    statistics: VerifyStatistics | None = None
    #: Each device, if there are several.
    devices: list[VerifyDevice] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class RecommendationFields:
    #: The settings.
    settings: str = ""
    #: The line for a shell.
    line: str = ""
    #: Why these settings are recommended.
    why: str = ""
    #: What they cost.
    costs: str = ""
    #: What else must be done.
    also: str | None = None
    #: Whether a change in memory of less than 1 % may change the answer.
    close: bool = False
    #: What they may break.
    cautions: list[AdviseWarning] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class OptionFields:
    #: The settings.
    settings: str = ""
    #: Whether these are the recorded run's.
    own: bool = False
    #: Whether `settings` asked for them.
    given: bool = False
    #: Whether every request is served; if the run died, including the estimated rest.
    fits: bool = False
    #: Whether every recorded request is served, including the one that ended the run.
    gets_past: bool = False
    #: The first entry whose request fails.
    fails_at_entry: int | None = None
    #: How many requests fail.
    ooms: int = 0
    #: Whether the requests that fail may be workspaces that a library can do without.
    may_survive: bool = False
    #: Whether less than 1 % of memory may change `fits`.
    close: bool = False
    #: The peak of reserved memory; with several devices, the highest.
    peak_reserved_bytes: int = 0
    #: The memory left at the peak. If requests fail: the missing amount as a negative number, or null if less memory was enough. With
    #: several devices, the least.
    headroom_bytes: int | None = None
    #: The smallest memory in which the program fits; with several devices, that of the device that needs the most.
    smallest_capacity_bytes: int = 0
    #: How often the cache was emptied for lack of memory.
    retries: int = 0
    #: The number of memory calls to the driver.
    driver_calls: int = 0
    #: What those calls cost.
    driver_us: int = 0
    #: Whether a setting needs a memory limit to have any effect.
    needs_limit: bool = False
    #: The runs that are likely, judging by the times of the entries, if the timing of other streams matters; given for the run's own
    #: settings and the best others. `close` is true if one of them does not fit or the range ends above the memory.
    likely: AdviseLikely | None = None
    #: The runs with different timings of the streams, if these matter.
    timings: AdviseTimings | None = None
    #: What the settings may break or fail to do.
    cautions: list[AdviseWarning] = field(default_factory=list)
    #: Each device, if there are several.
    devices: list[AdviseDevice] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AdviceFields:
    #: The recording.
    file: str = ""
    #: The PyTorch version whose rules the replay follows.
    profile: str = ""
    #: The release that made the recording.
    made_by: MadeBy = field(default_factory=_absent)
    #: Different advice under the other releases that also explain the recording; empty with `profile`.
    otherwise: list[AdviseOtherwise] = field(default_factory=list)
    #: The memory available to the allocator: the smaller of `capacity` and the limit, else what `parkade run` recorded in the file, else
    #: what is assumed. With several devices, the smallest amount.
    capacity_bytes: int | None = None
    #: `limit`, else a limit that `parkade run` recorded in the file.
    limit_bytes: int | None = None
    #: The recorded run's limit, given or found.
    recorded_limit_bytes: int | None = None
    #: Whether more than the available memory was reserved before the first entry.
    hides_more: bool = False
    #: What an out-of-memory error in the recording shows about the memory, if no size was given.
    capacity_hint: AdviseHint | None = None
    #: Evidence in the recording that contradicts the given memory size: the run had less.
    contradiction: AdviseContradicted | None = None
    #: Whether the replay reproduces every recorded decision.
    verified: bool = False
    #: How many decisions differ.
    mismatches: int = 0
    #: Whether a replay under the run's own settings needs as much as the run did.
    self_check: Checked | None = None
    #: Memory that was released right before requests that then took some, and how that was interpreted.
    flushes: list[AdviseDeviceFlush] = field(default_factory=list)
    #: The devices on which the other interpretation of `flushes` leads to a different answer, with the results of the recommended settings,
    #: else of the run's own.
    read_otherwise: list[AdviseReadOtherwise] = field(default_factory=list)
    #: The number of decisions compared.
    decisions: int = 0
    #: The recorded run's settings.
    own_settings: str = ""
    #: Where they come from.
    own_settings_origin: Literal["recorded", "recorded values", "assumed", "given"] = _WORD
    #: The outcome with the recommended settings: `fits`, `gets_past` (the request that ended the run is served; the rest is not in the
    #: file), `does_not_fit` (also for a run that survived its errors, because it meets them again: `survives_oom`), `unknown` (the memory
    #: is unknown, or only part of its possible range is enough, or the missing beginning needed more than is available).
    outcome: Literal["fits", "gets_past", "does_not_fit", "unknown"] = _WORD
    #: What is needed to serve every recorded request, if the outcome depends on where in a range the memory was.
    enough: AdviseSufficient | None = None
    #: `fits`, or why the run's own settings fail: `fragmentation`, `streams`, `private_pools`, `capacity`, or `undecided` between them
    #: because the memory is known only as a range.
    verdict: Literal["fits", "fragmentation", "capacity", "undecided", "streams", "private_pools"] | None = None
    #: Whether a change in memory of less than 1 % may change the answer.
    close: bool = False
    #: Whether the recorded program continued after an out-of-memory error.
    survives_oom: bool = False
    #: How the run ended on each device, and the estimated rest.
    endings: list[AdviseEnded] = field(default_factory=list)
    #: Where the run's own settings fail.
    cause: AdviseFailure | None = None
    #: What each device's program holds when it holds the most.
    live: list[AdviseLive] = field(default_factory=list)
    #: The recommended settings; null if none fit.
    recommendation: Recommendation | None = field(default=None, metadata={"of": "Recommendation"})
    #: Remedies for a program that does not fit as it is, in the order in which to try them. Settings come before a policy that is likelier
    #: by at most 0.1, and what the program itself must give up comes last.
    remedies: list[AdviseRemedy] = field(default_factory=list)
    #: Every setting tried: the run's own first, then the best.
    options: list[Option] = field(default_factory=list, metadata={"of": "Option"})
    #: With `policy`: what each policy of parkade needs in place of PyTorch's allocator, for the requests of the recording and, if the run
    #: died, for the estimated rest.
    policies: list[Needs] = field(default_factory=list)
    #: Notes on the numbers.
    notes: list[str] = field(default_factory=list)
    #: The time taken.
    seconds: float = 0.0


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DeviceDiagnosisFields:
    #: The device.
    device: int = 0
    #: The cause: `fragmentation`, `streams`, `private_pools`, `capacity`, `undecided` or `no_failure` (none is in the file).
    verdict: Literal["capacity", "fragmentation", "streams", "private_pools", "undecided", "no_failure"] = _WORD
    #: The point in time that was examined: `out_of_memory`, `chosen` (`entry`), `peak_reserved` or `end` (the history is not in the file).
    moment: Literal["out_of_memory", "chosen", "peak_reserved", "end"] = _WORD
    #: The question about it: `why_out_of_memory`; `why_reserved_above_allocated` (nothing failed, or the file does not say);
    #: `why_new_memory` (`entry` is a request that took memory from the device).
    question: Literal["why_out_of_memory", "why_new_memory", "why_reserved_above_allocated"] = _WORD
    #: The entry at that point; null if the point is before the first entry, or if there is no trace.
    entry: int | None = None
    #: The time at that point, if the recording has times.
    time_us: int | None = None
    #: The cause in a sentence.
    headline: str = ""
    #: The request at that point.
    request: DiagnoseAsked | None = None
    #: The five steps of the diagnosis.
    steps: list[DiagnoseStep] = field(default_factory=list)
    #: Live bytes and the request together.
    needed_bytes: int = 0
    #: The number of needed bytes that are missing, if the cause is capacity.
    short_bytes: int | None = None
    #: The bytes that could still be reserved, if the limit is known.
    unreserved_bytes: int | None = None
    #: What is known about the memory limit.
    limit: DiagnoseKnownLimit = field(default_factory=_absent)
    #: The assumed limit, the same as in `advise`.
    assumed_limit_bytes: int | None = None
    #: How the run ended.
    ending: Literal["no_error", "survived", "died"] = _WORD
    #: Whether `heap` is divided as the request sees it.
    heap_is_for_request: bool = False
    #: Where every reserved byte is: at a failure, after the allocator had released what it could; for `why_new_memory`, before the entry;
    #: else after it.
    heap: DiagnoseHeap = field(default_factory=_absent)
    #: The heap as the request found it.
    heap_before: DiagnoseHeap = field(default_factory=_absent)
    #: Why more is reserved than allocated in `heap`: causes that do not depend on a request.
    excess: DiagnoseDifference = field(default_factory=_absent)
    #: The peaks of the entire run; null without a trace.
    peaks: DiagnoseHighest | None = None
    #: Reserved after the request.
    reserved_after_bytes: int = 0
    #: What the allocator released for the request.
    given_back: DiagnoseReleased = field(default_factory=_absent)
    #: The number of requests in the trace that ran out of memory.
    ooms: int = 0
    #: `num_alloc_retries` at that moment.
    retries: int = 0
    #: The point since which reserved minus allocated has been high.
    onset: DiagnoseBegan | None = None
    #: The stacks that hold the most live bytes.
    stacks: list[DiagnoseHeld] = field(default_factory=list)
    #: Blocks in use beside free memory.
    fences: list[DiagnoseBlockBeside] = field(default_factory=list)
    #: How exact the replay is; null without a trace.
    exactness: DiagnoseExactness | None = None
    #: How sure this is.
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DiagnosisFields:
    #: The recording.
    file: str = ""
    #: The settings it was replayed under.
    settings: str = ""
    #: Where they come from.
    settings_origin: Literal["recorded", "recorded values", "assumed", "given"] = _WORD
    #: The PyTorch version.
    profile: str = ""
    #: The release that made the recording.
    made_by: MadeBy = field(default_factory=_absent)
    #: `limit`, else a limit that `parkade run` recorded in the file.
    limit_bytes: int | None = None
    #: Each device for which the file has memory entries or reserved memory; if there is none, all devices.
    devices: list[DeviceDiagnosis] = field(default_factory=list, metadata={"of": "DeviceDiagnosis"})


@dataclass(frozen=True, init=False, repr=False, eq=False)
class MessageDiagnosisFields:
    #: The device.
    device: int | None = None
    #: The rank that wrote the message, if a prefix of its line shows it (`[rank3]:`, `3: `, `rank=3`).
    rank: int | None = None
    #: The line of the log on which the message begins, from 1.
    line: int = 0
    #: Whether no part of the message is missing.
    complete: bool = False
    #: What a cut message lacks.
    missing: list[str] = field(default_factory=list)
    #: The cause.
    verdict: Literal[
        "impossible_figures",
        "spilled_to_host",
        "limit",
        "held_by_others",
        "capacity",
        "fragmentation",
        "device_had_room",
        "outside_allocator",
        "known_defect",
        "host_memory",
        "warning",
        "other_framework",
        "undecided",
    ] = _WORD
    #: The cause in a sentence.
    headline: str = ""
    #: Who wrote the message.
    source: str = ""
    #: One line to try.
    to_try: str | None = None
    #: The five steps; empty if the message is not that of PyTorch's GPU allocator.
    steps: list[DiagnoseStep] = field(default_factory=list)
    #: The segment that was tried.
    tried: DiagnoseFigure | None = None
    #: The smallest block for which that much is tried.
    block_bytes_least: int | None = None
    #: The largest such block.
    block_bytes_most: int | None = None
    #: The device's memory.
    total: DiagnoseFigure | None = None
    #: Free on the device.
    free: DiagnoseFigure | None = None
    #: The process's limit, if the message has it.
    limit: DiagnoseFigure | None = None
    #: Allocated by PyTorch.
    allocated: DiagnoseFigure | None = None
    #: Reserved by PyTorch.
    reserved: DiagnoseFigure | None = None
    #: Reserved but not allocated.
    unallocated: DiagnoseFigure | None = None
    #: In private pools, if the message has it.
    private_pools: DiagnoseFigure | None = None
    #: Allocated, without what private pools have cached.
    live: DiagnoseFigure | None = None
    #: Reserved minus live.
    empty: DiagnoseFigure | None = None
    #: Live and tried together.
    needed: DiagnoseFigure | None = None
    #: The most memory that the process could have had.
    available: DiagnoseFigure | None = None
    #: Neither reserved here nor free.
    held_by_others: DiagnoseFigure | None = None
    #: Whether `unallocated` would hold `tried`: `yes`, `no`, `last_digit` (rounding decides).
    unallocated_suffices: Literal["yes", "no", "last_digit"] | None = None
    #: Whether `available` would hold `needed`.
    available_suffices: Literal["yes", "no", "last_digit"] | None = None
    #: Whether `free` would hold `tried`.
    device_had_room: Literal["yes", "no", "last_digit"] | None = None
    #: How sure this is.
    notes: list[str] = field(default_factory=list)
    #: The rank that failed first; null if that is unknown.
    first_failure: DiagnoseFirst | None = None
    #: Each different message of each rank, in the order of the log; of more than 16,384, the first, and `notes` counts the others.
    messages: list[DiagnoseMessage] = field(default_factory=list)
    #: The out-of-memory messages of other frameworks, beside those of PyTorch; the first of each rank.
    other_frameworks: list[DiagnoseOther] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReportFields:
    #: The recording.
    file: str = ""
    #: The recorded run's settings.
    settings: str = ""
    #: Where they come from.
    settings_origin: Literal["recorded", "recorded values", "assumed", "given"] = _WORD
    #: The PyTorch version whose rules are used to read the recording.
    profile: str = ""
    #: The release that made the recording.
    made_by: MadeBy = field(default_factory=_absent)
    #: `limit`.
    limit_bytes: int | None = None
    #: The memory in which other settings were tried; with several devices, the smallest.
    capacity_bytes: int | None = None
    #: What an out-of-memory error shows of the limit, if it was not given.
    capacity_hint: ReportHint | None = None
    #: Whether a replay under the run's own settings needs as much as the run did.
    self_check: Checked | None = None
    #: Each device.
    devices: list[ReportDevice] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SimulatedReportFields:
    #: The recording, the request trace or the workload.
    file: str = ""
    #: The policy of the simulation.
    policy: str = ""
    #: `recording`, `trace` or `workload`.
    program: Literal["recording", "trace", "workload"] = _WORD
    #: The release that made the recording; null for other programs.
    made_by: MadeBy | None = None
    #: Each device.
    devices: list[ReportSimulatedDevice] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DifferenceFields:
    #: The first recording.
    a: DiffInput = field(default_factory=_absent)
    #: The second recording; null if one is shown alone.
    b: DiffInput | None = None
    #: Each device, or pair of devices.
    devices: list[DiffDevice] = field(default_factory=list)
    #: Each bound of `fail_above`, on each device.
    checks: list[DiffBounded] = field(default_factory=list)
    #: Whether any peak is above its bound, even if it is not known whether that is growth.
    exceeded: bool = False
    #: The devices that only one file has.
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class StatsFields:
    #: The recording.
    file: str = ""
    #: The settings it was replayed under.
    settings: str = ""
    #: The release that made the recording.
    made_by: MadeBy = field(default_factory=_absent)
    #: Whether `settings` gave them.
    replayed: bool = False
    #: `limit`.
    limit_bytes: int | None = None
    #: The number of recorded decisions that differ, over all devices.
    mismatches: int = 0
    #: Each device.
    devices: list[StatsDevice] = field(default_factory=list)
    #: Devices that have none of the requested states.
    left_out: list[StatsMissing] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SimulatedStatsFields:
    #: The recording, the request trace or the workload.
    file: str = ""
    #: The policy of the simulation.
    policy: str = ""
    #: `recording`, `trace` or `workload`.
    program: Literal["recording", "trace", "workload"] = _WORD
    #: The release that made the recording; null for other programs.
    made_by: MadeBy | None = None
    #: `limit`.
    limit_bytes: int | None = None
    #: `capacity`.
    capacity_bytes: int | None = None
    #: Each device.
    devices: list[StatsDevice] = field(default_factory=list)
    #: How the run of each device went.
    runs: list[StatsRun] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class LifetimesFields:
    #: The recording, the request trace or the workload.
    file: str = ""
    #: `recording`, `trace` or `workload`.
    program: Literal["recording", "trace", "workload"] = _WORD
    #: The lifetimes on each device.
    lifetimes: list[StatsProgram] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReplayFields:
    #: The recording.
    file: str = ""
    #: The settings it was replayed under.
    settings: str | None = None
    #: Where they come from.
    settings_origin: Literal["recorded", "recorded values", "assumed", "given"] | None = None
    #: The PyTorch version whose rules the replay follows.
    profile: str | None = None
    #: The release that made the recording.
    made_by: MadeBy = field(default_factory=_absent)
    #: `capacity`.
    capacity_bytes: int | None = None
    #: The limit that was used; also null if the devices had different ones.
    limit_bytes: int | None = None
    #: The recorded run's limit, given or found.
    recorded_limit_bytes: int | None = None
    #: `fits`, `gets_past`, `does_not_fit` or `unknown`, as for `advise`; `unknown` if neither a limit nor a capacity is known.
    outcome: Literal["fits", "gets_past", "does_not_fit", "unknown"] = _WORD
    #: How each device's recorded run ended.
    endings: list[Literal["no_error", "survived", "died"]] = field(default_factory=list)
    #: Why the rest of a run that died cannot be estimated, as for `advise`.
    doubt: Literal["no_steps", "few_steps", "not_steady", "growing", "margin"] | None = None
    #: The time taken.
    seconds: float = 0.0
    #: Whether every request is served; if the run died, including the estimated rest, without doubt.
    fits: bool = False
    #: The number of requests that fail; under a policy, the first one ends the replay, and the numbers cover the part up to it.
    ooms: int = 0
    #: The entry of the first request that fails; if the settings are those of a run that died, the request that ends it.
    fails_at_entry: int | None = None
    #: The peak of allocated memory.
    peak_allocated_bytes: int = 0
    #: The peak of reserved memory.
    peak_reserved_bytes: int = 0
    #: `num_alloc_retries`.
    retries: int = 0
    #: The number of memory calls to the driver.
    driver_calls: int = 0
    #: What those calls cost.
    driver_ns: int = 0
    #: The number of calls to empty_cache in the trace.
    empty_cache_calls: int = 0
    #: The recorded run.
    recorded: ReplayRecorded | None = None
    #: Whether a replay under the run's own settings needs as much as the run did.
    self_check: Checked | None = None
    #: Memory that was released right before requests that then took some: by a retry, because the device had refused the request, or by a
    #: call to `empty_cache`.
    flushes: list[ReadFlush] = field(default_factory=list)
    #: The result if the doubtful `flushes` are interpreted the other way, if it is different; null under a policy.
    read_otherwise: OtherReading | None = None
    #: The number of requests that failed for a reason other than memory.
    device_errors: int = 0
    #: The limit that was used, if neither a limit nor a capacity was given: what `advise` assumes for a run that died.
    assumed_limit_bytes: int | None = None
    #: The peak of reserved memory if other streams are done by the next request.
    peak_reserved_bytes_earliest: int | None = None
    #: Whether every request is served in that case.
    fits_earliest: bool | None = None
    #: The peak of reserved memory if other streams are never done before a wait.
    peak_reserved_bytes_latest: int | None = None
    #: Whether every request is served in that case.
    fits_latest: bool | None = None
    #: The lowest peak of reserved memory that is likely, judging by the times of the entries. The lowest over all timings tried if the
    #: entries have no times, if the file has private pools, or if requests of the recorded run waited for memory for more than a tenth of
    #: its time.
    peak_reserved_bytes_least: int | None = None
    #: The highest such peak.
    peak_reserved_bytes_most: int | None = None
    #: Whether these two are likely, judging by the times of the entries; if not, they are the extremes of all timings tried.
    peak_reserved_bytes_are_likely: bool | None = None
    #: The number of other timings of the streams that were tried.
    timings_tried: int | None = None
    #: The number of them with which every request is served; null without a limit or a capacity.
    timings_fit: int | None = None
    #: Each device, if there are several.
    devices: list[ReplayDevice] = field(default_factory=list)
    #: `policy`, in place of `settings`.
    policy: str | None = None


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ExportFields:
    #: The recording.
    file: str = ""
    #: The file that was written.
    output: str = ""
    #: The settings that the new file states.
    settings: str | None = None
    #: The PyTorch version.
    profile: str = ""
    #: The release that made the recording.
    made_by: MadeBy = field(default_factory=_absent)
    #: Whether a replay under the run's own settings needs as much as the run did.
    self_check: Checked | None = None
    #: Each replayed device.
    devices: list[ExportDevice] = field(default_factory=list)
    #: Devices without a trace, whose segments are as recorded.
    kept_devices: list[int] = field(default_factory=list)
    #: With `format=perfetto`: the number of blocks written as slices.
    slices: int | None = None
    #: With `format=perfetto`: the number of smaller blocks left out.
    left_out_slices: int | None = None


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SimulatedExportFields:
    #: The recording, the request trace or the workload.
    file: str = ""
    #: The file that was written.
    output: str = ""
    #: The policy of the simulation; null if only the requests were written.
    policy: str | None = None
    #: `recording`, `trace` or `workload`; null if only the requests were written.
    program: Literal["recording", "trace", "workload"] | None = None
    #: The release that made the recording; null for other programs.
    made_by: MadeBy | None = None
    #: The number of events of the program that were carried out, over all devices.
    events: int = 0
    #: The number of marks of steps that were written with the requests, one a line as each event.
    steps: int = 0
    #: Each device; empty if only the requests were written.
    devices: list[ExportSimulatedDevice] = field(default_factory=list)
    #: With `format=perfetto`: the number of blocks written as slices.
    slices: int | None = None
    #: With `format=perfetto`: the number of smaller blocks left out.
    left_out_slices: int | None = None


@dataclass(frozen=True, init=False, repr=False, eq=False)
class LargestBatchesFields:
    #: The memory that the driver's context takes on each device.
    context_bytes: int = 0
    #: The largest batch tried.
    most_batch: int = 0
    #: The number of searches that found that a batch fits although a smaller one does not.
    not_monotone: int = 0
    #: Each combination.
    points: list[SweepBatchPoint] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CatalogueFields:
    #: The catalogue.
    workloads: list[SweepListedWorkload] = field(default_factory=list)
    #: The generators.
    generators: list[SweepGenerator] = field(default_factory=list)
    #: The policies.
    policies: list[SweepListedPolicy] = field(default_factory=list)
    #: Where a device places segments.
    address_models: list[SweepModel] = field(default_factory=list)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class InfoFields:
    #: Who was asked.
    source: Literal["nvml", "cuda"] = _WORD
    #: Why NVML was not asked.
    no_nvml: str | None = None
    #: The driver's version.
    driver: str | None = None
    #: Each device.
    devices: list[InfoDevice] = field(default_factory=list)
