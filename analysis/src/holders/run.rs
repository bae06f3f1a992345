//! A run as its blocks show it: its passes, and the optimizer's own marks.

use parkade_recording::{Action, Annotation, DeviceRecording, StackId};

use super::passes::{FreeRuns, Pass, Section, passes, section, turns_of};
use crate::annotations::scopes;
use crate::timeline::{BlockLife, HeapLog};

/// How PyTorch's optimizers annotate their steps.
const OPTIMIZER: &str = "Optimizer.step#";

/// What all rules look at.
pub(super) struct Run<'a> {
    /// All blocks, in the order in which they were made.
    pub(super) blocks: &'a [BlockLife],
    /// The passes; none if the run trains nothing.
    pub(super) passes: Vec<Pass>,
    /// Whether something frees blocks as a backward pass does, or an optimizer is annotated.
    pub(super) looks_trained: bool,
    pub(super) runs: FreeRuns,
    /// The first and last moments of the annotated steps of optimizers, in order.
    pub(super) optimizer: Vec<(u32, u32)>,
    /// The moment after the last entry, or before the first out-of-memory error behind the last pass: what is freed later may be freed
    /// because of the error.
    pub(super) until: u32,
}

impl<'a> Run<'a> {
    /// `annotations` are the whole recording's.
    pub(super) fn of(log: &'a HeapLog, recording: &DeviceRecording, annotations: &[Annotation]) -> Run<'a> {
        let entries = recording.trace.len();
        let runs = FreeRuns::of(recording);
        let mut passes = passes(&log.blocks, &runs, entries);
        if has_stacks(&log.blocks) {
            passes.iter_mut().for_each(|pass| turn_at_first_without_stack(&log.blocks, pass));
        }
        let marked = scopes(annotations, recording);
        let optimizer: Vec<(u32, u32)> =
            marked.iter().filter(|scope| scope.name.starts_with(OPTIMIZER)).map(|scope| (scope.from, scope.to)).collect();
        let behind = passes.last().map_or(0, |pass| pass.end as usize);
        let failed = recording.trace[behind.min(entries)..].iter().position(|entry| entry.action == Action::Oom);
        let until = failed.map_or(entries, |further| behind + further) as u32;
        let looks_trained = !passes.is_empty() || !optimizer.is_empty();
        Run { blocks: &log.blocks, looks_trained, passes, runs, optimizer, until }
    }

    pub(super) fn section(&self, moment: u32) -> Section {
        section(&self.passes, moment)
    }

    /// The passes at whose turn a block is in use.
    pub(super) fn turns(&self, block: &BlockLife) -> std::ops::Range<usize> {
        turns_of(&self.passes, block)
    }

    /// Whether a block was made outside of all passes.
    pub(super) fn is_outside(&self, block: &BlockLife) -> bool {
        matches!(self.section(block.born), Section::Between(_))
    }

    /// The end of the annotated optimizer's step in which a block was made.
    pub(super) fn optimizer_end(&self, block: &BlockLife) -> Option<u32> {
        let before = self.optimizer.partition_point(|&(from, _)| from < block.born);
        // A moment is that after its entry, so the scope's first moment is not yet in it.
        self.optimizer.get(before.checked_sub(1)?).map(|&(_, to)| to).filter(|&to| block.born <= to)
    }
}

/// A recording has stacks if at least one in so many blocks has one. Those of autograd's threads have none in any recording.
const FEWEST_STACKS: usize = 20;

pub(super) fn has_stacks(blocks: &[BlockLife]) -> bool {
    let with_stack = blocks.iter().filter(|block| block.stack != StackId::NONE).count();
    with_stack > 0 && with_stack * FEWEST_STACKS >= blocks.len()
}

/// In a recording with stacks, the first allocation without one near the turn is autograd's.
fn turn_at_first_without_stack(blocks: &[BlockLife], pass: &mut Pass) {
    const NEAR: u32 = 64;
    let from = pass.turn.saturating_sub(NEAR).max(pass.start);
    let near = &blocks[blocks.partition_point(|block| block.born <= from)..];
    let near = near.iter().take_while(|block| block.born <= pass.end.min(pass.turn.saturating_add(NEAR)));
    if let Some(first) = near.into_iter().find(|block| block.stack == StackId::NONE) {
        pass.turn = first.born - 1;
    }
}

/// The size by which blocks are compared: as requested, rounded as PyTorch rounds (spec 1.2).
pub(super) fn size_of(block: &BlockLife) -> u64 {
    block.requested.max(1).checked_next_multiple_of(512).unwrap_or(block.requested)
}
