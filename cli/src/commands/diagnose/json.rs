//! A diagnosis as one JSON object.

use parkade_analysis::annotations::{Phase, phase_at};
use parkade_analysis::diagnose::{
    Breakdown, Diagnosis, Excess, ExcessPart, Fence, GivenBack, Limit, Onset, Peaks, Request, Strand, Why,
};
use parkade_replay::DeviceVerdict;

use super::diagnosed::{self, Diagnosed};
use super::layout::Step;
use super::stacks::{self, Call};
use crate::terminal::json_struct::{all, origin, view};
use crate::terminal::release::MadeBy;

view! {
    /// A diagnosed recording: one part for each device.
    pub(super) struct Object(diagnosed: &Diagnosed) {
        file: String = diagnosed.file.display().to_string(),
        settings: String = diagnosed.settings.settings.text.clone(),
        settings_origin: &'static str = origin(diagnosed.settings.origin),
        profile: &'static str = diagnosed.settings.profile.name,
        made_by: MadeBy = MadeBy::of(&diagnosed.made_by),
        limit_bytes: Option<u64> = diagnosed.limit,
        devices: Vec<Device> = all(&diagnosed.devices, |diagnosis| Device::of(diagnosed, diagnosis)),
    }
}

view! {
    struct Device(diagnosed: &Diagnosed, diagnosis: &Diagnosis) {
        device: u32 = diagnosis.device,
        verdict: &'static str = diagnosis.verdict.name(),
        moment: &'static str = moment(diagnosis.why),
        question: &'static str = diagnosis.question.name(),
        entry: Option<usize> = diagnosis.entry,
        time_us: Option<u64> = diagnosis.time_us,
        headline: String = diagnosed::headline(diagnosis),
        request: Option<Asked> = diagnosis.request.map(|request| Asked::of(diagnosed, request)),
        steps: Vec<Step> = steps(diagnosed, diagnosis),
        needed_bytes: u64 = diagnosis.steps.needed_bytes,
        short_bytes: Option<u64> = diagnosis.steps.short_bytes,
        unreserved_bytes: Option<u64> = diagnosis.steps.unreserved_bytes,
        limit: KnownLimit = KnownLimit::find(diagnosed, diagnosis),
        assumed_limit_bytes: Option<u64> = diagnosis.assumed_limit_bytes,
        ending: &'static str = diagnosis.ending.name(),
        heap_is_for_request: bool = diagnosis.is_for_request,
        heap: Heap = Heap::of(&diagnosis.heap),
        heap_before: Heap = Heap::of(&diagnosis.met),
        excess: Difference = Difference::of(&diagnosis.excess),
        peaks: Option<Highest> = diagnosis.peaks.map(Highest::of),
        reserved_after_bytes: u64 = diagnosis.reserved_after_bytes,
        given_back: Released = Released::of(&diagnosis.given_back),
        ooms: usize = diagnosis.ooms,
        retries: i64 = diagnosis.retries,
        onset: Option<Began> = diagnosis.onset.as_ref().map(|onset| Began::of(diagnosed, diagnosis, onset)),
        stacks: Vec<Held> = all(&diagnosis.stacks, |held| {
            let operator = stacks::operator(&diagnosed.names, &diagnosed.recording, held.stack);
            Held { bytes: held.bytes, blocks: held.blocks, operator, stack: stacks::view(&diagnosed.names, &diagnosed.recording, held.stack) }
        }),
        fences: Vec<BoundRatios> = all(&diagnosis.fences, |fence| BoundRatios::of(diagnosed, diagnosis, fence)),
        exactness: Option<Exactness> = diagnosis.exactness.as_ref().map(Exactness::of),
        notes: Vec<String> = diagnosed::notes(diagnosed, diagnosis),
    }
}

view! {
    struct Asked(diagnosed: &Diagnosed, request: Request) {
        requested_bytes: u64 = request.requested_bytes,
        block_bytes: u64 = request.asked.size.get(),
        segment_bytes: u64 = request.segment_bytes,
        stream: u64 = request.asked.stream.get(),
        pool: (u64, u64) = (request.asked.pool.0, request.asked.pool.1),
        stack: Vec<Call> = stacks::view(&diagnosed.names, &diagnosed.recording, request.stack),
    }
}

#[derive(serde::Serialize)]
struct Held {
    bytes: u64,
    blocks: usize,
    /// Only for stacks with C++ calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    operator: Option<String>,
    stack: Vec<Call>,
}

view! {
    struct Exactness(verdict: &DeviceVerdict) {
        entries: usize = verdict.entries,
        decisions: u64 = verdict.decisions,
        mismatches: u64 = verdict.mismatches,
        lost_beginning: Option<Lost> =
            verdict.not_in_file.lost_beginning.map(|lost| Lost::of(lost.segments, lost.blocks, lost.reserved_bytes)),
    }
}

view! {
    struct Lost(segments: usize, blocks: usize, reserved_bytes: u64) {
        segments: usize = segments,
        blocks: usize = blocks,
        reserved_bytes: u64 = reserved_bytes,
    }
}

fn moment(why: Why) -> &'static str {
    match why {
        Why::OutOfMemory => "out_of_memory",
        Why::Chosen => "chosen",
        Why::Peak => "peak_reserved",
        Why::End => "end",
    }
}

fn steps(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> Vec<Step> {
    let steps = &diagnosis.steps;
    let answers = [steps.capacity, steps.fragmentation, steps.settings, steps.empty_cache];
    let findings = diagnosed::findings(diagnosed, diagnosis).into_iter().zip(answers).enumerate();
    let mut rows = all(findings, |(place, (finding, answer))| Step::of(place, answer.name(), finding.replace('\n', " ")));
    rows.push(Step::of(4, "yes", "heap, fences, stacks, onset".to_owned()));
    rows
}

#[derive(serde::Serialize)]
struct KnownLimit {
    known: &'static str,
    at_least_bytes: Option<u64>,
    below_bytes: Option<u64>,
    served: Option<Evidence>,
    refused: Option<Evidence>,
    contradicted_by: Option<String>,
    device_free_bytes: Option<u64>,
}

view! {
    struct Evidence(bytes: u64, entry: usize) {
        bytes: u64 = bytes,
        entry: usize = entry,
    }
}

impl KnownLimit {
    fn find(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> KnownLimit {
        let (known, at_least_bytes, below_bytes) = match diagnosis.limit {
            Limit::Given { bytes } => ("given", bytes, None),
            Limit::DeviceFull { bytes } => ("device_full", bytes, None),
            Limit::Between { at_least_bytes, below_bytes } => ("between", at_least_bytes, Some(below_bytes)),
            Limit::NotFixed { reserved_bytes, refused_bytes } => ("not_fixed", reserved_bytes, Some(refused_bytes)),
            Limit::NeverReached { at_least_bytes } => ("never_reached", at_least_bytes, None),
        };
        let evidence = &diagnosis.evidence;
        KnownLimit {
            known,
            at_least_bytes: Some(at_least_bytes),
            below_bytes,
            served: evidence.served.map(|(bytes, entries)| Evidence::of(bytes, entries.saturating_sub(1))),
            refused: evidence.refused.map(|(bytes, entry)| Evidence::of(bytes, entry)),
            contradicted_by: diagnosed::contradiction(diagnosed, diagnosis),
            device_free_bytes: evidence.device_free_bytes,
        }
    }
}

view! {
    struct Heap(heap: &Breakdown) {
        reserved_bytes: u64 = heap.reserved_bytes,
        requested_bytes: u64 = heap.requested_bytes,
        rounding_bytes: u64 = heap.rounding_bytes,
        allocated_bytes: u64 = heap.allocated_bytes(),
        stranded_bytes: u64 = heap.stranded_bytes(),
        largest_hole_bytes: u64 = heap.largest_hole_bytes(),
        releasable_bytes: u64 = heap.releasable_bytes(),
        kept_by_pools_bytes: u64 = heap.kept_by_pools_bytes,
        live_blocks: usize = heap.live_blocks,
        segments: usize = heap.segments,
        stranded: Vec<Stranded> = all(&heap.strands, Stranded::of),
    }
}

view! {
    struct Stranded(strand: &Strand) {
        cause: &'static str = strand.cause.name(),
        bytes: u64 = strand.bytes,
        holes: usize = strand.holes,
        largest_bytes: u64 = strand.largest_bytes,
        releasable_bytes: u64 = strand.releasable_bytes,
    }
}

view! {
    struct Difference(excess: &Excess) {
        bytes: u64 = excess.bytes(),
        main_stream: Option<u64> = excess.main_stream.map(|stream| stream.get()),
        parts: Vec<Part> = all(&excess.parts, Part::of),
    }
}

view! {
    struct Part(part: &ExcessPart) {
        cause: &'static str = part.cause.name(),
        bytes: u64 = part.bytes,
        pieces: usize = part.pieces,
        largest_bytes: u64 = part.largest_bytes,
        whole_bytes: u64 = part.whole_bytes,
    }
}

view! {
    struct Highest(peaks: Peaks) {
        allocated_bytes: u64 = peaks.allocated.bytes,
        allocated_entry: Option<usize> = peaks.allocated.entry,
        reserved_at_allocated_bytes: u64 = peaks.reserved_at_allocated_bytes,
        reserved_bytes: u64 = peaks.reserved.bytes,
        reserved_entry: Option<usize> = peaks.reserved.entry,
        allocated_at_reserved_bytes: u64 = peaks.allocated_at_reserved.bytes,
        allocated_at_reserved_entry: Option<usize> = peaks.allocated_at_reserved.entry,
    }
}

view! {
    struct Released(given: &GivenBack) {
        bytes: u64 = given.bytes,
        segments: usize = given.segments,
        entries: Option<(usize, usize)> = given.entries,
        completed_frees: usize = given.completed,
    }
}

view! {
    struct Began(diagnosed: &Diagnosed, diagnosis: &Diagnosis, onset: &Onset) {
        entry: Option<usize> = onset.entry,
        level_bytes: u64 = onset.level_bytes,
        time_us: Option<u64> = onset.time_us,
        phase: Option<Annotated> = onset
            .time_us
            .and_then(|time| phase_at(&diagnosed.recording.annotations, diagnosis.device, time))
            .map(Annotated::of),
    }
}

view! {
    struct Annotated(phase: Phase) {
        open: Vec<String> = phase.open,
        last_ended: Option<(String, usize)> = phase.last_ended,
    }
}

view! {
    /// A block beside free memory.
    struct BoundRatios(diagnosed: &Diagnosed, diagnosis: &Diagnosis, fence: &Fence) {
        address: u64 = fence.address,
        bytes: u64 = fence.bytes,
        pending: bool = fence.is_pending,
        beside_bytes: u64 = fence.beside_bytes,
        opens_bytes: u64 = fence.opens_bytes,
        enough: bool = fence.is_enough,
        frees_segment: bool = fence.frees_segment,
        entry: Option<usize> = fence.owner.entry,
        age_entries: Option<usize> = diagnosis.entry.zip(fence.owner.entry).map(|(now, then)| now.saturating_sub(then)),
        age_us: Option<u64> = diagnosis.time_us.zip(fence.owner.time_us).map(|(now, then)| now.saturating_sub(then)),
        stack: Vec<Call> = stacks::view(&diagnosed.names, &diagnosed.recording, fence.owner.stack),
    }
}
