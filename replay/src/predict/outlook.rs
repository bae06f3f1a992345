//! What a recorded program would have needed under other settings: everything about
//! one device's recording in one call.
//!
//! Segments are placed where the recorded process's driver would have placed them, as far as the recording
//! shows ([`ObservedDriver`](parkade_sim::address::ObservedDriver)). A recording that lost its beginning, or has no
//! segments from cudaMalloc, shows nothing, and only the driver's general rules apply. Where other streams
//! delay a free, the recorded delays are used; predictions with other delays show how much that matters.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;
use parkade_recording::DeviceRecording;
use parkade_sim::address::{LearnedAddressSpace, ObservedDriver};
use parkade_sim::{SimDevice, SimOptions};

use super::placements::placed_steps;
use super::predicted_run::predict;
use super::prediction::{AfterFailure, PredictOptions, Prediction, Timing};
use super::requests::Requests;
use crate::error::VerifyError;
use crate::inputs::VerifyOptions;

/// More memory than any device has: 4 TiB.
const LARGEST_BYTES: u64 = 1 << 42;

/// The timings that are tried in addition to the recorded one: the two extremes, and fractions
/// and multiples of the recorded waits.
///
/// Earlier completions do not always lead to less memory, so the extremes alone do not bound the result.
pub const TIMINGS: [Timing; 9] = [
    Timing::Earliest,
    Timing::Scaled(25),
    Timing::Scaled(50),
    Timing::Scaled(75),
    Timing::Scaled(125),
    Timing::Scaled(150),
    Timing::Scaled(200),
    Timing::Scaled(400),
    Timing::Latest,
];

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

/// The result of one timing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extreme {
    /// The most bytes reserved from the device at once.
    pub peak_reserved_bytes: i64,
    /// Whether no request is out of memory.
    pub fits: bool,
}

/// How much the timing matters: the results of its two extremes, and the range of
/// peaks over all timings that were tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingRange {
    /// If waiting memory becomes free at the next request.
    pub earliest: Extreme,
    /// If it becomes free only where the allocator waits for it.
    pub latest: Extreme,
    /// The lowest peak of reserved bytes over [`TIMINGS`] and the recorded timing.
    pub least_peak_reserved_bytes: i64,
    /// The highest such peak.
    pub most_peak_reserved_bytes: i64,
}

impl Extreme {
    fn of(prediction: &Prediction) -> Extreme {
        Extreme { peak_reserved_bytes: prediction.peak_reserved_bytes(), fits: prediction.first_failure.is_none() }
    }
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
    let timing = requests.has_deferred_frees().then(|| range(&prediction, TIMINGS.map(|timing| Extreme::of(&run(timing)))));
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

/// The range of the results of [`TIMINGS`]; `None` if all equal that of the recorded timing.
fn range(prediction: &Prediction, outcomes: [Extreme; TIMINGS.len()]) -> Option<TimingRange> {
    let recorded = Extreme::of(prediction);
    let peaks = || outcomes.iter().chain([&recorded]).map(|outcome| outcome.peak_reserved_bytes);
    let (least_peak_reserved_bytes, most_peak_reserved_bytes) = (peaks().min()?, peaks().max()?);
    let (earliest, latest) = (*outcomes.first()?, *outcomes.last()?);
    let differs = outcomes.iter().any(|outcome| *outcome != recorded);
    differs.then_some(TimingRange { earliest, latest, least_peak_reserved_bytes, most_peak_reserved_bytes })
}
