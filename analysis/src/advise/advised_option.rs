//! One setting and its outcome on every device: whether the program fits, at what cost, and the smallest memory in which it
//! fits.
//!
//! Where frees wait for other streams, [`LikelyRuns`] holds the likely range of peaks, which `parkade replay` also shows, and
//! the number of likely runs that fit.
//!
//! [`Capacities`] finds the smallest memory without replaying the entire program for every size. Under a limit, a run makes the
//! same decisions as the unlimited run until it first asks the device for memory beyond the limit (or, with
//! `garbage_collection_threshold`, beyond that fraction of the limit). The unlimited run is therefore made once, and every trial
//! continues a copy of it that was taken just before the trials begin to differ.
//!
//! A limit decides only whether the device refuses memory and, with `garbage_collection_threshold`, whether garbage is
//! collected first. Runs under two limits are therefore identical until the smaller limit refuses memory that the larger one
//! allows, or triggers a garbage collection. A trial ends at its first failure. After that, only larger sizes are tried, and
//! those trials continue a copy of the failed run from before that point ([`Trial`]).
//!
//! A trial at the size found served every request, and a trial that was smaller by at most the search precision failed. More
//! memory is not always better: a larger size may fail again.

use parkade::policy::{Policy, PyTorch};
use parkade::settings::Settings;
use parkade::units::Bytes;
use parkade_recording::DeviceRecording;
use parkade_replay::{AfterFailure, LIKELY, Operation, OutlookOptions, PredictedRun, Prediction, VerifyOptions, replay_device};

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
    /// The features of the program that these settings may break.
    pub cautions: Vec<Caution>,
    /// The bytes that may be reserved under these settings, if known or assumed; the smallest of all devices.
    pub available_bytes: Option<u64>,
    /// Each device's outcome.
    pub devices: Vec<DeviceOutcome>,
    /// The outcome of the likely runs, if stream timing matters. Present only for the recorded run's own settings and the
    /// best options.
    pub likely: Option<LikelyRuns>,
    /// The cut runs that are similar, if the program died, the option gets past the failure, and the available memory is
    /// known or assumed.
    pub completes: Option<CompletedRuns>,
}

impl AdvisedOption {
    /// Returns whether every request of every device is served.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.devices.iter().all(DeviceOutcome::fits)
    }

    /// Returns whether every recorded request of every device is served, including the request that a program died on. If a
    /// program died, [`fits`](Self::fits) also requires that the estimated rest of the program is served.
    #[must_use]
    pub fn gets_past(&self) -> bool {
        self.devices.iter().all(|device| device.gets_past)
    }

    /// Returns the recorded entry of the first request that runs out of memory, on the first device where one does.
    #[must_use]
    pub fn fails_at_entry(&self) -> Option<usize> {
        self.devices.iter().find_map(DeviceOutcome::fails_at_entry)
    }

    /// Returns the number of requests that run out of memory.
    #[must_use]
    pub fn ooms(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.stats.num_ooms).sum()
    }

    /// Returns whether the option does not fit, but every request that fails is one that a library can do without.
    #[must_use]
    pub fn may_survive(&self) -> bool {
        !self.fits() && self.devices.iter().all(|device| device.fits() || device.may_survive)
    }

    /// Returns the peak of reserved bytes, on the device where it is highest.
    #[must_use]
    pub fn peak_reserved_bytes(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.peak_reserved_bytes()).max().unwrap_or(0)
    }

    /// Returns the smallest memory found in which every request of every device is served. A run in this size succeeded, and
    /// a run at most 0.1 % or 2 MiB below it failed. If the available memory was too small, larger sizes were searched; if
    /// not, smaller ones.
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        self.devices.iter().map(|device| self.smallest_capacity_bytes_of(device)).max().unwrap_or(0)
    }

    /// Returns the same for one of the program's devices.
    #[must_use]
    pub fn smallest_capacity_bytes_of(&self, device: &DeviceOutcome) -> u64 {
        let (smallest, fraction) = (device.smallest_bytes, self.settings.per_process_memory_fraction);
        if fraction > 0.0 && fraction < 1.0 { (smallest as f64 / fraction).ceil() as u64 } else { smallest }
    }

    /// Returns the device that decides how much memory is needed: the one with the least to spare or, if the available memory
    /// is unknown, the one that needs the most.
    #[must_use]
    pub fn tightest(&self) -> Option<&DeviceOutcome> {
        let spare = |device: &&DeviceOutcome| i128::from(device.available_bytes.unwrap_or(0)) - i128::from(device.smallest_bytes);
        self.devices.iter().min_by_key(spare)
    }

    /// Returns the number of times that the entire cache was released because memory was short (`num_alloc_retries`).
    #[must_use]
    pub fn retries(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.stats.num_alloc_retries).sum()
    }

    /// Returns the number of driver calls that allocate, map, unmap or free memory.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.devices.iter().map(|device| device.prediction.driver_calls).sum()
    }

    /// Returns the cost of these driver calls on the measured device, in microseconds.
    #[must_use]
    pub fn driver_us(&self) -> u64 {
        self.devices.iter().map(|device| device.prediction.driver_ns / 1000).sum()
    }

    /// Returns the memory that is still unreserved at the peak, on the device that has the least of it. If requests fail,
    /// this is the missing memory, as a negative number. Returns `None` if the available memory is unknown, or if the option
    /// fails although the memory is at least the smallest that was found to be enough.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<i64> {
        let headrooms = self.devices.iter().filter(|device| self.fits() || !device.fits()).map(DeviceOutcome::headroom_bytes);
        headrooms.min().flatten().filter(|&headroom| self.fits() || headroom < 0)
    }

    /// Returns whether more memory is reserved than is available. The last page of an expandable segment may exceed a limit;
    /// nothing can exceed a device's memory.
    #[must_use]
    pub fn reaches_beyond(&self) -> bool {
        self.devices.iter().any(DeviceOutcome::reaches_beyond)
    }

    /// Returns whether 1 % more or less memory, or likely stream timing, could change the answer.
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

    /// Returns the number of searched keys that these settings set.
    #[must_use]
    pub fn keys(&self) -> usize {
        keys(&self.settings)
    }

    /// Returns whether some of these settings work only under a memory limit.
    #[must_use]
    pub fn needs_limit(&self) -> bool {
        self.settings.garbage_collection_threshold > 0.0
    }

    /// Returns the cautions about something that the recording shows in use.
    pub fn warnings(&self) -> impl Iterator<Item = &Caution> {
        self.cautions.iter().filter(|caution| caution.needs_warning())
    }

    /// Returns whether there are any [`warnings`](Self::warnings).
    #[must_use]
    pub fn has_warnings(&self) -> bool {
        self.warnings().next().is_some()
    }

    /// Returns the sort key that puts the most useful options first: those that fit, have no warnings, need the least memory,
    /// and set the fewest keys.
    pub(super) fn rank(&self) -> (bool, bool, u64, usize, u64) {
        (!self.fits(), self.has_warnings(), self.smallest_capacity_bytes(), self.keys(), self.driver_us())
    }
}

/// Returns the number of searched keys that are set.
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
    /// Returns whether some likely run does not fit, or may reserve more than the available memory.
    #[must_use]
    pub const fn may_not_fit(&self) -> bool {
        self.fit < self.of || self.ends_above
    }

    /// Returns the likely runs of an option, or `None` if stream timing does not matter to it, or if the entries do not show
    /// which runs are likely. `replays` are its programs, and `recorded_limits` are the limits under which they were
    /// recorded. The estimated rest of a run that died has no times, so these runs leave it out.
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

    /// Returns the recorded entry of the first request that failed. Also `None` if only requests of the estimated rest fail.
    #[must_use]
    pub fn fails_at_entry(&self) -> Option<usize> {
        self.prediction.first_failure.filter(|_| !self.gets_past)
    }

    /// Returns the memory that is still unreserved at the peak. If a request fails, returns the additional bytes needed
    /// to serve every request, as a negative number; the result is then positive only if more memory makes a run fail.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<i64> {
        let available = i64::try_from(self.available_bytes?).unwrap_or(i64::MAX);
        Some(if self.fits() {
            available.saturating_sub(self.prediction.peak_reserved_bytes())
        } else {
            available.saturating_sub_unsigned(self.smallest_bytes)
        })
    }

    /// Returns whether more memory is reserved than is available.
    fn reaches_beyond(&self) -> bool {
        let reserved = u64::try_from(self.prediction.peak_reserved_bytes()).unwrap_or(0);
        self.available_bytes.is_some_and(|available| reserved > available)
    }

    /// Returns whether every request was served.
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

/// Returns the smallest memory found in which every recorded request is served, including the one that the program died on.
pub(super) fn enough_bytes(replay: &Replay<'_>) -> u64 {
    let recorded = replay.program.recorded();
    Capacities::find(&Replay { program: &recorded, ..*replay }).smallest()
}

/// Sizes are found to within one part in this many, or to within [`PRECISION_BYTES`] if that is more.
const PRECISION: u64 = 1000;
/// The search is never more precise than this many bytes, the size of a driver page.
const PRECISION_BYTES: u64 = 2 << 20;
/// A limit that no run reaches. It is set because, without a limit, the allocator neither collects garbage nor ages blocks.
const NEVER_REACHED: u64 = 1 << 60;

/// One program under one setting, tried in various amounts of memory.
struct Capacities<'r, 'a> {
    replay: &'r Replay<'a>,
    policy: PyTorch,
    unlimited: Prediction,
    /// The peak of reserved bytes if the device had granted everything that the unlimited run asked for.
    most_asked: u64,
    /// The common beginning of the runs under all limits between `low` and `high`; `None` if they never differ.
    base: Option<PredictedRun<'a>>,
    /// The largest size known to be too small.
    low: u64,
    /// The smallest size known to be enough.
    high: u64,
}

impl<'r, 'a> Capacities<'r, 'a> {
    /// Makes the unlimited run.
    fn find(replay: &'r Replay<'a>) -> Capacities<'r, 'a> {
        let policy = PyTorch::of(replay.profile, replay.settings.clone());
        let collects = replay.settings.garbage_collection_threshold > 0.0;
        let mut run = replay.run(collects.then_some(NEVER_REACHED), AfterFailure::GoOn);
        let live_bytes = replay.program.live.bytes;
        let (unlimited, low) = (run.prediction(), live_bytes.saturating_sub(1));
        let mut found = Capacities { replay, policy, unlimited, most_asked: 0, base: None, low, high: 0 };
        let same_until = found.same_until(live_bytes);
        loop {
            if found.base.is_none() && found.may_ask_for(run.reserved_bytes(), run.next_operation()) > same_until {
                found.base = Some(run.clone());
            }
            found.most_asked = found.asked(&mut run).max(found.most_asked);
            if run.next_operation().is_none() {
                break;
            }
        }
        (found.unlimited, found.high) = (run.prediction(), found.most_asked);
        found
    }

    /// Returns the outcome in unlimited memory.
    fn unlimited(&self) -> Prediction {
        self.unlimited.clone()
    }

    /// Runs the entire program within `available_bytes`. Returns the outcome and the operations that ran out of memory.
    fn within(&mut self, available_bytes: u64) -> (Prediction, Vec<usize>) {
        if self.most_asked <= self.same_until(available_bytes) {
            return (self.unlimited(), Vec::new());
        }
        let run = match &self.base {
            Some(base) if available_bytes > self.low => base.clone(),
            _ => self.replay.run(None, AfterFailure::GoOn),
        };
        let mut trial = Trial::new(run, available_bytes);
        let (mut failed, mut ooms) = (Vec::new(), trial.run.stats().num_ooms);
        while trial.run.next_operation().is_some() {
            trial.step(self);
            if trial.run.stats().num_ooms > ooms {
                ooms = trial.run.stats().num_ooms;
                failed.push(trial.run.done() - 1);
            }
        }
        let prediction = trial.run.prediction();
        self.note(available_bytes, trial);
        (prediction, failed)
    }

    /// Returns the smallest memory in which the program fits.
    fn smallest(mut self) -> u64 {
        let (most_asked, threshold) = (self.high, self.threshold());
        if threshold < 1.0 && most_asked > self.low && !self.fits(most_asked) {
            // With this much memory the program never asks for more than the threshold, so no garbage is collected.
            self.high = (most_asked as f64 / threshold).ceil() as u64;
        }
        while self.high.saturating_sub(self.low) > PRECISION_BYTES.max(self.high / PRECISION) {
            // This is below the middle, because a failing trial ends early and a successful one runs to the end.
            self.fits(self.low + (self.high - self.low) / 3);
        }
        // The last page of an expandable segment may exceed a limit, but the live bytes are always needed.
        self.high.max(self.replay.program.live.bytes)
    }

    /// Tries a size and records the outcome.
    fn fits(&mut self, bytes: u64) -> bool {
        let Some(base) = &self.base else { return true };
        let mut trial = Trial::new(base.clone(), bytes);
        while trial.run.first_failure().is_none() && trial.run.next_operation().is_some() {
            trial.step(self);
        }
        self.note(bytes, trial)
    }

    /// Records the outcome of a trial within `bytes`: whether it fits.
    fn note(&mut self, bytes: u64, trial: Trial<'a>) -> bool {
        let fits = trial.run.first_failure().is_none();
        if fits {
            self.note_enough(bytes, trial.asked);
        } else if bytes > self.low {
            (self.low, self.base) = (bytes, Some(trial.shared));
        }
        fits
    }

    /// Records that a run within `bytes` succeeded and never asked for more than `asked`. Within `asked`, the run would have
    /// been the same, except under a threshold, which depends on the limit.
    fn note_enough(&mut self, bytes: u64, asked: u64) {
        // This lowers `low` only if the recording contradicts itself.
        self.low = self.low.min(bytes.saturating_sub(1));
        let same = if self.threshold() < 1.0 { bytes } else { asked.clamp(self.low + 1, bytes.max(self.low + 1)) };
        self.high = self.high.min(same);
    }

    /// Carries out the next operation. Returns the bytes that would be reserved if the device had granted the request; 0 if the
    /// operation asked for none.
    fn asked(&self, run: &mut PredictedRun<'a>) -> u64 {
        let (before, operation) = (run.reserved_bytes(), run.next_operation());
        let segments = run.stats().num_device_alloc;
        run.step();
        let after = run.reserved_bytes();
        if self.replay.settings.expandable_segments {
            // The limit check counts an entire segment, although fewer pages, or one page more, may be mapped.
            if after > before { self.may_ask_for(before, operation) } else { 0 }
        } else if run.stats().num_device_alloc > segments {
            after
        } else {
            0
        }
    }

    /// Returns the bytes that would be reserved if this operation asked the device for memory.
    fn may_ask_for(&self, reserved_bytes: u64, operation: Option<Operation>) -> u64 {
        let Some(Operation::Allocate { bytes, .. }) = operation else { return 0 };
        let segment = self.policy.round(Bytes(bytes)).and_then(|size| self.policy.segment_for(size));
        reserved_bytes.saturating_add(segment.map_or(u64::MAX, Bytes::get))
    }

    /// Returns whether an operation that the device first refused may proceed differently under a larger limit that is still
    /// to be tried. `before_bytes` is the amount reserved before the operation.
    fn depends_on_limit(&self, before_bytes: u64, operation: Option<Operation>) -> bool {
        // The allocator releases oversize blocks and garbage in portions and asks the device again after each portion.
        let in_portions = self.threshold() < 1.0 || self.replay.settings.max_split_bytes < u64::MAX;
        in_portions || self.may_ask_for(before_bytes, operation) < self.high
    }

    fn threshold(&self) -> f64 {
        let threshold = self.replay.settings.garbage_collection_threshold;
        if threshold > 0.0 { threshold } else { 1.0 }
    }

    /// Returns the number of bytes up to which the run under this limit makes the same decisions as the unlimited run.
    fn same_until(&self, limit_bytes: u64) -> u64 {
        if self.threshold() < 1.0 { (self.threshold() * limit_bytes as f64) as u64 } else { limit_bytes }
    }
}

/// A copy is taken after at least this many operations (after every one in tests, whose programs are short).
const OPERATIONS_A_COPY: usize = if cfg!(test) { 1 } else { 1 << 13 };
/// A copy is taken after at least this many operations per block in it, so that copying takes only a small part of the time.
const OPERATIONS_A_BLOCK: usize = if cfg!(test) { 0 } else { 16 };

/// A run within a limit.
struct Trial<'a> {
    run: PredictedRun<'a>,
    /// The largest number of bytes reserved after a request that the device granted.
    asked: u64,
    /// The run's state at an earlier operation, up to which runs under larger limits are the same.
    shared: PredictedRun<'a>,
    /// Whether this run is still the same as those under larger limits.
    is_shared: bool,
}

impl<'a> Trial<'a> {
    /// Continues a run within `limit_bytes`.
    fn new(mut run: PredictedRun<'a>, limit_bytes: u64) -> Trial<'a> {
        run.set_limit(Some(limit_bytes));
        Trial { shared: run.clone(), run, asked: 0, is_shared: true }
    }

    /// Carries out the next operation.
    fn step(&mut self, capacities: &Capacities<'_, 'a>) {
        if !self.is_shared {
            self.asked = capacities.asked(&mut self.run).max(self.asked);
            return;
        }
        if self.run.done() - self.shared.done() >= OPERATIONS_A_COPY.max(self.run.most_live() * OPERATIONS_A_BLOCK) {
            self.shared = self.run.clone();
        }
        let (before_bytes, operation) = (self.run.reserved_bytes(), self.run.next_operation());
        let (relieved, ooms) = (relieved(&self.run), self.run.stats().num_ooms);
        self.asked = capacities.asked(&mut self.run).max(self.asked);
        let is_refused = matches!(operation, Some(Operation::Allocate { .. })) && self::relieved(&self.run) != relieved;
        self.is_shared =
            self.run.stats().num_ooms == ooms && !(is_refused && capacities.depends_on_limit(before_bytes, operation));
    }
}

/// Returns two counters that grow when the device refuses a request, or when memory is released before a request.
fn relieved(run: &PredictedRun<'_>) -> (i64, i64) {
    (run.stats().num_alloc_retries, run.stats().num_device_free)
}

#[cfg(test)]
mod tests {
    use parkade::profile::Profile;
    use parkade::settings::Settings;
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

    /// Returns a program whose sizes and lifetimes have no pattern.
    fn mixed(seed: u64) -> Program {
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let (mut operations, mut live) = (Vec::new(), Vec::new());
        for id in 0..80 {
            while live.len() > 12 || (!live.is_empty() && below(3) == 0) {
                operations.push(free(live.swap_remove(below(live.len() as u64) as usize)));
            }
            operations.push(allocate(id, 1 + below(60)));
            live.push(id);
        }
        program(&operations)
    }

    #[test]
    fn a_trial_that_continues_another_ends_as_one_from_the_beginning() {
        let texts = [
            "",
            "expandable_segments:True",
            "max_split_size_mb:32",
            "garbage_collection_threshold:0.6",
            "max_split_size_mb:32,garbage_collection_threshold:0.8",
        ];
        let (mut fit, mut failed, mut continued) = (0, 0, 0);
        for seed in 0..24 {
            let program = mixed(seed);
            for text in texts {
                let settings = Settings::from_environment(text).unwrap();
                let replay = Replay { program: &program, profile: &Profile::PYTORCH_2_11, settings: &settings };
                let mut capacities = Capacities::find(&replay);
                let first = capacities.base.as_ref().map_or(0, PredictedRun::done);
                // Sizes change in small steps, approached from both sides, so that trials have long common beginnings.
                while capacities.high > capacities.low + MIB {
                    let bytes = capacities.low + ((capacities.high - capacities.low) / 5).max(MIB);
                    let mut alone = replay.run(Some(bytes), AfterFailure::Stop);
                    while alone.step() {}
                    let fits = capacities.fits(bytes);
                    assert_eq!(fits, alone.first_failure().is_none(), "seed {seed}, {text:?}, {bytes} bytes");
                    *if fits { &mut fit } else { &mut failed } += 1;
                }
                continued += usize::from(capacities.base.as_ref().is_some_and(|base| base.done() > first));
            }
        }
        assert!(fit > 100 && failed > 100 && continued > 50, "{fit} {failed} {continued}");
    }
}
