//! Finds the smallest memory in which a workload fits, and the part of a policy's memory needs that does not depend on the
//! workload: some policies use only part of the device, or take memory before the program begins.
//!
//! The search ([`smallest`]) is for the smallest number that is enough, even if some larger numbers are not. Bisection finds
//! *a* threshold: a number that is enough next to one that is not. A number above one that is enough need not be enough, so
//! there may be other thresholds below it. The search therefore tries further numbers below it, evenly spaced, in ascending
//! order; below the first that is enough, it continues in the same way. The result is the smallest number tried that is
//! enough.

use std::collections::BTreeMap;

use parkade::policy::Policy;
use parkade_policies::Named;
use parkade_sim::PAGE_BYTES;

use super::run::{Ending, Outcome, PLENTY_BYTES, PRECISION, RunOptions, make_for, run};
use crate::workload::{Event, Workload};

/// The number of runs after the first bisection, with less memory than it found.
const FURTHER_RUNS: usize = 48;
/// The load counts requests rounded up to this many bytes, as in the offline packer.
pub const LOAD_UNIT_BYTES: u64 = 512;

/// The smallest amount of memory that was found to be enough.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Smallest {
    /// The device's memory, in bytes.
    pub capacity_bytes: u64,
    /// The outcome of the run with this memory.
    pub outcome: Outcome,
    /// The largest memory above this that was tried and was not enough, if any.
    pub fails_above_bytes: Option<u64>,
    /// The number of runs that the search took.
    pub runs: u32,
}

/// Searches for the smallest device memory in which a workload fits under the policy that `make` creates. The capacity in
/// `options` is ignored. `given` lists capacities in bytes that are also tried, if they are below the result of the search.
///
/// The capacities tried are LOAD, LOAD + s, LOAD + 2s and so on, up to what the workload reserves on a device with plenty of
/// memory. LOAD is the most bytes live at once, with each request rounded up to 512 bytes, in whole 2 MiB pages; the step
/// s is LOAD divided by 256 or, if the options' precision is coarser, by that, but at least one page. With a finer precision,
/// a second bisection follows between the result and the capacity before it, in the precision's steps: four or five more runs for
/// 1/4096. All policies are measured at the same capacities, so that equal needs produce equal results.
///
/// Fitting need not be monotone: a policy that releases memory early when memory is short can fit in less memory than it
/// fails in. Bisection therefore finds only *a* threshold. After that, up to 48 further runs try lower capacities, evenly
/// spaced, from LOAD upwards; up to 1.19 LOAD, this covers all capacities. Below the first capacity that is enough, the
/// search continues in the same way. The result is the smallest capacity tried in which the workload fits; capacities between
/// those tried may also be enough.
///
/// # Errors
/// Returns the outcome of a run that did not end for lack of memory alone: the run with plenty of memory, if the workload does
/// not fit even there, or the first run with a fault ([`Ending::Fault`]), after which no amount of memory means anything.
pub fn smallest_capacity(
    workload: &Workload,
    make: &dyn Fn() -> Box<dyn Policy + Send>,
    options: &RunOptions,
    given: &[u64],
) -> Result<Smallest, Outcome> {
    let mut runs = 0;
    let mut attempt = |capacity_bytes| {
        runs += 1;
        run(workload, make(), &options.with_capacity(capacity_bytes))
    };
    let plenty = attempt(PLENTY_BYTES);
    if !plenty.fits() {
        return Err(plenty);
    }
    let load_pages = workload.load_bytes(LOAD_UNIT_BYTES).div_ceil(PAGE_BYTES).max(1);
    let mut search = Search::new(load_pages, options.precision, plenty, &mut attempt);
    search.on_the_grid();
    search.in_given(given);
    if let Some(fault) = search.fault {
        return Err(fault);
    }
    let (capacity_bytes, outcome, fails_above_bytes) = search.found();
    Ok(Smallest { capacity_bytes, outcome, fails_above_bytes, runs })
}

struct Search<'a> {
    attempt: &'a mut dyn FnMut(u64) -> Outcome,
    load_pages: u64,
    /// The distance of the capacities that are tried.
    step_pages: u64,
    /// Their distance in the second bisection; a divisor of the first.
    fine_pages: u64,
    /// The capacities tried, and whether the workload fits.
    tried: BTreeMap<u64, bool>,
    /// The smallest capacity in which it fits.
    least: (u64, Outcome),
    /// The first run that ended with a fault. No further run is made.
    fault: Option<Outcome>,
}

impl<'a> Search<'a> {
    fn new(load_pages: u64, precision: u64, plenty: Outcome, attempt: &'a mut dyn FnMut(u64) -> Outcome) -> Search<'a> {
        let fine_pages = load_pages.checked_div(precision).unwrap_or(0).max(1);
        let step_pages = (load_pages / PRECISION / fine_pages).max(1) * fine_pages;
        Search { attempt, load_pages, step_pages, fine_pages, tried: BTreeMap::new(), least: (PLENTY_BYTES, plenty), fault: None }
    }

    /// Returns the capacity this many steps above the load.
    fn capacity(&self, steps: u64) -> u64 {
        (self.load_pages + steps * self.step_pages) * PAGE_BYTES
    }

    fn fits_in(&mut self, capacity_bytes: u64) -> bool {
        if let Some(&fits) = self.tried.get(&capacity_bytes) {
            return fits;
        }
        if self.fault.is_some() {
            // Any answer ends the search.
            return true;
        }
        let outcome = (self.attempt)(capacity_bytes);
        if matches!(outcome.ending, Ending::Fault(_)) {
            self.fault = Some(outcome);
            return true;
        }
        let fits = outcome.fits();
        self.tried.insert(capacity_bytes, fits);
        if fits && capacity_bytes < self.least.0 {
            self.least = (capacity_bytes, outcome);
        }
        fits
    }

    fn on_the_grid(&mut self) {
        if self.is_enough(0) {
            return;
        }
        let enough = self.upper_end();
        let enough = smallest(self, enough, FURTHER_RUNS);
        let fine_steps = self.step_pages / self.fine_pages;
        self.step_pages = self.fine_pages;
        bisect(self, enough.saturating_sub(1) * fine_steps, enough * fine_steps);
    }

    /// Returns a number of steps that is enough. For most policies, this is what they reserved with plenty of memory; a
    /// policy that depends on the device's memory may need more.
    fn upper_end(&mut self) -> u64 {
        let taken_pages = self.least.1.peak_device_bytes.div_ceil(PAGE_BYTES);
        let mut steps = taken_pages.saturating_sub(self.load_pages).div_ceil(self.step_pages).max(1);
        while self.capacity(steps) < PLENTY_BYTES && !self.is_enough(steps) {
            steps += (steps / 4).max(1);
        }
        steps
    }

    /// Tries capacities that need not be on the grid.
    fn in_given(&mut self, given: &[u64]) {
        let mut given = given.to_vec();
        given.sort_unstable();
        for capacity_bytes in given {
            if capacity_bytes >= self.least.0 || self.fits_in(capacity_bytes) {
                return;
            }
        }
    }

    fn found(self) -> (u64, Outcome, Option<u64>) {
        let (least, outcome) = self.least;
        let above = self.tried.range(least..).rev().find(|(_, fits)| !**fits);
        (least, outcome, above.map(|(capacity_bytes, _)| *capacity_bytes))
    }
}

/// Numbers count steps above the load.
impl Trials for Search<'_> {
    fn is_enough(&mut self, steps: u64) -> bool {
        self.fits_in(self.capacity(steps))
    }

    fn tried(&self) -> usize {
        self.tried.len()
    }
}

/// The property that is searched for. An implementation tries each number once and remembers the result.
pub(super) trait Trials {
    /// Returns whether a number is enough.
    fn is_enough(&mut self, number: u64) -> bool;
    /// Returns the number of numbers that have been tried.
    fn tried(&self) -> usize;
}

/// Returns the smallest number that was found to be enough. `enough` is known to be enough, and 0 is known not to be. After
/// the bisection, at most `further` numbers are tried below the result, not counting the bisections there.
pub(super) fn smallest(trials: &mut impl Trials, enough: u64, further: usize) -> u64 {
    let mut enough = bisect(trials, 0, enough);
    let last = trials.tried() + further;
    while let Some(less) = scan(trials, enough, last) {
        enough = less;
    }
    enough
}

/// Returns a number that is enough, next to one that is not, between `short` and `enough`.
fn bisect(trials: &mut impl Trials, mut short: u64, mut enough: u64) -> u64 {
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if trials.is_enough(middle) {
            enough = middle;
        } else {
            short = middle;
        }
    }
    enough
}

/// Tries numbers below `enough` in ascending order, until a total of `last` numbers have been tried. Returns a threshold
/// below the first that is enough, if any is.
fn scan(trials: &mut impl Trials, enough: u64, last: usize) -> Option<u64> {
    let left = last.saturating_sub(trials.tried()) as u64;
    let points = left.min(enough - 1);
    let mut short = 0;
    for point in 1..=points {
        let number = enough * point / (points + 1);
        if trials.is_enough(number) {
            return Some(bisect(trials, short, number));
        }
        short = number;
    }
    None
}

/// The number and the size of equal buffers. Together they are 1 GiB.
const BUFFERS: u32 = 64;
const BUFFER_BYTES: u64 = 16 << 20;

fn equal_buffers(count: u32, bytes: u64) -> Workload {
    let events = (0..count).map(|buffer| Event::Allocate { buffer, bytes, stream: 0 }).collect();
    Workload { name: "equal-buffers".into(), says: "equal buffers that are kept".into(), events, ..Workload::default() }
}

/// Returns the smallest memory in which a program that only allocates 64 buffers of 16 MiB fits, divided by their sum. This
/// program cannot cause fragmentation, so anything above 1 is due to the policy's construction, such as using only three
/// quarters of the device. Returns `None` if the program does not fit in any amount of memory.
#[must_use]
pub fn needs_by_construction(policy: &Named) -> Option<f64> {
    let workload = equal_buffers(BUFFERS, BUFFER_BYTES);
    let found = smallest_capacity(&workload, &make_for(policy, &workload), &RunOptions::plenty(), &[]).ok()?;
    Some(found.capacity_bytes as f64 / (u64::from(BUFFERS) * BUFFER_BYTES) as f64)
}

/// Returns whether the policy takes a share of all memory for the first small request; its figures with plenty of memory then
/// describe the device rather than the program.
#[must_use]
pub fn takes_a_share_at_first(policy: &Named) -> bool {
    let small = equal_buffers(1, 1 << 20);
    run(&small, make_for(policy, &small)(), &RunOptions::plenty()).peak_reserved_bytes > PLENTY_BYTES / 100
}

#[cfg(test)]
mod tests {
    use parkade_policies::named;

    use super::*;
    use crate::packing::random::Random;
    use crate::study::run::DriverCost;

    /// Returns the outcome of a run that took `steps` pages above a load of 256.
    fn outcome(fits: bool, steps: u64) -> Outcome {
        Outcome {
            ending: if fits { Ending::Fits } else { Ending::OutOfMemory },
            failed_at_event: None,
            peak_reserved_bytes: 0,
            peak_allocated_bytes: 0,
            peak_device_bytes: (PRECISION + steps) * PAGE_BYTES,
            retries: 0,
            driver_calls: 0,
            driver_ns: 0,
            waited_ns: 0,
            waiting_calls: 0,
            later: Box::new(DriverCost::default()),
            events: 0,
        }
    }

    /// Returns the result of a search in steps of a page above a load of 256 pages: the smallest, the largest above it that
    /// fails, and the number of runs. With plenty of memory, the workload reserves `taken`.
    fn found(taken: u64, given: &[u64], fits: &dyn Fn(u64) -> bool) -> (u64, Option<u64>, usize) {
        let steps = |bytes: u64| (bytes / PAGE_BYTES).wrapping_sub(PRECISION);
        let mut runs = 0;
        let mut attempt = |bytes| {
            runs += 1;
            outcome(fits(steps(bytes)), taken)
        };
        let mut search = Search::new(PRECISION, PRECISION, outcome(true, taken), &mut attempt);
        search.on_the_grid();
        search.in_given(&given.iter().map(|given| (given + PRECISION) * PAGE_BYTES).collect::<Vec<_>>());
        let (least, _, above) = search.found();
        (steps(least), above.map(steps), runs)
    }

    #[test]
    fn where_fitting_is_monotone_the_threshold_is_found() {
        for threshold in 0..120 {
            assert_eq!(found(100, &[], &|steps| steps >= threshold).0, threshold);
        }
    }

    #[test]
    fn a_finer_search_takes_one_run_for_each_halving_of_the_step() {
        let runs_until = |precision, threshold| {
            let (load_pages, mut runs) = (16 * PRECISION, 0);
            let mut attempt = |bytes: u64| {
                runs += 1;
                outcome(bytes / PAGE_BYTES >= load_pages + threshold, 2000)
            };
            let mut search = Search::new(load_pages, precision, outcome(true, 16 * PRECISION), &mut attempt);
            search.on_the_grid();
            (search.found().0 / PAGE_BYTES - load_pages, runs)
        };
        for threshold in 1..700 {
            let (coarse, runs) = runs_until(PRECISION, threshold);
            assert_eq!((coarse, runs_until(16 * PRECISION, threshold)), (threshold.div_ceil(16) * 16, (threshold, runs + 4)));
        }
    }

    #[test]
    fn an_island_below_the_threshold_is_found_and_reported() {
        // A recorded program under PyTorch's policy: 1.11 to 1.18 LOAD are enough, 1.2 is not, 1.22 is.
        let island = |steps| (28..=46).contains(&steps) || steps >= 56;
        let (least, above, _) = found(100, &[], &island);
        assert_eq!((least, above), (28, Some(55)));
        let narrow = |steps| steps == 20 || steps >= 40;
        assert_eq!(found(100, &[], &narrow).0, 20, "all steps up to 48 are tried");
        assert_eq!(found(60, &[], &|steps| steps >= 40).1, None);
    }

    #[test]
    fn nothing_that_was_tried_is_less_and_runs_are_bounded() {
        let mut random = Random::new(5);
        for _ in 0..200 {
            let fitting: Vec<bool> = (0..400).map(|_| random.below(12) == 0).collect();
            let tried = std::cell::RefCell::new(Vec::new());
            let fits = |steps: u64| {
                let fits = fitting.get(steps as usize).copied().unwrap_or(true);
                tried.borrow_mut().push((steps, fits));
                fits
            };
            let (least, above, runs) = found(300, &[], &fits);
            let tried = tried.into_inner();
            assert_eq!(tried.iter().filter(|(_, fits)| *fits).map(|(steps, _)| *steps).min(), Some(least));
            assert_eq!(tried.iter().filter(|(steps, fits)| !*fits && *steps > least).map(|(steps, _)| *steps).max(), above);
            assert!(runs <= 20 + 48 + 9, "{runs}");
        }
    }

    #[test]
    fn given_capacities_are_tried() {
        // Not all steps below 390 are tried, but a specified one is.
        let fits = |steps| steps == 3 || steps >= 390;
        assert_eq!(found(395, &[], &fits).0, 390);
        assert_eq!(found(395, &[2, 3, 100], &fits), (3, Some(389), found(395, &[], &fits).2 + 2));
    }

    #[test]
    fn what_a_policy_needs_by_construction_is_measured() {
        let needs = |name: &str| needs_by_construction(&named(name).expect("a policy")).expect("it fits");
        assert!((needs("pytorch") - 1.0).abs() < 1e-9 && (needs("best-fit-remap") - 1.0).abs() < 1e-9);
        assert!((needs("bfc:kind=xla") - 4.0 / 3.0).abs() < 0.03, "{}", needs("bfc:kind=xla"));
        assert!(needs("rmm-pool") < 1.1, "what grows in the end is not by construction: {}", needs("rmm-pool"));
    }

    #[test]
    fn some_take_a_share_of_all_memory_first() {
        for (name, takes) in
            [("pytorch", false), ("bfc", false), ("bfc:kind=xla", true), ("rmm-pool", true), ("bfc:kind=one-region", true)]
        {
            assert_eq!(takes_a_share_at_first(&named(name).expect("a policy")), takes, "{name}");
        }
    }
}
