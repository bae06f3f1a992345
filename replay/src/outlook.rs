//! What a recorded program would need under other settings: everything about one device's recording in one call.
//!
//! Segments go where the recorded process's driver would have put them, as far as its recording shows
//! ([`ObservedDriver`](parkade_sim::address::ObservedDriver)); from a recording that lost its beginning, or has no segments of cudaMalloc,
//! only the driver's rules are known. Where work of other streams delays a free, the recording's own delays are used, and the two
//! extremes beside them say how much that matters.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;

use super::error::VerifyError;
use super::placements::placed_steps;
use super::predict::{AfterFailure, PredictOptions, Prediction, Timing, predict};
use super::requests::Requests;
use super::verify::VerifyOptions;
use parkade_recording::DeviceRecording;
use parkade_sim::address::{ObservedDriver, LearnedAddressSpace};
use parkade_sim::{SimDevice, SimOptions};

/// A device with more memory than any has: 4 TiB.
const LARGEST_BYTES: u64 = 1 << 42;

/// The readings of when other streams are done that are tried beside the recorded one: the extremes, and shares and multiples of the
/// recorded waits. Earlier completions need not lead to a better heap, so the extremes alone do not bound what happens.
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

/// Under what to replay.
#[derive(Clone, Debug)]
pub struct OutlookOptions {
    /// Settings and limit of the recorded run, which show what it asked for.
    pub own: VerifyOptions,
    /// The version of PyTorch whose decisions are made.
    pub profile: &'static Profile,
    /// The settings to replay under.
    pub settings: Settings,
    /// The memory limit to replay under.
    pub limit_bytes: Option<u64>,
    /// The device's memory; as much as is needed if not given.
    pub capacity_bytes: Option<u64>,
}

/// What comes of one extreme of timing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extreme {
    /// The most bytes that were taken from the device at once.
    pub peak_reserved_bytes: i64,
    /// No request is out of memory.
    pub fits: bool,
}

/// How much the timing matters: its two extremes, and the range of the peaks of several timings between and around them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingRange {
    /// Waiting memory is free at the next request.
    pub earliest: Extreme,
    /// Only where the allocator waits for it.
    pub latest: Extreme,
    /// The lowest peak of reserved bytes of all [`TIMINGS`] and the recorded one.
    pub least_peak_reserved_bytes: i64,
    /// The highest.
    pub most_peak_reserved_bytes: i64,
}

impl Extreme {
    fn of(prediction: &Prediction) -> Extreme {
        Extreme { peak_reserved_bytes: prediction.peak_reserved_bytes(), fits: prediction.first_failure.is_none() }
    }
}

/// What the program would need.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The device's number.
    pub device: u32,
    /// What it asked for, and how surely that is known.
    pub requests: Requests,
    /// What would come of it.
    pub prediction: Prediction,
    /// How much the timing matters, where it does.
    pub timing: Option<TimingRange>,
}

impl Outlook {
    /// No request is out of memory.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.prediction.first_failure.is_none()
    }
}

/// Replays one device of a recording under other settings. A request that fails does not end the program: some catch the error and
/// go on with less. `progress` is told now and then how many entries have been read.
///
/// # Errors
/// As for verifying the recording: see [`VerifyError`].
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

/// Where the recorded process's driver puts segments, as far as its recording shows.
#[must_use]
pub fn learned_addresses(recording: &DeviceRecording, requests: &Requests) -> LearnedAddressSpace {
    let knows_all = requests.lost_beginning.is_none();
    if knows_all { LearnedAddressSpace::from_steps(&placed_steps(recording)) } else { LearnedAddressSpace::default() }
}

/// A simulated device that puts segments there. Without `capacity_bytes` it has more memory than any device.
#[must_use]
pub fn device_like(index: u32, learned: &LearnedAddressSpace, capacity_bytes: Option<u64>) -> SimDevice {
    let options = SimOptions::new(Bytes(capacity_bytes.unwrap_or(LARGEST_BYTES))).index(index);
    SimDevice::new(options.address_model(ObservedDriver::learned(learned)))
}

/// How far the outcomes of the [`TIMINGS`] lie apart; `None` if all are the same.
fn range(prediction: &Prediction, outcomes: [Extreme; TIMINGS.len()]) -> Option<TimingRange> {
    let recorded = Extreme::of(prediction);
    let peaks = || outcomes.iter().chain([&recorded]).map(|outcome| outcome.peak_reserved_bytes);
    let (least_peak_reserved_bytes, most_peak_reserved_bytes) = (peaks().min()?, peaks().max()?);
    let (earliest, latest) = (*outcomes.first()?, *outcomes.last()?);
    let differs = outcomes.iter().any(|outcome| *outcome != recorded);
    differs.then_some(TimingRange { earliest, latest, least_peak_reserved_bytes, most_peak_reserved_bytes })
}
