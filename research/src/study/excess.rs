//! Finds where a policy first needs more memory than a given amount, such as that of the best packing, and which live blocks
//! are in the way there.
//!
//! The workload runs on a device with this amount of memory. The first request that is refused is the one for which the policy
//! needs more, after everything that the policy does when memory is short.

use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::{Bytes, PoolClass};
use parkade_policies::Named;
use parkade_sim::PAGE_BYTES;
use rustc_hash::FxHashMap;

use super::run::{Ending, Moment, RunOptions, make_for, stream_number, watch};
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
    /// The free memory in the segments that may serve the request: those of its pool, stream and size class.
    pub here: Room,
    /// The free memory in all other segments.
    pub elsewhere: Room,
    /// The live and pending blocks whose absence would make enough room, with as few bytes as possible, by address. Empty if
    /// there is room that the policy does not use.
    pub in_the_way: Vec<InTheWay>,
    /// Whether these blocks lie side by side in a segment that may serve the request. If not, they are all blocks of the
    /// segments that would have to be released for a new segment.
    pub is_one_stretch: bool,
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
    let wanted = Wanted { bytes: block.get(), stream, pool: pool_at(workload, event), class: rules.classify(block) };
    let (here, elsewhere): (Vec<&SegmentInfo>, Vec<&SegmentInfo>) = segments.iter().partition(|segment| wanted.may_use(segment));
    let reserved_bytes: u64 = segments.iter().map(|segment| segment.total.get()).sum();
    let stretch = here.iter().filter_map(|segment| least_stretch(&segment.blocks, wanted.bytes)).min_by_key(|found| found.0);
    let released = to_release(&segments, wanted.bytes.saturating_sub(device_bytes.saturating_sub(reserved_bytes)));
    let is_one_stretch = stretch.is_some()
        && (released.is_none() || stretch.as_ref().map(|found| found.0) <= released.as_ref().map(|found| found.0));
    let blocks = if is_one_stretch { stretch } else { released }.map_or_else(Vec::new, |found| found.1);
    let lives = Lives::of(workload);
    Some(Excess {
        event,
        requested_bytes,
        block_bytes: wanted.bytes,
        device_bytes,
        reserved_bytes,
        here: Room::of(&here),
        elsewhere: Room::of(&elsewhere),
        in_the_way: blocks.iter().map(|block| lives.in_the_way(block, &live)).collect(),
        is_one_stretch,
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

/// The refused request.
struct Wanted {
    bytes: u64,
    stream: u16,
    pool: u16,
    class: PoolClass,
}

impl Wanted {
    fn may_use(&self, segment: &SegmentInfo) -> bool {
        let of = (segment.pool.0, stream_number(segment.stream), segment.class);
        of == (u64::from(self.pool), self.stream, self.class)
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

/// The events that allocate and free each buffer.
struct Lives(FxHashMap<u32, (usize, Option<usize>)>);

impl Lives {
    fn of(workload: &Workload) -> Lives {
        let mut lives: FxHashMap<u32, (usize, Option<usize>)> = FxHashMap::default();
        for (at, event) in workload.events.iter().enumerate() {
            match *event {
                Event::Allocate { buffer, .. } => drop(lives.insert(buffer, (at, None))),
                Event::Free { buffer } => {
                    if let Some(life) = lives.get_mut(&buffer) {
                        life.1 = Some(at);
                    }
                }
                _ => {}
            }
        }
        Lives(lives)
    }

    fn in_the_way(&self, block: &BlockInfo, live: &FxHashMap<u64, u32>) -> InTheWay {
        let buffer = live.get(&block.address.get()).copied();
        let life = buffer.and_then(|buffer| self.0.get(&buffer));
        InTheWay {
            address: block.address.get(),
            bytes: block.size.get(),
            buffer,
            allocated_at: life.map(|life| life.0),
            freed_at: life.and_then(|life| life.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use parkade_policies::named;

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
    fn free_memory_of_another_stream_does_not_help() {
        let events = [allocate(0, 60), allocate(1, 10), Event::Allocate { buffer: 2, bytes: 20 * MIB, stream: 1 }, free(0)];
        let events = [&events[..], &[allocate(3, 30), Event::Allocate { buffer: 4, bytes: 30 * MIB, stream: 1 }]].concat();
        let excess = found(events, "pytorch", 100).expect("it does not fit");
        assert_eq!((excess.here.free_bytes, excess.elsewhere.free_bytes), (0, 30 * MIB));
    }
}
