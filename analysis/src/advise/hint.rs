//! How much memory the recorded run had, as far as a point where it was out of memory shows.

use parkade_recording::{Action, DeviceRecording};

/// What the first out-of-memory point of a recording shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapacityHint {
    /// Its entry.
    pub entry: usize,
    /// This many bytes could be reserved at least.
    pub least_bytes: u64,
    /// But less than this many. The same where the device itself was full: then it says how much it had left.
    pub below_bytes: u64,
}

/// How many whole gibibytes are tried as the limit.
const MOST_GUESSES: usize = 8;

impl CapacityHint {
    /// What to assume: the least whole gibibyte that it may have been, for people choose such; without one the least. Where the device was
    /// full it is known.
    #[must_use]
    pub fn assumed_bytes(&self) -> u64 {
        self.whole_gibibytes().next().unwrap_or(self.least_bytes)
    }

    /// The whole gibibytes that the limit may have been, the least first: people choose such.
    pub(super) fn whole_gibibytes(&self) -> impl Iterator<Item = u64> {
        let gibibytes = self.least_bytes.div_ceil(1 << 30)..self.below_bytes.div_ceil(1 << 30);
        gibibytes.take(MOST_GUESSES).map(|gibibytes| gibibytes.saturating_mul(1 << 30))
    }
}

/// Reads the hint off a device's trace; `None` if it was never out of memory.
///
/// The entry says how much memory the device had free. If that is less than was asked for, device and others left the allocator what it had
/// reserved and this. Otherwise a limit refused: it is at least the most that was ever reserved, and less than what the request
/// would have led to.
#[must_use]
pub fn hint(recording: &DeviceRecording) -> Option<CapacityHint> {
    let at_end = recording.segments.iter().fold(0_i128, |sum, segment| sum + i128::from(segment.total_bytes));
    let change = |action, bytes| match action {
        Action::SegmentAlloc | Action::SegmentMap => i128::from(bytes),
        Action::SegmentFree | Action::SegmentUnmap => -i128::from(bytes),
        _ => 0,
    };
    let all: i128 = recording.trace.iter().map(|entry| change(entry.action, entry.size)).sum();
    let mut reserved = (at_end - all).max(0);
    let mut most = reserved;
    let mut found: Option<CapacityHint> = None;
    for (entry, line) in recording.trace.iter().enumerate() {
        reserved += change(line.action, line.size);
        most = most.max(reserved);
        if line.action == Action::Oom {
            let (free, wanted) = (i128::from(line.address), i128::from(line.size));
            let is_full = free < wanted;
            let (least, below) = if is_full { (reserved + free, reserved + free) } else { (most, reserved + wanted) };
            let (least, below) = (clamped(least), clamped(below.max(least)));
            found = Some(match found {
                None => CapacityHint { entry, least_bytes: least, below_bytes: below },
                Some(first) => {
                    let below_bytes = first.below_bytes.min(below);
                    CapacityHint { least_bytes: first.least_bytes.max(least).min(below_bytes), below_bytes, ..first }
                }
            });
        }
    }
    found
}

fn clamped(bytes: i128) -> u64 {
    u64::try_from(bytes.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parkade_recording::Entry;

    const MIB: u64 = 1 << 20;

    fn after(free_mib: u64, wanted_mib: u64) -> Option<CapacityHint> {
        let entry = |action, address, mib| Entry::new(action, address, mib * MIB, 0);
        let trace = vec![
            entry(Action::SegmentAlloc, 1 << 40, 100),
            entry(Action::SegmentAlloc, 2 << 40, 60),
            entry(Action::SegmentFree, 1 << 40, 100),
            entry(Action::Oom, free_mib * MIB, wanted_mib),
        ];
        hint(&DeviceRecording { trace, ..DeviceRecording::default() })
    }

    #[test]
    fn a_full_device_says_what_it_has_and_a_limit_lies_between() {
        // The segment of 60 MiB was there before the first entry, as the list of segments does not have it.
        assert_eq!(after(30, 50), Some(CapacityHint { entry: 3, least_bytes: 90 * MIB, below_bytes: 90 * MIB }));
        assert_eq!(after(500, 150), Some(CapacityHint { entry: 3, least_bytes: 160 * MIB, below_bytes: 210 * MIB }));
        assert_eq!(hint(&DeviceRecording::default()), None);
        let assumed = |least_bytes, below_bytes| CapacityHint { entry: 0, least_bytes, below_bytes }.assumed_bytes();
        let gib = 1 << 30;
        assert_eq!(assumed(gib - 1, 3 * gib), gib, "a whole gibibyte");
        assert_eq!(assumed(gib + 1, 2 * gib), gib + 1, "there is none below two");
        assert_eq!(assumed(gib + 1, gib + 1), gib + 1, "known");
    }
}
