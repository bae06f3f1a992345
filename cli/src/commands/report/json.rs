//! A report as one JSON object.

use parkade_analysis::advise::CapacityHint;
use parkade_analysis::annotations::Scope;
use parkade_analysis::timeline::{Bucket, Curve, Holder, Marker};
use parkade_replay::SelfCheck;

use super::gather::{Curves, Device, Fared, Report, Rest, Tried, curves};
use super::holders::{FoundSteps, NoStack, OfKind, found_steps};
use super::{holders, words};
use crate::terminal::json_struct::{all, origin, view};
use crate::terminal::release::MadeBy;
use crate::terminal::self_check::Checked;

/// Buckets of the curves.
const BUCKETS: usize = 1000;

view! {
    pub(super) struct Object(report: &Report) {
        file: String = report.file.display().to_string(),
        settings: String = report.settings.settings.text.clone(),
        settings_origin: &'static str = origin(report.settings.origin),
        profile: &'static str = report.settings.profile.name,
        made_by: MadeBy = MadeBy::of(&report.made_by),
        limit_bytes: Option<u64> = report.devices.first().and_then(|device| device.limit.run_bytes.filter(|_| !device.limit.is_assumed())),
        capacity_bytes: Option<u64> = report.devices.iter().filter_map(|device| device.limit.tried_bytes).min(),
        capacity_hint: Option<Hint> = hint(report).map(Hint::of),
        self_check: Option<Checked> = SelfCheck::worst(report.devices.iter().filter_map(|device| device.self_check)).map(Checked::of),
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
        entry: usize = hint.entry,
        least_bytes: u64 = hint.least_bytes,
        below_bytes: u64 = hint.below_bytes,
    }
}

view! {
    struct OfDevice(report: &Report, device: &Device) {
        device: u32 = device.number,
        capacity_bytes: Option<u64> = device.limit.tried_bytes,
        entries: usize = device.timeline.entries,
        what_happened: String = words::what_happened(device),
        ending: &'static str = device.ending.name(),
        mismatches: Option<u64> = device.verdict.as_ref().map(|verdict| verdict.mismatches),
        self_check: Option<Checked> = device.self_check.map(Checked::of),
        peak_allocated_bytes: u64 = device.curves.allocated.peak(),
        peak_active_bytes: u64 = device.curves.active.peak(),
        peak_reserved_bytes: u64 = device.curves.reserved.peak(),
        peak_allocated_entry: Option<u32> = device.peak_allocated_moment.checked_sub(1),
        peak_reserved_entry: Option<u32> = device.peak_reserved_moment.checked_sub(1),
        curves: Drawn = Drawn::of(&curves(&device.timeline.levels, BUCKETS)),
        markers: Vec<Marked> = all(&device.timeline.markers, Marked::of),
        phases: Vec<Span> = all(&device.phases, Span::of),
        holders_at_peak: Vec<Held> = all(device.holders.iter().take(50), |holder| Held::of(report, holder)),
        holders_by_kind: Vec<OfKind> = all(&holders::kinds_at_peak(device), OfKind::of),
        holders_without_stack: Option<NoStack> = holders::without_stack(device).map(NoStack::of),
        passes: usize = device.told.passes,
        steps: Option<FoundSteps> = found_steps(&device.told.steps),
        what_if: Vec<WhatIf> = all(&device.tried, |(tried, curve)| WhatIf::of(device.limit.tried_bytes, tried, curve)),
        rest: Option<Estimated> = device.rest.as_ref().map(Estimated::of),
        notes: Vec<String> = words::notes(report, device),
    }
}

view! {
    struct Drawn(curves: &Curves) {
        allocated_bytes: Numbers = Numbers::of(&curves.allocated),
        active_bytes: Numbers = Numbers::of(&curves.active),
        reserved_bytes: Numbers = Numbers::of(&curves.reserved),
    }
}

view! {
    /// The minimum, maximum and last value of each bucket.
    struct Numbers(curve: &Curve) {
        min: Vec<u64> = all(&curve.buckets, |bucket: &Bucket| bucket.min),
        max: Vec<u64> = all(&curve.buckets, |bucket: &Bucket| bucket.max),
        last: Vec<u64> = all(&curve.buckets, |bucket: &Bucket| bucket.last),
    }
}

view! {
    struct Marked(marker: &Marker) {
        entry: u32 = marker.moment,
        kind: &'static str = marker.kind.name(),
        bytes: Option<u64> = marker.bytes,
    }
}

view! {
    struct Span(phase: &Scope) {
        name: String = phase.name.to_string(),
        from: u32 = phase.from,
        to: u32 = phase.to,
        depth: u32 = phase.depth,
    }
}

view! {
    struct Held(report: &Report, holder: &Holder) {
        what: String = words::holder(report, holder.key),
        bytes: u64 = holder.bytes,
        blocks: u64 = holder.blocks,
    }
}

view! {
    struct WhatIf(limit_bytes: Option<u64>, tried: &Tried, curve: &Curve) {
        settings: String = tried.label.clone(),
        is_own: bool = tried.is_own,
        recommended: bool = tried.is_recommended,
        fits: Option<bool> = tried.fits(limit_bytes),
        outcome: &'static str = tried.outcome.name(),
        fails_at_entry: Option<usize> = tried.in_file.fails_at_entry,
        peak_reserved_bytes: i64 = tried.in_file.peak_reserved_bytes,
        retries: i64 = tried.in_file.retries,
        driver_calls: u64 = tried.in_file.driver_calls,
        driver_us: u64 = tried.in_file.driver_ns / 1000,
        reserved_bytes: Numbers = Numbers::of(curve),
        with_rest: Option<WithRest> = tried.with_rest.as_ref().map(|(fared, _)| WithRest::of(fared)),
    }
}

view! {
    /// The same with the estimated rest.
    struct WithRest(fared: &Fared) {
        peak_reserved_bytes: i64 = fared.peak_reserved_bytes,
        fails_after_entries: Option<usize> = fared.fails_at_entry,
        retries: i64 = fared.retries,
        driver_calls: u64 = fared.driver_calls,
        driver_us: u64 = fared.driver_ns / 1000,
    }
}

view! {
    struct Estimated(rest: &Rest) {
        after_entry: usize = rest.died_at,
        entries: usize = rest.span.entries.saturating_sub(rest.died_at + 1),
        peak_in_use_bytes: u64 = rest.in_use.peak(),
    }
}
