//! The largest batch that fits.
//!
//! What the load allows is searched first: doubled from the smallest batch, then bisected. A policy is then tried at that batch, and where it
//! fails there, a border is bisected below. Whether a batch fits need not be monotone: a policy may serve a larger batch and refuse a
//! smaller one. So further batches are tried between the border and what the load allows, all of them if they are few ([`border`]). What is
//! found is the largest of the batches tried that fits, and one sample more does not. Gradient accumulation needs a sample for each
//! micro-batch, so smaller batches are not tried with it.

use std::collections::BTreeMap;

use parkade_policies::Named;

use super::{Bound, Case, Point};
use crate::bounds::BLOCK_BYTES;
use crate::study::border::{self, Border};
use crate::study::{Ending, Outcome, RunOptions, run};
use crate::workload::{Event, Workload};

/// Batches tried above the first border, but for those of bisections there.
const FURTHER_RUNS: usize = 16;

/// Why a batch does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// Parameters, gradients and the optimizer's states alone do not fit.
    States {
        /// The bytes of all of them.
        state_bytes: u64,
    },
    /// More bytes live at once than there are: no policy can serve it.
    Load {
        /// The batch.
        batch: u64,
        /// Its load, in bytes.
        load_bytes: u64,
    },
    /// The bytes that live would fit, but not as the policy holds them.
    Stranded {
        /// The batch.
        batch: u64,
        /// What the refused request asked for, in bytes.
        asked_bytes: u64,
        /// What lived then, in blocks of 512 bytes, without the request.
        live_bytes: u64,
        /// The most that was reserved, in bytes.
        reserved_bytes: u64,
    },
    /// The policy, or the device, failed for another reason; in one line.
    Fault {
        /// The batch.
        batch: u64,
        /// The reason.
        reason: String,
    },
    /// Larger batches were not tried.
    NotTried,
}

/// The largest batch whose load fits into the case's device, up to `most_batch`.
#[must_use]
pub fn bound(case: &Case, steps: u64, most_batch: u64) -> Bound {
    let least = case.transformer.accumulation;
    // What cannot be generated is beyond any device: sizes of 2^50 bytes. The smallest batch has been generated before.
    let load = |batch| case.with_batch(batch).workload(steps).map_or(u64::MAX, |workload| workload.load_bytes(BLOCK_BYTES));
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

/// What fits under a policy.
pub(super) fn point(case: &Case, policy: &'static Named, bound: &Bound, steps: u64, most_batch: u64) -> Point {
    let mut point = Point {
        case: case.clone(),
        policy: policy.name,
        batch: 0,
        reserved_bytes: 0,
        load_bytes: 0,
        fails_below_batch: None,
        bound: bound.clone(),
        why: Why::NotTried,
        runs: 0,
    };
    let least = case.transformer.accumulation;
    if bound.batch == 0 {
        let (state_bytes, load_bytes) = (case.state_bytes(), bound.load_bytes);
        let is_states = state_bytes > case.usable_bytes;
        point.why = if is_states { Why::States { state_bytes } } else { Why::Load { batch: least, load_bytes } };
        return point;
    }
    let mut search = Search { most: bound.batch, attempt: &|batch| attempt(case, policy, steps, batch), tried: BTreeMap::new() };
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

/// What a batch that fits takes.
#[derive(Clone)]
struct Fits {
    reserved_bytes: u64,
    load_bytes: u64,
}

struct Search<'a> {
    /// The largest batch that can fit.
    most: u64,
    /// Runs a batch: what it takes, or why it does not fit.
    attempt: &'a dyn Fn(u64) -> Result<Fits, Why>,
    /// What came of each batch.
    tried: BTreeMap<u64, Result<Fits, Why>>,
}

/// In samples that the largest batch is left short of.
impl Border for Search<'_> {
    fn suffices(&mut self, skipped: u64) -> bool {
        self.run(self.most - skipped).is_ok()
    }

    fn tried(&self) -> usize {
        self.tried.len()
    }
}

impl Search<'_> {
    /// The largest batch that was found to fit; one below `least`, the smallest that may be tried, if none does.
    fn largest(&mut self, least: u64) -> u64 {
        // Nothing at all, below the smallest batch, suffices always.
        let nothing = self.most + 1 - least;
        let skipped = if self.suffices(0) { 0 } else { border::least(self, nothing, FURTHER_RUNS) };
        self.most - skipped
    }

    /// The largest batch below one that was tried and does not fit.
    fn fails_below(&self, batch: u64) -> Option<u64> {
        self.tried.range(..batch).rev().find(|(_, result)| result.is_err()).map(|(batch, _)| *batch)
    }

    /// What came of a batch: tried once.
    fn run(&mut self, batch: u64) -> Result<Fits, Why> {
        let attempt = self.attempt;
        self.tried.entry(batch).or_insert_with(|| attempt(batch)).clone()
    }
}

fn attempt(case: &Case, policy: &Named, steps: u64, batch: u64) -> Result<Fits, Why> {
    let Ok(workload) = case.with_batch(batch).workload(steps) else {
        return Err(Why::Load { batch, load_bytes: u64::MAX });
    };
    let load_bytes = workload.load_bytes(BLOCK_BYTES);
    if load_bytes > case.usable_bytes {
        return Err(Why::Load { batch, load_bytes });
    }
    let outcome = run(&workload, (policy.make)(), &RunOptions::new(case.usable_bytes));
    match &outcome.ending {
        Ending::Fits => Ok(Fits { reserved_bytes: outcome.peak_reserved_bytes, load_bytes }),
        Ending::Fault(reason) => Err(Why::Fault { batch, reason: reason.clone() }),
        Ending::OutOfMemory => Err(stranded(&workload, batch, &outcome)),
    }
}

/// What lived when a request was refused, though all of it fits.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found among the batches from `least` to `most`, the largest below it that fails, and how many were tried.
    fn found(least: u64, most: u64, fits: &dyn Fn(u64) -> bool) -> (u64, Option<u64>, usize) {
        let attempt = |batch| {
            assert!((least..=most).contains(&batch), "{batch} is not to be tried");
            if fits(batch) { Ok(Fits { reserved_bytes: 0, load_bytes: 0 }) } else { Err(Why::NotTried) }
        };
        let mut search = Search { most, attempt: &attempt, tried: BTreeMap::new() };
        let batch = search.largest(least);
        (batch, search.fails_below(batch), search.tried.len())
    }

    #[test]
    fn where_fitting_is_monotone_the_border_is_found() {
        for least in [1, 4] {
            for border in least - 1..=40 {
                let (batch, fails_below, tried) = found(least, 40, &|batch| batch <= border);
                assert_eq!((batch, fails_below), (border, None));
                assert!(tried <= 7 + FURTHER_RUNS + 2, "{tried}");
            }
        }
    }

    #[test]
    fn a_larger_batch_that_fits_is_found_and_said() {
        assert_eq!(found(1, 16, &|batch| batch <= 5 || batch == 12).0, 12, "all batches above 5 are tried");
        let island = |batch| batch <= 5 || (9..=11).contains(&batch);
        let (batch, fails_below, _) = found(1, 16, &island);
        assert_eq!((batch, fails_below), (11, Some(8)));
        assert_eq!(found(4, 16, &|batch| batch == 16), (16, None, 1), "the first that is tried");
        assert_eq!(found(4, 9, &|batch| batch == 7).0, 7);
    }
}
