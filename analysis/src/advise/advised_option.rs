//! One setting and its outcome on every device: whether the program fits, at what cost, and how much memory it would need.
//!
//! Where frees wait for other streams, [`LikelyRuns`] holds the likely range of peaks, which `parkade replay` also shows, and
//! the number of likely runs that fit.

use parkade::settings::Settings;
use parkade_recording::DeviceRecording;
use parkade_replay::{LIKELY, OutlookOptions, Prediction, VerifyOptions, replay_device};

use super::capacity::Capacities;
use super::completion::CompletedRuns;
use super::memory::AdviseOptions;
use super::program::Replay;
use crate::caution::Caution;

/// One setting and its outcome.
#[derive(Clone, Debug)]
pub struct AdvisedOption {
    /// The settings.
    pub settings: Settings,
    /// Whether these are the recorded run's own settings.
    pub is_own: bool,
    /// Whether the caller asked for them.
    pub is_given: bool,
    /// What these settings may break in the program.
    pub cautions: Vec<Caution>,
    /// The bytes that may be reserved under these settings, if known or assumed; the smallest of all devices.
    pub available_bytes: Option<u64>,
    /// Each device's outcome.
    pub devices: Vec<DeviceOutcome>,
    /// How the likely runs turn out, if stream timing matters. Present only for the recorded run's own settings and the best
    /// options.
    pub likely: Option<LikelyRuns>,
    /// Similar cut runs, if the program died, the option gets past the failure, and the available memory is known or assumed.
    pub completes: Option<CompletedRuns>,
}

impl AdvisedOption {
    /// Whether every request of every device is served.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.devices.iter().all(DeviceOutcome::fits)
    }

    /// Whether every recorded request of every device is served, including the request that a program died on. If a program
    /// died, [`fits`](Self::fits) also requires that the estimated rest of the program is served.
    #[must_use]
    pub fn gets_past(&self) -> bool {
        self.devices.iter().all(|device| device.gets_past)
    }

    /// The recorded entry of the first request that runs out of memory, on the first device where one does.
    #[must_use]
    pub fn fails_at_entry(&self) -> Option<usize> {
        self.devices.iter().find_map(DeviceOutcome::fails_at_entry)
    }

    /// The number of requests that run out of memory.
    #[must_use]
    pub fn ooms(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.stats.num_ooms).sum()
    }

    /// Whether the option does not fit, but the only requests that fail are ones that a library can do without.
    #[must_use]
    pub fn may_survive(&self) -> bool {
        !self.fits() && self.devices.iter().all(|device| device.fits() || device.may_survive)
    }

    /// The peak of reserved bytes, on the device where it is highest.
    #[must_use]
    pub fn peak_reserved_bytes(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.peak_reserved_bytes()).max().unwrap_or(0)
    }

    /// The smallest memory found in which every request of every device is served. A run in this size succeeded, and a run at
    /// most 0.1 % or 2 MiB below it failed. If the available memory was too small, larger sizes were searched; if not,
    /// smaller ones.
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        self.devices.iter().map(|device| self.smallest_capacity_bytes_of(device)).max().unwrap_or(0)
    }

    /// The same for one of the program's devices.
    #[must_use]
    pub fn smallest_capacity_bytes_of(&self, device: &DeviceOutcome) -> u64 {
        let (smallest, fraction) = (device.smallest_bytes, self.settings.per_process_memory_fraction);
        if fraction > 0.0 && fraction < 1.0 { (smallest as f64 / fraction).ceil() as u64 } else { smallest }
    }

    /// The device that decides how much memory is needed: the one with the least to spare or, if the available memory is
    /// unknown, the one that needs the most.
    #[must_use]
    pub fn tightest(&self) -> Option<&DeviceOutcome> {
        let spare = |device: &&DeviceOutcome| i128::from(device.available_bytes.unwrap_or(0)) - i128::from(device.smallest_bytes);
        self.devices.iter().min_by_key(spare)
    }

    /// The number of times that the entire cache was released because memory was short (`num_alloc_retries`).
    #[must_use]
    pub fn retries(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.stats.num_alloc_retries).sum()
    }

    /// The number of driver calls that allocate, map, unmap or free memory.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.devices.iter().map(|device| device.prediction.driver_calls).sum()
    }

    /// The cost of these driver calls on the measured device, in microseconds.
    #[must_use]
    pub fn driver_us(&self) -> u64 {
        self.devices.iter().map(|device| device.prediction.driver_ns / 1000).sum()
    }

    /// The memory that is still unreserved at the peak, on the device with the least. If requests fail, this is the missing
    /// memory, as a negative number. `None` if the available memory is unknown, or if the option fails although the memory is
    /// at least the smallest that was found to be enough.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<i64> {
        let headrooms = self.devices.iter().filter(|device| self.fits() || !device.fits()).map(DeviceOutcome::headroom_bytes);
        headrooms.min().flatten().filter(|&headroom| self.fits() || headroom < 0)
    }

    /// Whether more memory is reserved than is available. The last page of an expandable segment may exceed a limit; nothing
    /// can exceed a device's memory.
    #[must_use]
    pub fn reaches_beyond(&self) -> bool {
        self.devices.iter().any(DeviceOutcome::reaches_beyond)
    }

    /// Whether 1 % more or less memory, or likely stream timing, could change the answer.
    #[must_use]
    pub fn is_close(&self) -> bool {
        let is_near = |device: &DeviceOutcome| {
            device.available_bytes.is_some_and(|available| available.abs_diff(device.smallest_bytes) < available / 100)
        };
        let decides = |device: &&DeviceOutcome| self.fits() || !device.fits();
        let depends = self.likely.is_some_and(|likely| likely.may_not_fit());
        (self.fits() && (self.reaches_beyond() || depends)) || self.devices.iter().filter(decides).any(is_near)
    }

    /// Whether, on some device, the recorded run had these settings and stayed within this memory even though the replay
    /// predicts that it would not.
    #[must_use]
    pub fn is_as_recorded(&self) -> bool {
        self.devices.iter().any(|device| device.as_recorded)
    }

    /// The number of searched keys that these settings set.
    #[must_use]
    pub fn keys(&self) -> usize {
        keys(&self.settings)
    }

    /// Whether some of these settings work only under a memory limit.
    #[must_use]
    pub fn needs_limit(&self) -> bool {
        self.settings.garbage_collection_threshold > 0.0
    }

    /// The cautions about something that the recording shows in use.
    pub fn warnings(&self) -> impl Iterator<Item = &Caution> {
        self.cautions.iter().filter(|caution| caution.needs_warning())
    }

    /// Whether there are any [`warnings`](Self::warnings).
    #[must_use]
    pub fn has_warnings(&self) -> bool {
        self.warnings().next().is_some()
    }

    /// The sort key that puts the most useful options first: those that fit, have no warnings, need the least memory, and set
    /// the fewest keys.
    pub(super) fn rank(&self) -> (bool, bool, u64, usize, u64) {
        (!self.fits(), self.has_warnings(), self.smallest_capacity_bytes(), self.keys(), self.driver_us())
    }
}

/// The number of searched keys that are set.
fn keys(settings: &Settings) -> usize {
    let unset = Settings::default();
    usize::from(settings.expandable_segments)
        + usize::from(settings.max_split_bytes != unset.max_split_bytes)
        + usize::from(settings.garbage_collection_threshold > 0.0)
        + usize::from(settings.roundup_power2_divisions != unset.roundup_power2_divisions)
}

/// The likely runs of an option, as inferred from the times of the entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LikelyRuns {
    /// The number of these runs in which every request of every device is served.
    pub fit: usize,
    /// The number of runs made.
    pub of: usize,
    /// The device with the highest likely peak.
    pub device: u32,
    /// The lowest likely peak of reserved bytes on that device.
    pub least_peak_reserved_bytes: i64,
    /// The highest likely peak on that device.
    pub most_peak_reserved_bytes: i64,
    /// Whether the range ends above the available memory on some device.
    pub ends_above: bool,
}

impl LikelyRuns {
    /// Whether some likely run does not fit, or may reserve more than the available memory.
    #[must_use]
    pub const fn may_not_fit(&self) -> bool {
        self.fit < self.of || self.ends_above
    }

    /// The likely runs of an option; `None` if stream timing does not matter to it, or if the entries do not show which runs
    /// are likely. `replays` are its programs, `recorded_limits` the limits under which they were recorded. The estimated
    /// rest of a run that died has no times, so these runs leave it out.
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
        let (mut fits, mut found, mut ends_above) = ([true; LIKELY as usize], None::<(u32, i64, i64)>, false);
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
            ends_above |= available.is_some_and(|available| u64::try_from(most).is_ok_and(|most| most > available));
            found = found.filter(|&(_, _, before)| before >= most).or(Some((outcome.device, least, most)));
        }
        let (device, least_peak_reserved_bytes, most_peak_reserved_bytes) = found?;
        let (fit, of) = (fits.iter().filter(|fits| **fits).count(), fits.len());
        Some(LikelyRuns { fit, of, device, least_peak_reserved_bytes, most_peak_reserved_bytes, ends_above })
    }
}

/// The outcome for one device.
#[derive(Clone, Debug)]
pub struct DeviceOutcome {
    /// The device's number.
    pub device: u32,
    /// The bytes that may be reserved, if known or assumed.
    pub available_bytes: Option<u64>,
    /// The bytes that may certainly be reserved: the lowest possible limit.
    pub sure_bytes: Option<u64>,
    /// The run in the available memory, or in unlimited memory if the available memory is unknown.
    pub prediction: Prediction,
    /// The entry of the first request that failed here although the recording served it or ended with it. Requests whose
    /// failure the program survived do not count.
    pub fails_anew_at: Option<usize>,
    /// Whether every recorded request was served, including the one that the program died on. If so, any failure is in the
    /// estimated rest.
    pub gets_past: bool,
    /// Whether some requests failed that the program may do without: it did without them in the recording, or their blocks
    /// are freed immediately, like a library's workspace.
    pub may_survive: bool,
    /// Whether the recorded run stayed within this memory and served every request, regardless of what the replay predicts.
    pub as_recorded: bool,
    /// The smallest memory found in which every request is served; see
    /// [`AdvisedOption::smallest_capacity_bytes`].
    pub smallest_bytes: u64,
}

impl DeviceOutcome {
    /// Records that the run failed at this entry under these settings with at least this much memory, so this option does not
    /// get past the entry.
    pub(super) fn fail_at(&mut self, entry: usize) {
        self.prediction.first_failure = Some(self.fails_anew_at.map_or(entry, |fails| fails.min(entry)));
        self.prediction.stats.num_ooms = self.prediction.stats.num_ooms.max(1);
        (self.gets_past, self.may_survive) = (false, false);
    }

    /// Records that the run stayed within this much memory and served every request; the prediction is changed to agree.
    pub(super) fn fits_as_recorded(&mut self, available_bytes: u64) {
        (self.gets_past, self.may_survive, self.as_recorded) = (true, false, true);
        self.smallest_bytes = self.smallest_bytes.min(available_bytes);
    }

    /// The recorded entry of the first request that failed. Also `None` if only requests of the estimated rest fail.
    #[must_use]
    pub fn fails_at_entry(&self) -> Option<usize> {
        self.prediction.first_failure.filter(|_| !self.gets_past)
    }

    /// The memory that is still unreserved at the peak. If a request fails, the additional bytes needed to serve every
    /// request, as a negative number; then it is positive only where more memory makes a run fail.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<i64> {
        let available = i64::try_from(self.available_bytes?).unwrap_or(i64::MAX);
        Some(if self.fits() {
            available.saturating_sub(self.prediction.peak_reserved_bytes())
        } else {
            available.saturating_sub_unsigned(self.smallest_bytes)
        })
    }

    /// Whether more memory is reserved than is available.
    fn reaches_beyond(&self) -> bool {
        let reserved = u64::try_from(self.prediction.peak_reserved_bytes()).unwrap_or(0);
        self.available_bytes.is_some_and(|available| reserved > available)
    }

    /// Whether every request was served.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.prediction.first_failure.is_none()
    }
}

/// Runs the replay in `available_bytes` of memory (unlimited if `None`) and searches for the smallest memory in which it fits.
pub(super) fn evaluate(replay: &Replay<'_>, available_bytes: Option<u64>) -> DeviceOutcome {
    let mut capacities = Capacities::find(replay);
    let (prediction, failed) = match available_bytes {
        Some(available) => capacities.within(available),
        None => (capacities.unlimited(), Vec::new()),
    };
    let may_survive = !failed.is_empty() && failed.iter().all(|&operation| replay.program.is_workspace(operation));
    let fails_anew_at = failed.iter().find_map(|&operation| replay.program.fails_anew(operation));
    let gets_past = prediction.first_failure.is_none_or(|entry| !replay.program.is_recorded(entry));
    DeviceOutcome {
        device: replay.program.device,
        available_bytes,
        sure_bytes: available_bytes,
        fails_anew_at,
        gets_past,
        prediction,
        may_survive,
        as_recorded: false,
        smallest_bytes: capacities.smallest(),
    }
}

/// The smallest memory found in which every recorded request is served, including the one that the program died on.
pub(super) fn enough_bytes(replay: &Replay<'_>) -> u64 {
    let recorded = replay.program.recorded();
    Capacities::find(&Replay { program: &recorded, ..*replay }).smallest()
}

#[cfg(test)]
mod tests {
    use parkade::profile::Profile;
    use parkade_replay::AfterFailure;

    use super::*;
    use crate::advise::program::Program;
    use crate::advise::program::sample_programs::{MIB, allocate, cut, free, program};

    fn outcome(program: &Program, text: &str, available_mib: Option<u64>) -> DeviceOutcome {
        let settings = Settings::from_environment(text).unwrap();
        let replay = Replay { program, profile: &Profile::PYTORCH_2_11, settings: &settings };
        evaluate(&replay, available_mib.map(|mib| mib * MIB))
    }

    #[test]
    fn the_program_fits_in_the_smallest_memory_and_not_in_less() {
        let program = cut();
        for text in ["", "expandable_segments:True", "max_split_size_mb:32", "garbage_collection_threshold:0.5"] {
            let smallest = outcome(&program, text, None).smallest_bytes;
            let fits = |bytes: u64| {
                let settings = Settings::from_environment(text).unwrap();
                let replay = Replay { program: &program, profile: &Profile::PYTORCH_2_11, settings: &settings };
                let mut run = replay.run(Some(bytes), AfterFailure::Stop);
                while run.step() {}
                run.first_failure().is_none()
            };
            assert!(fits(smallest), "{text} in {smallest}");
            assert!(!fits(smallest - 3 * MIB), "{text} in less than {smallest}");
        }
    }

    #[test]
    fn what_happens_in_the_memory_there_is() {
        let program = cut();
        let plain = outcome(&program, "", Some(200));
        assert_eq!((plain.fits(), plain.prediction.first_failure), (false, Some(4)));
        assert!(plain.smallest_bytes > 200 * MIB, "more than the size that failed");
        let roomy = outcome(&program, "", Some(300));
        assert_eq!((roomy.fits(), roomy.prediction.peak_reserved_bytes()), (true, 220 * MIB as i64));
        assert_eq!(outcome(&program, "", Some(50)).prediction.first_failure, Some(0), "less than is live");
    }

    #[test]
    fn a_recorded_failure_stands_whatever_a_replay_says() {
        let program = cut();
        let mut roomy = outcome(&program, "", Some(300));
        assert!(roomy.fits() && roomy.gets_past);
        roomy.fail_at(2);
        assert_eq!((roomy.fits(), roomy.gets_past, roomy.fails_at_entry(), roomy.may_survive), (false, false, Some(2), false));
        let mut early = outcome(&program, "", Some(50));
        early.fail_at(2);
        assert_eq!(early.fails_at_entry(), Some(0), "it fails earlier in less memory");
    }

    #[test]
    fn a_recorded_run_that_fitted_stands_whatever_a_replay_says() {
        let program = cut();
        let roomy = outcome(&program, "", Some(300));
        let mut tight = outcome(&program, "", Some(200));
        assert!(!tight.fits() && tight.headroom_bytes().is_some_and(|headroom| headroom < 0), "{tight:?}");
        tight.prediction = roomy.prediction;
        tight.fits_as_recorded(200 * MIB);
        assert_eq!((tight.fits(), tight.gets_past, tight.as_recorded, tight.smallest_bytes), (true, true, true, 200 * MIB));
    }

    #[test]
    fn a_program_may_survive_the_failure_of_a_workspace() {
        let program = program(&[allocate(0, 100), allocate(1, 60), free(1), free(0)]);
        assert!(outcome(&program, "", Some(120)).may_survive);
        assert!(!outcome(&program, "", Some(80)).may_survive);
        assert!(!outcome(&program, "", None).may_survive);
    }
}
