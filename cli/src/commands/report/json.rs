//! A report as one JSON object.

use parkade_analysis::advise::{CapacityHint, Outcome};
use parkade_analysis::annotations::Scope;
use parkade_analysis::ending::Ending;
use parkade_analysis::timeline::{Bucket, Curve, Holder, Marker, MarkerKind};
use parkade_replay::recognition::Recognition;
use parkade_replay::{ReplaySettings, SelfCheck, SettingsOrigin};

use super::gather::{Curves, Device, Fared, Report, Rest, Tried, curves};
use super::holders::{FoundSteps, NoStack, OfKind, found_steps};
use super::{holders, words};
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::recording::MadeBy;
use crate::terminal::run_words::Checked;

/// Buckets of the curves.
pub(super) const BUCKETS: usize = 1000;

view! {
    pub(super) struct Object(report: &Report, settings: &ReplaySettings, made_by: &Recognition) {
        /// The recording.
        file: String = report.file.display().to_string(),
        /// The recorded run's settings.
        settings: String = settings.settings.text.clone(),
        /// Where they come from.
        settings_origin: Word<SettingsOrigin> = Word::of(&settings.origin),
        /// The PyTorch version whose rules are used to read the recording.
        profile: &'static str = settings.profile.name,
        /// The release that made the recording.
        made_by: MadeBy = MadeBy::of(made_by),
        /// `--limit`.
        limit_bytes: Option<u64> = report.devices.first().and_then(|device| device.limit.run_bytes.filter(|_| !device.limit.is_assumed())),
        /// The memory in which other settings were tried; with several devices, the smallest.
        capacity_bytes: Option<u64> = report.devices.iter().filter_map(|device| device.limit.tried_bytes).min(),
        /// What an out-of-memory error shows of the limit, if it was not given.
        capacity_hint: Option<Hint> = hint(report).map(Hint::of),
        /// Whether a replay under the run's own settings needs as much as the run did.
        self_check: Option<Checked> = SelfCheck::worst(report.devices.iter().filter_map(|device| device.self_check)).map(Checked::of),
        /// Each device.
        devices: Vec<OfDevice> = all(&report.devices, |device| OfDevice::of(report, device)),
    }
}

/// What the error shows on the device with the least memory.
fn hint(report: &Report) -> Option<CapacityHint> {
    report.devices.iter().filter_map(|device| device.limit.hint()).min_by_key(CapacityHint::assumed_bytes)
}

view! {
    /// The evidence for the limit, if it was not given.
    struct Hint(hint: CapacityHint) {
        /// The entry of the error.
        entry: usize = hint.entry,
        /// At least this much could be reserved.
        least_bytes: u64 = hint.least_bytes,
        /// Less than this could be reserved; equal to `least_bytes` if the limit is known exactly.
        below_bytes: u64 = hint.below_bytes,
    }
}

view! {
    struct OfDevice(report: &Report, device: &Device) {
        /// The device.
        device: u32 = device.number,
        /// The memory in which other settings were tried on it.
        capacity_bytes: Option<u64> = device.limit.tried_bytes,
        /// The number of entries in its trace.
        entries: usize = device.timeline.entries,
        /// The run in a sentence or two.
        what_happened: String = words::what_happened(device),
        /// Whether the run ran out of memory and continued.
        ending: Word<Ending> = Word::of(&device.ending),
        /// The number of decisions that differ; null without a trace.
        mismatches: Option<u64> = device.verdict.as_ref().map(|verdict| verdict.mismatches),
        /// The self-check of the device.
        self_check: Option<Checked> = device.self_check.map(Checked::of),
        /// The peak of allocated memory.
        peak_allocated_bytes: u64 = device.curves.allocated.peak(),
        /// The peak of active memory: allocated, or freed but still used by another stream.
        peak_active_bytes: u64 = device.curves.active.peak(),
        /// The peak of reserved memory.
        peak_reserved_bytes: u64 = device.curves.reserved.peak(),
        /// The first entry after which allocated memory is at its peak; null if before the first.
        peak_allocated_entry: Option<u32> = device.peak_allocated_moment.checked_sub(1),
        /// Of the entries after which reserved memory is at its peak, the first with the most allocated, as
        /// `peaks.allocated_at_reserved_entry` of `diagnose`.
        peak_reserved_entry: Option<u32> = device.peak_reserved_moment.checked_sub(1),
        /// Memory over time.
        curves: Drawn = Drawn::of(&curves(&device.timeline.levels, BUCKETS)),
        /// Events worth seeing.
        markers: Vec<Marked> = all(&device.timeline.markers, Marked::of),
        /// The annotated phases.
        phases: Vec<Span> = all(&device.phases, Span::of),
        /// Up to 50 holders that hold the most when allocated memory peaks.
        holders_at_peak: Vec<Held> = all(device.holders.iter().take(50), |holder| Held::of(report, holder)),
        /// The live blocks when allocated memory peaks, by kind, the most bytes first.
        holders_by_kind: Vec<OfKind> = all(&holders::kinds_at_peak(device), OfKind::of),
        /// The live blocks without a stack at that point; null if almost no block of the file has one.
        holders_without_stack: Option<NoStack> = holders::without_stack(device).map(NoStack::of),
        /// The number of forward passes that were found with their backward passes.
        passes: usize = device.told.passes,
        /// The steps of the run that were found; null if there are none.
        steps: Option<FoundSteps> = found_steps(&device.told.steps),
        /// The run under other settings, its own first.
        what_if: Vec<WhatIf> = all(&device.tried, |(tried, curve)| WhatIf::of(device.limit.tried_bytes, tried, curve)),
        /// The estimated rest of a run that died.
        rest: Option<Estimated> = device.rest.as_ref().map(Estimated::of),
        /// What to know before trusting the curves.
        notes: Vec<String> = words::notes(report, device),
    }
}

view! {
    pub(super) struct Drawn(curves: &Curves) {
        /// Allocated memory.
        allocated_bytes: Numbers = Numbers::of(&curves.allocated),
        /// Active memory.
        active_bytes: Numbers = Numbers::of(&curves.active),
        /// Reserved memory.
        reserved_bytes: Numbers = Numbers::of(&curves.reserved),
    }
}

view! {
    /// The minimum, maximum and last value of each bucket.
    struct Numbers(curve: &Curve) {
        /// The minimum in each bucket.
        min: Vec<u64> = all(&curve.buckets, |bucket: &Bucket| bucket.min),
        /// The maximum in each bucket.
        max: Vec<u64> = all(&curve.buckets, |bucket: &Bucket| bucket.max),
        /// The last value in each bucket.
        last: Vec<u64> = all(&curve.buckets, |bucket: &Bucket| bucket.last),
    }
}

view! {
    pub(super) struct Marked(marker: &Marker) {
        /// The entry.
        entry: u32 = marker.moment,
        /// What happened.
        kind: Word<MarkerKind> = Word::of(&marker.kind),
        /// The bytes requested or released.
        bytes: Option<u64> = marker.bytes,
    }
}

view! {
    pub(super) struct Span(phase: &Scope) {
        /// The annotation.
        name: String = phase.name.to_string(),
        /// The first entry of the phase.
        from: u32 = phase.from,
        /// The entry after its last.
        to: u32 = phase.to,
        /// The number of phases that enclose it.
        depth: u32 = phase.depth,
    }
}

view! {
    pub(super) struct Held(report: &Report, holder: &Holder) {
        /// A call, or a size of block if the file has no stacks.
        what: String = words::holder(report, holder.key),
        /// The bytes held.
        bytes: u64 = holder.bytes,
        /// The number of blocks.
        blocks: u64 = holder.blocks,
    }
}

view! {
    struct WhatIf(limit_bytes: Option<u64>, tried: &Tried, curve: &Curve) {
        /// The settings.
        settings: String = tried.label.clone(),
        /// Whether these are the recorded run's.
        is_own: bool = tried.is_own,
        /// Whether the page recommends them; never without `-o`, which makes it search.
        recommended: bool = tried.is_recommended,
        /// Whether every request in the file is served; null if the memory is unknown.
        fits: Option<bool> = tried.fits(limit_bytes),
        /// `fits`, `gets_past`, `does_not_fit` or `unknown`, as `advise` judges it.
        outcome: Word<Outcome> = Word::of(&tried.outcome),
        /// The first entry whose request fails.
        fails_at_entry: Option<usize> = tried.in_file.fails_at_entry,
        /// The peak of reserved memory.
        peak_reserved_bytes: i64 = tried.in_file.peak_reserved_bytes,
        /// `num_alloc_retries`.
        retries: i64 = tried.in_file.retries,
        /// The number of memory calls to the driver.
        driver_calls: u64 = tried.in_file.driver_calls,
        /// What those calls cost.
        driver_us: u64 = tried.in_file.driver_ns / 1000,
        /// Reserved memory over time, in buckets of the same kind.
        reserved_bytes: Numbers = Numbers::of(curve),
        /// The same with the estimated rest, as `advise` tries it; null if the run did not die, or nothing can be
        /// estimated.
        with_rest: Option<WithRest> = tried.with_rest.as_ref().map(|(fared, _)| WithRest::of(fared)),
    }
}

view! {
    /// The same with the estimated rest.
    struct WithRest(fared: &Fared) {
        /// The peak of reserved memory.
        peak_reserved_bytes: i64 = fared.peak_reserved_bytes,
        /// The number of entries, recorded up to the error and then estimated, before the first that fails.
        fails_after_entries: Option<usize> = fared.fails_at_entry,
        /// `num_alloc_retries`.
        retries: i64 = fared.retries,
        /// The number of memory calls to the driver.
        driver_calls: u64 = fared.driver_calls,
        /// What those calls cost.
        driver_us: u64 = fared.driver_ns / 1000,
    }
}

view! {
    struct Estimated(rest: &Rest) {
        /// The entry at which it died.
        after_entry: usize = rest.died_at,
        /// The number of entries that are estimated.
        entries: usize = rest.span.entries.saturating_sub(rest.died_at + 1),
        /// The most bytes in use, up to the error and after it.
        peak_in_use_bytes: u64 = rest.in_use.peak(),
    }
}
