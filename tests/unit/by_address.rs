//! The order by address against a plain walk over all blocks.

use alloc::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn entry(address: u64, size: u64, index: u64) -> Entry {
    Entry { address, size, index: index as u32 }
}

#[test]
fn the_block_in_which_the_search_begins_counts() {
    let mut blocks = ByAddress::default();
    for (address, size) in [(0, 10), (20, 30), (60, 30)] {
        blocks.insert(entry(address, size, address));
    }
    assert_eq!(blocks.lowest_at_least(10, 0), Some(0));
    assert_eq!(blocks.lowest_at_least(11, 0), Some(20));
    assert_eq!(blocks.lowest_at_least(10, 49), Some(20));
    assert_eq!(blocks.lowest_at_least(10, 50), Some(60));
    assert_eq!(blocks.lowest_at_least(10, 90), None);
    assert_eq!(blocks.lowest_at_least(31, 0), None);
    blocks.remove(20, Spot::default());
    assert_eq!(blocks.lowest_at_least(11, 0), Some(60));
}

/// Two neighbours coalesce across the end of a run: the block lies in the first run and ends after the second
/// one begins.
#[test]
fn a_block_may_reach_into_the_next_run() {
    let mut blocks = ByAddress::default();
    for place in 0..100 {
        blocks.insert(entry(place * 20, 10, place));
    }
    assert!(blocks.firsts.len() > 1);
    let head = blocks.firsts[1];
    blocks.remove(head - 20, Spot::default());
    blocks.remove(head, Spot { at: u32::MAX, place: u32::MAX });
    blocks.insert(entry(head - 20, 40, 1000));
    assert_eq!(blocks.lowest_at_least(5, head + 5), Some(1000));
}

/// Few blocks left of many do not stay spread over as many runs.
#[test]
fn runs_that_empty_join() {
    let mut blocks = ByAddress::default();
    for place in 0..10_000 {
        blocks.insert(entry(place * 20, 10, place));
    }
    let most = blocks.runs.len();
    for place in (0..10_000).filter(|place| place % 100 != 0) {
        blocks.remove(place * 20, Spot { at: 0, place: place as u32 });
    }
    assert!(most > 300 && blocks.runs.len() <= 2 * 100 / SPARSE, "{most} runs, then {}", blocks.runs.len());
}

/// One step of a heap, at an address in a range with some 100 blocks.
#[derive(Clone, Debug)]
enum Step {
    /// A block of at most `size` bytes becomes free; if `merges`, it coalesces with free neighbours that it
    /// touches.
    Enter { address: u64, size: u64, merges: bool },
    /// The first free block from `address` on is taken.
    Leave { address: u64 },
    /// `size` bytes are split off its front.
    Cut { address: u64, size: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let address = 0_u64..4000;
    prop_oneof![
        4 => (address.clone(), 1_u64..=60, any::<bool>()).prop_map(|(address, size, merges)| Step::Enter { address, size, merges }),
        2 => address.clone().prop_map(|address| Step::Leave { address }),
        3 => (address, 1_u64..=60).prop_map(|(address, size)| Step::Cut { address, size }),
    ]
}

/// Both orders take the same steps.
#[derive(Default)]
struct Both {
    blocks: ByAddress,
    plain: BTreeMap<u64, u64>,
    /// The place of each block when it was added.
    went: BTreeMap<u64, Spot>,
}

impl Both {
    fn insert(&mut self, address: u64, size: u64) {
        self.plain.insert(address, size);
        let spot = self.blocks.insert(entry(address, size, address));
        assert!(self.blocks.is_at(address, spot));
        self.went.insert(address, spot);
    }

    fn remove(&mut self, address: u64) -> u64 {
        self.blocks.remove(address, self.went[&address]);
        self.plain.remove(&address).expect("a block that is in")
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Enter { address, size, merges } => {
                // Blocks do not overlap.
                let before = self.plain.range(..=address).next_back().map(|(&other, &size)| (other, other + size));
                let after = self.plain.range(address..).next().map_or(u64::MAX, |(&other, _)| other);
                if before.is_some_and(|(_, end)| end > address) || address >= after {
                    return;
                }
                let (mut start, mut end) = (address, (address + size).min(after));
                if let Some((before, _)) = before.filter(|&(_, before_end)| merges && before_end == start) {
                    self.remove(before);
                    start = before;
                }
                if merges && end == after {
                    end += self.remove(after);
                }
                self.insert(start, end - start);
            }
            Step::Leave { address } => {
                if let Some((&address, _)) = self.plain.range(address..).next() {
                    self.remove(address);
                }
            }
            Step::Cut { address, size } => {
                let found = self.plain.range(address..).next().map(|(&address, &whole)| (address, whole));
                if let Some((address, whole)) = found.filter(|&(_, whole)| whole > size) {
                    self.remove(address);
                    self.insert(address + size, whole - size);
                }
            }
        }
    }
}

proptest! {
    /// Order and answers are those of a walk over all blocks, and the arrays agree with the runs.
    #[test]
    fn as_a_plain_walk(
        filled in 0_u64..400,
        steps in vec(step(), 1..900),
        asked in vec((0_u64..62, 0_u64..4100), 20),
    ) {
        let mut both = Both::default();
        (0..filled).for_each(|place| both.insert(place * 10, 1 + place % 9));
        steps.iter().for_each(|step| both.take(step));
        let Both { blocks, plain, .. } = &both;
        let all: Vec<(u64, u64)> = blocks.entries().map(|entry| (entry.address, entry.size)).collect();
        prop_assert_eq!(all, plain.iter().map(|(&address, &size)| (address, size)).collect::<Vec<_>>());
        prop_assert!(blocks.knows_its_runs());
        for (size, from) in asked {
            let expected = plain.iter().find(|&(&address, &own)| own >= size && address + own > from);
            prop_assert_eq!(blocks.lowest_at_least(size, from), expected.map(|(&address, _)| address as u32));
        }
    }
}
