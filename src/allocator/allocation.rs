//! What a program holds of a block.

use core::fmt;

use super::identity::Maker;
use crate::block::BlockId;
use crate::units::DeviceAddress;

/// A block handed out. It goes back through [`Allocator::free`](crate::Allocator::free) of the allocator that made it, once: it cannot
/// be copied. Two are equal if they are the same block of equal allocators.
#[must_use = "memory that is not given back stays allocated"]
pub struct Allocation {
    pub(super) address: DeviceAddress,
    pub(super) id: BlockId,
    pub(super) maker: Maker,
}

impl PartialEq for Allocation {
    fn eq(&self, other: &Allocation) -> bool {
        (self.address, self.id) == (other.address, other.id)
    }
}

impl Eq for Allocation {}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("address", &self.address).field("id", &self.id).finish()
    }
}

impl Allocation {
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
