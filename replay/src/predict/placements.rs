//! Where a recorded process's driver placed segments, step by step. The driver model learns from this.

use parkade_recording::{Action, DeviceRecording};
use parkade_sim::address::PlacementStep;

/// The segments that the recording allocates and frees, each with the entry of the request that it was for.
///
/// Expandable segments are left out: the driver chooses their addresses by other rules.
#[must_use]
pub fn placed_steps(recording: &DeviceRecording) -> Vec<PlacementStep> {
    let mut steps = Vec::new();
    let mut request = recording.trace.len() as u64;
    for (at, entry) in recording.trace.iter().enumerate().rev() {
        let taken = match entry.action {
            Action::Alloc | Action::Oom => {
                request = at as u64;
                continue;
            }
            Action::SegmentAlloc => true,
            Action::SegmentFree => false,
            _ => continue,
        };
        steps.push(PlacementStep { moment: request, taken, address: entry.address, bytes: entry.size });
    }
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use parkade_recording::Entry;

    #[test]
    fn a_segment_belongs_to_the_request_after_it() {
        let entry = |action, address| Entry::new(action, address, 2 << 20, 0);
        let trace = vec![
            entry(Action::SegmentAlloc, 1 << 30),
            entry(Action::Alloc, 1 << 30),
            entry(Action::SegmentFree, 1 << 30),
            entry(Action::SegmentAlloc, 2 << 30),
            entry(Action::Alloc, 2 << 30),
            entry(Action::SegmentFree, 2 << 30),
        ];
        let recording = DeviceRecording { trace, ..DeviceRecording::default() };
        let steps: Vec<_> = placed_steps(&recording).iter().map(|step| (step.moment, step.taken, step.address >> 30)).collect();
        assert_eq!(steps, [(1, true, 1), (4, false, 1), (4, true, 2), (6, false, 2)]);
    }
}
