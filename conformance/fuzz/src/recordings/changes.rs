//! Changes to a recording that somebody's program, tool or disk could have made.

use std::sync::Arc;

use parkade_recording::{Action, Annotation, DeviceRecording, Entry, RecordedSettings, Recording};

use super::heap_changes;
use crate::choices::Choices;
use crate::texts;

/// The most entries that a trace grows to by repetition: the file stays below 100 KB, so the time that it takes is bounded.
const MOST_ENTRIES: usize = 1500;

/// Makes one change.
pub(super) fn change(recording: &mut Recording, choices: &mut Choices<'_>) {
    match choices.below(16) {
        0..=7 => match choices.place(recording.devices.len()) {
            Some(device) => trace(recording, device, choices),
            None => recording.devices.push(DeviceRecording::default()),
        },
        8..=11 => match choices.place(recording.devices.len()) {
            Some(device) => heap_changes::change(&mut recording.devices[device], choices),
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
        // A ring buffer loses the beginning.
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

/// Many steps that are alike, perhaps each on a stream of its own or at addresses of its own.
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
