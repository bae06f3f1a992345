//! Floating handles: best fit on memory taken in few, large handles, of which whole free ones move to where they are needed.
//!
//! Our own; what was tried before and what it needs is in `docs/better-policy.md`. A driver call costs nearly the same for
//! a handle of 2 MiB and for one of 128 MiB, so large handles are cheap, but a handle with anything in it cannot move. So:
//! - handles grow with what is reserved, and shrink again towards the limit, where the last free bytes count;
//! - a request that no free block serves takes new handles, as long as there is memory for what it misses;
//! - then it takes what it needs of the tightest free block of another stream, behind the work of that stream, without waiting;
//! - then handles that are wholly free, of any stream, as few as suffice, are unmapped and mapped where the request's segment
//!   misses the least; everything else stays as it is;
//! - of the few smallest blocks that fit, that one serves which costs the least: a part of its size, and what it pins, the
//!   bytes of whole free handles that the request would keep from moving without using them;
//! - once a request takes a large part of the memory, handles are finer: such a request must be put together from whole ones;
//! - the first request of its size takes the high end of the block that serves it, others the low end: what comes once, as
//!   weights do, and what comes again and again then lie apart;
//! - only when that is not enough, it waits for events, and in the end everything free goes back.
//!
//! Every stream has a segment of its own. Private pools take parts of them, cached or new, in which no work is pending.

use alloc::boxed::Box;
use alloc::vec::Vec;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, DeviceAddress, PoolClass};
use parkade::{BlockId, BlockView, HandleView, Heap, PoolSlot};

/// Sizes are multiples of this.
const UNIT: Bytes = Bytes(512);
/// Handles are multiples of this, the least that the driver maps.
const PAGE: Bytes = Bytes::mib(2);
/// The first handles of the default pool, unless the memory is small.
const FIRST: Bytes = Bytes::mib(64);
/// The smallest handles, unless less is left.
const LEAST: Bytes = Bytes::mib(8);
/// The largest handles, unless a request misses more.
const MOST: Bytes = Bytes::mib(1024);
/// A handle is at most this part of what the default pool has reserved, from [`FIRST`] on.
const PART_OF_RESERVED: u64 = 4;
/// A handle is at most so many times what is missing, from [`LEAST`] on: a stream that needs little gets little.
const TIMES_MISSING: u64 = 32;
/// A handle is at most this part of what may still be reserved, down to [`LEAST`].
const PART_OF_LEFT: u64 = 8;
/// What a request misses is at most so many handles.
const MOST_HANDLES: u64 = 4;
/// A request of at least this part of the memory is large.
const PART_OF_LARGE: u64 = 8;
/// After a large request, handles of the default pool are at most this part of the memory, down to [`LEAST`].
const PART_OF_FINE: u64 = 128;
/// After a large request, what a request misses is at most so many handles.
const MOST_FINE_HANDLES: u64 = 64;
/// So many blocks are compared for a request.
const COMPARED: usize = 4;
/// A block costs its size over this, and the bytes that it pins.
const SIZE_OVER: u64 = 4;

/// How many sizes are remembered: a power of two.
const SIZES: usize = 4096;

/// The rules of floating handles.
#[derive(Clone, Debug)]
pub struct FloatingHandles {
    /// Sizes that were requested, each at a place that it may share with others: what came last is there.
    seen: Box<[u64; SIZES]>,
    /// Whether the current request is the first of its size.
    is_first: bool,
    /// Whether there was a large request.
    is_fine: bool,
    /// The largest handles, if not by the rules.
    most: Option<Bytes>,
    /// The next step of the ladder.
    step: u32,
}

impl Default for FloatingHandles {
    fn default() -> FloatingHandles {
        FloatingHandles { seen: Box::new([0; SIZES]), is_first: false, is_fine: false, most: None, step: 0 }
    }
}

impl FloatingHandles {
    /// The rules with handles of at most `most` bytes, a multiple of 2 MiB: smaller ones need less memory and more driver calls.
    #[must_use]
    pub fn with_handles(most: Bytes) -> FloatingHandles {
        FloatingHandles { most: Some(most), ..FloatingHandles::default() }
    }

    /// Notes a size. Returns whether it is the first of it, as far as is remembered.
    #[inline]
    fn note(&mut self, size: Bytes) -> bool {
        // Fibonacci hashing: the high bits of the product depend on all bits of the size.
        let place = size.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SIZES.ilog2());
        match self.seen.get_mut(place as usize) {
            Some(seen) => core::mem::replace(seen, size.get()) != size.get(),
            None => false,
        }
    }

    fn find(heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id)
    }

    /// The tightest free block of another stream.
    fn elsewhere(heap: &Heap, request: &Request) -> Option<BlockId> {
        let blocks = heap.first_at_least_elsewhere(request.pool, request.stream, request.size);
        blocks.min_by_key(|block| (block.size, block.address)).map(|block| block.id)
    }

    /// The block for the request: of a few, that with the least cost; of equal ones the smallest.
    #[inline]
    fn choose(&self, heap: &Heap, request: &Request) -> Option<BlockId> {
        let first = heap.first_at_least(request.pool, request.stream, request.size)?;
        let rest = first.size - request.size;
        // What a block pins is a part of what the request leaves of it, so a next one that is larger by so much is no better.
        let is_no_better = |next: BlockView| (next.size - first.size).get() >= rest.get() * SIZE_OVER;
        if rest < LEAST || is_private(request) || heap.following(first.id).is_none_or(is_no_better) {
            return Some(first.id);
        }
        let few = heap.at_least(request.pool, request.stream, request.size).take(COMPARED);
        let cost = |block: &BlockView| block.size.get() / SIZE_OVER + self.pinned(heap, block, request.size);
        few.min_by_key(cost).map(|block| block.id)
    }

    /// The bytes of the block's whole free handles that `size` bytes at its end would pin without using them.
    fn pinned(&self, heap: &Heap, block: &BlockView, size: Bytes) -> u64 {
        let (low, high) = (block.address.get(), block.address.get() + block.size.get());
        let (begin, end) = if self.is_first { (high - size.get(), high) } else { (low, low + size.get()) };
        let handles = heap.handles_in(block.id).map(|handle| (handle.address.get(), handle.address.get() + handle.size.get()));
        let touched = handles.skip_while(|&(_, to)| to <= begin).take_while(|&(from, _)| from < end);
        touched.map(|(from, to)| (to - from) - (to.min(end) - from.max(begin))).sum()
    }

    /// Bytes that may be reserved in all.
    fn all(heap: &Heap) -> u64 {
        heap.limit().map_or(heap.device_total(), |limit| limit.min(heap.device_total())).get()
    }

    /// Bytes that may still be reserved.
    fn left(heap: &Heap) -> u64 {
        FloatingHandles::all(heap).saturating_sub(heap.reserved().get())
    }

    /// Whole free handles of the default pool for what the request misses: the tightest that is enough, or else the largest
    /// and so on. None if they are not enough together with what may still be reserved.
    fn movable(heap: &Heap, request: &Request) -> Vec<DeviceAddress> {
        let place = heap.growth_place(request.pool, request.stream, request.size, PAGE);
        let is_elsewhere = |handle: &HandleView| !place.addresses.contains(&handle.address);
        let slots = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
        let blocks = slots.into_iter().flat_map(|slot| heap.free_blocks(slot));
        let mut free: Vec<HandleView> = blocks.flat_map(|block| heap.handles_in(block.id)).filter(is_elsewhere).collect();
        free.sort_unstable_by_key(|handle| (handle.size, handle.address));
        let (mut missing, mut chosen) = (place.missing.get(), Vec::new());
        while missing > 0 && !free.is_empty() {
            let enough = free.partition_point(|handle| handle.size.get() < missing);
            let handle = free.remove(enough.min(free.len() - 1));
            missing = missing.saturating_sub(handle.size.get());
            chosen.push(handle.address);
        }
        if missing > FloatingHandles::left(heap) { Vec::new() } else { chosen }
    }

    /// Whether there is memory for what the request misses, as far as the heap knows.
    fn has_room(heap: &Heap, request: &Request) -> bool {
        let place = heap.growth_place(request.pool, request.stream, request.size, PAGE);
        place.missing.get() <= FloatingHandles::left(heap)
    }
}

/// Whether the request is for a private pool.
#[inline]
fn is_private(request: &Request) -> bool {
    request.pool != PoolSlot::default_pool(request.pool.class())
}

impl Policy for FloatingHandles {
    fn name(&self) -> &'static str {
        "floating-handles"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(UNIT)
    }

    #[inline]
    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    #[inline]
    fn is_expandable(&self, _: PoolSlot) -> bool {
        true
    }

    fn page(&self, _: PoolSlot) -> Bytes {
        PAGE
    }

    fn annexes(&self) -> bool {
        true
    }

    fn handle(&self, heap: &Heap, request: &Request, missing: Bytes) -> Option<Bytes> {
        let grown = FIRST.max(Bytes(heap.reserved_in(request.pool).get() / PART_OF_RESERVED));
        let for_request = Bytes(missing.get().saturating_mul(TIMES_MISSING));
        let near_the_end = Bytes(FloatingHandles::left(heap) / PART_OF_LEFT);
        let (most, handles) = match self.most {
            Some(most) => (most, u64::MAX),
            None if self.is_fine => (MOST.min(Bytes(FloatingHandles::all(heap) / PART_OF_FINE)), MOST_FINE_HANDLES),
            None => (MOST, MOST_HANDLES),
        };
        let usual = grown.min(for_request).min(near_the_end).min(most).max(LEAST.min(self.most.unwrap_or(LEAST)));
        usual.max(Bytes(missing.get() / handles)).checked_round_up(PAGE)
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        self.is_first = self.note(request.size);
        match self.choose(heap, request) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(request.size.checked_round_up(PAGE).unwrap_or(Bytes::MAX)),
        }
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    #[inline]
    fn takes_high_end(&self, _: &Request) -> bool {
        self.is_first
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            self.step = 0;
            self.is_fine |= request.size.get() >= FloatingHandles::all(heap) / PART_OF_LARGE;
            return Relief::Annex;
        }
        loop {
            let step = self.step;
            self.step += 1;
            match step {
                0 if FloatingHandles::has_room(heap, request) => {
                    return Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask };
                }
                1 | 4 if !heap.is_deferring() => {
                    if step == 4
                        && let Some(block) = FloatingHandles::find(heap, request)
                    {
                        return Relief::Reuse(block);
                    }
                    if let Some(block) = FloatingHandles::elsewhere(heap, request) {
                        return Relief::TransferPart { block };
                    }
                    let handles = FloatingHandles::movable(heap, request);
                    if !handles.is_empty() {
                        return Relief::Move { handles };
                    }
                }
                2 => return Relief::Borrow,
                3 if heap.is_deferring() => return Relief::GiveUp,
                3 => return Relief::Wait,
                5 => return Relief::Release { blocks: heap.releasable(), attempt: Attempt::AskAgain },
                0 | 1 | 4 => {}
                _ => return Relief::GiveUp,
            }
        }
    }
}
