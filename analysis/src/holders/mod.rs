//! Determines what holds the memory: parameters, gradients, optimizer states, activations, inputs, temporaries, workspaces,
//! caches.
//!
//! A recording does not state what a block is for. [`Holders::of`] infers it, in this order: by the Python calls of the
//! allocation (`by_stack`), if the file has them; by its lifetime relative to the forward and backward passes
//! (`by_lifetime`), which are found in the lifetimes of all blocks (`passes`), with gradients paired to parameters by size;
//! and, in an unfinished step, by the step before it (`by_steps`). If steps are known, by marks or by repetition, each block
//! is also classified as living within one step or across steps. The result records how each block was recognised; a block
//! that was not recognised is [`Kind::Unknown`].
//!
//! Lifetimes alone cannot distinguish everything: an input that the program does not keep is classified as an activation, and
//! a batch that is created once and used in all passes is classified as a parameter. In a run that does not train, only
//! short-lived blocks, blocks with calls, and blocks that its steps allocate are classified; blocks from before the steps are
//! not.
//!
//! [`Holders::at`] sums the live bytes at a given moment by kind, and [`Holders::folded`] sums them by stack, in the
//! input format for flame graphs: one line for each stack, outermost call first. For a block without a stack, its
//! classification and its size take the place of calls.

mod by_lifetime;
mod by_stack;
mod by_steps;
mod kind;
mod passes;

pub use by_steps::{StepLife, StepMark, Steps};
pub use kind::{How, Kind, Told};

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parkade_recording::{Annotation, DeviceRecording, StackId, StackTable};

use crate::stacks::StackNames;
use crate::timeline::{BlockLife, HeapLog};
use by_lifetime::Lives;
use by_stack::{Calls, Places};
use passes::{Run, has_stacks};

/// The classification of every block in a device's run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holders {
    /// One classification for each block in the log, in the log's order.
    pub told: Vec<Told>,
    /// Each block's lifetime relative to the steps; in an unfinished step, that of its counterpart in the step before.
    pub lives: Vec<StepLife>,
    /// The steps.
    pub steps: Steps,
    /// The number of forward passes, with their backward passes, that were found.
    pub passes: usize,
    /// Whether the file has stacks. If so, a block without a stack was allocated on a thread without Python calls, such as
    /// autograd's. If not, the file has no stacks or hardly any.
    pub has_stacks: bool,
}

impl Holders {
    /// Classifies the blocks of a device's run. `log` is that run's; `annotations` and `stacks` are those of the entire
    /// recording.
    #[must_use]
    pub fn of(log: &HeapLog, recording: &DeviceRecording, annotations: &[Annotation], stacks: &StackTable) -> Holders {
        let places = Places::of(stacks, log.blocks.iter().map(|block| block.stack));
        let mut run = Run::of(log, recording, annotations);
        let calls = Calls::of(&run, places);
        let lives = Lives::of(&mut run);
        let mut told: Vec<Told> = log.blocks.iter().enumerate().map(|(at, block)| calls.tell(block, lives.tell(at))).collect();
        let steps = Steps::of(recording, annotations);
        let mut in_steps: Vec<StepLife> = log.blocks.iter().map(|block| steps.life(block, run.until)).collect();
        for (known, unknown) in by_steps::tell_unfinished(&run, &mut told) {
            if in_steps[unknown] == StepLife::NotTold {
                in_steps[unknown] = in_steps[known];
            }
        }
        by_steps::tell(&run, &steps, &mut told);
        Holders { told, lives: in_steps, steps, passes: run.passes.len(), has_stacks: has_stacks(&log.blocks) }
    }
}

/// Live blocks: their bytes and their number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// The bytes of the blocks, after rounding.
    pub bytes: u64,
    /// The number of blocks.
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
    /// All live blocks of the kind.
    pub held: Held,
    /// The same blocks by the way they were recognised, the most bytes first.
    pub told_by: Vec<(How, Held)>,
    /// The part that is in use at the end of a step.
    pub across_steps: Held,
    /// The part that is allocated and freed within one step. For the remaining blocks, neither is known.
    pub within_step: Held,
}

/// The live blocks without a stack, in a recording that has stacks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WithoutStack {
    /// Allocated on threads without Python calls, such as autograd's: typically in a backward pass.
    pub autograd: Held,
    /// Allocated before the first entry; the file has stacks only for those of these blocks that were still live at its end.
    pub early: Held,
}

/// Returns the live blocks at a given moment, with their indices in the log.
fn live(log: &HeapLog, moment: u32) -> impl Iterator<Item = (usize, &BlockLife)> {
    log.blocks.iter().enumerate().filter(move |(_, block)| block.born <= moment && moment < block.freed)
}

impl Holders {
    /// Returns the live blocks at a given moment by kind, the most bytes first. Kinds without blocks are omitted.
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

    /// Returns the live blocks without a stack, or `None` if the file has no stacks.
    #[must_use]
    pub fn without_stack(&self, log: &HeapLog, moment: u32) -> Option<WithoutStack> {
        let mut sums = WithoutStack::default();
        for (_, block) in live(log, moment).filter(|(_, block)| block.stack == StackId::NONE) {
            if block.born == 0 { sums.early.add(block) } else { sums.autograd.add(block) }
        }
        self.has_stacks.then_some(sums)
    }
}

/// Live bytes that share a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Folded {
    /// The calls, the outermost first. Semicolons and control characters in names are replaced.
    pub frames: Vec<String>,
    /// The bytes of these blocks.
    pub bytes: u64,
}

impl Holders {
    /// Returns the live blocks at a given moment by stack, in the order of their stacks. `names` are the names of
    /// `stacks`.
    #[must_use]
    pub fn folded(&self, log: &HeapLog, (names, stacks): (&StackNames, &StackTable), moment: u32) -> Vec<Folded> {
        let mut by_stack: BTreeMap<StackId, u64> = BTreeMap::new();
        let mut sums: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for (place, block) in live(log, moment) {
            let sum = if block.stack == StackId::NONE {
                sums.entry(self.stand_ins(place, block)).or_default()
            } else {
                by_stack.entry(block.stack).or_default()
            };
            *sum = sum.saturating_add(block.size);
        }
        for (stack, bytes) in by_stack {
            let frames: Vec<String> = names.readable(stacks, stack).iter().map(|call| clean(call)).collect();
            let sum = sums.entry(frames).or_default();
            *sum = sum.saturating_add(bytes);
        }
        sums.into_iter().map(|(frames, bytes)| Folded { frames, bytes }).collect()
    }

    /// Returns the label that replaces the calls for a block without a stack.
    fn stand_ins(&self, place: usize, block: &BlockLife) -> Vec<String> {
        let kind = self.told.get(place).copied().unwrap_or(Told::NOTHING).kind.name();
        let why = match (self.has_stacks, block.born) {
            (false, _) => None,
            (true, 0) => Some("[no stack: before the first entry]"),
            (true, _) => Some("[no stack: autograd's threads]"),
        };
        why.into_iter().map(str::to_owned).chain([format!("[{kind}]"), size_class(block.size)]).collect()
    }
}

/// Returns the two neighbouring powers of two that a size lies between.
fn size_class(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = bytes.max(512).ilog2();
    let unit = (power / 10).min(4);
    let low = 1_u64 << (power - 10 * unit);
    format!("[blocks of {low} to {} {}]", low.saturating_mul(2), UNITS[unit as usize])
}

/// Returns a name that cannot be mistaken for two frames or two lines.
fn clean(name: &str) -> String {
    name.chars()
        .map(|c| match c {
            ';' => ':',
            // Line separators and direction marks are also replaced.
            c if c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                ' '
            }
            c => c,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names_are_readable() {
        let classes = [0, 512, 1 << 20, (3 << 20) + 1, 700 << 20, u64::MAX].map(size_class);
        let expected =
            ["512 to 1024 B", "512 to 1024 B", "1 to 2 MiB", "2 to 4 MiB", "512 to 1024 MiB", "8388608 to 16777216 TiB"];
        assert_eq!(classes, expected.map(|class| format!("[blocks of {class}]")));
        assert_eq!(clean("a;b\nc"), "a:b c");
    }
}
