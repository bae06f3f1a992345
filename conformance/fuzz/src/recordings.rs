//! Recordings as values: valid ones that the allocator itself produced are changed in plausible ways and then written
//! as pickles.
//!
//! One in five pickles with damaged bytes is accepted by the reader. Nearly all of the recordings written here are
//! accepted, so they reach the commands.

use std::sync::{Arc, OnceLock};

use parkade::profile::Profile;
use parkade_recording::{
    Action, Annotation, Block, BlockState, DeviceRecording, Entry, Frame, RecordedSettings, Recording, Segment, StackId, Style,
    write,
};
use parkade_replay::export::{ExportOptions, export};
use parkade_replay::{AfterFailure, ReplaySettings, VerifyOptions};

use crate::choices::Choices;
use crate::pickle::{Spelling, spell};
use crate::texts;

/// Returns a recording for the commands: a correct pickle, whatever its content.
pub(crate) fn plausible(choices: &mut Choices<'_>) -> Vec<u8> {
    let recording = changed(choices);
    write(&recording, Style::Python)
}

/// Returns a recording for the reader: in any encoding, with up to three corrupted fields.
pub(crate) fn spelled(choices: &mut Choices<'_>) -> Vec<u8> {
    let recording = changed(choices);
    let spelling = Spelling::any(choices);
    let spoils = if choices.once_in(3) { 1 + choices.below(3) } else { 0 };
    spell(&recording, spelling, spoils, choices)
}

/// Returns a valid recording that parkade wrote.
pub(crate) fn sound(choices: &mut Choices<'_>) -> Vec<u8> {
    let style = if choices.once_in(2) { Style::Cpp } else { Style::Python };
    write(&bases()[choices.below(bases().len())], style)
}

fn changed(choices: &mut Choices<'_>) -> Recording {
    let mut recording = bases()[choices.below(bases().len())].clone();
    let most = if choices.once_in(4) { 24 } else { 5 };
    for _ in 0..choices.below(most) {
        change(&mut recording, choices);
    }
    recording
}

/// The number of valid recordings.
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

/// Makes valid recordings: parkade's allocator runs a random program under random settings, and the run is exported.
///
/// The valid recordings. They depend on nothing else, so a number denotes the same recording in every run.
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

/// A program's requests, each in its own segment, as if the allocator cached nothing.
fn program(choices: &mut Choices<'_>) -> Recording {
    let mut recording = Recording::default();
    let stacks = stacks(&mut recording, choices);
    let mut trace: Vec<Entry> = Vec::new();
    // Address, size and stream of the blocks in use and of the freed blocks that wait for another stream.
    let (mut live, mut waiting) = (Vec::new(), Vec::new());
    let (mut next, mut time_us) = (0x7f00_0000_0000_u64, 1_700_000_000_000_000_u64);
    // Only a few are long, because most mistakes can also occur in short ones.
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
                // Another stream may still be using it.
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

/// Returns the length of the segment that PyTorch requests from the driver (spec 1.6).
fn segment_bytes(requested: u64) -> u64 {
    match requested {
        0..=0x10_0000 => 2 << 20,
        0x10_0001..0xa0_0000 => 20 << 20,
        _ => requested.next_multiple_of(2 << 20),
    }
}

/// Returns the segment of a block that is in use or pending.
fn segment(address: u64, requested: u64, stream: u64, state: BlockState) -> Segment {
    let (total_bytes, rounded, is_large) = (segment_bytes(requested), requested.next_multiple_of(512), requested > 1 << 20);
    // The rest of a segment becomes a separate block only if it is large enough (spec 3.1).
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

/// The maximum number of entries to which a trace grows by repetition: the file stays below 100 KB, so the bound on
/// time applies to it.
const MOST_ENTRIES: usize = 1500;

/// Changes to a recording as a user's program, tool or disk could have made them.
///
/// Makes one change.
fn change(recording: &mut Recording, choices: &mut Choices<'_>) {
    match choices.below(16) {
        0..=7 => match choices.place(recording.devices.len()) {
            Some(device) => trace(recording, device, choices),
            None => recording.devices.push(DeviceRecording::default()),
        },
        8..=11 => match choices.place(recording.devices.len()) {
            Some(device) => change_heap(&mut recording.devices[device], choices),
            None => recording.devices.push(DeviceRecording::default()),
        },
        12 | 13 => settings(recording, choices),
        14 => annotation(recording, choices),
        _ => devices(recording, choices),
    }
}

fn trace(recording: &mut Recording, device: usize, choices: &mut Choices<'_>) {
    if choices.once_in(12) {
        return pools(recording, device, choices);
    }
    let trace = &mut recording.devices[device].trace;
    let Some(at) = choices.place(trace.len()) else {
        return trace.push(entry(choices));
    };
    let other = trace[choices.below(trace.len())];
    match choices.below(16) {
        0 => trace[at].size = choices.size(),
        1 => trace[at].size = other.size,
        2 => trace[at].address = choices.address(),
        3 => trace[at].address = other.address.wrapping_add(512 * choices.below(5) as u64).wrapping_sub(512),
        4 => trace[at].stream = choices.stream(),
        5 => trace[at].action = choices.pick(&Action::ALL),
        6 => trace[at].set_time(choices.pick(&[None, Some(0), Some(1), Some(u64::MAX), other.time()])),
        7 => drop(trace.remove(at)),
        8 => trace.insert(at, other),
        9 => {
            let other = choices.below(trace.len());
            trace.swap(at, other);
        }
        // Drops the beginning, as a ring buffer does.
        10 => drop(trace.drain(..at)),
        11 => trace.truncate(at + 1),
        12 => trace.insert(at, entry(choices)),
        13 => drop(trace.drain(at..(at + choices.below(8)).min(trace.len()))),
        14 => trace[at].stack = other.stack,
        _ => repeat(trace, choices),
    }
}

fn entry(choices: &mut Choices<'_>) -> Entry {
    Entry::new(choices.pick(&Action::ALL), choices.address(), choices.size(), choices.stream())
}

/// Repeats steps many times, each possibly on its own stream or at its own addresses.
fn repeat(trace: &mut Vec<Entry>, choices: &mut Choices<'_>) {
    let once = trace.clone();
    let times = if choices.once_in(60) { MOST_ENTRIES / once.len().max(1) } else { choices.below(3) };
    let (moves, changes_stream) = (choices.once_in(2), choices.once_in(3));
    for time in 1..=times as u64 {
        if trace.len() + once.len() > MOST_ENTRIES {
            break;
        }
        for mut entry in once.iter().copied() {
            if moves && entry.action != Action::Oom {
                entry.address = entry.address.wrapping_add(time << 32);
            }
            if changes_stream {
                entry.stream = time;
            }
            trace.push(entry);
        }
    }
}

fn pools(recording: &mut Recording, device: usize, choices: &mut Choices<'_>) {
    let ids = [(0, 0), (0, 1), (1, 0), (0, 2), (u64::MAX, u64::MAX)];
    let every = 1 + choices.below(4);
    let DeviceRecording { trace, pools, .. } = &mut recording.devices[device];
    for entry in trace.iter_mut().step_by(every) {
        entry.pool = Arc::make_mut(pools).intern(choices.pick(&ids));
    }
}

fn settings(recording: &mut Recording, choices: &mut Choices<'_>) {
    if choices.once_in(6) {
        return recording.settings = None;
    }
    let settings = recording.settings.get_or_insert_with(RecordedSettings::default);
    let flag = choices.pick(&[None, Some(true), Some(false)]);
    match choices.below(8) {
        0 => settings.max_split_size = choices.pick(&[None, Some(-1), Some(0), Some(21 << 20), Some(i64::MIN), Some(i64::MAX)]),
        1 => {
            let thresholds =
                [None, Some(0.0), Some(0.8), Some(1.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY), Some(1e-300)];
            settings.garbage_collection_threshold = choices.pick(&thresholds);
        }
        2 => settings.expandable_segments = flag,
        3 => {
            let divisions = std::array::from_fn(|_| choices.pick(&[0, 1, 2, 4, 8, 3, u64::MAX]));
            settings.roundup_power2_divisions = choices.once_in(2).then_some(divisions);
        }
        4 => settings.release_lock_on_cudamalloc = flag,
        5 => settings.graph_capture_record_stream_reuse = flag,
        6 => settings.has_newer_keys = !settings.has_newer_keys,
        _ => settings.text = Some(texts::settings(choices)),
    }
}

fn annotation(recording: &mut Recording, choices: &mut Choices<'_>) {
    let time_us = match choices.below(4) {
        0 => None,
        1 => Some(choices.pick(&[i64::MIN, -1, 0, i64::MAX])),
        _ => Some(1_700_000_000_000_000 + choices.below(4000) as i64),
    };
    let names =
        ["ProfilerStep#1", "ProfilerStep#18446744073709551616", "Optimizer.step#Adam.step", "## forward", "", "\u{9b}31m\n"];
    let annotation = Annotation {
        name: choices.pick(&names).into(),
        stage: choices.pick(&["START", "END", "start", ""]).into(),
        device: choices.pick(&[None, Some(0), Some(1), Some(-1), Some(i64::MAX)]),
        time_us,
    };
    let at = choices.below(recording.annotations.len() + 1);
    for _ in 0..1 + if choices.once_in(40) { 2000 } else { 0 } {
        recording.annotations.insert(at, annotation.clone());
    }
}

fn devices(recording: &mut Recording, choices: &mut Choices<'_>) {
    let Some(at) = choices.place(recording.devices.len()) else { return };
    match choices.below(4) {
        0 => drop(recording.devices.remove(at)),
        1 => recording.devices[at].segments.clear(),
        2 => recording.devices[at].trace.clear(),
        _ => {
            let device = choices.pick(&[0, 1, 2, 127]);
            let twin = DeviceRecording { device, ..recording.devices[at].clone() };
            recording.devices.retain(|other| other.device != device);
            recording.devices.push(twin);
            recording.devices.sort_by_key(|device| device.device);
        }
    }
}

/// The maximum number of segments that a change adds: the file stays below 100 KB, so the bound on time applies to it.
const MOST_SEGMENTS: u64 = 500;

const STATES: [BlockState; 3] = [BlockState::ActiveAllocated, BlockState::ActivePendingFree, BlockState::Inactive];

/// Changes to the heap at the end of a recording: its segments and their blocks.
///
/// The blocks still fill their segment and segments rarely overlap, because the reader refuses everything else.
///
/// Makes one change.
fn change_heap(device: &mut DeviceRecording, choices: &mut Choices<'_>) {
    let Some(at) = choices.place(device.segments.len()) else {
        return device.segments.push(any_segment(choices));
    };
    match choices.below(16) {
        0 => drop(device.segments.remove(at)),
        1 => device.segments.push(any_segment(choices)),
        2 => many(device, at, choices),
        3 => move_to(&mut device.segments[at], choices.address()),
        4 => {
            let address = device.segments[at].address;
            move_to(&mut device.segments[at], address.wrapping_add(512 * choices.below(3) as u64));
        }
        5..=7 => settings_of(&mut device.segments[at], choices),
        8..=11 => block(&mut device.segments[at], choices),
        12 => split(&mut device.segments[at], choices),
        13 => merge(&mut device.segments[at], choices),
        _ => resize(&mut device.segments[at], choices),
    }
}

/// A segment with one block.
fn any_segment(choices: &mut Choices<'_>) -> Segment {
    let (address, size) = (choices.address(), choices.size());
    let state = choices.pick(&STATES);
    Segment {
        stream: choices.stream(),
        large: size > 1 << 20,
        pool: choices.pick(&[None, Some((0, 0)), Some((0, 1))]),
        expandable: choices.once_in(2),
        ..Segment::new(vec![Block { address, size, requested: choices.once_in(2).then_some(size), state, stack: StackId::NONE }])
    }
}

fn many(device: &mut DeviceRecording, at: usize, choices: &mut Choices<'_>) {
    let count = if choices.once_in(60) { MOST_SEGMENTS } else { choices.below(4) as u64 };
    let (one, changes_stream) = (device.segments[at].clone(), choices.once_in(2));
    let stride = if choices.once_in(2) { one.total_bytes } else { 1 << 34 };
    for number in 1..=count {
        let mut copy = one.clone();
        move_to(&mut copy, one.address.wrapping_add(stride.wrapping_mul(number)));
        if changes_stream {
            copy.stream = number;
        }
        device.segments.push(copy);
    }
}

fn move_to(segment: &mut Segment, address: u64) {
    for block in &mut segment.blocks {
        block.address = block.address.wrapping_sub(segment.address).wrapping_add(address);
    }
    segment.address = address;
}

fn settings_of(segment: &mut Segment, choices: &mut Choices<'_>) {
    let sum = choices.pick(&[None, Some(0), Some(segment.total_bytes), Some(u64::MAX)]);
    match choices.below(7) {
        0 => segment.stream = choices.stream(),
        1 => segment.large = !segment.large,
        2 => segment.pool = choices.pick(&[None, Some((0, 0)), Some((0, 1)), Some((1, 0)), Some((u64::MAX, u64::MAX))]),
        3 => segment.expandable = !segment.expandable,
        4 => segment.allocated_bytes = sum,
        5 => segment.active_bytes = sum,
        _ => segment.requested_bytes = sum,
    }
}

fn block(segment: &mut Segment, choices: &mut Choices<'_>) {
    let Some(at) = choices.place(segment.blocks.len()) else { return };
    let block = &mut segment.blocks[at];
    match choices.below(3) {
        0 => block.state = choices.pick(&STATES),
        1 => block.requested = choices.pick(&[None, Some(0), Some(1), Some(block.size), Some(u64::MAX)]),
        _ => block.requested = Some(choices.size()),
    }
}

fn split(segment: &mut Segment, choices: &mut Choices<'_>) {
    let Some(at) = choices.place(segment.blocks.len()) else { return };
    let whole = segment.blocks[at];
    let first = (512 * (1 + choices.below(64) as u64)).min(whole.size.saturating_sub(1));
    if first == 0 {
        return;
    }
    segment.blocks[at].size = first;
    let rest = Block { address: whole.address.wrapping_add(first), size: whole.size - first, ..whole };
    segment.blocks.insert(at + 1, rest);
}

fn merge(segment: &mut Segment, choices: &mut Choices<'_>) {
    if segment.blocks.len() < 2 {
        return;
    }
    let at = choices.below(segment.blocks.len() - 1);
    let next = segment.blocks.remove(at + 1);
    segment.blocks[at].size = segment.blocks[at].size.wrapping_add(next.size);
}

/// Changes the size of the last block and of its segment.
fn resize(segment: &mut Segment, choices: &mut Choices<'_>) {
    if let Some(last) = segment.blocks.last_mut() {
        let before = last.size;
        last.size = choices.size();
        segment.total_bytes = segment.total_bytes.wrapping_sub(before).wrapping_add(last.size);
    }
}

#[cfg(test)]
mod tests {
    use parkade_replay::verify_device;

    use super::*;

    /// If the recordings were not reproduced, the commands would see only recordings that they
    /// refuse.
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
