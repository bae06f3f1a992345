//! A comparison as one JSON object.

use parkade_analysis::diff::{
    Bound, Comparison, Crossing, DriverUse, Grouping, Growth, Held, Measure, Onset, Origin, Part, Peak, PhaseChange, PhaseUse,
    Relation, Run, SizeClass, StepLevels, StepOnset, StepPair,
};
use parkade_analysis::ending::Ending;
use parkade_recording::StackId;
use parkade_replay::SettingsOrigin;

use super::compared::{Checked, Compared, File, Shown, share};
use super::text;
use crate::commands::diagnose::parts::{Call, stack_view as calls};
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::recording::MadeBy;
use crate::terminal::runner::Outcome;

view! {
    pub(super) struct Object<'a>(compared: &'a Compared) {
        /// The first recording.
        a: Input = Input::of(&compared.a),
        /// The second recording; null if one is shown alone.
        b: Option<Input> = compared.b.as_ref().map(Input::of),
        /// Each device, or pair of devices.
        devices: Vec<Device<'a>> = all(&compared.devices, |shown| Device::of(compared, shown)),
        /// Each bound of `--fail-above`, on each device.
        checks: Vec<Bounded> = all(&compared.checks, |checked| Bounded::of((compared, checked))),
        /// Whether any peak is above its bound, even if it is not known whether that is growth.
        exceeded: bool = compared.is_exceeded(),
        /// The devices that only one file has.
        notes: Vec<String> = compared.notes.clone(),
    }
}

view! {
    struct Input(file: &File) {
        /// The file.
        file: String = file.path.display().to_string(),
        /// The recorded run's settings.
        settings: String = file.own.settings.settings.text.clone(),
        /// Where they come from.
        settings_origin: Word<SettingsOrigin> = Word::of(&file.own.settings.origin),
        /// The PyTorch version.
        profile: &'static str = file.own.settings.profile.name,
        /// The release that made the recording.
        made_by: MadeBy = MadeBy::of(&file.made_by),
    }
}

view! {
    struct Bounded(of: (&Compared, &Checked)) {
        /// The device of the run that is checked.
        device: u32 = of.1.device,
        /// The bound as given.
        fail_above: String = of.1.text.clone(),
        /// Whether the bound limits growth or the size of the peak.
        kind: Word<Bound> = Word::of(&of.1.check.bound),
        /// The maximum that it allows.
        allowed_bytes: u64 = of.1.check.allowed_bytes,
        /// The peak of reserved memory that is checked.
        peak_reserved_bytes: u64 = of.1.check.peak_bytes,
        /// Whether the peak is above it.
        exceeded: bool = of.1.check.is_exceeded(),
        /// The result of the check.
        check: Word<Outcome> = Word::of(&of.0.verdict(of.1).outcome()),
    }
}

view! {
    /// A device, or a pair of devices.
    struct Device<'a> {
        /// What the first run shows.
        a: OfRun<'a>,
        /// What the second run shows.
        b: Option<OfRun<'a>>,
        /// What both show together.
        comparison: Option<Compare<'a>>,
        /// How the recordings are related, and what they lack.
        notes: Vec<String>,
    }
}

impl<'a> Device<'a> {
    fn of(compared: &'a Compared, shown: &'a Shown) -> Device<'a> {
        let failures = text::out_of_memory(compared, shown);
        let mut notes = text::notes(compared, shown);
        if let Shown::Two(comparison) = shown {
            notes.splice(0..0, text::relation(compared, comparison, ["A", "B"]));
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
        /// The device.
        device: u32 = run.device,
        /// The number of entries in its trace.
        entries: usize = run.entries,
        /// The part of the run that the other keys describe: `whole`, `end` (a file has no trace), `step` or `common_steps`
        /// (those of both files).
        part: Word<Part> = Word::of(&run.part),
        /// The number of the step, if the part is one.
        step: Option<usize> = if let Part::Step(step) = run.part { Some(step) } else { None },
        /// The first and the last of the common steps, if the part is those.
        common_steps: Option<(usize, usize)> = if let Part::Common { first, last } = run.part { Some((first, last)) } else { None },
        /// The first entry of the part, and the one after its last.
        part_entries: (usize, usize) = run.part_entries,
        /// The number of recorded decisions that the replay does not reproduce.
        mismatches: u64 = run.mismatches,
        /// The number of decisions compared.
        decisions: u64 = run.decisions,
        /// Reserved before the first entry of a file whose oldest entries are missing.
        lost_beginning_bytes: Option<u64> = run.lost_beginning_bytes,
        /// The number of requests that ran out of memory.
        ooms: u64 = run.ooms,
        /// The entry of the first of them.
        first_oom_entry: Option<usize> = run.first_oom_entry,
        /// How the run ended.
        ending: Word<Ending> = Word::of(&run.ending),
        /// How often the cache was emptied for lack of memory.
        retries: u64 = run.retries,
        /// The number of calls to empty_cache that released memory.
        empty_cache_calls: u64 = run.empty_cache_calls,
        /// The number of whole steps in the trace, if steps are marked or the run repeats itself.
        steps: Option<usize> = run.steps,
        /// The peak of allocated memory.
        peak_allocated: OfPeak<'a> = OfPeak::of(&run.peak_allocated),
        /// The peak of reserved memory.
        peak_reserved: OfPeak<'a> = OfPeak::of(&run.peak_reserved),
        /// The peak of reserved memory over everything in the file.
        whole_peak_reserved_bytes: u64 = run.whole_peak_reserved_bytes,
        /// What the allocator asked of the driver.
        driver: Driver = Driver::of(&run.driver),
    }
}

view! {
    struct OfPeak<'a>(peak: &'a Peak) {
        /// The peak.
        bytes: u64 = peak.bytes,
        /// The entry that led to it; null if that is before the first.
        entry: Option<usize> = peak.entry,
        /// The step in which the peak lies, if steps are marked.
        step: Option<usize> = peak.step,
        /// The phase in which the peak lies, as in `comparison.phases`, if phases are marked.
        phase: Option<&'a str> = peak.phase.as_ref().map(parkade_analysis::diff::Phase::name),
        /// Reserved then.
        reserved_bytes: u64 = peak.heap.reserved_bytes,
        /// In use then.
        allocated_bytes: u64 = peak.heap.allocated_bytes,
        /// Freed, but another stream may still use it.
        pending_bytes: u64 = peak.heap.pending_bytes,
        /// The bytes that were requested for allocated and pending memory.
        requested_bytes: u64 = peak.heap.requested_bytes,
        /// The bytes beyond those requests.
        rounding_bytes: u64 = peak.heap.rounding_bytes(),
        /// Free in whole segments.
        free_segments_bytes: u64 = peak.heap.free_segments_bytes,
        /// Free in segments that are partly in use.
        partial_segments_bytes: u64 = peak.heap.partial_segments_bytes,
        /// The largest hole.
        largest_hole_bytes: u64 = peak.heap.largest_hole_bytes,
        /// The number of holes.
        holes: u64 = peak.heap.holes,
        /// The number of segments; a run of mapped pages counts as one.
        segments: usize = peak.segments,
        /// 1 - allocated / reserved.
        fragmentation: Option<f64> = peak.heap.ratio(),
    }
}

view! {
    struct Driver(driver: &DriverUse) {
        /// Segments taken, one cudaMalloc each.
        segments_taken: u64 = driver.segments_taken,
        /// Segments given back.
        segments_given_back: u64 = driver.segments_given_back,
        /// How often pages were mapped.
        maps: u64 = driver.maps,
        /// How often pages were unmapped.
        unmaps: u64 = driver.unmaps,
        /// The bytes taken and mapped.
        taken_bytes: u64 = driver.taken_bytes,
        /// The bytes released and unmapped.
        given_back_bytes: u64 = driver.given_back_bytes,
    }
}

view! {
    struct Compare<'a>(compared: &Compared, comparison: &'a Comparison) {
        /// How the two are related: `same_recording`, `same_run`, `same_requests`, `related`, `little_in_common` or `unknown`
        /// (nothing to compare).
        relation: Word<Relation> = Word::of(&comparison.likeness.relation),
        /// If both make the same requests: the first entry that differs, in its kind or in the position of a block; null if
        /// none does.
        first_other_answer_entry: Option<usize> = comparison.first_other_answer,
        /// The share of the shorter trace's requests, in runs of four, that the other also makes.
        requests_in_common: Option<f64> = comparison.likeness.requests_in_common,
        /// The share of the stacks in the recording with fewer of them that the other also has; line numbers may differ.
        stacks_in_common: Option<f64> = comparison.likeness.stacks_in_common,
        /// The peak of allocated memory in B minus that in A.
        peak_allocated_change_bytes: i64 = change(comparison.a.peak_allocated.bytes, comparison.b.peak_allocated.bytes),
        /// The peak of reserved memory in B minus that in A.
        peak_reserved_change_bytes: i64 = change(comparison.a.peak_reserved.bytes, comparison.b.peak_reserved.bytes),
        /// The change of the peak of reserved memory as a share of A.
        peak_reserved_change: Option<f64> = share(comparison.a.peak_reserved.bytes, comparison.b.peak_reserved.bytes),
        /// How blocks are grouped: by `stack` (blocks without one by size), or by `size` if a recording has no stacks.
        grouped_by: Word<Grouping> = Word::of(&comparison.grouping),
        /// What holds the memory at the two peaks of allocated memory, the largest change first.
        held_at_peak: Vec<Group> = all(&comparison.growth, |group| Group::of(compared, group)),
        /// What is in use at the two peaks of reserved memory, the largest change first.
        held_at_reserved_peak: Vec<Group> = all(&comparison.growth_at_reserved, |group| Group::of(compared, group)),
        /// Where the change of the peak begins; null if the peaks are the same, or if a file has no trace.
        begins: Option<Begins<'a>> = comparison.onset.as_ref().map(|onset| Begins::of(compared, onset)),
        /// The phases, if both files mark them.
        phases: Vec<OfPhase<'a>> = all(&comparison.phases, OfPhase::of),
        /// What marks the steps in A and in B: an annotation, or `repetition` if nothing marks them but the run repeats itself.
        steps_marked_by: Option<(&'a str, &'a str)> = comparison.steps.marks.as_ref().map(|(a, b)| (a.as_str(), b.as_str())),
        /// The steps that both have.
        steps: Vec<Step> = all(&comparison.steps.pairs, Step::of),
        /// The number of steps that only A has.
        steps_only_in_a: usize = comparison.steps.only_a,
        /// The number of steps that only B has.
        steps_only_in_b: usize = comparison.steps.only_b,
    }
}

view! {
    struct Begins<'a>(compared: &Compared, onset: &'a Onset) {
        /// The memory whose peak changed: `reserved` or, if its peak is the same, `allocated`.
        measure: Word<Measure> = Word::of(&onset.measure),
        /// The first step in which the runs differ by at least a tenth of the change; null without steps, or if no complete
        /// step does.
        step: Option<FirstStep> = onset.step.map(|step| FirstStep::of(&step)),
        /// The first entry of B that takes it beyond A's peak; null if B never exceeds it.
        crossing: Option<FirstAbove<'a>> = onset.crossing.as_ref().map(|crossing| FirstAbove::of(compared, crossing)),
    }
}

view! {
    struct FirstStep(onset: &StepOnset) {
        /// The step's number, from 0.
        step: usize = onset.step,
        /// The peak in A during the step.
        peak_bytes_a: u64 = onset.a_bytes,
        /// The peak in B during the step.
        peak_bytes_b: u64 = onset.b_bytes,
        /// The largest difference in an earlier step; null if there is no earlier one.
        largest_difference_before_bytes: Option<u64> = onset.before_bytes,
    }
}

view! {
    struct FirstAbove<'a>(compared: &Compared, crossing: &'a Crossing) {
        /// The entry.
        entry: usize = crossing.entry,
        /// The step in which the entry lies, if steps are marked.
        step: Option<usize> = crossing.step,
        /// The phase in which the entry lies, as in `comparison.phases`, if phases are marked.
        phase: Option<&'a str> = crossing.phase.as_ref().map(parkade_analysis::diff::Phase::name),
        /// The microseconds since the first entry of the trace, if the file states times.
        after_us: Option<u64> = crossing.after_us,
        /// The requested bytes; null if the entry is not a request.
        requested_bytes: Option<u64> = crossing.request.map(|request| request.bytes),
        /// The stack of the request, the innermost call first; null if none is recorded.
        stack: Option<Vec<Call>> = crossing.request.filter(|request| request.stack != StackId::NONE).map(|request| {
            let file = compared.second();
            calls(&file.names, &file.recording, request.stack)
        }),
    }
}

/// The second value minus the first.
fn change(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(b) - i128::from(a)).unwrap_or(if b > a { i64::MAX } else { i64::MIN })
}

view! {
    struct Group(compared: &Compared, group: &Growth) {
        /// The stack in A, the innermost call first.
        stack_a: Option<Vec<Call>> = stack(&compared.a, group.origin, |a, _| a),
        /// The stack in B, the innermost call first.
        stack_b: Option<Vec<Call>> = stack(compared.second(), group.origin, |_, b| b),
        /// The requested sizes, of blocks without a stack.
        sizes: Option<Sizes> = if let Origin::Sizes(class) = group.origin { Some(Sizes::of(&class)) } else { None },
        /// The blocks in A.
        a: Blocks = Blocks::of(&group.a),
        /// The blocks in B.
        b: Blocks = Blocks::of(&group.b),
        /// The bytes in B minus those in A.
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
        /// The sizes are at least this.
        least_bytes: u64 = class.least_bytes,
        /// The sizes are below this.
        below_bytes: u64 = class.below_bytes,
    }
}

view! {
    struct Blocks(held: &Held) {
        /// The bytes.
        bytes: u64 = held.bytes,
        /// The number of blocks.
        blocks: u64 = held.blocks,
    }
}

view! {
    struct OfPhase<'a>(change: &'a PhaseChange) {
        /// `forward`, `backward`, `optimizer`, `zero_grad`, `outside`, `before_trace`, or a scope's name.
        phase: &'a str = change.phase.name(),
        /// The phase in A.
        a: PhaseBytes = PhaseBytes::of(&change.a),
        /// The phase in B.
        b: PhaseBytes = PhaseBytes::of(&change.b),
    }
}

view! {
    struct PhaseBytes(phase: &PhaseUse) {
        /// Held at the peak of allocated memory and requested in this phase.
        held_at_peak_bytes: u64 = phase.held_at_peak_bytes,
        /// The peak of allocated memory during this phase.
        peak_allocated_bytes: u64 = phase.peak_allocated_bytes,
    }
}

view! {
    struct Step(pair: &StepPair) {
        /// The step's number, from 0.
        step: usize = pair.step,
        /// The step in A.
        a: Levels = Levels::of(&pair.a),
        /// The step in B.
        b: Levels = Levels::of(&pair.b),
    }
}

view! {
    struct Levels(levels: &StepLevels) {
        /// The step's first entry.
        first_entry: usize = levels.first_entry,
        /// The step's last entry.
        last_entry: usize = levels.last_entry,
        /// The peak of allocated memory during the step.
        peak_allocated_bytes: u64 = levels.peak_allocated_bytes,
        /// The peak of reserved memory during the step.
        peak_reserved_bytes: u64 = levels.peak_reserved_bytes,
        /// Allocated at its end.
        allocated_at_end_bytes: u64 = levels.allocated_at_end_bytes,
        /// Reserved at its end.
        reserved_at_end_bytes: u64 = levels.reserved_at_end_bytes,
    }
}

// What came of bounds.
parkade_recording::names! {
    Outcome {
        Outcome::Good => "holds",
        Outcome::CheckFailed => "exceeded",
        Outcome::NotKnown => "not_known",
        Outcome::CouldNotRun => "could_not_run",
    }
}
