//! Predicts how much memory a recorded program would have needed under other settings. One call returns everything about one
//! device's recording, including how much the timing of other streams matters.
//!
//! The prediction places segments where the recorded process's driver would have placed them, as far as the recording shows
//! ([`ObservedDriver`](parkade_sim::address::ObservedDriver)). A recording whose oldest entries are missing, or that has no
//! segments from `cudaMalloc`, does not show it, and only the driver's general rules apply. If other streams delay a free, it
//! happens as late as the entries' times indicate. Predictions with different delays show how much this matters.
//!
//! If the entries have times, the outlook also predicts likely runs, in which the program, the GPU and the driver take
//! slightly more or less time. The range covers their peaks and slightly more. It extends by a minimum amount on either side
//! of the recorded timing's peak, but not beyond the peaks of all timings. Without times, or if a lack of memory held up the
//! recorded program for much of the time, it is the range over all timings tried.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_recording::DeviceRecording;

use super::pace::{Pace, Variation};
use super::predicted_run::{AfterFailure, PredictOptions, Prediction, Timing, device_like, learned_addresses, predict};
use super::requests::Requests;
use crate::error::VerifyError;
use crate::inputs::VerifyOptions;

/// The timings to try in addition to the recorded one: the two extremes, and fractions and multiples of the recorded
/// waits.
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

/// The number of likely runs to predict ([`Variation::likely`](super::Variation::likely)).
pub const LIKELY: u32 = 12;

/// The minimum extent of the range on either side of the recorded timing's peak, in permille. Six programs were run five
/// times each under three settings on an H200. The peaks of one program differed by 2 to 33 % of their median, and by 9 % in
/// the median case. A single recording does not show more than this (`docs/predictions.md`).
const LEAST_REACH_PERMILLE: i128 = 90;

/// The result of one timing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extreme {
    /// The peak of bytes reserved from the device.
    pub peak_reserved_bytes: i64,
    /// Whether no request runs out of memory.
    pub fits: bool,
}

impl Extreme {
    /// Returns the result of a run.
    #[must_use]
    pub fn of(prediction: &Prediction) -> Extreme {
        Extreme { peak_reserved_bytes: prediction.peak_reserved_bytes(), fits: prediction.first_failure.is_none() }
    }

    /// Returns whether one of the results serves a request that the other does not, or whether the peaks differ by more than
    /// 1 %.
    #[must_use]
    pub fn is_another_answer_than(&self, other: Extreme) -> bool {
        let permille = u64::try_from(other.peak_reserved_bytes).unwrap_or(0) / 1000;
        let distance = self.peak_reserved_bytes.abs_diff(other.peak_reserved_bytes);
        self.fits != other.fits || distance > permille.saturating_mul(SAME_ANSWER_PERMILLE)
    }
}

/// The effect of the timing: the results of the two extremes, and the range of peaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingRange {
    /// The result if waiting memory becomes free at the next request.
    pub earliest: Extreme,
    /// The result if waiting memory becomes free only when the allocator waits for it.
    pub latest: Extreme,
    /// The lowest likely peak of reserved bytes. If no run is likely, the lowest peak over [`TIMINGS`] and the recorded
    /// timing.
    pub least_peak_reserved_bytes: i64,
    /// The highest likely peak, determined in the same way.
    pub most_peak_reserved_bytes: i64,
    /// Whether the range comes from likely runs.
    pub is_likely: bool,
}

/// Likely runs.
#[derive(Clone, Debug)]
pub(super) struct Likely {
    /// Their peaks of reserved bytes.
    pub peaks: Vec<i64>,
    /// The amount by which a peak may lie outside these peaks, in permille.
    pub uncertain_permille: u64,
}

impl TimingRange {
    /// Returns the range of the results of [`TIMINGS`] and of likely runs, or `None` if all equal the recorded timing's
    /// result.
    pub(super) fn of(recorded: Extreme, tried: [Extreme; TIMINGS.len()], likely: Option<&Likely>) -> Option<TimingRange> {
        let point = recorded.peak_reserved_bytes;
        let peaks = likely.map_or(&[][..], |likely| &likely.peaks);
        if tried.iter().all(|outcome| *outcome == recorded) && peaks.iter().all(|peak| *peak == point) {
            return None;
        }
        let (low, high) = peaks.iter().fold((point, point), |(low, high), &peak| (low.min(peak), high.max(peak)));
        let any = tried.iter().map(|outcome| outcome.peak_reserved_bytes);
        let (least, most) = any.fold((low, high), |(least, most), peak| (least.min(peak), most.max(peak)));
        let (least_peak_reserved_bytes, most_peak_reserved_bytes) = match likely {
            Some(likely) => {
                let part = |permille: i128| (i128::from(point) * permille / 1000) as i64;
                let (margin, reach) = (part(likely.uncertain_permille.into()), part(LEAST_REACH_PERMILLE));
                (least.max((low - margin).min(point - reach)), most.min((high + margin).max(point + reach)))
            }
            None => (least, most),
        };
        let (earliest, latest) = (*tried.first()?, *tried.last()?);
        let is_likely = likely.is_some();
        Some(TimingRange { earliest, latest, least_peak_reserved_bytes, most_peak_reserved_bytes, is_likely })
    }
}

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
    /// The device's memory in bytes; if `None`, unlimited.
    pub capacity_bytes: Option<u64>,
}

/// The amount of memory that a recorded program would have needed.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The device's number.
    pub device: u32,
    /// The program's requests, and how accurately they are known.
    pub requests: Requests,
    /// The prediction with the recorded timing.
    pub prediction: Prediction,
    /// The effect of the timing; `None` if it has none.
    pub timing: Option<TimingRange>,
}

impl Outlook {
    /// Returns whether no request runs out of memory.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.prediction.first_failure.is_none()
    }
}

/// Predicts one device of a recording under other settings.
///
/// A request that fails does not end the run: some programs catch the error and continue with less. It calls `progress`
/// periodically with the number of entries read so far.
///
/// # Errors
/// Fails in the same cases as [`verify_device`](crate::verify_device).
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

/// The amount by which the peaks of two readings of a recording may differ while counting as the same answer, in permille.
const SAME_ANSWER_PERMILLE: u64 = 10;

/// Returns the outlook's result if every doubtful flush ([`Requests::flushes`]) is read the other way, as a call to
/// `empty_cache` or as a retry. Returns `None` if no flush is doubtful, or if the answer stays the same: the run fits in both
/// readings or fails in both, and the peak is within 1 %. `options` are the outlook's.
#[must_use]
pub fn read_otherwise(recording: &DeviceRecording, outlook: &Outlook, options: &OutlookOptions) -> Option<Extreme> {
    let requests = outlook.requests.read_otherwise(recording)?;
    let device = device_like(recording.device, &learned_addresses(recording, &requests), options.capacity_bytes);
    let options = PredictOptions {
        profile: options.profile,
        settings: options.settings.clone(),
        limit_bytes: options.limit_bytes,
        after_failure: AfterFailure::GoOn,
        timing: Timing::Recorded,
    };
    let otherwise = Extreme::of(&predict(&requests, device, &options));
    otherwise.is_another_answer_than(Extreme::of(&outlook.prediction)).then_some(otherwise)
}

/// The share of [`TIMINGS`] that serve every request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingsThatFit {
    /// The number of timings that do.
    pub fit: usize,
    /// The number of timings tried.
    pub of: usize,
}

/// Replays a device's program in the same memory with each of [`TIMINGS`]. Returns `None` if no free waits for another
/// stream, or if the memory is unlimited, so that the program always fits. `options` are the outlook's.
#[must_use]
pub fn timings_that_fit(recording: &DeviceRecording, outlook: &Outlook, options: &OutlookOptions) -> Option<TimingsThatFit> {
    let range = outlook.timing?;
    options.limit_bytes.or(options.capacity_bytes)?;
    let learned = learned_addresses(recording, &outlook.requests);
    let fits = |timing| {
        let device = device_like(recording.device, &learned, options.capacity_bytes);
        let options = PredictOptions {
            profile: options.profile,
            settings: options.settings.clone(),
            limit_bytes: options.limit_bytes,
            after_failure: AfterFailure::Stop,
            timing,
        };
        predict(&outlook.requests, device, &options).first_failure.is_none()
    };
    // The outlook already contains the two extremes.
    let extremes = [range.earliest, range.latest].iter().filter(|extreme| extreme.fits).count();
    let between = TIMINGS[1..TIMINGS.len() - 1].iter().filter(|&&timing| fits(timing)).count();
    Some(TimingsThatFit { fit: extremes + between, of: TIMINGS.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extreme(peak_reserved_bytes: i64) -> Extreme {
        Extreme { peak_reserved_bytes, fits: true }
    }

    /// Timings with results from 500 to 3000.
    fn tried() -> [Extreme; TIMINGS.len()] {
        [500, 600, 700, 800, 1200, 1500, 2000, 2500, 3000].map(extreme)
    }

    fn ends(recorded: i64, peaks: &[i64], uncertain_permille: u64) -> (i64, i64) {
        let likely = Likely { peaks: peaks.to_vec(), uncertain_permille };
        let range = TimingRange::of(extreme(recorded), tried(), Some(&likely)).unwrap();
        (range.least_peak_reserved_bytes, range.most_peak_reserved_bytes)
    }

    #[test]
    fn the_likely_range_is_that_of_likely_runs_and_a_margin() {
        assert_eq!(ends(1000, &[950, 1100], 40), (910, 1140));
        assert_eq!(ends(1000, &[850, 1100], 0), (850, 1100));
        assert_eq!(ends(1000, &[950, 1050], 0), (910, 1090), "one run does not say more");
        assert_eq!(ends(2990, &[2500], 40), (2381, 3000), "not beyond any timing at all");
    }

    #[test]
    fn it_contains_the_point_and_more_runs_or_more_doubt_never_narrow_it() {
        let peaks = [1900, 700, 450, 1000, 3200, 510];
        for recorded in [400, 500, 1000, 3100] {
            let mut before = ends(recorded, &[], 0);
            for count in 0..=peaks.len() {
                for uncertain in [0, 20, 200] {
                    let (least, most) = ends(recorded, &peaks[..count], uncertain);
                    assert!((least..=most).contains(&recorded), "{recorded} {count} {uncertain}");
                    let fewer = ends(recorded, &peaks[..count], 0);
                    assert!(least <= fewer.0 && most >= fewer.1, "{recorded} {count} {uncertain}");
                }
                let after = ends(recorded, &peaks[..count], 0);
                assert!(after.0 <= before.0 && after.1 >= before.1, "{recorded} {count}");
                before = after;
            }
        }
    }

    #[test]
    fn without_times_it_is_the_range_of_all_timings() {
        let range = TimingRange::of(extreme(1000), tried(), None).unwrap();
        assert_eq!((range.least_peak_reserved_bytes, range.most_peak_reserved_bytes, range.is_likely), (500, 3000, false));
        assert_eq!((range.earliest, range.latest), (extreme(500), extreme(3000)));
    }

    #[test]
    fn there_is_none_where_no_timing_matters() {
        let same = [extreme(1000); TIMINGS.len()];
        let likely = |peak| Likely { peaks: vec![peak], uncertain_permille: 40 };
        assert_eq!(TimingRange::of(extreme(1000), same, None), None);
        assert_eq!(TimingRange::of(extreme(1000), same, Some(&likely(1000))), None);
        assert!(TimingRange::of(extreme(1000), same, Some(&likely(1001))).is_some());
    }
}
