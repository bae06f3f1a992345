//! Which allocator made an allocation.
//!
//! A block's slot and generation mean something only in the heap that they are from: another allocator may have
//! a block of its own under the same numbers. So allocators are numbered as they are made. The number decides
//! nothing but whether an allocation is accepted, and nothing shows it, so it may differ from run to run.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Allocators made so far in this process.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// The number of the allocator that made an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Maker(usize);

/// An allocator's number, and those of the allocators that it is a clone of.
pub(super) struct Identity {
    own: Maker,
    /// The originals, oldest first.
    originals: Vec<Maker>,
}

impl Identity {
    pub(super) fn new() -> Identity {
        Identity { own: Maker(MADE.fetch_add(1, Ordering::Relaxed)), originals: Vec::new() }
    }

    /// The identity of a clone, which takes back what its originals made.
    pub(super) fn of_clone(&self) -> Identity {
        let originals = self.originals.iter().copied().chain([self.own]).collect();
        Identity { originals, ..Identity::new() }
    }

    pub(super) fn own(&self) -> Maker {
        self.own
    }

    /// Whether this allocator takes back what the other made.
    #[inline]
    pub(super) fn accepts(&self, maker: Maker) -> bool {
        maker == self.own || self.is_original(maker)
    }

    #[cold]
    #[inline(never)]
    fn is_original(&self, maker: Maker) -> bool {
        self.originals.contains(&maker)
    }
}
