//! Remembers which sizes have been requested before, in a fixed amount of memory.

use alloc::boxed::Box;

use parkade::units::Bytes;

/// The number of sizes that are remembered: a power of two.
const SIZES: usize = 4096;

/// The requested sizes. Each size has a slot that it may share with others; the slot holds the most recent one.
#[derive(Clone, Debug)]
pub(crate) struct SeenSizes {
    sizes: Box<[u64; SIZES]>,
    /// The size of the current request, and its answer. The allocator may ask about the request again after it has run
    /// the program's free-memory callbacks.
    open: Option<(Bytes, bool)>,
}

impl Default for SeenSizes {
    fn default() -> SeenSizes {
        SeenSizes { sizes: Box::new([0; SIZES]), open: None }
    }
}

impl SeenSizes {
    /// Records a size. Returns whether this is the first request of the size, as far as is remembered. The answer
    /// stays the same until [`SeenSizes::close`].
    #[inline]
    pub(crate) fn note(&mut self, size: Bytes) -> bool {
        if let Some((open, is_first)) = self.open
            && open == size
        {
            return is_first;
        }
        let is_first = match self.sizes.get_mut(SeenSizes::place_of(size)) {
            Some(seen) => core::mem::replace(seen, size.get()) != size.get(),
            None => false,
        };
        self.open = Some((size, is_first));
        is_first
    }

    /// Ends the current request: the allocator will not ask about it again.
    #[inline]
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    /// The slot of a size. Fibonacci hashing: the high bits of the product depend on all bits of the size.
    #[inline]
    fn place_of(size: Bytes) -> usize {
        (size.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SIZES.ilog2())) as usize
    }
}
