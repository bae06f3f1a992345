//! The bins give the same answers as the tree.

use alloc::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use super::directory::bin_of;
use super::{BinnedBlocks, LONGEST_LIST, OVERSIZED};
use crate::block::{Arena, Block, BlockState, NIL};
use crate::index::ordered::OrderedBlocks;

/// Both indexes over the same blocks.
struct Both {
    /// The bins write into it.
    arena: Arena,
    bins: BinnedBlocks,
    tree: OrderedBlocks,
    inside: Vec<u32>,
    ever: u64,
}

impl Default for Both {
    fn default() -> Both {
        let (bins, tree) = (BinnedBlocks::default(), OrderedBlocks::default());
        Both { arena: Arena::new(false), bins, tree, inside: Vec::new(), ever: 0 }
    }
}

impl Both {
    /// Adds a block at an address of its own. Successive addresses are far apart and unordered.
    fn insert(&mut self, size: u64, rank: u32) {
        self.ever += 1;
        let address = self.ever.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = self.arena.insert(Block {
            address,
            size,
            requested: 0,
            stamp: self.ever * 5 % 7,
            prev: NIL,
            next: NIL,
            link_prev: 7,
            link_next: 7,
            generation: 0,
            rank,
            stream: 0,
            pool: 0,
            bin: 0,
            state: BlockState::Free,
            marks: crate::block::Marks::default(),
        });
        self.bins.insert(&mut self.arena, index);
        self.tree.insert(&mut self.arena, index);
        self.inside.push(index);
    }

    fn remove(&mut self, place: usize) {
        let index = self.inside.swap_remove(place % self.inside.len());
        self.bins.remove(&mut self.arena, index);
        self.tree.remove(&mut self.arena, index);
        self.arena.remove(index);
    }

    fn same_first(&self, size: u64) {
        let arena = &self.arena;
        assert_eq!(self.bins.first_at_least(arena, size), self.tree.first_at_least(arena, size), "first of at least {size}");
        assert_eq!(self.bins.largest(arena), self.tree.largest(arena));
    }

    fn same_walks(&self, size: u64) {
        let arena = &self.arena;
        assert!(self.bins.at_least(arena, size).eq(self.tree.at_least(arena, size)), "at least {size}");
        if let Some(first) = self.tree.first_at_least(arena, size) {
            assert_eq!(self.bins.first_behind(arena, first), self.tree.at_least(arena, size).nth(1), "behind {size}");
        }
        assert!(self.bins.below(arena, size).eq(self.tree.below(arena, size)), "below {size}");
    }

    /// Every question that can be asked with a block's size, or with its neighbours.
    fn same_everywhere(&self) {
        for &index in &self.inside {
            let size = self.arena.at(index).size;
            for wanted in [size - 1, size, size.saturating_add(1)] {
                self.same_first(wanted);
            }
        }
        for size in [0, 1, 512, 1 << 20, 1 << 40, u64::MAX] {
            self.same_walks(size);
        }
        self.well_formed();
    }

    /// Lists are short, links agree, oversized bins are known to the directory.
    fn well_formed(&self) {
        let mut oversized = 0;
        let mut next = self.bins.directory.first_from(0);
        while let Some(bin) = next {
            let entry = self.bins.directory.get(bin);
            if entry.count == OVERSIZED {
                assert_eq!(self.bins.oversized[entry.head as usize].0, bin);
                oversized += 1;
            } else {
                assert!((1..=LONGEST_LIST).contains(&entry.count));
                let mut before = NIL;
                let mut count = 0;
                for index in super::list(&self.arena, entry.head) {
                    assert_eq!(self.arena.at(index).link_prev, before);
                    assert_eq!(bin_of(self.arena.at(index).size), bin);
                    before = index;
                    count += 1;
                }
                assert_eq!(count, entry.count);
            }
            next = self.bins.directory.first_after(bin);
        }
        assert_eq!(oversized, self.bins.oversized.len());
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert { size: u64, rank: u32 },
    Remove(usize),
    First(u64),
    Walk(u64),
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        // Few sizes, many times each: exact bins, one wide one, the last one.
        8 => prop::sample::select(alloc::vec![512, 1024, 2 << 20, 20 << 20, 1 << 47, u64::MAX]),
        // Oversized bins with different sizes.
        8 => (0..2_000_u64).prop_map(|step| (64 << 20) + step * 512),
        4 => (0..1_000_u64).prop_map(|step| (1 << 41) + step),
        // Not multiples of a unit.
        4 => 1..5_000_u64,
        // Anything, evenly by magnitude.
        6 => (0..64_u32, any::<u64>()).prop_map(|(shift, bits)| (bits >> shift).max(1)),
    ]
}

fn step(insertions: u32) -> impl Strategy<Value = Step> {
    let rank = prop_oneof![6 => Just(0), 1 => 0..3_u32, 1 => any::<u32>()];
    prop_oneof![
        insertions => (size(), rank).prop_map(|(size, rank)| Step::Insert { size, rank }),
        4 => any::<usize>().prop_map(Step::Remove),
        4 => size().prop_map(Step::First),
        1 => size().prop_map(Step::Walk),
    ]
}

fn perform(both: &mut Both, step: Step) {
    match step {
        Step::Insert { size, rank } => both.insert(size, rank),
        Step::Remove(_) if both.inside.is_empty() => {}
        Step::Remove(place) => both.remove(place),
        Step::First(size) => both.same_first(size),
        Step::Walk(size) => both.same_walks(size),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Mostly growing, mostly shrinking, then to nothing: bins become oversized and lists again.
    #[test]
    fn bins_answer_as_the_tree_does(up in vec(step(8), 0..600), down in vec(step(2), 0..600)) {
        let mut both = Both::default();
        for step in up {
            perform(&mut both, step);
        }
        both.same_everywhere();
        for step in down {
            perform(&mut both, step);
        }
        both.same_everywhere();
        while !both.inside.is_empty() {
            both.remove(0);
            both.same_first(1);
        }
        prop_assert!(both.bins.oversized.is_empty() && both.bins.directory.first_from(0).is_none());
    }

    /// A larger size never has a smaller bin.
    #[test]
    fn bins_are_monotone(a in size(), b in size()) {
        prop_assert!(bin_of(a.min(b)) <= bin_of(a.max(b)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Thousands of blocks: oversized bins of many chunks, which split and join.
    #[test]
    fn thousands_of_blocks_keep_their_order(blocks in vec((size(), 0..2_u32), 5_000), places in vec(any::<usize>(), 4_900)) {
        let mut both = Both::default();
        for &(size, rank) in &blocks {
            both.insert(size, rank);
        }
        both.same_everywhere();
        for (number, &place) in places.iter().enumerate() {
            both.remove(place);
            both.same_first(blocks[number].0);
            if number.is_multiple_of(500) {
                both.same_walks(blocks[number].0);
                both.well_formed();
            }
        }
        both.same_everywhere();
    }
}

/// Every bin of one size, and both edges of every wider one.
#[test]
fn bins_have_the_promised_widths() {
    for units in 0..256 {
        assert_eq!(bin_of(units * 512), units as usize);
        assert_eq!(bin_of(units * 512 + 511), units as usize);
    }
    for shift in 1..31 {
        for mantissa in 128..256_u64 {
            let first = (mantissa << shift) * 512;
            let bin = 128 * shift as usize + mantissa as usize;
            assert_eq!((bin_of(first - 1), bin_of(first)), (bin - 1, bin));
        }
    }
    assert_eq!((bin_of(1 << 47), bin_of(u64::MAX)), (4_095, 4_095));
}

/// An oversized bin emptied from its low end, as allocation does, or from its high end, joins chunks on the
/// way.
#[test]
fn oversized_bins_drain_from_either_end() {
    for low in [true, false] {
        let mut both = Both::default();
        for number in 0..3_000 {
            both.insert((2 << 20) + number % 2 * 512, 0);
        }
        let end = |both: &Both| both.bins.below(&both.arena, u64::MAX).next();
        while let Some(index) = if low { both.bins.first_at_least(&both.arena, 0) } else { end(&both) } {
            let place = both.inside.iter().position(|&other| other == index).expect("the index holds what was put in");
            both.remove(place);
            both.same_first(2 << 20);
        }
        assert!(both.inside.is_empty());
    }
}

/// An oversized bin of one size accepts another size, smaller or larger, and loses it again.
#[test]
fn an_oversized_bin_of_one_size_takes_other_sizes() {
    let usual = (64 << 20) + 1_024;
    for other in [usual - 512, usual + 512, usual - 1, usual + 1] {
        assert_eq!(bin_of(usual), bin_of(other));
        let mut both = Both::default();
        for _ in 0..40 {
            both.insert(usual, 0);
        }
        both.insert(other, 0);
        both.same_everywhere();
        both.remove(40);
        both.same_everywhere();
    }
}

/// Many streams never hold a block; most hold small ones.
#[test]
fn an_empty_index_is_small() {
    assert!(size_of::<BinnedBlocks>() <= 64);
}
