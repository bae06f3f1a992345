//! A slab allocator: every segment serves one size.
//!
//! Our own design of a known kind; the idea is Bonwick's (The Slab Allocator: An Object-Caching Kernel Memory
//! Allocator, USENIX Summer 1994). All of its rules:
//! - sizes are rounded up to a class: a multiple of an eighth of the power of two below, of at least 512 bytes and at
//!   most 2 MiB. So there are eight classes between two powers of two, and from 16 MiB on one every 2 MiB;
//! - a slab is a segment for blocks of one class, stream and pool, side by side: 2 MiB for classes of up to 256 KiB,
//!   four blocks for those of up to 8 MiB, one block above, in whole steps of 2 MiB, which the device hands out;
//! - a request takes the smallest free run in the slabs of its class that are in use, of equal ones the lowest
//!   address; else a slab that is entirely free and has the size of one of its own, whatever class that had; else a
//!   new slab;
//! - when the device has no room, it waits for all events and looks again; then all slabs that are entirely free go
//!   back and it asks again, at last for a slab with a single block;
//! - before it gives up, the smallest free run of any class that is large enough serves, which then is no block of
//!   its slab's class.
//!
//! The policy learns nothing of blocks that are freed: what is free in a slab is in the heap, whose neighbours
//! coalesce. What it keeps is the class of each slab, by address, and a slab that is entirely free gets its class anew.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, Heap};

/// Classes are multiples of this, at least.
const LEAST_STEP: u64 = 512;
/// Segments are multiples of this, and it is the widest step from one class to the next.
const PAGE: Bytes = Bytes::mib(2);
/// The largest class with slabs of one page.
const MOST_IN_PAGE: Bytes = Bytes(256 * 1024);
/// The largest class with several blocks in a slab.
const MOST_SHARED: Bytes = Bytes::mib(8);
/// How many blocks a slab has whose class is between these two.
const BLOCKS: u64 = 4;

/// The rules of the slab allocator.
#[derive(Clone, Default, Debug)]
pub struct Slab {
    /// The class of each slab by its first byte. Stale where a slab is entirely free, or is gone.
    classes: BTreeMap<u64, u64>,
}

impl Slab {
    /// Without slabs.
    #[must_use]
    pub fn new() -> Slab {
        Slab::default()
    }

    /// The class of a request of this many bytes; `None` if it exceeds 64 bits.
    fn class(requested: Bytes) -> Option<Bytes> {
        let eighth = requested.get().checked_ilog2().map_or(0, |log| (1_u64 << log) >> 3);
        requested.checked_round_up(Bytes(eighth.clamp(LEAST_STEP, PAGE.get())))
    }

    /// The bytes of a slab of this class.
    fn slab(class: Bytes) -> Bytes {
        let blocks = if class <= MOST_SHARED { BLOCKS } else { 1 };
        if class <= MOST_IN_PAGE { PAGE } else { Slab::whole_pages(Bytes(class.get().saturating_mul(blocks))) }
    }

    fn whole_pages(bytes: Bytes) -> Bytes {
        bytes.checked_round_up(PAGE).unwrap_or(Bytes::MAX)
    }

    /// A free run in a slab of the request's class; or an entirely free slab of `slab` bytes, which becomes one of
    /// that class.
    fn find(&mut self, heap: &Heap, request: &Request, slab: Bytes) -> Option<BlockId> {
        self.find_in_use(heap, request).or_else(|| self.find_free_slab(heap, request, slab))
    }

    fn find_in_use(&self, heap: &Heap, request: &Request) -> Option<BlockId> {
        let mut runs = heap.at_least(request.pool, request.stream, request.size).filter(|run| run.is_split);
        let found = runs.find(|run| {
            let slab = self.classes.range(..=run.address.get()).next_back();
            slab.is_some_and(|(_, &class)| class == request.size.get())
        });
        found.map(|run| run.id)
    }

    fn find_free_slab(&mut self, heap: &Heap, request: &Request, slab: Bytes) -> Option<BlockId> {
        let mut blocks = heap.at_least(request.pool, request.stream, slab).take_while(|block| block.size == slab);
        let found = blocks.find(|block| !block.is_split)?;
        self.classes.insert(found.address.get(), request.size.get());
        Some(found.id)
    }

    /// Everything that can be released. Its slabs are forgotten.
    fn give_back(&mut self, heap: &Heap) -> Vec<BlockId> {
        if heap.is_deferring() {
            return Vec::new();
        }
        let free = heap.pool_slots().flat_map(|pool| heap.free_blocks(pool)).filter(|block| !block.is_split);
        free.for_each(|block| {
            self.classes.remove(&block.address.get());
        });
        heap.releasable()
    }
}

impl Policy for Slab {
    fn name(&self) -> &'static str {
        "slab"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        Slab::class(requested)
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        if heap.reserved() == Bytes::ZERO {
            self.classes.clear();
        }
        let slab = Slab::slab(request.size);
        match self.find(heap, request, slab) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(slab),
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        let (slab, single) = (Slab::slab(request.size), Slab::whole_pages(request.size));
        let provide = |bytes| Relief::Provide { bytes, stream: request.stream };
        let look = |policy: &mut Slab, bytes, otherwise: Relief| match policy.find(heap, request, bytes) {
            Some(block) => Relief::Reuse(block),
            None => otherwise,
        };
        match rung {
            0 | 4 => provide(slab),
            1 => look(self, slab, Relief::Borrow),
            // While a graph is captured this does nothing, and nothing goes back.
            2 => Relief::Wait,
            3 => match self.find(heap, request, slab) {
                Some(block) => Relief::Reuse(block),
                None => Relief::Release { blocks: self.give_back(heap), attempt: Attempt::No },
            },
            5 => look(self, slab, provide(single)),
            6 => {
                let any = heap.first_at_least(request.pool, request.stream, request.size);
                look(self, single, any.map_or(Relief::GiveUp, |run| Relief::Reuse(run.id)))
            }
            _ => Relief::GiveUp,
        }
    }
}
