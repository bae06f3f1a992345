//! Sound recordings: a random program is run by parkade's allocator under random settings, and the run is exported.

use std::sync::OnceLock;

use parkade::profile::Profile;
use parkade_recording::{Action, Annotation, Block, BlockState, DeviceRecording, Entry, Frame, Recording, Segment, StackId};
use parkade_replay::export::{ExportOptions, export};
use parkade_replay::{AfterFailure, ReplaySettings, VerifyOptions};

use crate::choices::Choices;

/// How many there are.
const BASES: u64 = 96;

const SETTINGS: [&str; 12] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "garbage_collection_threshold:0.6",
    "roundup_power2_divisions:4",
    "max_split_size_mb:21,garbage_collection_threshold:0.8",
    "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:8]",
    "per_process_memory_fraction:0.5",
    "max_non_split_rounding_mb:200",
    "expandable_segments:True,garbage_collection_threshold:0.5",
    "backend:native",
    "large_segment_size_mb:64",
];

const CALLS: [(&str, &str); 8] = [
    ("/opt/torch/nn/modules/linear.py", "forward"),
    ("/opt/torch/optim/adam.py", "step"),
    ("/opt/torch/autograd/graph.py", "backward"),
    ("train.py", "main"),
    ("train.py", "load_batch"),
    ("model.py", "__init__"),
    ("??", "at::native::empty"),
    ("/opt/torch/utils/checkpoint.py", "recompute"),
];

/// The sound recordings. They depend on nothing, so the same number is the same recording in every run.
pub(crate) fn bases() -> &'static [Recording] {
    static ALL: OnceLock<Vec<Recording>> = OnceLock::new();
    ALL.get_or_init(|| (0..BASES).filter_map(base).collect())
}

fn base(number: u64) -> Option<Recording> {
    let mut bytes = vec![0; 8192];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    let mut choices = Choices::new(&bytes);
    let program = program(&mut choices);
    let is_newer = choices.once_in(4);
    let profile = if is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
    let settings = ReplaySettings::given_as(profile, choices.pick(&SETTINGS)).or_else(|_| ReplaySettings::given("")).ok()?;
    let own = VerifyOptions { settings: ReplaySettings::given("").ok()?, limit_bytes: None, stats_file: None };
    let requested: u64 = program.devices[0].trace.iter().map(|entry| entry.size).sum();
    let options = ExportOptions {
        own,
        profile,
        settings: settings.settings,
        limit_bytes: choices.once_in(3).then(|| requested / 16 + (2 << 20)),
        capacity_bytes: None,
        after_failure: if choices.once_in(2) { AfterFailure::Stop } else { AfterFailure::GoOn },
        device: None,
    };
    export(&program, &options, &mut |_| ()).ok().map(|exported| exported.recording)
}

/// A program's requests: each in a segment of its own, as if the allocator cached nothing.
fn program(choices: &mut Choices<'_>) -> Recording {
    let mut recording = Recording::default();
    let stacks = stacks(&mut recording, choices);
    let mut trace: Vec<Entry> = Vec::new();
    // Address, size and stream of what is in use, and of what was freed and waits for another stream.
    let (mut live, mut waiting) = (Vec::new(), Vec::new());
    let (mut next, mut time_us) = (0x7f00_0000_0000_u64, 1_700_000_000_000_000_u64);
    // Few are long: most of what can be wrong is wrong in short ones too.
    let (steps, most) = if choices.once_in(3) { (1 + choices.below(4), 20) } else { (1 + choices.below(2), 6) };
    for step in 0..steps {
        annotate(&mut recording, "START", step, time_us);
        for _ in 0..2 + choices.below(most) {
            time_us += 1 + choices.below(50) as u64;
            let mut add = |action, address, size, stream, stack| {
                let mut entry = Entry::new(action, address, size, stream);
                entry.set_time(Some(time_us));
                entry.stack = stack;
                trace.push(entry);
            };
            let stack = choices.pick(&stacks);
            if choices.below(5) < 3 || live.is_empty() {
                let size = request(choices);
                let (length, stream) = (segment_bytes(size), choices.pick(&[0, 0, 0, 0x55aa_0000]));
                add(Action::SegmentAlloc, next, length, stream, stack);
                add(Action::Alloc, next, size, stream, stack);
                live.push((next, size, stream));
                next += length;
            } else {
                let (address, size, stream) = live.swap_remove(choices.below(live.len()));
                add(Action::FreeRequested, address, size, stream, stack);
                // Another stream may still use it.
                waiting.push((address, size, stream));
                while !choices.once_in(4) {
                    let Some((address, size, stream)) = waiting.pop() else { break };
                    add(Action::FreeCompleted, address, size, stream, StackId::NONE);
                    add(Action::SegmentFree, address, segment_bytes(size), stream, StackId::NONE);
                }
            }
        }
        annotate(&mut recording, "END", step, time_us);
    }
    let held = |state| move |&(address, size, stream): &(u64, u64, u64)| segment(address, size, stream, state);
    let mut segments: Vec<Segment> = live.iter().map(held(BlockState::ActiveAllocated)).collect();
    segments.extend(waiting.iter().map(held(BlockState::ActivePendingFree)));
    segments.sort_by_key(|segment| segment.address);
    recording.devices.push(DeviceRecording { segments, trace, ..DeviceRecording::default() });
    recording
}

/// The length of the segment that PyTorch asks the driver for (spec 1.6).
fn segment_bytes(requested: u64) -> u64 {
    match requested {
        0..=0x10_0000 => 2 << 20,
        0x10_0001..0xa0_0000 => 20 << 20,
        _ => requested.next_multiple_of(2 << 20),
    }
}

/// The segment of a block in use, or of one that waits.
fn segment(address: u64, requested: u64, stream: u64, state: BlockState) -> Segment {
    let (total_bytes, rounded, is_large) = (segment_bytes(requested), requested.next_multiple_of(512), requested > 1 << 20);
    // What is left of a segment is a block of its own only if it is worth it (spec 3.1).
    let is_split = total_bytes - rounded > if is_large { 1 << 20 } else { 511 };
    let size = if is_split { rounded } else { total_bytes };
    let block = |address, size, requested, state| Block { address, size, requested, state, stack: StackId::NONE };
    let mut blocks = vec![block(address, size, Some(requested), state)];
    if is_split {
        blocks.push(block(address + size, total_bytes - size, None, BlockState::Inactive));
    }
    Segment { stream, large: is_large, ..Segment::new(blocks) }
}

fn request(choices: &mut Choices<'_>) -> u64 {
    match choices.below(6) {
        0 => 1 + choices.below(4096) as u64,
        1 | 2 => 512 * (1 + choices.below(4000) as u64),
        3 => (1 << 20) * (1 + choices.below(30) as u64),
        _ => 1_000_000 + choices.below(40_000_000) as u64,
    }
}

fn stacks(recording: &mut Recording, choices: &mut Choices<'_>) -> Vec<StackId> {
    let mut stacks = vec![StackId::NONE];
    for _ in 0..choices.below(8) {
        let calls: Vec<u32> = (0..1 + choices.below(5))
            .map(|_| {
                let (filename, name) = choices.pick(&CALLS);
                let line = choices.below(40) as u32;
                recording.stacks.intern_frame(Frame { filename: filename.into(), line, name: name.into() })
            })
            .collect();
        stacks.push(recording.stacks.intern_stack(&calls));
    }
    stacks
}

fn annotate(recording: &mut Recording, stage: &str, step: usize, time_us: u64) {
    let name = format!("ProfilerStep#{step}");
    recording.annotations.push(Annotation {
        name: name.into(),
        stage: stage.into(),
        device: Some(0),
        time_us: i64::try_from(time_us).ok(),
    });
}

#[cfg(test)]
mod tests {
    use parkade_replay::verify_device;

    use super::*;

    /// Otherwise the commands would see only recordings that are refused.
    #[test]
    fn bases_are_reproduced() {
        assert_eq!(bases().len() as u64, BASES);
        for (number, recording) in bases().iter().enumerate() {
            let settings = ReplaySettings::of_recording(recording.settings.as_ref()).expect("settings");
            let options = VerifyOptions { settings, limit_bytes: None, stats_file: None };
            for device in &recording.devices {
                verify_device(device, &options, &mut |_| ()).unwrap_or_else(|error| panic!("base {number}: {error}"));
            }
        }
        let has = |action| bases().iter().any(|base| base.devices[0].trace.iter().any(|entry| entry.action == action));
        assert!([Action::Oom, Action::SegmentMap, Action::SegmentFree, Action::FreeCompleted].into_iter().all(has));
    }
}
