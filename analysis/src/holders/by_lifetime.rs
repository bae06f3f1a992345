//! Classifies a block by its lifetime: when it was allocated and freed relative to the passes of the run.
//!
//! Gradients of parameters are allocated in a backward pass and are still in use after it; there is at most one for each
//! parameter of the same size. The first layers' gradients are often allocated after the backward pass has freed everything.
//! Gradients can be identified by their end: they are freed together, or never. Parameters, optimizer states and inputs are
//! allocated between passes and are in use during the next pass.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rustc_hash::{FxHashMap, FxHashSet};

use super::kind::{How, Kind, Told};
use super::passes::{Run, Section, size_of};
use crate::timeline::{BlockLife, NEVER};

/// A block that is freed within this many entries is a temporary regardless of where it is allocated.
pub(super) const SHORT: u32 = 30;
/// Classifies blocks by their lifetimes.
pub(super) struct Lives<'r, 'a> {
    run: &'r Run<'a>,
    gradients: Gradients,
    kept: FxHashMap<usize, Told>,
    /// The sizes of blocks that were allocated by a forward pass other than the first and that outlived the next pass.
    made_again: FxHashSet<u64>,
}

impl<'r, 'a> Lives<'r, 'a> {
    /// Prepares the classification. The passes are removed from `run` if nothing shows that they belong to training.
    pub(super) fn of(run: &'r mut Run<'a>) -> Lives<'r, 'a> {
        let found = gradients(run);
        let trains = found.are_plausible || !run.optimizer.is_empty();
        if !trains {
            run.passes.clear();
        }
        let run = &*run;
        let gradients = if trains { found } else { Gradients::default() };
        let kept = kept(run, &gradients);
        let again = run
            .blocks
            .iter()
            .filter(|block| matches!(run.section(block.born), Section::Forward(pass) if pass > 0) && run.turns(block).len() > 1);
        let made_again = again.map(size_of).collect();
        Lives { run, gradients, kept, made_again }
    }

    pub(super) fn tell(&self, place: usize) -> Told {
        if let Some(&how) = self.gradients.told.get(&place) {
            return Told::new(Kind::Gradients, how);
        }
        if let Some(&told) = self.kept.get(&place) {
            return told;
        }
        let block = &self.run.blocks[place];
        let temporary = Told::new(Kind::Temporaries, How::Lifetime);
        // A block that was freed because of an out-of-memory error may still have been needed.
        if block.freed <= self.run.until && block.freed.saturating_sub(block.born) <= SHORT {
            return match (self.run.section(block.born), self.run.section(block.freed)) {
                (Section::Forward(pass), Section::Backward(of)) if pass == of => Told::new(Kind::Activations, How::Pairing),
                _ => temporary,
            };
        }
        match self.run.section(block.born) {
            Section::Forward(pass) => self.of_forward(block, pass),
            Section::Backward(pass) if self.run.section(block.freed) == Section::Backward(pass) => temporary,
            Section::Backward(_) if self.is_workspace(block) => Told::new(Kind::Workspaces, How::Size),
            Section::Between(pass) if pass < self.run.passes.len() && self.run.section(block.freed) == Section::Between(pass) => {
                temporary
            }
            Section::Between(_) if self.run.optimizer_end(block).is_some_and(|end| block.freed <= end) => temporary,
            _ => Told::NOTHING,
        }
    }

    fn of_forward(&self, block: &BlockLife, pass: usize) -> Told {
        let turns = self.run.turns(block);
        match self.run.section(block.freed) {
            Section::Forward(of) if of == pass => Told::new(Kind::Temporaries, How::Lifetime),
            Section::Backward(of) if of == pass => Told::new(Kind::Activations, How::Pairing),
            _ if self.is_workspace(block) => Told::new(Kind::Workspaces, How::Size),
            // An output that a variable of the program still refers to.
            _ if turns.len() == 1 || (turns.len() == 2 && turns.end < self.run.passes.len()) => {
                Told::new(Kind::Activations, How::Lifetime)
            }
            _ if pass == 0 && turns.end == self.run.passes.len() && !self.made_again.contains(&size_of(block)) => {
                Told::new(Kind::Caches, How::Lifetime)
            }
            _ => Told::NOTHING,
        }
    }

    fn is_workspace(&self, block: &BlockLife) -> bool {
        (CUBLAS.contains(&block.requested) || block.requested == CUBLAS_LT) && is_kept(self.run, block)
    }
}

/// A pass shows that the run trains if it has gradients for at least one in this many of the blocks that existed before it.
const FEWEST_GRADIENTS: usize = 4;

/// Gradients are allocated at most this many entries after the backward pass has freed everything.
const LATEST: u32 = 60;

/// Gradients are allocated at most this many entries before the apparent turn.
const EARLIEST: u32 = 64;

/// The size of a small block.
const SMALL: u64 = 512;

/// The gradients that a pass allocated.
struct OfPass {
    /// The number of gradients of each size.
    sizes: BTreeMap<u64, usize>,
    /// The moment at which the last gradient is freed, among the gradients that are freed in the same way as most others; for
    /// a pass without gradients, the value of the passes before it.
    freed: u32,
    /// The moment after the first gradient was allocated.
    first: u32,
}

impl OfPass {
    fn count(&self) -> usize {
        self.sizes.values().sum()
    }
}

/// The gradients of a run.
#[derive(Default)]
struct Gradients {
    /// The evidence by which each gradient was recognised, keyed by the block's index.
    told: FxHashMap<usize, How>,
    /// The gradients that each pass allocated.
    passes: Vec<OfPass>,
    /// Whether some pass has gradients for a plausible share of the blocks.
    are_plausible: bool,
}

/// Blocks in use that were allocated outside the passes, by size; excludes those that were allocated while gradients were
/// live, as optimizer states are.
struct Pool {
    counts: FxHashMap<u64, usize>,
    ends: BinaryHeap<Reverse<(u32, u64)>>,
    next: usize,
}

impl Pool {
    /// Advances to a pass's turn. `gradients` are those of the passes before it.
    fn go_to(&mut self, run: &Run<'_>, turn: u32, gradients: &[OfPass]) {
        let is_state = |block: &BlockLife| match run.section(block.born) {
            Section::Between(after) if after > 0 => {
                let has_gradients = gradients.get(after - 1).is_some_and(|of| block.born < of.freed);
                has_gradients || run.optimizer_end(block).is_some()
            }
            _ => false,
        };
        while let Some(block) = run.blocks.get(self.next).filter(|block| block.born <= turn) {
            self.next += 1;
            if block.freed > turn && run.is_outside(block) && !is_state(block) {
                *self.counts.entry(size_of(block)).or_default() += 1;
                self.ends.push(Reverse((block.freed, size_of(block))));
            }
        }
        while let Some(Reverse((_, size))) = self.ends.peek().copied().filter(|&Reverse((freed, _))| freed <= turn) {
            self.ends.pop();
            if let Some(count) = self.counts.get_mut(&size) {
                *count -= 1;
            }
        }
    }
}

/// Finds the gradients of all passes.
///
/// A pass turns no later than its first gradient; the function corrects the turn accordingly.
fn gradients(run: &mut Run<'_>) -> Gradients {
    let mut found = Gradients::default();
    let mut pool = Pool { counts: FxHashMap::default(), ends: BinaryHeap::new(), next: 0 };
    // The pass with the most gradients so far, and their number.
    let (mut most, mut model) = (0, 0);
    for number in 0..run.passes.len() {
        pool.go_to(run, run.passes[number].turn, &found.passes);
        let expected = if most > 0 { most } else { pool.ends.len() };
        let fewest = if most == 0 && !run.optimizer.is_empty() { 1 } else { expected.div_ceil(FEWEST_GRADIENTS) };
        let sizes = (most > 0).then(|| &found.passes[model].sizes);
        let mut of_pass = one_pass(run, number, &Expected { pool: &pool, fewest, model: sizes }, &mut found.told);
        if of_pass.sizes.is_empty() {
            of_pass.freed = found.passes.last().map_or(0, |before| before.freed);
        }
        let pass = &mut run.passes[number];
        pass.turn = pass.turn.min(of_pass.first.saturating_sub(1)).max(pass.start);
        if of_pass.count() > most {
            (most, model) = (of_pass.count(), number);
        }
        found.are_plausible |= of_pass.count() > 1 && of_pass.count() * FEWEST_GRADIENTS >= pool.ends.len();
        found.passes.push(of_pass);
    }
    found
}

/// The values that a pass's gradients are compared with.
struct Expected<'a> {
    pool: &'a Pool,
    /// A pass with fewer gradients allocates no gradients: it accumulates into those of the pass before it.
    fewest: usize,
    /// The gradients of an earlier pass.
    model: Option<&'a BTreeMap<u64, usize>>,
}

impl Expected<'_> {
    /// Returns the largest possible number of gradients of a size; if the model is used as a guide, no more than the model
    /// has.
    fn of_size(&self, size: u64, follows: bool) -> usize {
        let pool = self.pool.counts.get(&size).copied().unwrap_or(0);
        let model = self.model.filter(|_| follows).map(|sizes| sizes.get(&size).copied().unwrap_or(0));
        pool.min(model.unwrap_or(pool))
    }
}

fn one_pass(run: &Run<'_>, number: usize, expected: &Expected<'_>, told: &mut FxHashMap<usize, How>) -> OfPass {
    let pass = run.passes[number];
    let next_start = run.passes.get(number + 1).map_or(NEVER, |next| next.start);
    let first = run.blocks.partition_point(|block| block.born <= pass.turn.saturating_sub(EARLIEST).max(pass.start));
    let last = run.blocks.partition_point(|block| block.born <= next_start.min(pass.end.saturating_add(LATEST)));
    // The last temporaries of a backward pass are freed shortly afterwards, one by one.
    let stays = |block: &BlockLife| block.freed.saturating_sub(block.born) > SHORT || run.runs.is_of_many(block);
    let is_candidate = |block: &BlockLife| block.freed > pass.end && run.optimizer_end(block).is_none() && stays(block);
    let candidates = || (first..last).filter(|&place| is_candidate(&run.blocks[place]));
    let is_backward = |place: &usize| run.section(run.blocks[*place].born) == Section::Backward(number);
    let fate = |place: usize| run.runs.of_block(&run.blocks[place]).unwrap_or(NEVER);
    let mut of_pass = OfPass { sizes: BTreeMap::new(), freed: 0, first: NEVER };
    let mut fates: BTreeMap<u32, usize> = BTreeMap::new();
    let has_partner = |place: usize| expected.of_size(size_of(&run.blocks[place]), false) > 0;
    for place in candidates().filter(is_backward).filter(|&place| has_partner(place)) {
        *fates.entry(fate(place)).or_default() += 1;
    }
    if fates.values().sum::<usize>() < expected.fewest {
        return of_pass;
    }
    let Some((&common, &most)) = fates.iter().max_by_key(|&(&fate, &count)| (count, Reverse(fate))) else { return of_pass };
    // Some programs free each gradient as soon as they have used it.
    let is_shared = most * 2 >= fates.values().sum();
    let shares = |place: usize| fate(place) == common;
    // Small blocks before the turn are losses rather than gradients.
    let may_be = |place: &usize| match is_backward(place) {
        true => !is_shared || shares(*place),
        false => shares(*place) && (run.blocks[*place].born > pass.turn || run.blocks[*place].requested > SMALL),
    };
    // A few blocks that the model does not account for are inputs to the next pass; many are gradients of another part of the
    // model.
    let is_new = |place: &usize| has_partner(*place) && expected.of_size(size_of(&run.blocks[*place]), true) == 0;
    let has_few_new = candidates().filter(is_backward).filter(is_new).count() < expected.fewest;
    for place in candidates().filter(may_be) {
        let size = size_of(&run.blocks[place]);
        let paired = of_pass.sizes.entry(size).or_default();
        if *paired < expected.of_size(size, has_few_new || run.is_outside(&run.blocks[place])) {
            *paired += 1;
            of_pass.first = of_pass.first.min(run.blocks[place].born);
            told.insert(place, How::Size);
        } else if is_backward(&place) && run.blocks[place].freed <= next_start && number + 1 < run.passes.len() {
            told.insert(place, How::Lifetime);
        }
    }
    of_pass.sizes.retain(|_, count| *count > 0);
    let of_common = candidates().filter(|place| shares(*place)).map(|place| run.blocks[place].freed);
    of_pass.freed = of_common.max().unwrap_or(pass.end);
    of_pass
}

/// The number of blocks of each size.
type Sizes = FxHashMap<u64, usize>;

/// An input is in use during at most this many passes: its own pass, and the next one while the program replaces it.
const LONGEST_INPUT: usize = 2;

/// cuBLAS's default workspaces: 32 MiB on Hopper and later, 8 MiB and 128 KiB on earlier devices.
const CUBLAS: [u64; 2] = [32 << 20, (8 << 20) + (128 << 10)];
/// The workspace of cuBLASLt.
const CUBLAS_LT: u64 = 1 << 20;

/// An optimizer keeps states for at least one in this many parameters, if only sizes identify them.
const FEWEST_STATES: usize = 4;

/// Returns the classification of the kept blocks, by index.
fn kept(run: &Run<'_>, gradients: &Gradients) -> FxHashMap<usize, Told> {
    let mut first_turns: Vec<Vec<usize>> = vec![Vec::new(); run.passes.len()];
    for (place, block) in run.blocks.iter().enumerate() {
        let turns = run.turns(block);
        if !turns.is_empty() && run.is_outside(block) && !gradients.told.contains_key(&place) {
            first_turns[turns.start].push(place);
        }
    }
    let mut told = FxHashMap::default();
    // The sizes of the parameters found so far, with the passes until which they are in use.
    let mut parameters: Vec<(u64, usize)> = Vec::new();
    for (pass, places) in first_turns.iter().enumerate() {
        parameters.retain(|&(_, until)| until > pass);
        let mut sizes = Sizes::default();
        parameters.iter().for_each(|&(size, _)| *sizes.entry(size).or_default() += 1);
        let known = parameters.len();
        let mut rest = Vec::new();
        let by_size = places.iter().filter(|&&place| is_state(run, gradients, place, &sizes) == Some(How::Size)).count();
        let are_states = by_size * FEWEST_STATES >= known;
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

/// Returns whether a block is an optimizer state: allocated during the optimizer's step, or of a parameter's size and
/// allocated while gradients are live.
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

/// Returns, for a recording whose oldest entries are missing, the number of blocks of each gradient size that are optimizer
/// states: the same number for each parameter. Only their number is known, not which blocks of a size they are.
fn early_states(run: &Run<'_>, gradients: &Gradients, rest: &[usize]) -> Sizes {
    let mut counts = Sizes::default();
    for &place in rest.iter().filter(|&&place| run.blocks[place].born == 0) {
        *counts.entry(size_of(&run.blocks[place])).or_default() += 1;
    }
    let Some(of_pass) = gradients.passes.first() else { return Sizes::default() };
    let mut factors: BTreeMap<usize, usize> = BTreeMap::new();
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

/// Returns whether a library allocated a block right before the first pass: cuBLAS's workspace has a rare size, and
/// cuBLASLt's follows it.
fn is_workspace_before(run: &Run<'_>, place: usize) -> bool {
    let is_one = |place: usize, sizes: &[u64]| {
        run.blocks.get(place).is_some_and(|block| block.born > 0 && sizes.contains(&block.requested) && is_kept(run, block))
    };
    is_one(place, &CUBLAS) || (is_one(place, &[CUBLAS_LT]) && place > 0 && is_one(place - 1, &CUBLAS))
}

/// Libraries keep their workspaces.
fn is_kept(run: &Run<'_>, block: &BlockLife) -> bool {
    block.freed == NEVER || run.turns(block).len() > 1
}

/// Classifies the blocks that are not parameters with gradients. `era_end` is the pass until which the parameters of this
/// pass are in use, if new parameters replace them.
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
            // With only one pass, a buffer and an input look the same.
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
