//! Finds kinds of entries that the program excluded from a recording (`skip_actions`), and restores them if they follow from
//! the other entries.
//!
//! A kind counts as excluded if the trace has no entries of this kind and contradicts itself without them. This does not
//! happen when the ring buffer has dropped the oldest entries: they precede all others, and the walk backwards compensates for
//! them. Nor does it happen when a trace is damaged, because other entries of the kind remain.
//!
//! Some missing entries follow from the others. A `free_requested` is inserted right before the `free_completed` of its
//! block; the exact place does not matter, because no recorded value depends on it. A `free_completed` is inserted
//! right after its `free_requested`, unless the block is still waiting for another stream at the end. A `segment_alloc`
//! is inserted right before the segment's first block. The completed trace is accepted only if the rules of some
//! PyTorch release lead to every decision in it. The following cannot be inferred: the times at which segments were
//! released, requests, and frees with neither entry.

use std::collections::{BTreeMap, VecDeque};

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade_recording::{Action, BlockState, DeviceRecording, Entry, LeftOut, Recording, Segment};
use rustc_hash::FxHashMap;

use crate::entries::{SEGMENT_ACTIONS, takes_memory};
use crate::error::VerifyError;
use crate::initial_state::Start;
use crate::inputs::ReplaySettings;
use crate::recognition::{Asked, Basis, recognise};

/// Looks for kinds of entries that each device's trace leaves out, and records them in [`DeviceRecording::left_out`].
///
/// If the missing entries can be inferred, the trace is completed, so its entries have different numbers from those in the
/// file. If not, the trace is removed, and only the state at its end remains. A recording that leaves nothing out, or
/// contradicts itself in other ways, is not changed.
pub fn find_left_out(recording: &mut Recording) {
    let settings = ReplaySettings::of_recording(recording.settings.as_ref());
    let policy = settings.map_or_else(|_| PyTorch::new(Settings::default()), |own| PyTorch::of(own.profile, own.settings));
    for place in 0..recording.devices.len() {
        complete(&mut recording.devices[place], &policy);
        let device = &recording.devices[place];
        let is_completed = device.left_out.as_ref().is_some_and(|left_out| left_out.inferred_entries.is_some());
        if is_completed && !is_explained(recording, device) {
            remove_trace(&mut recording.devices[place]);
        } else if device.left_out.is_none() {
            let lacks = lacks_segments(recording, device, &policy);
            if let Some(whole) = lacks {
                leave_out(&mut recording.devices[place], vec![taking_action(&policy)], whole);
            }
        }
    }
}

/// Returns the action by which a program with these settings takes memory.
fn taking_action(policy: &PyTorch) -> Action {
    if policy.settings.expandable_segments { Action::SegmentMap } else { Action::SegmentAlloc }
}

/// Returns the missing kinds, if the trace of a device contradicts itself and has no entry of some kinds.
fn missing(device: &DeviceRecording, recorded: &[Action], policy: &PyTorch) -> Result<(), Option<Vec<Action>>> {
    let missing = match Start::find(device, policy) {
        Ok(_) => return Ok(()),
        Err(VerifyError::Contradiction { missing, .. } | VerifyError::Start { missing, .. }) => missing,
        Err(_) => return Err(None),
    };
    let is_absent = |kinds: &&&[Action]| kinds.iter().all(|kind| !recorded.contains(kind));
    Err(missing.iter().find(is_absent).map(|kinds| match *kinds == SEGMENT_ACTIONS {
        // Memory was taken and released through the actions that the allocator's settings imply.
        true if policy.settings.expandable_segments => vec![Action::SegmentMap, Action::SegmentUnmap],
        true => vec![Action::SegmentAlloc, Action::SegmentFree],
        false => kinds.to_vec(),
    }))
}

fn complete(device: &mut DeviceRecording, policy: &PyTorch) {
    let recorded: Vec<Action> =
        Action::ALL.into_iter().filter(|kind| device.trace.iter().any(|entry| entry.action == *kind)).collect();
    // Without a state at the end, nothing would remain. A trace with entries of every kind lacks none.
    if device.segments.is_empty() || device.trace.is_empty() || recorded.len() == Action::ALL.len() {
        return;
    }
    let mut actions = Vec::new();
    let mut whole = None;
    loop {
        let state = whole.as_ref().unwrap_or(&*device);
        let kinds = match missing(state, &recorded, policy) {
            Ok(()) => break,
            Err(None) if actions.is_empty() => return,
            Err(kinds) => kinds.unwrap_or_default(),
        };
        let trace = match kinds.as_slice() {
            [Action::FreeRequested] if !actions.contains(&Action::FreeRequested) => with_requests(&state.trace, &device.segments),
            [Action::FreeCompleted] if !actions.contains(&Action::FreeCompleted) => {
                with_completions(&state.trace, &device.segments)
            }
            [Action::SegmentAlloc] if !actions.contains(&Action::SegmentAlloc) => {
                with_segments(&state.trace, &device.segments, &[])
            }
            _ => {
                actions.extend(kinds.into_iter().filter(|kind| !recorded.contains(kind)));
                actions.dedup();
                return leave_out(device, actions, None);
            }
        };
        actions.extend(kinds);
        whole = Some(DeviceRecording { trace, ..state.clone() });
    }
    if let Some(whole) = whole {
        leave_out(device, actions, Some(whole.trace));
    }
}

/// Records what is left out, and replaces the recorded trace with the completed one or removes it.
fn leave_out(device: &mut DeviceRecording, actions: Vec<Action>, whole: Option<Vec<Entry>>) {
    let recorded_entries = device.trace.len();
    let inferred_entries = whole.as_ref().map(|whole| whole.len() - recorded_entries);
    device.trace = whole.unwrap_or_default();
    device.left_out = Some(LeftOut { actions, recorded_entries, inferred_entries });
}

/// Removes a trace that was completed wrongly.
fn remove_trace(device: &mut DeviceRecording) {
    device.trace = Vec::new();
    if let Some(left_out) = &mut device.left_out {
        left_out.inferred_entries = None;
    }
}

/// Returns whether some release makes every decision in the trace.
fn is_explained(recording: &Recording, device: &DeviceRecording) -> bool {
    recognise(recording, &[device], &Asked::default()).is_ok_and(|found| found.basis == Basis::Replay)
}

/// Returns whether the entries that take memory are left out even though all memory could have been there before, as in a
/// trace that begins late; also returns the completed trace, if there is one. Only the decisions show this: no release makes
/// the trace's decisions with that much memory available, and either a release makes the completed trace's decisions, or
/// nothing was in use before the first entry, as when a program begins.
fn lacks_segments(recording: &Recording, device: &DeviceRecording, policy: &PyTorch) -> Option<Option<Vec<Entry>>> {
    if device.trace.is_empty() || device.segments.is_empty() || device.trace.iter().any(takes_memory) {
        return None;
    }
    let early: Vec<u64> = Start::find(device, policy).ok()?.early_requests().iter().map(|block| block.address).collect();
    let whole = DeviceRecording { trace: with_segments(&device.trace, &device.segments, &early), ..device.clone() };
    let is_longer = whole.trace.len() > device.trace.len();
    if !(is_longer || early.is_empty()) || is_explained(recording, device) {
        None
    } else if is_longer && is_explained(recording, &whole) {
        Some(Some(whole.trace))
    } else {
        early.is_empty().then_some(None)
    }
}

/// Returns the trace with a `segment_alloc` right before the first block of each segment, if that block lies at the segment's
/// beginning: the allocator takes memory when a request needs it, and cuts the block from the segment's beginning. All other
/// segments existed before, as did those with blocks at the addresses `early`.
fn with_segments(trace: &[Entry], segments: &[Segment], early: &[u64]) -> Vec<Entry> {
    // By address: the number of entries before the segment is released, and the segment's bytes; the earliest first.
    let mut lives: BTreeMap<u64, VecDeque<(usize, u64)>> = BTreeMap::new();
    for (at, entry) in trace.iter().enumerate().filter(|(_, entry)| entry.action == Action::SegmentFree) {
        lives.entry(entry.address).or_default().push_back((at, entry.size));
    }
    for segment in segments.iter().filter(|segment| !segment.expandable) {
        lives.entry(segment.address).or_default().push_back((trace.len(), segment.total_bytes));
    }
    for &address in early {
        first_use(&mut lives, 0, address);
    }
    let mut whole = Vec::with_capacity(trace.len());
    for (at, &entry) in trace.iter().enumerate() {
        let is_of_block = matches!(entry.action, Action::Alloc | Action::FreeRequested | Action::FreeCompleted);
        if let Some(bytes) = is_of_block.then(|| first_use(&mut lives, at, entry.address)).flatten()
            && entry.action == Action::Alloc
        {
            let mut segment = of_action(Action::SegmentAlloc, entry);
            segment.size = bytes;
            whole.push(segment);
        }
        whole.push(entry);
    }
    whole
}

/// Returns the bytes of the segment that begins at an address, if no block has used it before. Marks that segment, or the one
/// around the address, as used.
fn first_use(lives: &mut BTreeMap<u64, VecDeque<(usize, u64)>>, at: usize, address: u64) -> Option<u64> {
    loop {
        let (&begin, of_address) = lives.range_mut(..=address).next_back()?;
        while of_address.front().is_some_and(|&(end, _)| end < at) {
            of_address.pop_front();
        }
        let Some((_, bytes)) = of_address.front_mut() else {
            // The address may lie in a larger segment that begins before it.
            lives.remove(&begin);
            continue;
        };
        let unused = std::mem::take(bytes);
        return (begin == address && unused > 0).then_some(unused);
    }
}

/// Returns the trace with a `free_requested` right before each `free_completed`, and at the end for blocks that are still
/// waiting to become free.
fn with_requests(trace: &[Entry], segments: &[Segment]) -> Vec<Entry> {
    let mut whole = Vec::with_capacity(trace.len().saturating_mul(2));
    let mut live = FxHashMap::default();
    for &entry in trace {
        if entry.action == Action::FreeCompleted {
            whole.push(of_action(Action::FreeRequested, entry));
            live.remove(&entry.address);
        } else if entry.action == Action::Alloc {
            live.insert(entry.address, entry);
        }
        whole.push(entry);
    }
    let waiting = waiting(segments).filter_map(|address| live.get(&address));
    let time = trace.last().and_then(Entry::time);
    whole.extend(waiting.map(|alloc| {
        let mut request = of_action(Action::FreeRequested, *alloc);
        request.set_time(time);
        request
    }));
    whole
}

/// Returns the trace with a `free_completed` right after each `free_requested`, except for blocks that are still waiting to
/// become free at the end.
fn with_completions(trace: &[Entry], segments: &[Segment]) -> Vec<Entry> {
    let mut last: FxHashMap<u64, Option<usize>> = waiting(segments).map(|address| (address, None)).collect();
    for (at, entry) in trace.iter().enumerate() {
        if entry.action == Action::FreeRequested
            && let Some(last) = last.get_mut(&entry.address)
        {
            *last = Some(at);
        }
    }
    let mut whole = Vec::with_capacity(trace.len().saturating_mul(2));
    for (at, &entry) in trace.iter().enumerate() {
        whole.push(entry);
        if entry.action == Action::FreeRequested && last.get(&entry.address) != Some(&Some(at)) {
            whole.push(of_action(Action::FreeCompleted, entry));
        }
    }
    whole
}

fn of_action(action: Action, mut entry: Entry) -> Entry {
    entry.action = action;
    entry
}

/// Returns the addresses of the blocks that are waiting to become free at the end.
fn waiting(segments: &[Segment]) -> impl Iterator<Item = u64> {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state == BlockState::ActivePendingFree).map(|block| block.address)
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Block, StackId};

    use super::*;
    use crate::{VerifyOptions, verify_device};

    const MIB: u64 = 1 << 20;
    const BASE: u64 = 1 << 40;
    const OTHER: u64 = 2 << 40;

    fn block(address: u64, size: u64, state: BlockState) -> Block {
        Block { address, size, requested: Some(size), state, stack: StackId::NONE }
    }

    fn entry(action: Action, address: u64, mib: u64) -> Entry {
        Entry::new(action, address, mib * MIB, 0)
    }

    fn free(address: u64, mib: u64) -> [Entry; 2] {
        [entry(Action::FreeRequested, address, mib), entry(Action::FreeCompleted, address, mib)]
    }

    /// Returns a recording in which two blocks in one segment are allocated and freed; one of them exists again at the end
    /// and is waiting for another stream. Another segment is released.
    fn whole() -> Recording {
        use Action::{Alloc, SegmentAlloc, SegmentFree};
        let mut trace = vec![entry(SegmentAlloc, BASE, 20), entry(Alloc, BASE, 5), entry(Alloc, BASE + 5 * MIB, 6)];
        trace.extend(free(BASE, 5));
        for _ in 0..2 {
            trace.extend([entry(SegmentAlloc, OTHER, 30), entry(Alloc, OTHER, 30)]);
            trace.extend(free(OTHER, 30));
            trace.push(entry(SegmentFree, OTHER, 30));
        }
        trace.push(entry(Alloc, BASE, 3));
        trace.extend(free(BASE + 5 * MIB, 6));
        trace.push(entry(Action::FreeRequested, BASE, 3));
        let segment = Segment::new(vec![
            block(BASE, 3 * MIB, BlockState::ActivePendingFree),
            block(BASE + 3 * MIB, 17 * MIB, BlockState::Inactive),
        ]);
        let device = DeviceRecording { trace, segments: vec![segment], ..DeviceRecording::default() };
        Recording { devices: vec![device], ..Recording::default() }
    }

    fn without(kinds: &[Action]) -> Recording {
        let mut recording = whole();
        recording.devices[0].trace.retain(|entry| !kinds.contains(&entry.action));
        find_left_out(&mut recording);
        recording
    }

    fn mismatches(recording: &Recording) -> u64 {
        let settings = ReplaySettings::of_recording(None).expect("defaults");
        let own = VerifyOptions { settings, limit_bytes: None, stats_file: None };
        verify_device(&recording.devices[0], &own, &mut |_| ()).expect("it can be replayed").mismatches
    }

    #[test]
    fn a_whole_recording_is_not_changed() {
        assert_eq!(without(&[]), whole());
        assert_eq!(mismatches(&whole()), 0);
        // A recording whose oldest entries are missing, as in a ring buffer, is not changed either, wherever the remaining
        // part begins.
        for first in 0..whole().devices[0].trace.len() {
            let mut recording = whole();
            recording.devices[0].trace.drain(..first);
            let before = recording.clone();
            find_left_out(&mut recording);
            assert_eq!(recording, before, "from entry {first}");
        }
    }

    #[test]
    fn either_half_of_a_free_follows_from_the_other() {
        for (kind, inferred) in [(Action::FreeRequested, 5), (Action::FreeCompleted, 4)] {
            let recording = without(&[kind]);
            let device = &recording.devices[0];
            assert_eq!(device.trace, whole().devices[0].trace, "{kind:?}");
            let recorded_entries = device.trace.len() - inferred;
            let left_out = LeftOut { actions: vec![kind], recorded_entries, inferred_entries: Some(inferred) };
            assert_eq!(device.left_out, Some(left_out));
        }
    }

    #[test]
    fn segments_follow_from_their_first_blocks() {
        let recording = without(&[Action::SegmentAlloc]);
        assert_eq!(recording.devices[0].trace, whole().devices[0].trace);
        let left_out = recording.devices[0].left_out.as_ref().map(|left_out| (&*left_out.actions, left_out.inferred_entries));
        assert_eq!(left_out, Some(([Action::SegmentAlloc].as_slice(), Some(3))));
    }

    #[test]
    fn of_other_kinds_the_state_at_the_end_remains() {
        use Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc, SegmentFree};
        let cases: [(&[Action], &[Action]); 6] = [
            (&[Alloc], &[Alloc]),
            (&[FreeRequested, FreeCompleted], &[FreeRequested, FreeCompleted]),
            (&[SegmentFree], &[SegmentFree]),
            (&[SegmentAlloc, SegmentFree], &[SegmentAlloc, SegmentFree]),
            (&[FreeRequested, SegmentFree], &[FreeRequested, SegmentFree]),
            (&[FreeRequested, FreeCompleted, SegmentAlloc, SegmentFree], &[FreeRequested, FreeCompleted]),
        ];
        for (kinds, found) in cases {
            let recording = without(kinds);
            let device = &recording.devices[0];
            assert!(device.trace.is_empty(), "{kinds:?}");
            assert_eq!(device.segments, whole().devices[0].segments);
            let left_out = device.left_out.as_ref().expect("something is left out");
            assert_eq!((left_out.actions.as_slice(), left_out.inferred_entries), (found, None), "{kinds:?}");
        }
    }

    /// A program could have found all its memory there when it began; only its decisions contradict this.
    #[test]
    fn segments_are_missed_where_no_release_would_have_chosen_so() {
        use BlockState::{ActiveAllocated, Inactive};
        // Takes 5 MiB and then 16 MiB, from segments of 16 MiB (at BASE) and 20 MiB.
        let state = |first: u64, second: u64, blocks: [&[(u64, BlockState)]; 2]| {
            let of = |address: u64, blocks: &[(u64, BlockState)]| {
                let mut at = address;
                let placed = blocks.iter().map(|&(mib, state)| {
                    at += mib * MIB;
                    block(at - mib * MIB, mib * MIB, state)
                });
                Segment::new(placed.collect())
            };
            let trace = vec![entry(Action::Alloc, first, 5), entry(Action::Alloc, second, 16)];
            let segments = vec![of(BASE, blocks[0]), of(OTHER, blocks[1])];
            let device = DeviceRecording { trace, segments, ..DeviceRecording::default() };
            Recording { devices: vec![device], ..Recording::default() }
        };
        let found = |mut recording: Recording| {
            find_left_out(&mut recording);
            let device = recording.devices.remove(0);
            device.left_out.map(|left_out| (left_out.actions, left_out.inferred_entries, device.trace.len()))
        };
        // A cache that existed before would have provided the smallest segment that is large enough.
        let whole: &[(u64, BlockState)] = &[(16, ActiveAllocated)];
        let fits = state(BASE, OTHER, [&[(5, ActiveAllocated), (11, Inactive)], &[(16, ActiveAllocated), (4, Inactive)]]);
        assert_eq!(found(fits), None);
        let lacks = state(OTHER, BASE, [whole, &[(5, ActiveAllocated), (15, Inactive)]]);
        assert_eq!(found(lacks), Some((vec![Action::SegmentAlloc], Some(2), 4)));
        // No allocator cuts a block from the end of a new segment.
        let neither = state(OTHER + 15 * MIB, BASE, [whole, &[(15, Inactive), (5, ActiveAllocated)]]);
        assert_eq!(found(neither), Some((vec![Action::SegmentAlloc], None, 0)));
    }

    #[test]
    fn damage_is_not_taken_for_what_is_left_out() {
        let mut recording = whole();
        recording.devices[0].trace.remove(3);
        let before = recording.clone();
        find_left_out(&mut recording);
        assert_eq!(recording, before);
    }
}
