//! Tries one setting on one device's program: does it fit, at what price, and how much memory would it need?

use parkade_replay::Prediction;

use super::capacity::Capacities;
use super::replay::Replay;

/// The outcome for one device.
#[derive(Clone, Debug)]
pub struct DeviceOutcome {
    /// The device's number.
    pub device: u32,
    /// The bytes that may be reserved, if known or assumed.
    pub available_bytes: Option<u64>,
    /// The bytes that may be reserved for certain: the least that was possible.
    pub sure_bytes: Option<u64>,
    /// The run in the memory there is, or in unlimited memory if that is unknown.
    pub prediction: Prediction,
    /// The entry of the first request that failed and was served in the recording, or ended it. Others the program survived.
    pub fails_anew_at: Option<usize>,
    /// Whether every recorded request was served, that of which the program died included. What fails then is estimated.
    pub gets_past: bool,
    /// Some requests failed, but the program may do without them: in the recording it did, or they are freed at once, as a library's
    /// workspace is.
    pub may_survive: bool,
    /// The recorded run was within this memory and every request was served, whatever a replay says.
    pub as_recorded: bool,
    /// The smallest memory found in which every request is served; see
    /// [`AdvisedOption::smallest_capacity_bytes`](super::AdvisedOption::smallest_capacity_bytes).
    pub smallest_bytes: u64,
}

impl DeviceOutcome {
    /// The recorded run failed at this entry under these settings and in no less memory, so it does not get past it.
    pub(super) fn fail_at(&mut self, entry: usize) {
        self.prediction.first_failure = Some(self.fails_anew_at.map_or(entry, |fails| fails.min(entry)));
        self.prediction.stats.num_ooms = self.prediction.stats.num_ooms.max(1);
        (self.gets_past, self.may_survive) = (false, false);
    }

    /// The recorded run was within so much memory and served every request, as its prediction says by now.
    pub(super) fn fits_as_recorded(&mut self, available_bytes: u64) {
        (self.gets_past, self.may_survive, self.as_recorded) = (true, false, true);
        self.smallest_bytes = self.smallest_bytes.min(available_bytes);
    }

    /// The recorded entry whose request failed first. `None` too if only what is estimated of the rest fails.
    #[must_use]
    pub fn fails_at_entry(&self) -> Option<usize> {
        self.prediction.first_failure.filter(|_| !self.gets_past)
    }

    /// The memory that is still unreserved at the peak. If a request fails, what is missing to serve every request, as a negative number;
    /// positive only if more memory is not always better.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<i64> {
        let available = i64::try_from(self.available_bytes?).unwrap_or(i64::MAX);
        Some(if self.fits() {
            available.saturating_sub(self.prediction.peak_reserved_bytes())
        } else {
            available.saturating_sub_unsigned(self.smallest_bytes)
        })
    }

    /// Whether more is reserved than there is.
    pub(super) fn reaches_beyond(&self) -> bool {
        let reserved = u64::try_from(self.prediction.peak_reserved_bytes()).unwrap_or(0);
        self.available_bytes.is_some_and(|available| reserved > available)
    }

    /// Whether every request was served.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.prediction.first_failure.is_none()
    }
}

/// Runs the replay in `available_bytes` of memory (unlimited if `None`) and searches the smallest memory in which it fits.
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

/// The smallest memory found in which every recorded request is served, that of which the program died included.
pub(super) fn enough_bytes(replay: &Replay<'_>) -> u64 {
    let recorded = replay.program.recorded();
    Capacities::find(&Replay { program: &recorded, ..*replay }).smallest()
}

#[cfg(test)]
mod tests {
    use parkade::profile::Profile;
    use parkade::settings::Settings;
    use parkade_replay::AfterFailure;

    use super::*;
    use crate::advise::program::Program;
    use crate::advise::sample_programs::{MIB, allocate, cut, free, program};

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
