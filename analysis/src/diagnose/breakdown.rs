//! Breaks a heap down into live bytes, rounding, and stranded bytes; each stranded byte has exactly one cause.
//!
//! A byte is *stranded* if it is reserved but not allocated. The reason why it could not serve a request depends on the
//! request, so a heap is broken down from the point of view of one request ([`stranded`]). The first applicable cause in the
//! order of [`Cause::ALL`] counts.
//!
//! If no request failed, the question is why reserved memory exceeds allocated memory ([`excess`]): every byte of the excess
//! has exactly one cause, and that cause does not depend on a request. Whether a hole would serve the next request depends on
//! that request, but whether it is an entirely free segment, waits for an event, belongs to a private pool or another stream,
//! or lies beside blocks in use does not.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parkade::PoolSlot;
use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::{Bytes, PoolClass, PoolId, StreamId};

/// Small blocks pin a segment or page if at most one part in this many is in use.
pub const PINNED_PART: u64 = 10;

/// The reason why a stranded byte could not serve the request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// Its block was freed, but another stream may still use it because an event is outstanding (spec 3.5).
    PendingEvent,
    /// It belongs to a private pool other than the request's (spec 5).
    PrivatePool,
    /// It is cached for another stream (spec 2.3).
    OtherStream,
    /// It is in the small pool and the request is large, or the reverse (spec 1.5).
    OtherClass,
    /// The block is large enough, but the rules of `max_split_size_mb` keep it for larger requests, or forbid wasting that
    /// much of it (spec 2.5, steps 4 and 5).
    Oversize,
    /// The block is large enough, but lies in an expandable segment, and expandable segments have since been switched off (spec
    /// 2.5, step 3).
    ExpandableOff,
    /// The block would serve the request.
    Fits,
    /// The hole is too small, and so little of its segment or pages is in use (at most one part in [`PINNED_PART`]) that a
    /// few small blocks keep all of it from being released.
    Pinned,
    /// The hole is too small.
    TooSmall,
}

impl Cause {
    /// All causes, in the order in which they are tested.
    pub const ALL: [Cause; 9] = [
        Cause::PendingEvent,
        Cause::PrivatePool,
        Cause::OtherStream,
        Cause::OtherClass,
        Cause::Oversize,
        Cause::ExpandableOff,
        Cause::Fits,
        Cause::Pinned,
        Cause::TooSmall,
    ];
}

parkade_recording::names! {
    Cause {
        Cause::PendingEvent => "pending_event",
        Cause::PrivatePool => "private_pool",
        Cause::OtherStream => "other_stream",
        Cause::OtherClass => "other_class",
        Cause::Oversize => "oversize",
        Cause::ExpandableOff => "expandable_off",
        Cause::Fits => "fits",
        Cause::Pinned => "pinned",
        Cause::TooSmall => "too_small",
    }
}

/// A request, as the allocator's search sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The block size that it needs: the requested bytes, rounded.
    pub size: Bytes,
    /// The stream of the request.
    pub stream: StreamId,
    /// The pool that serves the request.
    pub pool: PoolId,
}

/// A block that is reserved but not allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hole {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The reason why the hole could not serve the request.
    pub cause: Cause,
    /// The bytes that can be released to the device, by `empty_cache` or by the allocator before it fails: the entire segment,
    /// or whole pages. 0 in private pools, because a snapshot does not show whether a pool is still used.
    pub releasable_bytes: u64,
}

/// All stranded bytes with the same cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strand {
    /// The cause.
    pub cause: Cause,
    /// The sum of these bytes.
    pub bytes: u64,
    /// The number of holes.
    pub holes: usize,
    /// The largest of these holes.
    pub largest_bytes: u64,
    /// The part of the bytes that can be released to the device.
    pub releasable_bytes: u64,
}

/// A heap, broken down. Requested, rounding and stranded bytes always add up to the reserved bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breakdown {
    /// Reserved bytes.
    pub reserved_bytes: u64,
    /// The bytes that the program requested for the live blocks.
    pub requested_bytes: u64,
    /// The bytes of these blocks in excess of the requested bytes.
    pub rounding_bytes: u64,
    /// The number of live blocks.
    pub live_blocks: usize,
    /// The number of segments; for expandable segments, the number of mapped runs.
    pub segments: usize,
    /// The stranded bytes by cause, in the order of [`Cause::ALL`], including causes without bytes.
    pub strands: [Strand; Cause::ALL.len()],
    /// The bytes of whole free segments and pages of private pools, which are released only once nothing uses the pool.
    pub kept_by_pools_bytes: u64,
    /// Every hole, by address.
    pub holes: Vec<Hole>,
}

impl Breakdown {
    /// Returns the bytes of live blocks.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.requested_bytes.saturating_add(self.rounding_bytes)
    }

    /// Returns the bytes that are reserved but not allocated.
    #[must_use]
    pub fn stranded_bytes(&self) -> u64 {
        self.strands.iter().fold(0, |sum, strand| sum.saturating_add(strand.bytes))
    }

    /// Returns the part of the stranded bytes that can be released to the device.
    #[must_use]
    pub fn releasable_bytes(&self) -> u64 {
        self.strands.iter().fold(0, |sum, strand| sum.saturating_add(strand.releasable_bytes))
    }

    /// Returns the stranded bytes with one cause.
    #[must_use]
    pub fn of(&self, cause: Cause) -> &Strand {
        &self.strands[cause as usize]
    }

    /// Returns the size of the largest free block, regardless of which stream or pool may use it.
    #[must_use]
    pub fn largest_hole_bytes(&self) -> u64 {
        let free = self.strands.iter().filter(|strand| strand.cause != Cause::PendingEvent);
        free.map(|strand| strand.largest_bytes).max().unwrap_or(0)
    }

    /// Returns the cause that strands the most bytes, or `None` if nothing is stranded.
    #[must_use]
    pub fn main_cause(&self) -> Option<Cause> {
        let strands = self.strands.iter().filter(|strand| strand.bytes > 0);
        strands.max_by_key(|strand| strand.bytes).map(|strand| strand.cause)
    }
}

/// Breaks a heap down from the point of view of the request `asked`, under the policy's rules. Without a request, only causes
/// that do not depend on a request are distinguished; every other free block counts as too small.
#[must_use]
pub fn stranded(segments: &[SegmentInfo], asked: Option<&Asked>, policy: &PyTorch) -> Breakdown {
    let mut breakdown = Breakdown {
        reserved_bytes: 0,
        requested_bytes: 0,
        rounding_bytes: 0,
        live_blocks: 0,
        segments: segments.len(),
        strands: Cause::ALL.map(|cause| Strand { cause, bytes: 0, holes: 0, largest_bytes: 0, releasable_bytes: 0 }),
        kept_by_pools_bytes: 0,
        holes: Vec::new(),
    };
    let add = |sum: &mut u64, bytes: u64| *sum = sum.saturating_add(bytes);
    for segment in segments {
        add(&mut breakdown.reserved_bytes, segment.total.get());
        let view = View::of(segment, policy);
        for block in &segment.blocks {
            let size = block.size.get();
            if block.state == BlockActivity::Allocated {
                // A file may claim that the program requested more than the block's size.
                let requested = block.requested.get().min(size);
                add(&mut breakdown.requested_bytes, requested);
                add(&mut breakdown.rounding_bytes, size - requested);
                breakdown.live_blocks += 1;
                continue;
            }
            let cause = view.cause(block, asked, policy);
            let (whole_bytes, is_private) = (view.whole(block), segment.pool != PoolId::DEFAULT);
            let (kept_bytes, releasable_bytes) = if is_private { (whole_bytes, 0) } else { (0, whole_bytes) };
            add(&mut breakdown.kept_by_pools_bytes, kept_bytes);
            let hole = Hole { address: block.address.get(), bytes: size, cause, releasable_bytes };
            let strand = &mut breakdown.strands[cause as usize];
            add(&mut strand.bytes, hole.bytes);
            add(&mut strand.releasable_bytes, hole.releasable_bytes);
            strand.holes += 1;
            strand.largest_bytes = strand.largest_bytes.max(hole.bytes);
            breakdown.holes.push(hole);
        }
    }
    breakdown
}

/// A segment and how its pages are used, for judging its free blocks.
struct View<'a> {
    segment: &'a SegmentInfo,
    /// The size of its pages, which can be released one by one; the entire segment if it is not expandable.
    page_bytes: u64,
    /// For each page in which a block in use begins or ends: the bytes in use. Pages in between are full.
    used: BTreeMap<u64, u64>,
}

impl<'a> View<'a> {
    fn of(segment: &'a SegmentInfo, policy: &PyTorch) -> View<'a> {
        let whole = segment.total.get().max(1);
        // A file recorded under other settings may have runs whose size is not a multiple of the page size.
        let page_bytes = match policy.page(PoolSlot::default_pool(segment.class)).get() {
            page if segment.expandable && page > 0 && whole.is_multiple_of(page) => page,
            _ => whole,
        };
        let mut view = View { segment, page_bytes, used: BTreeMap::new() };
        for block in segment.blocks.iter().filter(|block| block.state != BlockActivity::Inactive) {
            view.use_pages(block);
        }
        view
    }

    /// Returns the beginning and the end of a block, relative to the segment's first byte.
    fn span(&self, block: &BlockInfo) -> (u64, u64) {
        let start = block.address.get().saturating_sub(self.segment.address.get());
        (start, start.saturating_add(block.size.get()))
    }

    fn use_pages(&mut self, block: &BlockInfo) {
        let (start, end) = self.span(block);
        let (first, last) = (start / self.page_bytes, end.saturating_sub(1) / self.page_bytes);
        for page in [Some(first), (last != first).then_some(last)].into_iter().flatten() {
            let page_start = page.saturating_mul(self.page_bytes);
            let inside = end.min(page_start.saturating_add(self.page_bytes)) - start.max(page_start);
            *self.used.entry(page).or_default() += inside;
        }
    }

    /// Returns the bytes of whole pages within a free block.
    fn whole(&self, block: &BlockInfo) -> u64 {
        if block.state != BlockActivity::Inactive {
            return 0;
        }
        let (start, end) = self.span(block);
        let first = start.div_ceil(self.page_bytes);
        (end / self.page_bytes).saturating_sub(first).saturating_mul(self.page_bytes)
    }

    fn cause(&self, block: &BlockInfo, asked: Option<&Asked>, policy: &PyTorch) -> Cause {
        if block.state == BlockActivity::PendingFree {
            return Cause::PendingEvent;
        }
        if self.segment.pool != asked.map_or(PoolId::DEFAULT, |asked| asked.pool) {
            return Cause::PrivatePool;
        }
        if let Some(asked) = asked {
            if self.segment.stream != asked.stream {
                return Cause::OtherStream;
            }
            if self.segment.class != policy.classify(asked.size) {
                return Cause::OtherClass;
            }
            if block.size >= asked.size {
                return self.refusal(block, asked, policy);
            }
        }
        if self.is_pinned(block) { Cause::Pinned } else { Cause::TooSmall }
    }

    /// Returns the reason why a sufficiently large block does not serve the request.
    fn refusal(&self, block: &BlockInfo, asked: &Asked, policy: &PyTorch) -> Cause {
        let settings = &policy.settings;
        let is_oversize = if asked.size.get() < settings.max_split_bytes {
            block.size.get() >= settings.max_split_bytes
        } else {
            // The sum wraps, as PyTorch's does.
            block.size.get() >= asked.size.get().wrapping_add(settings.max_non_split_rounding_bytes)
        };
        if is_oversize {
            Cause::Oversize
        } else if self.segment.expandable && !settings.expandable_segments {
            Cause::ExpandableOff
        } else {
            Cause::Fits
        }
    }

    /// Returns whether the pages that the free block shares with blocks in use are nearly empty.
    fn is_pinned(&self, block: &BlockInfo) -> bool {
        let (start, end) = self.span(block);
        let (first, last) = (start / self.page_bytes, end.saturating_sub(1) / self.page_bytes);
        let shared = |page: &u64| {
            let page_start = page.saturating_mul(self.page_bytes);
            page_start < start || page_start.saturating_add(self.page_bytes) > end
        };
        let mut ends = [Some(first), (last != first).then_some(last)].into_iter().flatten().filter(shared).peekable();
        let is_nearly_empty = |page: u64| self.used.get(&page).copied().unwrap_or(0) <= self.page_bytes / PINNED_PART;
        ends.peek().is_some() && ends.all(is_nearly_empty)
    }
}

/// The reason why a byte is reserved but not allocated. The first applicable cause in the order of [`ExcessCause::ALL`]
/// counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ExcessCause {
    /// Its block was freed, but another stream may still use it because an event is outstanding (spec 3.5).
    PendingEvent,
    /// It is free in a private pool (spec 5).
    PrivatePool,
    /// It is cached for a stream other than [`Excess::main_stream`] (spec 2.3).
    OtherStream,
    /// It is in an entirely free segment, or in entirely free pages of an expandable segment: `empty_cache` releases it.
    FreeSegment,
    /// It is a hole in a segment of the small pool that is partly in use.
    SmallPoolHole,
    /// It is a hole in a segment of the large pool that is partly in use.
    LargePoolHole,
}

impl ExcessCause {
    /// All causes, in the order in which they are tested.
    pub const ALL: [ExcessCause; 6] = [
        ExcessCause::PendingEvent,
        ExcessCause::PrivatePool,
        ExcessCause::OtherStream,
        ExcessCause::FreeSegment,
        ExcessCause::SmallPoolHole,
        ExcessCause::LargePoolHole,
    ];
}

parkade_recording::names! {
    ExcessCause {
        ExcessCause::PendingEvent => "pending_event",
        ExcessCause::PrivatePool => "private_pool",
        ExcessCause::OtherStream => "other_stream",
        ExcessCause::FreeSegment => "free_segment",
        ExcessCause::SmallPoolHole => "small_pool_hole",
        ExcessCause::LargePoolHole => "large_pool_hole",
    }
}

/// All bytes with one cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExcessPart {
    /// The cause.
    pub cause: ExcessCause,
    /// The sum of these bytes.
    pub bytes: u64,
    /// The number of pieces: segments, runs of pages, or holes.
    pub pieces: usize,
    /// The largest of these pieces.
    pub largest_bytes: u64,
    /// The part of the sum in segments or pages that are entirely free. `empty_cache` releases it, except in private pools that are
    /// still used.
    pub whole_bytes: u64,
}

/// The bytes between reserved and allocated, by cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excess {
    /// The stream with the most allocated bytes outside private pools; ties are broken by the most reserved bytes, then by
    /// the lowest number. `None` if no segment is outside private pools.
    pub main_stream: Option<StreamId>,
    /// The bytes by cause, in the order of [`ExcessCause::ALL`], including causes without bytes.
    pub parts: [ExcessPart; ExcessCause::ALL.len()],
}

impl Excess {
    /// Returns the bytes with one cause.
    #[must_use]
    pub fn of(&self, cause: ExcessCause) -> &ExcessPart {
        &self.parts[cause as usize]
    }

    /// Returns the reserved bytes minus the allocated bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    fn add(&mut self, cause: ExcessCause, bytes: u64, whole_bytes: u64) {
        if bytes > 0 {
            let part = &mut self.parts[cause as usize];
            part.bytes = part.bytes.saturating_add(bytes);
            part.whole_bytes = part.whole_bytes.saturating_add(whole_bytes);
            part.pieces += 1;
            part.largest_bytes = part.largest_bytes.max(bytes);
        }
    }
}

/// Breaks down why this heap has more reserved than allocated bytes. The policy supplies the page size.
#[must_use]
pub fn excess(segments: &[SegmentInfo], policy: &PyTorch) -> Excess {
    let main_stream = main_stream(segments);
    let empty = |cause| ExcessPart { cause, bytes: 0, pieces: 0, largest_bytes: 0, whole_bytes: 0 };
    let mut excess = Excess { main_stream, parts: ExcessCause::ALL.map(empty) };
    for segment in segments {
        let view = View::of(segment, policy);
        for block in segment.blocks.iter().filter(|block| block.state != BlockActivity::Allocated) {
            let (size, whole) = (block.size.get(), view.whole(block));
            if block.state == BlockActivity::PendingFree {
                excess.add(ExcessCause::PendingEvent, size, whole);
            } else if segment.pool != PoolId::DEFAULT {
                excess.add(ExcessCause::PrivatePool, size, whole);
            } else if Some(segment.stream) != main_stream {
                excess.add(ExcessCause::OtherStream, size, whole);
            } else {
                // A free block of an expandable segment may have whole pages and parts of pages that it shares with live blocks.
                let is_small = segment.class == PoolClass::Small;
                let hole = if is_small { ExcessCause::SmallPoolHole } else { ExcessCause::LargePoolHole };
                excess.add(ExcessCause::FreeSegment, whole, whole);
                excess.add(hole, size.saturating_sub(whole), 0);
            }
        }
    }
    excess
}

fn main_stream(segments: &[SegmentInfo]) -> Option<StreamId> {
    let mut uses: BTreeMap<StreamId, (u64, u64)> = BTreeMap::new();
    for segment in segments.iter().filter(|segment| segment.pool == PoolId::DEFAULT) {
        let live = segment.blocks.iter().filter(|block| block.state == BlockActivity::Allocated);
        let (allocated, reserved) = uses.entry(segment.stream).or_default();
        *allocated = live.fold(*allocated, |sum, block| sum.saturating_add(block.size.get()));
        *reserved = reserved.saturating_add(segment.total.get());
    }
    uses.into_iter().min_by_key(|&(stream, uses)| (Reverse(uses), stream)).map(|(stream, _)| stream)
}

#[cfg(test)]
pub(super) mod sample_heaps {
    //! Small heaps for tests.

    use parkade::policy::PyTorch;
    use parkade::settings::Settings;
    use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
    use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::Asked;

    pub(crate) const KIB: u64 = 1 << 10;

    /// The state of a block in a test's segment; a live block carries its requested bytes.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Is {
        Live(u64),
        Pending,
        Free,
    }

    pub(crate) fn segment_of(address: u64, blocks: &[(u64, Is)]) -> SegmentInfo {
        let mut at = address;
        let blocks: Vec<BlockInfo> = blocks
            .iter()
            .map(|&(size, is)| {
                let (state, requested) = match is {
                    Is::Live(requested) => (BlockActivity::Allocated, requested),
                    Is::Pending => (BlockActivity::PendingFree, size),
                    Is::Free => (BlockActivity::Inactive, 1),
                };
                let block = BlockInfo { address: DeviceAddress(at), size: Bytes(size), requested: Bytes(requested), state };
                at += size;
                block
            })
            .collect();
        let total = Bytes(at - address);
        let class = if total.get() > 2 * MIB { PoolClass::Large } else { PoolClass::Small };
        let (stream, pool) = (StreamId(7), PoolId::DEFAULT);
        let (allocated, active, requested, expandable, rank) = (Bytes(0), Bytes(0), Bytes(0), false, 0);
        let address = DeviceAddress(address);
        SegmentInfo { address, total, allocated, active, requested, stream, pool, class, expandable, rank, blocks }
    }

    pub(crate) fn asked(size: u64) -> Asked {
        Asked { size: Bytes(size), stream: StreamId(7), pool: PoolId::DEFAULT }
    }

    pub(crate) fn under(settings: &str) -> PyTorch {
        PyTorch::new(Settings::from_environment(settings).expect("settings"))
    }

    /// The unit of the sizes of blocks in [`heaps`].
    pub(crate) const UNIT: u64 = 512 * KIB;

    /// The sizes and uses of a segment's blocks, its stream, its pool, and whether it is expandable.
    type Parts = (Vec<(u64, u8)>, u8, u8, bool);

    fn any_segment() -> impl Strategy<Value = Parts> {
        (vec((1..90_u64, 0..3_u8), 1..12), 0..2_u8, 0..2_u8, any::<bool>())
    }

    /// Heaps of fewer than eight segments. Of two free blocks side by side, the second is in use instead, and half of the
    /// segments consist of whole pages of 20 MiB.
    pub(crate) fn heaps() -> impl Strategy<Value = Vec<SegmentInfo>> {
        vec(any_segment(), 0..8).prop_map(heap_of)
    }

    fn heap_of(parts: Vec<Parts>) -> Vec<SegmentInfo> {
        let segment = |(place, (mut blocks, stream, pool, expandable)): (usize, Parts)| {
            if expandable {
                let units: u64 = blocks.iter().map(|block| block.0).sum();
                blocks[0].0 += units.next_multiple_of(40) - units;
            }
            let mut was_free = false;
            let blocks: Vec<(u64, Is)> = blocks
                .into_iter()
                .map(|(units, is)| {
                    let size = units * UNIT;
                    let is = if is == 2 && was_free { 0 } else { is };
                    was_free = is == 2;
                    (size, [Is::Live(size - units), Is::Pending, Is::Free][usize::from(is)])
                })
                .collect();
            let (stream, pool) = (StreamId(7 + u64::from(stream)), PoolId(0, u64::from(pool)));
            SegmentInfo { stream, pool, expandable, ..segment_of((place as u64 + 1) << 40, &blocks) }
        };
        parts.into_iter().enumerate().map(segment).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Tests with one small heap for each cause, with exact figures, and the law that every reserved byte is counted exactly once.

    use parkade::units::MIB;
    use proptest::prelude::*;

    use super::sample_heaps::{Is, KIB, UNIT, asked, heaps, segment_of, under};
    use super::*;

    /// Returns the stranded bytes by cause, omitting zeros, and the total number of bytes that can be released.
    fn causes(segments: &[SegmentInfo], request: u64, settings: &str) -> (Vec<(Cause, u64)>, u64) {
        let breakdown = stranded(segments, Some(&asked(request)), &under(settings));
        let strands = breakdown.strands.iter().filter(|strand| strand.bytes > 0);
        (strands.map(|strand| (strand.cause, strand.bytes)).collect(), breakdown.releasable_bytes())
    }

    #[test]
    fn holes_between_live_blocks_are_too_small() {
        let live = Is::Live(4 * MIB);
        let comb = segment_of(0, &[(4 * MIB, live), (6 * MIB, Is::Free), (4 * MIB, live), (6 * MIB, Is::Free)]);
        assert_eq!(causes(std::slice::from_ref(&comb), 7 * MIB, ""), (vec![(Cause::TooSmall, 12 * MIB)], 0));
        let breakdown = stranded(&[comb], Some(&asked(7 * MIB)), &under(""));
        let strand = breakdown.of(Cause::TooSmall);
        assert_eq!((strand.holes, strand.largest_bytes, breakdown.largest_hole_bytes()), (2, 6 * MIB, 6 * MIB));
    }

    #[test]
    fn rounding_is_neither_requested_nor_stranded() {
        let segment = segment_of(0, &[(8 * MIB, Is::Live(7 * MIB + 1)), (12 * MIB, Is::Live(12 * MIB))]);
        let breakdown = stranded(&[segment], Some(&asked(MIB)), &under(""));
        assert_eq!((breakdown.requested_bytes, breakdown.rounding_bytes), (19 * MIB + 1, MIB - 1));
        assert_eq!((breakdown.stranded_bytes(), breakdown.allocated_bytes()), (0, 20 * MIB));
    }

    #[test]
    fn a_block_that_waits_for_events_is_pending_for_every_request() {
        let segment = segment_of(0, &[(5 * MIB, Is::Pending), (15 * MIB, Is::Live(15 * MIB))]);
        assert_eq!(causes(&[segment], 5 * MIB, ""), (vec![(Cause::PendingEvent, 5 * MIB)], 0));
    }

    #[test]
    fn a_free_block_of_another_stream_does_not_serve() {
        let other = SegmentInfo { stream: StreamId(8), ..segment_of(0, &[(30 * MIB, Is::Free)]) };
        assert_eq!(causes(&[other], 20 * MIB, ""), (vec![(Cause::OtherStream, 30 * MIB)], 30 * MIB));
    }

    #[test]
    fn a_private_pool_keeps_its_free_blocks() {
        let private = SegmentInfo { pool: PoolId(0, 1), ..segment_of(0, &[(30 * MIB, Is::Free)]) };
        assert_eq!(causes(std::slice::from_ref(&private), 20 * MIB, ""), (vec![(Cause::PrivatePool, 30 * MIB)], 0));
        let of_pool = Asked { pool: PoolId(0, 1), ..asked(20 * MIB) };
        let breakdown = stranded(&[private], Some(&of_pool), &under(""));
        assert_eq!(breakdown.of(Cause::Fits).bytes, 30 * MIB);
    }

    #[test]
    fn the_small_pool_does_not_serve_large_requests() {
        let small = segment_of(0, &[(512, Is::Live(4)), (2 * MIB - 512, Is::Free)]);
        let free = 2 * MIB - 512;
        assert_eq!(causes(std::slice::from_ref(&small), 3 * MIB, ""), (vec![(Cause::OtherClass, free)], 0));
        assert_eq!(causes(std::slice::from_ref(&small), MIB, ""), (vec![(Cause::Fits, free)], 0));
    }

    #[test]
    fn an_oversize_block_waits_for_an_oversize_request() {
        let whole = [segment_of(0, &[(200 * MIB, Is::Free)])];
        assert_eq!(causes(&whole, 4 * MIB, "max_split_size_mb:128"), (vec![(Cause::Oversize, 200 * MIB)], 200 * MIB));
        assert_eq!(causes(&whole, 4 * MIB, "").0, [(Cause::Fits, 200 * MIB)]);
        // A request of at least the maximum may use a block that is less than 20 MiB larger.
        assert_eq!(causes(&whole, 180 * MIB, "max_split_size_mb:128").0, [(Cause::Oversize, 200 * MIB)]);
        assert_eq!(causes(&whole, 180 * MIB + 512, "max_split_size_mb:128").0, [(Cause::Fits, 200 * MIB)]);
    }

    #[test]
    fn a_small_block_pins_its_segment() {
        let pinned = segment_of(0, &[(150 * MIB, Is::Free), (2 * MIB, Is::Live(2 * MIB)), (48 * MIB, Is::Free)]);
        assert_eq!(causes(&[pinned], 180 * MIB, ""), (vec![(Cause::Pinned, 198 * MIB)], 0));
        // One part in ten still counts as small.
        let edge = |live: u64| segment_of(0, &[(live, Is::Live(live)), (100 * MIB - live, Is::Free)]);
        assert_eq!(causes(&[edge(10 * MIB)], 180 * MIB, "").0, [(Cause::Pinned, 90 * MIB)]);
        assert_eq!(causes(&[edge(10 * MIB + 512)], 180 * MIB, "").0, [(Cause::TooSmall, 90 * MIB - 512)]);
    }

    /// Whole pages can be released; the rest of a page that holds a small block cannot.
    #[test]
    fn a_small_block_pins_its_pages() {
        let blocks = [(50 * MIB, Is::Free), (MIB, Is::Live(MIB)), (9 * MIB, Is::Free), (20 * MIB, Is::Live(20 * MIB))];
        let run = [SegmentInfo { expandable: true, ..segment_of(1 << 40, &blocks) }];
        let expandable = "expandable_segments:True";
        assert_eq!(causes(&run, 60 * MIB, expandable), (vec![(Cause::Pinned, 59 * MIB)], 40 * MIB));
        // With expandable segments switched off, the large blocks of the segment serve no request; its small ones are pinned as
        // before.
        assert_eq!(causes(&run, 30 * MIB, "").0, [(Cause::ExpandableOff, 50 * MIB), (Cause::Pinned, 9 * MIB)]);
    }

    #[test]
    fn a_whole_segment_that_is_too_small_can_be_released() {
        let whole = [segment_of(0, &[(20 * MIB, Is::Free)])];
        assert_eq!(causes(&whole, 30 * MIB, ""), (vec![(Cause::TooSmall, 20 * MIB)], 20 * MIB));
    }

    #[test]
    fn without_a_request_only_causes_that_need_none_are_told_apart() {
        let private = SegmentInfo { pool: PoolId(0, 1), ..segment_of(1 << 30, &[(30 * MIB, Is::Free)]) };
        let other = SegmentInfo { stream: StreamId(8), ..segment_of(1 << 40, &[(30 * MIB, Is::Free)]) };
        let breakdown = stranded(&[private, other], None, &under(""));
        assert_eq!((breakdown.of(Cause::PrivatePool).bytes, breakdown.of(Cause::TooSmall).bytes), (30 * MIB, 30 * MIB));
    }

    /// Returns the bytes with each cause, and the part of them in whole segments or pages, omitting zeros.
    fn excesses(segments: &[SegmentInfo], settings: &str) -> Vec<(ExcessCause, u64, u64)> {
        let found = excess(segments, &under(settings));
        found.parts.iter().filter(|part| part.bytes > 0).map(|part| (part.cause, part.bytes, part.whole_bytes)).collect()
    }

    #[test]
    fn each_reserved_byte_that_is_not_allocated_has_a_cause_that_no_request_decides() {
        let live = |mib: u64| (mib * MIB, Is::Live(mib * MIB));
        let free = |mib: u64| (mib * MIB, Is::Free);
        let small = segment_of(0, &[(512, Is::Live(1)), (2 * MIB - 512, Is::Free)]);
        let comb = segment_of(1 << 30, &[free(6), live(4), free(10)]);
        let whole = segment_of(2 << 30, &[free(30)]);
        let pending = segment_of(3 << 30, &[(5 * MIB, Is::Pending), free(15)]);
        let other = SegmentInfo { stream: StreamId(8), ..segment_of(4 << 30, &[free(40)]) };
        let private = SegmentInfo { pool: PoolId(0, 1), stream: StreamId(8), ..segment_of(5 << 30, &[live(100), free(1)]) };
        let segments = [small, comb, whole, pending, other, private];
        let expected = [
            (ExcessCause::PendingEvent, 5 * MIB, 0),
            (ExcessCause::PrivatePool, MIB, 0),
            (ExcessCause::OtherStream, 40 * MIB, 40 * MIB),
            (ExcessCause::FreeSegment, 30 * MIB, 30 * MIB),
            (ExcessCause::SmallPoolHole, 2 * MIB - 512, 0),
            (ExcessCause::LargePoolHole, 31 * MIB, 0),
        ];
        assert_eq!(excesses(&segments, ""), expected);
        let found = excess(&segments, &under(""));
        assert_eq!(
            (found.main_stream, found.bytes()),
            (Some(StreamId(7)), stranded(&segments, None, &under("")).stranded_bytes())
        );
        let hole = found.of(ExcessCause::LargePoolHole);
        assert_eq!((hole.pieces, hole.largest_bytes), (3, 15 * MIB));
    }

    /// `empty_cache` unmaps whole 20 MiB pages; the ends of the hole remain mapped, because live blocks share their pages.
    #[test]
    fn whole_pages_of_a_hole_are_told_from_its_ends() {
        let blocks = [(10 * MIB, Is::Live(MIB)), (35 * MIB, Is::Free), (15 * MIB, Is::Live(MIB))];
        let run = [SegmentInfo { expandable: true, ..segment_of(1 << 40, &blocks) }];
        let parts = [(ExcessCause::FreeSegment, 20 * MIB, 20 * MIB), (ExcessCause::LargePoolHole, 15 * MIB, 0)];
        assert_eq!(excesses(&run, "expandable_segments:True"), parts);
    }

    proptest! {
        /// Requested, rounding and stranded bytes add up to the reserved bytes, and every block is counted once.
        #[test]
        fn every_byte_is_counted_once(
            segments in heaps(),
            request in 1..400_u64,
            settings in prop_oneof![Just(""), Just("max_split_size_mb:30"), Just("expandable_segments:True")],
            with_request in any::<bool>(),
        ) {
            let policy = under(settings);
            let size = policy.round(Bytes(request * 256 * KIB)).expect("a size");
            let request = Asked { size, ..asked(0) };
            let breakdown = stranded(&segments, Some(&request).filter(|_| with_request), &policy);
            let reserved: u64 = segments.iter().map(|segment| segment.total.get()).sum();
            prop_assert_eq!(breakdown.reserved_bytes, reserved);
            let sum = breakdown.requested_bytes + breakdown.rounding_bytes + breakdown.stranded_bytes();
            prop_assert_eq!(sum, reserved);
            prop_assert_eq!(breakdown.holes.iter().map(|hole| hole.bytes).sum::<u64>(), breakdown.stranded_bytes());
            prop_assert!(breakdown.holes.iter().all(|hole| hole.releasable_bytes <= hole.bytes));
            let blocks: usize = segments.iter().map(|segment| segment.blocks.len()).sum();
            prop_assert_eq!(breakdown.holes.len() + breakdown.live_blocks, blocks);
            // The causes that do not depend on a request cover the same bytes.
            let found = excess(&segments, &policy);
            prop_assert_eq!(found.bytes(), breakdown.stranded_bytes());
            let whole: u64 = found.parts.iter().map(|part| part.whole_bytes).sum();
            prop_assert_eq!(whole, breakdown.releasable_bytes() + breakdown.kept_by_pools_bytes);
        }
    }

    /// A segment cut into units, each with the index of its block and whether it is in use.
    struct Cut<'a> {
        segment: &'a SegmentInfo,
        units: Vec<(usize, bool)>,
        page_units: usize,
    }

    impl Cut<'_> {
        fn of<'a>(segment: &'a SegmentInfo, policy: &PyTorch) -> Cut<'a> {
            let units = |(place, block): (usize, &BlockInfo)| {
                let is_used = block.state != BlockActivity::Inactive;
                std::iter::repeat_n((place, is_used), (block.size.get() / UNIT) as usize)
            };
            let units: Vec<(usize, bool)> = segment.blocks.iter().enumerate().flat_map(units).collect();
            let page_units = (policy.page(PoolSlot::default_pool(segment.class)).get() / UNIT) as usize;
            let has_pages = segment.expandable && units.len().is_multiple_of(page_units);
            Cut { segment, page_units: if has_pages { page_units } else { units.len() }, units }
        }

        /// Returns the bytes of the pages that consist of this block alone.
        fn whole(&self, place: usize) -> u64 {
            let is_of_it = |page: &&[(usize, bool)]| page.iter().all(|&(of, is_used)| of == place && !is_used);
            (self.units.chunks(self.page_units).filter(is_of_it).count() * self.page_units) as u64 * UNIT
        }

        /// Returns whether the block shares a page with others, and at most a tenth of each such page is in use.
        fn is_pinned(&self, place: usize) -> bool {
            let has_it = |page: &&[(usize, bool)]| page.iter().any(|&(of, _)| of == place);
            let shared = self.units.chunks(self.page_units).filter(has_it).filter(|page| page.iter().any(|&(of, _)| of != place));
            let used: Vec<usize> = shared.map(|page| page.iter().filter(|(_, is_used)| *is_used).count()).collect();
            !used.is_empty() && used.iter().all(|used| used * 10 <= self.page_units)
        }

        /// Returns the first cause in the order of [`Cause::ALL`] that applies to a block.
        fn cause(&self, place: usize, asked: Option<&Asked>, settings: &str) -> Cause {
            let (segment, block) = (self.segment, &self.segment.blocks[place]);
            let has_room = |asked: &Asked| block.size >= asked.size;
            let is_small = |asked: &Asked| asked.size.get() <= MIB;
            // The borders of `max_split_size_mb:30`.
            let is_oversize = |asked: &Asked| match settings {
                "max_split_size_mb:30" if asked.size.get() < 30 * MIB => block.size.get() >= 30 * MIB,
                "max_split_size_mb:30" => block.size.get() >= asked.size.get() + 20 * MIB,
                _ => false,
            };
            let applies = |cause: &Cause| match cause {
                Cause::PendingEvent => block.state == BlockActivity::PendingFree,
                Cause::PrivatePool => segment.pool != asked.map_or(PoolId::DEFAULT, |asked| asked.pool),
                Cause::OtherStream => asked.is_some_and(|asked| segment.stream != asked.stream),
                Cause::OtherClass => asked.is_some_and(|asked| is_small(asked) != (segment.class == PoolClass::Small)),
                Cause::Oversize => asked.is_some_and(|asked| has_room(asked) && is_oversize(asked)),
                Cause::ExpandableOff => {
                    asked.is_some_and(has_room) && segment.expandable && settings != "expandable_segments:True"
                }
                Cause::Fits => asked.is_some_and(has_room),
                Cause::Pinned => self.is_pinned(place),
                Cause::TooSmall => true,
            };
            Cause::ALL.into_iter().find(applies).expect("the last one always applies")
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// Compares with segments that are cut into units of 512 KiB.
        #[test]
        fn each_hole_has_the_cause_that_its_units_show(
            segments in heaps(),
            request in prop_oneof![1..10_u64, 56..66_u64, 1..200_u64],
            settings in prop_oneof![Just(""), Just("max_split_size_mb:30"), Just("expandable_segments:True")],
            with_request in any::<bool>(),
        ) {
            let policy = under(settings);
            let asked = asked(request * UNIT);
            let asked = Some(&asked).filter(|_| with_request);
            let breakdown = stranded(&segments, asked, &policy);
            let mut holes = Vec::new();
            for segment in &segments {
                let cut = Cut::of(segment, &policy);
                for (place, block) in
                    segment.blocks.iter().enumerate().filter(|(_, block)| block.state != BlockActivity::Allocated)
                {
                    let whole = if segment.pool == PoolId::DEFAULT { cut.whole(place) } else { 0 };
                    let (address, cause) = (block.address.get(), cut.cause(place, asked, settings));
                    holes.push(Hole { address, bytes: block.size.get(), cause, releasable_bytes: whole });
                }
            }
            for cause in Cause::ALL {
                let of_cause = || holes.iter().filter(|hole| hole.cause == cause);
                let strand = Strand {
                    cause,
                    bytes: of_cause().map(|hole| hole.bytes).sum(),
                    holes: of_cause().count(),
                    largest_bytes: of_cause().map(|hole| hole.bytes).max().unwrap_or(0),
                    releasable_bytes: of_cause().map(|hole| hole.releasable_bytes).sum(),
                };
                prop_assert_eq!(breakdown.of(cause), &strand);
            }
            let free = holes.iter().filter(|hole| hole.cause != Cause::PendingEvent).map(|hole| hole.bytes);
            prop_assert_eq!(breakdown.largest_hole_bytes(), free.max().unwrap_or(0));
            let most = breakdown.main_cause().map_or(0, |cause| breakdown.of(cause).bytes);
            prop_assert_eq!(Some(most), breakdown.strands.iter().map(|strand| strand.bytes).max());
            prop_assert_eq!(breakdown.holes, holes);
        }

        /// The same for the causes that no request decides.
        #[test]
        fn each_excess_byte_has_the_cause_that_its_units_show(segments in heaps(), is_expandable in any::<bool>()) {
            let policy = under(if is_expandable { "expandable_segments:True" } else { "" });
            let found = excess(&segments, &policy);
            let of_stream = |stream: StreamId| {
                let segments = segments.iter().filter(move |segment| segment.pool == PoolId::DEFAULT && segment.stream == stream);
                let blocks = segments.clone().flat_map(|segment| &segment.blocks);
                let live = blocks.filter(|block| block.state == BlockActivity::Allocated).map(|block| block.size.get());
                let reserved = segments.map(|segment| segment.total.get());
                (live.sum::<u64>(), reserved.sum::<u64>())
            };
            // In the order of their numbers, with the first of equals.
            let mut main = None;
            for stream in [StreamId(7), StreamId(8)].into_iter().filter(|&stream| of_stream(stream).1 > 0) {
                if main.is_none_or(|main| of_stream(stream) > of_stream(main)) {
                    main = Some(stream);
                }
            }
            prop_assert_eq!(found.main_stream, main);
            let mut pieces: Vec<(ExcessCause, u64, u64)> = Vec::new();
            for segment in &segments {
                let cut = Cut::of(segment, &policy);
                for (place, block) in
                    segment.blocks.iter().enumerate().filter(|(_, block)| block.state != BlockActivity::Allocated)
                {
                    let (size, whole) = (block.size.get(), cut.whole(place));
                    if block.state == BlockActivity::PendingFree {
                        pieces.push((ExcessCause::PendingEvent, size, whole));
                    } else if segment.pool != PoolId::DEFAULT {
                        pieces.push((ExcessCause::PrivatePool, size, whole));
                    } else if Some(segment.stream) != main {
                        pieces.push((ExcessCause::OtherStream, size, whole));
                    } else {
                        let is_small = segment.class == PoolClass::Small;
                        pieces.push((ExcessCause::FreeSegment, whole, whole));
                        pieces.push((
                            if is_small { ExcessCause::SmallPoolHole } else { ExcessCause::LargePoolHole },
                            size - whole,
                            0,
                        ));
                    }
                }
            }
            for cause in ExcessCause::ALL {
                let of_cause = || pieces.iter().filter(|piece| piece.0 == cause && piece.1 > 0);
                let part = ExcessPart {
                    cause,
                    bytes: of_cause().map(|piece| piece.1).sum(),
                    pieces: of_cause().count(),
                    largest_bytes: of_cause().map(|piece| piece.1).max().unwrap_or(0),
                    whole_bytes: of_cause().map(|piece| piece.2).sum(),
                };
                prop_assert_eq!(found.of(cause), &part);
            }
        }
    }
}
