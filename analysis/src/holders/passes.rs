//! A run as inferred from its blocks: its forward and backward passes, found from the lifetimes of its blocks, and the
//! optimizer's own marks.
//!
//! A forward pass keeps more and more blocks for the backward pass, which frees them in the opposite order. The number of
//! blocks in use, not counting blocks that are kept or are freed many at a time, therefore rises and falls once per pass,
//! regardless of the blocks' sizes. A rise and fall whose frees are not in this order is not a pass.

use parkade_recording::{Action, Annotation, DeviceRecording, StackId};

use crate::annotations::scopes;
use crate::timeline::{BlockLife, HeapLog, NEVER};

/// The name under which PyTorch's optimizers annotate their steps.
const OPTIMIZER: &str = "Optimizer.step#";

/// The data that all rules use.
pub(super) struct Run<'a> {
    /// All blocks, in order of allocation.
    pub(super) blocks: &'a [BlockLife],
    /// The passes; empty if the run does not train.
    pub(super) passes: Vec<Pass>,
    /// Whether the run frees blocks as a backward pass does, or has an annotated optimizer.
    pub(super) looks_trained: bool,
    pub(super) runs: FreeRuns,
    /// The first and last moments of the annotated steps of optimizers, in order.
    pub(super) optimizer: Vec<(u32, u32)>,
    /// The moment after the last entry, or before the first out-of-memory error after the last pass: blocks freed later may have
    /// been freed because of the error.
    pub(super) until: u32,
}

impl<'a> Run<'a> {
    /// Describes a run. `annotations` are those of the entire recording.
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

    /// Returns the passes at whose turn a block is in use.
    pub(super) fn turns(&self, block: &BlockLife) -> std::ops::Range<usize> {
        turns_of(&self.passes, block)
    }

    /// Returns whether a block was allocated outside all passes.
    pub(super) fn is_outside(&self, block: &BlockLife) -> bool {
        matches!(self.section(block.born), Section::Between(_))
    }

    /// Returns the end of the annotated optimizer step in which a block was allocated.
    pub(super) fn optimizer_end(&self, block: &BlockLife) -> Option<u32> {
        let before = self.optimizer.partition_point(|&(from, _)| from < block.born);
        // An entry's moment is the one after it, so the scope's first moment is not yet inside the scope.
        self.optimizer.get(before.checked_sub(1)?).map(|&(_, to)| to).filter(|&to| block.born <= to)
    }
}

/// A recording has stacks if at least one in this many blocks has one. Blocks allocated on autograd's threads have no stack in
/// any recording.
const FEWEST_STACKS: usize = 20;

pub(super) fn has_stacks(blocks: &[BlockLife]) -> bool {
    let with_stack = blocks.iter().filter(|block| block.stack != StackId::NONE).count();
    with_stack > 0 && with_stack * FEWEST_STACKS >= blocks.len()
}

/// Corrects a pass's turn. In a recording with stacks, the first allocation without a stack near the turn comes from
/// autograd.
fn turn_at_first_without_stack(blocks: &[BlockLife], pass: &mut Pass) {
    const NEAR: u32 = 64;
    let from = pass.turn.saturating_sub(NEAR).max(pass.start);
    let near = &blocks[blocks.partition_point(|block| block.born <= from)..];
    let near = near.iter().take_while(|block| block.born <= pass.end.min(pass.turn.saturating_add(NEAR)));
    if let Some(first) = near.into_iter().find(|block| block.stack == StackId::NONE) {
        pass.turn = first.born - 1;
    }
}

/// Returns the size by which blocks are compared: the requested size, rounded as PyTorch rounds it (spec 1.2).
pub(super) fn size_of(block: &BlockLife) -> u64 {
    block.requested.max(1).checked_next_multiple_of(512).unwrap_or(block.requested)
}

/// A forward pass and its backward pass, in moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pass {
    /// The last moment before the forward pass.
    pub(super) start: u32,
    /// The last moment of the forward pass, at which the most blocks are kept.
    pub(super) turn: u32,
    /// The moment at which the backward pass has freed everything that the forward pass kept for it.
    pub(super) end: u32,
}

/// The position of a moment among the passes. Passes are counted from 1. Inside a pass, the number is that pass's number;
/// between two passes, it is the number of the earlier pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Section {
    Between(usize),
    Forward(usize),
    Backward(usize),
}

/// This many frees with no allocation between them free a list of blocks, such as all gradients.
const FREED_TOGETHER: u32 = 12;
/// Blocks that live for at most this many entries reveal nothing about passes.
const SHORT: u32 = 30;
/// A pass keeps at least this many blocks.
const FEWEST: i64 = 6;
/// The share of blocks that a backward pass frees in the opposite order. 0.5 means no order.
const OPPOSITE: f64 = 0.75;

/// Runs of frees with no allocation between them.
pub(super) struct FreeRuns {
    /// The run number of each entry; an entry between two runs has the number of the next run.
    numbers: Vec<u32>,
    lengths: Vec<u32>,
}

impl FreeRuns {
    fn of(recording: &DeviceRecording) -> FreeRuns {
        let (mut numbers, mut lengths) = (Vec::with_capacity(recording.trace.len()), vec![0]);
        for entry in &recording.trace {
            match (entry.action, lengths.last_mut()) {
                (Action::FreeRequested, Some(length)) => *length += 1,
                (Action::Alloc | Action::Oom, Some(length)) if *length > 0 => lengths.push(0),
                _ => {}
            }
            numbers.push(lengths.len() as u32 - 1);
        }
        FreeRuns { numbers, lengths }
    }

    /// Returns the run in which a block was freed, or `None` if it never was.
    pub(super) fn of_block(&self, block: &BlockLife) -> Option<u32> {
        self.numbers.get((block.freed as usize).checked_sub(1)?).copied()
    }

    /// Returns whether a block was freed together with many others.
    pub(super) fn is_of_many(&self, block: &BlockLife) -> bool {
        self.of_block(block).and_then(|run| self.lengths.get(run as usize)).is_some_and(|&length| length >= FREED_TOGETHER)
    }
}

/// Returns the passes of a run with this many entries, in order.
fn passes(blocks: &[BlockLife], runs: &FreeRuns, entries: usize) -> Vec<Pass> {
    // The blocks in order of allocation.
    let counted: Vec<&BlockLife> =
        blocks.iter().filter(|block| block.born > 0 && block.freed != NEVER && !runs.is_of_many(block)).collect();
    let mut rises = rises_and_falls(&level(&counted, SHORT, entries));
    // The turn is located by the blocks that the pass both allocates and frees and, close to it, by blocks with shorter and
    // shorter lifetimes.
    let is_inside = |block: &&BlockLife| {
        let place = rises.partition_point(|rise| rise.end < block.born as usize);
        rises.get(place).is_some_and(|rise| block.born as usize > rise.start && block.freed as usize <= rise.end)
    };
    let inside: Vec<&BlockLife> = counted.iter().copied().filter(is_inside).collect();
    for longest_ignored in [SHORT, 16, 8, 4, 2] {
        let level = level(&inside, longest_ignored, entries);
        for rise in &mut rises {
            let (first, last) = rise.plateau;
            let top = level[first..=last].iter().copied().max().unwrap_or(0);
            let is_top = |moment: &usize| level[*moment] == top;
            rise.plateau = ((first..=last).find(is_top).unwrap_or(first), (first..=last).rfind(is_top).unwrap_or(last));
        }
    }
    let found = rises.iter().map(|rise| Pass { start: rise.start as u32, turn: rise.plateau.0 as u32, end: rise.end as u32 });
    found.filter(|pass| is_opposite(&counted, pass)).collect()
}

/// Returns the number of blocks in use at each moment, counting those that live for more than this many entries.
fn level(blocks: &[&BlockLife], longest_ignored: u32, entries: usize) -> Vec<i64> {
    let mut changes = vec![0_i64; entries + 1];
    for block in blocks.iter().filter(|block| block.freed.saturating_sub(block.born) > longest_ignored) {
        for (moment, change) in [(block.born, 1), (block.freed, -1)] {
            if let Some(at) = changes.get_mut(moment as usize) {
                *at += change;
            }
        }
    }
    let mut level = 0;
    for change in &mut changes {
        level += *change;
        *change = level;
    }
    changes
}

/// A rise and fall in the number of blocks.
struct Rise {
    /// The last moment at the lowest level before the rise.
    start: usize,
    /// The moments between which the level is highest: initially the entire rise and fall.
    plateau: (usize, usize),
    /// The moment at which the fall ends.
    end: usize,
}

/// Returns the rises and falls that reach at least a quarter of the highest level and fall by at least 70 % of their rise.
fn rises_and_falls(level: &[i64]) -> Vec<Rise> {
    let least = FEWEST.max(level.iter().copied().max().unwrap_or(0) / 4);
    let mut found: Vec<Rise> = Vec::new();
    // The lowest level, and the last moment at which it was reached.
    let mut low = (i64::MAX, 0);
    // The highest level of a rise, once a rise has begun.
    let mut high = None;
    for (moment, &now) in level.iter().enumerate() {
        match high {
            None if now <= low.0 => low = (now, moment),
            None if now - low.0 >= least / 2 => high = Some(now),
            None => {}
            // The rise did not belong to a pass.
            Some(_) if now < low.0 => (low, high) = ((now, moment), None),
            Some(top) if top - low.0 >= least && (now - low.0) * 10 <= (top - low.0) * 3 => {
                let end = end_of_fall(level, moment, (top - low.0) / 50);
                let start = found.last().map_or(low.1, |last| low.1.max(last.end));
                // The end of a long fall may be found only after the next rise has ended.
                if start < end {
                    found.push(Rise { start, plateau: (start, end), end });
                }
                (low, high) = ((now, moment), None);
            }
            Some(top) => high = Some(top.max(now)),
        }
    }
    found
}

/// Returns the moment at which a continuing fall ends: its lowest level, ignoring blocks that are freed long after the
/// others.
fn end_of_fall(level: &[i64], from: usize, tolerance: i64) -> usize {
    let rise = level[from..].iter().scan(level[from], |low, &now| {
        *low = now.min(*low);
        Some((now, *low))
    });
    // The fall ends at the next rise.
    let valley = rise.take_while(|(now, low)| now - low <= FEWEST.max(tolerance * 12)).map(|(now, _)| now);
    let valley: Vec<i64> = valley.collect();
    let low = valley.iter().copied().min().unwrap_or(0);
    let near = valley.iter().position(|&now| now <= low + tolerance.max(2)).unwrap_or(0);
    let mut end = near;
    for (moment, &now) in valley.iter().enumerate().skip(near) {
        if moment - end > 2 * SHORT as usize || valley[end] == low {
            break;
        }
        if now < valley[end] {
            end = moment;
        }
    }
    from + end
}

/// Returns whether the blocks that a pass keeps are freed in the opposite order. The comparison pairs blocks that are apart
/// by a quarter of the number of blocks, because neighbours may be freed in either order.
fn is_opposite(blocks: &[&BlockLife], pass: &Pass) -> bool {
    let from = blocks.partition_point(|block| block.born <= pass.start);
    let to = blocks.partition_point(|block| block.born <= pass.turn);
    let kept: Vec<u32> =
        blocks[from..to].iter().map(|block| block.freed).filter(|&freed| freed > pass.turn && freed <= pass.end).collect();
    let apart = (kept.len() / 4).max(1);
    let pairs = kept.iter().zip(kept.iter().skip(apart));
    let opposite = pairs.clone().filter(|(earlier, later)| earlier > later).count();
    kept.len() as i64 >= FEWEST && opposite as f64 >= OPPOSITE * pairs.count() as f64
}

/// Returns the position of a moment among the passes; a block that an entry allocates or frees is counted from the moment
/// after that entry.
fn section(passes: &[Pass], moment: u32) -> Section {
    let place = passes.partition_point(|pass| pass.end < moment);
    match passes.get(place) {
        Some(pass) if moment > pass.turn => Section::Backward(place),
        Some(pass) if moment > pass.start => Section::Forward(place),
        _ => Section::Between(place),
    }
}

/// Returns the range of passes at whose turn a block is in use.
fn turns_of(passes: &[Pass], block: &BlockLife) -> std::ops::Range<usize> {
    let first = passes.partition_point(|pass| pass.turn < block.born);
    first..passes.partition_point(|pass| pass.turn < block.freed).max(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(born: u32, freed: u32) -> BlockLife {
        let stack = StackId::NONE;
        BlockLife { address: 0, size: 512, requested: 512, stack, born, freed, gone: freed }
    }

    /// Returns blocks that are allocated one after another and freed in the same or the opposite order.
    fn pass(start: u32, blocks: u32, is_opposite: bool) -> Vec<BlockLife> {
        let length = 40 * blocks;
        (0..blocks)
            .map(|i| {
                let order = if is_opposite { blocks - i } else { i + 1 };
                life(start + 40 * i + 1, start + length + 40 * order)
            })
            .collect()
    }

    fn found(blocks: &[BlockLife]) -> Vec<Pass> {
        let entries = 10_000;
        let runs = FreeRuns { numbers: vec![0; entries], lengths: vec![1] };
        passes(blocks, &runs, entries)
    }

    #[test]
    fn passes_are_rises_whose_blocks_are_freed_in_the_opposite_order() {
        let blocks = [pass(100, 20, true), pass(2000, 15, true)].concat();
        let expected = [Pass { start: 100, turn: 861, end: 1700 }, Pass { start: 2000, turn: 2561, end: 3200 }];
        assert_eq!(found(&blocks), expected);
        assert_eq!(found(&pass(100, 20, false)), [], "a queue is no pass");
        assert_eq!(found(&pass(100, 4, true)), [], "too few");
        assert_eq!(found(&[]), []);
        let kinds = [100, 101, 861, 862, 1700, 1701, 2001, 9999].map(|moment| section(&expected, moment));
        use Section::{Backward, Between, Forward};
        assert_eq!(kinds, [Between(0), Forward(0), Forward(0), Backward(0), Backward(0), Between(1), Forward(1), Between(2)]);
        assert_eq!(
            [life(0, NEVER), life(861, 862), life(862, 2561)].map(|block| turns_of(&expected, &block)),
            [0..2, 0..1, 1..1]
        );
    }
}
