//! A policy chosen at run time is a policy too.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Coalescing, Placement, Policy, Relief, Request};
use crate::block::BlockId;
use crate::heap::{Heap, PoolSlot};
use crate::profile::Profile;
use crate::units::{Bytes, PoolClass};

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn profile(&self) -> &'static Profile {
        (**self).profile()
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        (**self).round(requested)
    }

    fn classify(&self, size: Bytes) -> PoolClass {
        (**self).classify(size)
    }

    fn grows(&self, pool: PoolSlot) -> bool {
        (**self).grows(pool)
    }

    fn page(&self, pool: PoolSlot) -> Bytes {
        (**self).page(pool)
    }

    fn reservation(&self, total: Bytes) -> Bytes {
        (**self).reservation(total)
    }

    fn rejects(&self, reserved: Bytes, size: Bytes, total: Bytes) -> bool {
        (**self).rejects(reserved, size, total)
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        (**self).place(heap, request)
    }

    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        (**self).splits(whole, request)
    }

    fn cut(&self, whole: Bytes, request: &Request) -> Bytes {
        (**self).cut(whole, request)
    }

    fn coalescing(&self) -> Coalescing {
        (**self).coalescing()
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        (**self).relieve(heap, request, rung)
    }

    fn releases_during_captures(&self) -> bool {
        (**self).releases_during_captures()
    }

    fn releasable(&self, heap: &Heap) -> Vec<BlockId> {
        (**self).releasable(heap)
    }

    fn keeps_memory(&self) -> bool {
        (**self).keeps_memory()
    }

    fn looks_after_waiting(&self) -> bool {
        (**self).looks_after_waiting()
    }

    fn looks_by_address(&self) -> bool {
        (**self).looks_by_address()
    }

    fn stamp(&self, pool: PoolSlot) -> u64 {
        (**self).stamp(pool)
    }

    fn is_oversize(&self, size: Bytes) -> bool {
        (**self).is_oversize(size)
    }

    fn max_split_size(&self) -> i64 {
        (**self).max_split_size()
    }
}
