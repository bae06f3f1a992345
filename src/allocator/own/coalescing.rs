//! Free blocks that the policy has kept apart ([`Policy::coalesces`]) coalesce after all: when the policy says so, or where
//! the allocator needs one block. In PyTorch, all adjacent free blocks of a stream coalesce at once.

use alloc::vec::Vec;

use crate::allocator::Allocator;
use crate::block::BlockState;
use crate::device::DeviceBackend;
use crate::policy::Policy;
use crate::trace::Observer;

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Coalesces all adjacent free blocks, of all pools or of one.
    pub(in crate::allocator) fn coalesce_all(&mut self, pool_number: Option<u16>) {
        if self.heap.keeps_apart() {
            self.coalesce(self.heap.apart(pool_number));
        }
    }

    /// Coalesces the free blocks of segments in which nothing is in use, before the cache is released.
    pub(in crate::allocator) fn coalesce_idle_segments(&mut self) {
        if self.heap.keeps_apart() {
            self.coalesce(self.heap.apart_in_idle_segments());
        }
    }

    /// Coalesces each of these free blocks with its free neighbours. One of them may have absorbed the next.
    fn coalesce(&mut self, apart: Vec<u32>) {
        for index in apart {
            if self.heap.arena.at(index).state == BlockState::Free {
                self.heap.detach(index);
                self.put_back_joined(index);
            }
        }
    }
}
