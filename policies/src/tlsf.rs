//! TLSF, two-level segregated fit: a good fit in constant time.
//!
//! Masmano, Ripoll, Crespo and Real, TLSF: a New Dynamic Memory Allocator for Real-Time Systems (ECRTS 2004), and the values of
//! mattconte/tlsf (tlsf.c, commit 063fe47): free blocks are in lists by size, 32 lists between two powers of two, and below
//! 16 KiB one for every 512 bytes. A request is rounded up to the start of a list, so that any block in that list or a larger one
//! fits without a search; the first non-empty list gives the block that entered it last. Every remainder is split off, and free
//! neighbours merge at once.
//!
//! Different here: the unit is 512 bytes, not 8. There are no headers, so no remainder is too short to be split off; in the
//! original one shorter than a header stays. The pool grows as in [`super::growing_region`], while the original is given a fixed
//! one. The head of a list is found by scanning the list's blocks, because the heap keeps them by size. Before it reports out of
//! memory, this policy also searches the list below, which may have a block of the request's own size; the original does not.

use core::cell::Cell;

use crate::growing_region::{Fit, GrowingRegion};
use parkade::policy::Request;
use parkade::units::Bytes;
use parkade::{BlockId, Heap};

/// Two-level segregated fit on one growing region for each stream.
pub type Tlsf = GrowingRegion<TwoLevels>;

/// The base-2 logarithm of the number of lists between two powers of two.
const LISTS_LOG2: u32 = 5;
/// The base-2 logarithm of the unit of sizes.
const UNIT_LOG2: u32 = 9;

/// The width in bytes of the list that a size belongs to: a power of two.
fn width(size: u64) -> u64 {
    1 << size.max(1).ilog2().saturating_sub(LISTS_LOG2).max(UNIT_LOG2)
}

/// Chooses the newest block of the first non-empty list in which all blocks are large enough.
#[derive(Clone, Default, Debug)]
pub struct TwoLevels {
    /// How many blocks have become free so far.
    clock: Cell<u64>,
}

impl Fit for TwoLevels {
    fn name(&self) -> &'static str {
        "tlsf"
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
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }
}

#[cfg(test)]
mod tests {
    use super::width;

    /// 32 lists per power of two, none narrower than 512 bytes: from 16 KiB a list is as wide as a thirty-second of the power of
    /// two below.
    #[test]
    fn lists() {
        let widths = [512, 16_383, 16_384, 32_767, 32_768, 1 << 20, (1 << 21) - 1, 1 << 30].map(width);
        assert_eq!(widths, [512, 512, 512, 512, 1024, 32_768, 32_768, 1 << 25]);
    }
}
