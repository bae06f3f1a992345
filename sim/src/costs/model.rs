//! The price of a driver call, as an interface that other GPUs can implement.

use std::fmt::Debug;

use crate::calls::CallName;

/// The prices of driver calls in nanoseconds, without waiting.
pub trait CostModel: Debug + Send + Sync {
    /// The price of one call. `bytes` is what the call takes or returns: whole pages; for a cudaMalloc that
    /// shares a page, its spaced size; for created memory, its whole size. It is zero for calls that failed
    /// and for calls that are not about memory.
    fn cost_ns(&self, call: CallName, bytes: u64) -> u64;

    /// The price of one call about several mappings (cuMemSetAccess, cuMemUnmap), given their sizes in order:
    /// the size of one, and how many in a row have it. No sizes mean that the call failed or found nothing
    /// mapped. By default, the sum of one call for each.
    fn cost_of_handles_ns(&self, call: CallName, handle_bytes: &[(u64, u64)]) -> u64 {
        let of_each = |&(bytes, count): &(u64, u64)| self.cost_ns(call, bytes).saturating_mul(count);
        match handle_bytes {
            [] => self.cost_ns(call, 0),
            sizes => sizes.iter().map(of_each).fold(0, u64::saturating_add),
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
