//! How much memory the recorded run had, as far as an out-of-memory error in the recording shows.

use crate::ReplaySettings;
use parkade::policy::PyTorch;
use parkade_recording::{Action, DeviceRecording};

use super::reserved::{growth_bytes, reserved_at_start, segment_bytes, whole_gibibytes};

/// In less than a segment for small blocks nothing could be allocated (spec 1.3), so nobody sets such a limit.
const LEAST_LIMIT_BYTES: u64 = 2 << 20;

/// What the out-of-memory errors of a recording show about the memory there was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapacityHint {
    /// The entry of the first error.
    pub entry: usize,
    /// At least this many bytes could be reserved.
    pub least_bytes: u64,
    /// Fewer than this many. Equal to `least_bytes` if the device itself was full, which makes the size known exactly.
    pub below_bytes: u64,
    /// The fewest bytes that were refused: so much would have been reserved.
    pub refused_bytes: u64,
    /// The entry of the request that needed them.
    pub refused_entry: usize,
}

impl CapacityHint {
    /// The size to assume: the smallest whole gibibyte in the interval, because people set limits in gibibytes. If there is none, or if
    /// the size is known exactly, `least_bytes`; but nothing below 2 MiB, unless the error excludes more.
    #[must_use]
    pub fn assumed_bytes(&self) -> u64 {
        // But not what the error excludes, and not where the size is known.
        let least = if LEAST_LIMIT_BYTES < self.below_bytes { LEAST_LIMIT_BYTES } else { 0 };
        self.whole_gibibytes().next().unwrap_or(self.least_bytes.max(least))
    }

    /// The whole gibibytes that the limit may have been, the smallest first.
    pub fn whole_gibibytes(&self) -> impl Iterator<Item = u64> {
        whole_gibibytes(self.least_bytes, self.below_bytes)
    }
}

/// Reads the hint off a device's trace; `None` if it was never out of memory. `own` are the recorded run's settings: they decide how large a
/// segment a request asks for.
///
/// An out-of-memory entry states how much memory the device had free. If that is less than was requested, the device was full: the
/// allocator could have had what it had reserved plus the rest, or what it had reserved at an earlier time, if that was more. Otherwise a
/// limit refused: it is at least the most that was ever reserved, and less than what the request would have led to.
#[must_use]
pub fn hint(recording: &DeviceRecording, own: &ReplaySettings) -> Option<CapacityHint> {
    let policy = PyTorch::of(own.profile, own.settings.clone());
    let mut reserved = reserved_at_start(recording).max(0);
    let mut most = reserved;
    let mut found: Option<CapacityHint> = None;
    for (entry, line) in recording.trace.iter().enumerate() {
        reserved += growth_bytes(line);
        most = most.max(reserved);
        if line.action == Action::Oom {
            let (free, wanted) = (i128::from(line.address), i128::from(segment_bytes(line, &policy)));
            let is_full = free < wanted;
            let refused_bytes = clamped(reserved + wanted);
            // A full device may have had more before: something else took it since.
            let had = most.max(reserved + free);
            let (least, below) = if is_full { (had, had) } else { (most, reserved + wanted) };
            let (least, below) = (clamped(least), clamped(below.max(least)));
            let alone = CapacityHint { entry, least_bytes: least, below_bytes: below, refused_bytes, refused_entry: entry };
            let first = found.unwrap_or(alone);
            let below_bytes = first.below_bytes.min(below);
            let least_bytes = first.least_bytes.max(least).min(below_bytes);
            let (refused_bytes, refused_entry) = (first.refused_bytes, first.refused_entry).min((refused_bytes, entry));
            found = Some(CapacityHint { entry: first.entry, least_bytes, below_bytes, refused_bytes, refused_entry });
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

    fn own() -> ReplaySettings {
        ReplaySettings::given_as(&parkade::profile::Profile::PYTORCH_2_11, "").expect("settings")
    }

    fn after(free_mib: u64, wanted_mib: u64) -> Option<CapacityHint> {
        let entry = |action, address, mib| Entry::new(action, address, mib * MIB, 0);
        let trace = vec![
            entry(Action::SegmentAlloc, 1 << 40, 100),
            entry(Action::SegmentAlloc, 2 << 40, 60),
            entry(Action::SegmentFree, 1 << 40, 100),
            entry(Action::Oom, free_mib * MIB, wanted_mib),
        ];
        hint(&DeviceRecording { trace, ..DeviceRecording::default() }, &own())
    }

    #[test]
    fn a_full_device_states_its_size_and_a_limit_lies_in_an_interval() {
        // The empty list of final segments contradicts the 60 MiB that are never freed; the count starts at 0.
        let bounds = |found: Option<CapacityHint>| {
            found.map(|hint| (hint.entry, hint.least_bytes / MIB, hint.below_bytes / MIB, hint.refused_bytes / MIB))
        };
        assert_eq!(bounds(after(120, 130)), Some((3, 180, 180, 190)));
        assert_eq!(bounds(after(30, 50)), Some((3, 160, 160, 110)), "160 were reserved before something else took 70");
        assert_eq!(bounds(after(500, 150)), Some((3, 160, 210, 210)));
        assert_eq!(hint(&DeviceRecording::default(), &own()), None);
        let (refused_bytes, refused_entry) = (u64::MAX, 0);
        let hint = |least_bytes, below_bytes| CapacityHint { entry: 0, least_bytes, below_bytes, refused_bytes, refused_entry };
        let assumed = |least_bytes, below_bytes| hint(least_bytes, below_bytes).assumed_bytes();
        let gib = 1 << 30;
        assert_eq!(assumed(gib - 1, 3 * gib), gib, "a whole gibibyte");
        assert_eq!(assumed(gib + 1, 2 * gib), gib + 1, "there is none below two");
        assert_eq!(assumed(gib + 1, gib + 1), gib + 1, "known");
        assert_eq!(assumed(0, 3 << 29), gib, "0 is no limit");
        assert_eq!((assumed(0, 20 << 20), assumed(0, 2 << 20), assumed(0, 0)), (2 << 20, 0, 0), "the least that serves anything");
    }
}
