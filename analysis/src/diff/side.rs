//! One side of a comparison: a replayed device of a recording, its steps and their phases, the part of its run that is
//! compared, and that part's summary ([`Run`]): its peaks, how memory is used at them, and its driver calls.
//!
//! Steps are ranges of moments, found by annotations or, without any, by repetition. Everything in `diff` that needs steps gets
//! them here.
//!
//! If a file has annotations, they show the phase of a step in which memory was requested: forward, backward, optimizer.
//! Scopes are placed by time, so a backward pass is recognised although its allocations come from autograd's own threads. The
//! innermost scope whose name denotes a phase decides; if there is none, the innermost other scope does. Marks of whole steps
//! do not count.
//!
//! A [`Bound`] checks the peak of reserved memory, so that CI can fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use parkade_recording::{Action, DeviceRecording, Entry, Recording, StackId};
use parkade_replay::{Requests, VerifyError, VerifyOptions};
use thiserror::Error;

use crate::annotations::{Scope, StepError, repeated_steps, scopes, steps};
use crate::ending::Ending;
use crate::fragmentation::Fragmentation;
use crate::timeline::{HeapLog, MarkerKind, Timeline};

/// One side of a comparison.
#[derive(Clone, Copy)]
pub struct Side<'r> {
    /// The recording, for its stacks and annotations.
    pub recording: &'r Recording,
    /// The device in it.
    pub device: &'r DeviceRecording,
    /// The recorded run's settings and limit.
    pub own: &'r VerifyOptions,
    /// The part of the run that is compared.
    pub part: Part,
}

/// The first or the second of two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The first.
    A,
    /// The second.
    B,
}

/// The part of a run that is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Everything that the file contains.
    Whole,
    /// The state at the end, which is the only part of a file without a trace that can be compared.
    End,
    /// The step of this number, as its annotations count them from 0.
    Step(usize),
    /// The steps that both sides have, from the first to the last; the last may be unfinished on one side.
    Common {
        /// The number of the first common step.
        first: usize,
        /// The number of the last common step.
        last: usize,
    },
}

parkade_recording::names! {
    Part {
        Part::Whole => "whole",
        Part::End => "end",
        Part::Step(_) => "step",
        Part::Common { .. } => "common_steps",
    }
}

/// The reason why a side cannot be summarized.
#[derive(Debug, Error)]
pub enum DiffError {
    /// The recording contradicts itself.
    #[error(transparent)]
    Replay(#[from] VerifyError),
    /// The caller asked for a step, but there are no steps.
    #[error("there is no step {step}: {why}")]
    NoSteps {
        /// The requested step.
        step: usize,
        /// Why there are no steps.
        why: NoSteps,
    },
    /// The caller asked for a step that the trace does not contain.
    #[error("there is no step {step}: the trace has complete steps {first} to {last}")]
    NoSuchStep {
        /// The requested step.
        step: usize,
        /// The first step in the trace.
        first: usize,
        /// The last step in the trace.
        last: usize,
    },
}

/// A replayed side.
pub(super) struct Replayed<'r> {
    pub(super) side: Side<'r>,
    pub(super) timeline: Timeline,
    pub(super) requests: Requests,
    pub(super) steps: Result<StepSpans, NoSteps>,
    phases: Phases,
    /// The first moment that is compared.
    pub(super) from: u32,
    /// The last moment that is compared.
    pub(super) to: u32,
}

impl<'r> Replayed<'r> {
    /// Replays a side.
    pub(super) fn of(side: Side<'r>) -> Result<Replayed<'r>, DiffError> {
        let (recording, device) = (side.recording, side.device);
        let requests = match device.trace.as_slice() {
            [] => Requests::default(),
            _ => Requests::of_recording(device, side.own, &mut |_| ())?,
        };
        let timeline = Timeline::of_device(device, side.own, &requests)?;
        let steps = step_spans(recording, device, requests.lost_beginning.is_some());
        let end = timeline.entries as u32;
        let (from, to) = match side.part {
            // The steps that both sides have are known only after both replays.
            Part::Whole | Part::Common { .. } => (0, end),
            Part::End => (end, end),
            Part::Step(step) => {
                let steps = steps.as_ref().map_err(|&why| DiffError::NoSteps { step, why })?;
                let number = |span: Option<&StepSpan>| span.map_or(0, |span| span.number);
                let (first, last) = (number(steps.spans.first()), number(steps.spans.last()));
                let span = steps.numbered(step).ok_or(DiffError::NoSuchStep { step, first, last })?;
                (span.from, span.to)
            }
        };
        let phases = Phases::of(recording, device);
        Ok(Replayed { side, timeline, requests, steps, phases, from, to })
    }

    /// Returns the number of the step at a moment.
    pub(super) fn step_at(&self, moment: u32) -> Option<usize> {
        self.steps.as_ref().ok().and_then(|steps| steps.at(moment)).map(|span| span.number)
    }

    /// Returns the phase of the entry that leads to a moment.
    pub(super) fn phase_at(&self, moment: u32) -> Option<Phase> {
        self.phases.at(moment)
    }

    /// Returns the request that leads to a moment.
    pub(super) fn request_at(&self, moment: u32) -> Option<Request> {
        let block = self.timeline.log.blocks.iter().find(|block| moment > 0 && block.born == moment)?;
        Some(Request { bytes: block.requested, stack: block.stack })
    }

    /// Returns the entries that are compared.
    pub(super) fn entries(&self) -> std::ops::Range<usize> {
        self.from as usize..self.to as usize
    }
}

/// A step of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StepSpan {
    /// Its number, from 0, among all steps that the file marks.
    pub(super) number: usize,
    /// Its first moment; moment `n` is the state after `n` entries.
    pub(super) from: u32,
    /// Its last moment.
    pub(super) to: u32,
}

/// The complete steps of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StepSpans {
    /// The mark that they share: an annotation's name, or [`REPETITION`].
    pub(super) mark: String,
    /// The steps in order. The first step begins with the trace if the trace contains the beginning of the run.
    pub(super) spans: Vec<StepSpan>,
}

/// The reason why a run has no steps to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NoSteps {
    /// There is no trace.
    #[error("there is no trace")]
    NoTrace,
    /// No annotation marks the steps, and there is no repetition.
    #[error(
        "the file has no step annotations (PyTorch's optimizers and profiler write them if annotations are recorded), and no repetition reveals the steps"
    )]
    NoMark,
    /// The trace's entries have no times by which to place the marks, and there is no repetition.
    #[error("the trace's entries have no times, so its annotations cannot be placed, and no repetition reveals the steps")]
    NoTimes,
    /// No annotation marks the steps, and a recording's oldest entries are missing, so the steps of the two runs cannot be
    /// matched.
    #[error(
        "the file has no step annotations, and a recording's oldest entries are missing, so steps found by repetition cannot be numbered"
    )]
    NotNumbered,
    /// The trace is shorter than a step.
    #[error("the trace contains no complete step")]
    NoneWhole,
}

/// Used in place of a mark if steps were found by repetition.
pub const REPETITION: &str = "repetition";

/// Returns the steps of one device. `lost_beginning` means that memory was in use before the first entry; the first step that
/// ends in the trace may then have begun before the trace, so it is left out.
fn step_spans(recording: &Recording, device: &DeviceRecording, lost_beginning: bool) -> Result<StepSpans, NoSteps> {
    if device.trace.is_empty() {
        return Err(NoSteps::NoTrace);
    }
    let found = match steps(&recording.annotations, device, None) {
        Ok(found) => found,
        Err(error) => {
            return repeated_spans(device, lost_beginning).map_err(|_| match error {
                StepError::NoMark(_) => NoSteps::NoMark,
                StepError::NoTimes => NoSteps::NoTimes,
            });
        }
    };
    let ends = found.steps.iter().map(|step| (step.number, step.last_entry as u32 + 1));
    spans(found.mark, ends, found.lost == 0 && !lost_beginning)
}

/// Returns the steps by repetition, ignoring annotations.
pub(super) fn repeated_spans(device: &DeviceRecording, lost_beginning: bool) -> Result<StepSpans, NoSteps> {
    let ends = repeated_steps(device);
    if ends.is_empty() {
        return Err(NoSteps::NoMark);
    }
    spans(REPETITION.to_owned(), ends.into_iter().enumerate(), !lost_beginning)
}

/// Returns the steps with these numbers that end at these moments. `has_first` means that the first step is complete.
fn spans(mark: String, ends: impl Iterator<Item = (usize, u32)>, has_first: bool) -> Result<StepSpans, NoSteps> {
    let mut spans = Vec::new();
    let mut from = 0;
    for (place, (number, to)) in ends.enumerate() {
        // Marks of nested or repeated scopes may end at the same entry.
        if (place > 0 || has_first) && to > from {
            spans.push(StepSpan { number, from, to });
        }
        from = to;
    }
    if spans.is_empty() { Err(NoSteps::NoneWhole) } else { Ok(StepSpans { mark, spans }) }
}

impl StepSpans {
    /// Returns the step that contains a given moment.
    fn at(&self, moment: u32) -> Option<StepSpan> {
        let place = self.spans.partition_point(|span| span.to < moment);
        self.spans.get(place).copied().filter(|span| span.from <= moment)
    }

    /// Returns the step of this number.
    pub(super) fn numbered(&self, number: usize) -> Option<StepSpan> {
        self.spans.binary_search_by_key(&number, |span| span.number).ok().and_then(|place| self.spans.get(place)).copied()
    }
}

/// A phase.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// A scope whose name contains "forward".
    Forward,
    /// A scope whose name contains "backward".
    Backward,
    /// An optimizer's step: PyTorch's own mark, or a scope whose name contains "optimizer".
    Optimizer,
    /// An optimizer's `zero_grad`, which PyTorch marks.
    ZeroGrad,
    /// Another of the program's scopes, by its name without a trailing number.
    Scope(Arc<str>),
    /// Outside all scopes.
    Outside,
    /// Before the first entry of the trace.
    BeforeTrace,
}

impl Phase {
    /// Returns its name in JSON; for [`Phase::Scope`] the name of the scope.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Optimizer => "optimizer",
            Phase::ZeroGrad => "zero_grad",
            Phase::Scope(name) => name,
            Phase::Outside => "outside",
            Phase::BeforeTrace => "before_trace",
        }
    }

    /// Returns the phase that a scope's name denotes, or `None` for marks of whole steps.
    fn of_scope(name: &str) -> Option<Phase> {
        const STEP: &str = "ProfilerStep#";
        let lower = name.to_ascii_lowercase();
        if name.starts_with(STEP) {
            None
        } else if lower.contains("zero_grad") {
            Some(Phase::ZeroGrad)
        } else if lower.contains("backward") {
            Some(Phase::Backward)
        } else if lower.contains("forward") {
            Some(Phase::Forward)
        } else if lower.contains("optimizer") {
            Some(Phase::Optimizer)
        } else {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches(['#', '_', '-', ' ', ':']);
            Some(Phase::Scope(if stem.is_empty() { name.into() } else { stem.into() }))
        }
    }
}

/// The memory use of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PhaseUse {
    /// Bytes that are live at the peak of allocated memory and were requested in this phase.
    pub held_at_peak_bytes: u64,
    /// The peak of allocated bytes during this phase.
    pub peak_allocated_bytes: u64,
}

/// A phase's memory use on both sides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PhaseChange {
    /// The phase.
    pub phase: Phase,
    /// On the first side.
    pub a: PhaseUse,
    /// On the second side.
    pub b: PhaseUse,
}

/// The phase of every entry of a trace.
struct Phases {
    known: Vec<Phase>,
    /// Each entry's phase, as an index into `known`; empty if the file has no scopes.
    of_entry: Vec<u32>,
}

impl Phases {
    /// Returns the phases of a device's trace.
    fn of(recording: &Recording, device: &DeviceRecording) -> Phases {
        let scopes = scopes(&recording.annotations, device);
        let mut numbers: BTreeMap<Phase, u32> = BTreeMap::from([(Phase::Outside, 0)]);
        let mut known = vec![Phase::Outside];
        let of_scope: Vec<Option<u32>> = scopes
            .iter()
            .map(|scope| {
                let phase = Phase::of_scope(&scope.name)?;
                Some(*numbers.entry(phase.clone()).or_insert_with(|| {
                    known.push(phase);
                    known.len() as u32 - 1
                }))
            })
            .collect();
        if of_scope.iter().all(Option::is_none) {
            return Phases { known, of_entry: Vec::new() };
        }
        let is_named: Vec<bool> = known.iter().map(|phase| matches!(phase, Phase::Scope(_))).collect();
        Phases { of_entry: paint(&scopes, &of_scope, &is_named, device.trace.len()), known }
    }

    /// Returns whether the file has phases.
    fn are_known(&self) -> bool {
        !self.of_entry.is_empty()
    }

    /// Returns the phase of the entry that leads to a moment.
    fn at(&self, moment: u32) -> Option<Phase> {
        match moment.checked_sub(1) {
            _ if !self.are_known() => None,
            None => Some(Phase::BeforeTrace),
            Some(entry) => self.of_entry.get(entry as usize).and_then(|&number| self.known.get(number as usize)).cloned(),
        }
    }
}

/// Returns the phase of each entry. Scopes come in order of their beginnings; those open at an entry form a stack.
fn paint(scopes: &[Scope], of_scope: &[Option<u32>], is_named: &[bool], entries: usize) -> Vec<u32> {
    // Each open scope, with the phase inside it: its own, unless its name denotes no phase and an enclosing scope has one.
    let mut open: Vec<(u32, u32)> = Vec::new();
    let mut next = 0;
    let mut of_entry = Vec::with_capacity(entries);
    for entry in 0..entries as u32 {
        open.truncate(open.iter().rposition(|&(to, _)| to > entry).map_or(0, |place| place + 1));
        while let Some(scope) = scopes.get(next).filter(|scope| scope.from <= entry) {
            let outer = open.last().map_or(0, |&(_, phase)| phase);
            let says_phase = |number: u32| number != 0 && !is_named.get(number as usize).copied().unwrap_or(true);
            let phase = match of_scope.get(next).copied().flatten() {
                Some(own) if says_phase(own) || !says_phase(outer) => own,
                _ => outer,
            };
            if scope.to > entry {
                open.push((scope.to, phase));
            }
            next += 1;
        }
        of_entry.push(open.last().map_or(0, |&(_, phase)| phase));
    }
    of_entry
}

/// Returns the memory use of each phase on both sides; empty unless both files have phases.
pub(super) fn phase_changes(a: (&Replayed<'_>, u32), b: (&Replayed<'_>, u32)) -> Vec<PhaseChange> {
    if !a.0.phases.are_known() || !b.0.phases.are_known() {
        return Vec::new();
    }
    let (mut uses_a, mut uses_b) = (phase_uses(a.0, a.1), phase_uses(b.0, b.1));
    let mut phases: Vec<Phase> = uses_a.keys().chain(uses_b.keys()).cloned().collect();
    phases.sort();
    phases.dedup();
    let change = |phase: Phase| {
        let (a, b) = (uses_a.remove(&phase).unwrap_or_default(), uses_b.remove(&phase).unwrap_or_default());
        PhaseChange { phase, a, b }
    };
    phases.into_iter().map(change).collect()
}

fn phase_uses(replayed: &Replayed<'_>, peak: u32) -> BTreeMap<Phase, PhaseUse> {
    let mut uses: BTreeMap<Phase, PhaseUse> = BTreeMap::new();
    let phases = &replayed.phases;
    let mut highest = vec![0_u64; phases.known.len()];
    for entry in replayed.entries() {
        let level = replayed.timeline.levels.allocated.get(entry + 1).copied().unwrap_or(0);
        if let Some(highest) = phases.of_entry.get(entry).and_then(|&number| highest.get_mut(number as usize)) {
            *highest = level.max(*highest);
        }
    }
    for (phase, &bytes) in phases.known.iter().zip(&highest).filter(|&(_, &bytes)| bytes > 0) {
        uses.entry(phase.clone()).or_default().peak_allocated_bytes = bytes;
    }
    let live = |block: &&crate::timeline::BlockLife| block.born <= peak && peak < block.freed;
    for block in replayed.timeline.log.blocks.iter().filter(live) {
        let held = &mut uses.entry(phases.at(block.born).unwrap_or(Phase::Outside)).or_default().held_at_peak_bytes;
        *held = held.saturating_add(block.size);
    }
    uses
}

/// A request that was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The requested bytes.
    pub bytes: u64,
    /// The stack that requested them, if it is recorded.
    pub stack: StackId,
}

/// A peak and its position in the run.
#[derive(Clone, PartialEq, Debug)]
pub struct Peak {
    /// The highest value.
    pub bytes: u64,
    /// The entry that reached it; `None` if it was reached before the first entry, or if there is no trace.
    pub entry: Option<usize>,
    /// The step that contains it, if steps are known.
    pub step: Option<usize>,
    /// The phase that contains it, if phases are known.
    pub phase: Option<Phase>,
    /// The use of memory at the peak.
    pub heap: Fragmentation,
    /// The number of segments at the peak; a run of mapped pages counts as one.
    pub segments: usize,
    /// The request that reached it; `None` if it was not a request.
    pub request: Option<Request>,
    /// The moment, as the number of entries completed.
    pub(super) moment: u32,
}

/// The driver calls of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverUse {
    /// The number of segments taken.
    pub segments_taken: u64,
    /// The number of segments released.
    pub segments_given_back: u64,
    /// The number of times that pages were mapped into expandable segments.
    pub maps: u64,
    /// The number of times that those pages were unmapped.
    pub unmaps: u64,
    /// The total number of bytes taken or mapped.
    pub taken_bytes: u64,
    /// The total number of bytes released or unmapped.
    pub given_back_bytes: u64,
}

/// The summary of one side.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// The device's number.
    pub device: u32,
    /// The number of entries in its trace.
    pub entries: usize,
    /// The part of the run that the other fields describe.
    pub part: Part,
    /// The first entry of this part, and the one after its last.
    pub part_entries: (usize, usize),
    /// The number of recorded decisions that the replay does not reproduce. If there are any, allocated bytes may be slightly
    /// wrong, but reserved bytes are right.
    pub mismatches: u64,
    /// The number of decisions compared.
    pub decisions: u64,
    /// Bytes reserved before the first entry, if memory was in use then: the file would not show an earlier, higher peak.
    pub lost_beginning_bytes: Option<u64>,
    /// The number of requests that ran out of memory.
    pub ooms: u64,
    /// The entry of the first of these requests.
    pub first_oom_entry: Option<usize>,
    /// The end of the recorded run.
    pub ending: Ending,
    /// The number of times that the device refused memory and the allocator then released its cache and retried.
    pub retries: u64,
    /// The number of calls to `empty_cache` that released memory.
    pub empty_cache_calls: u64,
    /// The number of complete steps in the trace, if steps are known.
    pub steps: Option<usize>,
    /// The peak of live bytes.
    pub peak_allocated: Peak,
    /// The peak of reserved bytes.
    pub peak_reserved: Peak,
    /// The peak of reserved bytes in the entire file, regardless of which part is compared.
    pub whole_peak_reserved_bytes: u64,
    /// The driver calls.
    pub driver: DriverUse,
}

impl Run {
    /// Summarizes a side.
    pub(super) fn of(replayed: &Replayed<'_>) -> Run {
        let (side, timeline, requests) = (replayed.side, &replayed.timeline, &replayed.requests);
        let within = replayed.entries();
        let trace = side.device.trace.get(within.clone()).unwrap_or(&[]);
        let markers = |kind| {
            let here = |moment: u32| within.contains(&(moment as usize));
            timeline.markers.iter().filter(|marker| marker.kind == kind && here(marker.moment)).count() as u64
        };
        let mut driver = DriverUse::default();
        trace.iter().for_each(|entry| driver.add(entry));
        let first_oom = trace.iter().position(|entry| entry.action == Action::Oom);
        Run {
            device: side.device.device,
            entries: timeline.entries,
            part: side.part,
            part_entries: (within.start, within.end),
            mismatches: requests.mismatches,
            decisions: requests.decisions,
            lost_beginning_bytes: requests.lost_beginning.map(|lost| lost.reserved_bytes),
            ooms: trace.iter().filter(|entry| entry.action == Action::Oom).count() as u64,
            first_oom_entry: first_oom.map(|place| within.start + place),
            ending: Ending::of(side.device),
            retries: markers(MarkerKind::Retry),
            empty_cache_calls: markers(MarkerKind::EmptyCache),
            steps: replayed.steps.as_ref().ok().map(|steps| steps.spans.len()),
            peak_allocated: peak(replayed, first_highest(&timeline.levels.allocated, replayed)),
            peak_reserved: peak(replayed, served(replayed, first_highest(&timeline.levels.reserved, replayed))),
            whole_peak_reserved_bytes: timeline.levels.reserved.iter().copied().max().unwrap_or(0),
            driver,
        }
    }
}

impl DriverUse {
    fn add(&mut self, entry: &Entry) {
        let (calls, bytes) = match entry.action {
            Action::SegmentAlloc => (&mut self.segments_taken, &mut self.taken_bytes),
            Action::SegmentMap => (&mut self.maps, &mut self.taken_bytes),
            Action::SegmentFree => (&mut self.segments_given_back, &mut self.given_back_bytes),
            Action::SegmentUnmap => (&mut self.unmaps, &mut self.given_back_bytes),
            _ => return,
        };
        *calls += 1;
        *bytes = bytes.saturating_add(entry.size);
    }
}

/// Returns the first of the compared moments with the highest level, and that level.
fn first_highest(level: &[u64], replayed: &Replayed<'_>) -> (u32, u64) {
    let part = level.get(replayed.from as usize..=replayed.to as usize).unwrap_or(&[]);
    let highest = part.iter().copied().max().unwrap_or(0);
    let place = part.iter().position(|&bytes| bytes == highest).unwrap_or(0);
    (replayed.from + place as u32, highest)
}

/// Moves a peak at which a segment is reserved to the moment at which the segment's first block is handed out, one entry
/// later.
fn served(replayed: &Replayed<'_>, (moment, bytes): (u32, u64)) -> (u32, u64) {
    let takes = |entry: &&Entry| matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap);
    let following = replayed.side.device.trace.get(moment as usize..replayed.to as usize).unwrap_or(&[]);
    let more = following.iter().take_while(takes).count();
    let is_handed_out = following.get(more).is_some_and(|entry| entry.action == Action::Alloc);
    let after = moment + more as u32 + 1;
    let is_same = replayed.timeline.levels.reserved.get(after as usize) == Some(&bytes);
    (if is_handed_out && is_same { after } else { moment }, bytes)
}

fn peak(replayed: &Replayed<'_>, (moment, bytes): (u32, u64)) -> Peak {
    let (heap, segments) = heap_at(&replayed.timeline.log, moment);
    Peak {
        bytes,
        entry: moment.checked_sub(1).map(|entry| entry as usize),
        step: replayed.step_at(moment),
        phase: replayed.phase_at(moment),
        heap,
        segments,
        request: replayed.request_at(moment),
        moment,
    }
}

/// Returns the fragmentation and the number of segments at a given moment. Everything between the blocks in use counts
/// as free.
fn heap_at(log: &HeapLog, moment: u32) -> (Fragmentation, usize) {
    let segments = log.at(moment);
    let mut sums = Fragmentation::default();
    for segment in &segments {
        let (mut free_bytes, mut from) = (0_u64, segment.address);
        let end = segment.address.saturating_add(segment.size);
        let blocks = segment.blocks.iter().map(|block| (block.address, block.address.saturating_add(block.size)));
        for (address, block_end) in blocks.chain([(end, end)]) {
            let hole = address.saturating_sub(from);
            if hole > 0 {
                free_bytes = free_bytes.saturating_add(hole);
                sums.largest_hole_bytes = sums.largest_hole_bytes.max(hole);
                sums.holes += 1;
            }
            from = from.max(block_end);
        }
        for block in &segment.blocks {
            let place = if block.is_pending { &mut sums.pending_bytes } else { &mut sums.allocated_bytes };
            *place = place.saturating_add(block.size);
            let requested = log.blocks.get(block.place).map_or(block.size, |life| life.requested);
            sums.requested_bytes = sums.requested_bytes.saturating_add(requested);
        }
        sums.reserved_bytes = sums.reserved_bytes.saturating_add(segment.size);
        sums.free_bytes = sums.free_bytes.saturating_add(free_bytes);
        let place = if segment.blocks.is_empty() { &mut sums.free_segments_bytes } else { &mut sums.partial_segments_bytes };
        *place = place.saturating_add(free_bytes);
    }
    (sums, segments.len())
}

/// 100 % in millionths of a percent. Integers keep a check exact.
const MICRO_PERCENT: u128 = 100_000_000;

/// A bound on the peak of reserved memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The peak may grow from the first run to the second by this many millionths of a percent.
    Growth {
        /// Millionths of a percent: 2 % is 2,000,000.
        micro_percent: u64,
    },
    /// The peak may be at most this many bytes.
    Peak {
        /// The bytes.
        bytes: u64,
    },
}

parkade_recording::names! {
    Bound {
        Bound::Growth { .. } => "growth",
        Bound::Peak { .. } => "peak",
    }
}

/// The result of checking a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// The bound.
    pub bound: Bound,
    /// The largest number of bytes that the bound allows here.
    pub allowed_bytes: u64,
    /// The peak of reserved memory.
    pub peak_bytes: u64,
}

impl Bound {
    /// Checks the peak of a run; `before_bytes` is the peak of the run before it. Returns `None` if growth is bounded and
    /// there was no earlier run.
    #[must_use]
    pub fn check(self, before_bytes: Option<u64>, peak_bytes: u64) -> Option<Check> {
        let allowed_bytes = match self {
            Bound::Peak { bytes } => bytes,
            Bound::Growth { micro_percent } => {
                let before_bytes = u128::from(before_bytes?);
                let more = before_bytes.saturating_mul(u128::from(micro_percent)) / MICRO_PERCENT;
                u64::try_from(before_bytes.saturating_add(more)).unwrap_or(u64::MAX)
            }
        };
        Some(Check { bound: self, allowed_bytes, peak_bytes })
    }
}

impl Check {
    /// Returns whether the peak is above the bound.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.peak_bytes > self.allowed_bytes
    }
}

#[cfg(test)]
mod tests {
    use parkade::snapshot::BlockActivity;
    use parkade_recording::{Action, Annotation, Entry};
    use proptest::prelude::*;

    use super::*;
    use crate::drawn_runs::{DrawnRun, State, programs};

    #[test]
    fn the_innermost_scope_that_says_a_phase_decides() {
        let trace = (0..10)
            .map(|i| {
                let mut entry = Entry::new(Action::Snapshot, 0, 0, 0);
                entry.set_time(Some(100 + i));
                entry
            })
            .collect();
        let device = DeviceRecording { trace, ..DeviceRecording::default() };
        let scope = |name: &str, from: i64, to: i64| {
            let note =
                |stage: &str, time| Annotation { name: name.into(), stage: stage.into(), device: None, time_us: Some(time) };
            (note("START", from), note("END", to))
        };
        let scopes = [
            scope("ProfilerStep#3", 101, 109),
            scope("my_forward", 102, 106),
            scope("attention 12", 103, 104),
            scope("dataloader 7", 106, 109),
            scope("Optimizer.step#SGD.step", 107, 108),
        ];
        let mut annotations: Vec<Annotation> = scopes.into_iter().flat_map(|(start, end)| [start, end]).collect();
        annotations.sort_by_key(|annotation| annotation.time_us);
        let recording = Recording { annotations, ..Recording::default() };
        let phases = Phases::of(&recording, &device);
        let names: Vec<String> =
            (0..=10).map(|moment| phases.at(moment).map_or_else(String::new, |phase| phase.name().to_owned())).collect();
        let forward = ["forward"; 4].join(" ");
        assert_eq!(names.join(" "), format!("before_trace outside outside {forward} dataloader optimizer dataloader outside"));
        let without = Phases::of(&Recording::default(), &device);
        assert!(!without.are_known() && without.at(3).is_none());
    }

    #[test]
    fn bounds_are_exact() {
        let two = Bound::Growth { micro_percent: 2_000_000 };
        let exceeded = |bound: Bound, before, peak| bound.check(before, peak).map(|check| check.is_exceeded());
        assert_eq!(exceeded(two, Some(100), 102), Some(false));
        assert_eq!(exceeded(two, Some(100), 103), Some(true));
        assert_eq!(exceeded(two, Some(0), 1), Some(true));
        assert_eq!(exceeded(two, Some(1 << 50), (1 << 50) / 100 * 90), Some(false));
        assert_eq!(exceeded(two, Some(u64::MAX), u64::MAX), Some(false));
        assert_eq!(exceeded(two, None, 5), None);
        let size = Bound::Peak { bytes: 14 << 30 };
        assert_eq!(exceeded(size, None, 14 << 30), Some(false));
        assert_eq!(exceeded(size, Some(1), (14 << 30) + 1), Some(true));
    }

    /// Returns the first moment with the highest of these levels.
    fn first_peak(levels: &[u64]) -> usize {
        (0..levels.len()).find(|&moment| levels.iter().all(|&bytes| bytes <= levels[moment])).expect("a level")
    }

    /// Returns the state after the operation that leads to a moment.
    fn state_at(run: &DrawnRun, moment: usize) -> &State {
        run.states.iter().find(|state| state.entries >= moment).expect("the last operation ends with the trace")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Compares with the core's own figures.
        #[test]
        fn a_summary_has_the_peaks_and_calls_of_the_core(steps in programs(24), is_expandable in any::<bool>()) {
            let settings = if is_expandable { "expandable_segments:True" } else { "" };
            let run = DrawnRun::of(&steps, settings, Some(80 << 20));
            prop_assume!(!run.trace().is_empty());
            let side = Side { recording: &run.recording, device: run.device(), own: &run.own, part: Part::Whole };
            let found = Run::of(&Replayed::of(side).expect("it replays"));
            prop_assert_eq!(found.mismatches, 0);
            let (allocated, reserved) = (run.allocated(), run.reserved());
            let first = first_peak(&reserved);
            // A segment counts from the request that it is reserved for, unless that failed or memory was released again.
            let after = state_at(&run, first);
            let is_served =
                first > 0 && run.trace()[after.entries - 1].action == Action::Alloc && after.reserved_bytes == reserved[first];
            let moments = [first_peak(&allocated), if is_served { after.entries } else { first }];
            for ((peak, levels), moment) in
                [(&found.peak_allocated, &allocated), (&found.peak_reserved, &reserved)].into_iter().zip(moments)
            {
                prop_assert_eq!((peak.bytes, peak.entry), (levels[moment], moment.checked_sub(1)));
                let request =
                    moment.checked_sub(1).map(|entry| &run.trace()[entry]).filter(|entry| entry.action == Action::Alloc);
                prop_assert_eq!(peak.request, request.map(|entry| Request { bytes: entry.size, stack: entry.stack }));
                let state = state_at(&run, moment);
                if state.entries == moment {
                    prop_assert_eq!(peak.heap, Fragmentation::of(&state.heap));
                    prop_assert_eq!(peak.segments, state.heap.len());
                    prop_assert_eq!(peak.heap.pending_bytes, DrawnRun::bytes_in(&state.heap, BlockActivity::PendingFree));
                }
            }
            let calls = |action| run.trace().iter().filter(move |entry| entry.action == action).map(|entry| entry.size);
            let (count, sum) = (|action| calls(action).count() as u64, |action| calls(action).sum::<u64>());
            let expected = DriverUse {
                segments_taken: count(Action::SegmentAlloc),
                segments_given_back: count(Action::SegmentFree),
                maps: count(Action::SegmentMap),
                unmaps: count(Action::SegmentUnmap),
                taken_bytes: sum(Action::SegmentAlloc) + sum(Action::SegmentMap),
                given_back_bytes: sum(Action::SegmentFree) + sum(Action::SegmentUnmap),
            };
            prop_assert_eq!((found.driver, found.ooms), (expected, count(Action::Oom)));
            prop_assert_eq!(found.first_oom_entry, run.trace().iter().position(|entry| entry.action == Action::Oom));
        }
    }
}
