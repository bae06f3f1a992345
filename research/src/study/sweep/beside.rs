//! What stands beside the policies in a sweep: how little memory each workload could do with, over its load.

use rayon::prelude::*;

use super::summary::{Level, over_all, over_workloads};
use super::{Plan, Source};
use crate::bounds::{Bounds, BoundsError};
use crate::packing::Effort;

/// Bounds of one workload, over its load; over the seeds as a policy's cell is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Beside {
    /// So much is enough for one that remaps pages of 2 MiB as it likes ([`crate::bounds::pages`]).
    pub page_ideal: Level,
    /// The best packing found, every lifetime known beforehand, nothing moved.
    pub packing: Level,
}

/// The bounds of all workloads of a plan, in its order. `sources` are the plan's; each packing is looked for in so many steps.
///
/// # Errors
/// See [`BoundsError`].
pub fn beside(plan: &Plan, sources: &[Source], steps: u64, pool: &rayon::ThreadPool) -> Result<Vec<Option<Beside>>, BoundsError> {
    let programs: Vec<(usize, u64)> = plan
        .workloads
        .iter()
        .enumerate()
        .flat_map(|(place, workload)| (1..=workload.seeds).map(move |seed| (place, seed)))
        .filter(|&(place, _)| place < sources.len())
        .collect();
    let ratios: Vec<(usize, [f64; 2])> = pool.install(|| {
        programs
            .into_par_iter()
            .map(|(place, seed)| {
                let bounds = Bounds::of(&(sources[place].make)(seed), &Effort { steps, ..Effort::default() })?;
                let load = bounds.load_512_bytes.max(1) as f64;
                let over = |bytes: u64| bytes as f64 / load;
                Ok((place, [over(bounds.pages.reached_bytes), over(bounds.packing.packing.height)]))
            })
            .collect::<Result<_, BoundsError>>()
    })?;
    let of = |wanted: usize, which: usize| -> Option<Level> {
        let values: Vec<f64> = ratios.iter().filter(|(place, _)| *place == wanted).map(|(_, ratios)| ratios[which]).collect();
        over_all(&values)
    };
    Ok((0..plan.workloads.len()).map(|place| Some(Beside { page_ideal: of(place, 0)?, packing: of(place, 1)? })).collect())
}

impl Beside {
    /// The geometric means over workloads of both bounds, the page ideal first, with intervals as for a policy.
    #[must_use]
    pub fn over_workloads(all: &[Option<Beside>]) -> [Option<Level>; 2] {
        let of = |which: fn(&Beside) -> Level| over_workloads(all.iter().flatten().map(which));
        [of(|beside| beside.page_ideal), of(|beside| beside.packing)]
    }
}
