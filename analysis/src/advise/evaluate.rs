//! One device's program under one setting: does it fit, at what price, and in how much memory?

use parkade::profile::Profile;
use parkade::settings::Settings;

use super::capacity::Capacities;
use super::program::Program;
use parkade_replay::{AfterFailure, TIMINGS};
use parkade_replay::{PredictOptions, PredictedRun, Prediction, Timing, device_like, predict};

/// The memory that the allocator may reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// The device's memory, without what the driver needs itself.
    pub capacity_bytes: Option<u64>,
    /// The memory limit.
    pub limit_bytes: Option<u64>,
}

impl Space {
    /// The bytes that may be reserved under these settings, which may take a part of the device only.
    #[must_use]
    pub fn bytes(&self, profile: &Profile, settings: &Settings) -> Option<u64> {
        let fraction = settings.per_process_memory_fraction;
        let part = |capacity| if fraction < 1.0 { profile.limit_rounding.limit(fraction, capacity) } else { capacity };
        match (self.capacity_bytes.map(part), self.limit_bytes) {
            (Some(capacity), Some(limit)) => Some(capacity.min(limit)),
            (one, other) => one.or(other),
        }
    }
}

/// What would come of one device's program.
#[derive(Clone, Debug)]
pub struct DeviceOutcome {
    /// The device's number.
    pub device: u32,
    /// The run in the memory that there is, or in unlimited memory.
    pub prediction: Prediction,
    /// Every request that failed was one that is given back at once, as a library's workspace is: the program may go on with less.
    pub may_survive: bool,
    /// The least memory found in which every request is served; see [`smallest`](super::AdvisedOption::smallest_capacity_bytes).
    pub smallest_bytes: u64,
}

impl DeviceOutcome {
    /// No request is out of memory.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.prediction.first_failure.is_none()
    }
}

/// How to replay a program.
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

    /// The beginning of a run on a device with more memory than any.
    pub(super) fn run(&self, limit_bytes: Option<u64>, after_failure: AfterFailure) -> PredictedRun<'a> {
        let device = device_like(self.program.device, &self.program.learned, None);
        PredictedRun::new(&self.program.requests, device, &self.options(limit_bytes, after_failure, Timing::Recorded), ())
    }

    /// Whether every request is served, for each of the readings of when other streams are done.
    pub(super) fn timings(&self, limit_bytes: Option<u64>) -> [(bool, i64); TIMINGS.len()] {
        TIMINGS.map(|timing| {
            let device = device_like(self.program.device, &self.program.learned, None);
            let options = self.options(limit_bytes, AfterFailure::GoOn, timing);
            let prediction = predict(&self.program.requests, device, &options);
            (prediction.first_failure.is_none(), prediction.peak_reserved_bytes())
        })
    }

    /// Evaluates the settings with `available` bytes of memory, or any amount.
    pub(super) fn evaluate(&self, available_bytes: Option<u64>) -> DeviceOutcome {
        let mut capacities = Capacities::find(self);
        let (prediction, failed) = match available_bytes {
            Some(available) => capacities.within(available),
            None => (capacities.unlimited(), Vec::new()),
        };
        let may_survive = !failed.is_empty() && failed.iter().all(|&operation| self.program.is_workspace(operation));
        DeviceOutcome { device: self.program.device, prediction, may_survive, smallest_bytes: capacities.smallest() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use parkade::units::PoolId;

    use super::*;
    use parkade_recording::DeviceRecording;
    use parkade_replay::{Completion, Operation, Requests};
    use parkade_sim::address::LearnedAddressSpace;

    const MIB: u64 = 1 << 20;

    pub(in crate::advise) fn allocate(id: usize, mib: u64) -> Operation {
        Operation::Allocate { id, bytes: mib * MIB, stream: 0, pool: PoolId::DEFAULT, failed: false }
    }

    pub(in crate::advise) fn free(id: usize) -> Operation {
        Operation::Free { id, completion: Completion::AtOnce }
    }

    pub(in crate::advise) fn program(operations: &[Operation]) -> Program {
        let requests = Requests { operations: operations.iter().copied().enumerate().collect(), ..Requests::default() };
        Program::of_requests(requests, LearnedAddressSpace::default(), &DeviceRecording::default())
    }

    /// 100 MiB are cut for 60, so that the next 60 need a segment of their own; the 90 too.
    pub(in crate::advise) fn cut() -> Program {
        program(&[allocate(0, 100), free(0), allocate(1, 60), allocate(2, 60), allocate(3, 60), free(3), allocate(4, 20)])
    }

    fn outcome(program: &Program, text: &str, available_mib: Option<u64>) -> DeviceOutcome {
        let settings = Settings::from_environment(text).unwrap();
        let replay = Replay { program, profile: &Profile::PYTORCH_2_11, settings: &settings };
        replay.evaluate(available_mib.map(|mib| mib * MIB))
    }

    #[test]
    fn the_smallest_memory_is_one_that_suffices() {
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
    fn what_happens_in_the_memory_that_there_is() {
        let program = cut();
        let plain = outcome(&program, "", Some(200));
        assert_eq!((plain.fits(), plain.prediction.first_failure), (false, Some(4)));
        assert!(plain.smallest_bytes > 200 * MIB, "more than what does not suffice");
        let roomy = outcome(&program, "", Some(300));
        assert_eq!((roomy.fits(), roomy.prediction.peak_reserved_bytes()), (true, 220 * MIB as i64));
        assert_eq!(outcome(&program, "", Some(50)).prediction.first_failure, Some(0), "less than what is live");
    }

    #[test]
    fn a_workspace_that_fails_may_be_done_without() {
        let program = program(&[allocate(0, 100), allocate(1, 60), free(1), free(0)]);
        assert!(outcome(&program, "", Some(120)).may_survive);
        assert!(!outcome(&program, "", Some(80)).may_survive);
        assert!(!outcome(&program, "", None).may_survive);
    }

    #[test]
    fn a_fraction_is_a_part_of_the_device() {
        let space = Space { capacity_bytes: Some(1000 * MIB), limit_bytes: Some(900 * MIB) };
        let bytes = |text: &str| space.bytes(&Profile::PYTORCH_2_11, &Settings::from_environment(text).unwrap());
        assert_eq!([bytes(""), bytes("per_process_memory_fraction:0.5")], [Some(900 * MIB), Some(500 * MIB)]);
    }
}
