//! What a recorded program would have needed under other settings: everything about
//! one device's recording in one call.
//!
//! Segments are placed where the recorded process's driver would have placed them, as far as the recording
//! shows ([`ObservedDriver`](parkade_sim::address::ObservedDriver)). A recording that lost its beginning, or has no
//! segments from cudaMalloc, shows nothing, and only the driver's general rules apply. Where other streams
//! delay a free, it is as late as the times of the entries say; predictions with other delays show how much that
//! matters.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;
use parkade_recording::DeviceRecording;
use parkade_sim::address::{LearnedAddressSpace, ObservedDriver};
use parkade_sim::{SimDevice, SimOptions};

use super::completion_model::Variation;
use super::pace::Pace;
use super::placements::placed_steps;
use super::predicted_run::predict;
use super::prediction::{AfterFailure, PredictOptions, Prediction, Timing};
use super::requests::Requests;
use super::timing_range::{Extreme, LIKELY, Likely, TIMINGS, TimingRange};
use crate::error::VerifyError;
use crate::inputs::VerifyOptions;

/// More memory than any device has: 4 TiB.
const LARGEST_BYTES: u64 = 1 << 42;

/// What to predict.
#[derive(Clone, Debug)]
pub struct OutlookOptions {
    /// The recorded run's own settings and limit.
    pub own: VerifyOptions,
    /// The rules of the PyTorch release to predict for.
    pub profile: &'static Profile,
    /// The settings to predict for.
    pub settings: Settings,
    /// The memory limit to predict for, in bytes.
    pub limit_bytes: Option<u64>,
    /// The device's memory in bytes; more than any device has if `None`.
    pub capacity_bytes: Option<u64>,
}

/// What a recorded program would have needed.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The device's number.
    pub device: u32,
    /// What it asked for, and how exactly that is known.
    pub requests: Requests,
    /// The prediction with the recorded timing.
    pub prediction: Prediction,
    /// How much the timing matters; `None` if it does not.
    pub timing: Option<TimingRange>,
}

impl Outlook {
    /// Whether no request is out of memory.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.prediction.first_failure.is_none()
    }
}

/// Predicts one device of a recording under other settings.
///
/// A request that fails does not end the run: some programs catch the error and continue with less. `progress`
/// is called from time to time with the number of entries that have been read.
///
/// # Errors
/// As [`verify_device`](crate::verify_device).
pub fn replay_device(
    recording: &DeviceRecording,
    options: &OutlookOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<Outlook, VerifyError> {
    let requests = Requests::of_recording(recording, &options.own, progress)?;
    let learned = learned_addresses(recording, &requests);
    let run = |timing| {
        let device = device_like(recording.device, &learned, options.capacity_bytes);
        let settings = options.settings.clone();
        let (profile, limit_bytes) = (options.profile, options.limit_bytes);
        let options = PredictOptions { profile, settings, limit_bytes, after_failure: AfterFailure::GoOn, timing };
        predict(&requests, device, &options)
    };
    let prediction = run(Timing::Recorded);
    let timing = requests.has_deferred_frees().then(|| {
        let extreme = |timing| Extreme::of(&run(timing));
        let likely = requests.pace.as_ref().and_then(Pace::uncertain_permille).map(|uncertain_permille| {
            let peaks = (1..=LIKELY).map(|number| extreme(Timing::InTime(Variation::likely(number))).peak_reserved_bytes);
            Likely { peaks: peaks.collect(), uncertain_permille }
        });
        TimingRange::of(Extreme::of(&prediction), TIMINGS.map(extreme), likely.as_ref())
    });
    Ok(Outlook { device: recording.device, requests, prediction, timing: timing.flatten() })
}

/// Where the recorded process's driver places segments, as far as the recording shows.
///
/// Empty for a recording that lost its beginning.
#[must_use]
pub fn learned_addresses(recording: &DeviceRecording, requests: &Requests) -> LearnedAddressSpace {
    let knows_all = requests.lost_beginning.is_none();
    if knows_all { LearnedAddressSpace::from_steps(&placed_steps(recording)) } else { LearnedAddressSpace::default() }
}

/// A simulated device that places segments there. Without `capacity_bytes` it has 4 TiB, more than any real one.
#[must_use]
pub fn device_like(index: u32, learned: &LearnedAddressSpace, capacity_bytes: Option<u64>) -> SimDevice {
    let options = SimOptions::new(Bytes(capacity_bytes.unwrap_or(LARGEST_BYTES))).index(index);
    SimDevice::new(options.address_model(ObservedDriver::learned(learned)))
}
