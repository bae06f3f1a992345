//! The self-check: replayed under its own settings, a recording must need as much memory as the recorded run did.
//!
//! A prediction can be trusted only if its method reproduces known results. The method is therefore also used to predict the
//! recorded run, under its own settings and in its own memory, and the check compares the two peaks of reserved bytes.

use parkade_recording::DeviceRecording;
use parkade_sim::address::LearnedAddressSpace;

use super::predicted_run::{AfterFailure, PredictOptions, Prediction, Timing, device_like, learned_addresses, predict};
use super::requests::Requests;
use crate::inputs::VerifyOptions;
use crate::recognition::{CapacityHint, capacity_hint, most_reserved};

/// The recorded run's peak of reserved bytes, as recorded and as predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SelfCheck {
    /// The predicted peak of reserved bytes, under the recorded run's own settings and in its own memory.
    pub own_settings_peak_bytes: i64,
    /// The recorded peak of reserved bytes.
    pub recorded_peak_bytes: i64,
}

impl SelfCheck {
    /// Returns whether the two peaks are equal.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.own_settings_peak_bytes == self.recorded_peak_bytes
    }

    /// Returns the percentage by which the prediction is too high; negative if it is too low.
    #[must_use]
    pub fn error_percent(&self) -> f64 {
        self.error_bytes() as f64 / self.recorded_peak_bytes.max(1) as f64 * 100.0
    }

    /// Returns the least accurate of several devices' checks, or the first if all of them are exact.
    #[must_use]
    pub fn worst(checks: impl IntoIterator<Item = SelfCheck>) -> Option<SelfCheck> {
        let further = |worst: SelfCheck, check: SelfCheck| {
            if check.error_bytes().unsigned_abs() > worst.error_bytes().unsigned_abs() { check } else { worst }
        };
        checks.into_iter().reduce(further)
    }

    /// Returns the number of bytes by which the prediction is too high; negative if it is too low.
    #[must_use]
    pub const fn error_bytes(&self) -> i64 {
        self.own_settings_peak_bytes.saturating_sub(self.recorded_peak_bytes)
    }

    /// Checks one device. `own` holds the settings and limit under which its requests were read. Returns `None` if these do
    /// not explain the recording and so are not the recorded run's, or if the recording's oldest entries are missing.
    #[must_use]
    pub fn of(recording: &DeviceRecording, own: &VerifyOptions, requests: &Requests) -> Option<SelfCheck> {
        SelfCheck::reusing(recording, own, requests, &learned_addresses(recording, requests), None)
    }

    /// Like [`SelfCheck::of`], but uses `plenty`, a run under the recorded run's own settings that never lacked memory,
    /// instead of repeating it.
    #[must_use]
    pub fn reusing(
        recording: &DeviceRecording,
        own: &VerifyOptions,
        requests: &Requests,
        learned: &LearnedAddressSpace,
        plenty: Option<&Prediction>,
    ) -> Option<SelfCheck> {
        if requests.lost_beginning.is_some() || requests.mismatches > 0 {
            return None;
        }
        let recorded_peak_bytes = requests.recorded_peak_reserved_bytes;
        let check = |own_settings_peak_bytes| SelfCheck { own_settings_peak_bytes, recorded_peak_bytes };
        let run = |limit_bytes| {
            let options = PredictOptions {
                profile: own.settings.profile,
                settings: own.settings.settings.clone(),
                limit_bytes,
                after_failure: AfterFailure::GoOn,
                timing: Timing::Recorded,
            };
            check(predict(requests, device_like(recording.device, learned, None), &options).peak_reserved_bytes())
        };
        if own.limit_bytes.is_some() {
            return Some(run(own.limit_bytes));
        }
        let Some(shown) = shown_memory(recording, own, requests) else {
            return Some(plenty.map_or_else(|| run(None), |plenty| check(plenty.peak_reserved_bytes())));
        };
        // Any of these may have been the limit, because the file does not distinguish them. If the run had that much reserved
        // at another time, there was no limit, and another process held memory for a while.
        let varied = most_reserved(recording) >= shown.refused_bytes;
        let limits = [shown.assumed_bytes(), shown.below_bytes.saturating_sub(1), shown.least_bytes].map(Some);
        let mut first = None;
        for limit in limits.into_iter().chain(varied.then_some(None)) {
            let found = run(limit);
            if found.holds() {
                return Some(found);
            }
            first = first.or(Some(found));
        }
        first
    }
}

/// Returns the facts that failures and retries reveal about the recorded run's memory, or `None` if there were none.
fn shown_memory(recording: &DeviceRecording, own: &VerifyOptions, requests: &Requests) -> Option<CapacityHint> {
    let failed = capacity_hint(recording, &own.settings);
    let retried = requests.flushes.iter().filter(|flush| flush.reason.is_retry()).min_by_key(|flush| flush.wanted_bytes);
    let Some(retried) = retried else { return failed };
    let least_bytes = failed.map_or_else(|| most_reserved(recording), |failed| failed.least_bytes);
    let below_bytes = failed.map_or(u64::MAX, |failed| failed.below_bytes).min(retried.wanted_bytes).max(least_bytes);
    let (entry, refused_bytes) =
        (retried.entry, failed.map_or(u64::MAX, |failed| failed.refused_bytes).min(retried.wanted_bytes));
    Some(CapacityHint { entry, least_bytes, below_bytes, refused_bytes, refused_entry: entry })
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Action, Block, BlockState, Entry, Segment, StackId};

    use super::*;
    use crate::exact::FlushReason;
    use crate::inputs::ReplaySettings;
    use crate::predict::Operation;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn entry(action: Action, gib: u64, mib: u64) -> Entry {
        Entry::new(action, gib * GIB, mib * MIB, 0)
    }

    /// Takes a segment of `mib` MiB at this address and allocates it.
    fn taken(gib: u64, mib: u64) -> [Entry; 2] {
        [entry(Action::SegmentAlloc, gib, mib), entry(Action::Alloc, gib, mib)]
    }

    fn freed(gib: u64, mib: u64) -> [Entry; 2] {
        [entry(Action::FreeRequested, gib, mib), entry(Action::FreeCompleted, gib, mib)]
    }

    /// Reserves 20 and 40 MiB, releases the 20 MiB, and then takes 22 MiB, which would not have fitted in addition to the 60
    /// MiB.
    fn flushed() -> Vec<Entry> {
        let flush = [entry(Action::SegmentFree, 1, 20)];
        [&taken(1, 20)[..], &taken(2, 40), &freed(1, 20), &flush, &taken(3, 22)].concat()
    }

    /// Returns a segment at the end that is entirely in use.
    fn segment(gib: u64, mib: u64, pool: u64) -> Segment {
        let (address, size) = (gib * GIB, mib * MIB);
        let block = Block { address, size, requested: Some(size), state: BlockState::ActiveAllocated, stack: StackId::NONE };
        Segment { pool: Some((0, pool)), ..Segment::new(vec![block]) }
    }

    fn read(trace: Vec<Entry>, segments: Vec<Segment>, limit_mib: Option<u64>) -> (DeviceRecording, VerifyOptions, Requests) {
        let recording = DeviceRecording { trace, segments, ..DeviceRecording::default() };
        let limit_bytes = limit_mib.map(|mib| mib * MIB);
        let own = VerifyOptions { settings: ReplaySettings::given("").unwrap(), limit_bytes, stats_file: None };
        let requests = Requests::of_recording(&recording, &own, &mut |_| ()).unwrap();
        assert_eq!(requests.mismatches, 0);
        (recording, own, requests)
    }

    fn reasons(requests: &Requests) -> Vec<FlushReason> {
        requests.flushes.iter().map(|flush| flush.reason).collect()
    }

    fn calls(requests: &Requests) -> usize {
        requests.operations.iter().filter(|(_, operation)| *operation == Operation::EmptyCache).count()
    }

    /// Returns the recorded peak, and the peak under the recording's own settings, in MiB.
    fn peaks(recording: &DeviceRecording, own: &VerifyOptions, requests: &Requests) -> (i64, i64) {
        let check = SelfCheck::of(recording, own, requests).unwrap();
        (check.recorded_peak_bytes / MIB as i64, check.own_settings_peak_bytes / MIB as i64)
    }

    #[test]
    fn a_flush_before_a_capture_is_a_call_of_the_program() {
        let trace = [flushed(), taken(4, 18).to_vec()].concat();
        let kept = |pool| vec![segment(2, 40, 0), segment(3, 22, 0), segment(4, 18, pool)];
        let (recording, own, requests) = read(trace.clone(), kept(1), None);
        assert_eq!((reasons(&requests), calls(&requests)), (vec![FlushReason::CaptureFollows], 1));
        assert_eq!(peaks(&recording, &own, &requests), (80, 80));
        // If the flush were read as a retry, it would not happen with plenty of memory.
        let otherwise = requests.read_otherwise(&recording).expect("another reading");
        assert_eq!(calls(&otherwise), 0);
        let (_, _, requests) = read(trace, kept(0), None);
        assert_eq!((reasons(&requests), calls(&requests)), (vec![FlushReason::NeverHadMore], 0), "no private pool, no capture");
    }

    #[test]
    fn a_flush_at_the_most_that_there_ever_was_is_a_retry_and_shows_the_limit() {
        let (recording, own, requests) = read(flushed(), vec![segment(2, 40, 0), segment(3, 22, 0)], None);
        assert_eq!((requests.flushes[0].wanted_bytes / MIB, requests.flushes[0].entry), (82, 8));
        assert_eq!((reasons(&requests), calls(&requests)), (vec![FlushReason::NeverHadMore], 0));
        assert_eq!(peaks(&recording, &own, &requests), (62, 62), "in plenty of memory it would be 82");
        assert_eq!(calls(&requests.read_otherwise(&recording).expect("another reading")), 1);
        let (recording, own, requests) = read(recording.trace, recording.segments, Some(70));
        assert_eq!((reasons(&requests), calls(&requests)), (vec![], 0), "the limit tells");
        assert_eq!(peaks(&recording, &own, &requests), (62, 62));
    }

    #[test]
    fn a_flush_far_below_the_peak_is_a_call_of_the_program() {
        let trace = [flushed(), taken(4, 200).to_vec()].concat();
        let kept = vec![segment(2, 40, 0), segment(3, 22, 0), segment(4, 200, 0)];
        let (recording, own, requests) = read(trace, kept, None);
        assert_eq!((reasons(&requests), calls(&requests)), (vec![], 1), "certain");
        assert_eq!(peaks(&recording, &own, &requests), (262, 262));
        assert!(requests.read_otherwise(&recording).is_none());
    }

    #[test]
    fn where_the_settings_do_not_explain_the_recording_nothing_is_checked() {
        let (recording, own, mut requests) = read(flushed(), vec![segment(2, 40, 0), segment(3, 22, 0)], None);
        requests.mismatches = 1;
        assert_eq!(SelfCheck::of(&recording, &own, &requests), None);
    }
}
