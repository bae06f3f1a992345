//! Tests diagnoses of recordings of real runs: every byte is accounted for at every entry, and the findings match what
//! happened.

use parkade::policy::PyTorch;
use parkade::stats::Family;
use parkade_analysis::diagnose::{
    Applies, Cause, DiagnoseError, DiagnoseOptions, Diagnosis, ExcessCause, Limit, Question, Verdict, Why, diagnose_device,
    stranded,
};
use parkade_conformance::shipped::Shipped;
use parkade_recording::{Action, StackId};
use parkade_replay::{VerifyOptions, watch_device};

use super::{names, read};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn options(shipped: &Shipped, limit_bytes: Option<u64>) -> DiagnoseOptions {
    let own = VerifyOptions { limit_bytes, stats_file: None, ..shipped.options.clone() };
    DiagnoseOptions { own, capacity_bytes: None, entry: None, fences: 5 }
}

fn diagnosed(name: &str, limit_bytes: Option<u64>) -> Diagnosis {
    let shipped = read(name);
    diagnose_device(shipped.device(), &options(&shipped, limit_bytes), &mut |_| ()).expect("a diagnosis")
}

/// Checks a few points in time in every recording.
#[test]
fn every_byte_of_every_recording_is_accounted_for() {
    // gpt2_varlen.default is left out because the other recordings include shorter runs of the same
    // program.
    for name in names().into_iter().filter(|name| name != "gpt2_varlen.default") {
        let shipped = read(&name);
        let device = shipped.device();
        let policy = PyTorch::of(shipped.options.settings.profile, shipped.options.settings.settings.clone());
        let step = device.trace.len() / 7;
        let mut next = 0;
        watch_device(device, &shipped.options, &mut |moment| {
            if moment.entries < next {
                return;
            }
            next = moment.entries + step.max(1);
            let heap = stranded(&moment.segments(), None, &policy);
            let now = |family| u64::try_from(moment.stats().family(family).all.current).expect("no negative figure");
            assert_eq!(heap.reserved_bytes, now(Family::ReservedBytes), "{name} {}", moment.entries);
            assert_eq!(heap.allocated_bytes(), now(Family::AllocatedBytes), "{name} {}", moment.entries);
            assert_eq!(heap.allocated_bytes() + heap.stranded_bytes(), heap.reserved_bytes, "{name} {}", moment.entries);
        })
        .expect("a complete trace");
    }
}

/// The figures in README.md's picture: 899 MiB of holes, none larger than 23.6 MiB, and 1.03 GiB that could still be reserved.
#[test]
fn a_request_that_fits_nowhere_is_fragmentation() {
    let diagnosis = diagnosed("gpt2_varlen.limit12_oom", Some(12 * GIB));
    assert_eq!((diagnosis.why, diagnosis.entry, diagnosis.verdict), (Why::OutOfMemory, Some(7268), Verdict::Fragmentation));
    let heap = &diagnosis.heap;
    assert_eq!((heap.holes.len(), heap.largest_hole_bytes(), heap.stranded_bytes()), (118, 24_764_416, 943_148_544));
    assert_eq!((heap.of(Cause::TooSmall).holes, heap.of(Cause::OtherClass).holes), (109, 9));
    assert_eq!(heap.releasable_bytes(), 0);
    assert_eq!((diagnosis.given_back.bytes, diagnosis.given_back.entries), (292 * MIB, Some((7254, 7267))));
    assert_eq!(diagnosis.met.reserved_bytes - heap.reserved_bytes, 292 * MIB);
    assert_eq!(
        (diagnosis.steps.capacity, diagnosis.steps.fragmentation, diagnosis.steps.empty_cache),
        (Applies::No, Applies::Yes, Applies::No)
    );
    assert_eq!(diagnosis.steps.unreserved_bytes.map(|bytes| bytes / MIB), Some(1056));
    assert_eq!(diagnosis.exactness.map(|verdict| verdict.mismatches), Some(0));
}

/// The interval contains the true limit, and after an error the diagnosis assumes the same limit as advise.
#[test]
fn without_a_limit_an_interval_is_inferred() {
    let inferred = |name: &str, gib: u64| {
        let diagnosis = diagnosed(name, None);
        let (least, below) = (diagnosis.evidence.served.expect("served").0, diagnosis.evidence.refused.expect("refused").0);
        assert!((least..below).contains(&(gib * GIB)), "{name}: {least} {below}");
        (below - least, diagnosis)
    };
    let (_, diagnosis) = inferred("gpt2_varlen.limit12_oom", 12);
    assert!(matches!(diagnosis.limit, Limit::Between { .. }), "{:?}", diagnosis.limit);
    assert_eq!(diagnosis.assumed_limit_bytes, Some(12 * GIB));
    // 11.66 GiB would have been in use: more than the low end of the interval, and 12 GiB is only likely.
    assert_eq!((diagnosis.verdict, diagnosis.evidence.refused.map(|(_, entry)| entry)), (Verdict::Undecided, Some(7268)));
    let (width, diagnosis) = inferred("prefetch_streams.limit6", 6);
    assert!(width < GIB / 5 && matches!(diagnosis.limit, Limit::Between { .. }), "{:?}", diagnosis.limit);
    assert_eq!((diagnosis.verdict, diagnosis.assumed_limit_bytes), (Verdict::NoFailure, None), "no request ran out of memory");
    let (width, diagnosis) = inferred("resnet50_sweep.limit5_oom", 5);
    assert!(width < GIB / 16);
    // 118 MiB were free for a 49 MiB request, which is fragmentation under any limit.
    assert_eq!((diagnosis.verdict, diagnosis.assumed_limit_bytes), (Verdict::Fragmentation, Some(5 * GIB)));
}

/// The run's garbage collections depend on the limit, so a replay without one would differ.
#[test]
fn a_limit_that_garbage_collection_needs_is_found() {
    let (given, found) = (diagnosed("gpt2_varlen.limit16_gc", Some(16 * GIB)), diagnosed("gpt2_varlen.limit16_gc", None));
    assert_eq!((found.assumed_limit_bytes, found.exactness.map(|verdict| verdict.mismatches)), (Some(16 * GIB), Some(0)));
    assert_eq!((given.heap, given.verdict), (found.heap, found.verdict));
    // One 96 MiB block prevents a 1.53 GiB segment from being used or released.
    let fence = found.fences[0];
    assert_eq!((fence.bytes, fence.frees_segment, fence.owner.entry), (96 * MIB, true, Some(13_619)));
}

/// The diagnosed point in time is the peak, where every byte between reserved and allocated has one cause.
#[test]
fn without_a_failure_the_peak_is_diagnosed() {
    for name in ["prefetch_streams.limit6", "prefetch_streams.default", "resnet50_sweep.default", "gpt2_varlen.frames_tail20k"] {
        let diagnosis = diagnosed(name, None);
        assert_eq!((diagnosis.why, diagnosis.verdict), (Why::Peak, Verdict::NoFailure), "{name}");
        assert_eq!(diagnosis.question, Question::ReservedAboveAllocated, "{name}");
        let (heap, peaks) = (&diagnosis.heap, diagnosis.peaks.expect("peaks"));
        let verdict = diagnosis.exactness.as_ref().expect("a verdict");
        let counted = (verdict.peak_reserved_bytes().unsigned_abs(), verdict.peak_allocated_bytes().unsigned_abs());
        assert_eq!((heap.reserved_bytes, peaks.allocated.bytes), counted, "{name}");
        assert_eq!(heap.allocated_bytes(), peaks.allocated_at_reserved.bytes, "{name}");
        assert_eq!(diagnosis.excess.bytes(), heap.reserved_bytes - heap.allocated_bytes(), "{name}");
    }
    let limited = diagnosed("prefetch_streams.limit6", None);
    let excess = |cause| limited.excess.of(cause).bytes;
    assert!(excess(ExcessCause::OtherStream) > 0 && excess(ExcessCause::PendingEvent) > 0, "{:?}", limited.excess);
    let free = diagnosed("prefetch_streams.default", None);
    assert!(matches!(free.limit, Limit::NeverReached { .. }), "{:?}", free.limit);
}

/// Blocks from before the first entry have no age, and no stack unless they are live until the end.
#[test]
fn a_recording_that_lost_its_beginning_names_what_it_can() {
    let shipped = read("gpt2_varlen.frames_tail20k");
    let diagnosis = diagnosed("gpt2_varlen.frames_tail20k", None);
    assert!(diagnosis.exactness.is_some_and(|verdict| verdict.not_in_file.lost_beginning.is_some()));
    let held: usize = diagnosis.stacks.iter().map(|held| held.blocks).sum();
    assert_eq!(held, diagnosis.heap.live_blocks);
    let named = diagnosis.stacks.iter().filter(|held| held.stack != StackId::NONE);
    assert!(named.clone().count() > 10);
    assert!(named.clone().any(|held| shipped.recording.stacks.frames(held.stack).any(|frame| frame.line == 48)));
    assert_eq!(diagnosis.onset.map(|onset| onset.entry), Some(None), "the block was allocated before the first entry");
}

#[test]
fn any_entry_can_be_diagnosed() {
    let shipped = read("gpt2_varlen.limit12_oom");
    let device = shipped.device();
    let at = |entry| {
        let options = DiagnoseOptions { entry: Some(entry), ..options(&shipped, Some(12 * GIB)) };
        diagnose_device(device, &options, &mut |_| ())
    };
    let served = device.trace.iter().rposition(|entry| entry.action == Action::Alloc).expect("an alloc");
    let diagnosis = at(served).expect("a diagnosis");
    assert_eq!((diagnosis.why, diagnosis.verdict, diagnosis.ooms), (Why::Chosen, Verdict::NoFailure, 1));
    assert_eq!(diagnosis.request.map(|request| request.requested_bytes), Some(device.trace[served].size));
    // Any entry of an operation can be chosen: a free has two entries, the steps of the retry
    // ladder have many.
    for entry in (7249..7255).chain([7267]) {
        let diagnosis = at(entry).expect("a diagnosis");
        assert!(diagnosis.heap.reserved_bytes > 10 * GIB, "entry {entry}");
    }
    let oom = at(7268).expect("a diagnosis");
    assert_eq!((oom.why, oom.retries), (Why::OutOfMemory, 1));
    let first = at(0).expect("a diagnosis");
    assert_eq!((first.met.reserved_bytes, first.heap.reserved_bytes, first.request), (0, device.trace[0].size, None));
    assert!(matches!(at(device.trace.len()), Err(DiagnoseError::NoSuchEntry { entries: 8653, .. })));
}

/// A file like this has only the segments at the end, as `memory_snapshot()` returns them.
#[test]
fn a_file_without_a_trace_is_diagnosed_at_its_end() {
    let shipped = read("resnet50_sweep.default");
    let mut device = shipped.device().clone();
    device.trace.clear();
    let diagnosis = diagnose_device(&device, &options(&shipped, None), &mut |_| ()).expect("a diagnosis");
    let reserved: u64 = device.segments.iter().map(|segment| segment.total_bytes).sum();
    assert_eq!((diagnosis.why, diagnosis.heap.reserved_bytes), (Why::End, reserved));
    assert_eq!(diagnosis.heap.allocated_bytes() + diagnosis.heap.stranded_bytes(), reserved);
    assert!(diagnosis.exactness.is_none() && diagnosis.onset.is_none());
}
