//! The largest batch that fits.
//!
//! What the load allows is searched first: doubled from the smallest batch, then bisected. A policy is then tried at that batch, and where it
//! fails there, a border is bisected below. Whether a batch fits need not be monotone: a policy may serve a larger batch and refuse a
//! smaller one. So further batches are tried between the border and what the load allows, all of them if they are few ([`border`]). What is
//! found is the largest of the batches tried that fits, and one sample more does not. Gradient accumulation needs a sample for each
//! micro-batch, so smaller batches are not tried with it.

use std::collections::BTreeMap;

use parkade::policy::catalogue::Named;

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
    let mut search = Search { case, policy, steps, most: bound.batch, tried: BTreeMap::new() };
    // Nothing at all, below the smallest batch, suffices always.
    let skipped = if search.suffices(0) { 0 } else { border::least(&mut search, bound.batch + 1 - least, FURTHER_RUNS) };
    let batch = bound.batch - skipped;
    if let Some(Ok(Fits { reserved_bytes, load_bytes })) = search.tried.get(&batch) {
        (point.batch, point.reserved_bytes, point.load_bytes) = (batch, *reserved_bytes, *load_bytes);
    }
    point.fails_below_batch = search.tried.range(..batch).rev().find(|(_, result)| result.is_err()).map(|(batch, _)| *batch);
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
    case: &'a Case,
    policy: &'static Named,
    steps: u64,
    /// The largest batch that can fit.
    most: u64,
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
    /// What came of a batch: tried once.
    fn run(&mut self, batch: u64) -> Result<Fits, Why> {
        if let Some(known) = self.tried.get(&batch) {
            return known.clone();
        }
        let result = self.attempt(batch);
        self.tried.insert(batch, result.clone());
        result
    }

    fn attempt(&self, batch: u64) -> Result<Fits, Why> {
        let Ok(workload) = self.case.with_batch(batch).workload(self.steps) else {
            return Err(Why::Load { batch, load_bytes: u64::MAX });
        };
        let load_bytes = workload.load_bytes(BLOCK_BYTES);
        if load_bytes > self.case.usable_bytes {
            return Err(Why::Load { batch, load_bytes });
        }
        let outcome = run(&workload, (self.policy.make)(), &RunOptions::new(self.case.usable_bytes));
        match &outcome.ending {
            Ending::Fits => Ok(Fits { reserved_bytes: outcome.peak_reserved_bytes, load_bytes }),
            Ending::Fault(reason) => Err(Why::Fault { batch, reason: reason.clone() }),
            Ending::OutOfMemory => Err(stranded(&workload, batch, &outcome)),
        }
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
