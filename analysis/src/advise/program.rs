//! One device's program: its requests, where its segments lie, and what it held at its fullest moment.

use rustc_hash::FxHashMap;

use parkade_recording::{DeviceRecording, StackId};
use parkade_replay::{Operation, Requests, VerifyError, VerifyOptions, learned_addresses};
use parkade_sim::address::LearnedAddressSpace;

/// Every block is a multiple of this many bytes (spec 1.1), whatever the settings.
const MIN_BLOCK_BYTES: u64 = 512;

/// The requests of one traced device, ready to be replayed.
#[derive(Clone, Debug)]
pub struct Program {
    /// The device's number.
    pub device: u32,
    /// Entries of its trace.
    pub entries: usize,
    /// What it asked for, and how surely that is known.
    pub requests: Requests,
    /// What it held when it held the most.
    pub live: LivePeak,
    pub(super) learned: LearnedAddressSpace,
    /// Whether frees wait for other streams, so that their timing may decide.
    pub is_timed: bool,
}

/// The moment at which the blocks in use were the most.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LivePeak {
    /// Their bytes, each rounded up to 512: no settings need less.
    pub bytes: u64,
    /// The recording's entry of the request that made it so.
    pub entry: usize,
    /// Bytes in use before the first entry.
    pub at_start_bytes: u64,
    /// Who held them, the most first.
    pub holders: Vec<Holder>,
}

/// Blocks in use that were asked for at the same place of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The place; none if the file does not say.
    pub stack: StackId,
    /// How many blocks.
    pub blocks: usize,
    /// Their bytes, rounded as in [`LivePeak::bytes`].
    pub bytes: u64,
}

impl Program {
    /// Reads a traced device. `own` are the settings and the limit of the recorded run.
    ///
    /// # Errors
    /// As for verifying the recording: see [`VerifyError`].
    pub fn of_recording(
        recording: &DeviceRecording,
        own: &VerifyOptions,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Program, VerifyError> {
        let requests = Requests::of_recording(recording, own, progress)?;
        let learned = learned_addresses(recording, &requests);
        Ok(Program::of_requests(requests, learned, recording))
    }

    pub(super) fn of_requests(requests: Requests, learned: LearnedAddressSpace, recording: &DeviceRecording) -> Program {
        let live = LivePeak::find(&requests, recording);
        let (device, entries, is_timed) = (recording.device, recording.trace.len(), requests.has_deferred_frees());
        Program { device, entries, requests, live, learned, is_timed }
    }

    /// Whether the recorded program went on asking after it had been out of memory.
    #[must_use]
    pub fn survived(&self) -> bool {
        let is = |failure: bool| move |(_, operation): &(usize, Operation)| matches!(operation, Operation::Allocate { failed, .. } if *failed == failure);
        let operations = &self.requests.operations;
        operations.iter().position(is(true)).is_some_and(|first| operations[first..].iter().any(is(false)))
    }

    /// Whether the recorded program ended out of memory: nothing was served after its last failure.
    #[must_use]
    pub fn died(&self) -> bool {
        self.requests.ooms > 0 && !self.survived()
    }

    /// Whether more than this was reserved before the first entry.
    #[must_use]
    pub fn hides_more_than(&self, bytes: u64) -> bool {
        self.requests.lost_beginning.is_some_and(|lost| lost.reserved_bytes > bytes)
    }

    /// Whether the request of this operation failed in the recording and the program went on.
    fn was_done_without(&self, operation: usize) -> bool {
        let operations = &self.requests.operations;
        matches!(operations.get(operation), Some((_, Operation::Allocate { failed: true, .. })))
            && operations[operation..].iter().any(|(_, operation)| matches!(operation, Operation::Allocate { failed: false, .. }))
    }

    /// Whether the program may go on if the request of this operation fails: the recorded one did, or it is given back before anything else
    /// happens, as the workspace of one kernel is: libraries that ask for such (cuDNN) go on with a smaller one if there is no memory.
    #[must_use]
    pub fn is_workspace(&self, operation: usize) -> bool {
        let at = |place: usize| self.requests.operations.get(place).map(|&(_, operation)| operation);
        self.was_done_without(operation)
            || matches!((at(operation), at(operation + 1)),
            (Some(Operation::Allocate { id, .. }), Some(Operation::Free { id: freed, .. })) if id == freed)
    }
}

impl LivePeak {
    fn find(requests: &Requests, recording: &DeviceRecording) -> LivePeak {
        let mut sizes: Vec<u64> = Vec::new();
        let (mut live, mut peak, mut peak_at, mut at_start) = (0_u64, 0_u64, None, 0);
        let early = requests.lost_beginning.map_or(0, |lost| lost.blocks);
        // Without what was refused before it the program went on: it does not need that.
        let is_served = |(_, operation): &(usize, Operation)| matches!(operation, Operation::Allocate { failed: false, .. });
        let last_served = requests.operations.iter().rposition(is_served).unwrap_or(0);
        for (place, &(_, operation)) in requests.operations.iter().enumerate() {
            match operation {
                Operation::Allocate { failed: true, .. } if place < last_served => sizes.push(0),
                Operation::Allocate { bytes, failed, .. } => {
                    let bytes = rounded(bytes);
                    live = live.saturating_add(bytes);
                    if live > peak {
                        (peak, peak_at) = (live, Some(place));
                    }
                    if failed {
                        live = live.saturating_sub(bytes);
                    }
                    sizes.push(if failed { 0 } else { bytes });
                    if sizes.len() == early {
                        at_start = live;
                    }
                }
                Operation::Free { id, .. } => live = live.saturating_sub(sizes.get_mut(id).map_or(0, std::mem::take)),
                Operation::EmptyCache | Operation::AbandonPool(_) | Operation::ReleasePool(_) => {}
            }
        }
        let Some(last) = peak_at else { return LivePeak::default() };
        let entry = requests.operations[last].0;
        LivePeak { bytes: peak, entry, at_start_bytes: at_start, holders: holders(requests, recording, last) }
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(MIN_BLOCK_BYTES).unwrap_or(u64::MAX)
}

/// Who holds what after the operation `last`. Of blocks from before the first entry the file says where they were asked for
/// only if they were still there at its end.
fn holders(requests: &Requests, recording: &DeviceRecording, last: usize) -> Vec<Holder> {
    let early = requests.lost_beginning.map_or(0, |lost| lost.blocks);
    let mut live: FxHashMap<usize, (StackId, u64)> = FxHashMap::default();
    for &(entry, operation) in &requests.operations[..=last] {
        match operation {
            Operation::Allocate { id, bytes, .. } => {
                let stack = if id < early { None } else { recording.trace.get(entry) };
                live.insert(id, (stack.map_or(StackId::NONE, |entry| entry.stack), rounded(bytes)));
            }
            Operation::Free { id, .. } => drop(live.remove(&id)),
            Operation::EmptyCache | Operation::AbandonPool(_) | Operation::ReleasePool(_) => {}
        }
    }
    let mut blocks: Vec<(StackId, u64)> = live.into_values().collect();
    blocks.sort_unstable();
    let same_place = |one: &(StackId, u64), other: &(StackId, u64)| one.0 == other.0;
    let mut holders: Vec<Holder> = blocks
        .chunk_by(same_place)
        .map(|blocks| Holder { stack: blocks[0].0, blocks: blocks.len(), bytes: blocks.iter().map(|block| block.1).sum() })
        .collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.stack));
    holders
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::evaluate::tests::{allocate, free, program};

    #[test]
    fn the_fullest_moment_is_found() {
        let program = program(&[allocate(0, 30), allocate(1, 50), free(0), allocate(2, 20), free(1), free(2)]);
        assert_eq!((program.live.bytes >> 20, program.live.entry), (80, 1));
        assert_eq!(program.live.holders, [Holder { stack: StackId::NONE, blocks: 2, bytes: 80 << 20 }]);
    }

    #[test]
    fn a_workspace_is_given_back_at_once() {
        let program = program(&[allocate(0, 30), allocate(1, 50), free(1), free(0)]);
        assert_eq!([0, 1, 2, 3, 4].map(|operation| program.is_workspace(operation)), [false, true, false, false, false]);
    }
}
