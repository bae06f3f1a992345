//! Gradients of parameters: made in a backward pass, in use behind it, and one for each parameter of its size at most.
//!
//! The first layers' gradients are often made after the backward pass has freed everything. They are told by their end: gradients are
//! freed together, or never.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rustc_hash::FxHashMap;

use super::by_lifetime::SHORT;
use super::kind::How;
use super::passes::Section;
use super::run::{Run, size_of};
use crate::timeline::{BlockLife, NEVER};

/// A pass shows that the run trains if it has gradients for at least one in so many blocks that were there before.
const FEWEST_SHARE: usize = 4;

/// Gradients are made at most so many entries after the backward pass has freed everything.
const LATEST: u32 = 60;

/// Gradients are made at most so many entries before what looked like the turn.
const EARLIEST: u32 = 64;

/// The bytes of a small block.
const SMALL: u64 = 512;

/// The gradients that a pass made.
pub(super) struct OfPass {
    /// How many there are of each size.
    pub(super) sizes: BTreeMap<u64, usize>,
    /// The moment at which the last of most of them is freed; of a pass that makes none, of those of the passes before.
    pub(super) freed: u32,
    /// The moment after the first of them was made.
    first: u32,
}

impl OfPass {
    fn count(&self) -> usize {
        self.sizes.values().sum()
    }
}

/// The gradients of a run.
#[derive(Default)]
pub(super) struct Gradients {
    /// How each was told, by the block's index.
    pub(super) told: FxHashMap<usize, How>,
    /// What each pass made.
    pub(super) passes: Vec<OfPass>,
    /// Whether some pass has a gradient for a fair share of the blocks.
    pub(super) are_plausible: bool,
}

/// Blocks from outside of the passes that are in use, by size; without those that were made while gradients were there, as optimizer
/// states are.
struct Pool {
    counts: FxHashMap<u64, usize>,
    ends: BinaryHeap<Reverse<(u32, u64)>>,
    next: usize,
}

impl Pool {
    /// Goes on to a pass's turn. `gradients` are those of the passes before.
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
/// A pass turned before its first gradient at the latest; its turn is set accordingly.
pub(super) fn gradients(run: &mut Run<'_>) -> Gradients {
    let mut found = Gradients::default();
    let mut pool = Pool { counts: FxHashMap::default(), ends: BinaryHeap::new(), next: 0 };
    // The pass with the most gradients so far, and how many.
    let (mut most, mut model) = (0, 0);
    for number in 0..run.passes.len() {
        pool.go_to(run, run.passes[number].turn, &found.passes);
        let expected = if most > 0 { most } else { pool.ends.len() };
        let fewest = if most == 0 && !run.optimizer.is_empty() { 1 } else { expected.div_ceil(FEWEST_SHARE) };
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
        found.are_plausible |= of_pass.count() > 1 && of_pass.count() * FEWEST_SHARE >= pool.ends.len();
        found.passes.push(of_pass);
    }
    found
}

/// What a pass's gradients are compared with.
struct Expected<'a> {
    pool: &'a Pool,
    /// A pass with fewer makes none: it adds to those of the pass before.
    fewest: usize,
    /// The gradients of an earlier pass.
    model: Option<&'a BTreeMap<u64, usize>>,
}

impl Expected<'_> {
    /// How many gradients of a size there can be; no more than in the model, if it is followed.
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
    // The last temporaries of a backward pass are freed soon, one by one.
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
    // Some programs free each gradient as soon as it is used.
    let is_shared = most * 2 >= fates.values().sum();
    let shares = |place: usize| fate(place) == common;
    // Small blocks before the turn are losses rather than gradients.
    let may_be = |place: &usize| match is_backward(place) {
        true => !is_shared || shares(*place),
        false => shares(*place) && (run.blocks[*place].born > pass.turn || run.blocks[*place].requested > SMALL),
    };
    // A few blocks that the model has not are inputs of the next pass; many are another part of the model's gradients.
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
