//! Live memory by stack, as flamegraphs are drawn from: one line for each stack, outermost call first.
//!
//! Where a block has no stack, what was told of it and its size stand for calls.

use std::collections::BTreeMap;

use parkade_recording::{StackId, StackTable};

use super::classify::Holders;
use super::kind::Told;
use super::sums::live;
use crate::timeline::{BlockLife, HeapLog};

/// Live bytes that share a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Folded {
    /// The calls, the outermost first. Semicolons and control characters in names are replaced.
    pub frames: Vec<String>,
    /// Bytes of the blocks.
    pub bytes: u64,
}

impl Holders {
    /// The live blocks at a moment by stack, in the order of their stacks.
    #[must_use]
    pub fn folded(&self, log: &HeapLog, stacks: &StackTable, moment: u32) -> Vec<Folded> {
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
            let mut frames: Vec<String> =
                stacks.frames(stack).map(|frame| clean(&format!("{} ({}:{})", frame.name, frame.filename, frame.line))).collect();
            frames.reverse();
            let sum = sums.entry(frames).or_default();
            *sum = sum.saturating_add(bytes);
        }
        sums.into_iter().map(|(frames, bytes)| Folded { frames, bytes }).collect()
    }

    /// What stands for the calls of a block without a stack.
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

/// A power of two and the next one, between which a size lies.
fn size_class(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = bytes.max(512).ilog2();
    let unit = (power / 10).min(4);
    let low = 1_u64 << (power - 10 * unit);
    format!("[blocks of {low} to {} {}]", low.saturating_mul(2), UNITS[unit as usize])
}

/// A name that cannot be mistaken for two frames or two lines.
fn clean(name: &str) -> String {
    name.chars()
        .map(|c| match c {
            ';' => ':',
            // Also line separators and direction marks.
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
