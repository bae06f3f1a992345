//! The largest batch that fits.
//!
//! First comes the largest batch whose load fits: doubling from the smallest batch, then bisection. Then the
//! policy is tried at that batch; if it fails, a threshold is bisected below. Fitting need not be monotone: a
//! policy may serve a larger batch and refuse a smaller one. So further batches are tried between the threshold
//! and what the load allows, all of them if they are few ([`threshold`]). The result is the largest of the batches
//! tried that fits, and one sample more does not fit. Each micro-batch, and each of its pieces, needs a
//! sample, so smaller batches are not tried.

use std::collections::BTreeMap;

use parkade_policies::Named;

use super::case::Case;
use super::point::{Bound, Point, Why};
use crate::bounds::BLOCK_BYTES;
use crate::study::threshold::{self, Trials};
use crate::study::{Ending, Outcome, RunOptions, make_for, run};
use crate::workload::{Event, Workload};

/// Batches tried above the first threshold, not counting those of bisections there.
const FURTHER_RUNS: usize = 16;

/// The largest batch whose load fits into the case's device, up to `most_batch`.
#[must_use]
pub(super) fn bound(case: &Case, most_batch: u64) -> Bound {
    let least = case.training.least_batch();
    // What cannot be generated is too large for any device. The smallest batch has been generated before.
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

/// The largest batch that fits under a policy.
pub(super) fn point(case: &Case, policy: &'static Named, bound: &Bound, most_batch: u64) -> Point {
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

/// What a batch that fits needs.
#[derive(Clone)]
struct Fits {
    reserved_bytes: u64,
    load_bytes: u64,
}

struct Search<'a> {
    /// The largest batch that can fit.
    most: u64,
    /// Runs a batch: what it needs, or why it does not fit.
    attempt: &'a dyn Fn(u64) -> Result<Fits, Why>,
    /// The result of each batch tried.
    tried: BTreeMap<u64, Result<Fits, Why>>,
}

/// Numbers are samples by which a batch is smaller than the largest.
impl Trials for Search<'_> {
    fn is_enough(&mut self, skipped: u64) -> bool {
        self.run(self.most - skipped).is_ok()
    }

    fn tried(&self) -> usize {
        self.tried.len()
    }
}

impl Search<'_> {
    /// The largest batch found to fit; `least - 1` if none does. `least` is the smallest that may be tried.
    fn largest(&mut self, least: u64) -> u64 {
        // A batch below the smallest one counts as fitting.
        let nothing = self.most + 1 - least;
        let skipped = if self.is_enough(0) { 0 } else { threshold::smallest(self, nothing, FURTHER_RUNS) };
        self.most - skipped
    }

    /// The largest batch below this one that was tried and does not fit.
    fn fails_below(&self, batch: u64) -> Option<u64> {
        self.tried.range(..batch).rev().find(|(_, result)| result.is_err()).map(|(batch, _)| *batch)
    }

    /// The result of a batch, which is tried only once.
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

/// Why a batch whose load fits was refused.
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

    /// The largest batch found from `least` to `most`, the largest below it that fails, and how many were tried.
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
}
