//! How much memory the recorded run had, as far as an out-of-memory error in the recording shows.

use parkade_recording::{Action, DeviceRecording};

use crate::reserved::{growth_bytes, reserved_at_start, whole_gibibytes};

/// What the out-of-memory errors of a recording show about the memory there was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapacityHint {
    /// The entry of the first error.
    pub entry: usize,
    /// At least this many bytes could be reserved.
    pub least_bytes: u64,
    /// Fewer than this many. Equal to `least_bytes` if the device itself was full, which makes the size known exactly.
    pub below_bytes: u64,
}

impl CapacityHint {
    /// The size to assume: the smallest whole gibibyte in the interval, because people set limits in gibibytes. If there is none, or if
    /// the size is known exactly, `least_bytes`.
    #[must_use]
    pub fn assumed_bytes(&self) -> u64 {
        self.whole_gibibytes().next().unwrap_or(self.least_bytes)
    }

    /// Whether the assumed size is known, or a whole gibibyte, as people set limits. Otherwise there was at least as much.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        self.least_bytes == self.below_bytes || self.whole_gibibytes().next().is_some()
    }

    /// The whole gibibytes that the limit may have been, the smallest first.
    pub fn whole_gibibytes(&self) -> impl Iterator<Item = u64> {
        whole_gibibytes(self.least_bytes, self.below_bytes)
    }
}

/// Reads the hint off a device's trace; `None` if it was never out of memory.
///
/// An out-of-memory entry states how much memory the device had free. If that is less than was requested, the device was full: the
/// allocator could have had what it had reserved plus the rest. Otherwise a limit refused: it is at least the most that was ever
/// reserved, and less than what the request would have led to.
#[must_use]
pub fn hint(recording: &DeviceRecording) -> Option<CapacityHint> {
    let mut reserved = reserved_at_start(recording).max(0);
    let mut most = reserved;
    let mut found: Option<CapacityHint> = None;
    for (entry, line) in recording.trace.iter().enumerate() {
        reserved += growth_bytes(line);
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
    use parkade_recording::Entry;

    use super::*;

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
    fn a_full_device_states_its_size_and_a_limit_lies_in_an_interval() {
        // The empty list of final segments contradicts the 60 MiB that are never freed; the count starts at 0.
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
