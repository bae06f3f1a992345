//! The price of a driver call, as an interface that other GPUs can implement.

use std::fmt::Debug;

use crate::calls::CallName;

/// The prices of driver calls in nanoseconds, without waiting.
pub trait CostModel: Debug + Send + Sync {
    /// The price of one call. `bytes` is what the call takes or returns: whole pages; for a cudaMalloc that
    /// shares a page, its spaced size; for created memory, its whole size. It is zero for calls that failed
    /// and for calls that are not about memory.
    fn cost_ns(&self, call: CallName, bytes: u64) -> u64;

    /// The price of one call about several mappings (cuMemSetAccess, cuMemUnmap), given the size of each. No
    /// sizes mean that the call failed or found nothing mapped. By default, the sum of one call for each.
    fn cost_of_handles_ns(&self, call: CallName, handle_bytes: &[u64]) -> u64 {
        match handle_bytes {
            [] => self.cost_ns(call, 0),
            sizes => sizes.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(self.cost_ns(call, bytes))),
        }
    }
}

/// No call takes any time.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoCost;

impl CostModel for NoCost {
    fn cost_ns(&self, _call: CallName, _bytes: u64) -> u64 {
        0
    }
}
