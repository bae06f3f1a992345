//! Stamps by which a policy tells which block became free last.

use core::cell::Cell;

/// Counts the blocks that became free.
#[derive(Clone, Default, Debug)]
pub(crate) struct Stamps(Cell<u64>);

impl Stamps {
    /// None so far.
    pub(crate) const fn new() -> Stamps {
        Stamps(Cell::new(0))
    }

    /// The stamp of a block that becomes free: greater than all before.
    #[inline]
    pub(crate) fn next_stamp(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}
