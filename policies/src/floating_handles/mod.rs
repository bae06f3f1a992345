//! Floating handles: best fit on memory taken in a few large handles. Entirely free handles move to where they are needed.
//!
//! This is our own policy; `docs/better-policy.md` says what we tried before and how much memory it needs. A driver call
//! costs nearly the same for a handle of 2 MiB and for one of 128 MiB, so large handles are cheap, but a handle with any
//! block in use cannot move. So:
//! - handles grow with the reserved bytes, and shrink again towards the limit, where the last free bytes count;
//! - a request that no free block serves takes new handles, as long as there is memory for the bytes that it lacks;
//! - then it takes the bytes that it needs from the tightest free block of another stream, ordered after that stream's work,
//!   without making the host wait;
//! - then entirely free handles of any stream, as few as suffice, are unmapped and mapped where the request's segment lacks
//!   the fewest bytes; all others stay where they are;
//! - of the few smallest blocks that fit, the cheapest one serves. Its cost is a part of its size, plus the bytes that it
//!   pins: those of entirely free handles that the request would keep from moving without using them;
//! - once a request takes a large part of the memory, handles are finer, because such a request must be put together from
//!   whole handles;
//! - if memory is short, a wide request gets handles that end where it ends, either new ones or in place of an entirely free
//!   one. Such requests come in rows, and each would pin behind it the bytes that the next one lacks;
//! - the first request of a size takes the high end of the block that serves it, and later requests of that size the low
//!   end. So blocks that occur once, such as weights, lie apart from blocks that recur;
//! - only if that is not enough, the policy waits for events, and in the end it releases all free memory.
//!
//! Every stream has a separate segment. Private pools take parts of these segments, cached or new, in which no work is
//! pending.

use alloc::vec;
use alloc::vec::Vec;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, DeviceAddress, PoolClass};
use parkade::{BlockId, BlockView, Candidate, Heap, PoolSlot};

use crate::seen_sizes::SeenSizes;
use crate::sight::{self, PAGE, is_private};
use crate::stream_needs::StreamNeeds;

/// Sizes are multiples of this.
const UNIT: Bytes = Bytes(512);
/// The size of the default pool's first handles, unless the memory is small.
const FIRST: Bytes = Bytes::mib(384);
/// The size of the smallest handles, unless less memory is left.
const LEAST: Bytes = Bytes::mib(8);
/// The size of the largest handles, unless a request lacks more.
const MOST: Bytes = Bytes::mib(1024);
/// A handle is at most this part of the default pool's reserved bytes, but at least [`FIRST`].
const PART_OF_RESERVED: u64 = 2;
/// A handle is at most this many times the missing bytes, but at least [`LEAST`]: a stream that needs little gets
/// little.
const TIMES_MISSING: u64 = 32;
/// A handle is at most this part of the bytes that may still be reserved, but at least [`LEAST`].
const PART_OF_LEFT: u64 = 3;
/// The bytes that a request lacks are covered by at most this many handles.
const MOST_HANDLES: u64 = 8;
/// After a request of at least this part of the memory, handles are finer.
const PART_OF_LARGE: u64 = 24;
/// After such a request, handles of the default pool are at most this part of the memory, but at least [`LEAST`].
const PART_OF_FINE: u64 = 128;
/// But handles are never smaller than this if the memory is small.
const LEAST_FINE: Bytes = Bytes::mib(64);
/// After such a request, the bytes that a request lacks are covered by at most this many handles.
const MOST_FINE_HANDLES: u64 = 16;
/// The number of blocks that are compared for a request.
const COMPARED: usize = 4;
/// A block costs its size divided by this, plus the bytes that it pins.
const SIZE_OVER: u64 = 4;
/// A request of at least this part of the memory is wide: if memory is short, no handle ends behind it.
const PART_OF_WIDE: u64 = 128;
/// No smaller request is wide unless the memory is small.
const NARROW: Bytes = Bytes::mib(16);
/// A handle that ends behind a wide request is replaced if that frees at least this part of the memory.
const PART_OF_GAIN: u64 = 256;
/// Handles that exactly cover the bytes that such a request lacks are at most this part of the memory, or as large as
/// usual.
const PART_OF_EXACT: u64 = 64;
/// Memory is short if there is less than this many times the size of a wide request.
const SHORT: u64 = 2;

/// The rules of floating handles.
#[derive(Clone, Debug, Default)]
pub struct FloatingHandles {
    seen: SeenSizes,
    /// Whether the current request is the first of its size.
    is_first: bool,
    needs: StreamNeeds,
    /// Whether there has been a large request.
    is_fine: bool,
    /// Whether the current request gets handles that exactly cover the bytes that it lacks.
    is_exact: bool,
    /// The handle that is replaced for the current request.
    replaced: Option<DeviceAddress>,
    /// The size of the largest handles, if it differs from the usual rules.
    most: Option<Bytes>,
    /// The next step of the ladder.
    step: u32,
}

impl FloatingHandles {
    /// The rules with handles of at most `most` bytes, a multiple of 2 MiB. Smaller handles need less memory but more driver
    /// calls.
    #[must_use]
    pub fn with_handles(most: Bytes) -> FloatingHandles {
        FloatingHandles { most: Some(most), ..FloatingHandles::default() }
    }

    /// Whether the next block, which is larger by this much, costs at least as much as a block that leaves `rest`: the bytes
    /// that a block pins are a part of the bytes that the request leaves in it.
    #[inline]
    fn is_no_better(rest: Bytes, larger_by: Bytes) -> bool {
        larger_by.get() >= rest.get() * SIZE_OVER
    }

    fn find(heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id)
    }

    /// The block for the request: among a few, the one with the lowest cost; of equal ones, the smallest.
    #[inline]
    fn choose(&self, heap: &Heap, request: &Request) -> Option<BlockId> {
        let first = heap.first_at_least(request.pool, request.stream, request.size)?;
        let rest = first.size - request.size;
        let is_no_better = |next: BlockView| FloatingHandles::is_no_better(rest, next.size - first.size);
        if rest < LEAST || is_private(request) || heap.following(first.id).is_none_or(is_no_better) {
            return Some(first.id);
        }
        let few = heap.at_least(request.pool, request.stream, request.size).take(COMPARED);
        let cost = |block: &BlockView| block.size.get() / SIZE_OVER + sight::pinned(heap, block, request.size, self.is_first);
        few.min_by_key(cost).map(|block| block.id)
    }

    /// Whether a request is so large that no small block is likely to follow behind it.
    #[inline]
    fn is_wide(heap: &Heap, request: &Request) -> bool {
        request.size.get() >= sight::all(heap) / PART_OF_WIDE
    }

    /// The handle to replace, for a wide request, by one that ends where the request does.
    #[cold]
    fn replaced_for(heap: &Heap, request: &Request, chosen: BlockId) -> Option<DeviceAddress> {
        let may_move = !is_private(request) && !heap.is_deferring();
        let gain = (sight::all(heap) / PART_OF_GAIN).max(PAGE.get());
        may_move.then(|| sight::replaceable(heap, request, chosen, gain)).flatten()
    }
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
        let all = sight::all(heap);
        let fine = Bytes(all / PART_OF_FINE).max(LEAST_FINE);
        let (most, handles) = match self.most {
            Some(most) => (most, u64::MAX),
            None if self.is_fine => (fine.min(MOST), MOST_FINE_HANDLES),
            None => (MOST, MOST_HANDLES),
        };
        let grown = FIRST.max(Bytes(heap.reserved_in(request.pool).get() / PART_OF_RESERVED));
        let for_request = Bytes(missing.get().saturating_mul(TIMES_MISSING)).min(self.needs.most(request.stream, missing));
        let near_the_end = Bytes(sight::left(heap) / PART_OF_LEFT);
        let usual = grown.min(for_request).min(near_the_end).min(most).max(LEAST.min(most)).max(Bytes(missing.get() / handles));
        let is_exact = self.is_exact && self.most.is_none();
        let size = if is_exact { usual.max(Bytes(all / PART_OF_EXACT)).min(missing) } else { usual };
        size.checked_round_up(PAGE)
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        let is_wide = FloatingHandles::is_wide(heap, request);
        self.is_first = self.seen.note(request.size) && !is_wide;
        let chosen = self.choose(heap, request);
        self.replaced = chosen.filter(|_| is_wide).and_then(|block| FloatingHandles::replaced_for(heap, request, block));
        match chosen {
            Some(block) if self.replaced.is_none() => {
                self.seen.close();
                Placement::Reuse(block)
            }
            _ => Placement::Segment(request.size.checked_round_up(PAGE).unwrap_or(Bytes::MAX)),
        }
    }

    /// If the memory is so small that a request below 16 MiB can be wide, [`Policy::place`] has to look at the
    /// request.
    #[inline]
    fn looks_at_first(&self, heap: &Heap) -> bool {
        sight::all(heap) >= NARROW.get() * PART_OF_WIDE
    }

    /// A size seen before is not recorded again, and its request takes the low end.
    #[inline]
    fn takes_first(&self, request: &Request, first: Candidate<'_>) -> bool {
        let rest = first.size() - request.size;
        let is_no_better = |next: Candidate<'_>| FloatingHandles::is_no_better(rest, next.size() - first.size());
        request.size < NARROW
            && self.seen.has(request.size)
            && (rest < LEAST || is_private(request) || first.following().is_none_or(is_no_better))
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
            self.seen.close();
            let all = sight::all(heap);
            if request.size.get() <= all {
                self.needs.note(request.stream, request.size.max(PAGE));
                self.is_fine |= request.size.get() >= all / PART_OF_LARGE;
            }
            let replaced = self.replaced.take();
            let is_short = || sight::obtainable(heap) < request.size.get().saturating_mul(SHORT);
            self.is_exact = replaced.is_some() || !is_private(request) && FloatingHandles::is_wide(heap, request) && is_short();
            return replaced.map_or(Relief::Annex, |handle| Relief::Replace { handles: vec![handle] });
        }
        loop {
            let step = self.step;
            self.step += 1;
            match step {
                0 if sight::has_room(heap, request) => {
                    return Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask };
                }
                1 | 4 if !heap.is_deferring() => {
                    if step == 4
                        && let Some(block) = FloatingHandles::find(heap, request)
                    {
                        return Relief::Reuse(block);
                    }
                    if let Some(block) = sight::elsewhere(heap, request) {
                        return Relief::TransferPart { block };
                    }
                    let handles = sight::movable(heap, request);
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
