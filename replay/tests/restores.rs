//! Tests that the replay infers restored checkpoints of private pools if, and only if, requests do not explain the blocks.

use std::collections::BTreeMap;
use std::path::Path;

use parkade_recording::{Action, Block, BlockState, DeviceRecording, Entry, Segment, StackId, read_file};
use parkade_replay::{DeviceVerdict, ReplaySettings, StatsFile, VerifyError, VerifyOptions, verify_device};

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 40;
const POOL: (u64, u64) = (0, 1);
const REST: u64 = 2 * MIB - 1536;

type Part = (Action, u64, u64);

const MAKE: Part = (Action::SegmentAlloc, 0, 2 * MIB);

fn alloc(at: u64, size: u64) -> Part {
    (Action::Alloc, at, size)
}

fn free(at: u64, size: u64) -> [Part; 2] {
    [(Action::FreeRequested, at, size), (Action::FreeCompleted, at, size)]
}

/// Returns a program with one small segment in this pool, these entries, and these blocks at the end.
fn program(pool: (u64, u64), parts: &[Part], ends: &[(u64, BlockState)]) -> DeviceRecording {
    let trace = parts.iter().map(|&(action, at, size)| Entry::new(action, BASE + at, size, 0)).collect();
    let mut address = BASE;
    let block = |&(size, state): &(u64, BlockState)| {
        address += size;
        Block { address: address - size, size, requested: Some(size), state, stack: StackId::NONE }
    };
    let segment = Segment {
        pool: Some(pool),
        large: false,
        allocated_bytes: None,
        active_bytes: None,
        requested_bytes: None,
        ..Segment::new(ends.iter().map(block).collect())
    };
    DeviceRecording { segments: vec![segment], trace, ..DeviceRecording::default() }
}

/// Returns a trace in which two blocks are allocated and freed, and a checkpoint with both of them is restored.
fn restored() -> Vec<Part> {
    let made = [MAKE, alloc(0, 512), alloc(512, 1024)];
    let restored = [alloc(0, 512), alloc(512, 1024), alloc(1536, REST)];
    [&made[..], &free(0, 512), &free(512, 1024), &restored, &free(1536, REST)].concat()
}

const BOTH: [(u64, BlockState); 3] =
    [(512, BlockState::ActiveAllocated), (1024, BlockState::ActiveAllocated), (REST, BlockState::Inactive)];

fn options(settings: ReplaySettings, stats_file: Option<StatsFile>) -> VerifyOptions {
    VerifyOptions { settings, limit_bytes: None, stats_file }
}

fn verify(recording: &DeviceRecording) -> Result<DeviceVerdict, VerifyError> {
    verify_device(recording, &options(ReplaySettings::given("").expect("no settings"), None), &mut |_| ())
}

fn is_seen(recording: &DeviceRecording) -> bool {
    verify(recording).map_or(true, |verdict| verdict.mismatches > 0)
}

#[test]
fn a_restore_is_inferred_and_counted() {
    let once = restored();
    let verdict = verify(&program(POOL, &once, &BOTH)).expect("a verdict");
    assert_eq!((verdict.mismatches, &verdict.first), (0, &None));
    assert_eq!((verdict.not_in_file.restores, verdict.decisions), (1, once.len() as u64 + 4));
    let twice = [&once[..], &free(0, 512), &free(512, 1024), &once[7..]].concat();
    let verdict = verify(&program(POOL, &twice, &BOTH)).expect("a verdict");
    assert_eq!((verdict.mismatches, verdict.not_in_file.restores), (0, 2), "{:?}", verdict.first);
}

#[test]
fn requests_that_explain_the_blocks_are_no_restore() {
    let requests = restored()[..9].to_vec();
    let verdict = verify(&program(POOL, &requests, &BOTH)).expect("a verdict");
    assert_eq!((verdict.mismatches, verdict.not_in_file.restores), (0, 0), "{:?}", verdict.first);
}

#[test]
fn what_no_restore_leaves_is_seen() {
    assert!(is_seen(&program((0, 0), &restored(), &BOTH)), "the default pool has no checkpoints");
    let (last, freed) = (9, 10..12);
    let mut shorter = restored();
    shorter[last].2 -= 512;
    assert!(is_seen(&program(POOL, &shorter, &BOTH)), "the segment's end is missing");
    let mut moved = restored();
    moved[last].1 += 512;
    moved[freed.clone()].iter_mut().for_each(|part| part.1 += 512);
    assert!(is_seen(&program(POOL, &moved, &BOTH)), "there is a gap");
    let mut odd = restored();
    odd[last].2 -= 100;
    assert!(is_seen(&program(POOL, &odd, &BOTH)), "a restore requests whole blocks");
    let in_use = [(512, BlockState::ActiveAllocated), (1024, BlockState::ActiveAllocated), (REST, BlockState::ActiveAllocated)];
    let kept = restored()[..freed.start].to_vec();
    assert!(is_seen(&program(POOL, &kept, &in_use)), "nobody ever had the last block");
    assert!(!is_seen(&program(POOL, &kept[1..], &in_use)), "somebody may have had it before the recording began");
    assert!(is_seen(&program(POOL, &kept, &BOTH)), "nothing frees the last block");
    // A restore frees everything that the pool has in use.
    let beside: Vec<Part> =
        [&[MAKE, alloc(0, 512), alloc(512, 1024)][..], &free(0, 512), &[alloc(0, 512)], &free(0, 512)].concat();
    let partly = [&beside[..], &[alloc(1536, REST)], &free(1536, REST)].concat();
    let ends = [(512, BlockState::Inactive), (1024, BlockState::ActiveAllocated), (REST, BlockState::Inactive)];
    assert!(is_seen(&program(POOL, &partly, &ends)));
}

/// Returns a recording with two segments of a pool, both free again, and then a block that fills the second or the first
/// segment.
fn chosen(second: bool) -> DeviceRecording {
    let (size, far) = (22 * MIB, 64 * MIB);
    let made = [0, far].map(|at| [(Action::SegmentAlloc, at, size), alloc(at, size)]).concat();
    let at = if second { far } else { 0 };
    let parts = [&made[..], &free(0, size), &free(far, size), &[alloc(at, size)], &free(at, size)].concat();
    let mut recording = program(POOL, &parts, &[(size, BlockState::Inactive)]);
    recording.segments[0].large = true;
    let mut other = recording.segments[0].clone();
    (other.address, other.blocks[0].address) = (other.address + far, other.blocks[0].address + far);
    recording.segments.push(other);
    recording
}

/// The pool never had the second segment alone, so no checkpoint explains that it is used before the first.
#[test]
fn a_checkpoint_has_all_segments_of_its_time() {
    assert!(!is_seen(&chosen(false)));
    assert!(is_seen(&chosen(true)));
}

/// Returns the numbers of a flat JSON dictionary.
fn numbers(text: &str) -> BTreeMap<String, i64> {
    let pairs = text.trim().trim_matches(['{', '}']).split(',').map(|pair| pair.split_once(':').expect("a key and a number"));
    pairs.map(|(key, value)| (key.trim().trim_matches('"').to_owned(), value.trim().parse().expect("a number"))).collect()
}

/// CUDA graph trees on an H200: blocks of up to 33,554,432 bytes in six segments, or in two expandable segments.
#[test]
fn recordings_of_programs_that_restore_checkpoints_verify() {
    for name in ["compile_reduce_overhead.default", "compile_reduce_overhead.expandable"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings/checkpoints").join(name);
        let recording = read_file(path.with_added_extension("pickle.xz")).expect("the recording");
        let stats = std::fs::read_to_string(path.with_added_extension("stats.json")).expect("its stats");
        let stats = StatsFile::new(numbers(&stats)).expect("stats");
        let settings = ReplaySettings::of_recording(recording.settings.as_ref()).expect("settings");
        let options = options(settings, Some(stats));
        let device = recording.devices.iter().find(|device| !device.trace.is_empty()).expect("a trace");
        let verdict = verify_device(device, &options, &mut |_| ()).expect("a verdict");
        assert_eq!((verdict.mismatches, &verdict.first, verdict.not_in_file.restores), (0, &None, 1), "{name}");
        let check = verdict.stats_check.expect("stats were given");
        assert_eq!((check.compared, check.differences.len()), (122, 0), "{name}");
        // Moves each entry of the restore, and the free before it, by 512 bytes: nothing else explains them.
        for at in (404..440).filter(|&at| device.trace[at].action == Action::Alloc) {
            let mut forged = device.clone();
            let from = forged.trace[at].address;
            let end = (at + 1..forged.trace.len())
                .find(|&other| forged.trace[other].action == Action::FreeCompleted && forged.trace[other].address == from);
            for entry in forged.trace[at..=end.expect("it is freed")].iter_mut().filter(|entry| entry.address == from) {
                entry.address += 512;
            }
            let is_seen = verify_device(&forged, &options, &mut |_| ()).map_or(true, |verdict| verdict.mismatches > 0);
            assert!(is_seen, "{name}: entry {at} moved");
        }
    }
}
