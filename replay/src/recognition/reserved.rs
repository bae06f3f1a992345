//! Reserved memory as a trace alone shows it, without a replay; and which limits to try where the limit is unknown.

use parkade::PoolSlot;
use parkade::policy::{Policy, PyTorch};
use parkade::units::Bytes;
use parkade_recording::{Action, DeviceRecording, Entry};

const GIB: u64 = 1 << 30;
/// How many limits are tried.
const MOST_GUESSES: usize = 8;

/// How many bytes an entry adds to reserved memory; negative if it gives memory back.
#[must_use]
pub fn growth_bytes(entry: &Entry) -> i128 {
    match entry.action {
        Action::SegmentAlloc | Action::SegmentMap => i128::from(entry.size),
        Action::SegmentFree | Action::SegmentUnmap => -i128::from(entry.size),
        _ => 0,
    }
}

/// Bytes reserved before the first entry: those of the final segments, walked back through the trace. Negative only if the recording
/// contradicts itself.
#[must_use]
pub fn reserved_at_start(recording: &DeviceRecording) -> i128 {
    let end: i128 = recording.segments.iter().map(|segment| i128::from(segment.total_bytes)).sum();
    end - recording.trace.iter().map(growth_bytes).sum::<i128>()
}

/// The most bytes that were reserved at once.
#[must_use]
pub fn most_reserved(recording: &DeviceRecording) -> u64 {
    let mut reserved = reserved_at_start(recording);
    let mut most = reserved;
    for entry in &recording.trace {
        reserved += growth_bytes(entry);
        most = most.max(reserved);
    }
    u64::try_from(most.max(0)).unwrap_or(u64::MAX)
}

/// The most that a request would take from the device: a segment, or as many pages of an expandable segment.
#[must_use]
pub fn segment_bytes(request: &Entry, policy: &PyTorch) -> u64 {
    let Some(size) = policy.round(Bytes(request.size)) else { return u64::MAX };
    let segment = policy.segment_for(size).unwrap_or(Bytes::MAX);
    if !policy.settings.expandable_segments {
        return segment.get();
    }
    let page = policy.page(PoolSlot::default_pool(policy.classify(size)));
    size.checked_round_up(page).unwrap_or(Bytes::MAX).max(segment).get()
}

/// The whole gibibytes from `least_bytes` up to, but not including, `below_bytes`; at most [`MOST_GUESSES`] of them, the smallest first.
/// People set limits in whole gibibytes, and none of 0.
pub(crate) fn whole_gibibytes(least_bytes: u64, below_bytes: u64) -> impl Iterator<Item = u64> {
    let gibibytes = least_bytes.div_ceil(GIB).max(1)..below_bytes.div_ceil(GIB);
    gibibytes.take(MOST_GUESSES).map(|gibibytes| gibibytes.saturating_mul(GIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_gibibytes_within_the_interval_are_tried() {
        let tried = |least, below| whole_gibibytes(least, below).map(|bytes| bytes / GIB).collect::<Vec<_>>();
        assert_eq!(tried(15 * GIB + 1, 17 * GIB + 1), [16, 17]);
        assert_eq!(tried(15 * GIB, 17 * GIB), [15, 16]);
        assert!(tried(15 * GIB + 1, 16 * GIB).is_empty());
        assert_eq!(tried(0, 2 * GIB), [1], "no limit is 0");
        assert_eq!(tried(0, u64::MAX).len(), MOST_GUESSES);
    }
}
