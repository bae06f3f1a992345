//! Tests small forgeries: recordings that no PyTorch allocator produces, and files that state the same fact in two different
//! ways.

use parkade_recording::{Action, Block, BlockState, DeviceRecording, Entry, Segment, StackId};
use parkade_replay::{DeviceVerdict, ReplaySettings, VerifyOptions, verify_device};

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 40;

fn verify(recording: &DeviceRecording) -> DeviceVerdict {
    let settings = ReplaySettings::given("").expect("no settings");
    let options = VerifyOptions { settings, limit_bytes: Some(32 * MIB), stats_file: None };
    verify_device(recording, &options, &mut |_| ()).expect("a verdict")
}

fn block(address: u64, size: u64, state: BlockState) -> Block {
    Block { address, size, requested: Some(size), state, stack: StackId::NONE }
}

/// Returns a program with two blocks that are used by other streams. Both are freed, and then these entries follow.
fn with_two_that_wait(then: &[(Action, u64, u64)], blocks: Vec<Block>) -> DeviceRecording {
    let mut parts = vec![
        (Action::SegmentAlloc, BASE, 20 * MIB),
        (Action::Alloc, BASE, 5 * MIB),
        (Action::Alloc, BASE + 5 * MIB, 5 * MIB),
        (Action::FreeRequested, BASE, 5 * MIB),
        (Action::FreeRequested, BASE + 5 * MIB, 5 * MIB),
    ];
    parts.extend(then);
    let trace = parts.into_iter().zip(1000..).map(|((action, address, size), time)| {
        let mut entry = Entry::new(action, address, size, 0);
        entry.set_time(Some(time));
        entry
    });
    let sum = |states: &[BlockState]| blocks.iter().filter(|block| states.contains(&block.state)).map(|block| block.size).sum();
    let active = sum(&[BlockState::ActiveAllocated, BlockState::ActivePendingFree]);
    let segment = Segment {
        address: BASE,
        total_bytes: 20 * MIB,
        stream: 0,
        large: true,
        pool: Some((0, 0)),
        expandable: false,
        allocated_bytes: Some(sum(&[BlockState::ActiveAllocated])),
        active_bytes: Some(active),
        requested_bytes: Some(active),
        stack: StackId::NONE,
        blocks,
    };
    DeviceRecording { segments: vec![segment], trace: trace.collect(), ..DeviceRecording::default() }
}

const FIRST: (Action, u64, u64) = (Action::FreeCompleted, BASE, 5 * MIB);
const SECOND: (Action, u64, u64) = (Action::FreeCompleted, BASE + 5 * MIB, 5 * MIB);

/// Returns a recording in which the first block becomes free as a request begins, and serves it; the second continues to
/// wait.
fn good() -> DeviceRecording {
    let (pending, free) = (BlockState::ActivePendingFree, BlockState::Inactive);
    let request = (Action::Alloc, BASE, 3 * MIB);
    with_two_that_wait(
        &[FIRST, request],
        vec![
            block(BASE, 3 * MIB, BlockState::ActiveAllocated),
            block(BASE + 3 * MIB, 2 * MIB, free),
            block(BASE + 5 * MIB, 5 * MIB, pending),
            block(BASE + 10 * MIB, 10 * MIB, free),
        ],
    )
}

#[test]
fn blocks_that_wait_become_free_when_a_request_begins() {
    let verdict = verify(&good());
    assert_eq!(verdict.mismatches, 0, "{:?}", verdict.first);
}

#[test]
fn all_that_wait_become_free_together_without_a_request() {
    let blocks = vec![block(BASE, 20 * MIB, BlockState::Inactive)];
    let verdict = verify(&with_two_that_wait(&[FIRST, SECOND], blocks));
    assert_eq!(verdict.mismatches, 0, "{:?}", verdict.first);
}

#[test]
fn one_of_two_that_wait_does_not_become_free_without_a_request() {
    let blocks = vec![
        block(BASE, 5 * MIB, BlockState::Inactive),
        block(BASE + 5 * MIB, 5 * MIB, BlockState::ActivePendingFree),
        block(BASE + 10 * MIB, 10 * MIB, BlockState::Inactive),
    ];
    let verdict = verify(&with_two_that_wait(&[FIRST], blocks));
    assert_eq!((verdict.mismatches, verdict.first.and_then(|first| first.entry)), (1, Some(5)));
}

#[test]
fn a_trace_may_begin_inside_a_free() {
    let blocks = vec![
        block(BASE, 5 * MIB, BlockState::Inactive),
        block(BASE + 5 * MIB, 5 * MIB, BlockState::ActivePendingFree),
        block(BASE + 10 * MIB, 10 * MIB, BlockState::Inactive),
    ];
    let mut cut = with_two_that_wait(&[FIRST], blocks);
    cut.trace.drain(..5);
    assert_eq!(verify(&cut).mismatches, 0, "{:?}", verify(&cut).first);
}

#[test]
fn a_segments_sums_are_those_of_its_blocks() {
    let forge: [fn(&mut Segment) -> &mut Option<u64>; 3] =
        [|segment| &mut segment.allocated_bytes, |segment| &mut segment.active_bytes, |segment| &mut segment.requested_bytes];
    for sum in forge {
        let mut forged = good();
        let stated = sum(&mut forged.segments[0]);
        *stated = stated.map(|bytes| bytes + 512);
        assert_eq!(verify(&forged).mismatches, 1);
        *sum(&mut forged.segments[0]) = None;
        assert_eq!(verify(&forged).mismatches, 0, "an older file does not have it");
    }
}

#[test]
fn times_do_not_run_backwards() {
    let mut forged = good();
    forged.trace[3].set_time(Some(1));
    let verdict = verify(&forged);
    assert_eq!((verdict.mismatches, verdict.first.and_then(|first| first.entry)), (1, Some(3)));
    forged.trace[3].set_time(None);
    assert_eq!(verify(&forged).mismatches, 0, "an older file has no times");
}

#[test]
fn a_request_that_failed_has_a_rounded_size() {
    // Before a request fails, the allocator waits for every pending block.
    let blocks = vec![block(BASE, 3 * MIB, BlockState::ActiveAllocated), block(BASE + 3 * MIB, 17 * MIB, BlockState::Inactive)];
    let then = [FIRST, (Action::Alloc, BASE, 3 * MIB), SECOND, (Action::Oom, 0, 24 * MIB)];
    let mut failed = with_two_that_wait(&then, blocks);
    assert_eq!(verify(&failed).mismatches, 0, "{:?}", verify(&failed).first);
    // No entry and no sum shows which multiple of 512 it was.
    for size in [24 * MIB + 1, 24 * MIB - 511, 100] {
        failed.trace.last_mut().expect("the failure").size = size;
        assert!(verify(&failed).mismatches > 0, "{size}");
    }
}
