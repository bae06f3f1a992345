//! What the life of a block says of it: when it was made and freed, against the passes of the run.

use rustc_hash::{FxHashMap, FxHashSet};

use super::gradients::{Gradients, gradients};
use super::kept::{CUBLAS, CUBLAS_LT, is_kept, kept};
use super::kind::{How, Kind, Told};
use super::passes::Section;
use super::run::{Run, size_of};
use crate::timeline::BlockLife;

/// A block that is freed within so many entries is a temporary wherever it is made.
pub(super) const SHORT: u32 = 30;
/// Tells blocks by their lives.
pub(super) struct Lives<'r, 'a> {
    run: &'r Run<'a>,
    gradients: Gradients,
    kept: FxHashMap<usize, Told>,
    /// The sizes of blocks that a forward pass after the first made and that outlived the next one.
    made_again: FxHashSet<u64>,
}

impl<'r, 'a> Lives<'r, 'a> {
    /// `run` loses its passes if nothing shows that they train.
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
        // What an out-of-memory error freed was not done with.
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
            // An output that the program still names.
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
