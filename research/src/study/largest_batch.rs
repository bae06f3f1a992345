//! The largest batch with which a transformer can be trained, by policy and device.
//!
//! A [`Grid`] is every combination of its lists; [`Grid::walk`] returns a [`Point`] for each. Each point also has a
//! [`Bound`]: the largest batch whose live bytes fit on the device, which no policy can exceed. Every run uses a new
//! simulated device, and nothing depends on a clock: the same grid produces the same points on any number of threads.
//!
//! The search first finds the largest batch whose load fits, by doubling from the smallest batch and then by bisection. The
//! policy is then tried at that batch; if it fails, a threshold is found below it by bisection. Fitting need not be monotone:
//! a policy may serve a larger batch and refuse a smaller one. Further batches are therefore tried between the threshold and
//! the load's limit, or all of them if there are few (`capacity`). The result is the largest of the batches tried that fits;
//! with one more sample, the batch does not fit. Each micro-batch, and each of its pieces, needs a sample, so smaller batches
//! are not tried.
//!
//! A [`Card`] has the total that a CUDA program sees, which differs from what its name suggests. A card sold with 80 GB has
//! neither 80 x 10^9 bytes nor 80 GiB for a program. The deducted memory (for error correction and the driver) varies between
//! drivers by up to half a percent.

use std::borrow::Cow;
use std::collections::BTreeMap;

use parkade_policies::Named;
use rayon::prelude::*;

use super::capacity::{Trials, smallest};
use super::{Ending, Outcome, RunOptions, make_for, run};
use crate::bounds::BLOCK_BYTES;
use crate::workload::generators::WorkloadError;
use crate::workload::generators::transformer::{Precision, Transformer};
use crate::workload::{Event, Workload};

/// A card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Card {
    /// Its name, which includes the memory that it is sold with.
    pub name: &'static str,
    /// The total that `cudaMemGetInfo` and `cudaGetDeviceProperties` report, in bytes.
    pub total_bytes: u64,
    /// The source of the number.
    pub source: &'static str,
}

/// The cards with 40, 80 and 141 GB.
pub static CARDS: [Card; 3] = [
    Card {
        name: "A100-40GB",
        total_bytes: 42_298_834_944,
        source: "deviceQuery's output in bottlerocket#3873; up to 40,536 MiB with other drivers",
    },
    Card { name: "H100-80GB", total_bytes: 81_082 << 20, source: "PyTorch's device properties in reports, 81,082 to 81,090 MiB" },
    Card { name: "H200-141GB", total_bytes: 150_109_880_320, source: "measured" },
];

/// Returns the card with this name, in upper or lower case.
#[must_use]
pub fn card(name: &str) -> Option<&'static Card> {
    CARDS.iter().find(|card| card.name.eq_ignore_ascii_case(name))
}

/// A transformer, how it is trained, and for how long. The search varies its batch.
#[derive(Clone, PartialEq, Debug)]
pub struct Training {
    /// Its name.
    pub name: String,
    /// The model; its batch is replaced.
    pub transformer: Transformer,
    /// The number of training steps. The second step is the first that starts with the optimizer's states.
    pub steps: u64,
}

impl Training {
    /// Returns the model with this batch.
    #[must_use]
    pub fn with_batch(&self, batch: u64) -> Transformer {
        Transformer { batch, ..self.transformer.clone() }
    }

    /// Returns the smallest batch: each piece of a micro-batch needs a sample.
    #[must_use]
    pub fn least_batch(&self) -> u64 {
        self.transformer.accumulation.saturating_mul(self.transformer.chunks).max(1)
    }

    /// Returns the bytes of the parameters.
    #[must_use]
    pub fn parameter_bytes(&self) -> u64 {
        self.transformer.parameters().saturating_mul(self.transformer.precision.bytes())
    }

    /// Returns the bytes of parameters, gradients and the optimizer's states together, including the second copy: the memory
    /// that training needs with any batch.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        let states = self.transformer.optimizer.states() as u64;
        let element = self.transformer.precision.bytes();
        let each = if self.transformer.master_copy && self.transformer.precision == Precision::Half {
            2 * element + 4 * (1 + states)
        } else {
            element * (2 + states)
        };
        self.transformer.parameters().saturating_mul(each)
    }
}

/// A training run on a device: everything that defines a point except the policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The training.
    pub training: Training,
    /// The device's memory, in bytes.
    pub device_bytes: u64,
    /// The device's memory without the driver's context, in bytes.
    pub usable_bytes: u64,
}

/// The limit for a case, whatever the policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Bound {
    /// The largest batch whose load fits; 0 if none does.
    pub batch: u64,
    /// The load of that batch, in bytes; if none fits, the load of the smallest batch.
    pub load_bytes: u64,
}

/// The result for a case under a policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// The training, and the device.
    pub case: Case,
    /// The policy's name.
    pub policy: Cow<'static, str>,
    /// The largest batch found to fit; 0 if none does.
    pub batch: u64,
    /// The most bytes reserved with this batch; 0 if there is none.
    pub reserved_bytes: u64,
    /// The load of this batch, with each request rounded up to 512 bytes; 0 if there is none.
    pub load_bytes: u64,
    /// The largest smaller batch that was tried and does not fit, if any, because fitting is not monotone.
    pub fails_below_batch: Option<u64>,
    /// The limit that the load sets for any policy.
    pub bound: Bound,
    /// The reason why the next batch does not fit.
    pub why: Why,
    /// The number of runs that the search took.
    pub runs: u32,
}

/// The reason why a batch does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// Parameters, gradients and the optimizer's states alone do not fit.
    States {
        /// The bytes of all of them.
        state_bytes: u64,
    },
    /// More bytes are live at once than the device has, so no policy can serve the batch.
    Load {
        /// The batch.
        batch: u64,
        /// Its load, in bytes.
        load_bytes: u64,
    },
    /// The live bytes would fit, but the policy strands too much memory.
    Stranded {
        /// The batch.
        batch: u64,
        /// The size of the refused request, in bytes.
        asked_bytes: u64,
        /// The live bytes at that moment, in blocks of 512 bytes, without the refused request.
        live_bytes: u64,
        /// The most bytes reserved.
        reserved_bytes: u64,
    },
    /// The policy or the device failed for a different reason.
    Fault {
        /// The batch.
        batch: u64,
        /// The reason, in one line.
        reason: String,
    },
    /// Larger batches were not tried.
    NotTried,
}

/// The memory that the driver's context takes from a device before a program allocates anything: about 500 MiB (facts: Memory
/// of the device).
pub const CONTEXT_BYTES: u64 = 500 << 20;

/// The maximum number of points in a grid.
pub const MOST_POINTS: usize = 100_000;

/// The largest batch that a grid may search.
pub const MOST_BATCH: u64 = 1 << 20;

/// Lists of values; every combination is searched.
#[derive(Clone, Debug)]
pub struct Grid {
    /// The trainings.
    pub trainings: Vec<Training>,
    /// The memory of each device, in bytes.
    pub devices_bytes: Vec<u64>,
    /// The memory that the driver's context takes on each device, in bytes.
    pub context_bytes: u64,
    /// The policies.
    pub policies: Vec<Named>,
    /// The largest batch that is tried.
    pub most_batch: u64,
}

/// The reason why a grid cannot be searched.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum GridError {
    /// A model cannot be trained in this way.
    #[error("{training}: {error}")]
    Workload {
        /// The training's name.
        training: String,
        /// The reason.
        error: WorkloadError,
    },
    /// A list is empty.
    #[error("there is nothing to search: no {list}")]
    Empty {
        /// The list.
        list: &'static str,
    },
    /// There are more points than [`MOST_POINTS`].
    #[error("{points} combinations exceed the maximum of {MOST_POINTS}: use shorter lists")]
    TooMany {
        /// The number of points.
        points: usize,
    },
    /// The driver's context takes all of a device's memory.
    #[error("a device with {device_bytes} bytes has no memory left after a context of {context_bytes} bytes")]
    NoMemory {
        /// The device's memory, in bytes.
        device_bytes: u64,
        /// The context's memory, in bytes.
        context_bytes: u64,
    },
    /// The largest batch is beyond [`MOST_BATCH`], or smaller than the smallest batch that can be trained.
    #[error(
        "batches up to {most_batch} cannot be searched: choose at most {MOST_BATCH}, and at least one sample for each piece of each micro-batch"
    )]
    Batch {
        /// The largest batch to try.
        most_batch: u64,
    },
}

impl Grid {
    /// Searches every combination, in parallel, and returns the points in list order, with policies last. `progress` is
    /// called after each point, from any thread.
    ///
    /// # Errors
    /// Returns [`GridError`], before anything is searched.
    pub fn walk(&self, progress: &(dyn Fn() + Sync)) -> Result<Vec<Point>, GridError> {
        let cases = self.cases()?;
        let of_case = |case: &Case| {
            let bound = bound(case, self.most_batch);
            let points = self.policies.par_iter().map(|policy| {
                let point = point(case, policy, &bound, self.most_batch);
                progress();
                point
            });
            points.collect::<Vec<_>>()
        };
        Ok(cases.par_iter().map(of_case).collect::<Vec<_>>().concat())
    }

    /// Returns the number of points.
    #[must_use]
    pub fn points(&self) -> usize {
        [self.trainings.len(), self.devices_bytes.len(), self.policies.len()].into_iter().fold(1, usize::saturating_mul)
    }

    fn check(&self) -> Result<(), GridError> {
        let lists =
            [("trainings", self.trainings.len()), ("devices", self.devices_bytes.len()), ("policies", self.policies.len())];
        if let Some(&(list, _)) = lists.iter().find(|(_, length)| *length == 0) {
            return Err(GridError::Empty { list });
        }
        let points = self.points();
        if points > MOST_POINTS {
            return Err(GridError::TooMany { points });
        }
        let least = self.trainings.iter().map(Training::least_batch).max().unwrap_or(1);
        if self.most_batch > MOST_BATCH || self.most_batch < least {
            return Err(GridError::Batch { most_batch: self.most_batch });
        }
        let context_bytes = self.context_bytes;
        match self.devices_bytes.iter().find(|&&device_bytes| device_bytes <= context_bytes) {
            Some(&device_bytes) => Err(GridError::NoMemory { device_bytes, context_bytes }),
            None => Ok(()),
        }
    }

    fn cases(&self) -> Result<Vec<Case>, GridError> {
        self.check()?;
        let mut cases = Vec::new();
        for training in &self.trainings {
            // Whether the workload can be generated does not depend on the device.
            let smallest = training.with_batch(training.least_batch()).workload(training.steps);
            smallest.map_err(|error| GridError::Workload { training: training.name.clone(), error })?;
            cases.extend(self.devices_bytes.iter().map(|&device_bytes| Case {
                training: training.clone(),
                device_bytes,
                usable_bytes: device_bytes - self.context_bytes,
            }));
        }
        Ok(cases)
    }
}

/// Batches tried above the first threshold, not counting the bisections there.
const FURTHER_RUNS: usize = 16;

/// Returns the largest batch, up to `most_batch`, whose load fits on the case's device.
#[must_use]
fn bound(case: &Case, most_batch: u64) -> Bound {
    let least = case.training.least_batch();
    // A batch that cannot be generated is too large for any device. The smallest batch has already been generated.
    let load = |batch| {
        case.training
            .with_batch(batch)
            .workload(case.training.steps)
            .map_or(u64::MAX, |workload| workload.load_bytes(BLOCK_BYTES))
    };
    let fits = |load_bytes: u64| load_bytes <= case.usable_bytes;
    let smallest = load(least);
    if !fits(smallest) {
        return Bound { batch: 0, load_bytes: smallest };
    }
    let mut best = Bound { batch: least, load_bytes: smallest };
    let mut beyond = most_batch + 1;
    while best.batch + 1 < beyond {
        let doubled = best.batch.saturating_mul(2);
        let batch = if beyond > most_batch && doubled < beyond { doubled } else { best.batch + (beyond - best.batch) / 2 };
        let load_bytes = load(batch);
        if fits(load_bytes) {
            best = Bound { batch, load_bytes };
        } else {
            beyond = batch;
        }
    }
    best
}

/// Returns the largest batch that fits under a policy.
fn point(case: &Case, policy: &Named, bound: &Bound, most_batch: u64) -> Point {
    let mut point = Point {
        case: case.clone(),
        policy: policy.name.clone(),
        batch: 0,
        reserved_bytes: 0,
        load_bytes: 0,
        fails_below_batch: None,
        bound: bound.clone(),
        why: Why::NotTried,
        runs: 0,
    };
    let least = case.training.least_batch();
    if bound.batch == 0 {
        let (state_bytes, load_bytes) = (case.training.state_bytes(), bound.load_bytes);
        let is_states = state_bytes > case.usable_bytes;
        point.why = if is_states { Why::States { state_bytes } } else { Why::Load { batch: least, load_bytes } };
        return point;
    }
    let mut search = Search { most: bound.batch, attempt: &|batch| attempt(case, policy, batch), tried: BTreeMap::new() };
    let batch = search.largest(least);
    if let Some(Ok(Fits { reserved_bytes, load_bytes })) = search.tried.get(&batch) {
        (point.batch, point.reserved_bytes, point.load_bytes) = (batch, *reserved_bytes, *load_bytes);
    }
    point.fails_below_batch = search.fails_below(batch);
    if batch < most_batch {
        point.why = search.run(batch + 1).err().unwrap_or(Why::NotTried);
    }
    point.runs = search.tried.len() as u32;
    point
}

/// The memory that a fitting batch needs.
#[derive(Clone)]
struct Fits {
    reserved_bytes: u64,
    load_bytes: u64,
}

struct Search<'a> {
    /// The largest batch that can fit.
    most: u64,
    /// Runs a batch: returns what it needs, or why it does not fit.
    attempt: &'a dyn Fn(u64) -> Result<Fits, Why>,
    /// The result of each batch tried.
    tried: BTreeMap<u64, Result<Fits, Why>>,
}

/// Numbers count the samples by which a batch is smaller than the largest.
impl Trials for Search<'_> {
    fn is_enough(&mut self, skipped: u64) -> bool {
        self.run(self.most - skipped).is_ok()
    }

    fn tried(&self) -> usize {
        self.tried.len()
    }
}

impl Search<'_> {
    /// Returns the largest batch found to fit; `least - 1` if none does. `least` is the smallest that may be tried.
    fn largest(&mut self, least: u64) -> u64 {
        // A batch below the smallest counts as fitting.
        let nothing = self.most + 1 - least;
        let skipped = if self.is_enough(0) { 0 } else { smallest(self, nothing, FURTHER_RUNS) };
        self.most - skipped
    }

    /// Returns the largest batch below this one that was tried and does not fit.
    fn fails_below(&self, batch: u64) -> Option<u64> {
        self.tried.range(..batch).rev().find(|(_, result)| result.is_err()).map(|(batch, _)| *batch)
    }

    /// Returns the result of a batch, which is tried only once.
    fn run(&mut self, batch: u64) -> Result<Fits, Why> {
        let attempt = self.attempt;
        self.tried.entry(batch).or_insert_with(|| attempt(batch)).clone()
    }
}

fn attempt(case: &Case, policy: &Named, batch: u64) -> Result<Fits, Why> {
    let Ok(workload) = case.training.with_batch(batch).workload(case.training.steps) else {
        return Err(Why::Load { batch, load_bytes: u64::MAX });
    };
    let load_bytes = workload.load_bytes(BLOCK_BYTES);
    if load_bytes > case.usable_bytes {
        return Err(Why::Load { batch, load_bytes });
    }
    let outcome = run(&workload, make_for(policy, &workload)(), &RunOptions::new(case.usable_bytes));
    match &outcome.ending {
        Ending::Fits => Ok(Fits { reserved_bytes: outcome.peak_reserved_bytes, load_bytes }),
        Ending::Fault(reason) => Err(Why::Fault { batch, reason: reason.clone() }),
        Ending::OutOfMemory => Err(stranded(&workload, batch, &outcome)),
    }
}

/// Returns the reason why a batch whose load fits was refused.
fn stranded(workload: &Workload, batch: u64, outcome: &Outcome) -> Why {
    let failed = outcome.failed_at_event.unwrap_or(0);
    let asked_bytes = match workload.events.get(failed) {
        Some(&Event::Allocate { bytes, .. }) => bytes,
        _ => 0,
    };
    let mut sizes: Vec<u64> = Vec::new();
    for event in workload.events.iter().take(failed) {
        match *event {
            Event::Allocate { bytes, .. } => sizes.push(bytes.next_multiple_of(BLOCK_BYTES)),
            Event::Free { buffer } => sizes[buffer as usize] = 0,
            _ => {}
        }
    }
    let live_bytes = sizes.iter().sum();
    Why::Stranded { batch, asked_bytes, live_bytes, reserved_bytes: outcome.peak_reserved_bytes }
}

/// Tests the largest batch against the documents' scenarios E5 and E6, and tests the threshold against runs on both sides of
/// it.
#[cfg(test)]
mod tests {
    use parkade_policies::{CATALOGUE, named};

    use super::*;
    use crate::workload::generators::Optimizer;
    use crate::workload::generators::transformer::Checkpointing;

    #[test]
    fn a_card_has_about_what_its_name_says() {
        for known in &CARDS {
            assert_eq!(card(&known.name.to_lowercase()), Some(known));
            let (_, sold) = known.name.split_once('-').expect("a size");
            let sold: f64 = sold.trim_end_matches("GB").parse().expect("a number");
            let ratio = known.total_bytes as f64 / (sold * 1e9);
            assert!((0.98..1.08).contains(&ratio), "{}: {ratio}", known.name);
        }
        assert_eq!(card("V100"), None);
    }

    /// Returns the largest batch found from `least` to `most`, the largest below it that fails, and the number of batches
    /// tried.
    fn found(least: u64, most: u64, fits: &dyn Fn(u64) -> bool) -> (u64, Option<u64>, usize) {
        let attempt = |batch| {
            assert!((least..=most).contains(&batch), "{batch} must not be tried");
            if fits(batch) { Ok(Fits { reserved_bytes: 0, load_bytes: 0 }) } else { Err(Why::NotTried) }
        };
        let mut search = Search { most, attempt: &attempt, tried: BTreeMap::new() };
        let batch = search.largest(least);
        (batch, search.fails_below(batch), search.tried.len())
    }

    #[test]
    fn where_fitting_is_monotone_the_threshold_is_found() {
        for least in [1, 4] {
            for threshold in least - 1..=40 {
                let (batch, fails_below, tried) = found(least, 40, &|batch| batch <= threshold);
                assert_eq!((batch, fails_below), (threshold, None));
                assert!(tried <= 7 + FURTHER_RUNS + 2, "{tried}");
            }
        }
    }

    #[test]
    fn a_larger_batch_that_fits_is_found_and_reported() {
        assert_eq!(found(1, 16, &|batch| batch <= 5 || batch == 12).0, 12, "all batches above 5 are tried");
        let island = |batch| batch <= 5 || (9..=11).contains(&batch);
        let (batch, fails_below, _) = found(1, 16, &island);
        assert_eq!((batch, fails_below), (11, Some(8)));
        assert_eq!(found(4, 16, &|batch| batch == 16), (16, None, 1), "the first that is tried");
        assert_eq!(found(4, 9, &|batch| batch == 7).0, 7);
    }

    const GB: u64 = 1_000_000_000;

    fn grid(model: &str) -> Grid {
        let transformer = Transformer::preset(model).unwrap();
        Grid {
            trainings: vec![Training { name: model.to_owned(), transformer, steps: 2 }],
            devices_bytes: vec![8 * GB],
            context_bytes: CONTEXT_BYTES,
            policies: vec![named("pytorch-expandable").unwrap()],
            most_batch: 256,
        }
    }

    /// Changes an option of the grid's only training run.
    fn with(mut grid: Grid, change: impl FnOnce(&mut Transformer)) -> Grid {
        change(&mut grid.trainings[0].transformer);
        grid
    }

    fn walk(grid: &Grid) -> Vec<Point> {
        grid.walk(&|| ()).unwrap()
    }

    #[test]
    fn the_batch_found_fits_and_one_more_does_not() {
        let grid = Grid { policies: CATALOGUE.to_vec(), ..grid("gpt2") };
        for point in walk(&grid) {
            assert_eq!((point.case.device_bytes, point.case.usable_bytes), (8 * GB, 8 * GB - CONTEXT_BYTES));
            assert!(point.batch >= 1 && point.batch <= point.bound.batch && point.bound.batch < grid.most_batch, "{point:?}");
            let load = |batch| point.case.training.with_batch(batch).workload(2).unwrap().load_bytes(BLOCK_BYTES);
            assert_eq!((point.load_bytes, point.bound.load_bytes), (load(point.batch), load(point.bound.batch)));
            assert!(load(point.bound.batch + 1) > point.case.usable_bytes);
            let run = |batch| {
                let workload = point.case.training.with_batch(batch).workload(2).unwrap();
                run(&workload, named(&point.policy).unwrap().make(), &RunOptions::new(point.case.usable_bytes))
            };
            assert_eq!(run(point.batch).peak_reserved_bytes, point.reserved_bytes, "{}", point.policy);
            assert!(run(point.batch).fits() && !run(point.batch + 1).fits(), "{}", point.policy);
            match point.why {
                Why::Load { batch, load_bytes } => {
                    assert_eq!((batch, batch), (point.batch + 1, point.bound.batch + 1), "{}", point.policy);
                    assert_eq!(load_bytes, load(batch));
                }
                Why::Stranded { batch, asked_bytes, live_bytes, reserved_bytes } => {
                    assert_eq!(batch, point.batch + 1);
                    assert!(live_bytes + asked_bytes <= point.case.usable_bytes && reserved_bytes <= point.case.usable_bytes);
                }
                why => panic!("{}: {why:?}", point.policy),
            }
        }
    }

    #[test]
    fn seven_billion_parameters_need_more_than_four_times_their_bytes() {
        let grid = Grid { devices_bytes: CARDS.map(|card| card.total_bytes).to_vec(), ..grid("7b") };
        let points = walk(&grid);
        let training = &points[0].case.training;
        // The document's rule for Adam is "More than 4-6 x the parameters"; with gradients and two states of the same size,
        // it is four.
        assert_eq!(training.state_bytes(), 4 * training.parameter_bytes());
        let smallest = points[0].bound.load_bytes as f64 / training.parameter_bytes() as f64;
        assert!(smallest > 4.0 && smallest < 6.0, "{smallest}");
        assert_eq!(points[0].why, Why::States { state_bytes: training.state_bytes() });
        let batches: Vec<u64> = points.iter().map(|point| point.batch).collect();
        assert!(batches[0] == 0 && batches[1] >= 1 && batches[2] > batches[1], "{batches:?}");
        let points = walk(&with(grid, |transformer| transformer.master_copy = true));
        let training = &points[0].case.training;
        // There are two bytes each for weights and gradients, and three times four in the optimizer: eight times the weights.
        assert_eq!(training.state_bytes(), 8 * training.parameter_bytes());
        assert!(points[1].batch == 0 && points[2].batch >= 1, "106 GB of states fit on the largest only");
    }

    #[test]
    fn each_cure_moves_the_largest_batch() {
        let batch = |change: fn(&mut Transformer)| {
            walk(&with(Grid { devices_bytes: vec![12 * GB], ..grid("gpt2-large") }, change))[0].batch
        };
        let none = batch(|_| ());
        let fp32 = batch(|model| model.precision = Precision::Fp32);
        let other = batch(|model| model.checkpointing = Checkpointing::EveryOther);
        let sqrt = batch(|model| model.checkpointing = Checkpointing::Sqrt);
        let short = batch(|model| model.sequence = 512);
        let plain = batch(|model| model.optimizer = Optimizer::Sgd);
        // Only one micro-batch's activations are live at once, but the last micro-batch's gradients are live at the same
        // time.
        let accumulated = batch(|model| model.accumulation = 4);
        assert!(none >= 1 && fp32 < none && none < other && other < sqrt, "{fp32} {none} {other} {sqrt}");
        assert!(short >= 2 * none && plain > none && accumulated > 2 * none, "{short} {plain} {accumulated}");
    }

    #[test]
    fn threads_change_nothing() {
        let grid = Grid { policies: CATALOGUE.to_vec(), devices_bytes: vec![6 * GB, 9 * GB], ..grid("gpt2") };
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| walk(&grid))
        };
        let one = on(1);
        assert_eq!(one, on(3));
        let order: Vec<_> = one.iter().map(|point| (point.case.device_bytes, &point.policy)).collect();
        let expected = grid.devices_bytes.iter().flat_map(|&device| CATALOGUE.iter().map(move |policy| (device, &policy.name)));
        assert!(order.into_iter().eq(expected));
    }

    #[test]
    fn the_batches_that_may_be_tried_are_the_end() {
        let points = walk(&Grid { most_batch: 3, ..grid("gpt2") });
        assert_eq!((points[0].batch, points[0].bound.batch, &points[0].why), (3, 3, &Why::NotTried));
    }

    #[test]
    fn what_cannot_be_searched_is_an_error() {
        let refused = |change: fn(&mut Grid)| {
            let mut grid = grid("gpt2");
            change(&mut grid);
            grid.walk(&|| ()).unwrap_err().to_string()
        };
        assert_eq!(refused(|grid| grid.policies.clear()), "there is nothing to search: no policies");
        assert!(refused(|grid| grid.devices_bytes = vec![5]).contains("no memory left after a context"));
        assert!(refused(|grid| grid.most_batch = u64::MAX).contains("cannot be searched"));
        assert!(refused(|grid| grid.trainings[0].transformer.accumulation = 1000).contains("cannot be searched"));
        assert!(refused(|grid| grid.trainings[0].transformer.accumulation = 0).starts_with("gpt2: accumulation is 0"));
        assert!(refused(|grid| grid.trainings[0].transformer.sequence = 0).starts_with("gpt2: sequence is 0"));
        assert!(refused(|grid| grid.devices_bytes = vec![GB; 200_000]).contains("200000 combinations"));
        assert!(refused(|grid| grid.trainings[0].transformer.sequence = 1 << 32).contains("more than"));
    }

    /// A model so small that its workloads take no time.
    fn tiny(accumulation: u64, chunks: u64) -> Training {
        let checkpointing = if chunks > 1 { Checkpointing::EveryLayer } else { Checkpointing::None };
        let small = Transformer { layers: 1, hidden: 32, heads: 1, sequence: 64, vocabulary: 50, ..Transformer::default() };
        Training { name: "tiny".into(), transformer: Transformer { accumulation, chunks, checkpointing, ..small }, steps: 1 }
    }

    /// Compares with trying one batch after the other, on devices that hold exactly a batch's load or one byte less.
    #[test]
    fn the_bound_is_the_last_batch_whose_load_fits() {
        let training = tiny(1, 1);
        let loads: Vec<u64> =
            (1..12).map(|batch| training.with_batch(batch).workload(1).expect("a workload").load_bytes(BLOCK_BYTES)).collect();
        assert!(loads.is_sorted_by(|one, other| one < other), "each sample needs memory: {loads:?}");
        for usable_bytes in loads[..10].iter().flat_map(|&bytes| [bytes - 1, bytes]) {
            let case = Case { training: training.clone(), device_bytes: usable_bytes, usable_bytes };
            for most_batch in 1..11 {
                let fitting = (1..=most_batch).take_while(|&batch| loads[batch as usize - 1] <= usable_bytes).last();
                let batch = fitting.unwrap_or(0);
                let expected = Bound { batch, load_bytes: loads[batch.max(1) as usize - 1] };
                assert_eq!(bound(&case, most_batch), expected, "{usable_bytes} {most_batch}");
            }
        }
    }

    /// Compares with trying every batch from the smallest possible one, also where it is the only one that may be tried.
    #[test]
    fn every_batch_from_the_smallest_to_the_largest_may_be_tried() {
        for (accumulation, chunks) in [(1, 1), (2, 1), (1, 3), (2, 2)] {
            let training = tiny(accumulation, chunks);
            let (least, policy) = (accumulation * chunks, named("pytorch").unwrap());
            let reserved = |batch: u64| {
                let workload = training.with_batch(batch).workload(1).expect("a workload");
                run(&workload, policy.make(), &RunOptions::plenty()).peak_reserved_bytes
            };
            for (most_batch, device_bytes) in (0..least + 3).flat_map(|most| [(most, reserved(least)), (most, 1 << 30)]) {
                let trainings = vec![training.clone()];
                let grid = Grid {
                    trainings,
                    devices_bytes: vec![device_bytes],
                    context_bytes: 0,
                    policies: vec![policy.clone()],
                    most_batch,
                };
                let found = grid.walk(&|| ());
                if most_batch < least {
                    assert_eq!(found, Err(GridError::Batch { most_batch }), "{least}");
                    continue;
                }
                let point = &found.expect("it may be searched")[0];
                let fits = |batch: &u64| attempt(&point.case, &policy, *batch).is_ok();
                let expected = (least..=most_batch).rev().find(fits).unwrap_or(0);
                assert_eq!(point.batch, expected, "{least} {most_batch} {device_bytes}");
                assert_eq!(point.why == Why::NotTried, expected == most_batch, "{least} {most_batch} {device_bytes}");
            }
        }
    }

    #[test]
    fn the_context_leaves_at_least_one_byte() {
        let of = |device_bytes| Grid { devices_bytes: vec![9 * GB, device_bytes], context_bytes: 5000, ..grid("gpt2") }.check();
        assert_eq!((of(5001), of(5000)), (Ok(()), Err(GridError::NoMemory { device_bytes: 5000, context_bytes: 5000 })));
    }
}
