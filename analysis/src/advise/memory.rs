//! The caller's options, and the memory against which recorded programs are judged: specified by the caller, shown by a
//! recording, or assumed.
//!
//! The caller specifies how the run was recorded, how much memory is available, and which settings to try
//! ([`AdviseOptions`]). Everything that `advise` knows about memory comes from this module. If the caller does not specify
//! the memory, an out-of-memory error shows a range that contains the limit. Options are tried with one size in that range,
//! and an answer is given only if it is the same throughout the range.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_recording::DeviceRecording;
use parkade_replay::recognition::{CapacityHint, capacity_hint as hint, most_reserved};
use parkade_replay::{ReplaySettings, VerifyOptions};

/// What to advise on.
pub struct AdviseOptions {
    /// The recorded run's settings and limit.
    pub own: VerifyOptions,
    /// The PyTorch release whose rules apply.
    pub profile: &'static Profile,
    /// The available memory. If neither size is specified, it is inferred from an out-of-memory error in the recording, if
    /// there is one.
    pub memory: MemoryBudget,
    /// Settings that are always tried.
    pub given: Vec<Settings>,
    /// Whether only these and the recorded run's own settings are tried, without searching for others.
    pub only_given: bool,
    /// The number of devices that the process saw, which is the number that the file lists.
    pub devices_seen: usize,
}

/// The memory that the allocator may reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryBudget {
    /// The device's memory, without what the driver itself takes.
    pub capacity_bytes: Option<u64>,
    /// The memory limit.
    pub limit_bytes: Option<u64>,
}

impl MemoryBudget {
    /// Returns the bytes that may be reserved under these settings: the smaller of the limit and the capacity, of which the
    /// settings may allow only a fraction. Returns `None` if neither the limit nor the capacity is known.
    #[must_use]
    pub fn bytes(&self, profile: &Profile, settings: &Settings) -> Option<u64> {
        let fraction = settings.per_process_memory_fraction;
        let part = |capacity| if fraction < 1.0 { profile.limit_rounding.limit(fraction, capacity) } else { capacity };
        match (self.capacity_bytes.map(part), self.limit_bytes) {
            (Some(capacity), Some(limit)) => Some(capacity.min(limit)),
            (one, other) => one.or(other),
        }
    }
}

/// The progress of [`advise`](super::advise).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// A device's trace is being read.
    Read {
        /// The index of the device among those passed in.
        device: usize,
        /// Entries read so far.
        entries: usize,
    },
    /// Options are being tried.
    Tried {
        /// Options tried so far.
        options: usize,
        /// Options found so far.
        of: usize,
    },
}

/// The memory of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// The device's number.
    pub device: u32,
    /// The amount of memory that options are tried with.
    pub budget: MemoryBudget,
    /// The range that contains the limit, if the memory is neither specified nor known exactly.
    pub range: Option<MemoryRange>,
    /// The memory limit that an out-of-memory error on this device shows.
    pub shown: Option<CapacityHint>,
}

/// A range that contains a limit: at least one size and below a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// The bytes that were reserved.
    pub least_bytes: u64,
    /// The bytes that were refused; `u64::MAX` if none were.
    pub below_bytes: u64,
}

/// Evidence in a recording that contradicts the memory that the caller specified: the recorded run had less.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryContradiction {
    /// The device's number.
    pub device: u32,
    /// The entry of the request that was refused.
    pub entry: usize,
    /// The bytes that would have been reserved.
    pub refused_bytes: u64,
}

impl DeviceMemory {
    /// Returns the memory of each device. Memory that the caller specifies applies to all of them. If none is specified, a
    /// device has what its own out-of-memory error shows; a device without an error has the smallest amount that any other
    /// device's error shows, but at least what it reserved itself. `recorded_limits` are the recorded run's limits on each
    /// device, if they were specified or found.
    #[must_use]
    pub fn of(
        devices: &[&DeviceRecording],
        own: &ReplaySettings,
        given: MemoryBudget,
        recorded_limits: &[Option<u64>],
    ) -> Vec<DeviceMemory> {
        // If a device later had more memory than it had refused, something else had filled it, so that error shows no limit.
        let holds = |recording: &DeviceRecording, shown: &CapacityHint| most_reserved(recording) <= shown.below_bytes;
        let hints = devices.iter().map(|recording| hint(recording, own).filter(|shown| holds(recording, shown)));
        let shown: Vec<(Option<CapacityHint>, Option<u64>)> = hints.zip(recorded_limits.iter().copied()).collect();
        let assumed = |hint: &CapacityHint, recorded_limit: Option<u64>| recorded_limit.unwrap_or(hint.assumed_bytes());
        let least = shown.iter().filter_map(|&(hint, recorded_limit)| Some(assumed(&hint?, recorded_limit))).min();
        let limited = |bytes| MemoryBudget { limit_bytes: Some(bytes), capacity_bytes: None };
        let of = |(recording, &(shown, recorded_limit)): (&&DeviceRecording, &(Option<CapacityHint>, Option<u64>))| {
            let (budget, range) = match (shown, least) {
                _ if given != MemoryBudget::default() => (given, None),
                (Some(hint), _) => {
                    let range = MemoryRange { least_bytes: hint.least_bytes, below_bytes: hint.below_bytes };
                    let is_known = recorded_limit.is_some() || hint.least_bytes == hint.below_bytes;
                    (limited(assumed(&hint, recorded_limit)), Some(range).filter(|_| !is_known))
                }
                (None, Some(bytes)) => {
                    let least_bytes = most_reserved(recording);
                    let range = MemoryRange { least_bytes, below_bytes: u64::MAX };
                    (limited(bytes.max(least_bytes)), Some(range).filter(|_| recorded_limit.is_none()))
                }
                (None, None) => (given, None),
            };
            DeviceMemory { device: recording.device, budget, range, shown }
        };
        devices.iter().zip(&shown).map(of).collect()
    }

    /// Returns evidence that contradicts this much memory, if any.
    pub(super) fn contradiction(&self, available_bytes: u64) -> Option<MemoryContradiction> {
        let shown = self.shown.filter(|shown| shown.refused_bytes <= available_bytes)?;
        Some(MemoryContradiction { device: self.device, entry: shown.refused_entry, refused_bytes: shown.refused_bytes })
    }
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Action, Entry, Segment};

    use super::*;

    #[test]
    fn a_fraction_is_a_part_of_the_device() {
        let memory = MemoryBudget { capacity_bytes: Some(1000 << 20), limit_bytes: Some(900 << 20) };
        let bytes = |text: &str| memory.bytes(&Profile::PYTORCH_2_11, &Settings::from_environment(text).unwrap());
        assert_eq!([bytes(""), bytes("per_process_memory_fraction:0.5")], [Some(900 << 20), Some(500 << 20)]);
    }

    const MIB: u64 = 1 << 20;

    /// Returns a recording that reserves this much and, if `is_refused`, is then refused a request for the same amount.
    fn recording(device: u32, reserved_mib: u64, is_refused: bool) -> DeviceRecording {
        let (base, size) = (1 << 40, reserved_mib * MIB);
        let mut trace = vec![Entry::new(Action::SegmentAlloc, base, size, 0), Entry::new(Action::Alloc, base, size, 0)];
        trace.extend(is_refused.then(|| Entry::new(Action::Oom, 1 << 40, size, 0)));
        let block = parkade_recording::Block {
            address: base,
            size,
            requested: Some(size),
            state: parkade_recording::BlockState::ActiveAllocated,
            stack: parkade_recording::StackId::NONE,
        };
        DeviceRecording { device, trace, segments: vec![Segment::new(vec![block])], ..DeviceRecording::default() }
    }

    #[test]
    fn a_device_without_an_error_has_what_another_shows_and_at_least_what_it_reserved() {
        let all = [recording(0, 100, true), recording(1, 150, false), recording(2, 50, false)];
        let all: Vec<&DeviceRecording> = all.iter().collect();
        let own = ReplaySettings::given_as(&Profile::PYTORCH_2_11, "");
        let own = own.expect("settings");
        let mib = |given, limit| {
            let memories = DeviceMemory::of(&all, &own, given, &[limit; 3]);
            let one = |memory: &DeviceMemory| {
                let range = memory.range.map(|range| (range.least_bytes / MIB, range.below_bytes / MIB));
                (memory.budget.limit_bytes.map(|bytes| bytes / MIB), range)
            };
            memories.iter().map(one).collect::<Vec<_>>()
        };
        let none = MemoryBudget::default();
        let beyond = u64::MAX / MIB;
        let expected = [(Some(100), Some((100, 200))), (Some(150), Some((150, beyond))), (Some(100), Some((50, beyond)))];
        assert_eq!(mib(none, None), expected);
        assert_eq!(mib(none, Some(170 * MIB)), [(Some(170), None); 3]);
        let given = MemoryBudget { limit_bytes: Some(70 * MIB), capacity_bytes: None };
        assert_eq!(mib(given, None), [(Some(70), None); 3]);
        let found = DeviceMemory::of(&all, &own, none, &[Some(170 * MIB), None, None]);
        let found = |place: usize| (found[place].budget.limit_bytes, found[place].range.is_some());
        assert_eq!(
            (found(0), found(1)),
            ((Some(170 * MIB), false), (Some(170 * MIB), true)),
            "a limit found on one device is its own"
        );
        let memory = DeviceMemory::of(&all, &own, given, &[None; 3])[0];
        assert_eq!(memory.contradiction(199 * MIB), None);
        let contradiction = MemoryContradiction { device: 0, entry: 2, refused_bytes: 200 * MIB };
        assert_eq!(memory.contradiction(200 * MIB), Some(contradiction));
    }
}
