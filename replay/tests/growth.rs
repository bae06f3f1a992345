//! Tests that verifying takes time proportional to the size of the recording, even if thousands of segments differ, if the
//! pools of hundreds of segments are guessed, or if hundreds of requests fail on separate streams.

use std::time::{Duration, Instant};

use parkade_recording::{Action, Block, BlockState, DeviceRecording, Entry, Segment, StackId};
use parkade_replay::{DeviceVerdict, ReplaySettings, VerifyOptions, verify_device};

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 40;
const APART: u64 = 64 * MIB;

/// A program with made-up segments that need not be possible for any allocator.
#[derive(Default)]
struct Program {
    trace: Vec<Entry>,
    live: Vec<(u64, u64)>,
    cached: Vec<(u64, u64)>,
    made: u64,
}

impl Program {
    fn push(&mut self, action: Action, address: u64, bytes: u64) {
        self.trace.push(Entry::new(action, address, bytes, 0));
    }

    /// Serves a request with a new segment.
    fn serve(&mut self, bytes: u64) {
        self.made += 1;
        let address = BASE + self.made * APART;
        self.push(Action::SegmentAlloc, address, bytes);
        self.push(Action::Alloc, address, bytes);
        self.live.push((address, bytes));
    }

    /// Serves requests for 12 MiB, each with a new segment.
    fn serve_all(&mut self, count: usize) {
        (0..count).for_each(|_| self.serve(12 * MIB));
    }

    fn free_all(&mut self) {
        for (address, bytes) in std::mem::take(&mut self.live) {
            self.push(Action::FreeRequested, address, bytes);
            self.push(Action::FreeCompleted, address, bytes);
            self.cached.push((address, bytes));
        }
    }

    /// Releases `count` cached segments.
    fn release(&mut self, count: usize) {
        for (address, bytes) in self.cached.split_off(self.cached.len() - count) {
            self.push(Action::SegmentFree, address, bytes);
        }
    }

    fn end(self) -> DeviceRecording {
        let segment = |address, size, state| {
            Segment::new(vec![Block { address, size, requested: Some(size), state, stack: StackId::NONE }])
        };
        let mut segments: Vec<Segment> =
            self.live.iter().map(|&(address, size)| segment(address, size, BlockState::ActiveAllocated)).collect();
        segments.extend(self.cached.iter().map(|&(address, size)| segment(address, size, BlockState::Inactive)));
        segments.sort_unstable_by_key(|segment| segment.address);
        DeviceRecording { segments, trace: self.trace, ..DeviceRecording::default() }
    }
}

fn verify(recording: &DeviceRecording) -> (DeviceVerdict, Duration) {
    let settings = ReplaySettings::given("").expect("no settings");
    let options = VerifyOptions { settings, limit_bytes: None, stats_file: None };
    let start = Instant::now();
    let verdict = verify_device(recording, &options, &mut |_| ()).expect("a verdict");
    (verdict, start.elapsed())
}

/// Returns a recording in which a new segment serves every request, although just as many cached segments would fit.
fn ignores_its_cache(segments: usize) -> DeviceRecording {
    let mut program = Program::default();
    for _ in 0..2 {
        program.serve_all(segments);
        program.free_all();
    }
    program.end()
}

/// Returns a recording that has segments of a different stream at its end.
fn other_streams(segments: usize) -> DeviceRecording {
    let mut program = Program::default();
    program.serve_all(segments);
    let mut recording = program.end();
    recording.segments.iter_mut().for_each(|segment| segment.stream = 7);
    recording
}

/// Returns a recording in which segments are released one by one, although all of them could be released at once.
fn gives_back_one_by_one(segments: usize) -> DeviceRecording {
    let mut program = Program::default();
    program.serve_all(segments);
    program.free_all();
    for _ in 0..segments / 2 {
        program.release(1);
        program.serve(MIB * 40);
    }
    program.end()
}

/// Returns a recording with pools that serve a few requests each and are dropped one after another.
fn drops_pools(segments: usize) -> DeviceRecording {
    let mut program = Program::default();
    let mut cached = Vec::new();
    for _ in 0..segments / 8 {
        program.serve_all(8);
        program.free_all();
        cached.extend(std::mem::take(&mut program.cached).chunks(8).map(<[_]>::to_vec));
    }
    for pool in cached {
        program.cached = pool;
        program.release(8);
        program.serve(40 * MIB);
    }
    program.end()
}

/// Makes a kind of program with this many segments.
type Make = fn(usize) -> DeviceRecording;

#[test]
fn thousands_of_segments_that_differ_do_not_take_minutes() {
    let kinds: [(&str, Make); 4] = [
        ("it ignores its cache", ignores_its_cache),
        ("other streams", other_streams),
        ("it gives back one by one", gives_back_one_by_one),
        ("it drops pools", drops_pools),
    ];
    for (name, make) in kinds {
        let (_, few) = verify(&make(500));
        let (verdict, many) = verify(&make(2000));
        assert!(verdict.mismatches > 0, "{name}");
        // There are four times as many segments; the rest of the margin is for a busy machine.
        assert!(many < few * 12 + Duration::from_secs(10), "{name}: {few:?}, with four times as many {many:?}");
    }
}

/// Requests that fail, each on a different stream, while a block in a private pool waits for events.
fn fails_on_many_streams(streams: usize) -> DeviceRecording {
    let mut program = Program::default();
    program.serve_all(1);
    let DeviceRecording { mut segments, .. } = program.end();
    segments[0].pool = Some((0, 1));
    segments[0].blocks[0].state = BlockState::ActivePendingFree;
    let trace = (0..streams as u64).map(|stream| Entry::new(Action::Oom, 1 << 42, 36 * MIB, stream)).collect();
    DeviceRecording { segments, trace, ..DeviceRecording::default() }
}

#[test]
fn hundreds_of_requests_that_fail_on_streams_of_their_own_do_not_take_minutes() {
    let (_, few) = verify(&fails_on_many_streams(200));
    let (verdict, many) = verify(&fails_on_many_streams(800));
    assert_eq!(verdict.mismatches, 0, "{:?}", verdict.first);
    assert!(many < few * 12 + Duration::from_secs(1), "{few:?}, with four times as many {many:?}");
}

/// Returns a large heap, and a block that one pool uses again and again.
fn serves_in_turns(pool: (u64, u64), segments: usize) -> DeviceRecording {
    let mut program = Program::default();
    program.serve_all(segments);
    let others = std::mem::take(&mut program.live);
    program.serve(12 * MIB);
    let (address, bytes) = program.live[0];
    program.free_all();
    for _ in 0..segments {
        for action in [Action::Alloc, Action::FreeRequested, Action::FreeCompleted] {
            program.push(action, address, bytes);
        }
    }
    program.live = others;
    let mut recording = program.end();
    recording
        .segments
        .iter_mut()
        .filter(|segment| segment.blocks[0].address == address)
        .for_each(|segment| segment.pool = Some(pool));
    recording
}

#[test]
fn a_private_pool_whose_blocks_are_used_in_turns_takes_no_longer() {
    let (_, default) = verify(&serves_in_turns((0, 0), 4000));
    let (verdict, private) = verify(&serves_in_turns((0, 1), 4000));
    assert_eq!((verdict.mismatches, verdict.not_in_file.restores), (0, 0), "{:?}", verdict.first);
    assert!(private < default * 4 + Duration::from_secs(1), "{default:?}, with a private pool {private:?}");
}

#[test]
fn the_verdict_says_that_pools_were_not_looked_for_to_the_end() {
    assert!(!verify(&ignores_its_cache(100)).0.not_in_file.gave_up_on_pools);
    assert!(verify(&ignores_its_cache(1000)).0.not_in_file.gave_up_on_pools);
    assert!(!verify(&other_streams(1000)).0.not_in_file.gave_up_on_pools, "no segment is of an unknown pool");
}

#[test]
fn a_hundred_segments_in_pools_that_are_dropped_are_guessed() {
    let (verdict, _) = verify(&drops_pools(128));
    assert_eq!((verdict.mismatches, verdict.not_in_file.gave_up_on_pools), (0, false), "{:?}", verdict.first);
    assert_eq!(verdict.not_in_file.guess.map(|guess| guess.segments.len()), Some(120));
}
