//! The rule of TLSF on a growing region of remappable pages: not how TLSF is used. [`super::tlsf`] is.
//!
//! Free blocks are in lists by size, 32 lists between two powers of two, below 16 KiB one per 512 bytes. A
//! request is rounded up to the start of a list, so that every block of that list or a larger one serves it;
//! the first list that is not empty yields the block that entered it last.
//!
//! The unit is 512 bytes and there are no headers, so no remainder is too short to split off. The pool grows
//! as [`super::growing_region`] describes. The head of a list is found by searching the list, because the heap
//! keeps blocks by size. Before it is out of memory the policy also searches the list below, where a block of
//! the request's own size may be; the original does not.

use parkade::policy::Request;
use parkade::units::Bytes;
use parkade::{BlockId, Heap};

use crate::growing_region::{Fit, GrowingRegion};
use crate::stamps::Stamps;

/// Two-level segregated fit on one growing region per stream.
pub type TlsfRemap = GrowingRegion<TwoLevels>;

/// log2 of the number of lists between two powers of two.
const LISTS_LOG2: u32 = 5;
/// log2 of the unit of sizes.
const UNIT_LOG2: u32 = 9;

/// The width in bytes of the list of a size: a power of two.
fn width(size: u64) -> u64 {
    1 << size.max(1).ilog2().saturating_sub(LISTS_LOG2).max(UNIT_LOG2)
}

/// Chooses the block that entered last in the first list whose blocks are all large enough.
#[derive(Clone, Default, Debug)]
pub struct TwoLevels {
    /// Of blocks that become free.
    stamps: Stamps,
}

impl Fit for TwoLevels {
    fn name(&self) -> &'static str {
        "tlsf-remap"
    }

    #[inline]
    fn find(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        let start = request.size.checked_round_up(Bytes(width(request.size.0)))?;
        let first = heap.first_at_least(request.pool, request.stream, start)?;
        let width = width(first.size.0);
        let list = first.size.0 & !(width - 1);
        heap.latest(request.pool, request.stream, Bytes(list)..Bytes(list.saturating_add(width))).map(|block| block.id)
    }

    fn find_at_last(&mut self, heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id)
    }

    #[inline]
    fn stamp(&self) -> u64 {
        self.stamps.next_stamp()
    }
}

#[cfg(test)]
mod tests {
    use super::width;

    /// 32 lists per power of two, none narrower than 512 bytes: from 16 KiB on, a list is 1/32 of the power
    /// of two below.
    #[test]
    fn lists() {
        let widths = [512, 16_383, 16_384, 32_767, 32_768, 1 << 20, (1 << 21) - 1, 1 << 30].map(width);
        assert_eq!(widths, [512, 512, 512, 512, 1024, 32_768, 32_768, 1 << 25]);
    }
}
