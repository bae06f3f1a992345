//! One device's program under one setting, ready to be run in any amount of memory.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_replay::{AfterFailure, LIKELY, PredictOptions, PredictedRun, TIMINGS, Timing, Variation, device_like, predict};

use super::program::Program;

/// A program and the settings to replay it under.
#[derive(Clone, Copy)]
pub(super) struct Replay<'a> {
    pub(super) program: &'a Program,
    pub(super) profile: &'static Profile,
    pub(super) settings: &'a Settings,
}

impl<'a> Replay<'a> {
    fn options(&self, limit_bytes: Option<u64>, after_failure: AfterFailure, timing: Timing) -> PredictOptions {
        PredictOptions { profile: self.profile, settings: self.settings.clone(), limit_bytes, after_failure, timing }
    }

    /// Starts a run on a device that never runs out of memory itself: only the limit does.
    pub(super) fn run(&self, limit_bytes: Option<u64>, after_failure: AfterFailure) -> PredictedRun<'a> {
        let device = device_like(self.program.device, &self.program.learned, None);
        let options = self.options(limit_bytes, after_failure, Timing::Recorded);
        PredictedRun::with_slots(&self.program.requests, &self.program.slots, device, &options, ())
    }

    /// For each of [`TIMINGS`]: whether every request is served, and the peak of reserved bytes.
    pub(super) fn timings(&self, limit_bytes: Option<u64>) -> [(bool, i64); TIMINGS.len()] {
        TIMINGS.map(|timing| {
            let device = device_like(self.program.device, &self.program.learned, None);
            let options = self.options(limit_bytes, AfterFailure::GoOn, timing);
            let prediction = predict(&self.program.requests, device, &options);
            (prediction.first_failure.is_none(), prediction.peak_reserved_bytes())
        })
    }

    /// For each likely run: whether every request is served.
    pub(super) fn likely(&self, limit_bytes: Option<u64>) -> [bool; LIKELY as usize] {
        std::array::from_fn(|place| {
            let device = device_like(self.program.device, &self.program.learned, None);
            let timing = Timing::InTime(Variation::likely(place as u32 + 1));
            let options = self.options(limit_bytes, AfterFailure::Stop, timing);
            predict(&self.program.requests, device, &options).first_failure.is_none()
        })
    }
}
