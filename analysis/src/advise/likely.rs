//! What is likely of an option where frees wait for other streams: the range of peaks that `parkade replay` shows, and whether the runs
//! that it is made of fit.

use parkade_recording::DeviceRecording;
use parkade_replay::{LIKELY, OutlookOptions, VerifyOptions, replay_device};

use super::advised_option::AdvisedOption;
use super::options::AdviseOptions;
use super::replay::Replay;

/// The likely runs of an option, by the times of the entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LikelyRuns {
    /// In so many of them every request of every device is served.
    pub fit: usize,
    /// So many were made.
    pub of: usize,
    /// The lowest likely peak of reserved bytes, on the device where it is highest.
    pub least_peak_reserved_bytes: i64,
    /// The highest likely peak.
    pub most_peak_reserved_bytes: i64,
    /// On some device the range ends above the memory there is.
    pub ends_above: bool,
}

impl LikelyRuns {
    /// Whether a likely run does not fit, or one may reserve more than there is.
    #[must_use]
    pub const fn may_not_fit(&self) -> bool {
        self.fit < self.of || self.ends_above
    }

    /// Those of an option; `None` if the timing of streams does not matter to it, or if the entries do not tell what is likely. `replays`
    /// are its programs, `recorded_limits` the limits under which they were recorded. What a run that died would have done next has no
    /// times, so nothing is said of it.
    pub(super) fn of(
        recordings: &[&DeviceRecording],
        recorded_limits: &[Option<u64>],
        replays: &[Replay<'_>],
        option: &AdvisedOption,
        asked: &AdviseOptions,
    ) -> Option<LikelyRuns> {
        if replays.iter().any(|replay| replay.program.died()) {
            return None;
        }
        let (mut fits, mut found) = ([true; LIKELY as usize], None::<(i64, i64, bool)>);
        let devices = recordings.iter().zip(recorded_limits).zip(replays.iter().zip(&option.devices));
        for ((recording, &limit_bytes), (replay, outcome)) in devices.filter(|(_, (replay, _))| replay.program.is_timed) {
            let available = outcome.available_bytes;
            let own = VerifyOptions { limit_bytes, ..asked.own.clone() };
            let (profile, settings) = (replay.profile, replay.settings.clone());
            let options = OutlookOptions { own, profile, settings, limit_bytes: available, capacity_bytes: None };
            let range = replay_device(recording, &options, &mut |_| ()).ok()?.timing;
            let Some(range) = range.filter(|range| range.is_likely) else { continue };
            fits.iter_mut().zip(replay.likely(available)).for_each(|(fit, fits)| *fit &= fits);
            let (least, most) = (range.least_peak_reserved_bytes, range.most_peak_reserved_bytes);
            let is_above = available.is_some_and(|available| u64::try_from(most).is_ok_and(|most| most > available));
            let before = found.unwrap_or((least, most, false));
            found = Some((before.0.max(least), before.1.max(most), before.2 || is_above));
        }
        let (least_peak_reserved_bytes, most_peak_reserved_bytes, ends_above) = found?;
        let (fit, of) = (fits.iter().filter(|fits| **fits).count(), fits.len());
        Some(LikelyRuns { fit, of, least_peak_reserved_bytes, most_peak_reserved_bytes, ends_above })
    }
}
