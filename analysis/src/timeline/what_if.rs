//! The recorded requests under other settings, as a curve of reserved bytes over the recording's entries.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::Family;
use parkade_replay::{AfterFailure, PredictOptions, PredictedRun, Prediction, Requests, Timing, device_like};
use parkade_sim::address::LearnedAddressSpace;

use super::levels::{Bucket, Curve};

/// The requests to run, and on what.
#[derive(Clone, Debug)]
pub struct WhatIf<'a> {
    /// The program's requests.
    pub requests: &'a Requests,
    /// Where its driver places segments.
    pub learned: &'a LearnedAddressSpace,
    /// The device's number.
    pub device: u32,
    /// How many entries the recording has.
    pub entries: usize,
    /// The PyTorch release whose decisions are made.
    pub profile: &'static Profile,
    /// The most that may be reserved; unlimited if `None`.
    pub limit_bytes: Option<u64>,
    /// The device's memory; unlimited if `None`.
    pub capacity_bytes: Option<u64>,
}

/// The outcome.
#[derive(Clone, Debug)]
pub struct WhatIfRun {
    /// Reserved bytes over the recording's entries.
    pub reserved: Curve,
    /// Everything else about the run.
    pub prediction: Prediction,
}

/// Runs the requests under `settings`. A request that fails does not end the run: some programs catch the error and go on with less.
#[must_use]
pub fn what_if(what: &WhatIf<'_>, settings: &Settings, most_buckets: usize) -> WhatIfRun {
    let device = device_like(what.device, what.learned, what.capacity_bytes);
    let options = PredictOptions {
        profile: what.profile,
        settings: settings.clone(),
        limit_bytes: what.limit_bytes,
        after_failure: AfterFailure::GoOn,
        timing: Timing::Recorded,
    };
    let mut run = PredictedRun::new(what.requests, device, &options, ());
    let moments = what.entries + 1;
    let mut curve = Running { buckets: Vec::new(), count: most_buckets.min(moments).max(1), moments, level: 0 };
    let mut peak = 0;
    for &(entry, _) in &what.requests.operations {
        if !run.step() {
            break;
        }
        let reserved = run.stats().family(Family::ReservedBytes).all;
        // Within an operation more may be reserved than at its end.
        let most = if reserved.peak > peak { reserved.peak } else { reserved.current };
        peak = reserved.peak;
        // Requests from before the first entry belong to moment 0.
        let moment = if entry == 0 { 0 } else { entry + 1 };
        curve.add(moment, as_bytes(reserved.current), as_bytes(most));
    }
    curve.reach(curve.count);
    WhatIfRun { reserved: Curve { buckets: curve.buckets, moments }, prediction: run.prediction() }
}

fn as_bytes(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}

/// A curve being drawn from left to right.
struct Running {
    buckets: Vec<Bucket>,
    count: usize,
    moments: usize,
    level: u64,
}

impl Running {
    /// Extends the current level until there are so many buckets.
    fn reach(&mut self, buckets: usize) {
        let level = self.level;
        self.buckets.resize(buckets.max(self.buckets.len()), Bucket { min: level, max: level, last: level });
    }

    fn add(&mut self, moment: usize, level: u64, most: u64) {
        // The bucket that covers the moment: the last i with i * moments / count <= moment.
        let place = (((moment + 1) * self.count - 1) / self.moments).min(self.count - 1);
        self.reach(place + 1);
        self.level = level;
        if let Some(bucket) = self.buckets.last_mut() {
            *bucket = Bucket { min: bucket.min.min(level), max: bucket.max.max(most), last: level };
        }
    }
}
