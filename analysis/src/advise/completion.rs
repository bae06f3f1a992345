//! Estimates the chance that settings or a policy will let a program that died finish, from the share of similar runs that
//! they completed.
//!
//! The file does not contain what a program would have requested after it died. Complete recordings were therefore cut where
//! a tighter limit kills the run, `advise` was run on the part before the cut, and each recommendation was tried on the
//! entire recording ([`TABLE`]; docs/predictions.md lists the recordings). Two runs count as similar if their steps are
//! equally well known, if the memory that the recommendation needs beyond the program's tensors is about the same, and if the
//! estimated rest is served in both or in neither. The memory needed beyond the tensors matters most: a program that died has
//! little more memory than its tensors take, and its rest may need even more.

use crate::continuation::Continuation;

/// Runs that were cut, and how many of them were completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletedRuns {
    /// The number of runs completed.
    pub completed: u32,
    /// The number of runs.
    pub runs: u32,
}

impl CompletedRuns {
    /// Returns the chance that one more run would complete, by the rule of succession, which never yields certainty.
    #[must_use]
    pub fn probability(self) -> f64 {
        f64::from(self.completed + 1) / f64::from(self.runs + 2)
    }

    /// Returns the runs of the device where the smallest share was completed. Returns `None` if there are none, or if one
    /// device has none.
    #[must_use]
    pub fn least(of_devices: impl IntoIterator<Item = Option<CompletedRuns>>) -> Option<CompletedRuns> {
        let all: Option<Vec<CompletedRuns>> = of_devices.into_iter().collect();
        all?.into_iter().min_by(|one, other| one.probability().total_cmp(&other.probability()))
    }

    fn and(self, other: CompletedRuns) -> CompletedRuns {
        CompletedRuns { completed: self.completed + other.completed, runs: self.runs + other.runs }
    }
}

/// The facts known about the steps of a program that died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownSteps {
    /// The program had not reached that point before it died there.
    None,
    /// Fewer than four steps came before.
    Few,
    /// Each of the most recent steps needed more memory than the one before.
    Growing,
    /// Four or more steps came before.
    Several,
}

impl KnownSteps {
    /// All variants.
    pub const ALL: [KnownSteps; 4] = [KnownSteps::None, KnownSteps::Few, KnownSteps::Growing, KnownSteps::Several];

    fn of(continuation: Option<&Continuation>) -> KnownSteps {
        match continuation {
            None => KnownSteps::None,
            Some(continuation) if continuation.grows() => KnownSteps::Growing,
            Some(continuation) if continuation.has_few_steps() => KnownSteps::Few,
            Some(_) => KnownSteps::Several,
        }
    }
}

/// Upper ends of the bands of memory needed beyond the tensors, in thousandths of the tensors' size; the last band has no end.
const BANDS: [u64; 4] = [10, 20, 40, 80];
/// If there are at least this many similar runs, only those are counted.
const ENOUGH: u32 = 10;

/// The settings or changes that are tried on a program that died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Means {
    /// Settings for PyTorch's allocator.
    Settings,
    /// A parkade policy in place of PyTorch's allocator.
    Policy,
}

/// The properties by which runs that died are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunLike {
    /// The settings or changes that are tried on the run.
    pub means: Means,
    /// The facts known about its steps.
    pub steps: KnownSteps,
    /// The band, from 0, of the memory needed beyond the tensors: less than 1, 2, 4 or 8 % of the tensors' size, or more.
    pub band: usize,
    /// The outcome for its estimated rest.
    pub rest: Rest,
}

/// The outcome for the estimated rest of a program that died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// The rest is served.
    Served,
    /// The rest is not served, although its tensors would fit.
    Short,
    /// The tensors of the rest exceed the available memory.
    Exceeds,
}

impl RunLike {
    /// The number of bands.
    pub const BANDS: usize = BANDS.len() + 1;

    /// Describes a run whose known peak of live bytes before it died is `live_bytes`. The means need `needed_bytes` for the
    /// run and its estimated rest; `available_bytes` are available.
    #[must_use]
    pub fn of(
        means: Means,
        continuation: Option<&Continuation>,
        live_bytes: u64,
        (needed_bytes, available_bytes): (u64, u64),
    ) -> RunLike {
        let live_bytes = continuation.map_or(live_bytes, |rest| live_bytes.max(rest.largest_peak_bytes()));
        let beyond = u128::from(needed_bytes.saturating_sub(live_bytes)) * 1000;
        let band = BANDS.iter().filter(|&&end| beyond >= u128::from(end) * u128::from(live_bytes)).count();
        let rest = match needed_bytes <= available_bytes {
            true => Rest::Served,
            false if live_bytes <= available_bytes => Rest::Short,
            false => Rest::Exceeds,
        };
        RunLike { means, steps: KnownSteps::of(continuation), band, rest }
    }

    /// Returns the cut runs that are similar to this one. If there are few of them, runs whose steps are known better or less
    /// well are included; if there are still too few, runs that need more or less memory are included too.
    #[must_use]
    pub fn runs(self) -> CompletedRuns {
        self.runs_of(|RunLike { means, steps, band, rest }| TABLE[means as usize][rest as usize][steps as usize][band])
    }

    /// Returns the same, from a different table. `count` returns the runs with given properties.
    #[must_use]
    pub fn runs_of(self, count: impl Fn(RunLike) -> CompletedRuns) -> CompletedRuns {
        let alone = count(self);
        if alone.runs >= ENOUGH {
            return alone;
        }
        let of_steps = |band| KnownSteps::ALL.map(|steps| count(RunLike { steps, band, ..self }));
        let of_band = of_steps(self.band).into_iter().fold(NO_RUNS, CompletedRuns::and);
        if of_band.runs >= ENOUGH { of_band } else { (0..RunLike::BANDS).flat_map(of_steps).fold(NO_RUNS, CompletedRuns::and) }
    }
}

const NO_RUNS: CompletedRuns = CompletedRuns { completed: 0, runs: 0 };

const fn of(completed: u32, runs: u32) -> CompletedRuns {
    CompletedRuns { completed, runs }
}

/// Completed and cut runs by [`Means`], [`Rest`], [`KnownSteps`] and band. The settings are the recommended ones, and the
/// policy is `compaction`; `pytorch-rescue` completed the same of the runs from the recordings in this repository. Each is
/// counted for the runs whose failure it gets past. Printed by
/// `benches/examples/cut_runs.rs`.
const TABLE: [[[[CompletedRuns; RunLike::BANDS]; KnownSteps::ALL.len()]; 3]; 2] = [
    [
        [
            [of(32, 34), of(64, 81), of(32, 51), of(17, 50), of(6, 15)],
            [of(9, 10), of(50, 53), of(50, 57), of(43, 64), of(11, 17)],
            [of(7, 7), of(21, 23), of(30, 35), of(27, 42), of(4, 6)],
            [of(13, 13), of(36, 36), of(23, 26), of(46, 50), of(7, 7)],
        ],
        [
            [of(0, 0), of(0, 0), of(0, 0), of(0, 0), of(0, 0)],
            [of(0, 0), of(0, 0), of(1, 3), of(0, 9), of(5, 10)],
            [of(0, 0), of(0, 0), of(0, 2), of(2, 13), of(2, 5)],
            [of(0, 0), of(0, 0), of(0, 1), of(1, 13), of(1, 8)],
        ],
        [
            [of(0, 0), of(0, 0), of(0, 0), of(0, 0), of(0, 0)],
            [of(0, 4), of(0, 13), of(0, 14), of(0, 17), of(3, 8)],
            [of(0, 6), of(0, 8), of(0, 7), of(0, 10), of(0, 1)],
            [of(0, 6), of(0, 14), of(0, 5), of(0, 6), of(0, 0)],
        ],
    ],
    [
        [
            [of(127, 128), of(72, 74), of(34, 47), of(5, 8), of(0, 0)],
            [of(70, 72), of(68, 69), of(71, 75), of(11, 15), of(0, 0)],
            [of(36, 37), of(54, 55), of(35, 37), of(3, 3), of(2, 2)],
            [of(53, 53), of(50, 50), of(44, 49), of(6, 6), of(0, 0)],
        ],
        [
            [of(0, 0), of(0, 0), of(0, 0), of(0, 0), of(0, 0)],
            [of(0, 0), of(0, 0), of(2, 4), of(3, 3), of(2, 2)],
            [of(0, 0), of(0, 0), of(1, 1), of(0, 0), of(2, 2)],
            [of(0, 0), of(0, 0), of(1, 3), of(0, 2), of(0, 0)],
        ],
        [
            [of(0, 0), of(0, 0), of(0, 0), of(0, 0), of(0, 0)],
            [of(0, 34), of(0, 12), of(1, 20), of(3, 7), of(2, 4)],
            [of(0, 17), of(0, 13), of(0, 6), of(0, 0), of(0, 0)],
            [of(0, 26), of(0, 11), of(0, 1), of(0, 0), of(0, 0)],
        ],
    ],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_end_where_they_say() {
        let band = |needed| RunLike::of(Means::Settings, None, 1000, (needed, 2000)).band;
        assert_eq!([1000, 1009, 1010, 1020, 1040, 1079, 1080, 9000].map(band), [0, 0, 1, 2, 3, 3, 4, 4]);
        assert_eq!(RunLike::of(Means::Policy, None, 0, (0, 0)).band, BANDS.len(), "a run that holds nothing divides by nothing");
    }

    #[test]
    fn what_needs_less_beyond_the_tensors_completes_more_runs() {
        for steps in KnownSteps::ALL {
            let like = |band| RunLike { means: Means::Settings, steps, band, rest: Rest::Served };
            let (least, most) = (like(0).runs().probability(), like(BANDS.len()).runs().probability());
            assert!(least > most, "{steps:?}: {least} and {most}");
        }
    }

    #[test]
    fn every_run_is_like_some_and_none_is_certain() {
        let bands = || (0..RunLike::BANDS).flat_map(|band| [Rest::Served, Rest::Short, Rest::Exceeds].map(|rest| (band, rest)));
        for (means, steps) in
            [Means::Settings, Means::Policy].into_iter().flat_map(|means| KnownSteps::ALL.map(|steps| (means, steps)))
        {
            for (band, rest) in bands() {
                let runs = RunLike { means, steps, band, rest }.runs();
                assert!(runs.completed <= runs.runs && runs.runs >= ENOUGH, "{means:?} {steps:?} {band} {rest:?}: {runs:?}");
                assert!(runs.probability() > 0.0 && runs.probability() < 1.0, "{means:?} {steps:?} {band}");
            }
        }
    }
}
