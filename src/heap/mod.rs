//! The heap: segments split into blocks, pools of free blocks, and the four operations that change them.
//!
//! The heap is only bookkeeping: the policy decides which block to use, whether to split and what to release, and the
//! allocator calls the heap to do it. The operations are: add a segment, split a block, make a block free (which
//! coalesces it with free neighbours), and remove a segment. The allocator updates the statistics from the results of
//! these operations.
//!
//! Each stream that a heap knows has a 16-bit slot, which blocks store instead of the handle.

mod coalesce;
mod expandable;
mod pools;
mod untouched;
mod view;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use crate::block::{Arena, Block, BlockState, Marks, NIL, Slots};
use crate::index::FreeIndex;
use crate::profile::{Deferral, Profile, TieBreak};
use crate::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
pub use expandable::{GrowthView, HandleView, PartlyFreeView};
pub(crate) use expandable::{SETTLED, whole_pages};
use pools::PrivatePools;
pub use pools::{PoolError, PoolFilter};
use untouched::Untouched;
pub use view::BlockView;

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

/// The number of times that a policy may wait before requests are routed to private pools. The count is reset whenever
/// a pool has no free block for a request, so a program that only reuses its pools stops waiting
/// ([`Policy::waits_for_pools`](crate::policy::Policy::waits_for_pools)).
const MOST_WAITS: u32 = 16;

/// The heap has too many streams: a slot has 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyStreams;

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
    /// Stream handles by slot, in order of first use.
    streams: Vec<StreamId>,
    /// The stream slots, ordered by handle.
    stream_order: Vec<u16>,
    last_stream: (StreamId, u16),
    reserved: u64,
    limit: Option<u64>,
    tie_break: TieBreak,
    deferral: Deferral,
    /// Whether the caller's current stream is being captured.
    is_capturing: bool,
    /// The number of segments added so far.
    segments_made: u32,
    /// Whether requests may fail while any requests are routed to a private pool, if the caller's stream is not
    /// captured.
    needs_captures: bool,
    /// Whether blocks of one segment may belong to different streams.
    mixes_streams: bool,
    /// Whether any part of an expandable segment has ever served another pool.
    has_parts_elsewhere: bool,
    /// Whether an expandable segment may grow from a free block only if the block is settled.
    grows_settled: bool,
    /// The only address from which an expandable segment may grow with handles.
    grows_from: Option<u64>,
    /// How many more times the policy may wait before requests are routed to private pools.
    waits_left: u32,
    /// The device's total memory.
    device_total: u64,
    /// The handles that were mapped as a whole ([`Policy::handle`](crate::policy::Policy::handle)): first byte and
    /// bytes.
    handles: BTreeMap<u64, u64>,
    /// The memory that private pools have never handed out.
    untouched: Untouched,
    /// The page size to which all expandable segments were refined.
    refined_page: Option<Bytes>,
}

impl Heap {
    /// Creates an empty heap for a device with `device_total` bytes.
    pub(crate) fn new(profile: &Profile, device_total: Bytes) -> Heap {
        Heap {
            arena: Arena::new(profile.tie_break == TieBreak::BlockAge),
            free: vec![FreeIndex::default(), FreeIndex::default()],
            unmapped: vec![Unmapped::default(), Unmapped::default()],
            streams: vec![StreamId::DEFAULT],
            stream_order: vec![0],
            last_stream: (StreamId::DEFAULT, 0),
            reserved: 0,
            reserved_by: vec![0],
            private_pools: PrivatePools::default(),
            limit: None,
            tie_break: profile.tie_break,
            deferral: profile.deferral,
            is_capturing: false,
            segments_made: 0,
            needs_captures: profile.fails_outside_captures(),
            mixes_streams: false,
            has_parts_elsewhere: false,
            grows_settled: false,
            grows_from: None,
            waits_left: MOST_WAITS,
            device_total: device_total.0,
            handles: BTreeMap::new(),
            untouched: Untouched::default(),
            refined_page: None,
        }
    }

    /// A segment's blocks, starting with `head`.
    pub(crate) fn chain<'a>(&'a self, head: &'a Block) -> impl Iterator<Item = &'a Block> + 'a {
        core::iter::successors(Some(head), |block| self.arena.get(block.next))
    }

    pub(crate) fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    pub(crate) fn set_capturing(&mut self, is_capturing: bool) {
        self.is_capturing = is_capturing;
    }

    /// Whether requests may fail now, if the caller's stream is not captured.
    pub(crate) fn needs_capture(&self) -> bool {
        self.needs_captures && self.private_pools.is_routing()
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.is_capturing
    }

    pub(crate) fn stream(&self, slot: u16) -> StreamId {
        self.streams[usize::from(slot)]
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
        let (pool_number, _) = self.private_pools.create_or_use(id)?;
        let pools = usize::from(pool_number) + 1;
        if self.reserved_by.len() < pools {
            self.reserved_by.resize(pools, 0);
            self.free.resize_with(2 * pools, FreeIndex::default);
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
        self.arena.insert(Block {
            address: address.0,
            size: size.0,
            requested: 0,
            stamp: 0,
            prev: NIL,
            next: NIL,
            link_prev: NIL,
            link_next: NIL,
            generation: 0,
            rank,
            stream,
            pool: pool.0,
            bin: 0,
            state: BlockState::Detached,
            marks,
        })
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
        let free = self.free[pool].of_mut(stream).expect("a free block is in the index of its stream");
        let before = free.resize(slots, index, rest);
        let low = vacant.split(slots, index, size);
        vacant.give_rank(slots, low);
        free.settle(slots, before);
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

    /// Records that a private pool had no free block for a request.
    pub(crate) fn note_growing_pool(&mut self) {
        self.waits_left = MOST_WAITS;
    }

    /// Whether the policy may wait before requests are routed to a private pool.
    pub(crate) fn may_wait_for_pools(&self) -> bool {
        self.waits_left > 0
    }

    /// Records such a wait.
    pub(crate) fn note_waited_for_pools(&mut self) {
        self.waits_left = self.waits_left.saturating_sub(1);
    }

    #[inline]
    pub(crate) fn known_stream_slot(&self, stream: StreamId) -> Option<u16> {
        if self.last_stream.0 == stream {
            return Some(self.last_stream.1);
        }
        let place = self.stream_order.binary_search_by_key(&stream, |&slot| self.streams[usize::from(slot)]).ok()?;
        Some(self.stream_order[place])
    }

    /// The slot of a stream. A new stream gets a new slot.
    #[inline]
    pub(crate) fn stream_slot(&mut self, stream: StreamId) -> Result<u16, TooManyStreams> {
        if self.last_stream.0 != stream {
            self.last_stream = (stream, self.find_or_add_stream(stream)?);
        }
        Ok(self.last_stream.1)
    }

    /// All streams: the default stream first, then the others in the order of their first request.
    #[must_use]
    pub fn streams_seen(&self) -> &[StreamId] {
        &self.streams
    }

    fn find_or_add_stream(&mut self, stream: StreamId) -> Result<u16, TooManyStreams> {
        match self.stream_order.binary_search_by_key(&stream, |&slot| self.streams[usize::from(slot)]) {
            Ok(place) => Ok(self.stream_order[place]),
            Err(place) => {
                let slot = u16::try_from(self.streams.len()).map_err(|_| TooManyStreams)?;
                self.streams.push(stream);
                self.stream_order.insert(place, slot);
                Ok(slot)
            }
        }
    }
}
