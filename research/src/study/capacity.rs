//! The least memory in which a program fits.

use std::collections::BTreeMap;

use parkade::policy::Policy;

use super::border::{Border, least};
use super::options::{PLENTY_BYTES, RunOptions};
use super::run::{Outcome, run};
use crate::workload::Workload;
use parkade_sim::PAGE_BYTES;

/// Sizes are found to this part of the load, or to one page if that is more.
const PRECISION: u64 = 256;
/// Runs after the first bisection, in memories below what it found.
const FURTHER_RUNS: usize = 48;
/// Requests count as rounded up to this many bytes in the load: as for the offline packer.
pub const LOAD_UNIT_BYTES: u64 = 512;

/// The least memory that was found to suffice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Smallest {
    /// The device's memory.
    pub capacity_bytes: u64,
    /// The run in it.
    pub outcome: Outcome,
    /// The most memory above it that was tried and did not suffice, if any.
    pub fails_above_bytes: Option<u64>,
    /// How many runs it took to find.
    pub runs: u32,
}

/// Searches the least memory of a device in which a program fits under the policies that `make` makes. The capacity in `options` does not
/// count. `given` are memories that are tried besides, if they are below what was found.
///
/// What is tried are capacities of LOAD, LOAD + s, LOAD + 2s and so on, up to what the program takes on a device with plenty. LOAD
/// is the most bytes that live at once, each request rounded up to 512 bytes, in whole pages of 2 MiB; the step s is 1/256 of it, at
/// least a page. All policies are measured on these same capacities, so that what is equal comes out equal.
///
/// Fitting need not be monotone: a policy that gives memory back early where memory is short can fit in less than it fits in with a
/// little more. So a bisection finds *a* border only. After it up to 48 further runs try capacities below, evenly spread and from LOAD
/// upward, which is all of them up to 1.19 LOAD; below the first that suffices it goes on in the same way. What is found is the smallest
/// of the memories tried in which the program fits: others, between those, may suffice too.
///
/// # Errors
/// The run with plenty, if the program does not fit there either: the policy gave up for another reason.
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
    let mut search = Search::new(workload.load_bytes(LOAD_UNIT_BYTES), plenty, &mut attempt);
    search.on_the_grid();
    search.in_given(given);
    let (capacity_bytes, outcome, fails_above_bytes) = search.found();
    Ok(Smallest { capacity_bytes, outcome, fails_above_bytes, runs })
}

struct Search<'a> {
    attempt: &'a mut dyn FnMut(u64) -> Outcome,
    load_pages: u64,
    step_pages: u64,
    /// Whether it fits in what was tried, by capacity.
    tried: BTreeMap<u64, bool>,
    /// The least in which it fits.
    least: (u64, Outcome),
}

impl<'a> Search<'a> {
    fn new(load_bytes: u64, plenty: Outcome, attempt: &'a mut dyn FnMut(u64) -> Outcome) -> Search<'a> {
        let load_pages = load_bytes.div_ceil(PAGE_BYTES).max(1);
        let step_pages = (load_pages / PRECISION).max(1);
        Search { attempt, load_pages, step_pages, tried: BTreeMap::new(), least: (PLENTY_BYTES, plenty) }
    }

    /// The capacity so many steps above the load.
    fn capacity(&self, steps: u64) -> u64 {
        (self.load_pages + steps * self.step_pages) * PAGE_BYTES
    }

    fn fits_in(&mut self, capacity_bytes: u64) -> bool {
        if let Some(&fits) = self.tried.get(&capacity_bytes) {
            return fits;
        }
        let outcome = (self.attempt)(capacity_bytes);
        let fits = outcome.fits();
        self.tried.insert(capacity_bytes, fits);
        if fits && capacity_bytes < self.least.0 {
            self.least = (capacity_bytes, outcome);
        }
        fits
    }

    fn on_the_grid(&mut self) {
        if self.suffices(0) {
            return;
        }
        let enough = self.upper_end();
        least(self, enough, FURTHER_RUNS);
    }

    /// Steps that suffice. What was taken with plenty does for most policies; those that look at how much there is may need more there.
    fn upper_end(&mut self) -> u64 {
        let taken_pages = self.least.1.peak_device_bytes.div_ceil(PAGE_BYTES);
        let mut steps = taken_pages.saturating_sub(self.load_pages).div_ceil(self.step_pages).max(1);
        while self.capacity(steps) < PLENTY_BYTES && !self.suffices(steps) {
            steps += (steps / 4).max(1);
        }
        steps
    }

    /// Tries memories that need not be on the grid.
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

/// In steps above the load.
impl Border for Search<'_> {
    fn suffices(&mut self, steps: u64) -> bool {
        self.fits_in(self.capacity(steps))
    }

    fn tried(&self) -> usize {
        self.tried.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::Ending;
    use super::*;
    use crate::random::Random;

    /// Of a run that took all of plenty's first `steps` pages above a load of 256.
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
            events: 0,
        }
    }

    /// What is found, in steps of a page above a load of 256 pages: the least, the most above it that fails, and the runs. `fits` says in
    /// what it does; with plenty it takes `taken`.
    fn found(taken: u64, given: &[u64], fits: &dyn Fn(u64) -> bool) -> (u64, Option<u64>, usize) {
        let steps = |bytes: u64| (bytes / PAGE_BYTES).wrapping_sub(PRECISION);
        let mut runs = 0;
        let mut attempt = |bytes| {
            runs += 1;
            outcome(fits(steps(bytes)), taken)
        };
        let mut search = Search::new(PRECISION * PAGE_BYTES, outcome(true, taken), &mut attempt);
        search.on_the_grid();
        search.in_given(&given.iter().map(|given| (given + PRECISION) * PAGE_BYTES).collect::<Vec<_>>());
        let (least, _, above) = search.found();
        (steps(least), above.map(steps), runs)
    }

    #[test]
    fn where_fitting_is_monotone_the_border_is_found() {
        for border in 0..120 {
            assert_eq!(found(100, &[], &|steps| steps >= border).0, border);
        }
    }

    #[test]
    fn an_island_below_the_border_is_found_and_said() {
        // What a recorded program does under PyTorch's policy: 1.11 to 1.18 LOAD suffice, 1.2 does not, 1.22 does.
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
            let (least, _, runs) = found(300, &[], &fits);
            let tried = tried.into_inner();
            assert_eq!(tried.iter().filter(|(_, fits)| *fits).map(|(steps, _)| *steps).min(), Some(least));
            assert!(runs <= 20 + 48 + 9, "{runs}");
        }
    }

    #[test]
    fn given_memories_count() {
        // Not all steps below 390 are tried; one that was asked for is.
        let fits = |steps| steps == 3 || steps >= 390;
        assert_eq!(found(395, &[], &fits).0, 390);
        assert_eq!(found(395, &[2, 3, 100], &fits), (3, Some(389), found(395, &[], &fits).2 + 2));
    }
}
