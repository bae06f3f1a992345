//! Diagnoses a file without a trace: its segments at the end are all there is.

use parkade::policy::PyTorch;
use parkade_recording::DeviceRecording;

use super::diagnosis::{DiagnoseOptions, Diagnosis, GivenBack};
use super::excess::excess;
use super::fences::fences;
use super::limit::LimitEvidence;
use super::moment::{Question, Why};
use super::owners::{Owners, live_by_stack};
use super::stranded::stranded;
use super::verdict::judge;
use crate::ending::Ending;
use crate::recorded_heap::recorded_heap;

/// Diagnoses the final heap, without a request.
pub(super) fn diagnose_segments(recording: &DeviceRecording, options: &DiagnoseOptions, policy: &PyTorch) -> Diagnosis {
    let segments = recorded_heap(&recording.segments);
    let owners = Owners::after(recording, 0);
    let heap = stranded(&segments, None, policy);
    let evidence = LimitEvidence { served: Some((heap.reserved_bytes, 0)), ..LimitEvidence::default() };
    let limit = evidence.conclude(options.known_limit_bytes(), heap.reserved_bytes);
    let (verdict, steps) = judge(&heap, None, limit);
    Diagnosis {
        device: recording.device,
        why: Why::End,
        question: Question::ReservedAboveAllocated,
        entry: None,
        time_us: None,
        request: None,
        is_for_request: false,
        met: heap.clone(),
        reserved_after_bytes: heap.reserved_bytes,
        given_back: GivenBack::default(),
        ooms: 0,
        retries: 0,
        peaks: None,
        assumed_limit_bytes: None,
        ending: Ending::of(recording),
        limit,
        evidence,
        verdict,
        steps,
        onset: None,
        stacks: live_by_stack(&segments, &owners),
        fences: fences(&segments, None, policy, &owners, options.fences),
        excess: excess(&segments, policy),
        heap,
        exactness: None,
    }
}
