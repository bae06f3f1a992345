//! Changes to the heap at the end of a recording: its segments and their blocks.
//!
//! The blocks of a segment still fill it and segments seldom overlap, because the reader refuses everything else.

use parkade_recording::{Block, BlockState, DeviceRecording, Segment, StackId};

use crate::choices::Choices;

/// The most segments that a change adds: the file stays below 100 KB, so the time that it takes is bounded.
const MOST_SEGMENTS: u64 = 500;

const STATES: [BlockState; 3] = [BlockState::ActiveAllocated, BlockState::ActivePendingFree, BlockState::Inactive];

/// Makes one change.
pub(super) fn change(device: &mut DeviceRecording, choices: &mut Choices<'_>) {
    let Some(at) = choices.place(device.segments.len()) else {
        return device.segments.push(segment(choices));
    };
    match choices.below(16) {
        0 => drop(device.segments.remove(at)),
        1 => device.segments.push(segment(choices)),
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

/// A segment of one block.
fn segment(choices: &mut Choices<'_>) -> Segment {
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

/// Gives the last block another size, and the segment with it.
fn resize(segment: &mut Segment, choices: &mut Choices<'_>) {
    if let Some(last) = segment.blocks.last_mut() {
        let before = last.size;
        last.size = choices.size();
        segment.total_bytes = segment.total_bytes.wrapping_sub(before).wrapping_add(last.size);
    }
}
