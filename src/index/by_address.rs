//! The free blocks of one stream in the order of their addresses, for rules that want the lowest address that is large enough.
//!
//! Kept beside the order by size, and only where a policy asks for it. A sorted sequence in short runs, each of which knows its largest
//! block: a search skips the runs in which nothing is large enough and walks one. What leaves keeps its place until something new comes
//! there, which is mostly at once: the rest of a block that was cut, or the block into which two others merged. So hardly anything moves.

use alloc::vec;
use alloc::vec::Vec;

/// A run that is as long as this is cleared of what has left, and cut in two if it is still longer than [`LONG_RUN`].
const LONGEST_RUN: usize = 64;
const LONG_RUN: usize = 48;

/// A free block: first byte, bytes, slot. With no bytes, the place of one that has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    address: u64,
    size: u64,
    index: u32,
}

/// Some blocks in a row, at least one.
#[derive(Clone, Debug)]
struct Run {
    largest: u64,
    live: usize,
    entries: Vec<Entry>,
}

impl Run {
    /// Of blocks none of which has left.
    fn new(entries: Vec<Entry>) -> Run {
        Run { largest: largest_of(&entries), live: entries.len(), entries }
    }

    /// The place of the first entry whose address is not lower.
    #[inline]
    fn place_of(&self, address: u64) -> usize {
        self.entries.partition_point(|entry| entry.address < address)
    }

    fn insert(&mut self, entry: Entry) {
        let place = self.place_of(entry.address);
        debug_assert!(
            self.entries.get(place).is_none_or(|other| other.address != entry.address || other.size == 0),
            "a block entered the order by address twice"
        );
        let is_vacant = |place: usize| self.entries.get(place).is_some_and(|other| other.size == 0);
        if is_vacant(place) {
            self.entries[place] = entry;
        } else if place > 0 && is_vacant(place - 1) {
            self.entries[place - 1] = entry;
        } else {
            self.entries.insert(place, entry);
        }
        self.live += 1;
        self.largest = self.largest.max(entry.size);
    }
}

fn largest_of(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.size).max().unwrap_or(0)
}

/// Free blocks by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByAddress {
    runs: Vec<Run>,
}

impl ByAddress {
    /// The run in which an address lies or would lie.
    #[inline]
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
        run.insert(entry);
        if run.entries.len() >= LONGEST_RUN {
            self.shorten(at);
        }
    }

    #[cold]
    fn shorten(&mut self, at: usize) {
        let run = &mut self.runs[at];
        run.entries.retain(|entry| entry.size != 0);
        if run.entries.len() > LONG_RUN {
            let high = run.entries.split_off(run.entries.len() / 2);
            *run = Run::new(core::mem::take(&mut run.entries));
            self.runs.insert(at + 1, Run::new(high));
        }
    }

    /// Takes a block out that is in.
    pub(crate) fn remove(&mut self, address: u64) {
        let at = self.run_of(address);
        let Some(run) = self.runs.get_mut(at) else { return debug_assert!(false, "no block was in the order by address") };
        let place = run.place_of(address);
        let Some(entry) = run.entries.get_mut(place).filter(|entry| entry.address == address && entry.size != 0) else {
            return debug_assert!(false, "a block left the order by address that was not in it");
        };
        let size = core::mem::take(&mut entry.size);
        run.live -= 1;
        if run.live == 0 {
            self.runs.remove(at);
        } else if size == run.largest {
            run.largest = largest_of(&run.entries);
        }
    }

    /// The lowest block with at least `size` bytes, which are at least one, among those that end behind `from`.
    pub(crate) fn lowest_at_least(&self, size: u64, from: u64) -> Option<u32> {
        let size = size.max(1);
        // Blocks do not overlap: of those that begin before `from` only the last reaches behind it, and it may be in the run before.
        let runs = self.runs[self.run_of(from).saturating_sub(1)..].iter().filter(|run| run.largest >= size);
        let ends_behind = |entry: &&Entry| entry.size >= size && entry.address + entry.size > from;
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

    /// Two neighbours merge across the end of a run: the block lies in the first run, and ends behind where the second one begins.
    #[test]
    fn a_block_may_reach_into_the_next_run() {
        let mut blocks = ByAddress::default();
        for place in 0..100 {
            blocks.insert(place * 20, 10, place as u32);
        }
        let starts: Vec<u64> = blocks.runs.iter().map(|run| run.entries[0].address).collect();
        assert!(starts.len() > 1);
        let head = starts[1];
        blocks.remove(head - 20);
        blocks.remove(head);
        blocks.insert(head - 20, 40, 1000);
        assert_eq!(blocks.lowest_at_least(5, head + 5), Some(1000));
    }

    proptest! {
        /// The answers are those of a walk over all blocks in order.
        #[test]
        fn as_a_plain_walk(
            steps in vec((0_u64..4000, 1_u64..=60, any::<bool>()), 1..900),
            asked in vec((0_u64..62, 0_u64..4100), 20),
        ) {
            let mut blocks = ByAddress::default();
            let mut plain = BTreeMap::new();
            for (address, size, enters) in steps {
                if enters {
                    // Blocks do not overlap.
                    let before = plain.range(..=address).next_back().map_or(0, |(&other, &size)| other + size);
                    let after = plain.range(address..).next().map_or(u64::MAX, |(&other, _)| other);
                    if before <= address && address < after {
                        let size = size.min(after - address);
                        plain.insert(address, size);
                        blocks.insert(address, size, address as u32);
                    }
                } else if let Some((&address, _)) = plain.range(address..).next() {
                    plain.remove(&address);
                    blocks.remove(address);
                }
            }
            for (size, from) in asked {
                let expected = plain.iter().find(|&(&address, &own)| own >= size && address + own > from);
                prop_assert_eq!(blocks.lowest_at_least(size, from), expected.map(|(&address, _)| address as u32));
            }
        }
    }
}
