//! What a prediction is made for, and its result.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::{Family, Stats};

use super::completion_model::Variation;

/// What the program does after a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AfterFailure {
    /// It ends, as most do.
    #[default]
    Stop,
    /// It continues with its other requests, without the memory that it did not get.
    GoOn,
}

/// When other streams finish using memory that was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Timing {
    /// As late in time as recorded; at the entry where the recorded allocator noticed it if the entries have no times.
    #[default]
    Recorded,
    /// At the next request.
    Earliest,
    /// Only where the allocator waits for it.
    Latest,
    /// After this percentage of the entries that it took until the recorded allocator noticed it.
    Scaled(u32),
    /// As recorded, but in another run of the program, which takes a little longer or shorter.
    InTime(Variation),
}

/// What to predict for.
#[derive(Clone, Debug)]
pub struct PredictOptions {
    /// The rules of the PyTorch release.
    pub profile: &'static Profile,
    /// The settings.
    pub settings: Settings,
    /// The memory limit in bytes, if any.
    pub limit_bytes: Option<u64>,
    /// What the program does after a request that failed.
    pub after_failure: AfterFailure,
    /// When memory that other streams use becomes free.
    pub timing: Timing,
}

/// A predicted run.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The stats at its end.
    pub stats: Stats,
    /// The recording's entry whose request failed first, if one did.
    pub first_failure: Option<usize>,
    /// Operations that the simulated device refused and a real one would not, for example
    /// because its address model was full.
    pub device_errors: u64,
    /// How many driver calls about memory were made.
    pub driver_calls: u64,
    /// How long they took, in nanoseconds of simulated time.
    pub driver_ns: u64,
}

impl Prediction {
    /// The most bytes reserved from the device at once.
    #[must_use]
    pub fn peak_reserved_bytes(&self) -> i64 {
        self.stats.family(Family::ReservedBytes).all.peak
    }

    /// The most bytes allocated at once.
    #[must_use]
    pub fn peak_allocated_bytes(&self) -> i64 {
        self.stats.family(Family::AllocatedBytes).all.peak
    }
}
