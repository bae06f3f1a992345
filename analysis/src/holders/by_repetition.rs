//! A step that did not end, told by the step before: the same allocations in the same order.
//!
//! Where a run died, its last blocks were not freed, or freed because of the error, so their lives tell nothing. A program that repeats
//! itself makes the same allocations, often of other sizes. The two sequences are laid side by side; if they do not agree, nothing is
//! told.

use parkade_recording::StackId;

use super::by_lifetime::SHORT;
use super::kind::{How, Told};
use super::run::Run;

/// How far ahead the next agreement is sought where the sequences differ, and how many allocations must agree there.
const LONGEST_GAP: usize = 32;
const AGREEMENT: usize = 8;
/// So many allocations must agree in all, and this share of them, in percent.
const FEWEST: usize = 20;
const SHARE: usize = 90;

/// An allocation as far as two of them can be compared.
#[derive(Clone, Copy)]
struct Made {
    place: usize,
    stack: StackId,
    /// Whether it lives shortly; `None` if it might have.
    is_short: Option<bool>,
}

impl Made {
    fn is_like(self, other: Made) -> bool {
        self.stack == other.stack && (self.is_short.is_none() || other.is_short.is_none() || self.is_short == other.is_short)
    }
}

/// Tells what is not told yet of blocks behind the last pass. Returns the pairs of blocks that are alike: of the step before, and behind.
pub(super) fn tell(run: &Run<'_>, told: &mut [Told]) -> Vec<(usize, usize)> {
    let Some(last) = run.passes.last() else { return Vec::new() };
    let behind = made(run, last.end, run.until);
    let whole = run.passes.len().checked_sub(2).map(|before| made(run, run.passes[before].end, last.end));
    let mut pairs = whole.map(|whole| side_by_side(&whole, &behind)).unwrap_or_default();
    if pairs.is_empty() {
        // The first optimizer's step is not like the others, so only the pass itself is sought.
        let pass = made(run, last.start, last.end);
        let found = (0..behind.len()).map(|offset| side_by_side(&pass, &behind[offset..])).find(|pairs| !pairs.is_empty());
        pairs = found.unwrap_or_default();
    }
    for &(known, unknown) in &pairs {
        if told[unknown] == Told::NOTHING && told[known] != Told::NOTHING {
            told[unknown] = Told::new(told[known].kind, How::Repetition);
        }
    }
    pairs
}

fn made(run: &Run<'_>, from: u32, to: u32) -> Vec<Made> {
    let first = run.blocks.partition_point(|block| block.born <= from);
    let last = run.blocks.partition_point(|block| block.born <= to).max(first);
    let made = run.blocks[first..last].iter().enumerate().map(|(further, block)| {
        let lived = block.freed.min(run.until).saturating_sub(block.born);
        let is_short = if block.freed <= run.until || lived > SHORT { Some(lived <= SHORT) } else { None };
        Made { place: first + further, stack: block.stack, is_short }
    });
    made.collect()
}

/// The pairs of indices of blocks at the same place of both sequences; none if they do not agree.
fn side_by_side(model: &[Made], behind: &[Made]) -> Vec<(usize, usize)> {
    let (mut at, mut of) = (0, 0);
    let (mut pairs, mut differing) = (Vec::new(), 0);
    while let (Some(one), Some(other)) = (model.get(at), behind.get(of)) {
        if one.is_like(*other) {
            pairs.push((one.place, other.place));
            (at, of) = (at + 1, of + 1);
            continue;
        }
        let agree = |at: usize, of: usize| {
            let (one, other) = (model.get(at..).unwrap_or(&[]), behind.get(of..).unwrap_or(&[]));
            !one.is_empty() && !other.is_empty() && one.iter().zip(other).take(AGREEMENT).all(|(one, other)| one.is_like(*other))
        };
        let jumps = (1..=LONGEST_GAP).flat_map(|gap| [(gap, gap), (gap, 0), (0, gap)]);
        let Some((skipped, left_out)) = jumps.into_iter().find(|&(skipped, left_out)| agree(at + skipped, of + left_out)) else {
            differing += LONGEST_GAP;
            break;
        };
        differing += skipped.max(left_out);
        (at, of) = (at + skipped, of + left_out);
        if differing * SHARE > (pairs.len() + LONGEST_GAP) * (100 - SHARE) * 10 {
            break;
        }
    }
    let agrees = pairs.len() >= FEWEST && pairs.len() * 100 >= (pairs.len() + differing) * SHARE;
    if agrees { pairs } else { Vec::new() }
}
