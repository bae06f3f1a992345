//! Compaction: best fit on memory that is taken in a few large handles. When memory is short, the policy breaks handles
//! that are partly free.
//!
//! This is our own policy; `docs/compaction.md` describes what it needs, reaches and costs. A driver call costs nearly
//! the same for a handle of 2 MiB as for one of 128 MiB. Large handles are therefore cheap, but a handle with any block
//! in use cannot move. This policy breaks it: the memory in use keeps its addresses and contents in new memory, and the
//! free pages move to where they are needed.
//! - Handles grow with the reserved bytes, and shrink again near the limit.
//! - If there is no memory for new handles, a request takes the bytes that it needs from the tightest free block of
//!   another stream, after that stream's work. If that is not enough, as few entirely free handles as necessary move,
//!   from any stream. If many would have to move, new handles replace them.
//! - If even that is not enough, the policy waits for events and then breaks handles, starting with those that have
//!   the most free pages.
//! - The first request of a size takes the high end of the tightest free block, and later requests of that size take
//!   the low end. This separates blocks that occur once, such as weights, from blocks that recur.
//!
//! Every stream has a separate segment. Private pools take parts of these segments, cached or new, that no pending
//! work uses.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use parkade::policy::{Attempt, Placement, Policy, Relief, Request, Rung};
use parkade::units::{Bytes, DeviceAddress, PoolClass, StreamId};
use parkade::{BlockId, Heap, PartlyFreeView, PoolSlot};

use crate::entry::Entry;
use crate::parameter::Parameter;
use crate::sight::{self, PAGE, is_private};

/// Sizes are multiples of this.
const UNIT: Bytes = Bytes(512);
/// The size of the first handles, unless the memory is small.
const FIRST: Bytes = Bytes::mib(384);
/// The size of the smallest handles, unless less memory remains.
const LEAST: Bytes = Bytes::mib(8);
/// The size of the largest handles. If a request lacks more than this, a single handle covers all of it.
const MOST: Bytes = Bytes::mib(512);

pub(crate) const ENTRY: Entry = Entry::new(
    "compaction",
    "best fit on a few large handles; when memory is short, those that are partly in use are broken and their contents copied",
    "our own",
    |values| Box::new(Compaction::with_handles(values.bytes("first"), values.bytes("most"))),
)
.with_parameters(&[
    Parameter::size("first", "the size of the first handles, unless the memory is small", "384MiB", LEAST, Bytes::mib(1 << 14)),
    Parameter::size("most", "the size of the largest handles, unless a request needs more", "512MiB", LEAST, Bytes::mib(1 << 14)),
]);
/// The maximum size of a handle is the default pool's reserved bytes divided by this number, but at least [`FIRST`].
const PART_OF_RESERVED: u64 = 2;
/// The maximum size of a handle is this many times the missing bytes, but at least [`LEAST`]: a stream that needs
/// little gets little.
const MOST_TIMES_MISSING: u64 = 64;
/// The maximum size of a handle is the bytes that may still be reserved divided by this number, but at least
/// [`LEAST`].
const PART_OF_LEFT: u64 = 3;

/// Memory is short when the bytes that may still be reserved are less than the total divided by this number.
const PART_SHORT: u64 = 4;
/// When the bytes that may still be reserved are less than the total divided by this number, handles are broken before
/// requests are routed to a private pool.
const PART_SCARCE: u64 = 16;
/// In that case, a handle is broken if its free bytes are at least its size divided by this number.
const PART_FREE: u64 = 4;

/// The policy that serves requests from a few large handles and breaks partly free ones when memory is short.
#[derive(Clone, Debug)]
pub struct Compaction {
    /// The size of the first handles, and of the largest ones.
    first: Bytes,
    most: Bytes,
    seen: SeenSizes,
    /// Whether the current request is the first of its size.
    is_first: bool,
    needs: StreamNeeds,
    /// Whether the device unexpectedly had no room for the current request, because other processes have taken memory.
    is_refused: bool,
    /// The next step of the ladder.
    step: u32,
}

impl Default for Compaction {
    fn default() -> Compaction {
        Compaction::with_handles(FIRST, MOST)
    }
}

impl Compaction {
    /// Creates a policy without state whose first and largest handles have these sizes.
    #[must_use]
    pub fn with_handles(first: Bytes, most: Bytes) -> Compaction {
        let (seen, needs) = (SeenSizes::default(), StreamNeeds::default());
        Compaction { first, most, seen, is_first: false, needs, is_refused: false, step: 0 }
    }

    fn find(heap: &Heap, request: &Request) -> Option<BlockId> {
        heap.first_at_least(request.pool, request.stream, request.size).map(|block| block.id)
    }
}

impl Policy for Compaction {
    fn name(&self) -> &'static str {
        "compaction"
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

    fn lends_to_pools(&self) -> bool {
        true
    }

    /// The free memory of a busy stream cannot serve a capture, and when memory is short, there is little other
    /// memory.
    fn waits_for_pools(&self, heap: &Heap) -> bool {
        sight::left(heap) < sight::all(heap) / PART_SHORT
    }

    fn breaks_for_pools(&self, heap: &Heap) -> Vec<DeviceAddress> {
        if sight::left(heap) > sight::all(heap) / PART_SCARCE {
            return Vec::new();
        }
        let is_worth_it = |part: &PartlyFreeView| part.free >= LEAST && part.free.get() >= part.handle.size.get() / PART_FREE;
        sight::partly_free(heap).filter(is_worth_it).map(|part| part.handle.address).collect()
    }

    fn handle(&self, heap: &Heap, request: &Request, missing: Bytes) -> Option<Bytes> {
        let grown = self.first.max(Bytes(heap.reserved_in(request.pool).get() / PART_OF_RESERVED));
        let for_request = Bytes(missing.get().saturating_mul(MOST_TIMES_MISSING)).min(self.needs.most(request.stream, missing));
        let near_the_end = Bytes(sight::left(heap) / PART_OF_LEFT);
        let size = grown.min(for_request).min(near_the_end).min(self.most).max(LEAST).max(missing);
        size.checked_round_up(PAGE)
    }

    #[inline]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        self.is_first = self.seen.note(request.size);
        match Compaction::find(heap, request) {
            Some(block) => {
                self.seen.close();
                Placement::Reuse(block)
            }
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

    fn ladder(&self) -> &'static [Rung] {
        &[Rung::Own]
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0 {
            (self.step, self.is_refused) = (0, false);
            self.seen.close();
            if request.size.get() <= sight::all(heap) {
                self.needs.note(request.stream, request.size.max(PAGE));
            }
            return Relief::Lend;
        }
        let is_deferring = heap.is_deferring();
        loop {
            let step = self.step;
            self.step += 1;
            match step {
                // A private pool may need fewer bytes than this calculation suggests, because its segments continue in
                // the default pool's segments.
                0 | 7 if is_private(request) || sight::has_room(heap, request) => {
                    self.is_refused = sight::has_room(heap, request);
                    return Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask };
                }
                4 if !is_deferring => {
                    if let Some(block) = Compaction::find(heap, request) {
                        return Relief::Reuse(block);
                    }
                }
                1 | 5 if !is_deferring => {
                    if let Some(block) = sight::elsewhere(heap, request) {
                        return Relief::TransferPart { block };
                    }
                    if let Some(gathered) = sight::gather(heap, request, self.is_refused) {
                        return gathered;
                    }
                }
                2 => return Relief::Borrow,
                3 if is_deferring => return Relief::Done,
                3 => return Relief::Wait,
                6 => {
                    let left = if self.is_refused { 0 } else { sight::left(heap) };
                    if let Some(handles) = sight::breakable(heap, request, left).filter(|handles| !handles.is_empty()) {
                        return Relief::Break { handles };
                    }
                }
                8 => {
                    if let Some(gathered) = sight::gather(heap, request, self.is_refused) {
                        return gathered;
                    }
                }
                9 => return Relief::Release { blocks: heap.releasable(), attempt: Attempt::AskAgain },
                // If other processes hold memory, the device may have refused a new handle, or the memory needed to
                // break one. It may have room now, because the entirely free handles have been released.
                10 if sight::breakable(heap, request, sight::left(heap)).is_some() => {
                    let handles: Vec<_> = sight::partly_free(heap).map(|part| part.handle.address).collect();
                    if !handles.is_empty() {
                        return Relief::Break { handles };
                    }
                }
                11 => return Relief::Release { blocks: heap.releasable(), attempt: Attempt::Ask },
                0..=8 => {}
                _ => return Relief::Done,
            }
        }
    }
}

/// The number of sizes that are remembered: a power of two.
const SIZES: usize = 4096;

/// The sizes that have been requested before, in a fixed amount of memory. Each size has a slot that it may share with others; the slot holds the most recent one.
#[derive(Clone, Debug)]
struct SeenSizes {
    sizes: Box<[u64; SIZES]>,
    /// The size of the current request, and its answer. The allocator may ask about the request again after it has run
    /// the program's free-memory callbacks.
    open: Option<(Bytes, bool)>,
}

impl Default for SeenSizes {
    fn default() -> SeenSizes {
        SeenSizes { sizes: Box::new([0; SIZES]), open: None }
    }
}

impl SeenSizes {
    /// Records a size. Returns whether this is the first request of the size, as far as is remembered. The answer
    /// stays the same until [`SeenSizes::close`].
    #[inline]
    fn note(&mut self, size: Bytes) -> bool {
        if let Some((open, is_first)) = self.open
            && open == size
        {
            return is_first;
        }
        let is_first = match self.sizes.get_mut(SeenSizes::place_of(size)) {
            Some(seen) => core::mem::replace(seen, size.get()) != size.get(),
            None => false,
        };
        self.open = Some((size, is_first));
        is_first
    }

    /// Ends the current request: the allocator will not ask about it again.
    #[inline]
    fn close(&mut self) {
        self.open = None;
    }

    /// The slot of a size. Fibonacci hashing: the high bits of the product depend on all bits of the size.
    #[inline]
    fn place_of(size: Bytes) -> usize {
        (size.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SIZES.ilog2())) as usize
    }
}

/// Another stream becomes the main one if it needs more than this many times as much.
const TIMES_MAIN: u64 = 16;
/// The maximum size of another stream's handle is this many times the missing bytes of the request, or the stream's
/// need so far if that is more.
const MOST_TIMES_MISSING_ON_OTHER_STREAMS: u64 = 2;

/// The streams' needs in bytes, which limit the handles of one stream compared with those of others. The free memory of a
/// stream can serve other streams only in whole handles, so a stream that needs little gets small ones. A stream's need is
/// measured while it runs: it is the total size of its requests that no free block could serve. There is an entry for each stream that has needed memory; the allocator has a segment
/// for each of them.
#[derive(Clone, Debug, Default)]
struct StreamNeeds {
    missed: BTreeMap<StreamId, Bytes>,
    main: Option<StreamId>,
}

impl StreamNeeds {
    /// Records a request that no free block can serve. The first stream is the main one until another stream needs
    /// much more.
    fn note(&mut self, stream: StreamId, size: Bytes) {
        let missed = self.missed.entry(stream).or_default();
        *missed = Bytes(missed.get().saturating_add(size.get()));
        let missed = missed.get();
        let of_main = self.main.map_or(0, |main| self.missed_by(main).get());
        if self.main.is_none() || missed / TIMES_MAIN > of_main {
            self.main = Some(stream);
        }
    }

    /// The maximum size of a new handle for a stream that is missing `missing` bytes; unlimited for the main stream.
    fn most(&self, stream: StreamId, missing: Bytes) -> Bytes {
        if self.main.is_none_or(|main| main == stream) {
            return Bytes::MAX;
        }
        Bytes(missing.get().saturating_mul(MOST_TIMES_MISSING_ON_OTHER_STREAMS)).max(self.missed_by(stream))
    }

    fn missed_by(&self, stream: StreamId) -> Bytes {
        self.missed.get(&stream).copied().unwrap_or(Bytes::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: StreamId = StreamId(0);
    const SECOND: StreamId = StreamId(7);

    #[test]
    fn a_stream_beside_the_main_one_gets_as_much_as_it_has_missed() {
        let mut needs = StreamNeeds::default();
        assert_eq!(needs.most(FIRST, Bytes::mib(2)), Bytes::MAX, "no stream has needed anything");
        needs.note(FIRST, Bytes::mib(100));
        needs.note(SECOND, Bytes::mib(4));
        assert_eq!(needs.most(FIRST, Bytes::mib(2)), Bytes::MAX);
        assert_eq!(needs.most(SECOND, Bytes::mib(4)), Bytes::mib(8));
        needs.note(SECOND, Bytes::mib(60));
        assert_eq!(needs.most(SECOND, Bytes::mib(4)), Bytes::mib(64));
    }

    #[test]
    fn a_stream_that_only_came_first_is_not_the_main_one_for_long() {
        let mut needs = StreamNeeds::default();
        needs.note(FIRST, Bytes::mib(2));
        needs.note(SECOND, Bytes::mib(32));
        assert_eq!(
            needs.most(SECOND, Bytes::mib(32)),
            Bytes::mib(64),
            "exactly sixteen times as much is not enough to become the main stream"
        );
        needs.note(SECOND, Bytes::mib(2));
        assert_eq!(needs.most(SECOND, Bytes::mib(32)), Bytes::MAX);
        assert_eq!(needs.most(FIRST, Bytes::mib(2)), Bytes::mib(4));
    }

    #[test]
    fn sums_do_not_overflow() {
        let mut needs = StreamNeeds::default();
        needs.note(FIRST, Bytes::MAX);
        needs.note(FIRST, Bytes::MAX);
        needs.note(SECOND, Bytes::MAX);
        assert_eq!(needs.most(SECOND, Bytes::MAX), Bytes::MAX);
    }
}
