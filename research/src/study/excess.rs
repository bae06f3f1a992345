//! Finds where a policy first needs more memory than a given amount, such as that of the best packing, and which live blocks
//! are in the way there.
//!
//! The workload runs on a device with this amount of memory. The first request that is refused is the one for which the policy
//! needs more, after everything that the policy does when memory is short.

use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::Bytes;
use parkade_policies::Named;
use parkade_sim::PAGE_BYTES;
use rustc_hash::FxHashMap;

use super::free_list::FreeList;
use super::run::{Ending, Moment, RunOptions, make_for, watch};
use crate::workload::lifetimes::Spread;
use crate::workload::{Event, Workload};

/// The first request for which a policy needs more than an amount of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excess {
    /// The number of the event that requests it.
    pub event: usize,
    /// The requested bytes.
    pub requested_bytes: u64,
    /// The size of the block that the policy needs for it.
    pub block_bytes: u64,
    /// The memory of the device: the amount, rounded up to pages of 2 MiB.
    pub device_bytes: u64,
    /// The bytes that the policy has reserved.
    pub reserved_bytes: u64,
    /// The free list that may serve the request.
    pub free_list: FreeList,
    /// The free memory in the segments of this list.
    pub here: Room,
    /// The free memory in all other segments.
    pub elsewhere: Room,
    /// The live and pending blocks whose absence would make enough room, with as few bytes as possible, by address. Empty if
    /// there is room that the policy does not use.
    pub in_the_way: Vec<InTheWay>,
    /// Whether these blocks lie side by side in a segment that may serve the request. If not, they are all blocks of the
    /// segments that would have to be released for a new segment.
    pub is_one_stretch: bool,
    /// The segments that the blocks in the way keep in use, by address.
    pub pinned: Vec<Pinned>,
}

impl Excess {
    /// Returns the segment that a block in the way keeps in use.
    #[must_use]
    pub fn pinned_by(&self, block: &InTheWay) -> Option<&Pinned> {
        let before = self.pinned.partition_point(|segment| segment.address <= block.address);
        self.pinned.get(before.checked_sub(1)?)
    }
}

/// A segment that blocks in the way keep in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pinned {
    /// The first byte of the segment.
    pub address: u64,
    /// The size of the segment.
    pub bytes: u64,
    /// The free bytes in it.
    pub free_bytes: u64,
    /// The number of blocks in the way that are in it.
    pub in_the_way: usize,
    /// Its free list.
    pub free_list: FreeList,
}

/// Free memory in some segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// The bytes of free blocks.
    pub free_bytes: u64,
    /// The largest free block.
    pub largest_hole_bytes: u64,
    /// The number of free blocks.
    pub holes: u64,
}

/// A block in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InTheWay {
    /// The first byte of the block.
    pub address: u64,
    /// The size of the block.
    pub bytes: u64,
    /// The live buffer in it; `None` if the program has freed it and other streams still use it.
    pub buffer: Option<u32>,
    /// The event that allocated the buffer.
    pub allocated_at: Option<usize>,
    /// The event that frees it; `None` if the program keeps it.
    pub freed_at: Option<usize>,
    /// The requests that follow its own until the refused one.
    pub age_requests: Option<u64>,
    /// The other buffers of its requested size that were requested before the refused one.
    pub same_size: Option<SameSize>,
}

/// Other buffers of a size, until an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SameSize {
    /// The size of each, as requested.
    pub each_bytes: u64,
    /// The number of those that are still live.
    pub live: u64,
    /// The number of those that were freed.
    pub freed: u64,
    /// The lifetimes of those that were freed.
    pub lifetimes: Option<Spread>,
}

/// Returns the first request for which the policy needs more than `bytes` of memory, or `None` if it needs no more. Its
/// capacity and its limit are the only options that are ignored.
#[must_use]
pub fn first_excess(workload: &Workload, policy: &Named, options: &RunOptions, bytes: u64) -> Option<Excess> {
    let device_bytes = bytes.div_ceil(PAGE_BYTES).max(1).saturating_mul(PAGE_BYTES);
    let options = RunOptions { limit_bytes: None, ..options.with_capacity(device_bytes) };
    let make = make_for(policy, workload);
    let mut heap = None;
    let outcome = watch(workload, make(), &options, |moment| {
        if moment.has_failed {
            heap = Some((moment.event, moment.segments(), live(moment)));
        }
    });
    let (event, segments, live) = heap.filter(|_| outcome.ending == Ending::OutOfMemory)?;
    let Event::Allocate { bytes: requested_bytes, stream, .. } = *workload.events.get(event)? else { return None };
    let rules = make();
    let block = rules.round(Bytes(requested_bytes)).unwrap_or(Bytes(requested_bytes));
    let free_list = FreeList { pool: pool_at(workload, event).into(), collection: rules.classify(block), stream };
    let (here, elsewhere): (Vec<&SegmentInfo>, Vec<&SegmentInfo>) =
        segments.iter().partition(|segment| FreeList::of(segment) == free_list);
    let reserved_bytes: u64 = segments.iter().map(|segment| segment.total.get()).sum();
    let stretch = here.iter().filter_map(|segment| least_stretch(&segment.blocks, block.get())).min_by_key(|found| found.0);
    let released = to_release(&segments, block.get().saturating_sub(device_bytes.saturating_sub(reserved_bytes)));
    let is_one_stretch = stretch.is_some()
        && (released.is_none() || stretch.as_ref().map(|found| found.0) <= released.as_ref().map(|found| found.0));
    let blocks = if is_one_stretch { stretch } else { released }.map_or_else(Vec::new, |found| found.1);
    let mut lives = Lives::of(workload, event);
    let in_the_way: Vec<InTheWay> = blocks.iter().map(|block| lives.in_the_way(block, &live)).collect();
    let mut pinned: Vec<Pinned> = segments.iter().filter_map(|segment| Pinned::of(segment, &in_the_way)).collect();
    pinned.sort_unstable_by_key(|segment| segment.address);
    Some(Excess {
        event,
        requested_bytes,
        block_bytes: block.get(),
        device_bytes,
        reserved_bytes,
        free_list,
        here: Room::of(&here),
        elsewhere: Room::of(&elsewhere),
        in_the_way,
        is_one_stretch,
        pinned,
    })
}

/// The live buffers by the addresses of their blocks.
fn live(moment: &Moment<'_>) -> FxHashMap<u64, u32> {
    moment.live().map(|(buffer, address)| (address, buffer)).collect()
}

/// Returns the pool to which requests go at an event; 0 is the default pool.
fn pool_at(workload: &Workload, event: usize) -> u16 {
    let before = workload.events[..event].iter().rev();
    before
        .filter_map(|event| match event {
            Event::BeginPool { pool } => Some(*pool),
            Event::EndPool { .. } => Some(0),
            _ => None,
        })
        .next()
        .unwrap_or(0)
}

impl Pinned {
    /// Returns a segment, unless none of the blocks are in it. These are in the order of their addresses.
    fn of(segment: &SegmentInfo, blocks: &[InTheWay]) -> Option<Pinned> {
        let (address, bytes) = (segment.address.get(), segment.total.get());
        let before = |end: u64| blocks.partition_point(|block| block.address < end);
        let in_the_way = before(address.saturating_add(bytes)) - before(address);
        let free_bytes = bytes.saturating_sub(bytes_in_use(&segment.blocks));
        (in_the_way > 0).then(|| Pinned { address, bytes, free_bytes, in_the_way, free_list: FreeList::of(segment) })
    }
}

impl Room {
    fn of(segments: &[&SegmentInfo]) -> Room {
        let mut room = Room::default();
        for block in segments.iter().flat_map(|segment| &segment.blocks).filter(|block| !is_in_use(block)) {
            room.free_bytes += block.size.get();
            room.largest_hole_bytes = room.largest_hole_bytes.max(block.size.get());
            room.holes += 1;
        }
        room
    }
}

fn is_in_use(block: &BlockInfo) -> bool {
    block.state != BlockActivity::Inactive
}

fn bytes_in_use(blocks: &[BlockInfo]) -> u64 {
    blocks.iter().filter(|block| is_in_use(block)).map(|block| block.size.get()).sum()
}

/// Returns the stretch of a segment that has at least this many bytes and the fewest bytes in use, as these bytes and the
/// blocks in use. Returns `None` if the segment is smaller.
fn least_stretch(blocks: &[BlockInfo], bytes: u64) -> Option<(u64, Vec<BlockInfo>)> {
    let (mut from, mut length, mut in_use) = (0, 0_u64, 0_u64);
    let mut best: Option<(u64, std::ops::Range<usize>)> = None;
    let size = |block: &BlockInfo| (block.size.get(), if is_in_use(block) { block.size.get() } else { 0 });
    for (to, block) in blocks.iter().enumerate() {
        let (added, used) = size(block);
        (length, in_use) = (length + added, in_use + used);
        while length - blocks[from].size.get() >= bytes {
            let (first, used) = size(&blocks[from]);
            (length, in_use, from) = (length - first, in_use - used, from + 1);
        }
        if length >= bytes && best.as_ref().is_none_or(|(least, _)| in_use < *least) {
            best = Some((in_use, from..to + 1));
        }
    }
    let (least, stretch) = best?;
    Some((least, blocks[stretch].iter().filter(|block| is_in_use(block)).copied().collect()))
}

/// Returns the blocks in use of the segments whose release returns at least this many bytes to the device, beginning with the
/// segments that have the fewest bytes in use for their size. Returns `None` if all segments together are smaller.
fn to_release(segments: &[SegmentInfo], bytes: u64) -> Option<(u64, Vec<BlockInfo>)> {
    let share = |segment: &SegmentInfo| bytes_in_use(&segment.blocks) as f64 / segment.total.get().max(1) as f64;
    let mut sorted: Vec<&SegmentInfo> = segments.iter().collect();
    sorted.sort_by(|one, other| share(one).total_cmp(&share(other)).then(one.address.cmp(&other.address)));
    let mut released = 0_u64;
    let mut chosen: Vec<BlockInfo> = Vec::new();
    for segment in sorted {
        if released >= bytes {
            break;
        }
        released += segment.total.get();
        chosen.extend(segment.blocks.iter().filter(|block| is_in_use(block)));
    }
    chosen.sort_unstable_by_key(|block| block.address);
    (released >= bytes).then(|| (bytes_in_use(&chosen), chosen))
}

/// What is known of each buffer at an event.
struct Lives {
    /// The buffers that are requested, by their numbers, which count requests.
    all: Vec<Life>,
    /// The number of requests before the event.
    requests: usize,
    /// The buffers of each size that was looked up.
    sizes: FxHashMap<u64, SameSize>,
}

#[derive(Clone, Copy)]
struct Life {
    bytes: u64,
    allocated_at: usize,
    freed_at: Option<usize>,
    /// The requests that follow its own until it is freed, if this is before the event.
    lifetime: Option<u64>,
}

impl Lives {
    fn of(workload: &Workload, until: usize) -> Lives {
        let (mut all, mut requests): (Vec<Life>, usize) = (Vec::new(), 0);
        for (at, event) in workload.events.iter().enumerate() {
            match *event {
                Event::Allocate { bytes, .. } => {
                    requests += usize::from(at < until);
                    all.push(Life { bytes, allocated_at: at, freed_at: None, lifetime: None });
                }
                Event::Free { buffer } => {
                    let follow = all.len().saturating_sub(buffer as usize + 1) as u64;
                    if let Some(life) = all.get_mut(buffer as usize) {
                        life.freed_at = Some(at);
                        life.lifetime = (at < until).then_some(follow);
                    }
                }
                _ => {}
            }
        }
        Lives { all, requests, sizes: FxHashMap::default() }
    }

    fn in_the_way(&mut self, block: &BlockInfo, live: &FxHashMap<u64, u32>) -> InTheWay {
        let buffer = live.get(&block.address.get()).copied();
        let life = buffer.and_then(|buffer| self.all.get(buffer as usize).copied());
        let follow = |buffer: u32| self.requests.saturating_sub(buffer as usize + 1) as u64;
        InTheWay {
            address: block.address.get(),
            bytes: block.size.get(),
            buffer,
            allocated_at: life.map(|life| life.allocated_at),
            freed_at: life.and_then(|life| life.freed_at),
            age_requests: buffer.map(follow),
            same_size: life.map(|life| self.others_of(life.bytes)),
        }
    }

    /// Returns the other buffers of a live one's size that were requested before the event.
    fn others_of(&mut self, bytes: u64) -> SameSize {
        let older = self.all.get(..self.requests).unwrap_or(&self.all);
        *self.sizes.entry(bytes).or_insert_with(|| {
            let same = older.iter().filter(|life| life.bytes == bytes);
            let lifetimes: Vec<u64> = same.clone().filter_map(|life| life.lifetime).collect();
            let (all, freed) = (same.count() as u64, lifetimes.len() as u64);
            let live = all.saturating_sub(freed + 1);
            SameSize { each_bytes: bytes, live, freed, lifetimes: Spread::of(lifetimes) }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use parkade::units::{DeviceAddress, PoolClass, PoolId, StreamId};
    use parkade_policies::named;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn allocate(buffer: u32, mib: u64) -> Event {
        Event::Allocate { buffer, bytes: mib * MIB, stream: 0 }
    }

    fn free(buffer: u32) -> Event {
        Event::Free { buffer }
    }

    fn found(events: Vec<Event>, policy: &str, mib: u64) -> Option<Excess> {
        let workload = Workload { name: "test".into(), events, ..Workload::default() };
        first_excess(&workload, &named(policy).expect("a policy"), &RunOptions::plenty(), mib * MIB)
    }

    #[test]
    fn the_smallest_blocks_between_enough_free_bytes_are_in_the_way() {
        // One segment of 100 MiB is split into 30, 4, 20, 10 and 36 MiB; then 30, 20 and 36 MiB are freed.
        let first =
            [allocate(0, 100), free(0), allocate(1, 30), allocate(2, 4), allocate(3, 20), allocate(4, 10), allocate(5, 36)];
        let events = [&first[..], &[free(1), free(3), free(5), allocate(6, 46)]].concat();
        let excess = found(events.clone(), "pytorch", 100).expect("46 MiB do not fit");
        assert_eq!((excess.event, excess.requested_bytes, excess.reserved_bytes), (10, 46 * MIB, 100 * MIB));
        assert_eq!(excess.here, Room { free_bytes: 86 * MIB, largest_hole_bytes: 36 * MIB, holes: 3 });
        assert_eq!((excess.elsewhere, excess.is_one_stretch), (Room::default(), true));
        let [block] = excess.in_the_way[..] else { panic!("{:?}", excess.in_the_way) };
        assert_eq!((block.buffer, block.bytes, block.allocated_at, block.freed_at), (Some(2), 4 * MIB, Some(3), None));
        let list = FreeList { pool: 0, collection: PoolClass::Large, stream: 0 };
        let [pinned] = excess.pinned[..] else { panic!("{:?}", excess.pinned) };
        assert_eq!((pinned.bytes, pinned.free_bytes, pinned.in_the_way), (100 * MIB, 86 * MIB, 1));
        assert_eq!([excess.free_list, pinned.free_list], [list; 2]);
        assert_eq!(found(events, "pytorch", 146), None, "a new segment fits");
    }

    #[test]
    fn segments_that_are_too_small_would_have_to_be_released() {
        let events = vec![allocate(0, 40), allocate(1, 40), free(0), allocate(2, 10), free(1), allocate(3, 20), allocate(4, 60)];
        let excess = found(events, "pytorch", 90).expect("60 MiB do not fit");
        assert_eq!((excess.event, excess.device_bytes, excess.reserved_bytes), (6, 90 * MIB, 40 * MIB));
        let buffers: Vec<Option<u32>> = excess.in_the_way.iter().map(|block| block.buffer).collect();
        assert_eq!((buffers, excess.is_one_stretch), (vec![Some(2), Some(3)], false), "the first segment has both");
    }

    #[test]
    fn others_of_the_size_of_a_block_in_the_way_are_those_before_it_is_one() {
        // Two buffers of 10 MiB are freed after one request and after none; a third stays, and two are requested later.
        let first = [allocate(0, 10), allocate(1, 40), free(0), allocate(2, 10), free(2), allocate(3, 10), free(1)];
        let events = [&first[..], &[allocate(4, 45), allocate(5, 10), allocate(6, 10)]].concat();
        let excess = found(events, "bfc:kind=one-region", 50).expect("45 MiB do not fit");
        let [block] = excess.in_the_way[..] else { panic!("{:?}", excess.in_the_way) };
        assert_eq!((excess.event, block.buffer, block.age_requests), (7, Some(3), Some(0)));
        let lifetimes = Some(Spread { least: 0, median: 0, greatest: 1 });
        assert_eq!(block.same_size, Some(SameSize { each_bytes: 10 * MIB, live: 0, freed: 2, lifetimes }));
    }

    #[test]
    fn free_memory_of_another_stream_does_not_help() {
        let events = [allocate(0, 60), allocate(1, 10), Event::Allocate { buffer: 2, bytes: 20 * MIB, stream: 1 }, free(0)];
        let events = [&events[..], &[allocate(3, 30), Event::Allocate { buffer: 4, bytes: 30 * MIB, stream: 1 }]].concat();
        let excess = found(events, "pytorch", 100).expect("it does not fit");
        assert_eq!((excess.here.free_bytes, excess.elsewhere.free_bytes), (0, 30 * MIB));
    }

    /// Returns a segment of blocks with these sizes, each in use, waiting for events, or free.
    fn segment((place, blocks): (usize, &Vec<(u64, u8)>)) -> SegmentInfo {
        let address = (place as u64 + 1) * 1000;
        let mut at = address;
        let block = |&(size, state): &(u64, u8)| {
            at += size;
            let state = [BlockActivity::Inactive, BlockActivity::Allocated, BlockActivity::PendingFree][usize::from(state)];
            BlockInfo { address: DeviceAddress(at - size), size: Bytes(size), requested: Bytes(size), state }
        };
        let blocks: Vec<BlockInfo> = blocks.iter().map(block).collect();
        let zero = Bytes(0);
        SegmentInfo {
            address: DeviceAddress(address),
            total: Bytes(at - address),
            allocated: zero,
            active: zero,
            requested: zero,
            stream: StreamId::DEFAULT,
            pool: PoolId::DEFAULT,
            class: PoolClass::Large,
            expandable: false,
            rank: 0,
            blocks,
        }
    }

    fn addresses(blocks: &[BlockInfo]) -> Vec<u64> {
        blocks.iter().map(|block| block.address.get()).collect()
    }

    fn sizes(blocks: &[BlockInfo]) -> u64 {
        blocks.iter().map(|block| block.size.get()).sum()
    }

    fn in_use(blocks: &[BlockInfo]) -> Vec<BlockInfo> {
        blocks.iter().filter(|block| block.state != BlockActivity::Inactive).copied().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        /// Compares with trying all stretches of blocks. The first of equally good ones counts, which ends first.
        #[test]
        fn the_least_stretch_is_the_first_with_the_fewest_bytes_in_use(
            blocks in vec((1..5_u64, 0..3_u8), 0..9),
            bytes in 1..24_u64,
        ) {
            let blocks = segment((0, &blocks)).blocks;
            let all = (0..blocks.len()).flat_map(|from| (from + 1..=blocks.len()).map(move |to| from..to));
            let long = all.filter(|stretch| sizes(&blocks[stretch.clone()]) >= bytes);
            let best = long.min_by_key(|stretch| (sizes(&in_use(&blocks[stretch.clone()])), stretch.end, Reverse(stretch.start)));
            let expected = best.map(|stretch| in_use(&blocks[stretch]));
            let found = least_stretch(&blocks, bytes);
            prop_assert_eq!(
                found.map(|(bytes, blocks)| (bytes, addresses(&blocks))),
                expected.map(|blocks| (sizes(&blocks), addresses(&blocks)))
            );
        }

        /// Compares with releasing one segment after the other: the least used for its size, and among equals the lowest.
        #[test]
        fn segments_are_released_until_enough_bytes_are(
            segments in vec(vec((1..5_u64, 0..3_u8), 1..5), 0..5),
            bytes in 0..40_u64,
        ) {
            let segments: Vec<SegmentInfo> = segments.iter().enumerate().map(segment).collect();
            let (mut rest, mut chosen, mut released) = (segments.clone(), Vec::new(), 0);
            while released < bytes && !rest.is_empty() {
                let used = |segment: &SegmentInfo| sizes(&in_use(&segment.blocks));
                // Compares fractions without dividing; the segments are in the order of their addresses.
                let is_least =
                    |one: &SegmentInfo| rest.iter().all(|other| used(one) * other.total.get() <= used(other) * one.total.get());
                let place = rest.iter().position(is_least).expect("one of them is least");
                let segment = rest.remove(place);
                released += segment.total.get();
                chosen.extend(in_use(&segment.blocks));
            }
            chosen.sort_by_key(|block| block.address);
            let expected = (released >= bytes).then(|| (sizes(&chosen), addresses(&chosen)));
            let found = to_release(&segments, bytes);
            prop_assert_eq!(found.map(|(bytes, blocks)| (bytes, addresses(&blocks))), expected);
        }

        /// Compares with looking at each segment and each block alone.
        #[test]
        fn pinned_segments_are_those_around_blocks_in_the_way(
            segments in vec(vec((1..5_u64, 0..3_u8), 1..5), 0..5),
            ways in any::<u32>(),
        ) {
            let segments: Vec<SegmentInfo> = segments.iter().enumerate().map(segment).collect();
            let of = |segment: &SegmentInfo| Room::of(&[segment]);
            let used: Vec<BlockInfo> = segments.iter().flat_map(|segment| in_use(&segment.blocks)).collect();
            let is_in_the_way = |place: &usize| ways >> place & 1 == 1;
            let way = |place: usize| InTheWay {
                address: used[place].address.get(),
                bytes: used[place].size.get(),
                buffer: None,
                allocated_at: None,
                freed_at: None,
                age_requests: None,
                same_size: None,
            };
            let in_the_way: Vec<InTheWay> = (0..used.len()).filter(is_in_the_way).map(way).collect();
            let pinned: Vec<Pinned> = segments.iter().filter_map(|segment| Pinned::of(segment, &in_the_way)).collect();
            let mut expected = Vec::new();
            for segment in &segments {
                let count =
                    in_the_way.iter().filter(|way| segment.blocks.iter().any(|block| block.address.get() == way.address)).count();
                let free: Vec<u64> = segment
                    .blocks
                    .iter()
                    .filter(|block| block.state == BlockActivity::Inactive)
                    .map(|block| block.size.get())
                    .collect();
                let (free_bytes, largest_hole_bytes) = (free.iter().sum(), free.iter().copied().max().unwrap_or(0));
                prop_assert_eq!(of(segment), Room { free_bytes, largest_hole_bytes, holes: free.len() as u64 });
                if count > 0 {
                    let (address, bytes) = (segment.address.get(), segment.total.get());
                    expected.push(Pinned { address, bytes, free_bytes, in_the_way: count, free_list: FreeList::of(segment) });
                }
            }
            prop_assert_eq!(&pinned, &expected);
            let list = FreeList { pool: 0, collection: PoolClass::Large, stream: 0 };
            let excess = Excess {
                event: 0,
                requested_bytes: 0,
                block_bytes: 0,
                device_bytes: 0,
                reserved_bytes: 0,
                free_list: list,
                here: Room::default(),
                elsewhere: Room::default(),
                in_the_way: in_the_way.clone(),
                is_one_stretch: false,
                pinned,
            };
            for way in &in_the_way {
                let around =
                    segments.iter().find(|segment| segment.blocks.iter().any(|block| block.address.get() == way.address));
                prop_assert_eq!(excess.pinned_by(way).map(|pinned| pinned.address), around.map(|segment| segment.address.get()));
            }
        }

        /// Compares with the events before the refused request, for each buffer that is live there.
        #[test]
        fn what_is_known_of_a_block_follows_from_the_events(
            steps in vec((any::<bool>(), 0..8_usize), 1..16),
            until in 0..16_usize,
        ) {
            let (mut events, mut live, mut count) = (Vec::new(), Vec::new(), 0);
            for (allocates, number) in steps {
                if allocates || live.is_empty() {
                    events.push(allocate(count, [1, 1, 2][number % 3]));
                    live.push(count);
                    count += 1;
                } else {
                    events.push(free(live.remove(number % live.len())));
                }
            }
            let until = until % events.len();
            let workload = Workload { name: "test".into(), events, ..Workload::default() };
            let at = |wanted: Event| workload.events.iter().position(|event| *event == wanted);
            let size = |buffer: u32| {
                workload.events.iter().find_map(|event| match *event {
                    Event::Allocate { buffer: of, bytes, .. } if of == buffer => Some(bytes),
                    _ => None,
                })
            };
            let requested = |buffer: u32| {
                at(Event::Allocate { buffer, bytes: size(buffer).expect("it is requested"), stream: 0 }).expect("it is requested")
            };
            let between = |from: usize, to: usize| {
                workload.events[from + 1..to].iter().filter(|event| matches!(event, Event::Allocate { .. })).count() as u64
            };
            let freed = |buffer: u32| at(free(buffer)).filter(|&at| at < until);
            let older: Vec<u32> = (0..count).filter(|&buffer| requested(buffer) < until).collect();
            let mut lives = Lives::of(&workload, until);
            for &buffer in older.iter().filter(|&&buffer| freed(buffer).is_none()) {
                let block = BlockInfo {
                    address: DeviceAddress(64),
                    size: Bytes(size(buffer).expect("it is requested")),
                    requested: Bytes(0),
                    state: BlockActivity::Allocated,
                };
                let found = lives.in_the_way(&block, &FxHashMap::from_iter([(64, buffer)]));
                let same: Vec<u32> =
                    older.iter().copied().filter(|&other| other != buffer && size(other) == size(buffer)).collect();
                let mut lifetimes: Vec<u64> =
                    same.iter().filter_map(|&other| Some(between(requested(other), freed(other)?))).collect();
                lifetimes.sort_unstable();
                let spread = lifetimes.first().map(|&least| Spread {
                    least,
                    median: lifetimes[(lifetimes.len() - 1) / 2],
                    greatest: lifetimes[lifetimes.len() - 1],
                });
                let expected = InTheWay {
                    address: 64,
                    bytes: block.size.get(),
                    buffer: Some(buffer),
                    allocated_at: Some(requested(buffer)),
                    freed_at: at(free(buffer)),
                    age_requests: Some(between(requested(buffer), until)),
                    same_size: Some(SameSize {
                        each_bytes: block.size.get(),
                        live: (same.len() - lifetimes.len()) as u64,
                        freed: lifetimes.len() as u64,
                        lifetimes: spread,
                    }),
                };
                prop_assert_eq!(found, expected);
            }
        }
    }
}
