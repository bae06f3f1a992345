//! A diagnosis as one JSON object.

use parkade_analysis::annotations::{Phase, phase_at};
use parkade_analysis::diagnose::{
    Applies, Breakdown, Cause, Diagnosis, Excess, ExcessCause, ExcessPart, Fence, GivenBack, Limit, Onset, Peaks, Question,
    Request, Strand, Verdict, Why,
};
use parkade_analysis::ending::Ending;
use parkade_replay::{DeviceVerdict, SettingsOrigin};

use super::diagnosed::{self, Diagnosed};
use super::parts::{self, Call, Step};
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::recording::MadeBy;

view! {
    /// A diagnosed recording: one part for each device.
    pub(super) struct Object(diagnosed: &Diagnosed) {
        /// The recording.
        file: String = diagnosed.file.display().to_string(),
        /// The settings it was replayed under.
        settings: String = diagnosed.settings.settings.text.clone(),
        /// Where they come from.
        settings_origin: Word<SettingsOrigin> = Word::of(&diagnosed.settings.origin),
        /// The PyTorch version.
        profile: &'static str = diagnosed.settings.profile.name,
        /// The release that made the recording.
        made_by: MadeBy = MadeBy::of(&diagnosed.made_by),
        /// `--limit`, else a limit that `parkade run` recorded in the file.
        limit_bytes: Option<u64> = diagnosed.limit,
        /// Each device for which the file has memory entries or reserved memory; if there is none, all devices.
        devices: Vec<Device> = all(&diagnosed.devices, |diagnosis| Device::of(diagnosed, diagnosis)),
    }
}

view! {
    struct Device(diagnosed: &Diagnosed, diagnosis: &Diagnosis) {
        /// The device.
        device: u32 = diagnosis.device,
        /// The cause: `fragmentation`, `streams`, `private_pools`, `capacity`, `undecided` or `no_failure` (none is in the
        /// file).
        verdict: Word<Verdict> = Word::of(&diagnosis.verdict),
        /// The point in time that was examined: `out_of_memory`, `chosen` (`--entry`), `peak_reserved` or `end` (the history is
        /// not in the file).
        moment: Word<Why> = Word::of(&diagnosis.why),
        /// The question about it: `why_out_of_memory`; `why_reserved_above_allocated` (nothing failed, or the file does not
        /// say); `why_new_memory` (`--entry` is a request that took memory from the device).
        question: Word<Question> = Word::of(&diagnosis.question),
        /// The entry at that point; null if the point is before the first entry, or if there is no trace.
        entry: Option<usize> = diagnosis.entry,
        /// The time at that point, if the recording has times.
        time_us: Option<u64> = diagnosis.time_us,
        /// The cause in a sentence.
        headline: String = diagnosed::headline(diagnosed, diagnosis),
        /// The request at that point.
        request: Option<Asked> = diagnosis.request.map(|request| Asked::of(diagnosed, request)),
        /// The five steps of the diagnosis.
        steps: Vec<Step> = steps(diagnosed, diagnosis),
        /// Live bytes and the request together.
        needed_bytes: u64 = diagnosis.steps.needed_bytes,
        /// The number of needed bytes that are missing, if the cause is capacity.
        short_bytes: Option<u64> = diagnosis.steps.short_bytes,
        /// The bytes that could still be reserved, if the limit is known.
        unreserved_bytes: Option<u64> = diagnosis.steps.unreserved_bytes,
        /// What is known about the memory limit.
        limit: KnownLimit = KnownLimit::find(diagnosed, diagnosis),
        /// The assumed limit, the same as in `advise`.
        assumed_limit_bytes: Option<u64> = diagnosis.assumed_limit_bytes,
        /// How the run ended.
        ending: Word<Ending> = Word::of(&diagnosis.ending),
        /// Whether `heap` is divided as the request sees it.
        heap_is_for_request: bool = diagnosis.is_for_request,
        /// Where every reserved byte is: at a failure, after the allocator had released what it could; for `why_new_memory`,
        /// before the entry; else after it.
        heap: Heap = Heap::of(&diagnosis.heap),
        /// The heap as the request found it.
        heap_before: Heap = Heap::of(&diagnosis.met),
        /// Why more is reserved than allocated in `heap`: causes that do not depend on a request.
        excess: Difference = Difference::of(&diagnosis.excess),
        /// The peaks of the entire run; null without a trace.
        peaks: Option<Highest> = diagnosis.peaks.map(Highest::of),
        /// Reserved after the request.
        reserved_after_bytes: u64 = diagnosis.reserved_after_bytes,
        /// What the allocator released for the request.
        given_back: Released = Released::of(&diagnosis.given_back),
        /// The number of requests in the trace that ran out of memory.
        ooms: usize = diagnosis.ooms,
        /// `num_alloc_retries` at that moment.
        retries: i64 = diagnosis.retries,
        /// The point since which reserved minus allocated has been high.
        onset: Option<Began> = diagnosis.onset.as_ref().map(|onset| Began::of(diagnosed, diagnosis, onset)),
        /// The stacks that hold the most live bytes.
        stacks: Vec<Held> = all(&diagnosis.stacks, |held| {
            let operator = parts::operator(&diagnosed.names, &diagnosed.recording, held.stack);
            Held { bytes: held.bytes, blocks: held.blocks, operator, stack: parts::stack_view(&diagnosed.names, &diagnosed.recording, held.stack) }
        }),
        /// Blocks in use beside free memory.
        fences: Vec<BlockBeside> = all(&diagnosis.fences, |fence| BlockBeside::of(diagnosed, diagnosis, fence)),
        /// How exact the replay is; null without a trace.
        exactness: Option<Exactness> = diagnosis.exactness.as_ref().map(Exactness::of),
        /// How sure this is.
        notes: Vec<String> = diagnosed::notes(diagnosed, diagnosis),
    }
}

view! {
    struct Asked(diagnosed: &Diagnosed, request: Request) {
        /// The bytes that the program requested.
        requested_bytes: u64 = request.requested_bytes,
        /// The request rounded to a block.
        block_bytes: u64 = request.asked.size.get(),
        /// The segment that would be reserved for it.
        segment_bytes: u64 = request.segment_bytes,
        /// The request's stream.
        stream: u64 = request.asked.stream.get(),
        /// The id of the request's pool; 0, 0 is the default pool.
        pool: (u64, u64) = (request.asked.pool.0, request.asked.pool.1),
        /// The calls that made the request, innermost first.
        stack: Vec<Call> = parts::stack_view(&diagnosed.names, &diagnosed.recording, request.stack),
    }
}

view! {
    /// A stack that holds live bytes.
    struct Held {
        /// The bytes held.
        bytes: u64,
        /// The number of blocks.
        blocks: usize,
        /// If the stack has C++ calls: the operator that took the memory, and its node in a backward pass.
        #[serde(skip_serializing_if = "Option::is_none")]
        operator: Option<String>,
        /// The stack.
        stack: Vec<Call>,
    }
}

view! {
    struct Exactness(verdict: &DeviceVerdict) {
        /// The number of entries in the trace.
        entries: usize = verdict.entries,
        /// The number of decisions compared.
        decisions: u64 = verdict.decisions,
        /// How many decisions differ.
        mismatches: u64 = verdict.mismatches,
        /// What existed before the first entry of a file whose oldest entries are missing.
        lost_beginning: Option<Lost> =
            verdict.not_in_file.lost_beginning.map(|lost| Lost::of(lost.segments, lost.blocks, lost.reserved_bytes)),
    }
}

view! {
    struct Lost(segments: usize, blocks: usize, reserved_bytes: u64) {
        /// The number of segments.
        segments: usize = segments,
        /// The number of blocks in use.
        blocks: usize = blocks,
        /// How much was reserved.
        reserved_bytes: u64 = reserved_bytes,
    }
}

fn steps(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> Vec<Step> {
    let steps = &diagnosis.steps;
    let answers = [steps.capacity, steps.fragmentation, steps.settings, steps.empty_cache];
    let findings = diagnosed::findings(diagnosed, diagnosis).into_iter().zip(answers).enumerate();
    let mut rows = all(findings, |(place, (finding, answer))| Step::of(place, answer, finding.replace('\n', " ")));
    rows.push(Step::of(4, Applies::Yes, "heap, fences, stacks, onset".to_owned()));
    rows
}

view! {
    /// What is known about the memory limit.
    struct KnownLimit {
        /// How the limit is known.
        known: Word<Limit>,
        /// The limit is at least this.
        at_least_bytes: u64,
        /// The limit is below this.
        below_bytes: Option<u64>,
        /// The largest amount that was reserved.
        served: Option<Evidence>,
        /// The smallest amount that was refused.
        refused: Option<Evidence>,
        /// Evidence in the file that is impossible under the given limit. If it is the reserved memory, the run is diagnosed
        /// without `--limit`.
        contradicted_by: Option<String>,
        /// The free memory that the device reported.
        device_free_bytes: Option<u64>,
    }
}

view! {
    struct Evidence(bytes: u64, entry: usize) {
        /// The bytes.
        bytes: u64 = bytes,
        /// The entry.
        entry: usize = entry,
    }
}

impl KnownLimit {
    fn find(diagnosed: &Diagnosed, diagnosis: &Diagnosis) -> KnownLimit {
        let (at_least_bytes, below_bytes) = match diagnosis.limit {
            Limit::Given { bytes } | Limit::DeviceFull { bytes } => (bytes, None),
            Limit::Between { at_least_bytes, below_bytes } => (at_least_bytes, Some(below_bytes)),
            Limit::NotFixed { reserved_bytes, refused_bytes } => (reserved_bytes, Some(refused_bytes)),
            Limit::NeverReached { at_least_bytes } => (at_least_bytes, None),
        };
        let evidence = &diagnosis.evidence;
        KnownLimit {
            known: Word::of(&diagnosis.limit),
            at_least_bytes,
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
        /// Reserved.
        reserved_bytes: u64 = heap.reserved_bytes,
        /// In use, as requested.
        requested_bytes: u64 = heap.requested_bytes,
        /// Lost to rounding in blocks in use.
        rounding_bytes: u64 = heap.rounding_bytes,
        /// Requested and rounding together.
        allocated_bytes: u64 = heap.allocated_bytes(),
        /// Reserved but not allocated.
        stranded_bytes: u64 = heap.stranded_bytes(),
        /// The largest hole.
        largest_hole_bytes: u64 = heap.largest_hole_bytes(),
        /// What empty_cache could still release.
        releasable_bytes: u64 = heap.releasable_bytes(),
        /// In whole segments kept by private pools.
        kept_by_pools_bytes: u64 = heap.kept_by_pools_bytes,
        /// The number of blocks in use.
        live_blocks: usize = heap.live_blocks,
        /// The number of segments.
        segments: usize = heap.segments,
        /// The stranded bytes by cause.
        stranded: Vec<Stranded> = all(&heap.strands, Stranded::of),
    }
}

view! {
    struct Stranded(strand: &Strand) {
        /// Why the bytes are stranded.
        cause: Word<Cause> = Word::of(&strand.cause),
        /// The bytes.
        bytes: u64 = strand.bytes,
        /// The number of holes.
        holes: usize = strand.holes,
        /// The largest hole.
        largest_bytes: u64 = strand.largest_bytes,
        /// What empty_cache could release of the bytes.
        releasable_bytes: u64 = strand.releasable_bytes,
    }
}

view! {
    struct Difference(excess: &Excess) {
        /// Reserved minus allocated.
        bytes: u64 = excess.bytes(),
        /// The stream with the most allocated bytes outside private pools.
        main_stream: Option<u64> = excess.main_stream.map(|stream| stream.get()),
        /// The bytes by cause.
        parts: Vec<Part> = all(&excess.parts, Part::of),
    }
}

view! {
    struct Part(part: &ExcessPart) {
        /// Why they are not allocated: `pending_event`, `private_pool`, `other_stream` (not `main_stream`), `free_segment` (or
        /// whole pages), `small_pool_hole` or `large_pool_hole`; the first that applies counts.
        cause: Word<ExcessCause> = Word::of(&part.cause),
        /// The bytes.
        bytes: u64 = part.bytes,
        /// The number of pieces.
        pieces: usize = part.pieces,
        /// The largest piece.
        largest_bytes: u64 = part.largest_bytes,
        /// The part of the bytes that is in wholly free segments or pages.
        whole_bytes: u64 = part.whole_bytes,
    }
}

view! {
    struct Highest(peaks: Peaks) {
        /// The peak of allocated memory.
        allocated_bytes: u64 = peaks.allocated.bytes,
        /// The first entry after which that peak was reached; null if it was before the first.
        allocated_entry: Option<usize> = peaks.allocated.entry,
        /// Reserved at the peak of allocated memory.
        reserved_at_allocated_bytes: u64 = peaks.reserved_at_allocated_bytes,
        /// The peak of reserved memory.
        reserved_bytes: u64 = peaks.reserved.bytes,
        /// The first entry after which that peak was reached.
        reserved_entry: Option<usize> = peaks.reserved.entry,
        /// The most allocated while reserved memory was at its peak.
        allocated_at_reserved_bytes: u64 = peaks.allocated_at_reserved.bytes,
        /// The first entry after which that much was allocated.
        allocated_at_reserved_entry: Option<usize> = peaks.allocated_at_reserved.entry,
    }
}

view! {
    struct Released(given: &GivenBack) {
        /// The bytes.
        bytes: u64 = given.bytes,
        /// The number of pieces.
        segments: usize = given.segments,
        /// The first and the last entry that releases.
        entries: Option<(usize, usize)> = given.entries,
        /// The number of frees that it waited for.
        completed_frees: usize = given.completed,
    }
}

view! {
    struct Began(diagnosed: &Diagnosed, diagnosis: &Diagnosis, onset: &Onset) {
        /// The entry since which it has been high; null if that is before the first.
        entry: Option<usize> = onset.entry,
        /// The level that counts as high: half of the value at the diagnosed point.
        level_bytes: u64 = onset.level_bytes,
        /// The time of the entry.
        time_us: Option<u64> = onset.time_us,
        /// The annotated phase at that time.
        phase: Option<Annotated> = onset
            .time_us
            .and_then(|time| phase_at(&diagnosed.recording.annotations, diagnosis.device, time))
            .map(Annotated::of),
    }
}

view! {
    struct Annotated(phase: Phase) {
        /// The open annotations, the outermost first.
        open: Vec<String> = phase.open,
        /// The name of the annotation that ended last, and how often it had ended.
        last_ended: Option<(String, usize)> = phase.last_ended,
    }
}

view! {
    /// A block beside free memory.
    struct BlockBeside(diagnosed: &Diagnosed, diagnosis: &Diagnosis, fence: &Fence) {
        /// The block's address.
        address: u64 = fence.address,
        /// The block's size.
        bytes: u64 = fence.bytes,
        /// Whether it is freed and waits for events.
        pending: bool = fence.is_pending,
        /// The free bytes beside it.
        beside_bytes: u64 = fence.beside_bytes,
        /// The size of the hole without it.
        opens_bytes: u64 = fence.opens_bytes,
        /// Whether that hole would serve the request.
        enough: bool = fence.is_enough,
        /// Whether the whole segment would be free.
        frees_segment: bool = fence.frees_segment,
        /// The entry of its allocation; null if that is older than the trace.
        entry: Option<usize> = fence.owner.entry,
        /// The entries since then.
        age_entries: Option<usize> = diagnosis.entry.zip(fence.owner.entry).map(|(now, then)| now.saturating_sub(then)),
        /// The time since then.
        age_us: Option<u64> = diagnosis.time_us.zip(fence.owner.time_us).map(|(now, then)| now.saturating_sub(then)),
        /// The calls that requested it, innermost first.
        stack: Vec<Call> = parts::stack_view(&diagnosed.names, &diagnosed.recording, fence.owner.stack),
    }
}
