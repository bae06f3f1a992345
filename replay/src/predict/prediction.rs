//! What a prediction is made for, and what it says.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::{Family, Stats};

/// What the program does after a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AfterFailure {
    /// It dies, as most do: the replay ends there.
    #[default]
    Stop,
    /// It goes on with its other requests, and never gives back what it did not get.
    GoOn,
}

/// When other streams are done with memory that was given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Timing {
    /// When the recorded allocator noticed it.
    #[default]
    Recorded,
    /// At the next request.
    Earliest,
    /// Only where the allocator waits for it.
    Latest,
    /// After so many percent of the entries after which the recorded allocator noticed it.
    Scaled(u32),
}

/// How to predict.
#[derive(Clone, Debug)]
pub struct PredictOptions {
    /// The version of PyTorch whose decisions are made.
    pub profile: &'static Profile,
    /// The settings to predict for.
    pub settings: Settings,
    /// The memory limit to predict for.
    pub limit_bytes: Option<u64>,
    /// What happens after a failed request.
    pub after_failure: AfterFailure,
    /// When waiting memory becomes free.
    pub timing: Timing,
}

/// What a run would be like.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The statistics at its end.
    pub stats: Stats,
    /// The recording's entry whose request failed first.
    pub first_failure: Option<usize>,
    /// Requests that the device could not follow (an address model without room, for example), which a real one would have.
    pub device_errors: u64,
    /// Calls of the driver about memory.
    pub driver_calls: u64,
    /// What they cost, in nanoseconds.
    pub driver_ns: u64,
}

impl Prediction {
    /// The most bytes that were taken from the device at once.
    #[must_use]
    pub fn peak_reserved_bytes(&self) -> i64 {
        self.stats.family(Family::ReservedBytes).all.peak
    }

    /// The most bytes of blocks that were handed out at once.
    #[must_use]
    pub fn peak_allocated_bytes(&self) -> i64 {
        self.stats.family(Family::AllocatedBytes).all.peak
    }
}
