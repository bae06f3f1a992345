//! Advice as one JSON object: on a recording, on one without a trace, and on all ranks of a job.

use anyhow::Result;
use parkade_analysis::StackUse;
use parkade_analysis::advise::{
    Advice, AdvisedOption, CapacityHint, DeviceOutcome, Enough, FirstFailure, Held, LikelyRuns, MemoryBudget,
    MemoryContradiction, Program, Recommendation, TimingFits, paste_line,
};
use parkade_analysis::caution::Caution;
use parkade_analysis::ranks::Standing;
use parkade_replay::Extreme;
use serde::Serialize;
use serde_json::Value;

use super::advised::{Advised, Job, Otherwise, Rank, available, fits};
use super::remedies;
use super::words::{self, notes_without_trace};
use crate::commands::beside::{self, OnRanksObject};
use crate::terminal::json_struct::{all, origin, view};
use crate::terminal::release::MadeBy;
use crate::terminal::self_check::{self, Checked, OtherReading, ReadFlush};

view! {
    pub(super) struct Object<'a>(advised: &'a Advised, report: &'a Advice) {
        file: String = advised.file.display().to_string(),
        profile: &'static str = advised.profile.name,
        made_by: MadeBy = MadeBy::of(&advised.made_by),
        otherwise: Vec<OtherwiseObject> = all(&advised.otherwise, OtherwiseObject::of),
        capacity_bytes: Option<u64> = report.own().available_bytes,
        limit_bytes: Option<u64> = report.given.limit_bytes,
        recorded_limit_bytes: Option<u64> = report.recorded_limit,
        hides_more: bool = report.hides_more,
        capacity_hint: Option<Hint> = report.hint().map(|(device, hint)| Hint::of(device, hint)),
        contradiction: Option<Contradicted> = report.contradiction.map(Contradicted::of),
        verified: bool = sum(report, |program| program.requests.mismatches) == 0,
        mismatches: u64 = sum(report, |program| program.requests.mismatches),
        self_check: Option<Checked> = words::self_check_of(report).map(Checked::of),
        flushes: Vec<DeviceFlush> = report.programs.iter().flat_map(flushes_of).collect(),
        read_otherwise: Vec<ReadOtherwise> = all(&report.otherwise, ReadOtherwise::of),
        decisions: u64 = sum(report, |program| program.requests.decisions),
        own_settings: &'a str = &report.own().settings.text,
        own_settings_origin: &'static str = origin(advised.own.origin),
        outcome: &'static str = report.outcome.name(),
        enough: Option<Sufficient<'a>> = report.enough.first().map(|enough| Sufficient::of(report, enough)),
        verdict: &'static str = report.verdict.name(),
        close: bool = report.recommended().unwrap_or(report.own()).is_close(),
        survives_oom: bool = report.programs.iter().any(Program::survived),
        endings: Vec<Ended> = all(&report.programs, |program| Ended::of(report, program)),
        cause: Option<Failure> = report.first_failure.as_ref().map(Failure::of),
        live: Vec<Live> = all(&report.programs, |program| Live::of(advised, program)),
        recommendation: Option<Recommended<'a>> =
            report.recommendation.as_ref().zip(report.recommended()).map(|(line, option)| Recommended::of(report, line, option)),
        remedies: Vec<remedies::Object<'a>> = all(&advised.remedies, remedies::Object::of),
        options: Vec<Tried<'a>> = all(report.options.iter().enumerate(), |(place, option)| Tried::of(report, place, option)),
        policies: Vec<beside::Object> = all(&advised.policies, beside::Object::of),
        notes: Vec<String> = words::notes(advised, report),
        seconds: f64 = advised.seconds,
    }
}

fn sum(report: &Advice, count: fn(&Program) -> u64) -> u64 {
    report.programs.iter().map(count).sum()
}

fn flushes_of(program: &Program) -> impl Iterator<Item = DeviceFlush> {
    self_check::flushes(&program.requests).into_iter().map(|flush| DeviceFlush { device: program.device, flush })
}

#[derive(Serialize)]
struct DeviceFlush {
    device: u32,
    #[serde(flatten)]
    flush: ReadFlush,
}

view! {
    /// What the recommended option comes to on a device whose recording is read the other way.
    struct ReadOtherwise(otherwise: &(u32, Extreme)) {
        device: u32 = otherwise.0,
        #[serde(flatten)]
        result: OtherReading = OtherReading::of(otherwise.1),
    }
}

view! {
    /// How a device's run ended, and what is estimated of its rest.
    struct Ended(report: &Advice, program: &Program) {
        device: u32 = program.device,
        ending: &'static str = program.ending.name(),
        at_entry: Option<usize> = program.ending.error().map(|error| error.entry),
        served_afterwards: Option<usize> = program.ending.error().map(|error| error.served),
        served_afterwards_bytes: Option<u64> = program.ending.error().map(|error| error.served_bytes),
        asked_again_at_entry: Option<usize> = program.ending.error().and_then(|error| error.asked_again_at),
        steps_before: Option<usize> = program.continuation.as_ref().map(|rest| rest.steps),
        steps_added: Option<usize> = program.continuation.as_ref().map(|rest| rest.more_steps),
        doubt: Option<&'static str> =
            report.doubts.iter().find(|(device, _)| *device == program.device).map(|(_, doubt)| doubt.name()),
    }
}

view! {
    struct Hint(device: u32, hint: CapacityHint) {
        device: u32 = device,
        entry: usize = hint.entry,
        least_bytes: u64 = hint.least_bytes,
        below_bytes: u64 = hint.below_bytes,
    }
}

view! {
    /// What contradicts the memory that was given.
    struct Contradicted(contradiction: MemoryContradiction) {
        device: u32 = contradiction.device,
        entry: usize = contradiction.entry,
        refused_bytes: u64 = contradiction.refused_bytes,
    }
}

view! {
    /// What serves every recorded request where the memory is known only roughly, on the device that may lack most.
    struct Sufficient<'a>(report: &'a Advice, enough: &Enough) {
        device: u32 = enough.device,
        bytes: u64 = enough.bytes,
        settings: &'a str = &report.options[enough.option].settings.text,
        #[serde(skip_serializing_if = "Option::is_none")]
        devices: Option<Vec<SufficientOn>> = (report.programs.len() > 1).then(|| all(&report.enough, SufficientOn::of)),
    }
}

view! {
    /// The same on each device that may lack memory, and the range in which its memory was.
    struct SufficientOn(enough: &Enough) {
        device: u32 = enough.device,
        bytes: u64 = enough.bytes,
        least_bytes: u64 = enough.range.least_bytes,
        below_bytes: Option<u64> = Some(enough.range.below_bytes).filter(|&below| below < u64::MAX),
    }
}

view! {
    struct Recommended<'a>(report: &'a Advice, recommendation: &'a Recommendation, option: &'a AdvisedOption) {
        settings: &'a str = &option.settings.text,
        line: &'a str = &recommendation.line,
        why: String = words::why(report),
        costs: String = words::costs(report),
        also: Option<&'static str> = remedies::also(option.needs_limit()),
        close: bool = option.is_close(),
        cautions: Vec<Warning> = all(&option.cautions, Warning::of),
    }
}

view! {
    /// Where the recorded run's own settings fail.
    struct Failure(cause: &FirstFailure) {
        device: u32 = cause.device,
        entry: usize = cause.entry,
        wanted_bytes: u64 = cause.wanted_bytes,
        reserved_bytes: u64 = cause.held.reserved_bytes,
        live_bytes: u64 = cause.held.live_bytes,
        pending_bytes: u64 = cause.held.pending_bytes,
        free_bytes: u64 = cause.held.free_bytes,
        largest_free_bytes: u64 = cause.held.largest_free_bytes,
        other_streams_bytes: u64 = cause.held.other_streams_bytes,
        private_pools_bytes: u64 = cause.held.private_pools_bytes,
    }
}

view! {
    /// The peak of live memory on a device.
    struct Live(advised: &Advised, program: &Program) {
        device: u32 = program.device,
        peak_bytes: u64 = program.live.bytes,
        at_entry: usize = program.live.entry,
        holders: Vec<LiveHolder> =
            all(program.live.holders.iter().take(words::HOLDERS), |holder| LiveHolder::of(advised, holder)),
        lost_beginning_blocks: Option<usize> = program.requests.lost_beginning.map(|lost| lost.blocks),
    }
}

view! {
    struct LiveHolder(advised: &Advised, holder: &StackUse) {
        bytes: u64 = holder.bytes,
        blocks: usize = holder.blocks,
        stack: Vec<String> = words::stack(advised, holder.stack).collect(),
    }
}

view! {
    struct Warning(caution: &Caution) {
        id: &'static str = caution.id,
        setting: &'static str = caution.setting,
        in_use: &'static str = caution.in_use.name(),
        severity: &'static str = caution.severity.name(),
        what: &'static str = caution.what,
        instead: &'static str = caution.instead,
        source: &'static str = caution.source,
    }
}

view! {
    struct Tried<'a>(report: &'a Advice, place: usize, option: &'a AdvisedOption) {
        settings: &'a str = &option.settings.text,
        own: bool = option.is_own,
        given: bool = option.is_given,
        fits: bool = option.fits(),
        gets_past: bool = option.gets_past(),
        fails_at_entry: Option<usize> = option.fails_at_entry(),
        ooms: i64 = option.ooms(),
        may_survive: bool = option.may_survive(),
        close: bool = option.is_close(),
        peak_reserved_bytes: i64 = option.peak_reserved_bytes(),
        headroom_bytes: Option<i64> = option.headroom_bytes(),
        smallest_capacity_bytes: u64 = option.smallest_capacity_bytes(),
        retries: i64 = option.retries(),
        driver_calls: u64 = option.driver_calls(),
        driver_us: u64 = option.driver_us(),
        needs_limit: bool = option.needs_limit(),
        likely: Option<Likely> = option.likely.map(Likely::of),
        timings: Option<Timings> = report.timings.iter().find(|timing| timing.option == place).map(Timings::of),
        cautions: Vec<Warning> = all(&option.cautions, Warning::of),
        #[serde(skip_serializing_if = "Option::is_none")]
        devices: Option<Vec<Device>> = (option.devices.len() > 1).then(|| all(&option.devices, Device::of)),
    }
}

view! {
    struct Likely(runs: LikelyRuns) {
        fit: usize = runs.fit,
        of: usize = runs.of,
        least_peak_reserved_bytes: i64 = runs.least_peak_reserved_bytes,
        most_peak_reserved_bytes: i64 = runs.most_peak_reserved_bytes,
    }
}

view! {
    struct Timings(timing: &TimingFits) {
        fit: usize = timing.fit,
        of: usize = timing.of,
        least_peak_reserved_bytes: i64 = timing.least_peak_reserved_bytes,
        most_peak_reserved_bytes: i64 = timing.most_peak_reserved_bytes,
    }
}

view! {
    struct Device(device: &DeviceOutcome) {
        device: u32 = device.device,
        fits: bool = device.fits(),
        fails_at_entry: Option<usize> = device.fails_at_entry(),
        peak_reserved_bytes: i64 = device.prediction.peak_reserved_bytes(),
        smallest_bytes: u64 = device.smallest_bytes,
    }
}

view! {
    struct OtherwiseObject(other: &Otherwise) {
        releases: Vec<&'static str> = other.releases.iter().map(|release| release.name).collect(),
        outcome: &'static str = other.outcome,
        line: Option<String> = other.line.clone(),
    }
}

view! {
    pub(super) struct HeldObject(advised: &Advised, space: &MemoryBudget) {
        file: String = advised.file.display().to_string(),
        capacity_bytes: Option<u64> = available(space),
        verified: bool = false,
        outcome: &'static str = if fits(&advised.recording, space) { "unknown" } else { "does_not_fit" },
        verdict: Option<&'static str> = (!fits(&advised.recording, space)).then_some("capacity"),
        options: [(); 0] = [],
        policies: [(); 0] = [],
        recommendation: Option<()> = None,
        held: Vec<HeldByDevice> = all(&advised.recording.devices, |device| HeldByDevice::of(device.device, Held::at_end(device))),
        not_in_file: &'static str = "the trace",
        notes: Vec<String> = notes_without_trace(advised),
        seconds: f64 = advised.seconds,
    }
}

view! {
    struct HeldByDevice(device: u32, held: Held) {
        device: u32 = device,
        reserved_bytes: u64 = held.reserved_bytes,
        live_bytes: u64 = held.live_bytes,
        pending_bytes: u64 = held.pending_bytes,
        free_bytes: u64 = held.free_bytes,
        largest_free_bytes: u64 = held.largest_free_bytes,
        private_pools_bytes: u64 = held.private_pools_bytes,
    }
}

view! {
    struct JobObject<'a>(job: &'a Job) {
        settings: Option<&'a str> = job.advice.serves_all.then_some(&job.advice.settings),
        line: Option<String> = job.advice.serves_all.then(|| paste_line(&job.advice.settings)),
        outcome: &'static str = job.fit().name(),
        own: bool = job.advice.is_own,
        tried: &'a str = &job.advice.settings,
        tightest_rank: u64 = job.ranks[job.advice.tightest].number,
        assumed_limit_bytes: Option<u64> = job.advice.assumed_bytes,
        enough_bytes: u64 = job.advice.enough.0,
        enough_settings: &'a str = &job.advice.enough.1,
        ranks: Vec<OfRank<'a>> = all(job.ranks.iter().zip(&job.advice.ranks), |(rank, standing)| OfRank::of(rank, *standing)),
        policies: Vec<OnRanksObject> = all(&job.policies, OnRanksObject::of),
        notes: Vec<String> = words::sentences(job),
    }
}

view! {
    struct OfRank<'a>(rank: &'a Rank, standing: Standing) {
        rank: u64 = rank.number,
        file: String = rank.file.display().to_string(),
        best_settings: Option<&'a str> = rank.advice.best().map(|best| &*best.settings),
        best_outcome: Option<&'static str> = rank.advice.best().map(|best| best.outcome.name()),
        best_smallest_capacity_bytes: Option<u64> = rank.advice.best().map(|best| best.needs_bytes),
        outcome: &'static str = standing.outcome.name(),
        smallest_capacity_bytes: u64 = standing.needs_bytes,
        capacity_bytes: Option<u64> = standing.available_bytes,
        margin_bytes: Option<i64> = standing.margin_bytes(),
    }
}

impl Job {
    /// What it adds to the JSON object of the ranks.
    pub(crate) fn addition(&self) -> Result<(&'static str, Value)> {
        Ok(("one_setting", serde_json::to_value(JobObject::of(self))?))
    }
}
