//! The arenas of RAPIDS Memory Manager: each stream has its own small blocks, a global arena has the large
//! ones.
//!
//! From rapidsai/rmm, cpp/include/rmm/mr/detail/arena.hpp (commit 07b2ac6) and
//! cpp/src/mr/detail/arena_memory_resource_impl.cpp (08cef2a), and compared with the library of 26.10.0, decision by
//! decision (`conformance/other_allocators`):
//! - the global arena is one area, taken at the start: half of the free memory, or as much as it is told; here the
//!   heap's limit tells it. It never grows and nothing of it goes back;
//! - sizes are multiples of 256 bytes; the area is divided into superblocks, and a block lies in one of them;
//! - a request of up to 1 MiB is served from the superblocks of its stream's arena, a larger one from those of the
//!   global arena: at the lowest address where a free block is large enough;
//! - a superblock that serves a large request, or moves to a stream's arena because that has no block, is taken at the
//!   lowest address where a free block is large enough. An empty one is cut at the request's size, at least at 1 MiB,
//!   if at least 1 MiB is left. One with large blocks in it moves as it is, and they come back to it;
//! - empty superblocks of the global arena coalesce, those of a stream's do not, and they stay there until memory is
//!   out: then all superblocks of all arenas return to the global arena, and the request is tried once more.
//!
//! Different here: a policy does not see the device's free memory, only how much of it the heap has. Where an area is
//! refused, half of that is tried, and so on. In RMM the host waits for the stream when a large block is given back, and for the device before
//! superblocks return; here the requesting stream waits for the others whose free memory it may use. While a graph
//! is captured it uses its own only. All requests come from one host thread, whose arena is that of the default stream.
//! A private pool has arenas of its own; since nobody says how large, its areas come as requests need them, in pages of
//! 2 MiB, and go back when the pool is gone. `empty_cache` releases an area that is entirely free. Where a block begins inside of a free range, the allocator calls its free-memory callbacks first.

use alloc::collections::BTreeMap;

use parkade::policy::{FreeOrder, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, StreamId};
use parkade::{BlockId, BlockView, Heap, PoolSlot};

use crate::plain_ladder;

/// Sizes are multiples of this.
const UNIT: u64 = 256;
/// The size of the smallest superblock, and the largest request that a stream's arena serves.
const SUPERBLOCK: u64 = MIB;
/// The areas of private pools are multiples of this.
const PAGE: u64 = 2 * MIB;

/// A superblock; its address is its key.
#[derive(Clone, Copy, Debug)]
struct Superblock {
    bytes: u64,
    /// Whose arena it is in; `None` for the global one.
    owner: Option<StreamId>,
}

/// The area of a pool, or the areas of a private one: superblocks by address, without gaps in an area.
type Area = BTreeMap<u64, Superblock>;

/// The rules of RMM's arenas.
#[derive(Clone, Debug)]
pub struct RmmArena {
    areas: BTreeMap<PoolSlot, Area>,
    /// Whether the area is all the memory there is, and not half.
    is_whole: bool,
    step: Step,
}

/// The next step of the ladder for the current request.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Move what is free of other streams to the request's, from this one on in the order of first use.
    Move(usize, Try),
    Find(Try),
    /// An area of so many bytes was asked for.
    Began(u64),
    Borrow,
    Wait,
    GiveUp,
}

/// How often there was nothing.
#[derive(Clone, Copy, Debug)]
enum Try {
    First,
    Clean,
    /// After an area more.
    Grown,
    Waited,
}

/// Where a request finds room.
struct Found {
    /// The free range, and where in it.
    block: BlockId,
    offset: u64,
    /// The superblock, and whether it is empty.
    superblock: u64,
    is_empty: bool,
}

impl RmmArena {
    /// In half of the device's memory, or in all of the heap's limit.
    #[must_use]
    pub fn new() -> RmmArena {
        RmmArena { areas: BTreeMap::new(), is_whole: false, step: Step::GiveUp }
    }

    /// In all of the device's memory, or of the heap's limit: with RMM's `arena_size` set to that.
    #[must_use]
    pub fn whole() -> RmmArena {
        RmmArena { is_whole: true, ..RmmArena::new() }
    }

    /// How many bytes to ask for as an area of a pool.
    fn area_bytes(&self, heap: &Heap, request: &Request) -> u64 {
        if !is_default(request.pool) {
            return request.size.0.checked_next_multiple_of(PAGE).unwrap_or(request.size.0);
        }
        let left = heap.limit().unwrap_or(heap.device_total()).saturating_sub(heap.reserved()).0;
        let bytes = if self.is_whole || heap.limit().is_some() { left } else { left / 2 };
        bytes / UNIT * UNIT
    }

    /// The first other stream that has free memory, from this one on in the order of first use, and the place after it.
    fn other(heap: &Heap, request: &Request, from: usize) -> Option<(StreamId, usize)> {
        let has_free = |stream| heap.lowest_at_least(request.pool, stream, Bytes(1), DeviceAddress(0)).is_some();
        let mut streams = heap.streams_seen().iter().enumerate().skip(from);
        let (place, &stream) = streams.find(|&(_, &stream)| stream != request.stream && has_free(stream))?;
        Some((stream, place + 1))
    }

    /// The lowest room for the request, in its stream's superblocks or a superblock of the global arena that may
    /// move there, and notes what becomes of that superblock. `takes` says whether to take what lies at this offset of
    /// a free range; if not, nothing is noted.
    fn find(&mut self, heap: &Heap, request: &Request, takes: impl Fn(u64) -> bool) -> Option<(BlockId, u64)> {
        let area = self.areas.get_mut(&request.pool)?;
        let own = Some(request.stream).filter(|_| request.size.0 <= SUPERBLOCK);
        let in_own = own.and_then(|_| room(area, heap, request, own));
        let found = match in_own {
            Some(found) => return Some((found.block, found.offset)).filter(|_| takes(found.offset)),
            None => room(area, heap, request, None).filter(|found| takes(found.offset))?,
        };
        cut(area, &found, request.size.0.max(SUPERBLOCK), own);
        Some((found.block, found.offset))
    }

    /// This step's rung, if it has one, and the next step.
    fn climb(&mut self, heap: &Heap, request: &Request) -> (Option<Relief>, Step) {
        match self.step {
            Step::Move(from, again) => match RmmArena::other(heap, request, from).filter(|_| !heap.is_deferring()) {
                Some((from, next)) => (Some(Relief::TransferAll { from }), Step::Move(next, again)),
                None => (None, Step::Find(again)),
            },
            Step::Find(again) => match self.find(heap, request, |_| true) {
                Some((block, 0)) => (Some(Relief::Reuse(block)), Step::GiveUp),
                Some((block, offset)) => (Some(Relief::ReuseAt { block, offset: Bytes(offset) }), Step::GiveUp),
                None => self.after(heap, request, again),
            },
            Step::Began(bytes) => {
                let area = self.areas.entry(request.pool).or_default();
                let is_new = |block: &BlockView| block.size.0 == bytes && !block.is_split && !area.contains_key(&block.address.0);
                match heap.free_blocks(request.pool).find(is_new) {
                    Some(block) => {
                        area.insert(block.address.0, Superblock { bytes, owner: None });
                        (None, Step::Find(Try::Grown))
                    }
                    None => RmmArena::begin(request, bytes / 2 / UNIT * UNIT),
                }
            }
            Step::Borrow => (Some(Relief::Borrow), Step::Wait),
            // While a graph is captured nothing waits.
            Step::Wait if heap.is_deferring() => (None, Step::GiveUp),
            Step::Wait => (Some(Relief::Wait), Step::Move(0, Try::Waited)),
            Step::GiveUp => (Some(Relief::GiveUp), Step::GiveUp),
        }
    }

    /// What to do when there is no room.
    fn after(&mut self, heap: &Heap, request: &Request, again: Try) -> (Option<Relief>, Step) {
        match (again, self.areas.get_mut(&request.pool)) {
            (Try::First, None) => RmmArena::begin(request, self.area_bytes(heap, request)),
            (Try::First, Some(area)) => {
                area.values_mut().for_each(|superblock| superblock.owner = None);
                (None, Step::Find(Try::Clean))
            }
            (Try::Clean, _) if !is_default(request.pool) => RmmArena::begin(request, self.area_bytes(heap, request)),
            (Try::Clean | Try::Grown, _) => (None, Step::Borrow),
            (Try::Waited, _) => (None, Step::GiveUp),
        }
    }

    /// Asks for an area of so many bytes, if that is enough.
    fn begin(request: &Request, bytes: u64) -> (Option<Relief>, Step) {
        if bytes < request.size.0.max(SUPERBLOCK) {
            return (None, Step::Borrow);
        }
        (Some(Relief::Provide { bytes: Bytes(bytes), stream: request.stream }), Step::Began(bytes))
    }
}

fn is_default(pool: PoolSlot) -> bool {
    pool == PoolSlot::default_pool(PoolClass::Large)
}

/// The lowest room in the superblocks of an arena. Empty superblocks of the global arena coalesce on the way: nothing
/// is taken of them without coming along here.
fn room(area: &mut Area, heap: &Heap, request: &Request, owner: Option<StreamId>) -> Option<Found> {
    let mut from = DeviceAddress(0);
    while let Some(range) = heap.lowest_at_least(request.pool, request.stream, request.size, from) {
        let (start, end) = (range.address.0, range.address.0 + range.size.0);
        let mut next = area.range(..=start).next_back().map(|(&address, _)| address);
        while let Some(address) = next.filter(|&address| address < end) {
            let mut superblock = area[&address];
            let is_empty = start <= address && address + superblock.bytes <= end;
            if owner.is_none() && superblock.owner.is_none() && is_empty {
                superblock.bytes += absorbed(area, address + superblock.bytes, end);
                area.insert(address, superblock);
            }
            let behind = address + superblock.bytes;
            let (low, high) = (start.max(address), end.min(behind));
            if superblock.owner == owner && high.saturating_sub(low) >= request.size.0 {
                return Some(Found { block: range.id, offset: low - start, superblock: address, is_empty });
            }
            next = area.contains_key(&behind).then_some(behind);
        }
        from = DeviceAddress(end);
    }
    None
}

/// Removes the empty superblocks of the global arena from an address on, up to the end of the free range. Returns how
/// many bytes they have.
fn absorbed(area: &mut Area, from: u64, end: u64) -> u64 {
    let mut bytes = 0;
    while let Some(next) = area.get(&(from + bytes)).copied() {
        if next.owner.is_some() || from + bytes + next.bytes > end {
            break;
        }
        area.remove(&(from + bytes));
        bytes += next.bytes;
    }
    bytes
}

/// Moves a superblock of the global arena to `owner`, or its first `least` bytes if it is empty and large enough.
fn cut(area: &mut Area, found: &Found, least: u64, owner: Option<StreamId>) {
    let whole = area[&found.superblock].bytes;
    let bytes = if found.is_empty && whole - least.min(whole) >= SUPERBLOCK { least } else { whole };
    area.insert(found.superblock, Superblock { bytes, owner });
    if bytes < whole {
        area.insert(found.superblock + bytes, Superblock { bytes: whole - bytes, owner: None });
    }
}

impl Default for RmmArena {
    fn default() -> RmmArena {
        RmmArena::new()
    }
}

impl Policy for RmmArena {
    fn name(&self) -> &'static str {
        "rmm-arena"
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(UNIT))
    }

    fn classify(&self, _: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn free_order(&self) -> FreeOrder {
        FreeOrder::ByAddress
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        // Released, or a pool that is gone.
        if heap.reserved_in(request.pool) == Bytes::ZERO {
            self.areas.remove(&request.pool);
        }
        let is_alone = heap.is_deferring() || RmmArena::other(heap, request, 0).is_none();
        let found = if is_alone { self.find(heap, request, |offset| offset == 0) } else { None };
        found.map_or(Placement::Segment(request.size), |(block, _)| Placement::Reuse(block))
    }

    #[inline]
    fn splits(&self, _: Bytes, _: &Request) -> bool {
        true
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        let left_behind = plain_ladder::left_behind(heap, request);
        if rung == 0 || left_behind.is_some() {
            self.step = Step::Move(0, Try::First);
        }
        if let Some(relief) = left_behind {
            return relief;
        }
        plain_ladder::first_relief(|| {
            let (relief, next) = self.climb(heap, request);
            self.step = next;
            relief
        })
    }
}
