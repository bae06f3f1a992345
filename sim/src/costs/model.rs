//! What a driver call costs: prices in nanoseconds, as an exchangeable model.

use std::fmt::Debug;

use crate::calls::CallName;

/// Prices of driver calls.
pub trait CostModel: Debug + Send + Sync {
    /// What one call costs in nanoseconds, waiting not included. `bytes` is what the call reserves or returns (whole pages; for
    /// a cudaMalloc that shares a page, its spaced size; for memory of cuMemCreate, its whole size), zero for calls about no
    /// memory and for calls that failed.
    fn cost_ns(&self, call: CallName, bytes: u64) -> u64;

    /// What one call costs that is about several pieces of mapped memory (cuMemSetAccess, cuMemUnmap), given the size of each;
    /// none are a call that failed or found nothing. Unless a model says otherwise: as much as a call for each.
    fn cost_of_handles_ns(&self, call: CallName, handle_bytes: &[u64]) -> u64 {
        match handle_bytes {
            [] => self.cost_ns(call, 0),
            sizes => sizes.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(self.cost_ns(call, bytes))),
        }
    }
}

/// Every call is free of charge.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoCost;

impl CostModel for NoCost {
    fn cost_ns(&self, _call: CallName, _bytes: u64) -> u64 {
        0
    }
}
