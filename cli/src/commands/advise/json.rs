//! Advice as one JSON object: on a recording, on one without a trace, and on all ranks of a job.

use parkade_analysis::StackUse;
use parkade_analysis::advise::{
    Advice, AdvisedOption, CapacityHint, DeviceOutcome, Enough, FirstFailure, Held, LikelyRuns, MemoryBudget,
    MemoryContradiction, Outcome, Program, Recommendation, TimingFits, Verdict, paste_line,
};
use parkade_analysis::caution::{Caution, Evidence, Severity};
use parkade_analysis::continuation::Doubt;
use parkade_analysis::ending::Ending;
use parkade_analysis::ranks::Standing;
use parkade_replay::{Extreme, SettingsOrigin};

use super::advised::{Advised, Job, Otherwise, Rank, available, fits};
use super::remedies;
use super::words::{self, notes_without_trace};
use crate::commands::beside::{self, OnRanksObject};
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::recording::MadeBy;
use crate::terminal::run_words::{self, Checked, OtherReading, ReadFlush};

view! {
    pub(super) struct Object<'a>(advised: &'a Advised, report: &'a Advice) {
        /// The recording.
        file: String = advised.file.display().to_string(),
        /// The PyTorch version whose rules the replay follows.
        profile: &'static str = advised.profile.name,
        /// The release that made the recording.
        made_by: MadeBy = MadeBy::of(&advised.made_by),
        /// Different advice under the other releases that also explain the recording; empty with `--profile`.
        otherwise: Vec<OtherwiseObject> = all(&advised.otherwise, OtherwiseObject::of),
        /// The memory available to the allocator: the smaller of `--capacity` and the limit, else what [`parkade
        /// run`](python.md#a-run-that-may-run-out-of-memory) recorded in the file, else what is assumed. With several devices,
        /// the smallest amount.
        capacity_bytes: Option<u64> = report.own().available_bytes,
        /// `--limit`, else a limit that `parkade run` recorded in the file.
        limit_bytes: Option<u64> = report.given.limit_bytes,
        /// The recorded run's limit, given or found.
        recorded_limit_bytes: Option<u64> = report.recorded_limit,
        /// Whether more than the available memory was reserved before the first entry.
        hides_more: bool = report.hides_more,
        /// What an out-of-memory error in the recording shows about the memory, if no size was given.
        capacity_hint: Option<Hint> = report.hint().map(|(device, hint)| Hint::of(device, hint)),
        /// Evidence in the recording that contradicts the given memory size: the run had less.
        contradiction: Option<Contradicted> = report.contradiction.map(Contradicted::of),
        /// Whether the replay reproduces every recorded decision.
        verified: bool = sum(report, |program| program.requests.mismatches) == 0,
        /// How many decisions differ.
        mismatches: u64 = sum(report, |program| program.requests.mismatches),
        /// Whether a replay under the run's own settings needs as much as the run did.
        self_check: Option<Checked> = words::self_check_of(report).map(Checked::of),
        /// Memory that was released right before requests that then took some, and how that was interpreted.
        flushes: Vec<DeviceFlush> = report.programs.iter().flat_map(flushes_of).collect(),
        /// The devices on which the other interpretation of `flushes` leads to a different answer, with the results of the
        /// recommended settings, else of the run's own.
        read_otherwise: Vec<ReadOtherwise> = all(&report.otherwise, ReadOtherwise::of),
        /// The number of decisions compared.
        decisions: u64 = sum(report, |program| program.requests.decisions),
        /// The recorded run's settings.
        own_settings: &'a str = &report.own().settings.text,
        /// Where they come from.
        own_settings_origin: Word<SettingsOrigin> = Word::of(&advised.own.origin),
        /// The outcome with the recommended settings: `fits`, `gets_past` (the request that ended the run is served; the rest
        /// is not in the file), `does_not_fit` (also for a run that survived its errors, because it meets them again:
        /// `survives_oom`), `unknown` (the memory is unknown, or only part of its possible range is enough, or the missing
        /// beginning needed more than is available).
        outcome: Word<Outcome> = Word::of(&report.outcome),
        /// What is needed to serve every recorded request, if the outcome depends on where in a range the memory was.
        enough: Option<Sufficient<'a>> = report.enough.first().map(|enough| Sufficient::of(report, enough)),
        /// `fits`, or why the run's own settings fail: `fragmentation`, `streams`, `private_pools`, `capacity`, or `undecided`
        /// between them because the memory is known only as a range.
        verdict: Word<Verdict> = Word::of(&report.verdict),
        /// Whether a change in memory of less than 1 % may change the answer.
        close: bool = report.recommended().unwrap_or(report.own()).is_close(),
        /// Whether the recorded program continued after an out-of-memory error.
        survives_oom: bool = report.programs.iter().any(Program::survived),
        /// How the run ended on each device, and the estimated rest.
        endings: Vec<Ended> = all(&report.programs, |program| Ended::of(report, program)),
        /// Where the run's own settings fail.
        cause: Option<Failure> = report.first_failure.as_ref().map(Failure::of),
        /// What each device's program holds when it holds the most.
        live: Vec<Live> = all(&report.programs, |program| Live::of(advised, program)),
        /// The recommended settings; null if none fit.
        recommendation: Option<Recommended<'a>> =
            report.recommendation.as_ref().zip(report.recommended()).map(|(line, option)| Recommended::of(report, line, option)),
        /// Remedies for a program that does not fit as it is, in the order in which to try them. Settings come before a policy
        /// that is likelier by at most 0.1, and what the program itself must give up comes last.
        remedies: Vec<remedies::RemedyObject<'a>> = all(&advised.remedies, remedies::RemedyObject::of),
        /// Every setting tried: the run's own first, then the best.
        options: Vec<Tried<'a>> = all(report.options.iter().enumerate(), |(place, option)| Tried::of(report, place, option)),
        /// With `--policy`: what each policy of parkade needs in place of PyTorch's allocator, for the requests of the
        /// recording and, if the run died, for the estimated rest.
        policies: Vec<beside::NeedsObject> = all(&advised.policies, beside::NeedsObject::of),
        /// Notes on the numbers.
        notes: Vec<String> = words::notes(advised, report),
        /// The time taken.
        seconds: f64 = advised.seconds,
    }
}

fn sum(report: &Advice, count: fn(&Program) -> u64) -> u64 {
    report.programs.iter().map(count).sum()
}

fn flushes_of(program: &Program) -> impl Iterator<Item = DeviceFlush> {
    run_words::flushes(&program.requests).into_iter().map(|flush| DeviceFlush { device: program.device, flush })
}

view! {
    /// The same with the device.
    struct DeviceFlush {
        /// The device.
        device: u32,
        #[serde(flatten)]
        flush: ReadFlush,
    }
}

view! {
    /// The result of the recommended option on a device if its recording is interpreted the other way.
    struct ReadOtherwise(otherwise: &(u32, Extreme)) {
        /// The device.
        device: u32 = otherwise.0,
        #[serde(flatten)]
        result: OtherReading = OtherReading::of(otherwise.1),
    }
}

view! {
    /// How a device's run ended, and the estimated rest.
    struct Ended(report: &Advice, program: &Program) {
        /// The device.
        device: u32 = program.device,
        /// How the run ended.
        ending: Word<Ending> = Word::of(&program.ending),
        /// The entry of the out-of-memory error that ended the run, or of the last one that it survived.
        at_entry: Option<usize> = program.ending.error().map(|error| error.entry),
        /// The number of requests served after that error.
        served_afterwards: Option<usize> = program.ending.error().map(|error| error.served),
        /// The bytes of those requests.
        served_afterwards_bytes: Option<u64> = program.ending.error().map(|error| error.served_bytes),
        /// The entry at which a request with the error's stack was served.
        asked_again_at_entry: Option<usize> = program.ending.error().and_then(|error| error.asked_again_at),
        /// The steps before the one that failed, from which the rest is estimated.
        steps_before: Option<usize> = program.continuation.as_ref().map(|rest| rest.steps),
        /// The number of whole steps added.
        steps_added: Option<usize> = program.continuation.as_ref().map(|rest| rest.more_steps),
        /// Why the rest cannot be estimated.
        doubt: Option<Word<Doubt>> =
            report.doubts.iter().find(|(device, _)| *device == program.device).map(|(_, doubt)| Word::of(doubt)),
    }
}

view! {
    struct Hint(device: u32, hint: CapacityHint) {
        /// The device.
        device: u32 = device,
        /// The entry of the error.
        entry: usize = hint.entry,
        /// The device had at least this much.
        least_bytes: u64 = hint.least_bytes,
        /// The device had less than this, or exactly this much if both are equal.
        below_bytes: u64 = hint.below_bytes,
    }
}

view! {
    /// What contradicts the given memory size.
    struct Contradicted(contradiction: MemoryContradiction) {
        /// The device.
        device: u32 = contradiction.device,
        /// The entry of a request that was refused.
        entry: usize = contradiction.entry,
        /// The bytes that would have been reserved.
        refused_bytes: u64 = contradiction.refused_bytes,
    }
}

view! {
    /// What serves every recorded request if the memory is known only roughly, on the device that may lack the most.
    struct Sufficient<'a>(report: &'a Advice, enough: &Enough) {
        /// The device; if there are several, the one that may lack the most.
        device: u32 = enough.device,
        /// The amount of memory that is enough.
        bytes: u64 = enough.bytes,
        /// The settings with which it is enough.
        settings: &'a str = &report.options[enough.option].settings.text,
        /// With several devices: each one that may lack memory, with the same settings.
        #[serde(skip_serializing_if = "Option::is_none")]
        devices: Option<Vec<SufficientOn>> = (report.programs.len() > 1).then(|| all(&report.enough, SufficientOn::of)),
    }
}

view! {
    /// The same on each device that may lack memory, and the range in which its memory was.
    struct SufficientOn(enough: &Enough) {
        /// The device.
        device: u32 = enough.device,
        /// The amount of memory that serves every recorded request of this device.
        bytes: u64 = enough.bytes,
        /// The device had at least this much.
        least_bytes: u64 = enough.range.least_bytes,
        /// The device had less than this; null if nothing shows it.
        below_bytes: Option<u64> = Some(enough.range.below_bytes).filter(|&below| below < u64::MAX),
    }
}

view! {
    struct Recommended<'a>(report: &'a Advice, recommendation: &'a Recommendation, option: &'a AdvisedOption) {
        /// The settings.
        settings: &'a str = &option.settings.text,
        /// The line for a shell.
        line: &'a str = &recommendation.line,
        /// Why these settings are recommended.
        why: String = words::why(report),
        /// What they cost.
        costs: String = words::costs(report),
        /// What else must be done.
        also: Option<&'static str> = remedies::also(option.needs_limit()),
        /// Whether a change in memory of less than 1 % may change the answer.
        close: bool = option.is_close(),
        /// What they may break.
        cautions: Vec<Warning> = all(&option.cautions, Warning::of),
    }
}

view! {
    /// Where the recorded run's own settings fail.
    struct Failure(cause: &FirstFailure) {
        /// The device.
        device: u32 = cause.device,
        /// The entry of the request.
        entry: usize = cause.entry,
        /// The size of the block that was needed.
        wanted_bytes: u64 = cause.wanted_bytes,
        /// Reserved at that moment.
        reserved_bytes: u64 = cause.held.reserved_bytes,
        /// In use at that point.
        live_bytes: u64 = cause.held.live_bytes,
        /// Freed, but another stream may still use it.
        pending_bytes: u64 = cause.held.pending_bytes,
        /// Free in the cache for this request's stream.
        free_bytes: u64 = cause.held.free_bytes,
        /// The largest hole that is free for this request's stream.
        largest_free_bytes: u64 = cause.held.largest_free_bytes,
        /// Cached for other streams.
        other_streams_bytes: u64 = cause.held.other_streams_bytes,
        /// Cached by private pools.
        private_pools_bytes: u64 = cause.held.private_pools_bytes,
    }
}

view! {
    /// The peak of live memory on a device.
    struct Live(advised: &Advised, program: &Program) {
        /// The device.
        device: u32 = program.device,
        /// The most live bytes, including the request at that point.
        peak_bytes: u64 = program.live.bytes,
        /// The entry at which the program holds the most.
        at_entry: usize = program.live.entry,
        /// Up to five stacks that hold the most.
        holders: Vec<LiveHolder> =
            all(program.live.holders.iter().take(words::HOLDERS), |holder| LiveHolder::of(advised, holder)),
        /// Blocks in use before the first entry of a file whose oldest entries are missing.
        lost_beginning_blocks: Option<usize> = program.requests.lost_beginning.map(|lost| lost.blocks),
    }
}

view! {
    struct LiveHolder(advised: &Advised, holder: &StackUse) {
        /// The bytes held.
        bytes: u64 = holder.bytes,
        /// The number of blocks.
        blocks: usize = holder.blocks,
        /// The calls as `file:line function`, the innermost first.
        stack: Vec<String> = words::stack(advised, holder.stack).collect(),
    }
}

view! {
    struct Warning(caution: &Caution) {
        /// A name that does not change.
        id: &'static str = caution.id,
        /// The setting concerned.
        setting: &'static str = caution.setting,
        /// Whether the recording shows that the program is affected.
        in_use: Word<Evidence> = Word::of(&caution.in_use),
        /// How bad it is.
        severity: Word<Severity> = Word::of(&caution.severity),
        /// What happens.
        what: &'static str = caution.what,
        /// What to do about it.
        instead: &'static str = caution.instead,
        /// The source of this fact.
        source: &'static str = caution.source,
    }
}

view! {
    struct Tried<'a>(report: &'a Advice, place: usize, option: &'a AdvisedOption) {
        /// The settings.
        settings: &'a str = &option.settings.text,
        /// Whether these are the recorded run's.
        own: bool = option.is_own,
        /// Whether `--settings` asked for them.
        given: bool = option.is_given,
        /// Whether every request is served; if the run died, including the estimated rest.
        fits: bool = option.fits(),
        /// Whether every recorded request is served, including the one that ended the run.
        gets_past: bool = option.gets_past(),
        /// The first entry whose request fails.
        fails_at_entry: Option<usize> = option.fails_at_entry(),
        /// How many requests fail.
        ooms: i64 = option.ooms(),
        /// Whether the requests that fail may be workspaces that a library can do without.
        may_survive: bool = option.may_survive(),
        /// Whether less than 1 % of memory may change `fits`.
        close: bool = option.is_close(),
        /// The peak of reserved memory; with several devices, the highest.
        peak_reserved_bytes: i64 = option.peak_reserved_bytes(),
        /// The memory left at the peak. If requests fail: the missing amount as a negative number, or null if less memory was
        /// enough. With several devices, the least.
        headroom_bytes: Option<i64> = option.headroom_bytes(),
        /// The smallest memory in which the program fits; with several devices, that of the device that needs the most.
        smallest_capacity_bytes: u64 = option.smallest_capacity_bytes(),
        /// How often the cache was emptied for lack of memory.
        retries: i64 = option.retries(),
        /// The number of memory calls to the driver.
        driver_calls: u64 = option.driver_calls(),
        /// What those calls cost.
        driver_us: u64 = option.driver_us(),
        /// Whether a setting needs a memory limit to have any effect.
        needs_limit: bool = option.needs_limit(),
        /// The runs that are likely, judging by the times of the entries, if the timing of other streams matters; given for the
        /// run's own settings and the best others. `close` is true if one of them does not fit or the range ends above the
        /// memory.
        likely: Option<Likely> = option.likely.map(Likely::of),
        /// The runs with different timings of the streams, if these matter.
        timings: Option<Timings> = report.timings.iter().find(|timing| timing.option == place).map(Timings::of),
        /// What the settings may break or fail to do.
        cautions: Vec<Warning> = all(&option.cautions, Warning::of),
        /// Each device, if there are several.
        #[serde(skip_serializing_if = "Option::is_none")]
        devices: Option<Vec<Device>> = (option.devices.len() > 1).then(|| all(&option.devices, Device::of)),
    }
}

view! {
    struct Likely(runs: LikelyRuns) {
        /// The number of them that serve every request.
        fit: usize = runs.fit,
        /// How many there are.
        of: usize = runs.of,
        /// The lowest likely peak, as `replay` has it; with several devices, that of the device whose likely peak is the
        /// highest.
        least_peak_reserved_bytes: i64 = runs.least_peak_reserved_bytes,
        /// The highest likely peak.
        most_peak_reserved_bytes: i64 = runs.most_peak_reserved_bytes,
    }
}

view! {
    struct Timings(timing: &TimingFits) {
        /// The number of timings with which every request is served.
        fit: usize = timing.fit,
        /// The number of timings tried.
        of: usize = timing.of,
        /// The lowest peak; with several devices, that of the device whose peak may be the highest.
        least_peak_reserved_bytes: i64 = timing.least_peak_reserved_bytes,
        /// The highest peak.
        most_peak_reserved_bytes: i64 = timing.most_peak_reserved_bytes,
    }
}

view! {
    struct Device(device: &DeviceOutcome) {
        /// The device.
        device: u32 = device.device,
        /// Whether its requests are served.
        fits: bool = device.fits(),
        /// The first entry whose request fails.
        fails_at_entry: Option<usize> = device.fails_at_entry(),
        /// Its peak of reserved memory.
        peak_reserved_bytes: i64 = device.prediction.peak_reserved_bytes(),
        /// The smallest memory in which its requests are served.
        smallest_bytes: u64 = device.smallest_bytes,
    }
}

view! {
    struct OtherwiseObject(other: &Otherwise) {
        /// The releases.
        releases: Vec<&'static str> = other.releases.iter().map(|release| release.name).collect(),
        /// The outcome with the settings that they recommend.
        outcome: Word<Outcome> = Word::of(&other.outcome),
        /// The line that they recommend.
        line: Option<String> = other.line.clone(),
    }
}

view! {
    pub(super) struct HeldObject(advised: &Advised, space: &MemoryBudget) {
        /// The recording.
        file: String = advised.file.display().to_string(),
        /// The smaller of `--capacity` and `--limit`, else what `parkade run` recorded in the file.
        capacity_bytes: Option<u64> = available(space),
        /// Always false.
        verified: bool = false,
        /// `unknown`, or `does_not_fit` if what is in use is more than the memory.
        outcome: &'static str = if fits(&advised.recording, space) { Outcome::Unknown } else { Outcome::DoesNotFit }.name(),
        /// `capacity` if what is in use is more than the memory.
        verdict: Option<&'static str> = (!fits(&advised.recording, space)).then(|| Verdict::Capacity.name()),
        /// Always empty.
        options: [(); 0] = [],
        /// Always empty.
        policies: [(); 0] = [],
        /// Always null.
        recommendation: Option<()> = None,
        /// What each device holds.
        held: Vec<HeldByDevice> = all(&advised.recording.devices, |device| HeldByDevice::of(device.device, Held::at_end(device))),
        /// Always `the trace`.
        not_in_file: &'static str = "the trace",
        /// A note that what `--settings` and `--policy` name is not tried.
        notes: Vec<String> = notes_without_trace(advised),
        /// The time taken.
        seconds: f64 = advised.seconds,
    }
}

view! {
    struct HeldByDevice(device: u32, held: Held) {
        /// The device.
        device: u32 = device,
        /// Reserved.
        reserved_bytes: u64 = held.reserved_bytes,
        /// In use.
        live_bytes: u64 = held.live_bytes,
        /// Freed, but another stream may still use it.
        pending_bytes: u64 = held.pending_bytes,
        /// Free in the cache.
        free_bytes: u64 = held.free_bytes,
        /// The largest hole.
        largest_free_bytes: u64 = held.largest_free_bytes,
        /// Free in private pools.
        private_pools_bytes: u64 = held.private_pools_bytes,
    }
}

view! {
    struct JobObject<'a>(job: &'a Job) {
        /// The setting that serves every rank with the widest margin; null if none does.
        settings: Option<&'a str> = job.advice.serves_all.then_some(&job.advice.settings),
        /// The shell command that sets it.
        line: Option<String> = job.advice.serves_all.then(|| paste_line(&job.advice.settings)),
        /// The worst rank's outcome with `tried`, as for `advise`.
        outcome: Word<Outcome> = Word::of(&job.fit()),
        /// Whether `tried` is already every rank's own setting.
        own: bool = job.advice.is_own,
        /// The setting to which `ranks` refers: `settings`, or, if that is null, the one that serves the most ranks.
        tried: &'a str = &job.advice.settings,
        /// The rank with the smallest margin or, if no memory is known, the one that needs the most.
        tightest_rank: u64 = job.ranks[job.advice.tightest].number,
        /// The memory that is assumed for ranks that do not show theirs: the smallest amount that another rank shows.
        assumed_limit_bytes: Option<u64> = job.advice.assumed_bytes,
        /// The smallest memory for each rank in which one setting serves all.
        enough_bytes: u64 = job.advice.enough.0,
        /// The setting that does.
        enough_settings: &'a str = &job.advice.enough.1,
        /// The ranks that have a trace.
        ranks: Vec<OfRank<'a>> = all(job.ranks.iter().zip(&job.advice.ranks), |(rank, standing)| OfRank::of(rank, *standing)),
        /// With `--policy`: how each policy of parkade fares on the ranks, in place of one setting.
        policies: Vec<OnRanksObject> = all(&job.policies, OnRanksObject::of),
        /// The same in sentences.
        notes: Vec<String> = words::sentences(job),
    }
}

view! {
    struct OfRank<'a>(rank: &'a Rank, standing: Standing) {
        /// The rank.
        rank: u64 = rank.number,
        /// The recording.
        file: String = rank.file.display().to_string(),
        /// What is recommended for this rank alone.
        best_settings: Option<&'a str> = rank.advice.best().map(|best| &*best.settings),
        /// The outcome with those settings.
        best_outcome: Option<Word<Outcome>> = rank.advice.best().map(|best| Word::of(&best.outcome)),
        /// The smallest memory in which those settings serve this rank.
        best_smallest_capacity_bytes: Option<u64> = rank.advice.best().map(|best| best.needs_bytes),
        /// The outcome with `tried`.
        outcome: Word<Outcome> = Word::of(&standing.outcome),
        /// The smallest memory in which `tried` serves this rank.
        smallest_capacity_bytes: u64 = standing.needs_bytes,
        /// The rank's memory.
        capacity_bytes: Option<u64> = standing.available_bytes,
        /// What is left of that memory; negative if there is too little.
        margin_bytes: Option<i64> = standing.margin_bytes(),
    }
}

view! {
    /// The keys that it adds to the JSON object of the ranks.
    pub(crate) struct Addition<'a>(job: &'a Job) {
        /// From `advise`, and from `report` with `-o`: one setting for all ranks, and how each fares with it.
        one_setting: JobObject<'a> = JobObject::of(job),
    }
}
