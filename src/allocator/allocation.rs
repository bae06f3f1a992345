//! The program's handle to a block, and the allocator that made it.
//!
//! A block's slot and generation are meaningful only in their own heap: a different allocator may use the same numbers
//! for a different block. Each allocator therefore gets a number when it is created. The number is only used to decide
//! whether an allocator accepts an allocation. It never appears in the output, so it may differ from run to run.
//!
//! A clone accepts the allocations of its originals. A replay makes clones of clones, one for each way in which the
//! recording can be read. All clones therefore share their originals, and each original also links to a much earlier
//! one (a skew-binary list), so finding an original takes a number of steps that is logarithmic in the number of
//! originals.

use alloc::sync::Arc;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::{fmt, iter};

use crate::block::BlockId;
use crate::units::DeviceAddress;

/// A block handed out to the program. It cannot be copied; free it once, with the
/// [`Allocator::free`](crate::Allocator::free) of the allocator that made it. Two allocations are equal if they are
/// the same block of equal allocators.
#[must_use = "memory that is not freed stays allocated"]
pub struct Allocation {
    address: DeviceAddress,
    pub(super) id: PackedId,
    pub(super) maker: Maker,
}

/// A block's slot and generation as one number. Two fields would be stored separately, and a program that moves the
/// allocation immediately, as most do, would stall until both stores reach the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedId(u64);

impl PackedId {
    #[inline(always)]
    pub(super) fn of(BlockId { index, generation }: BlockId) -> PackedId {
        PackedId(u64::from(generation) << 32 | u64::from(index))
    }

    /// The block's slot.
    #[inline(always)]
    pub(super) fn slot(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    fn unpacked(self) -> BlockId {
        BlockId { index: self.0 as u32, generation: (self.0 >> 32) as u32 }
    }
}

impl PartialEq for Allocation {
    fn eq(&self, other: &Allocation) -> bool {
        (self.address, self.id) == (other.address, other.id)
    }
}

impl Eq for Allocation {}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("address", &self.address).field("id", &self.id()).finish()
    }
}

impl Allocation {
    #[inline(always)]
    pub(super) fn new(address: DeviceAddress, id: PackedId, maker: Maker) -> Allocation {
        Allocation { address, id, maker }
    }

    /// The block's slot and generation.
    #[inline(always)]
    pub(super) fn id(&self) -> BlockId {
        self.id.unpacked()
    }

    /// The block's first byte.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// The same block, for a clone of its allocator that was made while the block was allocated. Use it only with the
    /// clone: the original accepts it too, and would free the same block twice.
    pub fn in_a_clone(&self) -> Allocation {
        Allocation { address: self.address, id: self.id, maker: self.maker }
    }
}

/// One more than the number of allocators made so far in this process.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// The number of the allocator that made an allocation. It is never zero, so that an optional allocation is no larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) struct Maker(NonZeroUsize);

impl Maker {
    fn next() -> Maker {
        Maker(NonZeroUsize::new(NEXT.fetch_add(1, Ordering::Relaxed)).expect("fewer than 2^64 allocators"))
    }
}

/// An allocator's number, and the numbers of the allocators that it was cloned from.
pub(super) struct Identity {
    own: Maker,
    /// The newest original.
    original: Option<Arc<Original>>,
}

/// An allocator that was cloned.
struct Original {
    maker: Maker,
    /// The number of its own originals.
    depth: usize,
    before: Option<Arc<Original>>,
    /// A much earlier original.
    far_before: Option<Arc<Original>>,
}

impl Identity {
    pub(super) fn new() -> Identity {
        Identity { own: Maker::next(), original: None }
    }

    /// The identity of a clone, which accepts the allocations of its originals.
    pub(super) fn of_clone(&self) -> Identity {
        let before = self.original.clone();
        let depth = before.as_ref().map_or(0, |before| before.depth + 1);
        let far = before.as_ref().and_then(|before| before.far_before.as_ref());
        let farther = far.and_then(|far| far.far_before.as_ref());
        let far_before = match (&before, far, farther) {
            (Some(before), Some(far), Some(farther)) if before.depth - far.depth == far.depth - farther.depth => {
                Some(farther.clone())
            }
            _ => before.clone(),
        };
        let original = Some(Arc::new(Original { maker: self.own, depth, before, far_before }));
        Identity { original, ..Identity::new() }
    }

    pub(super) fn own(&self) -> Maker {
        self.own
    }

    /// Whether this allocator accepts the allocations of the given maker.
    #[inline]
    pub(super) fn accepts(&self, maker: Maker) -> bool {
        maker == self.own || self.is_original(maker)
    }

    #[cold]
    #[inline(never)]
    fn is_original(&self, maker: Maker) -> bool {
        iter::successors(self.original.as_deref(), |one| one.toward(maker))
            .find(|one| one.maker <= maker)
            .is_some_and(|one| one.maker == maker)
    }
}

impl Original {
    /// The next original on the path to this maker. An original is older than its clones, so its number is smaller.
    fn toward(&self, maker: Maker) -> Option<&Original> {
        self.far_before.as_deref().filter(|far| far.maker >= maker).or(self.before.as_deref())
    }
}

impl Drop for Identity {
    /// Uses a loop to drop the originals that no other clone uses: dropping them recursively would overflow the stack.
    fn drop(&mut self) {
        let mut next = self.original.take();
        while let Some(mut original) = next.and_then(Arc::into_inner) {
            // This is not the last reference: the previous original also leads there.
            original.far_before = None;
            next = original.before.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn a_clone_accepts_what_its_originals_made_and_no_other() {
        let mut line: Vec<Identity> = [Identity::new()].into();
        let mut siblings: Vec<Identity> = Vec::new();
        for place in 0..100 {
            siblings.push(line[place].of_clone());
            line.push(line[place].of_clone());
        }
        for (place, identity) in line.iter().enumerate() {
            assert!(line.iter().enumerate().all(|(other, one)| identity.accepts(one.own()) == (other <= place)));
            assert!(!siblings.iter().any(|sibling| identity.accepts(sibling.own())));
        }
    }

    #[test]
    fn the_way_to_an_original_is_short_and_their_end_needs_no_stack() {
        let mut last = Identity::new();
        let first = last.own();
        for _ in 0..100_000 {
            last = last.of_clone();
        }
        assert!(last.accepts(first) && !last.accepts(Maker(NonZeroUsize::MAX)));
        let way = iter::successors(last.original.as_deref(), |one| one.toward(Maker(NonZeroUsize::MIN)));
        assert!(way.count() < 50);
    }
}
