//! A policy that looks for free blocks by address: one expandable segment, the lowest address that fits.

use alloc::vec::Vec;

use crate::heap::{Heap, PoolSlot};
use crate::policy::{Attempt, FreeOrder, Placement, Policy, Relief, Request};
use crate::units::{Bytes, DeviceAddress, PoolClass};

/// First fit, which never releases anything.
pub(super) struct Lowest;

impl Policy for Lowest {
    fn name(&self) -> &'static str {
        "lowest"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        true
    }

    fn free_order(&self) -> FreeOrder {
        FreeOrder::ByAddress
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.lowest_at_least(request.pool, request.stream, request.size, DeviceAddress(0)) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size),
        }
    }

    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, _: &Heap, _: &Request, rung: u32) -> Relief {
        match rung {
            0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            _ => Relief::GiveUp,
        }
    }
}
