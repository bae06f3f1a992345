//! The reference allocator: a second implementation of PyTorch's allocator, based on lists that are scanned from end to
//! end.
//!
//! It owns no device. After each operation of the allocator under test, it performs the same operation. Wherever it
//! would call the device, it reads the answer from the list of calls that the tested allocator made: the next call in
//! the list must be the same, including its arguments. Every decision is therefore compared, on any device, no matter
//! what the device answers and which calls fail.
//!
//! Afterwards, the trace, the statistics, the segments and the result of the operation must also be equal. Sources:
//! docs/spec.md, sections 1 to 6 and 11.0.
//!
//! This file contains the allocator's state, its blocks by address (how they are split, made free and listed in the
//! order in which free blocks are used: spec 2.3, 3.2, 3.4), and how a free block serves a request: the block size, the
//! search, the split and the accounting for a block that is handed out (spec 1.2 to 1.6, 2.5, 3.1, 3.2). It also contains
//! what callers see of this state: segments, reserved ranges and sums, and the comparison with what the tested allocator
//! shows (spec 5.7, 7.1, 7.3); and a second, independent count of the statistics (spec section 6).

mod pools;
mod requests;
mod segments;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use parkade::device::BackendError;
use parkade::profile::{Profile, TieBreak};
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::stats::{Family, Stat, Stats};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AllocError, CheckpointError, PoolError, PoolFilter};
use parkade_sim::CallName;

use super::ReleaseRules;
pub use super::graphs::Graphs;
use super::table::Table;
use crate::backend::MadeCall;

pub use pools::{Restoration, Saved, SavedRun};

/// What the allocator remembers of a capture: the pool that received its first request, and the nodes that come before each
/// stream's next work.
type Visited = (PoolId, BTreeMap<u64, BTreeSet<usize>>);

/// The reference allocator.
#[derive(Clone, Debug)]
pub struct Reference {
    rules: ReleaseRules,
    /// The settings in force.
    pub settings: Settings,
    total: u64,
    device: u32,
    limit: Option<u64>,
    segments: Vec<Segment>,
    /// The number of segments and reserved ranges made so far or, if each block has its own age, of
    /// blocks.
    made: u64,
    /// The number of reserved ranges made so far.
    ranges_made: u64,
    /// The number of searches among the default pool's large blocks while garbage collection was
    /// on.
    searches: u64,
    /// The recorded events by stream, oldest first, each with the block that waits for it.
    queues: BTreeMap<u64, VecDeque<(u64, u64)>>,
    /// The streams that have such events, in the order in which they are queried.
    waited_for: Table<u64>,
    /// Unused events; the event that was used last is reused first.
    spare_events: Vec<u64>,
    /// Freed blocks whose events have not all been recorded, oldest first.
    deferred: VecDeque<u64>,
    pools: BTreeMap<PoolId, PrivatePool>,
    routings: Vec<(PoolId, PoolFilter)>,
    /// The pool that the caller selected for its next requests.
    chosen: Option<PoolId>,
    /// Whether a routing has failed that counts as one that never ends.
    routes_for_ever: bool,
    serving: Table<PoolId>,
    /// Pools without uses, whose memory may be released.
    freeable: Table<PoolId>,
    whole: BTreeSet<PoolId>,
    is_capturing: bool,
    /// The captured graphs, which the program builds.
    pub graphs: Graphs,
    /// The captures in which a stream with work has made a request.
    captures: BTreeMap<u64, Visited>,
    /// The actions of the free-memory callbacks, one per call. Each is stored with whether the callback then reports
    /// that it freed something.
    pub stocks: Vec<VecDeque<(Deed, bool)>>,
    /// The answers that callbacks received during the operation.
    pub callback_answers: Vec<Made>,
    /// The stock of each callback, in the order of registration.
    pub registered: Vec<usize>,
    /// Pools that requests in progress will use.
    awaited: Vec<PoolId>,
    /// Handles of memory that the device failed to release.
    unreleased: u64,
    /// Ranges that the device failed to unmap.
    stuck: Vec<(u64, u64)>,
    accounts: Accounts,
    /// The entries that an observer should receive.
    pub trace: Vec<TraceEntry>,
    calls: VecDeque<MadeCall>,
    /// The first difference between the calls made and those that the rules require.
    wrong: Option<String>,
}

/// A private pool.
#[derive(Clone, Copy, Debug)]
struct PrivatePool {
    uses: i64,
}

/// An action of a callback.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Deed {
    /// Frees the block at an address.
    Free(u64),
    /// Requests bytes for a stream.
    Allocate(u64, u64),
    /// Empties the cache.
    ReleaseCached,
    /// Creates a pool, or adds a use.
    Create(PoolId),
    /// Routes requests to a pool.
    Begin(PoolId, PoolFilter),
    /// Stops routing requests to a pool.
    End(PoolId),
    /// Removes a use of a pool.
    Release(PoolId),
    /// Empties the cache of a pool.
    ReleaseCachedPool(PoolId),
    /// Registers one more callback, which uses the stock with this number.
    Register(usize),
}

/// The answer that a callback receives.
#[derive(Clone, PartialEq, Debug)]
pub enum Made {
    /// The address that the callback freed, and the device's error.
    Freed(u64, Option<BackendError>),
    /// The address that the callback got.
    Allocated(Result<u64, AllocError>),
    /// The answer to a release.
    Done(Result<(), AllocError>),
    /// The answer to an operation on a pool.
    Pool(Result<(), PoolError>),
}

/// The state of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Allocated,
    /// Freed, but still used by other streams.
    Pending,
    /// Addresses without memory.
    Unmapped,
    /// In transition from one state to another.
    Taken,
}

/// A block, identified by its address.
#[derive(Clone, Debug)]
struct Block {
    address: u64,
    size: u64,
    requested: u64,
    state: State,
    /// The age of the segment or of the block, which orders blocks of equal size (oldest first) before their addresses
    /// do.
    rank: u64,
    stamp: u64,
    /// Streams that use the block and for which no event has been recorded yet.
    uses: Table<u64>,
    /// The streams whose use was recorded during a capture.
    captured: BTreeSet<u64>,
    /// Where the captured graph ended on every stream that uses the block, when it was freed during the capture.
    markers: Vec<usize>,
}

impl Block {
    fn new(address: u64, size: u64, state: State, rank: u64) -> Block {
        let (uses, captured, markers) = (Table::default(), BTreeSet::new(), Vec::new());
        Block { address, size, requested: 0, state, rank, stamp: 0, uses, captured, markers }
    }
}

/// A segment, or the reserved range of an expandable segment.
#[derive(Clone, Debug)]
struct Segment {
    base: u64,
    size: u64,
    /// The size of a page in bytes; 0 if the segment is not expandable.
    page: u64,
    stream: u64,
    pool: PoolId,
    class: PoolClass,
    /// Its number among the reserved ranges.
    number: u64,
    blocks: Vec<Block>,
}

impl Segment {
    fn is_expandable(&self) -> bool {
        self.page > 0
    }

    fn place(&self, address: u64) -> usize {
        self.blocks.iter().position(|block| block.address == address).expect("every address in use has a block")
    }
}

impl Segment {
    /// Returns the number of bytes that have memory.
    fn mapped(&self) -> u64 {
        self.blocks.iter().filter(|block| block.state != State::Unmapped).map(|block| block.size).sum()
    }
}

/// A free block as seen by searches.
#[derive(Clone, Copy, Debug)]
pub struct FreeBlock {
    /// The address of its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The stream of its segment.
    pub stream: u64,
    /// The age of its segment or its own age, where the oldest is lowest; 0 if age does not count.
    pub rank: u64,
    /// The number of searches before it became free.
    pub stamp: u64,
    /// Whether it is only part of its segment.
    pub is_split: bool,
    /// Whether its segment is expandable.
    pub is_expandable: bool,
    /// The size of the addresses without memory directly after it.
    pub room_behind: u64,
}

/// The sizes that a block absorbed when it became free.
#[derive(Clone, Copy, Default, Debug)]
struct Absorbed {
    blocks: i64,
    bytes: i64,
}

/// A request in progress.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    requested: u64,
    size: u64,
    pool: PoolId,
    class: PoolClass,
    stream: u64,
    is_expandable: bool,
}

/// Returns the error for a call that the tested allocator did not make.
const NOT_MADE: BackendError = BackendError::Driver { call: "the allocator did not make the call", code: 0 };

impl Reference {
    /// Creates an allocator without memory on a device of `total` bytes.
    pub fn new(profile: &Profile, settings: Settings, total: u64, device: u32) -> Reference {
        let accounts = Accounts::new(settings.max_split_bytes as i64);
        Reference {
            rules: ReleaseRules::of(profile.name),
            settings,
            total,
            device,
            limit: None,
            segments: Vec::new(),
            made: 0,
            ranges_made: 0,
            searches: 0,
            queues: BTreeMap::new(),
            waited_for: Table::default(),
            spare_events: Vec::new(),
            deferred: VecDeque::new(),
            pools: BTreeMap::new(),
            routings: Vec::new(),
            chosen: None,
            routes_for_ever: false,
            serving: Table::default(),
            freeable: Table::default(),
            whole: BTreeSet::new(),
            is_capturing: false,
            graphs: Graphs::default(),
            captures: BTreeMap::new(),
            stocks: Vec::new(),
            callback_answers: Vec::new(),
            registered: Vec::new(),
            awaited: Vec::new(),
            unreleased: 0,
            stuck: Vec::new(),
            accounts,
            trace: Vec::new(),
            calls: VecDeque::new(),
            wrong: None,
        }
    }

    /// Takes the device calls made in the operation that follows.
    pub fn begin(&mut self, calls: Vec<MadeCall>) {
        (self.calls, self.wrong) = (calls.into(), None);
        self.trace.clear();
        self.callback_answers.clear();
    }

    /// Returns the fault in the operation's calls, if there is one.
    pub fn end(&mut self) -> Option<String> {
        let left = self.calls.front().map(|call| format!("the allocator made the driver call {call:?}, which no rule requires"));
        self.wrong.take().or(left)
    }

    /// Makes a call by reading the answer that the tested allocator received.
    fn call(&mut self, asked: MadeCall) -> Result<u64, BackendError> {
        if self.wrong.is_some() {
            return Err(NOT_MADE);
        }
        match self.calls.pop_front() {
            Some(made) if made.asked() == asked => made.error.map_or(Ok(made.answer), Err),
            other => {
                self.wrong = Some(format!("the rules require the driver call {asked:?}, but the allocator made {other:?}"));
                Err(NOT_MADE)
            }
        }
    }

    fn tell(&mut self, action: TraceAction, address: u64, size: u64, stream: u64, pool: PoolId) {
        self.trace.push(TraceEntry { action, address, size, stream: StreamId(stream), pool });
    }

    /// Returns whether waiting is deferred (spec 3.8, 11.0).
    pub fn is_deferring(&self) -> bool {
        if self.rules.defers_while_routing { self.routes_for_ever || !self.routings.is_empty() } else { self.is_capturing }
    }

    /// Sets whether the caller's stream is being captured.
    pub fn set_capturing(&mut self, is_capturing: bool) {
        self.is_capturing = is_capturing;
    }

    /// Sets the limit in bytes.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Sets the limit to a fraction of the device (spec 2.15); returns false if the value is not a valid fraction.
    pub fn set_fraction(&mut self, fraction: f64) -> bool {
        if fraction.is_nan() || !(0.0..=1.0).contains(&fraction) {
            return false;
        }
        if self.rules.asks_for_total {
            // The total does not change, so it is assumed to be the same after a failure.
            let _ = self.call(MadeCall::to(CallName::MemGetInfo));
        }
        let exact = fraction * self.total as f64;
        // Later releases round to the nearest byte, halves up.
        let bytes = if self.rules.rounds_limits_down { exact.floor() } else { exact.round() };
        self.limit = if fraction == 1.0 && !self.rules.limits_whole_memory { None } else { Some(bytes as u64) };
        true
    }

    /// Returns the limit.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    fn next_rank(&mut self) -> u64 {
        let rank = if self.rules.tie_break == TieBreak::Address { 0 } else { self.made };
        self.made += 1;
        rank
    }

    /// Returns the rank of a new block that was part of another block or follows it.
    fn next_rank_beside(&mut self, other: u64) -> u64 {
        if self.rules.tie_break == TieBreak::BlockAge { self.next_rank() } else { other }
    }

    /// Returns the time that a block records as the time when it became free.
    fn stamp(&self, pool: PoolId, class: PoolClass) -> u64 {
        if (pool, class) == (PoolId::DEFAULT, PoolClass::Large) { self.searches } else { 0 }
    }

    fn is_oversize(&self, size: u64) -> bool {
        size >= self.settings.max_split_bytes
    }
}

impl Reference {
    /// Returns the segment of the block at an address.
    fn segment_at(&self, address: u64) -> &Segment {
        let holds = |segment: &&Segment| (segment.base..segment.base + segment.size).contains(&address);
        self.segments.iter().find(holds).expect("every address in use has a block")
    }

    fn segment_at_mut(&mut self, address: u64) -> &mut Segment {
        let holds = |segment: &&mut Segment| (segment.base..segment.base + segment.size).contains(&address);
        self.segments.iter_mut().find(holds).expect("every address in use has a block")
    }

    fn block(&self, address: u64) -> &Block {
        let segment = self.segment_at(address);
        &segment.blocks[segment.place(address)]
    }

    fn block_mut(&mut self, address: u64) -> &mut Block {
        let segment = self.segment_at_mut(address);
        let place = segment.place(address);
        &mut segment.blocks[place]
    }

    /// Returns a collection's free blocks in PyTorch's order: by stream handle, size, age (if it counts) and address.
    fn free_blocks(&self, pool: PoolId, class: PoolClass) -> Vec<FreeBlock> {
        let mut free = Vec::new();
        for segment in self.segments.iter().filter(|segment| segment.pool == pool && segment.class == class) {
            for (place, block) in segment.blocks.iter().enumerate().filter(|(_, block)| block.state == State::Free) {
                let behind = segment.blocks.get(place + 1).filter(|next| next.state == State::Unmapped);
                free.push(FreeBlock {
                    address: block.address,
                    size: block.size,
                    stream: segment.stream,
                    rank: block.rank,
                    stamp: block.stamp,
                    is_split: segment.blocks.len() > 1,
                    is_expandable: segment.is_expandable(),
                    room_behind: behind.map_or(0, |next| next.size),
                });
            }
        }
        free.sort_by_key(|block| (block.stream, block.size, block.rank, block.address));
        free
    }

    /// Splits a block: its first `size` bytes become a new block, and the remainder becomes free.
    fn split(&mut self, address: u64, size: u64, stamp: u64) {
        let rank = self.next_rank_beside(self.block(address).rank);
        let segment = self.segment_at_mut(address);
        let place = segment.place(address);
        let whole = &mut segment.blocks[place];
        let rest = Block { address: address + size, size: whole.size - size, state: State::Free, stamp, ..whole.clone() };
        (whole.size, whole.requested, whole.rank) = (size, 0, rank);
        segment.blocks.insert(place + 1, rest);
    }

    /// Makes a block free and coalesces it with its free neighbours. Returns its new address and what it absorbed.
    fn put_back(&mut self, address: u64) -> (u64, Absorbed) {
        let segment = self.segment_at(address);
        let stamp = self.stamp(segment.pool, segment.class);
        let segment = self.segment_at_mut(address);
        let mut place = segment.place(address);
        let mut absorbed = Absorbed::default();
        if segment.blocks.get(place + 1).is_some_and(|next| next.state == State::Free) {
            let next = segment.blocks.remove(place + 1);
            segment.blocks[place].size += next.size;
            absorbed = Absorbed { blocks: 1, bytes: next.size as i64 };
        }
        if place > 0 && segment.blocks[place - 1].state == State::Free {
            let before = segment.blocks.remove(place - 1);
            place -= 1;
            segment.blocks[place].address = before.address;
            segment.blocks[place].size += before.size;
            absorbed = Absorbed { blocks: absorbed.blocks + 1, bytes: absorbed.bytes + before.size as i64 };
        }
        let block = &mut segment.blocks[place];
        (block.state, block.stamp) = (State::Free, stamp);
        (block.address, absorbed)
    }

    /// Returns the bytes taken from the device by all pools.
    fn reserved(&self) -> u64 {
        self.segments.iter().map(Segment::mapped).sum()
    }

    /// Returns the bytes taken from the device by one pool.
    fn reserved_by(&self, pool: PoolId) -> u64 {
        self.segments.iter().filter(|segment| segment.pool == pool).map(Segment::mapped).sum()
    }
}

impl Reference {
    /// Returns the block size for a request; `None` if it exceeds 64 bits (spec 1.2 to 1.4).
    pub fn rounded(&self, requested: u64) -> Option<u64> {
        if requested < 512 {
            return Some(512);
        }
        // 16 intervals: below 2 MiB, below 4 MiB, ..., below 32 GiB, and the rest.
        let interval = (1..16).take_while(|&slot| requested >= MIB << slot).count();
        let divisions = self.settings.roundup_power2_divisions[interval];
        if divisions == 1 && !self.rules.rounds_by_one_division {
            return Some(requested);
        }
        // The product also wraps in PyTorch.
        if divisions > 1 && requested > divisions.wrapping_mul(512) {
            let mut power = 1_u64;
            while power <= requested / 2 {
                power *= 2;
            }
            if power == requested {
                return Some(power);
            }
            let step = u128::from(power / divisions);
            let up = if step == 0 { 2 * u128::from(power) } else { u128::from(requested).div_ceil(step) * step };
            return u64::try_from(up).ok();
        }
        u64::try_from(u128::from(requested).div_ceil(512) * 512).ok()
    }

    /// Returns the segment size for a block (spec 1.6); `u64::MAX` if there is none.
    pub fn segment_for(&self, size: u64) -> u64 {
        if size <= MIB {
            return 2 * MIB;
        }
        if size < 10 * MIB {
            return self.settings.large_segment_bytes;
        }
        u64::try_from(u128::from(size).div_ceil(2 * MIB as u128) * 2 * MIB as u128).unwrap_or(u64::MAX)
    }

    /// Returns the free block that serves a request, taken out of its list (spec 2.5).
    fn search(&mut self, wanted: &Wanted) -> Option<u64> {
        let counts = self.limit.is_some() && self.settings.garbage_collection_threshold > 0.0;
        if counts && (wanted.pool, wanted.class) == (PoolId::DEFAULT, PoolClass::Large) {
            self.searches += 1;
        }
        let mut free = self.free_blocks(wanted.pool, wanted.class);
        free.retain(|block| block.stream == wanted.stream && block.size >= wanted.size);
        let first = *free.first()?;
        let chosen = if first.is_expandable { choose_expandable(&free, wanted.is_expandable)? } else { first };
        let max_split = self.settings.max_split_bytes;
        let may_serve = if wanted.size < max_split {
            chosen.size < max_split
        } else {
            // The sum also wraps in PyTorch.
            chosen.size < wanted.size.wrapping_add(self.settings.max_non_split_rounding_bytes)
        };
        if !may_serve {
            return None;
        }
        self.block_mut(chosen.address).state = State::Taken;
        Some(chosen.address)
    }

    /// Returns whether the remainder of a block of `whole` bytes is split off (spec 3.1).
    fn splits(&self, whole: u64, wanted: &Wanted) -> bool {
        let rest = whole - wanted.size;
        if rest == 0 || (wanted.pool != PoolId::DEFAULT && self.whole.contains(&wanted.pool)) {
            return false;
        }
        match wanted.class {
            _ if wanted.is_expandable => rest >= 512,
            PoolClass::Small => rest >= 512,
            PoolClass::Large => wanted.size < self.settings.max_split_bytes && rest > MIB,
        }
    }

    fn hand_out(&mut self, address: u64, wanted: &Wanted) -> u64 {
        let splits = self.splits(self.block(address).size, wanted);
        self.hand_out_part(address, wanted, splits)
    }

    /// Hands out a block or its first bytes (spec 3.2).
    fn hand_out_part(&mut self, address: u64, wanted: &Wanted, splits: bool) -> u64 {
        let (class, whole) = (wanted.class, self.block(address).size);
        let segment = self.segment_at(address);
        let (is_expandable, was_split, stream) = (segment.is_expandable(), segment.blocks.len() > 1, segment.stream);
        let stamp = self.stamp(segment.pool, segment.class);
        if splits {
            self.split(address, wanted.size, stamp);
        }
        let block = self.block_mut(address);
        (block.state, block.requested) = (State::Allocated, wanted.requested);
        let size = block.size as i64;
        if !is_expandable && splits {
            // For a block that had already been split, one free block is subtracted from the count
            // and one is added.
            let left = if was_split { -size } else { whole as i64 - size };
            self.accounts.change(Family::InactiveSplit, class, i64::from(!was_split));
            self.accounts.change(Family::InactiveSplitBytes, class, left);
        } else if !is_expandable && was_split {
            self.accounts.change(Family::InactiveSplit, class, -1);
            self.accounts.change(Family::InactiveSplitBytes, class, -size);
        }
        self.tell(TraceAction::Alloc, address, wanted.requested, stream, wanted.pool);
        self.accounts.change(Family::Allocation, class, 1);
        self.accounts.change(Family::AllocatedBytes, class, size);
        self.accounts.change(Family::Active, class, 1);
        self.accounts.change(Family::ActiveBytes, class, size);
        self.accounts.change(Family::RequestedBytes, class, wanted.requested as i64);
        if self.is_oversize(size as u64) {
            add(&mut self.accounts.oversize_allocations, 1);
        }
        address
    }
}

/// If the first sufficiently large block is in an expandable segment, a different one may be used instead (spec 2.5,
/// step 3).
fn choose_expandable(free: &[FreeBlock], is_expandable: bool) -> Option<FreeBlock> {
    if !is_expandable {
        return free.iter().find(|block| !block.is_expandable).copied();
    }
    let reach = |block: &FreeBlock| block.size + block.room_behind;
    let (mut chosen, mut place) = (free[0], 1);
    while chosen.is_expandable && place < free.len() && reach(&free[place]) < reach(&chosen) {
        chosen = free[place];
        place += 1;
    }
    Some(chosen)
}

impl Reference {
    /// Returns all segments by address; for expandable ones, every mapped run.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let mut found = Vec::new();
        for segment in &self.segments {
            let runs = segment.blocks.split(|block| block.state == State::Unmapped);
            found.extend(runs.filter(|run| !run.is_empty()).map(|run| describe(segment, run)));
        }
        found.sort_by_key(|segment| segment.address);
        found
    }

    /// Returns the same as a snapshot, for one pool or for all pools.
    pub fn snapshot(&mut self, pool: Option<PoolId>) -> Vec<SegmentInfo> {
        let mut segments = self.segments();
        segments.retain(|segment| pool.is_none_or(|pool| segment.pool == pool));
        let active = segments.iter().map(|segment| segment.active.get()).sum();
        self.tell(TraceAction::Snapshot, 0, active, 0, pool.unwrap_or(PoolId::DEFAULT));
        segments
    }

    /// Returns the reserved ranges in the order in which they were made: stream, page and mapped
    /// bytes.
    pub fn ranges(&self) -> Vec<(StreamId, Bytes, Bytes)> {
        let mut ranges: Vec<&Segment> = self.segments.iter().filter(|segment| segment.is_expandable()).collect();
        ranges.sort_by_key(|segment| segment.number);
        ranges.iter().map(|range| (StreamId(range.stream), Bytes(range.page), Bytes(range.mapped()))).collect()
    }

    /// Returns the first byte and the size of the segment (or of the reserved range) that holds an allocation.
    pub fn segment_of(&self, address: u64) -> (DeviceAddress, Bytes) {
        let segment = self.segment_at(address);
        (DeviceAddress(segment.base), Bytes(segment.size))
    }

    /// Returns the pool that an allocation belongs to.
    pub fn pool_of(&self, address: u64) -> PoolId {
        self.segment_at(address).pool
    }

    /// Returns whether a private pool's allocated blocks are exactly these.
    pub fn live_are(&self, pool: PoolId, expected: &[u64]) -> Result<bool, CheckpointError> {
        if !self.has_pool(pool) {
            return Err(CheckpointError::UnknownPool(pool));
        }
        let own = self.segments.iter().filter(|segment| segment.pool == pool).flat_map(|segment| &segment.blocks);
        let mut live: Vec<u64> = own.filter(|block| block.state == State::Allocated).map(|block| block.address).collect();
        let mut expected = expected.to_vec();
        live.sort_unstable();
        expected.sort_unstable();
        Ok(live == expected)
    }

    /// Returns the free blocks of a pool's collection, in order.
    pub fn free_in_order(&self, pool: PoolId, class: PoolClass) -> Vec<FreeBlock> {
        self.free_blocks(pool, class)
    }

    /// Returns the number of bytes that garbage collection would release now (spec 2.7); `None` if it is off or nothing
    /// is due.
    pub fn collection_target(&self) -> Option<Bytes> {
        let threshold = self.settings.garbage_collection_threshold;
        let limit = self.limit.filter(|_| threshold > 0.0)?;
        let (kept, reserved) = ((threshold * limit as f64) as u64, self.reserved());
        (reserved > kept).then(|| Bytes(reserved - kept))
    }

    /// Returns the bytes that the default pool has taken from the device.
    pub fn reserved_by_default(&self) -> u64 {
        self.reserved_by(PoolId::DEFAULT)
    }

    /// Returns the bytes taken from the device.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved()
    }

    /// Returns the size of the largest free block.
    pub fn largest_free(&self) -> u64 {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == State::Free).map(|block| block.size).max().unwrap_or(0)
    }

    /// Sets every peak to its current value.
    pub fn reset_peaks(&mut self) {
        self.accounts.reset_peaks();
    }

    /// Sets every sum to 0.
    pub fn reset_sums(&mut self) {
        self.accounts.reset_sums();
    }

    /// Returns the first statistic that differs.
    pub fn difference_from(&self, stats: &Stats) -> Option<String> {
        self.accounts.difference(stats)
    }
}

fn describe(segment: &Segment, run: &[Block]) -> SegmentInfo {
    let info = |block: &Block| BlockInfo {
        address: DeviceAddress(block.address),
        size: Bytes(block.size),
        requested: Bytes(block.requested),
        state: match block.state {
            State::Allocated => BlockActivity::Allocated,
            State::Pending => BlockActivity::PendingFree,
            State::Free | State::Unmapped | State::Taken => BlockActivity::Inactive,
        },
    };
    let mut sums = [0; 4];
    for block in run {
        let is_active = matches!(block.state, State::Allocated | State::Pending);
        sums[0] += block.size;
        sums[1] += if block.state == State::Allocated { block.size } else { 0 };
        sums[2] += if is_active { block.size } else { 0 };
        sums[3] += if is_active { block.requested } else { 0 };
    }
    let [total, allocated, active, requested] = sums.map(Bytes);
    SegmentInfo {
        address: DeviceAddress(run[0].address),
        total,
        allocated,
        active,
        requested,
        stream: StreamId(segment.stream),
        pool: segment.pool,
        class: segment.class,
        rank: run[0].rank as u32,
        expandable: segment.is_expandable(),
        blocks: run.iter().map(info).collect(),
    }
}

/// A statistic for all memory, the small pool and the large pool.
type Levels = [Stat; 3];

/// All statistics.
#[derive(Clone, Debug)]
struct Accounts {
    /// In the order of [`Family::ALL`].
    families: [Levels; Family::ALL.len()],
    oversize_allocations: Stat,
    oversize_segments: Stat,
    by_pool: BTreeMap<PoolId, Levels>,
    retries: i64,
    ooms: i64,
    waits: i64,
    taken: i64,
    given: i64,
    rejections: i64,
    max_split: i64,
}

/// Adds to a statistic, or subtracts.
fn add(stat: &mut Stat, amount: i64) {
    stat.current = stat.current.wrapping_add(amount);
    // Sums wrap around beyond 63 bits, as in PyTorch.
    if amount >= 0 {
        stat.allocated = stat.allocated.wrapping_add(amount);
        stat.peak = stat.peak.max(stat.current);
    } else {
        stat.freed = stat.freed.wrapping_sub(amount);
    }
}

fn add_both(levels: &mut Levels, class: PoolClass, amount: i64) {
    add(&mut levels[0], amount);
    add(&mut levels[if class == PoolClass::Small { 1 } else { 2 }], amount);
}

impl Accounts {
    pub(super) fn new(max_split: i64) -> Accounts {
        let families = Default::default();
        let (by_pool, none) = (BTreeMap::new(), Stat::default());
        Accounts {
            families,
            oversize_allocations: none,
            oversize_segments: none,
            by_pool,
            retries: 0,
            ooms: 0,
            waits: 0,
            taken: 0,
            given: 0,
            rejections: 0,
            max_split,
        }
    }

    fn change(&mut self, family: Family, class: PoolClass, amount: i64) {
        add_both(&mut self.families[family as usize], class, amount);
    }

    fn change_pool(&mut self, pool: PoolId, class: PoolClass, amount: i64) {
        add_both(self.by_pool.entry(pool).or_default(), class, amount);
    }

    fn current(&self, family: Family) -> i64 {
        self.families[family as usize][0].current
    }

    fn for_each(&mut self, act: impl Fn(&mut Stat)) {
        self.families.iter_mut().chain(self.by_pool.values_mut()).flatten().for_each(&act);
        act(&mut self.oversize_allocations);
        act(&mut self.oversize_segments);
    }

    fn reset_peaks(&mut self) {
        self.for_each(|stat| stat.peak = stat.current);
    }

    fn reset_sums(&mut self) {
        self.for_each(|stat| (stat.allocated, stat.freed) = (0, 0));
        for counter in
            [&mut self.retries, &mut self.ooms, &mut self.waits, &mut self.taken, &mut self.given, &mut self.rejections]
        {
            *counter = 0;
        }
    }

    /// Returns the first statistic that differs.
    fn difference(&self, stats: &Stats) -> Option<String> {
        for (family, levels) in Family::ALL.into_iter().zip(&self.families) {
            for ((name, seen), expected) in stats.family(family).levels().into_iter().zip(levels) {
                if seen != expected {
                    return Some(format!("{}.{name} is {seen:?}, expected {expected:?}", family.name()));
                }
            }
        }
        for ((name, seen), expected) in stats.oversize().into_iter().zip([self.oversize_allocations, self.oversize_segments]) {
            if *seen != expected {
                return Some(format!("{name} is {seen:?}, expected {expected:?}"));
            }
        }
        let expected = [self.retries, self.ooms, self.max_split, self.waits, self.taken, self.given, self.rejections];
        let seen = stats.scalars().into_iter().chain([("num_oom_rejections", stats.num_oom_rejections)]);
        for ((name, seen), expected) in seen.zip(expected) {
            if seen != expected {
                return Some(format!("{name} is {seen}, expected {expected}"));
            }
        }
        let by_pool = stats.reserved_by_pool.iter().map(|(id, set)| (*id, set.levels().map(|(_, stat)| *stat)));
        let by_pool: BTreeMap<PoolId, Levels> = by_pool.collect();
        (by_pool != self.by_pool).then(|| format!("reserved_by_pool is {by_pool:?}, expected {:?}", self.by_pool))
    }
}
