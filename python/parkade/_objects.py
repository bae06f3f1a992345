"""The types of the dictionaries in results, for type checkers: docs/json.md has the same keys."""

# Generated from the declarations in cli/src by: PARKADE_BLESS=1 cargo test -p parkade-cli schema

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired
elif sys.version_info >= (3, 11):
    from typing import NotRequired


class DifferingReleases(TypedDict):
    """Releases that do not explain the recording."""

    #: The releases.
    releases: list[str]
    #: The device whose replay differs.
    device: int
    #: The entry of the first difference; null if it is at the end.
    entry: int | None


class Refuted(TypedDict):
    """A limit that the recorded run exceeded."""

    #: The limit.
    limit_bytes: int
    #: The most that the run had reserved on one device.
    reserved_bytes: int


class MadeBy(TypedDict):
    """What was found out about the release."""

    #: The releases, oldest first, with full names such as `2.11.0`: those that explain the recording, or that its contents allow. If none
    #: explains it, those that differ least.
    releases: list[str]
    #: `given` (`profile`), `contents` (there is no trace to replay, only what the file has), `replay` (every recorded decision was made
    #: again under their rules) or `nearest` (no release explains every decision).
    basis: Literal["given", "contents", "replay", "nearest"]
    #: What in the file excludes other releases.
    judging_by: str | None
    #: What in the file excludes some of `releases`, although they explain every decision and no others do: the file was changed, or another
    #: program wrote it.
    contradicted_by: str | None
    #: The other releases that were tried and do not explain the recording.
    differing: list[DifferingReleases]
    #: The release whose rules were used, such as `2.11`, if `profile` chose it.
    replayed_as: str | None
    #: The limit that was given, if it was not the recorded run's: decisions differ under it, and the run had reserved more. The releases
    #: are those that explain the recording without it.
    refuted_limit: Refuted | None
    #: Whether no release explains the recording, and its trace maps memory although its settings have `expandable_segments` off: the
    #: settings changed, or another allocator decided, as a policy of parkade does.
    maps_while_off: bool
    #: The same in a sentence.
    words: str


class VerifyMismatch(TypedDict):
    #: The device.
    device: int
    #: The entry; null at the end.
    entry: int | None
    #: What the recording has.
    recorded: str
    #: What the replay did.
    replayed: str


class VerifyTolerated(TypedDict):
    """Names in the file that are not known, with their counts."""

    #: The keys of the snapshot that are not known.
    unknown_top_keys: dict[str, int]
    #: The keys of segments that are not known.
    unknown_segment_keys: dict[str, int]
    #: The keys of blocks that are not known.
    unknown_block_keys: dict[str, int]
    #: The keys of trace entries that are not known.
    unknown_entry_keys: dict[str, int]
    #: The actions of trace entries that are not known.
    unknown_actions: dict[str, int]
    #: The number of snapshots before this one in the same file.
    earlier_snapshots: int


class DeviceLeftOut(TypedDict):
    """What a device's trace leaves out."""

    #: The device.
    device: int
    #: The kinds.
    actions: list[Literal[
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
        "snapshot",
    ]]
    #: The number of entries in the file.
    recorded_entries: int
    #: The number of entries that were inferred from those and added; null if they cannot be inferred, in which case nothing on the device
    #: was checked.
    inferred_entries: int | None


class VerifyLostBeginning(TypedDict):
    """What existed before the first entry of a file whose oldest entries are missing."""

    #: The number of segments.
    segments: int
    #: The number of blocks in use.
    blocks: int
    #: How much was reserved.
    reserved_bytes: int
    #: The number of blocks whose size appears nowhere.
    assumed_sizes: int
    #: The number of blocks whose size can be inferred only from requests that did not fit behind them.
    inferred_sizes: int
    #: Whether garbage collection needed ages that are unknown.
    unknown_ages: bool
    #: The number of collections whose victims were taken from the recording.
    assumed_collections: int


class VerifyGuessedSegment(TypedDict):
    #: The address.
    address: int
    #: The pool.
    pool: int
    #: When it was reserved; null if that was before the first entry.
    made_at_entry: int | None
    #: When it was released; null if that was at the end.
    gone_at_entry: int | None


class VerifyGuessedPools(TypedDict):
    """Private pools inferred from the trace."""

    #: The number of pools.
    pools: int
    #: The number of requests they served.
    requests: int
    #: The number of windows of the trace in which they were used.
    windows: int
    #: The number of requests that differ without them.
    contradictions: int
    #: Their segments.
    segments: list[VerifyGuessedSegment]


class VerifyNotInFile(TypedDict):
    #: What existed before the first entry of a file whose oldest entries are missing.
    lost_beginning: VerifyLostBeginning | None
    #: The number of calls to empty_cache found in the trace.
    empty_cache_calls: int
    #: The number of refusals by the device that were taken from the recording.
    device_refusals: int
    #: The number of restored checkpoints of private pools that were inferred from the trace.
    restored_checkpoints: int
    #: The private pools that were gone before the end, inferred from the trace.
    guessed_pools: VerifyGuessedPools | None
    #: Whether the search for such pools stopped early, because there are too many possibilities.
    gave_up_on_pools: bool
    #: With `stats`: the number of calls to empty_cache that released nothing.
    silent_empty_cache_calls: int | None
    #: With `stats`: the entries between which a call to reset_peak_memory_stats explains every peak.
    peaks_reset_between_entries: list[int] | None


class VerifyStatisticDifference(TypedDict):
    #: The key.
    key: str
    #: PyTorch's value.
    recorded: int
    #: The replay's value.
    replayed: int


class VerifyStatistics(TypedDict):
    #: The number of keys compared.
    compared: int
    #: The number of keys whose values the file cannot show.
    unknowable: int
    #: The keys that differ.
    differences: list[VerifyStatisticDifference]
    #: The keys that this PyTorch version does not have.
    unknown_keys: list[str]


class VerifyDevice(TypedDict):
    #: The device.
    device: int
    #: The number of entries in its trace.
    entries: int
    #: The number of decisions compared.
    decisions: int
    #: How many decisions differ.
    mismatches: int
    #: The first decision that differs.
    first_mismatch: VerifyMismatch | None
    #: The peak of allocated memory.
    peak_allocated_bytes: int
    #: The peak of reserved memory.
    peak_reserved_bytes: int
    #: The number of requests that run out of memory.
    ooms: int
    #: `num_alloc_retries`.
    retries: int
    #: What the file does not show.
    not_in_file: VerifyNotInFile


class AdviseWarning(TypedDict):
    #: A name that does not change.
    id: str
    #: The setting concerned.
    setting: str
    #: Whether the recording shows that the program is affected.
    in_use: Literal["not shown", "unknown", "shown"]
    #: How bad it is.
    severity: Literal["no effect", "may break", "breaks"]
    #: What happens.
    what: str
    #: What to do about it.
    instead: str
    #: The source of this fact.
    source: str


class AdviseLikely(TypedDict):
    #: The number of them that serve every request.
    fit: int
    #: How many there are.
    of: int
    #: The lowest likely peak, as `replay` has it; with several devices, that of the device whose likely peak is the highest.
    least_peak_reserved_bytes: int
    #: The highest likely peak.
    most_peak_reserved_bytes: int


class AdviseTimings(TypedDict):
    #: The number of timings with which every request is served.
    fit: int
    #: The number of timings tried.
    of: int
    #: The lowest peak; with several devices, that of the device whose peak may be the highest.
    least_peak_reserved_bytes: int
    #: The highest peak.
    most_peak_reserved_bytes: int


class AdviseDevice(TypedDict):
    #: The device.
    device: int
    #: Whether its requests are served.
    fits: bool
    #: The first entry whose request fails.
    fails_at_entry: int | None
    #: Its peak of reserved memory.
    peak_reserved_bytes: int
    #: The smallest memory in which its requests are served.
    smallest_bytes: int


class AdviseOtherwise(TypedDict):
    #: The releases.
    releases: list[str]
    #: The outcome with the settings that they recommend.
    outcome: Literal["fits", "gets_past", "does_not_fit", "unknown"]
    #: The line that they recommend.
    line: str | None


class AdviseHint(TypedDict):
    #: The device.
    device: int
    #: The entry of the error.
    entry: int
    #: The device had at least this much.
    least_bytes: int
    #: The device had less than this, or exactly this much if both are equal.
    below_bytes: int


class AdviseContradicted(TypedDict):
    """What contradicts the given memory size."""

    #: The device.
    device: int
    #: The entry of a request that was refused.
    entry: int
    #: The bytes that would have been reserved.
    refused_bytes: int


class Checked(TypedDict):
    """The recorded peak, and that of a replay under the run's own settings."""

    #: The predicted peak of reserved memory.
    own_settings_peak_bytes: int
    #: The recorded peak of reserved memory.
    recorded_peak_bytes: int
    #: Whether the two are equal.
    holds: bool


class AdviseDeviceFlush(TypedDict):
    """The same with the device."""

    #: The device.
    device: int
    #: The entry of the request.
    entry: int
    #: The bytes that would have been reserved if nothing had been released.
    wanted_bytes: int
    #: Whether it was interpreted as a retry: the device had refused the request. If not, it was interpreted as a call to `empty_cache`.
    is_retry: bool
    #: Why it was interpreted this way: as a call `capture_follows`, `often_emptied`, `other_stack`, `no_retry`; as a retry
    #: `never_had_more`, `often_refused`, `others_failed`, `stack_of_request`, `no_call`.
    reason: Literal[
        "capture_follows",
        "often_emptied",
        "never_had_more",
        "often_refused",
        "others_failed",
        "stack_of_request",
        "other_stack",
        "no_call",
        "no_retry",
    ]


class AdviseReadOtherwise(TypedDict):
    """The result of the recommended option on a device if its recording is interpreted the other way."""

    #: The device.
    device: int
    #: The peak of reserved memory.
    peak_reserved_bytes: int
    #: Whether every request is served in the available memory.
    fits: bool


class AdviseSufficientOn(TypedDict):
    """The same on each device that may lack memory, and the range in which its memory was."""

    #: The device.
    device: int
    #: The amount of memory that serves every recorded request of this device.
    bytes: int
    #: The device had at least this much.
    least_bytes: int
    #: The device had less than this; null if nothing shows it.
    below_bytes: int | None


class AdviseSufficient(TypedDict):
    """What serves every recorded request if the memory is known only roughly, on the device that may lack the most."""

    #: The device; if there are several, the one that may lack the most.
    device: int
    #: The amount of memory that is enough.
    bytes: int
    #: The settings with which it is enough.
    settings: str
    #: With several devices: each one that may lack memory, with the same settings.
    devices: NotRequired[list[AdviseSufficientOn]]


class AdviseEnded(TypedDict):
    """How a device's run ended, and the estimated rest."""

    #: The device.
    device: int
    #: How the run ended.
    ending: Literal["no_error", "survived", "died"]
    #: The entry of the out-of-memory error that ended the run, or of the last one that it survived.
    at_entry: int | None
    #: The number of requests served after that error.
    served_afterwards: int | None
    #: The bytes of those requests.
    served_afterwards_bytes: int | None
    #: The entry at which a request with the error's stack was served.
    asked_again_at_entry: int | None
    #: The steps before the one that failed, from which the rest is estimated.
    steps_before: int | None
    #: The number of whole steps added.
    steps_added: int | None
    #: Why the rest cannot be estimated.
    doubt: Literal["no_steps", "few_steps", "not_steady", "growing", "margin"] | None


class AdviseFailure(TypedDict):
    """Where the recorded run's own settings fail."""

    #: The device.
    device: int
    #: The entry of the request.
    entry: int
    #: The size of the block that was needed.
    wanted_bytes: int
    #: Reserved at that moment.
    reserved_bytes: int
    #: In use at that point.
    live_bytes: int
    #: Freed, but another stream may still use it.
    pending_bytes: int
    #: Free in the cache for this request's stream.
    free_bytes: int
    #: The largest hole that is free for this request's stream.
    largest_free_bytes: int
    #: Cached for other streams.
    other_streams_bytes: int
    #: Cached by private pools.
    private_pools_bytes: int


class AdviseLiveHolder(TypedDict):
    #: The bytes held.
    bytes: int
    #: The number of blocks.
    blocks: int
    #: The calls as `file:line function`, the innermost first.
    stack: list[str]


class AdviseLive(TypedDict):
    """The peak of live memory on a device."""

    #: The device.
    device: int
    #: The most live bytes, including the request at that point.
    peak_bytes: int
    #: The entry at which the program holds the most.
    at_entry: int
    #: Up to five stacks that hold the most.
    holders: list[AdviseLiveHolder]
    #: Blocks in use before the first entry of a file whose oldest entries are missing.
    lost_beginning_blocks: int | None


class AdviseBase(TypedDict):
    """The cut runs that are like this one."""

    #: How many of the runs were completed.
    completed: int
    #: How many runs there were.
    runs: int


class AdviseRemedy(TypedDict):
    """The same as a JSON object."""

    #: `settings`, `policy` (of parkade, in place of PyTorch's allocator) or `program`.
    kind: Literal["settings", "policy", "program"]
    #: What to paste into a shell or a program, or what to do.
    line: str
    #: With this remedy: `fits`, `gets_past`, `does_not_fit` or `unknown` (also of a program that is changed).
    outcome: Literal["fits", "gets_past", "does_not_fit", "unknown"]
    #: How likely it completes a program that died: one more than `completed` of two more than `runs`. Where the limit is known only roughly
    #: and what is assumed of it is too little, this is multiplied by the part of the range that is enough. Null if the program did not die,
    #: if the memory is not known, and for `program`.
    completes_probability: float | None
    #: The runs like it that were cut where they died and continued with such a remedy.
    completes_base: AdviseBase | None
    #: Of `program`: by how much the peak must be reduced.
    less_bytes: int | None
    #: What it asks for; of `program`, the kinds of blocks that hold the most and what makes them less.
    asks: list[str]


class Needs(TypedDict):
    """The same as a JSON object."""

    #: The policy's name.
    policy: str
    #: The outcome with this policy.
    outcome: Literal["fits", "gets_past", "does_not_fit", "unknown"]
    #: Whether every request is served in the available memory; null if that is unknown. If the run died, this includes the estimated rest.
    fits: bool | None
    #: Whether every recorded request is served in that memory, including the one that ended the run.
    gets_past: bool | None
    #: The first recorded entry whose request is not served.
    fails_at_entry: int | None
    #: Why the rest of a run that died cannot be estimated.
    doubt: Literal["no_steps", "few_steps", "not_steady", "growing", "margin"] | None
    #: The smallest memory in which every request is served; with several devices, that of the device that needs the most. Null if the
    #: policy does not serve them in any memory.
    smallest_capacity_bytes: int | None
    #: The smallest memory for `expandable_segments:True`, measured in the same way.
    expandable_smallest_capacity_bytes: int | None
    #: The peak of reserved memory in the available memory. If that is too little, or if it is unknown and the policy takes a share of all
    #: memory: the peak in the smallest memory.
    peak_reserved_bytes: int | None
    #: The cost of the driver's calls in that case, on all devices.
    driver_us: int | None
    #: The number of requests that failed in the recording and are left out, because the run did without them.
    failed_requests: int
    #: Why the policy does not serve the requests, however much memory there is.
    not_served: str | None


class DiagnoseCall(TypedDict):
    #: The function.
    name: str
    #: The file.
    filename: str
    #: The line.
    line: int
    #: Whether it is the user's own frame: the innermost outside of libraries, PyTorch and Python.
    own: bool


class DiagnoseAsked(TypedDict):
    #: The bytes that the program requested.
    requested_bytes: int
    #: The request rounded to a block.
    block_bytes: int
    #: The segment that would be reserved for it.
    segment_bytes: int
    #: The request's stream.
    stream: int
    #: The id of the request's pool; 0, 0 is the default pool.
    pool: list[int]
    #: The calls that made the request, innermost first.
    stack: list[DiagnoseCall]


class DiagnoseStep(TypedDict):
    """One of the five steps."""

    #: The step's name.
    step: Literal["capacity", "fragmentation", "settings", "empty_cache", "snapshot"]
    #: Whether it applies.
    applies: Literal["yes", "no", "unknown"]
    #: What was found.
    finding: str


class DiagnoseEvidence(TypedDict):
    #: The bytes.
    bytes: int
    #: The entry.
    entry: int


class DiagnoseKnownLimit(TypedDict):
    """What is known about the memory limit."""

    #: How the limit is known.
    known: Literal["given", "device_full", "between", "not_fixed", "never_reached"]
    #: The limit is at least this.
    at_least_bytes: int
    #: The limit is below this.
    below_bytes: int | None
    #: The largest amount that was reserved.
    served: DiagnoseEvidence | None
    #: The smallest amount that was refused.
    refused: DiagnoseEvidence | None
    #: Evidence in the file that is impossible under the given limit. If it is the reserved memory, the run is diagnosed without `limit`.
    contradicted_by: str | None
    #: The free memory that the device reported.
    device_free_bytes: int | None


class DiagnoseStranded(TypedDict):
    #: Why the bytes are stranded.
    cause: Literal[
        "pending_event",
        "private_pool",
        "other_stream",
        "other_class",
        "oversize",
        "expandable_off",
        "fits",
        "pinned",
        "too_small",
    ]
    #: The bytes.
    bytes: int
    #: The number of holes.
    holes: int
    #: The largest hole.
    largest_bytes: int
    #: What empty_cache could release of the bytes.
    releasable_bytes: int


class DiagnoseHeap(TypedDict):
    #: Reserved.
    reserved_bytes: int
    #: In use, as requested.
    requested_bytes: int
    #: Lost to rounding in blocks in use.
    rounding_bytes: int
    #: Requested and rounding together.
    allocated_bytes: int
    #: Reserved but not allocated.
    stranded_bytes: int
    #: The largest hole.
    largest_hole_bytes: int
    #: What empty_cache could still release.
    releasable_bytes: int
    #: In whole segments kept by private pools.
    kept_by_pools_bytes: int
    #: The number of blocks in use.
    live_blocks: int
    #: The number of segments.
    segments: int
    #: The stranded bytes by cause.
    stranded: list[DiagnoseStranded]


class DiagnosePart(TypedDict):
    #: Why they are not allocated: `pending_event`, `private_pool`, `other_stream` (not `main_stream`), `free_segment` (or whole pages),
    #: `small_pool_hole` or `large_pool_hole`; the first that applies counts.
    cause: Literal["pending_event", "private_pool", "other_stream", "free_segment", "small_pool_hole", "large_pool_hole"]
    #: The bytes.
    bytes: int
    #: The number of pieces.
    pieces: int
    #: The largest piece.
    largest_bytes: int
    #: The part of the bytes that is in wholly free segments or pages.
    whole_bytes: int


class DiagnoseDifference(TypedDict):
    #: Reserved minus allocated.
    bytes: int
    #: The stream with the most allocated bytes outside private pools.
    main_stream: int | None
    #: The bytes by cause.
    parts: list[DiagnosePart]


class DiagnoseHighest(TypedDict):
    #: The peak of allocated memory.
    allocated_bytes: int
    #: The first entry after which that peak was reached; null if it was before the first.
    allocated_entry: int | None
    #: Reserved at the peak of allocated memory.
    reserved_at_allocated_bytes: int
    #: The peak of reserved memory.
    reserved_bytes: int
    #: The first entry after which that peak was reached.
    reserved_entry: int | None
    #: The most allocated while reserved memory was at its peak.
    allocated_at_reserved_bytes: int
    #: The first entry after which that much was allocated.
    allocated_at_reserved_entry: int | None


class DiagnoseReleased(TypedDict):
    #: The bytes.
    bytes: int
    #: The number of pieces.
    segments: int
    #: The first and the last entry that releases.
    entries: list[int] | None
    #: The number of frees that it waited for.
    completed_frees: int


class DiagnoseAnnotated(TypedDict):
    #: The open annotations, the outermost first.
    open: list[str]
    #: The name of the annotation that ended last, and how often it had ended.
    last_ended: list[str | int] | None


class DiagnoseBegan(TypedDict):
    #: The entry since which it has been high; null if that is before the first.
    entry: int | None
    #: The level that counts as high: half of the value at the diagnosed point.
    level_bytes: int
    #: The time of the entry.
    time_us: int | None
    #: The annotated phase at that time.
    phase: DiagnoseAnnotated | None


class DiagnoseHeld(TypedDict):
    """A stack that holds live bytes."""

    #: The bytes held.
    bytes: int
    #: The number of blocks.
    blocks: int
    #: If the stack has C++ calls: the operator that took the memory, and its node in a backward pass.
    operator: NotRequired[str]
    #: The stack.
    stack: list[DiagnoseCall]


class DiagnoseBlockBeside(TypedDict):
    """A block beside free memory."""

    #: The block's address.
    address: int
    #: The block's size.
    bytes: int
    #: Whether it is freed and waits for events.
    pending: bool
    #: The free bytes beside it.
    beside_bytes: int
    #: The size of the hole without it.
    opens_bytes: int
    #: Whether that hole would serve the request.
    enough: bool
    #: Whether the whole segment would be free.
    frees_segment: bool
    #: The entry of its allocation; null if that is older than the trace.
    entry: int | None
    #: The entries since then.
    age_entries: int | None
    #: The time since then.
    age_us: int | None
    #: The calls that requested it, innermost first.
    stack: list[DiagnoseCall]


class DiagnoseLost(TypedDict):
    #: The number of segments.
    segments: int
    #: The number of blocks in use.
    blocks: int
    #: How much was reserved.
    reserved_bytes: int


class DiagnoseExactness(TypedDict):
    #: The number of entries in the trace.
    entries: int
    #: The number of decisions compared.
    decisions: int
    #: How many decisions differ.
    mismatches: int
    #: What existed before the first entry of a file whose oldest entries are missing.
    lost_beginning: DiagnoseLost | None


class DiagnoseFigure(TypedDict):
    #: The figure.
    bytes: int
    #: How far off it may be.
    within_bytes: int


class DiagnoseFirst(TypedDict):
    #: The rank's number.
    rank: int | None
    #: When it failed, as the log prints it.
    time: str
    #: Whether `messages` contains one from that rank.
    has_message: bool
    #: The evidence that it was first: `times` (of the lines) or `launcher` (torchrun's summary).
    told_by: Literal["times", "launcher"]


class DiagnoseMessage(TypedDict):
    #: The rank that wrote it, if a prefix of its line shows it.
    rank: int | None
    #: The device.
    device: int | None
    #: The line on which it first begins.
    line: int
    #: How often it occurs in the log.
    times: int
    #: The time of its line.
    time: str | None
    #: Whether it is the one that is explained.
    explained: bool
    #: Who wrote it.
    source: str
    #: Whether no part of it is missing.
    complete: bool
    #: What a cut message lacks.
    missing: list[str]
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
    ]
    #: The segment that was tried.
    tried_bytes: int | None
    #: The device's memory.
    total_bytes: int | None
    #: Free on the device.
    free_bytes: int | None
    #: Allocated by PyTorch.
    allocated_bytes: int | None
    #: Reserved by PyTorch.
    reserved_bytes: int | None


class DiagnoseOther(TypedDict):
    #: The rank that wrote it, if a prefix shows it.
    rank: int | None
    #: The line of the log on which it begins, from 1.
    line: int
    #: Who wrote it.
    framework: str
    #: The amount requested, if the message states it.
    wanted_bytes: int | None


class ReportHint(TypedDict):
    """The evidence for the limit, if it was not given."""

    #: The entry of the error.
    entry: int
    #: At least this much could be reserved.
    least_bytes: int
    #: Less than this could be reserved; equal to `least_bytes` if the limit is known exactly.
    below_bytes: int


class ReportNumbers(TypedDict):
    """The minimum, maximum and last value of each bucket."""

    #: The minimum in each bucket.
    min: list[int]
    #: The maximum in each bucket.
    max: list[int]
    #: The last value in each bucket.
    last: list[int]


class ReportDrawn(TypedDict):
    #: Allocated memory.
    allocated_bytes: ReportNumbers
    #: Active memory.
    active_bytes: ReportNumbers
    #: Reserved memory.
    reserved_bytes: ReportNumbers


class ReportMarked(TypedDict):
    #: The entry.
    entry: int
    #: What happened.
    kind: Literal["oom", "retry", "empty_cache"]
    #: The bytes requested or released.
    bytes: int | None


ReportSpan = TypedDict(
    "ReportSpan",
    {
        #: The annotation.
        "name": str,
        #: The first entry of the phase.
        "from": int,
        #: The entry after its last.
        "to": int,
        #: The number of phases that enclose it.
        "depth": int,
    },
)


class ReportHeld(TypedDict):
    #: A call, or a size of block if the file has no stacks.
    what: str
    #: The bytes held.
    bytes: int
    #: The number of blocks.
    blocks: int


class ReportHow(TypedDict):
    #: `stack`, `annotation` (the optimizer's own), `size` (paired with parameters, or a library's workspace), `pairing` (the order of
    #: frees), `lifetime`, `repetition` (the step before), `steps` (in a run that trains nothing: made and freed within one step, or carried
    #: through several) or `not_told`.
    how: Literal["stack", "annotation", "size", "pairing", "lifetime", "repetition", "steps", "not_told"]
    #: The bytes told so.
    bytes: int
    #: The number of blocks.
    blocks: int


class ReportKind(TypedDict):
    #: `parameters` (with buffers), `gradients`, `optimizer_states`, `activations`, `inputs`, `temporaries`, `workspaces`, `caches` or
    #: `unknown`.
    kind: Literal["parameters", "gradients", "optimizer_states", "activations", "inputs", "temporaries", "workspaces", "caches", "unknown"]
    #: The bytes held.
    bytes: int
    #: The number of blocks.
    blocks: int
    #: The bytes of blocks that are in use at the end of a step.
    across_steps_bytes: int
    #: The bytes of blocks that one step makes and frees. Of the rest neither is known.
    within_step_bytes: int
    #: The same by how the kind was told.
    told_by: list[ReportHow]


class ReportNoStack(TypedDict):
    #: The bytes made on threads without Python calls, as autograd's are.
    autograd_bytes: int
    #: The number of those blocks.
    autograd_blocks: int
    #: The bytes from before the first entry.
    early_bytes: int
    #: The number of those blocks.
    early_blocks: int


class ReportFoundSteps(TypedDict):
    """The steps that were found."""

    #: How many steps end in the file.
    count: int
    #: How the steps are recognised: by an `annotation`, or by `repetition`, that is, by what the run repeats.
    told_by: Literal["annotation", "repetition"]
    #: The annotation.
    mark: str | None


class ReportWithRest(TypedDict):
    """The same with the estimated rest."""

    #: The peak of reserved memory.
    peak_reserved_bytes: int
    #: The number of entries, recorded up to the error and then estimated, before the first that fails.
    fails_after_entries: int | None
    #: `num_alloc_retries`.
    retries: int
    #: The number of memory calls to the driver.
    driver_calls: int
    #: What those calls cost.
    driver_us: int


class ReportWhatIf(TypedDict):
    #: The settings.
    settings: str
    #: Whether these are the recorded run's.
    is_own: bool
    #: Whether the page recommends them; never without `-o`, which makes it search.
    recommended: bool
    #: Whether every request in the file is served; null if the memory is unknown.
    fits: bool | None
    #: `fits`, `gets_past`, `does_not_fit` or `unknown`, as `advise` judges it.
    outcome: Literal["fits", "gets_past", "does_not_fit", "unknown"]
    #: The first entry whose request fails.
    fails_at_entry: int | None
    #: The peak of reserved memory.
    peak_reserved_bytes: int
    #: `num_alloc_retries`.
    retries: int
    #: The number of memory calls to the driver.
    driver_calls: int
    #: What those calls cost.
    driver_us: int
    #: Reserved memory over time, in buckets of the same kind.
    reserved_bytes: ReportNumbers
    #: The same with the estimated rest, as `advise` tries it; null if the run did not die, or nothing can be estimated.
    with_rest: ReportWithRest | None


class ReportEstimated(TypedDict):
    #: The entry at which it died.
    after_entry: int
    #: The number of entries that are estimated.
    entries: int
    #: The most bytes in use, up to the error and after it.
    peak_in_use_bytes: int


class ReportDevice(TypedDict):
    #: The device.
    device: int
    #: The memory in which other settings were tried on it.
    capacity_bytes: int | None
    #: The number of entries in its trace.
    entries: int
    #: The run in a sentence or two.
    what_happened: str
    #: Whether the run ran out of memory and continued.
    ending: Literal["no_error", "survived", "died"]
    #: The number of decisions that differ; null without a trace.
    mismatches: int | None
    #: The self-check of the device.
    self_check: Checked | None
    #: The peak of allocated memory.
    peak_allocated_bytes: int
    #: The peak of active memory: allocated, or freed but still used by another stream.
    peak_active_bytes: int
    #: The peak of reserved memory.
    peak_reserved_bytes: int
    #: The first entry after which allocated memory is at its peak; null if before the first.
    peak_allocated_entry: int | None
    #: Of the entries after which reserved memory is at its peak, the first with the most allocated, as `peaks.allocated_at_reserved_entry`
    #: of `diagnose`.
    peak_reserved_entry: int | None
    #: Memory over time.
    curves: ReportDrawn
    #: Events worth seeing.
    markers: list[ReportMarked]
    #: The annotated phases.
    phases: list[ReportSpan]
    #: Up to 50 holders that hold the most when allocated memory peaks.
    holders_at_peak: list[ReportHeld]
    #: The live blocks when allocated memory peaks, by kind, the most bytes first.
    holders_by_kind: list[ReportKind]
    #: The live blocks without a stack at that point; null if almost no block of the file has one.
    holders_without_stack: ReportNoStack | None
    #: The number of forward passes that were found with their backward passes.
    passes: int
    #: The steps of the run that were found; null if there are none.
    steps: ReportFoundSteps | None
    #: The run under other settings, its own first.
    what_if: list[ReportWhatIf]
    #: The estimated rest of a run that died.
    rest: ReportEstimated | None
    #: What to know before trusting the curves.
    notes: list[str]


class SimulatedFreeMemory(TypedDict):
    """Free memory."""

    #: The bytes of free blocks.
    free_bytes: int
    #: The largest free block.
    largest_hole_bytes: int
    #: The number of free blocks.
    holes: int


class SimulatedPinnedSegment(TypedDict):
    """A segment that blocks in the way keep in use."""

    #: The first byte.
    address: int
    #: The size of the segment.
    bytes: int
    #: The free bytes in it.
    free_bytes: int
    #: The number of blocks in the way that are in it.
    blocks_in_the_way: int
    #: Its pool; 0 is the default pool.
    pool: int
    #: Its collection: `small` or `large`.
    collection: str
    #: The number of its stream; 0 is the default stream.
    stream: int


class SimulatedOthersOfSize(TypedDict):
    """The other buffers of the size of a block in the way, until the request that the policy cannot serve."""

    #: The size of each, as requested.
    each_bytes: int
    #: The number of those that are live.
    live: int
    #: The number of those that were freed.
    freed: int
    #: The least lifetime of those that were freed, in requests; null if none was.
    least_requests: int | None
    #: The median.
    median_requests: int | None
    #: The greatest.
    greatest_requests: int | None


class SimulatedBlockInTheWay(TypedDict):
    """A block in the way."""

    #: The first byte.
    address: int
    #: The size of the block.
    bytes: int
    #: The buffer in it, by the number of its request; null if the program has freed it and other streams still use it.
    buffer: int | None
    #: The event that allocated it; for a recording, the entry.
    allocated_at: int | None
    #: The event that frees it; for a recording, the entry. Null if the program keeps it.
    freed_at: int | None
    #: The number of events since its allocation.
    age_events: int | None
    #: The number of requests that follow its own until the one that the policy cannot serve.
    age_requests: int | None
    #: The other buffers of its requested size; null if the program has freed it.
    same_size: SimulatedOthersOfSize | None
    #: The call that requested it; null if the file has no stack.
    requested_in: str | None


class SimulatedFirstExcess(TypedDict):
    """The first request that a policy cannot serve in the memory of the packing."""

    #: The event; for a recording, the entry.
    at: int
    #: The number of the event in any case, counted from 0.
    event: int
    #: The requested bytes.
    requested_bytes: int
    #: The size of the block that the policy needs.
    block_bytes: int
    #: The memory of the device: the packing, rounded up to 2 MiB.
    device_bytes: int
    #: The bytes that the policy has reserved then.
    reserved_bytes: int
    #: The pool that serves it; 0 is the default pool.
    pool: int
    #: The collection that serves it: `small` or `large`.
    collection: str
    #: The number of its stream; 0 is the default stream.
    stream: int
    #: The free memory in the segments of its pool, collection and stream.
    free_here: SimulatedFreeMemory
    #: The free memory in all other segments.
    free_elsewhere: SimulatedFreeMemory
    #: Whether the blocks in the way lie side by side in a segment that may serve the request. If not, they keep the segments that would
    #: have to be released for a new one.
    in_one_segment: bool
    #: The number of blocks in the way: those with the fewest bytes whose absence would make enough room. 0 if there is room that the policy
    #: does not use.
    blocks_in_the_way: int
    #: The bytes of these blocks.
    bytes_in_the_way: int
    #: The segments that these blocks keep in use, by address.
    pinned_segments: list[SimulatedPinnedSegment]
    #: Up to 1,000 of these blocks, the largest first.
    in_the_way: list[SimulatedBlockInTheWay]


class SimulatedCompared(TypedDict):
    """A policy compared with the best packing that was found offline."""

    #: The most bytes live at once, with requests rounded up to 512 bytes.
    load_bytes: int
    #: The memory of the best packing that was found, with every lifetime known in advance.
    packing_bytes: int
    #: The lower bound for every packing.
    bound_bytes: int
    #: Whether it is proven that no packing needs less memory. If not, the search ended first.
    packing_converged: bool
    #: The steps that the packer took.
    steps: int
    #: The first request that the policy cannot serve in the memory of the packing; null if it serves all.
    first_excess: SimulatedFirstExcess | None


class ReportSimulatedDevice(TypedDict):
    """A device's run under a policy."""

    #: The device.
    device: int
    #: The number of entries in the simulated trace, which entries below refer to.
    entries: int
    #: The run in a sentence or two.
    what_happened: str
    #: Whether every request was served.
    fits: bool
    #: The event of the program at which the run ran out of memory; for a recording, its entry. Null if it did not.
    fails_at: int | None
    #: The memory that the policy had; null if it was not limited.
    capacity_bytes: int | None
    #: The peak of allocated memory.
    peak_allocated_bytes: int
    #: The peak of active memory: allocated, or freed but still used by another stream.
    peak_active_bytes: int
    #: The peak of reserved memory.
    peak_reserved_bytes: int
    #: The first entry after which allocated memory is at its peak; null if before the first.
    peak_allocated_entry: int | None
    #: Of the entries after which reserved memory is at its peak, the first with the most allocated.
    peak_reserved_entry: int | None
    #: `num_alloc_retries`.
    retries: int
    #: The number of driver calls.
    driver_calls: int
    #: What those calls cost.
    driver_us: int
    #: The comparison with the best packing; null with `bounds=0`.
    packing: SimulatedCompared | None
    #: Memory over time.
    curves: ReportDrawn
    #: Events worth seeing.
    markers: list[ReportMarked]
    #: The annotated phases, or the steps of a workload.
    phases: list[ReportSpan]
    #: Up to 50 holders that hold the most when allocated memory peaks.
    holders_at_peak: list[ReportHeld]
    #: The live blocks when allocated memory peaks, by kind, the most bytes first.
    holders_by_kind: list[ReportKind]
    #: What to know before trusting the curves.
    notes: list[str]


class DiffInput(TypedDict):
    #: The file.
    file: str
    #: The recorded run's settings.
    settings: str
    #: Where they come from.
    settings_origin: Literal["recorded", "recorded values", "assumed", "given"]
    #: The PyTorch version.
    profile: str
    #: The release that made the recording.
    made_by: MadeBy


class DiffPeak(TypedDict):
    #: The peak.
    bytes: int
    #: The entry that led to it; null if that is before the first.
    entry: int | None
    #: The step in which the peak lies, if steps are marked.
    step: int | None
    #: The phase in which the peak lies, as in `comparison.phases`, if phases are marked.
    phase: str | None
    #: Reserved then.
    reserved_bytes: int
    #: In use then.
    allocated_bytes: int
    #: Freed, but another stream may still use it.
    pending_bytes: int
    #: The bytes that were requested for allocated and pending memory.
    requested_bytes: int
    #: The bytes beyond those requests.
    rounding_bytes: int
    #: Free in whole segments.
    free_segments_bytes: int
    #: Free in segments that are partly in use.
    partial_segments_bytes: int
    #: The largest hole.
    largest_hole_bytes: int
    #: The number of holes.
    holes: int
    #: The number of segments; a run of mapped pages counts as one.
    segments: int
    #: 1 - allocated / reserved.
    fragmentation: float | None


class DiffDriver(TypedDict):
    #: Segments taken, one cudaMalloc each.
    segments_taken: int
    #: Segments given back.
    segments_given_back: int
    #: How often pages were mapped.
    maps: int
    #: How often pages were unmapped.
    unmaps: int
    #: The bytes taken and mapped.
    taken_bytes: int
    #: The bytes released and unmapped.
    given_back_bytes: int


class DiffRun(TypedDict):
    #: The device.
    device: int
    #: The number of entries in its trace.
    entries: int
    #: The part of the run that the other keys describe: `whole`, `end` (a file has no trace), `step` or `common_steps` (those of both
    #: files).
    part: Literal["whole", "end", "step", "common_steps"]
    #: The number of the step, if the part is one.
    step: int | None
    #: The first and the last of the common steps, if the part is those.
    common_steps: list[int] | None
    #: The first entry of the part, and the one after its last.
    part_entries: list[int]
    #: The number of recorded decisions that the replay does not reproduce.
    mismatches: int
    #: The number of decisions compared.
    decisions: int
    #: Reserved before the first entry of a file whose oldest entries are missing.
    lost_beginning_bytes: int | None
    #: The number of requests that ran out of memory.
    ooms: int
    #: The entry of the first of them.
    first_oom_entry: int | None
    #: How the run ended.
    ending: Literal["no_error", "survived", "died"]
    #: How often the cache was emptied for lack of memory.
    retries: int
    #: The number of calls to empty_cache that released memory.
    empty_cache_calls: int
    #: The number of whole steps in the trace, if steps are marked or the run repeats itself.
    steps: int | None
    #: The peak of allocated memory.
    peak_allocated: DiffPeak
    #: The peak of reserved memory.
    peak_reserved: DiffPeak
    #: The peak of reserved memory over everything in the file.
    whole_peak_reserved_bytes: int
    #: What the allocator asked of the driver.
    driver: DiffDriver


class DiffSizes(TypedDict):
    #: The sizes are at least this.
    least_bytes: int
    #: The sizes are below this.
    below_bytes: int


class DiffBlocks(TypedDict):
    #: The bytes.
    bytes: int
    #: The number of blocks.
    blocks: int


class DiffGroup(TypedDict):
    #: The stack in A, the innermost call first.
    stack_a: list[DiagnoseCall] | None
    #: The stack in B, the innermost call first.
    stack_b: list[DiagnoseCall] | None
    #: The requested sizes, of blocks without a stack.
    sizes: DiffSizes | None
    #: The blocks in A.
    a: DiffBlocks
    #: The blocks in B.
    b: DiffBlocks
    #: The bytes in B minus those in A.
    change_bytes: int


class DiffFirstStep(TypedDict):
    #: The step's number, from 0.
    step: int
    #: The peak in A during the step.
    peak_bytes_a: int
    #: The peak in B during the step.
    peak_bytes_b: int
    #: The largest difference in an earlier step; null if there is no earlier one.
    largest_difference_before_bytes: int | None


class DiffFirstAbove(TypedDict):
    #: The entry.
    entry: int
    #: The step in which the entry lies, if steps are marked.
    step: int | None
    #: The phase in which the entry lies, as in `comparison.phases`, if phases are marked.
    phase: str | None
    #: The microseconds since the first entry of the trace, if the file states times.
    after_us: int | None
    #: The requested bytes; null if the entry is not a request.
    requested_bytes: int | None
    #: The stack of the request, the innermost call first; null if none is recorded.
    stack: list[DiagnoseCall] | None


class DiffBegins(TypedDict):
    #: The memory whose peak changed: `reserved` or, if its peak is the same, `allocated`.
    measure: Literal["reserved", "allocated"]
    #: The first step in which the runs differ by at least a tenth of the change; null without steps, or if no complete step does.
    step: DiffFirstStep | None
    #: The first entry of B that takes it beyond A's peak; null if B never exceeds it.
    crossing: DiffFirstAbove | None


class DiffPhaseBytes(TypedDict):
    #: Held at the peak of allocated memory and requested in this phase.
    held_at_peak_bytes: int
    #: The peak of allocated memory during this phase.
    peak_allocated_bytes: int


class DiffPhase(TypedDict):
    #: `forward`, `backward`, `optimizer`, `zero_grad`, `outside`, `before_trace`, or a scope's name.
    phase: str
    #: The phase in A.
    a: DiffPhaseBytes
    #: The phase in B.
    b: DiffPhaseBytes


class DiffLevels(TypedDict):
    #: The step's first entry.
    first_entry: int
    #: The step's last entry.
    last_entry: int
    #: The peak of allocated memory during the step.
    peak_allocated_bytes: int
    #: The peak of reserved memory during the step.
    peak_reserved_bytes: int
    #: Allocated at its end.
    allocated_at_end_bytes: int
    #: Reserved at its end.
    reserved_at_end_bytes: int


class DiffStep(TypedDict):
    #: The step's number, from 0.
    step: int
    #: The step in A.
    a: DiffLevels
    #: The step in B.
    b: DiffLevels


class DiffCompare(TypedDict):
    #: How the two are related: `same_recording`, `same_run`, `same_requests`, `related`, `little_in_common` or `unknown` (nothing to
    #: compare).
    relation: Literal["same_recording", "same_run", "same_requests", "related", "little_in_common", "unknown"]
    #: If both make the same requests: the first entry that differs, in its kind or in the position of a block; null if none does.
    first_other_answer_entry: int | None
    #: The share of the shorter trace's requests, in runs of four, that the other also makes.
    requests_in_common: float | None
    #: The share of the stacks in the recording with fewer of them that the other also has; line numbers may differ.
    stacks_in_common: float | None
    #: The peak of allocated memory in B minus that in A.
    peak_allocated_change_bytes: int
    #: The peak of reserved memory in B minus that in A.
    peak_reserved_change_bytes: int
    #: The change of the peak of reserved memory as a share of A.
    peak_reserved_change: float | None
    #: How blocks are grouped: by `stack` (blocks without one by size), or by `size` if a recording has no stacks.
    grouped_by: Literal["stack", "size"]
    #: What holds the memory at the two peaks of allocated memory, the largest change first.
    held_at_peak: list[DiffGroup]
    #: What is in use at the two peaks of reserved memory, the largest change first.
    held_at_reserved_peak: list[DiffGroup]
    #: Where the change of the peak begins; null if the peaks are the same, or if a file has no trace.
    begins: DiffBegins | None
    #: The phases, if both files mark them.
    phases: list[DiffPhase]
    #: What marks the steps in A and in B: an annotation, or `repetition` if nothing marks them but the run repeats itself.
    steps_marked_by: list[str] | None
    #: The steps that both have.
    steps: list[DiffStep]
    #: The number of steps that only A has.
    steps_only_in_a: int
    #: The number of steps that only B has.
    steps_only_in_b: int


class DiffDevice(TypedDict):
    """A device, or a pair of devices."""

    #: What the first run shows.
    a: DiffRun
    #: What the second run shows.
    b: DiffRun | None
    #: What both show together.
    comparison: DiffCompare | None
    #: How the recordings are related, and what they lack.
    notes: list[str]


class DiffBounded(TypedDict):
    #: The device of the run that is checked.
    device: int
    #: The bound as given.
    fail_above: str
    #: Whether the bound limits growth or the size of the peak.
    kind: Literal["growth", "peak"]
    #: The maximum that it allows.
    allowed_bytes: int
    #: The peak of reserved memory that is checked.
    peak_reserved_bytes: int
    #: Whether the peak is above it.
    exceeded: bool
    #: The result of the check.
    check: Literal["holds", "exceeded", "not_known", "could_not_run"]


class StatsFigures(TypedDict):
    #: Reserved.
    reserved_bytes: int
    #: Allocated.
    allocated_bytes: int
    #: Freed, but another stream may still be using it.
    pending_bytes: int
    #: Allocated, as requested.
    requested_bytes: int
    #: Allocated beyond what was requested.
    rounding_bytes: int
    #: Free in the cache.
    free_bytes: int
    #: Free in segments that are wholly free.
    free_segments_bytes: int
    #: Free in segments that are partly in use. `diagnose` calls all unallocated memory stranded.
    stranded_bytes: int
    #: The largest hole.
    largest_hole_bytes: int
    #: The number of holes.
    holes: int
    #: 1 - allocated / reserved.
    fragmentation: float | None


class StatsAt(TypedDict):
    #: The moment is after this entry.
    entry: int
    #: The step that ends there.
    step: int | None
    #: The 122 keys of `torch.cuda.memory_stats()`.
    memory_stats: dict[str, int]
    #: How fragmented the memory is.
    measures: StatsFigures
    #: The peak of allocated memory since the moment before.
    peak_allocated_bytes_since_last: int
    #: The peak of reserved memory since the moment before.
    peak_reserved_bytes_since_last: int


class StatsDevice(TypedDict):
    #: The device.
    device: int
    #: The number of entries in its trace.
    entries: int
    #: With `steps`: the annotation that ends a step.
    steps_marked_by: str | None
    #: The number of steps that ended before the first entry.
    lost_steps: int
    #: The number of recorded decisions that differ.
    mismatches: int
    #: The number of decisions compared.
    decisions: int
    #: A limit that was found by trying.
    assumed_limit_bytes: int | None
    #: The moments asked for.
    moments: list[StatsAt]
    #: The end of a device without a trace.
    end_without_trace: StatsFigures | None


class StatsMissing(TypedDict):
    #: The device.
    device: int
    #: Why.
    reason: str


class StatsRun(TypedDict):
    """How a run under a policy went."""

    #: Whether every request was served.
    fits: bool
    #: The first request that was refused, which ends the run; null if none was.
    fails_at: int | None
    #: Peak of allocated memory.
    peak_allocated_bytes: int
    #: Peak of reserved memory.
    peak_reserved_bytes: int
    #: `num_alloc_retries`.
    retries: int
    #: Driver calls.
    driver_calls: int
    #: The cost of these calls.
    driver_ns: int
    #: The comparison with the best packing; null with `bounds=0`.
    packing: SimulatedCompared | None


class StatsClass(TypedDict):
    """The buffers of one phase, one class of sizes and one class of lifetimes."""

    #: Where they are requested: `setup`, `steps`, `end`, or `unknown` if no steps are known.
    phase: str
    #: Their sizes are above this.
    above_bytes: int
    #: Their sizes are at most this; null in the class of the largest.
    up_to_bytes: int | None
    #: When they are freed: `before-the-next-request`, `up-to-10-requests`, `up-to-100-requests`, `up-to-1000-requests` or `more-requests`
    #: in the same step, `next-step`, `later-step`, or `kept`.
    lifetime: str
    #: Their number.
    requests: int
    #: Their bytes, as requested.
    bytes: int
    #: The part of these bytes that is live at the peak.
    at_peak_bytes: int


class StatsExactSize(TypedDict):
    """The buffers of one exact size. A lifetime counts the requests that follow a buffer's own until it is freed."""

    #: The size of each, as requested.
    each_bytes: int
    #: Their number.
    requests: int
    #: Their bytes.
    bytes: int
    #: The number of those that are never freed.
    kept: int
    #: The least lifetime of the others; null if none is freed.
    least_requests: int | None
    #: The median.
    median_requests: int | None
    #: The greatest.
    greatest_requests: int | None


class StatsProgram(TypedDict):
    """The lifetimes on a device."""

    #: The device.
    device: int
    #: The number of steps.
    steps: int
    #: `marks` (the program or its annotations mark them), `repetition` (its requests repeat) or `nothing`.
    steps_from: str
    #: The first event with the most live bytes; for a recording, the entry.
    peak_at: int
    #: The most live bytes, as requested.
    peak_live_bytes: int
    #: The classes that have buffers.
    classes: list[StatsClass]
    #: Each exact size, those with the most bytes in total first.
    sizes: list[StatsExactSize]


class ReplayLost(TypedDict):
    #: The number of segments.
    segments: int
    #: The number of blocks in use.
    blocks: int
    #: The bytes in the segments. If they exceed the memory, `outcome` is `unknown` although what is in the file fits.
    reserved_bytes: int


class ReplayRecorded(TypedDict):
    #: The recorded run's peak of reserved memory.
    peak_reserved_bytes: int
    #: The number of its requests that ran out of memory.
    ooms: int
    #: The number of its decisions that differ from the replay's.
    mismatches: int
    #: What existed before the first entry of a file whose oldest entries are missing.
    lost_beginning: ReplayLost | None


class ReadFlush(TypedDict):
    """The interpretation of a release of memory right before a request."""

    #: The entry of the request.
    entry: int
    #: The bytes that would have been reserved if nothing had been released.
    wanted_bytes: int
    #: Whether it was interpreted as a retry: the device had refused the request. If not, it was interpreted as a call to `empty_cache`.
    is_retry: bool
    #: Why it was interpreted this way: as a call `capture_follows`, `often_emptied`, `other_stack`, `no_retry`; as a retry
    #: `never_had_more`, `often_refused`, `others_failed`, `stack_of_request`, `no_call`.
    reason: Literal[
        "capture_follows",
        "often_emptied",
        "never_had_more",
        "often_refused",
        "others_failed",
        "stack_of_request",
        "other_stack",
        "no_call",
        "no_retry",
    ]


class OtherReading(TypedDict):
    """The result if that is interpreted the other way."""

    #: The peak of reserved memory.
    peak_reserved_bytes: int
    #: Whether every request is served in the available memory.
    fits: bool


class ReplayDevice(TypedDict):
    """The numbers of a device."""

    #: The device.
    device: int
    #: Whether every request is served; if the run died, including the estimated rest, without doubt.
    fits: bool
    #: The number of requests that fail; under a policy, the first one ends the replay, and the numbers cover the part up to it.
    ooms: int
    #: The entry of the first request that fails; if the settings are those of a run that died, the request that ends it.
    fails_at_entry: int | None
    #: The peak of allocated memory.
    peak_allocated_bytes: int
    #: The peak of reserved memory.
    peak_reserved_bytes: int
    #: `num_alloc_retries`.
    retries: int
    #: The number of memory calls to the driver.
    driver_calls: int
    #: What those calls cost.
    driver_ns: int
    #: The number of calls to empty_cache in the trace.
    empty_cache_calls: int
    #: The recorded run.
    recorded: ReplayRecorded
    #: Whether a replay under the run's own settings needs as much as the run did.
    self_check: Checked | None
    #: Memory that was released right before requests that then took some: by a retry, because the device had refused the request, or by a
    #: call to `empty_cache`.
    flushes: list[ReadFlush]
    #: The result if the doubtful `flushes` are interpreted the other way, if it is different; null under a policy.
    read_otherwise: OtherReading | None
    #: The number of requests that failed for a reason other than memory.
    device_errors: int
    #: The limit that was used, if neither a limit nor a capacity was given: what `advise` assumes for a run that died.
    assumed_limit_bytes: int | None
    #: The peak of reserved memory if other streams are done by the next request.
    peak_reserved_bytes_earliest: NotRequired[int]
    #: Whether every request is served in that case.
    fits_earliest: NotRequired[bool]
    #: The peak of reserved memory if other streams are never done before a wait.
    peak_reserved_bytes_latest: NotRequired[int]
    #: Whether every request is served in that case.
    fits_latest: NotRequired[bool]
    #: The lowest peak of reserved memory that is likely, judging by the times of the entries. The lowest over all timings tried if the
    #: entries have no times, if the file has private pools, or if requests of the recorded run waited for memory for more than a tenth of
    #: its time.
    peak_reserved_bytes_least: NotRequired[int]
    #: The highest such peak.
    peak_reserved_bytes_most: NotRequired[int]
    #: Whether these two are likely, judging by the times of the entries; if not, they are the extremes of all timings tried.
    peak_reserved_bytes_are_likely: NotRequired[bool]
    #: The number of other timings of the streams that were tried.
    timings_tried: NotRequired[int]
    #: The number of them with which every request is served; null without a limit or a capacity.
    timings_fit: NotRequired[int | None]


class ExportDevice(TypedDict):
    #: The device.
    device: int
    #: The number of entries in its new trace.
    entries: int
    #: The number of requests that run out of memory.
    ooms: int
    #: `num_alloc_retries`.
    retries: int
    #: The number of requests that ran out of memory in the recording.
    recorded_ooms: int
    #: `num_alloc_retries` of the recorded run, if its replay is exact.
    recorded_retries: int | None
    #: The first out-of-memory entry of the new trace.
    fails_at_entry: int | None
    #: Peak of allocated memory.
    peak_allocated_bytes: int
    #: Peak of reserved memory.
    peak_reserved_bytes: int
    #: The self-check of the device.
    self_check: Checked | None
    #: The number of blocks in use before the first entry; they are requested first.
    early_blocks: int | None
    #: The number of decisions in the recording that differ.
    mismatches: int
    #: The number of requests that failed for a reason other than memory.
    device_errors: int


class ExportSimulatedDevice(TypedDict):
    #: The device.
    device: int
    #: The number of entries in its new trace.
    entries: int
    #: Whether every request was served.
    fits: bool
    #: The event at which the run ran out of memory; null if it did not.
    fails_at_event: int | None
    #: `num_alloc_retries`.
    retries: int
    #: Peak of allocated memory.
    peak_allocated_bytes: int
    #: Peak of reserved memory.
    peak_reserved_bytes: int


class SweepNext(TypedDict):
    """Why the next batch does not fit."""

    #: The reason.
    why: Literal["states", "load", "stranded", "fault", "not-tried"]
    #: `states`: these bytes alone are more than there is.
    state_bytes: NotRequired[int]
    #: The batch.
    batch: NotRequired[int]
    #: `load`: its live bytes.
    load_bytes: NotRequired[int]
    #: `stranded`: the request that fails.
    asked_bytes: NotRequired[int]
    #: `stranded`: live bytes then.
    live_bytes: NotRequired[int]
    #: `stranded`: reserved bytes then.
    reserved_bytes: NotRequired[int]
    #: `fault`: what the policy did wrong.
    reason: NotRequired[str]


class SweepBatchPoint(TypedDict):
    """A combination."""

    #: The training as given.
    workload: str
    #: The model's parameters.
    parameters: int
    #: Training steps.
    steps: int
    #: The bytes of parameters, gradients and optimizer states.
    state_bytes: int
    #: The device's memory.
    device_bytes: int
    #: The device's memory without the context.
    usable_bytes: int
    #: The policy.
    policy: str
    #: The largest batch tried that fits; 0 if none does.
    batch: int
    #: Reserved with that batch.
    reserved_bytes: int
    #: Live at once with that batch.
    load_bytes: int
    #: A smaller batch that does not fit.
    fails_below_batch: int | None
    #: The largest batch whose live bytes fit.
    bound_batch: int
    #: Live at once with that batch.
    bound_load_bytes: int
    #: The number of runs simulated.
    runs: int
    #: Why the next batch does not fit.
    next: SweepNext


class SweepListedWorkload(TypedDict):
    #: The workload's name.
    name: str
    #: What it is.
    says: str
    #: The description that generates it.
    description: str


class SweepGenerator(TypedDict):
    #: The generator's name.
    name: str
    #: The options of its descriptions.
    options: list[str] | None


class SweepTaken(TypedDict):
    #: The key.
    key: str
    #: What it sets.
    says: str
    #: The default value; empty if it is not one of the values.
    usual: str
    #: The values; empty if there are too many to list.
    values: list[str]
    #: The accepted values in words: their range, or all of them.
    accepts: str


class SweepListedPolicy(TypedDict):
    #: The policy's name.
    name: str
    #: What it does.
    says: str
    #: Where it comes from.
    source: str
    #: Whether `all` of `sweep` includes it.
    is_among_all: bool
    #: Whether only one thread at a time may use the GPU under PyTorch (`serial=True`).
    needs_serial_work: bool
    #: How PyTorch can use it: `default`, `setting` (`PYTORCH_CUDA_ALLOC_CONF`), `release` (a different one of PyTorch), `enable`
    #: (`parkade.enable`) or `simulator` (not).
    under_pytorch: Literal["default", "setting", "release", "enable", "simulator"]
    #: What its name takes as `key=value`.
    parameters: list[SweepTaken]


class SweepModel(TypedDict):
    #: The model's name.
    name: str
    #: What it does.
    says: str


class InfoProcess(TypedDict):
    #: The process id.
    pid: int
    #: The process's name.
    name: str | None
    #: What it holds.
    used_bytes: int | None
    #: Whether it has a compute context.
    compute: bool
    #: Whether it has a graphics context.
    graphics: bool


class InfoDevice(TypedDict):
    #: The device's index.
    index: int
    #: The device's name.
    name: str | None
    #: The device's UUID.
    uuid: str | None
    #: The device's memory.
    total_bytes: int | None
    #: The part of it that is free.
    free_bytes: int | None
    #: The part of it that the driver has handed out.
    used_bytes: int | None
    #: The part of it that the driver keeps for itself.
    driver_reserved_bytes: int | None
    #: Why the memory is unknown.
    memory_error: str | None
    #: What the listed processes hold.
    listed_bytes: int | None
    #: What is used, but held by no listed process.
    unlisted_bytes: int | None
    #: The listed processes.
    processes: list[InfoProcess] | None
    #: Why the processes are unknown.
    processes_error: str | None


class SweepKept(TypedDict):
    #: The file.
    file: str
    #: How many rows of the file are kept.
    rows: int


class SweepOverlap(TypedDict):
    """`{"jobs": 11, "differ": 2, "kept": [{"file": "a.jsonl", "rows": 2}]}`."""

    #: How many such jobs there are.
    jobs: int
    #: How many of them have different numbers.
    differ: int
    #: The rows kept of these jobs.
    kept: list[SweepKept]


class SweepMean(TypedDict):
    """An interval over one seed has infinite ends, which become null."""

    #: The mean.
    mean: float
    #: The smallest value, or the lower end of the interval.
    low: float
    #: The largest value, or the upper end of the interval.
    high: float
    #: The number of values.
    n: int


class SweepBounds(TypedDict):
    #: The workload.
    workload: str
    #: A lower bound: each private pool is counted at its peak live bytes so far until it is dropped.
    load_with_pools_over_load: SweepMean | None
    #: Not a bound: the memory that an ideal allocator needs if it remaps pages of 2 MiB at will.
    page_ideal_over_load: SweepMean | None
    #: Whether it is proven that this ideal allocator needs no less; if not, the packing of its small buffers ran out of steps (`bounds`),
    #: or pages cannot be shared so well.
    page_ideal_converged: bool | None
    #: Not a bound: the best offline packing found.
    packing_over_load: SweepMean | None
    #: Whether it is proven that no packing needs less; if not, the search ran out of steps (`bounds`).
    packing_converged: bool | None


class SweepPlanned(TypedDict):
    #: The workload's name.
    name: str
    #: The number of seeds that are run.
    seeds: int
    #: The hash of a workload that comes from a file.
    hash: NotRequired[str]


class SweepPlan(TypedDict):
    """What was asked for."""

    #: The workloads.
    workloads: list[SweepPlanned]
    #: The policies.
    policies: list[str]
    #: The capacities.
    capacities: list[str]
    #: The address model.
    addresses: str
    #: The number of LOADs reserved before each program.
    preallocate: NotRequired[str]
    #: The part of LOAD to within which the smallest memory is found.
    precision: str


class SweepOthers(TypedDict):
    #: The geometric mean.
    mean: float | None
    #: The outlier's share of the excess, in logarithms.
    share: float | None


class SweepVersus(TypedDict):
    #: Memory over the baseline's.
    ratio: SweepMean | None
    #: The number of workloads that need less.
    less: int
    #: The number that need as much.
    same: int
    #: How many need more.
    more: int


class SweepDriver(TypedDict):
    #: The calls for each step, where steps are known.
    calls_per_step: SweepMean | None
    #: The cost of the calls for each step.
    ns_per_step: SweepMean | None
    #: The share of the cost that falls in the later half.
    later_share: SweepMean | None
    #: How long calls waited for the device, where workloads say how long work takes.
    waited_ns: SweepMean | None
    #: Calls that return only when work of the device is done.
    waiting_calls: SweepMean | None


class SweepOverSeeds(TypedDict):
    #: Memory over the baseline's, with its 95 % interval.
    ratio: SweepMean | None
    #: The number of seeds that need less.
    less: int
    #: The number that need as much.
    same: int
    #: How many need more.
    more: int
    #: The matched-pairs rank-biserial effect; -1 is never more.
    effect: float
    #: The p value of Wilcoxon's signed-rank test over the seeds.
    p: float
    #: The p value corrected for all comparisons of the sweep.
    p_holm: float
    #: Whether it was computed exactly.
    p_is_exact: bool


class SweepOwnDriver(TypedDict):
    #: The calls for each step; null if the steps are not known.
    calls_per_step: SweepMean | None
    #: The cost of the calls for each step.
    ns_per_step: SweepMean | None
    #: The calls for each step of the later half; null with fewer than two steps.
    later_calls_per_step: SweepMean | None
    #: The cost of those calls for each step.
    later_ns_per_step: SweepMean | None
    #: The share of the cost that falls in the later half.
    later_share: SweepMean | None
    #: How long calls waited; null if the workload does not say how long its work takes.
    waited_ns: SweepMean | None
    #: Calls that return only when work of the device is done.
    waiting_calls: SweepMean


class SweepFirstExcess(TypedDict):
    """The first request that a policy cannot serve in the memory of the offline packing; `parkade stats --policy` lists the blocks."""

    #: The event that requests it.
    event: int
    #: The requested bytes.
    requested_bytes: int
    #: The bytes that the policy has reserved then.
    reserved_bytes: int
    #: The number of live blocks that are in the way.
    blocks_in_the_way: int
    #: The bytes of these blocks.
    bytes_in_the_way: int


class SweepWorkload(TypedDict):
    #: The workload's name.
    workload: str
    #: The smallest memory over LOAD.
    memory_over_load: SweepMean | None
    #: The number of runs that ended with a fault. If there are any, the figures are null.
    faults: int
    #: The number of searches that were not monotone.
    not_monotone: int
    #: The comparison with the baseline over the seeds; null with one seed and for the baseline itself.
    versus_baseline: SweepOverSeeds | None
    #: What the driver's calls cost in each capacity.
    driver_ns: dict[str, SweepMean | None]
    #: The driver's work over the run in each capacity; null if the workload does not fit.
    driver: dict[str, SweepOwnDriver | None]
    #: The first request, with the first seed, that the policy cannot serve in the memory of the offline packing; null if it serves all, or
    #: without a packing.
    first_excess: SweepFirstExcess | None


class SweepPolicy(TypedDict):
    #: The policy's name.
    policy: str
    #: How PyTorch can use it, as in `sweep --list`.
    under_pytorch: Literal["default", "setting", "release", "enable", "simulator"]
    #: The line that makes PyTorch use it; null if there is none, or if it needs none.
    line: str | None
    #: The smallest memory over LOAD.
    memory_over_load: SweepMean | None
    #: `memory_over_load` without the outlier.
    without_outlier: SweepOthers | None
    #: The memory that a program needs to allocate only 64 buffers of 16 MiB, over their sum; a value above 1 is due to the policy's design.
    equal_buffers_over_load: float | None
    #: The comparison with the baseline; null for the baseline itself.
    versus_baseline: SweepVersus | None
    #: The number of runs that ended with a fault: the policy gave an answer that it must not give, or the device failed. If there are any,
    #: all figures are null.
    faults: int
    #: The share of programs that fit in each capacity; empty if there is a fault.
    fits: dict[str, float]
    #: What the driver's calls cost in each capacity.
    driver_ns: dict[str, SweepMean | None]
    #: The driver's work over the run in each capacity, over the workloads that fit.
    driver: dict[str, SweepDriver]
    #: Each workload.
    workloads: list[SweepWorkload]


class SweepVersusReference(TypedDict):
    #: Memory over the reference's.
    ratio: SweepMean | None
    #: The number of cases that need less.
    less: int
    #: The number that need as much.
    same: int
    #: How many need more.
    more: int


class SweepValue(TypedDict):
    #: The value.
    value: str
    #: The smallest memory over LOAD, over the cases.
    memory_over_load: SweepMean | None
    #: What the driver's calls cost with plenty of memory, over the cases.
    driver_ns: SweepMean | None
    #: The comparison with the reference over all cases; null for the reference itself.
    versus_reference: SweepVersusReference | None
    #: The same over the seeds of the workloads with the most seeds; null with one seed.
    over_seeds: SweepOverSeeds | None
    #: The number of runs that ended with a fault. If there are any, the figures are null.
    faults: int


class SweepParameter(TypedDict):
    #: The policy's name without parameters.
    policy: str
    #: The parameter's key.
    parameter: str
    #: The value that the others are compared with: the default, or the first value if the default is not in the sweep.
    reference: str
    #: Whether that value is the default.
    is_default: bool
    #: The number of cases: a workload under a combination of the other parameters, if it fits with every value that fits at all.
    cases: int
    #: The values.
    values: list[SweepValue]


class SweepSummary(TypedDict):
    #: How many rows each build made. Policies have different builds: the last part is a hash of the policy's own sources.
    programs: dict[str, int]
    #: Whether different builds made rows that are compared: rows of one policy, or with a different core.
    mixed: bool
    #: The jobs that several files have from different builds.
    overlap: SweepOverlap
    #: The first fault of each policy that broke, in a sentence.
    faults: list[str]
    #: The number of searches that found that a program fits but fails with a little more.
    not_monotone: int
    #: The minimum that each workload needs, and what ideal allocators need for it.
    bounds: list[SweepBounds]
    #: What was asked for.
    plan: SweepPlan
    #: The least p value, after the correction, that any comparison over the seeds can reach; null without comparisons.
    least_p: float | None
    #: The number of rows.
    jobs: int
    #: The policy that the others are compared with.
    baseline: str
    #: The workload that contributes the most to the excess over LOAD; null if there is no excess or only one workload.
    outlier: str | None
    #: Each policy.
    policies: list[SweepPolicy]
    #: Each parameter of a policy whose values the sweep varies, while all combinations of the others stay the same.
    parameters: list[SweepParameter]
    #: The least p value, after the correction, that a comparison of parameters over the seeds can reach; null without comparisons.
    least_p_of_parameters: float | None
