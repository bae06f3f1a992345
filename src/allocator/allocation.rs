//! What a program holds of a block.

use core::fmt;

use super::identity::Maker;
use crate::block::BlockId;
use crate::units::DeviceAddress;

/// A block handed out. It goes back through [`Allocator::free`](crate::Allocator::free) of the allocator that made it, once: it cannot
/// be copied. Two are equal if they are the same block of equal allocators.
#[must_use = "memory that is not given back stays allocated"]
pub struct Allocation {
    address: DeviceAddress,
    id: PackedId,
    pub(super) maker: Maker,
}

/// A block's slot and generation as one number. Two halves would be written one after the other, and a program that
/// moves the allocation at once, as most do, would wait until both have reached the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PackedId(u64);

impl PackedId {
    #[inline(always)]
    fn of(BlockId { index, generation }: BlockId) -> PackedId {
        PackedId(u64::from(generation) << 32 | u64::from(index))
    }

    #[inline(always)]
    fn unpacked(self) -> BlockId {
        BlockId { index: self.0 as u32, generation: (self.0 >> 32) as u32 }
    }
}

/// What a request that was served at once is answered with: two registers, where an [`Allocation`] in a result would go
/// through memory.
#[derive(Clone, Copy)]
pub(super) struct Hit {
    address: DeviceAddress,
    id: PackedId,
}

impl Hit {
    /// No block: nothing was done.
    pub(super) const MISS: Hit = Hit { address: DeviceAddress(0), id: PackedId(u64::MAX) };

    /// The block, unless this is a miss.
    #[inline(always)]
    pub(super) fn made_by(self, maker: Maker) -> Option<Allocation> {
        let Hit { address, id } = self;
        // No block has all bits of an id set: its slot would be `NIL`.
        (id != Hit::MISS.id).then_some(Allocation { address, id, maker })
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
    pub(super) fn new(address: DeviceAddress, id: BlockId, maker: Maker) -> Allocation {
        Allocation { address, id: PackedId::of(id), maker }
    }

    /// The same without its maker.
    #[inline(always)]
    pub(super) fn hit(&self) -> Hit {
        Hit { address: self.address, id: self.id }
    }

    /// The block's slot and generation.
    #[inline(always)]
    pub(super) fn id(&self) -> BlockId {
        self.id.unpacked()
    }

    /// Its first byte.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// The same block for a clone of its allocator, made while the block was allocated. Each allocator takes
    /// back only one of the two.
    pub fn in_a_clone(&self) -> Allocation {
        Allocation { address: self.address, id: self.id, maker: self.maker }
    }
}
