//! How much is reserved, allocated and live over the course of a workload, in a few points.

use parkade::policy::Policy;
use parkade::stats::{Family, Stats};

use super::options::RunOptions;
use super::run::{Outcome, run_watched};
use crate::workload::{Event, Workload};

/// Bytes over the course of a workload: each point is the highest value in its part of the events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Curves {
    /// Bytes taken from the device. A run that ends early has fewer points.
    pub reserved_bytes: Vec<u64>,
    /// Bytes of allocated blocks.
    pub allocated_bytes: Vec<u64>,
    /// The outcome of the run.
    pub outcome: Outcome,
}

/// Runs a workload and returns its curves, in at most `points` points (at least 1).
#[must_use]
pub fn curves(workload: &Workload, policy: Box<dyn Policy + Send>, options: &RunOptions, points: usize) -> Curves {
    let buckets = Buckets::new(workload, points);
    let (mut reserved_bytes, mut allocated_bytes) = (Vec::new(), Vec::new());
    let outcome = run_watched(workload, policy, options, |event, stats| {
        buckets.raise(&mut reserved_bytes, event, level(stats, Family::ReservedBytes));
        buckets.raise(&mut allocated_bytes, event, level(stats, Family::AllocatedBytes));
    });
    Curves { reserved_bytes, allocated_bytes, outcome }
}

/// The live bytes in the same points, each request rounded up to a multiple of `unit`.
///
/// # Panics
/// If `unit` is 0.
#[must_use]
pub fn live_curve(workload: &Workload, unit: u64, points: usize) -> Vec<u64> {
    let buckets = Buckets::new(workload, points);
    let (mut curve, mut sizes, mut live) = (Vec::new(), Vec::new(), 0_u64);
    for (number, event) in workload.events.iter().enumerate() {
        match *event {
            Event::Allocate { bytes, .. } => {
                let size = bytes.div_ceil(unit).saturating_mul(unit);
                sizes.push(size);
                live = live.saturating_add(size);
            }
            Event::Free { buffer } => live -= sizes.get_mut(buffer as usize).map_or(0, std::mem::take),
            _ => {}
        }
        buckets.raise(&mut curve, number, live);
    }
    curve
}

/// Maps events to points.
struct Buckets {
    events: usize,
    points: usize,
}

impl Buckets {
    fn new(workload: &Workload, points: usize) -> Buckets {
        let events = workload.events.len();
        Buckets { events, points: points.clamp(1, events.max(1)) }
    }

    fn raise(&self, curve: &mut Vec<u64>, event: usize, value: u64) {
        let place = (event as u128 * self.points as u128 / self.events.max(1) as u128) as usize;
        if curve.len() <= place {
            curve.resize(place + 1, 0);
        }
        curve[place] = curve[place].max(value);
    }
}

fn level(stats: &Stats, family: Family) -> u64 {
    u64::try_from(stats.family(family).all.current).unwrap_or(0)
}
