//! What two ideal allocators need for a sweep's workloads, over their loads, to compare policies with. Neither result is
//! a lower bound for an allocator that learns of requests one by one: both cut corners that it need not cut, and the
//! packer does not always find the best packing.

use rayon::prelude::*;

use super::jobs::Source;
use super::levels::{Level, over_all};
use super::plan::Plan;
use crate::bounds::{Bounds, BoundsError};
use crate::packing::Effort;

/// What ideal allocators need for one workload, over its load: means over its seeds, like those of a policy's cell.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BoundRatios {
    /// Enough for an ideal allocator that remaps pages of 2 MiB at will, gives each buffer of at least a page its own, and
    /// has the smaller ones packed offline ([`crate::bounds::pages`]).
    pub page_ideal: Level,
    /// The best packing that the offline packer found, with every lifetime known in advance and nothing moved.
    pub packing: Level,
}

/// These results for all workloads of a plan, in its order. `sources` are the plan's; the packer gets `steps` for each
/// packing.
///
/// # Errors
/// [`BoundsError`] for a workload without bounds.
pub fn bound_ratios(
    plan: &Plan,
    sources: &[Source],
    steps: u64,
    pool: &rayon::ThreadPool,
) -> Result<Vec<Option<BoundRatios>>, BoundsError> {
    let seeded: Vec<(usize, u64)> = plan
        .workloads
        .iter()
        .enumerate()
        .flat_map(|(place, workload)| (1..=workload.seeds).map(move |seed| (place, seed)))
        .filter(|&(place, _)| place < sources.len())
        .collect();
    let ratios: Vec<(usize, [f64; 2])> = pool.install(|| {
        seeded
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
    Ok((0..plan.workloads.len()).map(|place| Some(BoundRatios { page_ideal: of(place, 0)?, packing: of(place, 1)? })).collect())
}
