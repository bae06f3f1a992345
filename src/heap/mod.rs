//! The heap: segments split into blocks, pools of free blocks, and the four operations that change them.
//!
//! The heap is only bookkeeping: the policy decides which block to use, whether to split and what to release, and the
//! allocator calls the heap to do it. The operations are: add a segment, split a block, make a block free (which
//! coalesces it with free neighbours), and remove a segment. The allocator updates the statistics from the results of
//! these operations.
//!
//! Each stream that a heap knows has a 16-bit slot, which blocks store instead of the handle.

mod expandable;
mod own;
mod pools;
mod view;

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use crate::block::{Arena, Block, BlockState, Marks, NIL, Slots};
use crate::index::{ByAddress, FreeIndex};
use crate::profile::{Profile, TieBreak};
use crate::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
pub(crate) use expandable::{GrowsFrom, LENDABLE};
use own::state::OwnState;
pub(crate) use own::whole_pages;
pub use own::{GrowthView, HandleView, PartlyFreeView};
use pools::PrivatePools;
pub use pools::{PoolError, PoolFilter};
pub use view::{BlockView, FreePair, LiveBlock, Neighbour};

/// One of a pool's two collections, small or large, as an index into the heap's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PoolSlot(pub(crate) u16);

impl PoolSlot {
    /// The default pool's collection of a class.
    #[must_use]
    pub const fn default_pool(class: PoolClass) -> PoolSlot {
        PoolSlot(class as u16)
    }

    pub(crate) const fn of_pool(pool_number: u16, class: PoolClass) -> PoolSlot {
        PoolSlot(2 * pool_number + class as u16)
    }

    /// The pool's number: 0 is the default pool.
    pub(crate) const fn pool_number(self) -> u16 {
        self.0 / 2
    }

    /// The collection's class.
    #[must_use]
    pub const fn class(self) -> PoolClass {
        if self.0.is_multiple_of(2) { PoolClass::Small } else { PoolClass::Large }
    }
}

/// The unmapped blocks of one pool, by stream and address.
type Unmapped = BTreeSet<(StreamId, u64, u32)>;

/// All segments and blocks of one device.
#[derive(Clone, Debug)]
pub struct Heap {
    pub(crate) arena: Arena,
    /// The free blocks of every collection.
    free: Vec<FreeIndex>,
    /// Unmapped blocks, by collection.
    unmapped: Vec<Unmapped>,
    /// Bytes taken from the device, by pool number.
    reserved_by: Vec<u64>,
    private_pools: PrivatePools,
    streams: Streams,
    reserved: u64,
    limit: Option<u64>,
    tie_break: TieBreak,
    /// The number of segments added so far.
    segments_made: u32,
    /// The device's total memory.
    device_total: u64,
    /// What only our own policies' mechanisms need.
    own: OwnState,
}

impl Heap {
    /// Creates an empty heap for a device with `device_total` bytes. `searches_by_address` is
    /// [`Policy::searches_by_address`](crate::policy::Policy::searches_by_address).
    pub(crate) fn new(profile: &Profile, searches_by_address: bool, device_total: Bytes) -> Heap {
        Heap {
            arena: Arena::new(profile.tie_break == TieBreak::BlockAge),
            free: vec![FreeIndex::new(searches_by_address), FreeIndex::new(searches_by_address)],
            unmapped: vec![Unmapped::default(), Unmapped::default()],
            streams: Streams::new(),
            reserved: 0,
            reserved_by: vec![0],
            private_pools: PrivatePools::new(profile),
            limit: None,
            tie_break: profile.tie_break,
            segments_made: 0,
            device_total: device_total.0,
            own: OwnState::new(searches_by_address),
        }
    }

    /// A segment's blocks, starting with `head`.
    pub(crate) fn chain<'a>(&'a self, head: &'a Block) -> impl Iterator<Item = &'a Block> + 'a {
        core::iter::successors(Some(head), |block| self.arena.get(block.next))
    }

    pub(crate) fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    pub(crate) fn stream(&self, slot: u16) -> StreamId {
        self.streams.handles[usize::from(slot)]
    }

    // Inlined, so that it costs nothing with the observer `()`.
    #[inline]
    pub(crate) fn pool_id(&self, pool: u16) -> PoolId {
        self.private_pools.id(PoolSlot(pool).pool_number())
    }

    /// The collections of all pools: first the default pool's two, then those of private pools. Some of the latter may
    /// be empty because their pool no longer exists.
    pub fn pool_slots(&self) -> impl DoubleEndedIterator<Item = PoolSlot> + use<> {
        (0..self.free.len()).map(|slot| PoolSlot(slot as u16))
    }

    pub(crate) fn private_pools(&self) -> &PrivatePools {
        &self.private_pools
    }

    pub(crate) fn private_pools_mut(&mut self) -> &mut PrivatePools {
        &mut self.private_pools
    }

    /// Creates a private pool, or adds a use to it.
    pub(crate) fn create_pool(&mut self, id: PoolId) -> Result<(), PoolError> {
        let pool_number = self.private_pools.create_or_use(id)?;
        let pools = usize::from(pool_number) + 1;
        if self.reserved_by.len() < pools {
            self.reserved_by.resize(pools, 0);
            self.free.resize_with(2 * pools, || FreeIndex::new(self.own.searches_by_address));
            self.unmapped.resize_with(2 * pools, Unmapped::default);
        }
        Ok(())
    }

    /// The bytes that a pool has taken from the device.
    pub(crate) fn reserved_by(&self, pool_number: u16) -> Bytes {
        Bytes(self.reserved_by[usize::from(pool_number)])
    }

    fn take_bytes(&mut self, pool: u16, bytes: u64) {
        self.reserved += bytes;
        self.reserved_by[usize::from(PoolSlot(pool).pool_number())] += bytes;
    }

    fn give_bytes(&mut self, pool: u16, bytes: u64) {
        self.reserved -= bytes;
        self.reserved_by[usize::from(PoolSlot(pool).pool_number())] -= bytes;
    }

    /// Adds a segment as one detached block.
    pub(crate) fn add_segment(&mut self, address: DeviceAddress, size: Bytes, stream: u16, pool: PoolSlot) -> u32 {
        self.take_bytes(pool.0, size.0);
        self.add_block(address, size, stream, pool, Marks::default())
    }

    fn add_block(&mut self, address: DeviceAddress, size: Bytes, stream: u16, pool: PoolSlot, marks: Marks) -> u32 {
        // Blocks that are split off inherit the rank, unless the arena gives each block its own.
        let rank = match self.tie_break {
            TieBreak::Address | TieBreak::BlockAge => 0,
            TieBreak::SegmentAge => self.segments_made,
        };
        self.segments_made = self.segments_made.saturating_add(1);
        self.arena.insert(Block { address: address.0, size: size.0, rank, stream, pool: pool.0, marks, ..Block::VACANT })
    }

    /// The collection's free blocks by address, by stream slot, if the policy searches by address.
    pub(crate) fn by_address(&self, pool: PoolSlot) -> Option<&[ByAddress]> {
        self.free[usize::from(pool.0)].by_address()
    }

    /// Removes a free block from its index.
    #[inline]
    pub(crate) fn detach(&mut self, index: u32) {
        let block = self.arena.at_mut(index);
        debug_assert_eq!(block.state, BlockState::Free);
        block.state = BlockState::Detached;
        let pool = usize::from(block.pool);
        self.free[pool].remove(&mut self.arena, index);
    }

    /// Stamps a detached block and adds it to its index.
    #[inline]
    pub(crate) fn attach(&mut self, index: u32, stamp: u64) {
        let block = self.arena.at_mut(index);
        debug_assert_eq!(block.state, BlockState::Detached);
        block.state = BlockState::Free;
        block.stamp = stamp;
        let pool = usize::from(block.pool);
        self.free[pool].insert(&mut self.arena, index);
    }

    /// Splits the low `size` bytes off a free block, which stays free and keeps its slot and its fields. They become a
    /// detached block, whose slot is returned (spec 3.2, step 1).
    ///
    /// # Panics
    /// The block is not free.
    #[inline(always)]
    pub(crate) fn take_low_end(&mut self, index: u32, size: u64, stamp: u64) -> u32 {
        self.arena.provide_vacant();
        let (slots, vacant) = self.arena.parts_mut();
        let block = slots.at_mut(index);
        debug_assert_eq!(block.state, BlockState::Free);
        block.stamp = stamp;
        let (pool, stream, rest) = (usize::from(block.pool), block.stream, block.size - size);
        let free = &mut self.free[pool];
        free.note_cut(block, size);
        let free = free.of_mut(stream).expect("a free block is in the index of its stream");
        let before = free.resize(slots, index, rest);
        let low = vacant.split(slots, index, size);
        vacant.give_rank(slots, low);
        free.bin_displaced(slots, before);
        low
    }

    /// Removes a detached block that is an entire segment and has been released to the device.
    pub(crate) fn remove_segment(&mut self, index: u32) {
        debug_assert!(!self.arena.at(index).is_split());
        let (pool, size) = (self.arena.at(index).pool, self.arena.at(index).size);
        self.give_bytes(pool, size);
        self.arena.remove(index);
    }

    /// Appends a block to a detached one. Used to build an adopted segment block by block.
    pub(crate) fn append(&mut self, last: u32, size: u64) -> u32 {
        let before = self.arena.at(last);
        let block = Block { address: before.address + before.size, size, prev: last, next: NIL, requested: 0, ..before.clone() };
        let index = self.arena.insert(Block { state: BlockState::Detached, ..block });
        self.arena.at_mut(last).next = index;
        index
    }

    #[inline]
    pub(crate) fn known_stream_slot(&self, stream: StreamId) -> Option<u16> {
        self.streams.known_slot(stream)
    }

    /// The slot of a stream. A new stream gets a new slot.
    #[inline]
    pub(crate) fn stream_slot(&mut self, stream: StreamId) -> Result<u16, TooManyStreams> {
        self.streams.slot(stream)
    }

    /// All streams: the default stream first, then the others in the order of their first request.
    #[must_use]
    pub fn streams_seen(&self) -> &[StreamId] {
        &self.streams.handles
    }
}

/// The change in the free blocks that are only a part of their segment, when a block became free. It has only two
/// fields, so that it is returned in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Coalesced {
    /// The change in their number; negative if the block absorbed free neighbours that no longer exist as parts.
    pub(crate) splits: i64,
    /// The change in their bytes.
    pub(crate) bytes: i64,
}

impl Coalesced {
    /// A block of `size` bytes absorbed free neighbours and now has `whole` bytes.
    #[inline(always)]
    fn of(size: u64, absorbed: i64, whole: u64, is_split: bool) -> Coalesced {
        if is_split {
            Coalesced { splits: 1 - absorbed, bytes: size as i64 }
        } else {
            Coalesced { splits: -absorbed, bytes: (size as i64) - (whole as i64) }
        }
    }
}

impl Heap {
    /// Adds a block to the free index, coalesced with those of its free neighbours that it `joins` (spec 3.4). The
    /// block keeps its slot, regardless of which neighbours it absorbs. `count` receives the change in the number of
    /// inactive parts.
    #[inline(always)]
    pub(crate) fn put_back(&mut self, index: u32, stamp: u64, joins: impl Fn(&FreePair) -> bool, count: impl FnOnce(Coalesced)) {
        let (slots, vacant) = self.arena.parts_mut();
        let Block { pool, stream, mut prev, mut next, mut address, mut size, .. } = *slots.at(index);
        let Some(free) = self.free[usize::from(pool)].of_mut(stream).filter(|_| !self.own.coalesces_slowly) else {
            return count(self.put_back_slowly(index, stamp, &joins));
        };
        let pair = |address, low, high| FreePair {
            pool: PoolSlot(pool),
            address: DeviceAddress(address),
            low: Bytes(low),
            high: Bytes(high),
        };
        let (mut absorbed, own_size) = (0, size);
        // The neighbours belong to the same pool and stream. So far, no two adjacent blocks are free.
        if let Some(before) = slots.linked(prev).filter(|block| block.state == BlockState::Free) {
            if !joins(&pair(before.address, before.size, size)) {
                return count(self.put_back_slowly(index, stamp, &joins));
            }
            let low = prev;
            (prev, address) = (before.prev, before.address);
            size += before.size;
            absorbed += 1;
            free.remove(slots, low);
            vacant.add(slots, low);
            if let Some(before) = slots.linked_mut(prev) {
                before.next = index;
            }
        }
        let after = slots.linked(next).filter(|block| block.state == BlockState::Free);
        if let Some(after) = after.filter(|after| joins(&pair(address, size, after.size))) {
            let high = next;
            next = after.next;
            size += after.size;
            absorbed += 1;
            free.remove(slots, high);
            vacant.add(slots, high);
            if let Some(after) = slots.linked_mut(next) {
                after.prev = index;
            }
        } else if after.is_some() {
            slots.at_mut(next).set_kept_apart(true);
            self.own.note_kept_apart();
        }
        let block = slots.at_mut(index);
        (block.prev, block.next, block.address, block.size) = (prev, next, address, size);
        block.state = BlockState::Free;
        block.stamp = stamp;
        let before = free.make_newest(index, size);
        count(Coalesced::of(own_size, absorbed, size, prev != NIL || next != NIL));
        free.bin_displaced(slots, before);
    }

    /// Does the same if its neighbours may belong to other streams, if the policy keeps free blocks apart or searches them
    /// by address, or if the stream never had a free block in this collection.
    #[cold]
    #[inline(never)]
    fn put_back_slowly(&mut self, index: u32, stamp: u64, joins: &dyn Fn(&FreePair) -> bool) -> Coalesced {
        let own_size = self.arena.at(index).size;
        let absorbed = self.absorb_neighbours(index, joins);
        self.mark_apart(index);
        let block = self.arena.at_mut(index);
        block.state = BlockState::Detached;
        let (size, is_split) = (block.size, block.is_split());
        self.attach(index, stamp);
        Coalesced::of(own_size, absorbed, size, is_split)
    }

    /// Absorbs the free neighbours that belong to the block's stream and that it joins. Returns how many.
    fn absorb_neighbours(&mut self, index: u32, joins: &dyn Fn(&FreePair) -> bool) -> i64 {
        let mut absorbed = 0;
        loop {
            let block = self.arena.at(index);
            let (prev, next) = (block.prev, block.next);
            if is_free(&self.arena, prev) && self.may_merge(prev, index) && joins(&self.pair(prev, index)) {
                self.detach(prev);
                absorb_before(&mut self.arena, index, prev);
            } else if is_free(&self.arena, next) && self.may_merge(index, next) && joins(&self.pair(index, next)) {
                self.detach(next);
                absorb_after(&mut self.arena, index, next);
            } else {
                return absorbed;
            }
            absorbed += 1;
        }
    }

    /// Marks a block, and the one after it, as kept apart from the free block before it, if there is one that the
    /// block did not absorb.
    fn mark_apart(&mut self, index: u32) {
        let (prev, next) = (self.arena.at(index).prev, self.arena.at(index).next);
        let from_before = is_free(&self.arena, prev) && self.may_merge(prev, index);
        let from_after = is_free(&self.arena, next) && self.may_merge(index, next);
        self.arena.at_mut(index).set_kept_apart(from_before);
        if from_after {
            self.arena.at_mut(next).set_kept_apart(true);
        }
        if from_before || from_after {
            self.own.note_kept_apart();
        }
    }

    /// Two neighbours, as the policy sees them when it decides whether they coalesce.
    fn pair(&self, low: u32, high: u32) -> FreePair {
        let Block { address, size, pool, .. } = *self.arena.at(low);
        FreePair {
            pool: PoolSlot(pool),
            address: DeviceAddress(address),
            low: Bytes(size),
            high: Bytes(self.arena.at(high).size),
        }
    }

    /// Whether two neighbours may coalesce when both are free.
    pub(crate) fn may_merge(&self, low: u32, high: u32) -> bool {
        self.arena.at(low).stream == self.arena.at(high).stream
    }
}

fn is_free(arena: &Arena, index: u32) -> bool {
    arena.get(index).is_some_and(|block| block.state == BlockState::Free)
}

/// Extends a block to absorb the one before it, which has been removed from the free index.
fn absorb_before(arena: &mut Arena, index: u32, prev: u32) {
    let Block { address, size, prev: before, .. } = *arena.at(prev);
    arena.remove(prev);
    let block = arena.at_mut(index);
    block.prev = before;
    block.address = address;
    block.size += size;
    if let Some(before) = arena.get_mut(before) {
        before.next = index;
    }
}

/// Extends a block to absorb the one after it, which has been removed from the free index.
fn absorb_after(arena: &mut Arena, index: u32, next: u32) {
    let Block { size, next: after, .. } = *arena.at(next);
    arena.remove(next);
    let block = arena.at_mut(index);
    block.next = after;
    block.size += size;
    if let Some(after) = arena.get_mut(after) {
        after.prev = index;
    }
}

/// The heap has too many streams: a slot has 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyStreams;

/// The streams by slot and by handle.
#[derive(Clone, Debug)]
struct Streams {
    /// The handles by slot, in order of first use; the default stream has slot 0.
    handles: Vec<StreamId>,
    /// The slots, ordered by handle.
    order: Vec<u16>,
    /// The stream of the last request, because most requests are for the same stream as the one before.
    last: (StreamId, u16),
}

impl Streams {
    fn new() -> Streams {
        Streams { handles: vec![StreamId::DEFAULT], order: vec![0], last: (StreamId::DEFAULT, 0) }
    }

    /// The slot of a stream that has one.
    #[inline]
    fn known_slot(&self, stream: StreamId) -> Option<u16> {
        if self.last.0 == stream {
            return Some(self.last.1);
        }
        self.place(stream).ok().map(|place| self.order[place])
    }

    /// The slot of a stream. A new stream gets a new slot.
    #[inline]
    fn slot(&mut self, stream: StreamId) -> Result<u16, TooManyStreams> {
        if self.last.0 != stream {
            self.last = (stream, self.find_or_add(stream)?);
        }
        Ok(self.last.1)
    }

    fn find_or_add(&mut self, stream: StreamId) -> Result<u16, TooManyStreams> {
        match self.place(stream) {
            Ok(place) => Ok(self.order[place]),
            Err(place) => {
                let slot = u16::try_from(self.handles.len()).map_err(|_| TooManyStreams)?;
                self.handles.push(stream);
                self.order.insert(place, slot);
                Ok(slot)
            }
        }
    }

    /// The stream's position in the order of handles, or the position at which it would be.
    fn place(&self, stream: StreamId) -> Result<usize, usize> {
        self.order.binary_search_by_key(&stream, |&slot| self.handles[usize::from(slot)])
    }
}
