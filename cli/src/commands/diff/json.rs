//! A comparison as one JSON object.

use parkade_analysis::diff::{
    Bound, Comparison, DriverUse, Grouping, Growth, Held, Origin, Part, Peak, PhaseChange, PhaseUse, Run, SizeClass, StepLevels,
    StepPair,
};
use parkade_recording::StackId;

use super::compared::{Checked, Compared, File, Shown};
use super::words;
use crate::commands::diagnose::stacks::{Call, view as calls};
use crate::terminal::json_struct::{all, origin, view};
use crate::terminal::release::MadeBy;
use crate::terminal::runner::Outcome;

view! {
    pub(super) struct Object<'a>(compared: &'a Compared) {
        a: Input = Input::of(&compared.a),
        b: Option<Input> = compared.b.as_ref().map(Input::of),
        devices: Vec<Device<'a>> = all(&compared.devices, |shown| Device::of(compared, shown)),
        checks: Vec<Bounded> = all(&compared.checks, |checked| Bounded::of((compared, checked))),
        exceeded: bool = compared.is_exceeded(),
        notes: Vec<String> = compared.notes.clone(),
    }
}

view! {
    struct Input(file: &File) {
        file: String = file.path.display().to_string(),
        settings: String = file.own.settings.settings.text.clone(),
        settings_origin: &'static str = origin(file.own.settings.origin),
        profile: &'static str = file.own.settings.profile.name,
        made_by: MadeBy = MadeBy::of(&file.made_by),
    }
}

view! {
    struct Bounded(of: (&Compared, &Checked)) {
        device: u32 = of.1.device,
        fail_above: String = of.1.text.clone(),
        kind: &'static str = match of.1.check.bound {
            Bound::Growth { .. } => "growth",
            Bound::Peak { .. } => "peak",
        },
        allowed_bytes: u64 = of.1.check.allowed_bytes,
        peak_reserved_bytes: u64 = of.1.check.peak_bytes,
        exceeded: bool = of.1.check.is_exceeded(),
        check: &'static str = check(of.0.verdict(of.1).outcome()),
    }
}

#[derive(serde::Serialize)]
struct Device<'a> {
    a: OfRun<'a>,
    b: Option<OfRun<'a>>,
    comparison: Option<Compare<'a>>,
    /// Includes how the two are related.
    notes: Vec<String>,
}

impl<'a> Device<'a> {
    fn of(compared: &'a Compared, shown: &'a Shown) -> Device<'a> {
        let failures = words::out_of_memory(compared, shown);
        let mut notes = words::notes(compared, shown);
        if let Shown::Two(comparison) = shown {
            notes.splice(0..0, words::relation(compared, comparison));
        }
        notes.splice(0..0, failures);
        match shown {
            Shown::One(run) => Device { a: OfRun::of(run), b: None, comparison: None, notes },
            Shown::Two(comparison) => Device {
                a: OfRun::of(&comparison.a),
                b: Some(OfRun::of(&comparison.b)),
                comparison: Some(Compare::of(compared, comparison)),
                notes,
            },
        }
    }
}

view! {
    struct OfRun<'a>(run: &'a Run) {
        device: u32 = run.device,
        entries: usize = run.entries,
        part: &'static str = match run.part {
            Part::Whole => "whole",
            Part::End => "end",
            Part::Step(_) => "step",
            Part::Common { .. } => "common_steps",
        },
        step: Option<usize> = if let Part::Step(step) = run.part { Some(step) } else { None },
        common_steps: Option<(usize, usize)> = if let Part::Common { first, last } = run.part { Some((first, last)) } else { None },
        part_entries: (usize, usize) = run.part_entries,
        mismatches: u64 = run.mismatches,
        decisions: u64 = run.decisions,
        lost_beginning_bytes: Option<u64> = run.lost_beginning_bytes,
        ooms: u64 = run.ooms,
        first_oom_entry: Option<usize> = run.first_oom_entry,
        ending: &'static str = run.ending.name(),
        retries: u64 = run.retries,
        empty_cache_calls: u64 = run.empty_cache_calls,
        steps: Option<usize> = run.steps,
        peak_allocated: OfPeak<'a> = OfPeak::of(&run.peak_allocated),
        peak_reserved: OfPeak<'a> = OfPeak::of(&run.peak_reserved),
        whole_peak_reserved_bytes: u64 = run.whole_peak_reserved_bytes,
        driver: Driver = Driver::of(&run.driver),
    }
}

view! {
    struct OfPeak<'a>(peak: &'a Peak) {
        bytes: u64 = peak.bytes,
        entry: Option<usize> = peak.entry,
        step: Option<usize> = peak.step,
        phase: Option<&'a str> = peak.phase.as_ref().map(parkade_analysis::diff::Phase::name),
        reserved_bytes: u64 = peak.heap.reserved_bytes,
        allocated_bytes: u64 = peak.heap.allocated_bytes,
        pending_bytes: u64 = peak.heap.pending_bytes,
        requested_bytes: u64 = peak.heap.requested_bytes,
        rounding_bytes: u64 = peak.heap.rounding_bytes(),
        free_segments_bytes: u64 = peak.heap.free_segments_bytes,
        partial_segments_bytes: u64 = peak.heap.partial_segments_bytes,
        largest_hole_bytes: u64 = peak.heap.largest_hole_bytes,
        holes: u64 = peak.heap.holes,
        segments: usize = peak.segments,
        fragmentation: Option<f64> = peak.heap.ratio(),
    }
}

view! {
    struct Driver(driver: &DriverUse) {
        segments_taken: u64 = driver.segments_taken,
        segments_given_back: u64 = driver.segments_given_back,
        maps: u64 = driver.maps,
        unmaps: u64 = driver.unmaps,
        taken_bytes: u64 = driver.taken_bytes,
        given_back_bytes: u64 = driver.given_back_bytes,
    }
}

view! {
    struct Compare<'a>(compared: &Compared, comparison: &'a Comparison) {
        relation: &'static str = comparison.likeness.relation.name(),
        first_other_answer_entry: Option<usize> = comparison.first_other_answer,
        requests_in_common: Option<f64> = comparison.likeness.requests_in_common,
        stacks_in_common: Option<f64> = comparison.likeness.stacks_in_common,
        peak_allocated_change_bytes: i64 = change(comparison.a.peak_allocated.bytes, comparison.b.peak_allocated.bytes),
        peak_reserved_change_bytes: i64 = change(comparison.a.peak_reserved.bytes, comparison.b.peak_reserved.bytes),
        peak_reserved_change: Option<f64> = words::share(comparison.a.peak_reserved.bytes, comparison.b.peak_reserved.bytes),
        grouped_by: &'static str = if comparison.grouping == Grouping::Stacks { "stack" } else { "size" },
        held_at_peak: Vec<Group> = all(&comparison.growth, |group| Group::of(compared, group)),
        phases: Vec<OfPhase<'a>> = all(&comparison.phases, OfPhase::of),
        steps_marked_by: Option<(&'a str, &'a str)> = comparison.steps.marks.as_ref().map(|(a, b)| (a.as_str(), b.as_str())),
        steps: Vec<Step> = all(&comparison.steps.pairs, Step::of),
        steps_only_in_a: usize = comparison.steps.only_a,
        steps_only_in_b: usize = comparison.steps.only_b,
    }
}

/// The second value minus the first.
fn change(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(b) - i128::from(a)).unwrap_or(if b > a { i64::MAX } else { i64::MIN })
}

view! {
    struct Group(compared: &Compared, group: &Growth) {
        stack_a: Option<Vec<Call>> = stack(&compared.a, group.origin, |a, _| a),
        stack_b: Option<Vec<Call>> = stack(compared.second(), group.origin, |_, b| b),
        sizes: Option<Sizes> = if let Origin::Sizes(class) = group.origin { Some(Sizes::of(&class)) } else { None },
        a: Blocks = Blocks::of(&group.a),
        b: Blocks = Blocks::of(&group.b),
        change_bytes: i64 = change(group.a.bytes, group.b.bytes),
    }
}

fn stack(file: &File, origin: Origin, which: fn(Option<StackId>, Option<StackId>) -> Option<StackId>) -> Option<Vec<Call>> {
    match origin {
        Origin::Stack { a, b } => which(a, b).map(|stack| calls(&file.names, &file.recording, stack)),
        Origin::Sizes(_) => None,
    }
}

view! {
    struct Sizes(class: &SizeClass) {
        least_bytes: u64 = class.least_bytes,
        below_bytes: u64 = class.below_bytes,
    }
}

view! {
    struct Blocks(held: &Held) {
        bytes: u64 = held.bytes,
        blocks: u64 = held.blocks,
    }
}

view! {
    struct OfPhase<'a>(change: &'a PhaseChange) {
        phase: &'a str = change.phase.name(),
        a: PhaseBytes = PhaseBytes::of(&change.a),
        b: PhaseBytes = PhaseBytes::of(&change.b),
    }
}

view! {
    struct PhaseBytes(phase: &PhaseUse) {
        held_at_peak_bytes: u64 = phase.held_at_peak_bytes,
        peak_allocated_bytes: u64 = phase.peak_allocated_bytes,
    }
}

view! {
    struct Step(pair: &StepPair) {
        step: usize = pair.step,
        a: Levels = Levels::of(&pair.a),
        b: Levels = Levels::of(&pair.b),
    }
}

view! {
    struct Levels(levels: &StepLevels) {
        first_entry: usize = levels.first_entry,
        last_entry: usize = levels.last_entry,
        peak_allocated_bytes: u64 = levels.peak_allocated_bytes,
        peak_reserved_bytes: u64 = levels.peak_reserved_bytes,
        allocated_at_end_bytes: u64 = levels.allocated_at_end_bytes,
        reserved_at_end_bytes: u64 = levels.reserved_at_end_bytes,
    }
}

/// The result of the checks.
pub(super) const fn check(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Good => "holds",
        Outcome::CheckFailed => "exceeded",
        Outcome::NotKnown => "not_known",
        Outcome::CouldNotRun => "could_not_run",
    }
}
