//! Where each policy first needs more memory than the offline packing of a workload, with its first seed.

use anyhow::Result;
use parkade_research::study::sweep::BoundRatios;
use parkade_research::study::{Excess, first_excess};
use rayon::prelude::*;

use super::plan::{self, Args, Study};
use super::rows::plenty;
use crate::terminal::json_struct::view;

/// Returns the first request that a policy cannot serve in the memory of the packing, by policy and workload. The result is empty
/// if nothing was packed.
pub(super) fn find(args: &Args, study: &Study, beside: &[Option<BoundRatios>]) -> Result<Vec<Vec<Option<Excess>>>> {
    if beside.is_empty() {
        return Ok(Vec::new());
    }
    let pool = plan::threads(args, study.policies.len())?;
    let mut found: Vec<Vec<Option<Excess>>> = vec![Vec::new(); study.policies.len()];
    for (source, beside) in study.sources.iter().zip(beside) {
        let workload = (source.make)(1);
        let options = plenty(&study.plan, &workload);
        let of_policy = |policy| first_excess(&workload, policy, &options, beside.as_ref()?.packing_bytes);
        let excesses: Vec<Option<Excess>> = pool.install(|| study.policies.par_iter().map(of_policy).collect());
        found.iter_mut().zip(excesses).for_each(|(of_policy, excess)| of_policy.push(excess));
    }
    Ok(found)
}

view! {
    /// The first request that a policy cannot serve in the memory of the offline packing; `parkade stats --policy` lists the blocks.
    pub(super) struct FirstExcess(excess: &Excess) {
        /// The event that requests it.
        event: usize = excess.event,
        /// The requested bytes.
        requested_bytes: u64 = excess.requested_bytes,
        /// The bytes that the policy has reserved then.
        reserved_bytes: u64 = excess.reserved_bytes,
        /// The number of live blocks that are in the way.
        blocks_in_the_way: usize = excess.in_the_way.len(),
        /// The bytes of these blocks.
        bytes_in_the_way: u64 = excess.in_the_way.iter().map(|block| block.bytes).sum(),
    }
}
