//! One small heap for each cause, with exact figures, and the law that every reserved byte is counted exactly once.

use parkade::policy::{Policy, PyTorch};
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use proptest::prelude::*;

use super::breakdown::{Asked, Cause};
use super::excess::{ExcessCause, excess};
use super::fences::fences;
use super::limit::Limit;
use super::owners::Owners;
use super::stranded::stranded;
use super::verdict::{Applies, Verdict, judge};

const KIB: u64 = 1 << 10;

/// The state of a block in a test's segment; a live one with its requested bytes.
#[derive(Clone, Copy, Debug)]
enum Is {
    Live(u64),
    Pending,
    Free,
}

fn segment_of(address: u64, blocks: &[(u64, Is)]) -> SegmentInfo {
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

fn asked(size: u64) -> Asked {
    Asked { size: Bytes(size), stream: StreamId(7), pool: PoolId::DEFAULT }
}

fn under(settings: &str) -> PyTorch {
    PyTorch::new(Settings::from_environment(settings).expect("settings"))
}

/// The stranded bytes by cause, without the zeros, and how many of all can be released.
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

/// No setting releases a private pool. If the request would have fitted beside the pool, a setting may still help.
#[test]
fn settings_do_not_release_private_pools() {
    let private = SegmentInfo { pool: PoolId(0, 1), ..segment_of(0, &[(30 * MIB, Is::Free)]) };
    let judged = |free: u64, limit: u64| {
        let comb = segment_of(1 << 30, &[(free, Is::Free), (4 * MIB, Is::Live(4 * MIB)), (free, Is::Free)]);
        let heap = stranded(&[private.clone(), comb], Some(&asked(20 * MIB)), &under(""));
        assert_eq!((heap.kept_by_pools_bytes, heap.releasable_bytes()), (30 * MIB, 0));
        let (verdict, steps) = judge(&heap, Some(20 * MIB), Limit::Given { bytes: limit * MIB });
        (verdict, steps.fragmentation, steps.settings)
    };
    assert_eq!(judged(8 * MIB, 53), (Verdict::PrivatePools, Applies::Yes, Applies::No));
    assert_eq!(judged(8 * MIB, 54), (Verdict::PrivatePools, Applies::Yes, Applies::Unknown));
    assert_eq!(judged(10 * MIB, 53), (Verdict::PrivatePools, Applies::Yes, Applies::Unknown));
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

/// Whole pages can be released, the rest of a page with a small block cannot.
#[test]
fn a_small_block_pins_its_pages() {
    let blocks = [(50 * MIB, Is::Free), (MIB, Is::Live(MIB)), (9 * MIB, Is::Free), (20 * MIB, Is::Live(20 * MIB))];
    let run = [SegmentInfo { expandable: true, ..segment_of(1 << 40, &blocks) }];
    let expandable = "expandable_segments:True";
    assert_eq!(causes(&run, 60 * MIB, expandable), (vec![(Cause::Pinned, 59 * MIB)], 40 * MIB));
    // With expandable segments switched off its large blocks serve no request; its small ones are pinned as before.
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

/// The bytes of each cause, and the part of them in whole segments or pages; without the zeros.
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
    assert_eq!((found.main_stream, found.bytes()), (Some(StreamId(7)), stranded(&segments, None, &under("")).stranded_bytes()));
    let hole = found.of(ExcessCause::LargePoolHole);
    assert_eq!((hole.pieces, hole.largest_bytes), (3, 15 * MIB));
}

/// `empty_cache` unmaps whole pages of 20 MiB; the ends of the hole stay, because live blocks share their pages.
#[test]
fn whole_pages_of_a_hole_are_told_from_its_ends() {
    let blocks = [(10 * MIB, Is::Live(MIB)), (35 * MIB, Is::Free), (15 * MIB, Is::Live(MIB))];
    let run = [SegmentInfo { expandable: true, ..segment_of(1 << 40, &blocks) }];
    let parts = [(ExcessCause::FreeSegment, 20 * MIB, 20 * MIB), (ExcessCause::LargePoolHole, 15 * MIB, 0)];
    assert_eq!(excesses(&run, "expandable_segments:True"), parts);
}

#[test]
fn the_smallest_fence_that_opens_enough_comes_first() {
    let live = |size: u64| (size, Is::Live(size));
    let blocks = [(30 * MIB, Is::Free), live(MIB), (40 * MIB, Is::Free), live(4 * KIB), (10 * MIB, Is::Free), live(9 * MIB)];
    let segments = [segment_of(0, &blocks), segment_of(1 << 30, &[(64 * MIB, Is::Free), live(512)])];
    let found = |request: u64| {
        let fences = fences(&segments, Some(&asked(request)), &under(""), &Owners::default(), 3);
        fences.iter().map(|fence| (fence.bytes, fence.opens_bytes, fence.is_enough, fence.frees_segment)).collect::<Vec<_>>()
    };
    let (one, two) = ((MIB, 71 * MIB, false, false), (4 * KIB, 50 * MIB + 4 * KIB, false, false));
    assert_eq!(found(80 * MIB), [one, (512, 64 * MIB + 512, false, true), two]);
    let enough = |(bytes, opens, _, frees)| (bytes, opens, true, frees);
    assert_eq!(found(50 * MIB), [(512, 64 * MIB + 512, true, true), enough(two), enough(one)]);
}

#[test]
fn live_bytes_and_the_request_are_compared_with_the_limit() {
    let live = Is::Live(4 * MIB);
    let comb = segment_of(0, &[(4 * MIB, live), (6 * MIB, Is::Free), (4 * MIB, live), (6 * MIB, Is::Free)]);
    let verdict = |request: u64, limit| {
        let heap = stranded(std::slice::from_ref(&comb), Some(&asked(request)), &under(""));
        let (verdict, steps) = judge(&heap, Some(request), limit);
        (verdict, steps.capacity, steps.short_bytes)
    };
    let given = |mib: u64| Limit::Given { bytes: mib * MIB };
    let between = Limit::Between { at_least_bytes: 30 * MIB, below_bytes: 40 * MIB };
    assert_eq!(verdict(12 * MIB, given(20)), (Verdict::Fragmentation, Applies::No, None));
    assert_eq!(verdict(22 * MIB, given(30)), (Verdict::Fragmentation, Applies::No, None));
    assert_eq!(verdict(22 * MIB + 512, given(30)), (Verdict::Capacity, Applies::Yes, Some(512)));
    assert_eq!(verdict(22 * MIB, between), (Verdict::Fragmentation, Applies::No, None));
    assert_eq!(verdict(23 * MIB, between), (Verdict::Undecided, Applies::Unknown, None));
    assert_eq!(verdict(32 * MIB, between), (Verdict::Capacity, Applies::Yes, None));
    let other = SegmentInfo { stream: StreamId(8), ..segment_of(0, &[(30 * MIB, Is::Free)]) };
    let heap = stranded(&[other], Some(&asked(20 * MIB)), &under(""));
    assert_eq!(judge(&heap, Some(20 * MIB), given(30)).0, Verdict::Streams);
    assert_eq!(judge(&heap, None, given(30)).0, Verdict::NoFailure);
}

/// Sizes and uses of a segment's blocks, its stream, its pool, whether it is expandable.
type Parts = (Vec<(u64, u8)>, u8, u8, bool);

fn any_segment() -> impl Strategy<Value = Parts> {
    (proptest::collection::vec((1..90_u64, 0..3_u8), 1..12), 0..2_u8, 0..2_u8, any::<bool>())
}

fn heap_of(parts: Vec<Parts>) -> Vec<SegmentInfo> {
    let segment = |(place, (blocks, stream, pool, expandable)): (usize, Parts)| {
        let blocks: Vec<(u64, Is)> = blocks
            .into_iter()
            .map(|(units, is)| {
                let size = units * 512 * KIB;
                (size, [Is::Live(size - units), Is::Pending, Is::Free][usize::from(is)])
            })
            .collect();
        let (stream, pool) = (StreamId(7 + u64::from(stream)), PoolId(0, u64::from(pool)));
        SegmentInfo { stream, pool, expandable, ..segment_of((place as u64 + 1) << 40, &blocks) }
    };
    parts.into_iter().enumerate().map(segment).collect()
}

proptest! {
    /// Requested, rounding and stranded bytes add up to the reserved ones, and every block is counted once.
    #[test]
    fn every_byte_is_counted_once(
        parts in proptest::collection::vec(any_segment(), 0..8),
        request in 1..400_u64,
        settings in prop_oneof![Just(""), Just("max_split_size_mb:30"), Just("expandable_segments:True")],
        with_request in any::<bool>(),
    ) {
        let segments = heap_of(parts);
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
        // The causes that no request decides cover the same bytes.
        let found = excess(&segments, &policy);
        prop_assert_eq!(found.bytes(), breakdown.stranded_bytes());
        let whole: u64 = found.parts.iter().map(|part| part.whole_bytes).sum();
        prop_assert_eq!(whole, breakdown.releasable_bytes() + breakdown.kept_by_pools_bytes);
    }
}
