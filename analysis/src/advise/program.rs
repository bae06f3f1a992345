//! One device's program: its requests, the addresses of its segments, and its live peak.
//!
//! [`Replay`] is that program under one setting, ready to be run in any amount of memory.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_recording::{DeviceRecording, StackId};
use parkade_replay::recognition::{capacity_hint as hint, most_reserved};
use parkade_replay::{
    AfterFailure, LIKELY, Operation, PredictOptions, PredictedRun, Prediction, Requests, SelfCheck, Slots, TIMINGS, Timing,
    Variation, VerifyError, VerifyOptions, device_like, learned_addresses, predict,
};
use parkade_sim::address::LearnedAddressSpace;
use rustc_hash::FxHashMap;

use super::completion::{CompletedRuns, Means, RunLike};
use crate::continuation::{Continuation, continue_after};
use crate::ending::Ending;
use crate::stacks::{StackUse, by_stack};

/// Every block size is a multiple of this, under any settings (spec 1.1).
const MIN_BLOCK_BYTES: u64 = 512;

/// The continuation of a program that died may have as many operations as the program had, or this many if that is more.
const LEAST_CONTINUED: usize = 10_000;
/// The maximum number of operations in the continuation of a program that died.
const MOST_CONTINUED: usize = 200_000;

/// The requests of one traced device, ready to be replayed.
#[derive(Clone, Debug)]
pub struct Program {
    /// The device's number.
    pub device: u32,
    /// The number of entries in its trace.
    pub entries: usize,
    /// The program's requests, and how reliably they are known. If the program died: the requests up to the one that failed,
    /// and the estimated continuation as far as earlier steps show it ([`continuation`](Self::continuation)).
    pub requests: Requests,
    /// How it ended.
    pub ending: Ending,
    /// The estimate of the rest, if the program died.
    pub continuation: Option<Continuation>,
    /// The peak of the program's live memory, and what held it.
    pub live: LivePeak,
    /// The distinct sizes that it requests, in bytes.
    pub(super) sizes: Vec<u64>,
    slots: Slots,
    /// The reserved bytes that would have been reached by the request it died on: under its own settings, the program needs
    /// more.
    refused_bytes: u64,
    /// The recorded run's peak of reserved bytes.
    pub reserved_bytes: u64,
    learned: LearnedAddressSpace,
    /// Whether some frees wait for other streams, so that their timing may matter.
    pub is_timed: bool,
    /// Whether a replay under the program's own settings needs as much as the recorded run; `None` if that cannot be checked.
    pub self_check: Option<SelfCheck>,
}

/// The peak of a program's live memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LivePeak {
    /// Live bytes, with each block rounded up to a multiple of 512: no settings can make do with less.
    pub bytes: u64,
    /// The recorded entry of the request that reached the peak.
    pub entry: usize,
    /// Live bytes before the first entry.
    pub at_start_bytes: u64,
    /// The stacks that held these bytes, the largest first; sizes are rounded as in `bytes`.
    pub holders: Vec<StackUse>,
}

impl Program {
    /// Reads a traced device. `own` are the settings and the limit of the recorded run; `progress` receives the number of entries
    /// read.
    ///
    /// # Errors
    /// Fails if the recording cannot be replayed.
    pub(super) fn of_recording(
        recording: &DeviceRecording,
        own: &VerifyOptions,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Program, VerifyError> {
        let requests = Requests::of_recording(recording, own, progress)?;
        let learned = learned_addresses(recording, &requests);
        // If a program died, the requests after its error are included here; they are cut off below.
        let died = Ending::of(recording).death().is_some();
        let self_check = if died { SelfCheck::of(recording, own, &requests) } else { None };
        let mut program = Program { self_check, ..Program::of_requests(requests, learned, recording) };
        if program.died() {
            program.refused_bytes = hint(recording, &own.settings).map_or(0, |hint| hint.refused_bytes);
        }
        Ok(program)
    }

    fn of_requests(mut requests: Requests, learned: LearnedAddressSpace, recording: &DeviceRecording) -> Program {
        let ending = Ending::of(recording);
        let last = ending.death().and_then(|death| cut_after(&mut requests, death.entry));
        let live = LivePeak::find(&requests, recording);
        let mut continuation =
            last.and_then(|last| continue_after(&requests, recording, last, last.clamp(LEAST_CONTINUED, MOST_CONTINUED)));
        if let Some(continuation) = &mut continuation {
            requests = std::mem::take(&mut continuation.requests);
        }
        let (sizes, slots) = (sizes(&requests), Slots::of(&requests));
        let (device, entries, is_timed) = (recording.device, recording.trace.len(), requests.has_deferred_frees());
        Program {
            device,
            entries,
            requests,
            ending,
            continuation,
            live,
            sizes,
            slots,
            refused_bytes: 0,
            reserved_bytes: most_reserved(recording),
            learned,
            is_timed,
            self_check: None,
        }
    }

    /// Checks a program that did not die. `plenty` is a run under its own settings in which memory was never short, if there
    /// is one.
    pub(super) fn check(&mut self, recording: &DeviceRecording, own: &VerifyOptions, plenty: Option<&Prediction>) {
        if !self.died() {
            self.self_check = SelfCheck::reusing(recording, own, &self.requests, &self.learned, plenty);
        }
    }

    /// Returns the same program with each doubtful flush interpreted the other way. Returns `None` if there is no doubtful
    /// flush, or if the program died, because its failure then decides.
    pub(super) fn read_otherwise(&self, recording: &DeviceRecording) -> Option<Program> {
        if self.died() {
            return None;
        }
        let requests = self.requests.read_otherwise(recording)?;
        Some(Program { slots: Slots::of(&requests), requests, ..self.clone() })
    }

    /// Returns whether the recorded program continued after an out-of-memory error.
    #[must_use]
    pub const fn survived(&self) -> bool {
        matches!(self.ending, Ending::Survived(_))
    }

    /// Returns whether the recorded program ended with an out-of-memory error.
    #[must_use]
    pub const fn died(&self) -> bool {
        matches!(self.ending, Ending::Died(_))
    }

    /// Returns the cut runs that are similar to this program, if it died and the means need `needed_bytes` for it and its
    /// estimated rest. Returns `None` if the memory is not known, or if the part missing from the recording needed more.
    #[must_use]
    pub fn completes(&self, means: Means, needed_bytes: u64, available_bytes: Option<u64>) -> Option<CompletedRuns> {
        let available = available_bytes.filter(|&available| self.died() && !self.hides_more_than(available))?;
        Some(RunLike::of(means, self.continuation.as_ref(), self.live.bytes, (needed_bytes, available)).runs())
    }

    /// Returns the number of recorded operations; the others are estimated.
    #[must_use]
    pub fn recorded_operations(&self) -> usize {
        self.continuation.as_ref().map_or(self.requests.operations.len(), |continuation| continuation.recorded)
    }

    /// Returns the program without its estimated rest.
    pub(super) fn recorded(&self) -> Program {
        let mut recorded = self.clone();
        recorded.requests.operations.truncate(self.recorded_operations());
        recorded.slots = Slots::of(&recorded.requests);
        recorded.continuation = None;
        recorded
    }

    /// Returns whether an entry belongs to the recording. Later ones are estimated.
    #[must_use]
    pub const fn is_recorded(&self, entry: usize) -> bool {
        self.continuation.is_none() || entry < self.entries
    }

    /// Returns the entry at which the program died, if its own settings are known to fail there in this much memory
    /// regardless of what a replay predicts, because the memory is no more than what was refused. A replay may differ if the
    /// recording's oldest entries are missing.
    pub(super) fn dies_again(&self, available_bytes: Option<u64>) -> Option<usize> {
        let death = self.ending.death()?;
        available_bytes.is_some_and(|available| available < self.refused_bytes).then_some(death.entry)
    }

    /// Returns whether more than this was reserved before the first entry.
    pub(super) fn hides_more_than(&self, bytes: u64) -> bool {
        self.requests.lost_beginning.is_some_and(|lost| lost.reserved_bytes > bytes)
    }

    /// Returns the entry of this operation (an index into its operations), if its request was served in the recording or
    /// ended the run.
    pub(super) fn fails_anew(&self, operation: usize) -> Option<usize> {
        match self.requests.operations.get(operation)? {
            (_, Operation::Allocate { failed: true, .. }) => None,
            (entry, _) => Some(*entry),
        }
    }

    /// Returns whether this operation's request failed in the recording and the program continued.
    fn was_done_without(&self, operation: usize) -> bool {
        let operations = &self.requests.operations;
        matches!(operations.get(operation), Some((_, Operation::Allocate { failed: true, .. })))
            && operations[operation..].iter().any(|(_, operation)| matches!(operation, Operation::Allocate { failed: false, .. }))
    }

    /// Returns whether the program may continue if the request of this operation (an index into its operations) fails. This
    /// is the case if the recorded program did, or if the very next operation frees the block, as with a single kernel's
    /// workspace: a library such as cuDNN falls back to a smaller workspace if memory is short.
    pub(super) fn is_workspace(&self, operation: usize) -> bool {
        let at = |place: usize| self.requests.operations.get(place).map(|&(_, operation)| operation);
        self.was_done_without(operation)
            || matches!((at(operation), at(operation + 1)),
            (Some(Operation::Allocate { id, .. }), Some(Operation::Free { id: freed, .. })) if id == freed)
    }
}

/// Returns the distinct sizes of all requests.
fn sizes(requests: &Requests) -> Vec<u64> {
    let size = |&(_, operation): &(usize, Operation)| match operation {
        Operation::Allocate { bytes, .. } => Some(bytes),
        _ => None,
    };
    let mut sizes: Vec<u64> = requests.operations.iter().filter_map(size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Cuts off the requests after the one at this entry, which the program died on, and makes that one count as a request that
/// may be served: a surviving program would have kept the block, and what the dying program did afterwards does not show how
/// it would have continued. Returns the index of that operation.
fn cut_after(requests: &mut Requests, entry: usize) -> Option<usize> {
    let is_it = |(at, operation): &(usize, Operation)| *at == entry && matches!(operation, Operation::Allocate { .. });
    let last = requests.operations.iter().position(is_it)?;
    requests.operations.truncate(last + 1);
    if let Some((_, Operation::Allocate { failed, .. })) = requests.operations.last_mut() {
        *failed = false;
    }
    Some(last)
}

impl LivePeak {
    fn find(requests: &Requests, recording: &DeviceRecording) -> LivePeak {
        let mut sizes: Vec<u64> = Vec::new();
        let (mut live, mut peak, mut peak_at, mut at_start) = (0_u64, 0_u64, None, 0);
        let early = requests.lost_beginning.map_or(0, |lost| lost.blocks);
        // Requests that failed before this one do not count as needed: the program continued without them.
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

/// Returns the memory that each stack holds after the operation `last`. Blocks from before the first entry have no stack.
fn holders(requests: &Requests, recording: &DeviceRecording, last: usize) -> Vec<StackUse> {
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
    by_stack(live.into_values().collect())
}

#[cfg(test)]
pub(super) mod sample_programs {
    //! Small programs for tests.

    use parkade::units::PoolId;
    use parkade_recording::DeviceRecording;
    use parkade_replay::{Completion, Operation, Requests};
    use parkade_sim::address::LearnedAddressSpace;

    use super::Program;

    pub(crate) const MIB: u64 = 1 << 20;

    pub(crate) fn allocate(id: usize, mib: u64) -> Operation {
        Operation::Allocate { id, bytes: mib * MIB, stream: 0, pool: PoolId::DEFAULT, failed: false }
    }

    pub(crate) fn free(id: usize) -> Operation {
        Operation::Free { id, completion: Completion::AtOnce }
    }

    pub(crate) fn program(operations: &[Operation]) -> Program {
        let requests = Requests { operations: operations.iter().copied().enumerate().collect(), ..Requests::default() };
        Program::of_requests(requests, LearnedAddressSpace::default(), &DeviceRecording::default())
    }

    /// Returns a program in which a 100 MiB segment is split for 60 MiB, so the next 60 MiB need another segment.
    pub(crate) fn cut() -> Program {
        program(&[allocate(0, 100), free(0), allocate(1, 60), allocate(2, 60), allocate(3, 60), free(3), allocate(4, 20)])
    }
}

/// A program and the settings to replay it under.
#[derive(Clone, Copy)]
pub(super) struct Replay<'a> {
    pub(super) program: &'a Program,
    pub(super) profile: &'static Profile,
    pub(super) settings: &'a Settings,
}

impl<'a> Replay<'a> {
    fn options(&self, limit_bytes: Option<u64>, after_failure: AfterFailure, timing: Timing) -> PredictOptions {
        PredictOptions { profile: self.profile, settings: self.settings.clone(), limit_bytes, after_failure, timing }
    }

    /// Starts a run on a device that never runs out of memory; only the limit can refuse memory.
    pub(super) fn run(&self, limit_bytes: Option<u64>, after_failure: AfterFailure) -> PredictedRun<'a> {
        let device = device_like(self.program.device, &self.program.learned, None);
        let options = self.options(limit_bytes, after_failure, Timing::Recorded);
        PredictedRun::with_slots(&self.program.requests, &self.program.slots, device, &options, ())
    }

    /// Returns, for each of [`TIMINGS`], whether every request is served, and the peak of reserved bytes.
    pub(super) fn timings(&self, limit_bytes: Option<u64>) -> [(bool, i64); TIMINGS.len()] {
        TIMINGS.map(|timing| {
            let device = device_like(self.program.device, &self.program.learned, None);
            let options = self.options(limit_bytes, AfterFailure::GoOn, timing);
            let prediction = predict(&self.program.requests, device, &options);
            (prediction.first_failure.is_none(), prediction.peak_reserved_bytes())
        })
    }

    /// Returns, for each likely run, whether every request is served.
    pub(super) fn likely(&self, limit_bytes: Option<u64>) -> [bool; LIKELY as usize] {
        std::array::from_fn(|place| {
            let device = device_like(self.program.device, &self.program.learned, None);
            let timing = Timing::InTime(Variation::likely(place as u32 + 1));
            let options = self.options(limit_bytes, AfterFailure::Stop, timing);
            predict(&self.program.requests, device, &options).first_failure.is_none()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::sample_programs::{allocate, free, program};
    use super::*;

    #[test]
    fn the_live_peak_is_found() {
        let program = program(&[allocate(0, 30), allocate(1, 50), free(0), allocate(2, 20), free(1), free(2)]);
        assert_eq!((program.live.bytes >> 20, program.live.entry), (80, 1));
        assert_eq!(program.live.holders, [StackUse { stack: StackId::NONE, blocks: 2, bytes: 80 << 20 }]);
    }

    #[test]
    fn a_workspace_is_freed_at_once() {
        let program = program(&[allocate(0, 30), allocate(1, 50), free(1), free(0)]);
        assert_eq!([0, 1, 2, 3, 4].map(|operation| program.is_workspace(operation)), [false, true, false, false, false]);
    }
}
