//! Where a private pool gets memory of the default pool that nothing uses, computed a second time.
//!
//! Free memory ([`Relief::Lend`](parkade::policy::Relief::Lend)): where the fewest bytes are missing behind one of the pool's
//! segments, or at the start of the largest block that is large enough. New memory: where the default pool's segment of the
//! stream would grow, or behind one of the pool's segments if fewer bytes are missing there. Of equal places, the lowest counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use parkade::policy::Request;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::{PoolClass, PoolId, StreamId};
use parkade::{BlockView, Heap, PoolSlot};

/// The stamp of memory that no pending work uses.
const LENDABLE: u64 = u64::MAX;

/// Returns the first byte of the block that serves the request; `None` if there is no place, or if the request is for the
/// default pool. The ends of segments whose last block is pending are not considered. `ranges` are the first bytes of the reserved
/// ranges: no segment continues into the next range.
pub(super) fn place(heap: &Heap, request: &Request, ranges: &BTreeSet<u64>) -> Option<u64> {
    let home = PoolSlot::default_pool(request.pool.class());
    if request.pool == home {
        return None;
    }
    let size = request.size.get();
    let lendable: Vec<BlockView> =
        heap.free_blocks(home).filter(|block| block.stamp == LENDABLE && block.is_expandable).collect();
    let is_last = |id| heap.neighbours(id)[1].is_none();
    // The end of each of the pool's segments, and the free bytes there.
    let free = heap.free_blocks(request.pool).filter(|block| block.stream == request.stream && is_last(block.id));
    let mut ends: Vec<(u64, u64)> = free.map(|block| (block.address.get() + block.size.get(), block.size.get())).collect();
    let live = heap.live_blocks(request.pool).filter(|block| block.stream() == request.stream && is_last(block.id()));
    ends.extend(live.map(|block| (block.address().get() + block.size().get(), 0)));
    ends.retain(|(end, _)| !ranges.contains(end));
    let mut behind: Vec<(u64, u64)> = Vec::new();
    for block in &lendable {
        for &(_, free) in ends.iter().filter(|&&(end, free)| end == block.address.get() && free < size) {
            if block.size.get() >= size - free {
                behind.push((size - free, block.address.get() - free));
            }
        }
    }
    behind.sort_by_key(|&(missing, start)| (missing, start + size - missing));
    let largest = lendable.iter().filter(|block| block.size.get() >= size);
    let largest = largest.max_by_key(|block| (block.size, Reverse(block.address)));
    behind.first().map(|&(_, start)| start).or(largest.map(|block| block.address.get()))
}

/// The state before a request.
#[derive(Clone, Debug)]
pub(super) struct Before {
    segments: Vec<SegmentInfo>,
    /// The reserved ranges of addresses: start and size.
    ranges: BTreeMap<u64, u64>,
    /// The first bytes of the lendable blocks.
    lendable: BTreeSet<u64>,
}

impl Before {
    pub(super) fn of(heap: &Heap, segments: Vec<SegmentInfo>, ranges: BTreeMap<u64, u64>) -> Before {
        let home = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
        let free = home.into_iter().flat_map(|pool| heap.free_blocks(pool));
        let lendable = free.filter(|block| block.stamp == LENDABLE && block.is_expandable).map(|block| block.address.get());
        Before { segments, ranges, lendable: lendable.collect() }
    }

    /// Returns the first bytes of the blocks that may serve a request of a private pool for `size` bytes from new memory: one, or
    /// several if as few bytes are missing behind several of the pool's segments. None if new addresses are reserved, or if a
    /// range has blocks of several streams.
    pub(super) fn growth(&self, pool: PoolId, stream: StreamId, size: u64) -> Vec<u64> {
        let mut home: Vec<(u64, u64)> = Vec::new();
        let mut behind: Vec<(u64, u64)> = Vec::new();
        for (&base, &bytes) in &self.ranges {
            let own = self.segments.iter().filter(|segment| (base..base + bytes).contains(&segment.address.get()));
            let owners: BTreeSet<StreamId> =
                own.clone().filter(|segment| segment.pool == PoolId::DEFAULT).map(|segment| segment.stream).collect();
            if owners.len() != 1 {
                return Vec::new();
            }
            if owners.contains(&stream) {
                home.extend(self.places(base, bytes, size));
            }
            for segment in own.filter(|segment| segment.pool == pool && segment.stream == stream) {
                let last = segment.blocks.last().filter(|last| last.state == BlockActivity::Inactive && last.size.get() < size);
                let Some(free) = last.map(|last| last.size.get()) else { continue };
                let end = segment.address.get() + segment.total.get();
                let places = self.places(base, bytes, size - free).into_iter().filter(|&(_, start)| start == end);
                behind.extend(places.map(|(missing, start)| (missing, start - free)));
            }
        }
        let home = home.into_iter().min();
        let least = behind.iter().map(|&(missing, _)| missing).min();
        let least = least.filter(|&least| home.is_none_or(|(missing, _)| least < missing));
        match (home, least) {
            (_, Some(least)) => behind.into_iter().filter(|&(missing, _)| missing == least).map(|(_, start)| start).collect(),
            (home, None) => home.map(|(_, start)| start).into_iter().collect(),
        }
    }

    /// Returns every run of lendable blocks and addresses without memory in a range that has room for `size` bytes, and that
    /// begins with such addresses or with the block before them: the bytes that it lacks, and its first byte.
    fn places(&self, base: u64, bytes: u64, size: u64) -> Vec<(u64, u64)> {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        let inside = blocks.filter(|block| (base..base + bytes).contains(&block.address.get()));
        // The first byte, the size, whether there is memory, and whether it may be used.
        let (mut pieces, mut at) = (Vec::new(), base);
        for block in inside {
            let (start, bytes) = (block.address.get(), block.size.get());
            pieces.push((at, start - at, false, true));
            pieces.push((start, bytes, true, self.lendable.contains(&start)));
            at = start + bytes;
        }
        pieces.push((at, base + bytes - at, false, true));
        pieces.retain(|&(_, bytes, ..)| bytes > 0);
        let mut found = Vec::new();
        for gap in (0..pieces.len()).filter(|&place| !pieces[place].2) {
            let first = if gap > 0 && pieces[gap - 1].3 { gap - 1 } else { gap };
            let (mut room, mut missing) = (0, 0);
            for &(_, bytes, has_memory, _) in pieces[first..].iter().take_while(|piece| piece.3) {
                missing += if has_memory || room >= size { 0 } else { bytes.min(size - room) };
                room += bytes;
            }
            if room >= size {
                found.push((missing, pieces[first].0));
            }
        }
        found
    }
}
