//! Where a private pool gets memory of the default pool that nothing uses, computed a second time.
//!
//! Free memory ([`Relief::Lend`](parkade::policy::Relief::Lend)): where the fewest bytes are missing behind one of the pool's
//! segments, or at the start of the largest block that is large enough. New memory: where the default pool's segment of the
//! stream would grow, or behind one of the pool's segments if fewer bytes are missing there. Of equal places, the lowest counts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use parkade::policy::Request;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{PoolClass, PoolId, StreamId};
use parkade::{BlockView, Heap, PoolSlot};
use parkade_sim::CallName;

use crate::backend::MadeCall;
use crate::law::{Broken, Law, ensure};

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

/// Returns the addresses of the default pool's lendable blocks, lowest first.
fn lendable_ranges(heap: &Heap) -> Vec<Range<u64>> {
    let home = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
    let free = home.into_iter().flat_map(|pool| heap.free_blocks(pool));
    let mut ranges: Vec<_> =
        free.filter(|block| block.stamp == LENDABLE && block.is_expandable).map(|block| addresses(&block)).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges
}

fn addresses(block: &BlockView) -> Range<u64> {
    block.address.get()..block.address.get() + block.size.get()
}

/// Returns the ranges without a part of them.
fn without(ranges: Vec<Range<u64>>, part: &Range<u64>) -> Vec<Range<u64>> {
    let around = |range: Range<u64>| [range.start..range.end.min(part.start), range.start.max(part.end)..range.end];
    ranges.into_iter().flat_map(around).filter(|range| range.start < range.end).collect()
}

/// The memory that may not be lent: what has been handed out since its stream was last found idle.
#[derive(Clone, Default, Debug)]
pub(super) struct Busy(Vec<Range<u64>>);

impl Busy {
    /// Follows a step, and checks which blocks of the default pool are lendable. `idle` are the streams that the allocator has just
    /// found idle, if it has looked for lendable memory.
    ///
    /// # Errors
    /// If memory that pending work may use is lendable, or memory that nothing uses is not.
    pub(super) fn follow(
        &mut self,
        heap: &Heap,
        entries: &[TraceEntry],
        segments: &[SegmentInfo],
        idle: Option<&[StreamId]>,
    ) -> Result<(), Broken> {
        for entry in entries.iter().filter(|entry| entry.action == TraceAction::SegmentUnmap) {
            self.0 = without(std::mem::take(&mut self.0), &(entry.address..entry.address + entry.size));
        }
        let expandable = segments.iter().filter(|segment| segment.expandable).flat_map(|segment| &segment.blocks);
        for block in expandable.filter(|block| block.state != BlockActivity::Inactive) {
            let used = block.address.get()..block.address.get() + block.size.get();
            self.0 = without(std::mem::take(&mut self.0), &used);
            self.0.push(used);
        }
        let home = [PoolClass::Small, PoolClass::Large].map(PoolSlot::default_pool);
        for block in home.into_iter().flat_map(|pool| heap.free_blocks(pool)).filter(|block| block.is_expandable) {
            let range = addresses(&block);
            if idle.is_some_and(|idle| idle.contains(&block.stream)) {
                ensure(Law::Placement, block.stamp == LENDABLE, || format!("{block:x?} of an idle stream cannot be lent"))?;
                self.0 = without(std::mem::take(&mut self.0), &range);
            }
            let busy = self.0.iter().find(|busy| busy.start < range.end && range.start < busy.end);
            ensure(Law::NoEarlyReuse, block.stamp != LENDABLE || busy.is_none(), || {
                format!("{block:x?} may be lent, although pending work may use {busy:x?}")
            })?;
        }
        Ok(())
    }
}

/// Returns the streams that the allocator found idle in a step: it recorded an event that was complete at once, or waited.
pub(super) fn found_idle(calls: &[MadeCall]) -> Vec<StreamId> {
    let is_idle = |place: usize| {
        let (call, next) = (&calls[place], calls.get(place + 1));
        match call.name {
            CallName::StreamSynchronize => call.done,
            CallName::EventRecord => next.is_some_and(|next| {
                next.name == CallName::EventQuery && next.event == call.event && next.done && next.answer == 1
            }),
            _ => false,
        }
    };
    (0..calls.len()).filter(|&place| is_idle(place)).map(|place| StreamId(calls[place].stream)).collect()
}

/// The state before a request.
#[derive(Clone, Debug)]
pub(super) struct Before {
    segments: Vec<SegmentInfo>,
    /// The reserved ranges of addresses: start and size.
    ranges: BTreeMap<u64, u64>,
    lendable: Vec<Range<u64>>,
}

impl Before {
    pub(super) fn of(heap: &Heap, segments: Vec<SegmentInfo>, ranges: BTreeMap<u64, u64>) -> Before {
        Before { segments, ranges, lendable: lendable_ranges(heap) }
    }

    /// Checks what is lendable after a request that took these addresses of lendable memory and nothing else: everything else.
    ///
    /// # Errors
    /// If more or less is lendable.
    pub(super) fn check_rest(&self, heap: &Heap, taken: &Range<u64>) -> Result<(), Broken> {
        let (seen, expected) = (lendable_ranges(heap), without(self.lendable.clone(), taken));
        ensure(Law::Placement, seen == expected, || {
            format!("after {taken:x?} was lent, {seen:x?} is still lendable, expected {expected:x?}")
        })
    }

    /// Returns the first bytes of the blocks that may serve a request of a private pool for `size` bytes from new memory: one, or
    /// several if as few bytes are missing behind several of the pool's segments. None if new addresses are reserved, or if `owner`
    /// does not know the stream of a range, because the range has never had memory.
    pub(super) fn growth(&self, pool: PoolId, stream: StreamId, size: u64, owner: impl Fn(u64) -> Option<StreamId>) -> Vec<u64> {
        let mut home: Vec<(u64, u64)> = Vec::new();
        let mut behind: Vec<(u64, u64)> = Vec::new();
        for (&base, &bytes) in &self.ranges {
            let own = self.segments.iter().filter(|segment| (base..base + bytes).contains(&segment.address.get()));
            let Some(owner) = owner(base) else { return Vec::new() };
            if owner == stream {
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
            pieces.push((at, start.saturating_sub(at), false, true));
            pieces.push((start, bytes, true, self.lendable.iter().any(|range| range.start == start)));
            at = start + bytes;
        }
        pieces.push((at, (base + bytes).saturating_sub(at), false, true));
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
