//! Which sizes were requested before, in fixed memory.

use alloc::boxed::Box;

use parkade::units::Bytes;

/// How many sizes are remembered: a power of two.
const SIZES: usize = 4096;

/// Sizes that were requested, each at a place that it may share with others: what came last is there.
#[derive(Clone, Debug)]
pub(crate) struct SeenSizes {
    sizes: Box<[u64; SIZES]>,
    /// The size of a request that may be asked about again, and what was answered: functions of the program that free memory run in
    /// between.
    open: Option<(Bytes, bool)>,
}

impl Default for SeenSizes {
    fn default() -> SeenSizes {
        SeenSizes { sizes: Box::new([0; SIZES]), open: None }
    }
}

impl SeenSizes {
    /// Notes a size. Returns whether it is the first of it, as far as is remembered; the same again until [`SeenSizes::close`].
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

    /// The request is asked about no more.
    #[inline]
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    /// Whether the size is remembered.
    #[inline]
    pub(crate) fn has(&self, size: Bytes) -> bool {
        self.sizes.get(SeenSizes::place_of(size)) == Some(&size.get())
    }

    /// Where a size is remembered. Fibonacci hashing: the high bits of the product depend on all bits of the size.
    #[inline]
    fn place_of(size: Bytes) -> usize {
        (size.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SIZES.ilog2())) as usize
    }
}
