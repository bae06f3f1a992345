//! Blocks that are made between passes and in use during the next: parameters, optimizer states, inputs.

use rustc_hash::FxHashMap;

use super::gradients::Gradients;
use super::kind::{How, Kind, Told};
use super::run::{Run, size_of};
use crate::timeline::{BlockLife, NEVER};

/// Counts of blocks by size.
type Sizes = FxHashMap<u64, usize>;

/// An input is in use during so many passes at most: its own, and the next one while it is being replaced.
const LONGEST_INPUT: usize = 2;

/// The workspaces of cuBLAS by default: 32 MiB on Hopper and later, else 8 MiB and 128 KiB.
pub(super) const CUBLAS: [u64; 2] = [32 << 20, (8 << 20) + (128 << 10)];
/// The workspace of cuBLASLt.
pub(super) const CUBLAS_LT: u64 = 1 << 20;

/// An optimizer keeps states for at least one in so many parameters, if sizes alone tell them.
const FEWEST_SHARE: usize = 4;

/// What was told of such blocks, by index.
pub(super) fn kept(run: &Run<'_>, gradients: &Gradients) -> FxHashMap<usize, Told> {
    let mut first_turns: Vec<Vec<usize>> = vec![Vec::new(); run.passes.len()];
    for (place, block) in run.blocks.iter().enumerate() {
        let turns = run.turns(block);
        if !turns.is_empty() && run.is_outside(block) && !gradients.told.contains_key(&place) {
            first_turns[turns.start].push(place);
        }
    }
    let mut told = FxHashMap::default();
    // The parameters found so far: their sizes, with the passes that they are in use until.
    let mut parameters: Vec<(u64, usize)> = Vec::new();
    for (pass, places) in first_turns.iter().enumerate() {
        parameters.retain(|&(_, until)| until > pass);
        let mut sizes = Sizes::default();
        parameters.iter().for_each(|&(size, _)| *sizes.entry(size).or_default() += 1);
        let known = parameters.len();
        let mut rest = Vec::new();
        let by_size = places.iter().filter(|&&place| is_state(run, gradients, place, &sizes) == Some(How::Size)).count();
        let are_states = by_size * FEWEST_SHARE >= known;
        for &place in places {
            let size = size_of(&run.blocks[place]);
            let state = is_state(run, gradients, place, &sizes).filter(|&how| how != How::Size || are_states);
            if let Some(how) = state {
                told.insert(place, Told::new(Kind::OptimizerStates, how));
            } else if sizes.get(&size).copied().unwrap_or(0) < gradients.passes[pass].sizes.get(&size).copied().unwrap_or(0) {
                *sizes.entry(size).or_default() += 1;
                parameters.push((size, run.turns(&run.blocks[place]).end));
                told.insert(place, Told::new(Kind::Parameters, How::Size));
            } else {
                rest.push(place);
            }
        }
        let era_end = parameters[known..].iter().map(|&(_, until)| until).max();
        let is_era = era_end.is_some() || pass == 0;
        let early = if pass == 0 { early_states(run, gradients, &rest) } else { Sizes::default() };
        rest_of(run, pass, &rest, is_era.then_some(era_end.unwrap_or(run.passes.len())), early, &mut told);
    }
    told
}

/// Whether a block is an optimizer's state: made during the optimizer's step, or while gradients are there and of a parameter's size.
fn is_state(run: &Run<'_>, gradients: &Gradients, place: usize, parameters: &Sizes) -> Option<How> {
    let block = &run.blocks[place];
    if let Some(end) = run.optimizer_end(block) {
        return (block.freed > end).then_some(How::Annotation);
    }
    let turns = run.turns(block);
    let of_pass = gradients.passes.get(turns.start.checked_sub(1)?)?;
    let has_gradients = block.born < of_pass.freed;
    let stays = turns.len() > LONGEST_INPUT || turns.end == run.passes.len();
    (has_gradients && stays && parameters.contains_key(&size_of(block))).then_some(How::Size)
}

/// If a recording lost its beginning, the blocks of each gradient's size that are optimizer states: equally many for each parameter.
/// Which of the blocks of a size they are is not known, only how many.
fn early_states(run: &Run<'_>, gradients: &Gradients, rest: &[usize]) -> Sizes {
    let mut counts = Sizes::default();
    for &place in rest.iter().filter(|&&place| run.blocks[place].born == 0) {
        *counts.entry(size_of(&run.blocks[place])).or_default() += 1;
    }
    let Some(of_pass) = gradients.passes.first() else { return Sizes::default() };
    let mut factors: std::collections::BTreeMap<usize, usize> = std::collections::BTreeMap::new();
    for (size, &gradients) in &of_pass.sizes {
        *factors.entry(counts.get(size).copied().unwrap_or(0) / gradients.max(1)).or_default() += gradients;
    }
    let total: usize = factors.values().sum();
    match factors.into_iter().max_by_key(|&(_, count)| count) {
        Some((factor, count)) if factor > 0 && count * 10 >= total * 9 => {
            of_pass.sizes.iter().map(|(&size, &gradients)| (size, gradients * factor)).collect()
        }
        _ => Sizes::default(),
    }
}

/// Whether a library made a block right before the first pass: cuBLAS's workspace is of a rare size, and cuBLASLt's follows it.
fn is_workspace_before(run: &Run<'_>, place: usize) -> bool {
    let is_one = |place: usize, sizes: &[u64]| {
        run.blocks.get(place).is_some_and(|block| block.born > 0 && sizes.contains(&block.requested) && is_kept(run, block))
    };
    is_one(place, &CUBLAS) || (is_one(place, &[CUBLAS_LT]) && place > 0 && is_one(place - 1, &CUBLAS))
}

/// Libraries keep their workspaces.
pub(super) fn is_kept(run: &Run<'_>, block: &BlockLife) -> bool {
    block.freed == NEVER || run.turns(block).len() > 1
}

/// The blocks that are no parameters with gradients. `era_end` is the pass until which the parameters of this pass are in use, if there
/// are new ones.
fn rest_of(
    run: &Run<'_>,
    pass: usize,
    rest: &[usize],
    era_end: Option<usize>,
    mut early: Sizes,
    told: &mut FxHashMap<usize, Told>,
) {
    for &place in rest {
        let block = &run.blocks[place];
        let turns = run.turns(block);
        if block.born == 0 {
            if let Some(left) = early.get_mut(&size_of(block)).filter(|left| **left > 0) {
                *left -= 1;
                told.insert(place, Told::new(Kind::OptimizerStates, How::Size));
            }
            continue;
        }
        if is_workspace_before(run, place) {
            told.insert(place, Told::new(Kind::Workspaces, How::Size));
            continue;
        }
        let kind = match era_end {
            // With one pass alone a buffer and an input look the same.
            Some(end) if end <= pass + 1 => None,
            Some(end) if turns.end >= end && turns.len() > 1 => Some(Kind::Parameters),
            Some(end) if turns.end >= end => None,
            _ => (turns.len() <= LONGEST_INPUT).then_some(Kind::Inputs),
        };
        if let Some(kind) = kind {
            told.insert(place, Told::new(kind, How::Lifetime));
        }
    }
}
