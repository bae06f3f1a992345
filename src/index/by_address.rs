//! The free blocks of one stream in the order of their addresses, for rules that want the lowest address that is large enough.
//!
//! Kept beside the order by size, and only where a policy asks for it. A sorted sequence in short runs, each of which knows its largest
//! block: a search skips the runs in which nothing is large enough and walks one.

use alloc::vec;
use alloc::vec::Vec;

/// A run that would grow beyond this is cut in two.
const LONGEST_RUN: usize = 64;

/// A free block: first byte, bytes, slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    address: u64,
    size: u64,
    index: u32,
}

/// Never empty.
#[derive(Clone, Debug)]
struct Run {
    largest: u64,
    entries: Vec<Entry>,
}

impl Run {
    fn new(entries: Vec<Entry>) -> Run {
        Run { largest: entries.iter().map(|entry| entry.size).max().unwrap_or(0), entries }
    }
}

/// Free blocks by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByAddress {
    runs: Vec<Run>,
}

impl ByAddress {
    /// The run in which an address lies or would lie.
    fn run_of(&self, address: u64) -> usize {
        self.runs.partition_point(|run| run.entries[0].address <= address).saturating_sub(1)
    }

    /// Puts a block in. Its address and size must not change while it is in.
    pub(crate) fn insert(&mut self, address: u64, size: u64, index: u32) {
        let entry = Entry { address, size, index };
        let at = self.run_of(address);
        let Some(run) = self.runs.get_mut(at) else {
            self.runs.push(Run::new(vec![entry]));
            return;
        };
        let place = run.entries.partition_point(|other| other.address < address);
        run.entries.insert(place, entry);
        run.largest = run.largest.max(size);
        if run.entries.len() > LONGEST_RUN {
            let high = Run::new(run.entries.split_off(LONGEST_RUN / 2));
            let low = Run::new(core::mem::take(&mut run.entries));
            self.runs[at] = low;
            self.runs.insert(at + 1, high);
        }
    }

    /// Takes a block out that is in.
    pub(crate) fn remove(&mut self, address: u64) {
        let at = self.run_of(address);
        let Some(run) = self.runs.get_mut(at) else { return debug_assert!(false, "no block was in the order by address") };
        let Ok(place) = run.entries.binary_search_by_key(&address, |entry| entry.address) else {
            return debug_assert!(false, "a block left the order by address that was not in it");
        };
        let gone = run.entries.remove(place);
        if run.entries.is_empty() {
            self.runs.remove(at);
        } else if gone.size == run.largest {
            run.largest = run.entries.iter().map(|entry| entry.size).max().unwrap_or(0);
        }
    }

    /// The lowest block with at least `size` bytes among those that end behind `from`.
    pub(crate) fn lowest_at_least(&self, size: u64, from: u64) -> Option<u32> {
        let ends_behind = |entry: &&Entry| entry.size >= size && entry.address + entry.size > from;
        let runs = self.runs[self.run_of(from)..].iter().filter(|run| run.largest >= size);
        // Blocks do not overlap: of a run that begins before `from` only one block reaches behind it.
        runs.flat_map(|run| run.entries.iter()).find(ends_behind).map(|entry| entry.index)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_block_in_which_the_search_begins_counts() {
        let mut blocks = ByAddress::default();
        for (address, size) in [(0, 10), (20, 30), (60, 30)] {
            blocks.insert(address, size, address as u32);
        }
        assert_eq!(blocks.lowest_at_least(10, 0), Some(0));
        assert_eq!(blocks.lowest_at_least(11, 0), Some(20));
        assert_eq!(blocks.lowest_at_least(10, 49), Some(20));
        assert_eq!(blocks.lowest_at_least(10, 50), Some(60));
        assert_eq!(blocks.lowest_at_least(10, 90), None);
        assert_eq!(blocks.lowest_at_least(31, 0), None);
        blocks.remove(20);
        assert_eq!(blocks.lowest_at_least(11, 0), Some(60));
    }

    proptest! {
        /// The answers are those of a walk over all blocks in order.
        #[test]
        fn as_a_plain_walk(steps in vec((0_u64..400, 1_u64..=20, any::<bool>()), 1..600), asked in vec((0_u64..22, 0_u64..8200), 20)) {
            let mut blocks = ByAddress::default();
            let mut plain = BTreeMap::new();
            for (place, size, enters) in steps {
                let address = place * 20;
                if enters && !plain.contains_key(&address) {
                    plain.insert(address, size);
                    blocks.insert(address, size, place as u32);
                } else if !enters && plain.remove(&address).is_some() {
                    blocks.remove(address);
                }
            }
            for (size, from) in asked {
                let expected = plain.iter().find(|&(&address, &own)| own >= size && address + own > from);
                prop_assert_eq!(blocks.lowest_at_least(size, from), expected.map(|(&address, _)| (address / 20) as u32));
            }
        }
    }
}
