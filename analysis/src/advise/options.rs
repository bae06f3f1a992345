//! What the caller asks: how the run was recorded, how much memory there is, which settings to try.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_replay::VerifyOptions;

/// What to advise on.
pub struct AdviseOptions {
    /// Settings and limit of the recorded run.
    pub own: VerifyOptions,
    /// The PyTorch release whose decisions are made.
    pub profile: &'static Profile,
    /// The memory there is. If neither size is given, it is inferred from an out-of-memory error in the recording, if there is one.
    pub memory: MemoryBudget,
    /// Settings to try in any case.
    pub given: Vec<Settings>,
    /// Try only these and the recorded run's own settings; search no others.
    pub only_given: bool,
}

/// The memory that the allocator may reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryBudget {
    /// The device's memory, without the driver's own share.
    pub capacity_bytes: Option<u64>,
    /// The memory limit.
    pub limit_bytes: Option<u64>,
}

impl MemoryBudget {
    /// The bytes that may be reserved under these settings: the smaller of limit and capacity, of which the settings may allow only a
    /// fraction. `None` if neither is known.
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

/// How far [`advise`](super::advise) has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// A device's trace is being read.
    Read {
        /// The device's position among those given.
        device: usize,
        /// Entries read so far.
        entries: usize,
    },
    /// Options are being tried.
    Tried {
        /// Options tried so far.
        options: usize,
        /// Options known so far.
        of: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_a_part_of_the_device() {
        let memory = MemoryBudget { capacity_bytes: Some(1000 << 20), limit_bytes: Some(900 << 20) };
        let bytes = |text: &str| memory.bytes(&Profile::PYTORCH_2_11, &Settings::from_environment(text).unwrap());
        assert_eq!([bytes(""), bytes("per_process_memory_fraction:0.5")], [Some(900 << 20), Some(500 << 20)]);
    }
}
