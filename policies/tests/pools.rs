//! Tests which requests the rules of TensorFlow, RAPIDS, cudaMallocAsync and GMLake make to the device, and which
//! memory they take from other streams. The expected values were worked out by hand.

use crate::policy_run::Run;
use parkade::units::{Bytes, MIB, StreamId};
use parkade_policies::CudaAsync;
use parkade_sim::{CallName, SimOptions};

/// Returns the options for a device that reports this many MiB, some of which are withheld.
fn with_base(total_mib: u64, base_mib: u64) -> SimOptions {
    SimOptions::new(Bytes::mib(total_mib)).base(Bytes::mib(base_mib))
}

#[test]
fn bfc_regions_double() {
    let mut run = Run::new("bfc", 1024);
    // A 2 MiB region is enough; the next region will have 4 MiB. 2 MiB is twice the request, so the chunk is split.
    assert_eq!(run.take_mib('a', 1), 0);
    assert_eq!(run.segments_mib(), [2]);
    // 4 MiB is less than twice 3 MiB, so the chunk is not split, and nothing remains for another request.
    assert_eq!(run.take_mib('b', 3), 0);
    assert_eq!(run.segments_mib(), [2, 4]);
    // The next region would have 8 MiB, but a 20 MiB request needs 32 MiB. After this increase, the size is not
    // doubled: regions have 32, again 32, and then 64 MiB.
    run.take_mib('c', 20);
    run.take_mib('d', 20);
    run.take_mib('e', 40);
    assert_eq!(run.segments_mib(), [2, 4, 32, 32, 64]);
    // The last free chunk is 1 MiB in the first region, which is used in steps of 256 bytes.
    assert_eq!(run.take('f', 1), MIB);
    assert_eq!(run.take('g', 257), MIB + 256);
    assert_eq!(run.take('h', 1), MIB + 768);
}

#[test]
fn bfc_splits_off_what_is_worth_it() {
    let mut run = Run::new("bfc", 1024);
    // A 300 MiB request leaves 212 MiB of a 512 MiB region. This is at least 128 MiB, so the chunk is split.
    run.take_mib('a', 500);
    run.give("a");
    assert_eq!(run.take_mib('b', 300), 0);
    assert_eq!(run.take_mib('c', 212), 300);
    run.give("c");
    // 212 MiB is less than twice 120 MiB, and the remaining 92 MiB are less than 128 MiB, so the request gets the
    // entire chunk.
    assert_eq!(run.take_mib('d', 120), 300);
    assert_eq!(run.segments_mib(), [512]);
    run.give("d");
    // 212 MiB is exactly twice 106 MiB, so the chunk is split.
    assert_eq!((run.take_mib('e', 106), run.take_mib('f', 106)), (300, 406));
}

#[test]
fn bfc_backs_off_by_tenths() {
    let mut run = Run::on("bfc", with_base(100, 20));
    run.take_mib('a', 50);
    assert_eq!(run.segments_mib(), [64]);
    // The next region would again have 64 MiB. The device's total leaves 36 MiB, but the device only has 16 MiB: 36
    // MiB times 0.9 to the power of eight is the first size that fits.
    let before = run.calls(CallName::Malloc);
    run.take('b', 10 * MIB);
    assert_eq!(run.calls(CallName::Malloc) - before, 9);
    let got = run.segments()[1];
    let expected = 36.0 * 0.9_f64.powi(8) * MIB as f64;
    assert!(got.is_multiple_of(256) && (got as f64 - expected).abs() < 9.0 * 256.0, "{got}, not {expected}");
    assert!(run.is_out(20 * MIB));
}

#[test]
fn bfc_gives_whole_regions_back_before_it_gives_up() {
    let mut run = Run::new("bfc", 64);
    run.take_mib('a', 20);
    assert_eq!(run.segments_mib(), [32]);
    run.give("a");
    run.take_mib('b', 40);
    assert_eq!(run.segments_mib(), [64]);
    assert_eq!(run.calls(CallName::Free), 1);
}

#[test]
fn bfc_keeps_whole_regions_that_are_too_few() {
    let mut run = Run::new("bfc", 64);
    run.take_mib('a', 20);
    run.take_mib('b', 20);
    assert_eq!(run.segments_mib(), [32, 32]);
    run.give("a");
    assert!(run.is_out(33 * MIB));
    assert_eq!(run.segments_mib(), [32, 32], "releasing one would leave 32 MiB");
    assert_eq!(run.calls(CallName::Free), 0);
}

#[test]
fn bfc_of_tensorflow_without_growth_takes_the_whole_limit() {
    let mut run = Run::new("bfc:kind=one-region", 64);
    run.take_mib('a', 1);
    assert_eq!(run.segments_mib(), [64]);
    assert!(run.is_out(64 * MIB));
}

#[test]
fn bfc_of_xla_grows_to_three_quarters_and_gives_nothing_back() {
    let mut run = Run::new("bfc:kind=xla-growth", 64);
    run.take_mib('a', 20);
    assert_eq!(run.segments_mib(), [32]);
    run.give("a");
    assert!(run.is_out(33 * MIB));
    run.take_mib('b', 16);
    run.take_mib('c', 16);
    assert_eq!(run.segments_mib(), [32], "it may have only 48 MiB");
    run.take_mib('d', 16);
    assert_eq!(run.segments_mib(), [32, 16]);
    assert_eq!(run.calls(CallName::Free), 0);
}

#[test]
fn bfc_of_xla_preallocates_three_quarters_and_has_no_more() {
    let mut run = Run::new("bfc:kind=xla", 64);
    assert_eq!(run.take_mib('a', 1), 0);
    assert_eq!(run.segments_mib(), [48]);
    assert!(run.is_out(48 * MIB));
    assert_eq!(run.segments_mib(), [48]);
    // Another stream takes the remainder, and the first one takes it back.
    assert_eq!(run.take_on(7, 'b', MIB), MIB);
    assert_eq!(run.take_mib('c', 1), 2);
}

#[test]
fn rmm_pool_begins_with_half_and_grows_by_what_it_has() {
    let mut run = Run::new("rmm-pool", 64);
    assert_eq!(run.take('a', 1), 0);
    assert_eq!(run.take('b', 300), 256, "sizes are multiples of 256 bytes");
    assert_eq!(run.segments_mib(), [32]);
    assert!(run.is_out(33 * MIB), "segments are not released for larger ones");
    run.take_mib('c', 32);
    assert_eq!(run.segments_mib(), [32, 32]);
}

#[test]
fn rmm_pool_tries_half_when_the_device_refuses() {
    let mut run = Run::on("rmm-pool", with_base(64, 8));
    run.take_mib('a', 32);
    // 32 MiB are refused with 24 MiB left. The pool then requests 16 MiB.
    run.take_mib('b', 5);
    assert_eq!(run.segments_mib(), [32, 16]);
    // 48, 24 and 12 MiB are refused. The pool then requests exactly the size of the request.
    run.take_mib('c', 8);
    run.take_mib('d', 8);
    assert_eq!(run.segments_mib(), [32, 16, 8]);
    assert!(run.is_out(4 * MIB));
}

#[test]
fn rmm_pool_with_a_maximum_grows_by_half_of_the_rest_and_reclaims() {
    let mut run = Run::new("rmm-pool", 64);
    run.core.set_limit(Some(Bytes::mib(48)));
    run.take_mib('a', 32);
    run.take_mib('b', 2);
    run.take_mib('c', 8);
    assert_eq!(run.segments_mib(), [32, 8, 8]);
    // For 33 MiB, nothing is left of the maximum. The first and the last segment are entirely free, and both must be
    // released.
    run.give("ac");
    run.take_mib('d', 33);
    assert_eq!(run.segments_mib(), [8, 33]);
    // 6 MiB remain in the segment, and 7 MiB remain of the maximum. A 7 MiB request gets these; a larger one is
    // impossible.
    assert!(run.is_out(8 * MIB));
    run.take_mib('e', 7);
    assert_eq!(run.reserved_mib(), 48);
}

/// Checks that the second stream's request is served from the first stream's segment, and that its work waits for the
/// first stream's work.
fn takes_with_a_wait(policy: &str) {
    let mut run = Run::new(policy, 256);
    run.take_mib('a', 8);
    run.take_mib('b', 8);
    run.give("a");
    run.core.device_mut().spin(StreamId(0), 1_000_000);
    let segments = run.segments();
    let offset = run.take_on(7, 'c', 8 * MIB);
    assert_eq!(run.segments(), segments, "{policy}");
    assert_eq!(run.calls(CallName::StreamWaitEvent), 1, "{policy}");
    assert_eq!(offset % MIB, 0, "{policy}");
    assert!(!run.is_idle(7), "{policy}: the stream waits");
    run.core.device_mut().advance(2_000_000);
    assert!(run.is_idle(7), "{policy}: the stream no longer waits");
}

#[test]
fn memory_of_another_stream_is_taken_with_a_wait() {
    for policy in ["bfc", "bfc:kind=one-region", "bfc:kind=xla", "bfc:kind=xla-growth", "rmm-pool", "cuda-async"] {
        takes_with_a_wait(policy);
    }
}

#[test]
fn cuda_async_takes_what_another_stream_is_done_with_without_a_wait() {
    let mut run = Run::new("cuda-async", 256);
    assert_eq!(run.take_mib('a', 1), 0);
    assert_eq!(run.segments_mib(), [32]);
    run.give("a");
    run.take_on(7, 'b', MIB);
    assert_eq!(run.segments_mib(), [32]);
    assert_eq!(run.calls(CallName::StreamWaitEvent), 0);
}

/// Stream 3 is busy and has the tightest block; stream 5 is idle and has a larger one. The block that needs no wait is
/// preferred.
#[test]
fn cuda_async_prefers_luck_to_a_wait() {
    let mut run = Run::new("cuda-async", 256);
    run.take_on(3, 'a', 32 * MIB);
    run.take_on(5, 'b', 64 * MIB);
    run.give("ab");
    run.core.device_mut().spin(StreamId(3), 1_000_000);
    run.take_on(7, 'c', 20 * MIB);
    assert_eq!(run.calls(CallName::StreamWaitEvent), 0);
    assert_eq!(run.segment_of('c'), 1);
}

#[test]
fn cuda_async_reserves_in_steps_and_then_in_pages() {
    let mut run = Run::new("cuda-async", 108);
    run.take_mib('a', 33);
    assert_eq!(run.segments_mib(), [64]);
    run.take_mib('b', 31);
    assert_eq!(run.segments_mib(), [64]);
    run.take_mib('c', 1);
    assert_eq!(run.segments_mib(), [64, 32]);
    run.take_mib('d', 31);
    // 12 MiB are left, too few for a step of 32 MiB.
    run.take_mib('e', 9);
    assert_eq!(run.segments_mib(), [64, 32, 10]);
    // The pool releases whole segments before it gives up.
    run.give("cd");
    run.take_mib('f', 34);
    assert_eq!(run.segments_mib(), [64, 10, 34]);
}

#[test]
fn cuda_async_gives_back_what_exceeds_its_threshold_when_it_grows() {
    for (threshold, reserved) in [(Bytes::MAX, 96), (Bytes::mib(32), 96), (Bytes::mib(31), 64), (Bytes::ZERO, 64)] {
        let mut run = Run::of(Box::new(CudaAsync::new(threshold)), SimOptions::new(Bytes::mib(256)));
        run.take_mib('a', 32);
        run.give("a");
        run.take_mib('b', 40);
        assert_eq!(run.reserved_mib(), reserved, "a threshold of {threshold}");
    }
}

/// Two free 300 MiB blocks, each of which is a segment; in a third segment, 4 of 20 MiB are in use. The device has
/// `capacity_mib` MiB.
fn two_blocks(capacity_mib: u64) -> Run {
    let mut run = Run::new("gmlake-like", capacity_mib);
    let places = [('a', 300), ('b', 2), ('c', 300), ('d', 2)].map(|(name, mib)| run.take_mib(name, mib));
    assert_eq!((places, run.reserved_mib()), ([0, 0, 0, 2], 620));
    run.give("ac");
    run
}

#[test]
fn gmlake_stitches_the_largest_blocks() {
    let mut run = two_blocks(8192);
    let created = run.calls(CallName::MemCreate);
    run.take_mib('e', 600);
    assert_eq!(run.reserved_mib(), 620, "no new memory");
    assert_eq!(run.calls(CallName::MemCreate), created);
    assert_eq!(run.calls(CallName::MemUnmap), 300, "600 MiB in 2 MiB pages");
    run.give("e");
    // The block is now in one piece, so no stitching is necessary.
    run.take_mib('f', 600);
    assert_eq!(run.calls(CallName::MemUnmap), 300);
}

#[test]
fn gmlake_stitches_no_small_request_and_none_that_does_not_suffice() {
    let mut run = two_blocks(8192);
    run.take_mib('e', 510);
    assert_eq!(run.reserved_mib(), 620 + 510, "less than 512 MiB is new memory");
    let mut run = two_blocks(8192);
    run.take_mib('e', 618);
    assert_eq!(run.reserved_mib(), 620 + 618, "600 and 16 MiB are free");
    assert_eq!(run.calls(CallName::MemUnmap), 0);
}

/// The remainder of the last block stays free, after the stitched block.
#[test]
fn gmlake_keeps_what_stitching_leaves_over() {
    let mut run = two_blocks(8192);
    run.take_mib('e', 520);
    assert_eq!(run.reserved_mib(), 620);
    assert_eq!(run.take_mib('f', 80), 520);
    assert_eq!(run.reserved_mib(), 620);
}

/// A segment is released as a whole when no part of it is in use; its free parts are not released separately.
#[test]
fn gmlake_gives_whole_segments_back_when_memory_is_out() {
    let mut run = two_blocks(1024);
    // The device has 404 MiB left, and two blocks have 600 MiB together.
    run.take_mib('e', 500);
    assert_eq!(run.reserved_mib(), 520);
    run.give("e");
    assert!(run.core.allocate(Bytes::mib(1006), StreamId::DEFAULT).is_err(), "16 MiB stay with b and d");
    run.give("bd");
    run.take_mib('f', 1024);
}

/// A refused segment leaves nothing behind; the next one has separate addresses.
#[test]
fn gmlake_extends_no_segment() {
    let mut run = Run::new("gmlake-like", 64);
    run.take_mib('a', 40);
    assert!(run.core.allocate(Bytes::mib(30), StreamId::DEFAULT).is_err());
    assert_eq!(run.take_mib('b', 10), 0);
    assert_eq!(run.reserved_mib(), 50);
    run.give("a");
    assert_eq!(run.take_mib('c', 54), 0, "in place of a, which was released");
    assert_eq!(run.reserved_mib(), 64);
}

#[test]
fn gmlake_rounds_large_requests_to_pages_and_small_ones_as_pytorch() {
    let mut run = Run::new("gmlake-like", 64);
    assert_eq!([run.take('a', 1), run.take('b', 1)], [0, 512]);
    assert_eq!([run.take('c', MIB + 1), run.take('d', MIB + 1)], [0, 2 * MIB]);
    assert_eq!(run.reserved_mib(), 22, "one 20 MiB segment");
    run.take_mib('e', 18);
    assert_eq!(run.reserved_mib(), 40, "for 10 MiB or more, a segment is as large as the request");
}
