//! Who holds the memory at a moment, summed by kind.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parkade_recording::StackId;

use super::by_steps::StepLife;
use super::classify::Holders;
use super::kind::{How, Kind, Told};
use crate::timeline::{BlockLife, HeapLog};

/// A number of live blocks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// Their bytes, after rounding.
    pub bytes: u64,
    /// How many there are.
    pub blocks: u64,
}

impl Held {
    fn add(&mut self, block: &BlockLife) {
        self.bytes = self.bytes.saturating_add(block.size);
        self.blocks += 1;
    }
}

/// The live blocks of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KindUse {
    /// Their kind.
    pub kind: Kind,
    /// All of them.
    pub held: Held,
    /// The same, by how they were told; the most bytes first.
    pub told_by: Vec<(How, Held)>,
    /// Those of them that are in use at the end of a step.
    pub across_steps: Held,
    /// Those that are made and freed within one step. Of the rest neither is known.
    pub within_step: Held,
}

/// The live blocks without a stack, in a recording that has stacks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WithoutStack {
    /// Made on threads without Python calls, as autograd's are: typically in a backward pass.
    pub autograd: Held,
    /// Made before the first entry; the file has no stacks for what was freed before its end.
    pub early: Held,
}

/// The live blocks at a moment with their indices in the log.
pub(super) fn live(log: &HeapLog, moment: u32) -> impl Iterator<Item = (usize, &BlockLife)> {
    log.blocks.iter().enumerate().filter(move |(_, block)| block.born <= moment && moment < block.freed)
}

impl Holders {
    /// The live blocks at a moment by kind, the most bytes first. Kinds without a block are left out.
    #[must_use]
    pub fn at(&self, log: &HeapLog, moment: u32) -> Vec<KindUse> {
        let mut sums: BTreeMap<Told, Held> = BTreeMap::new();
        let mut lives: BTreeMap<(Kind, StepLife), Held> = BTreeMap::new();
        for (place, block) in live(log, moment) {
            let told = self.told.get(place).copied().unwrap_or(Told::NOTHING);
            sums.entry(told).or_default().add(block);
            lives.entry((told.kind, self.lives.get(place).copied().unwrap_or(StepLife::NotTold))).or_default().add(block);
        }
        let living = |kind, life| lives.get(&(kind, life)).copied().unwrap_or_default();
        let of_kind = |kind: Kind| {
            let mut told_by: Vec<(How, Held)> =
                sums.iter().filter(|(told, _)| told.kind == kind).map(|(told, &held)| (told.how, held)).collect();
            told_by.sort_by_key(|&(how, held)| (Reverse(held.bytes), how));
            let held = told_by.iter().fold(Held::default(), |sum, (_, held)| Held {
                bytes: sum.bytes.saturating_add(held.bytes),
                blocks: sum.blocks + held.blocks,
            });
            let (across_steps, within_step) = (living(kind, StepLife::Across), living(kind, StepLife::Within));
            KindUse { kind, held, told_by, across_steps, within_step }
        };
        let mut uses: Vec<KindUse> = Kind::ALL.into_iter().map(of_kind).filter(|used| used.held.blocks > 0).collect();
        uses.sort_by_key(|used| (Reverse(used.held.bytes), used.kind));
        uses
    }

    /// What the live blocks without a stack are; `None` if the file has no stacks.
    #[must_use]
    pub fn without_stack(&self, log: &HeapLog, moment: u32) -> Option<WithoutStack> {
        let mut sums = WithoutStack::default();
        for (_, block) in live(log, moment).filter(|(_, block)| block.stack == StackId::NONE) {
            if block.born == 0 { sums.early.add(block) } else { sums.autograd.add(block) }
        }
        self.has_stacks.then_some(sums)
    }
}
