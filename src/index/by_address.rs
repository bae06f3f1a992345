//! The free blocks of one stream by address, for rules that take the lowest block that is large enough.
//!
//! The blocks form one sequence, which is cut into short runs. A search reads one number of each run that it passes, and
//! the blocks of at most two runs.

use alloc::vec;
use alloc::vec::Vec;

use crate::block::Block;

/// The maximum number of blocks in a run; a longer run is cut in two.
const LONGEST: usize = 32;
/// Adjacent runs with at most this many blocks together are joined. It is well below [`LONGEST`], so that a run is not
/// cut and joined back and forth.
const JOINED: usize = LONGEST / 2;

/// A free block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    address: u64,
    size: u64,
    index: u32,
}

/// A run's first address and its largest size, which are kept apart from the blocks, so that a search reads them in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head {
    first: u64,
    largest: u64,
}

impl Head {
    /// The head of a run, which has at least one block.
    fn of(run: &[Entry]) -> Head {
        Head { first: run[0].address, largest: run.iter().map(|entry| entry.size).fold(0, u64::max) }
    }
}

/// Free blocks ordered by address. They do not overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByAddress {
    heads: Vec<Head>,
    /// The runs, each with at least one block.
    runs: Vec<Vec<Entry>>,
}

impl ByAddress {
    /// The run that contains a block at this address or would contain it, and the block's place in the run.
    fn place_of(&self, address: u64) -> (usize, usize) {
        let number = self.heads.partition_point(|head| head.first <= address).saturating_sub(1);
        let place = self.runs.get(number).map_or(0, |run| run.partition_point(|entry| entry.address < address));
        (number, place)
    }

    /// Adds a block. Its address and size must not change until it is removed, except by [`ByAddress::cut`].
    pub(super) fn insert(&mut self, block: &Block, index: u32) {
        let entry = Entry { address: block.address, size: block.size, index };
        let (number, place) = self.place_of(entry.address);
        let Some(run) = self.runs.get_mut(number) else { return self.insert_run(number, vec![entry]) };
        run.insert(place, entry);
        let head = &mut self.heads[number];
        *head = Head { first: run[0].address, largest: head.largest.max(entry.size) };
        if run.len() > LONGEST {
            let high = run.split_off(LONGEST / 2);
            self.heads[number] = Head::of(run);
            self.insert_run(number + 1, high);
        }
    }

    /// Removes a block that is in the order.
    pub(super) fn remove(&mut self, block: &Block) {
        let (number, place) = self.place_of(block.address);
        let run = &mut self.runs[number];
        let gone = run.remove(place);
        debug_assert_eq!(gone.address, block.address, "a block that is not in the order by address was removed");
        if run.is_empty() {
            return self.remove_run(number);
        }
        self.renew_head(number, gone.size);
        self.join(number);
        if number > 0 {
            self.join(number - 1);
        }
    }

    /// Takes the low `bytes` off a block that is in the order, before the block itself changes.
    pub(super) fn cut(&mut self, block: &Block, bytes: u64) {
        let (number, place) = self.place_of(block.address);
        let entry = &mut self.runs[number][place];
        debug_assert_eq!(entry.address, block.address, "a block that is not in the order by address was cut");
        let whole = entry.size;
        (entry.address, entry.size) = (entry.address + bytes, whole - bytes);
        self.renew_head(number, whole);
    }

    /// Updates the head of a run that no longer has a block of `size` bytes.
    fn renew_head(&mut self, number: usize, size: u64) {
        let (head, run) = (&mut self.heads[number], &self.runs[number]);
        if size == head.largest {
            *head = Head::of(run);
        } else {
            head.first = run[0].address;
        }
    }

    /// Joins a run with the one after it, if both are short.
    fn join(&mut self, number: usize) {
        let Some([low, high]) = self.runs.get_mut(number..number + 2) else { return };
        if low.len() + high.len() <= JOINED {
            low.append(high);
            self.heads[number].largest = self.heads[number].largest.max(self.heads[number + 1].largest);
            self.remove_run(number + 1);
        }
    }

    fn insert_run(&mut self, number: usize, run: Vec<Entry>) {
        self.heads.insert(number, Head::of(&run));
        self.runs.insert(number, run);
    }

    fn remove_run(&mut self, number: usize) {
        self.heads.remove(number);
        self.runs.remove(number);
    }

    /// The lowest block with at least `size` bytes that ends after `from`.
    pub(super) fn lowest_at_least(&self, size: u64, from: u64) -> Option<u32> {
        let serves = |entry: &&Entry| entry.size >= size && entry.address + entry.size > from;
        let (number, place) = self.place_of(from);
        // Of the blocks that begin before `from`, only the last one can end after it, and it is in the same run.
        let lowest_in = |number: usize, first: usize| self.runs[number][first..].iter().find(serves);
        let has_one = |head: &Head| head.largest >= size;
        let here = if has_one(self.heads.get(number)?) { lowest_in(number, place.saturating_sub(1)) } else { None };
        let later = || self.heads[number + 1..].iter().position(has_one).and_then(|runs| lowest_in(number + 1 + runs, 0));
        here.or_else(later).map(|entry| entry.index)
    }

    /// The address, size and slot of each block, in order; `None` if the runs or their heads are wrong.
    pub(crate) fn listed(&self) -> Option<Vec<(u64, u64, u32)>> {
        let is_right = |(head, run): (&Head, &Vec<Entry>)| !run.is_empty() && *head == Head::of(run);
        let all_right = self.heads.len() == self.runs.len() && self.heads.iter().zip(&self.runs).all(is_right);
        all_right.then(|| self.runs.iter().flatten().map(|entry| (entry.address, entry.size, entry.index)).collect())
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::block::BlockState;

    fn block(address: u64, size: u64) -> Block {
        Block { address, size, state: BlockState::Free, ..Block::VACANT }
    }

    /// The order, and the same blocks in a plain map. A block's slot is the address at which it was added.
    #[derive(Default)]
    struct Both {
        blocks: ByAddress,
        plain: BTreeMap<u64, (u64, u32)>,
    }

    impl Both {
        fn insert(&mut self, address: u64, size: u64) {
            self.plain.insert(address, (size, address as u32));
            self.blocks.insert(&block(address, size), address as u32);
        }

        fn remove(&mut self, address: u64) -> u64 {
            let (size, _) = self.plain.remove(&address).expect("a block that is in the order");
            self.blocks.remove(&block(address, size));
            size
        }

        /// Adds as much of a block as fits before the next one, and coalesces it with its neighbours.
        fn free(&mut self, mut address: u64, size: u64) {
            let before = self.plain.range(..=address).next_back().map(|(&other, &(size, _))| (other, other + size));
            let after = self.plain.range(address..).next().map_or(u64::MAX, |(&other, _)| other);
            let mut end = after.min(address + size);
            if before.is_some_and(|(_, end)| end > address) || address == after {
                return;
            }
            if let Some((before, _)) = before.filter(|&(_, end)| end == address) {
                self.remove(before);
                address = before;
            }
            if end == after {
                end += self.remove(after);
            }
            self.insert(address, end - address);
        }

        /// Takes the low `bytes` of the first block at or after the address, or all of it.
        fn take(&mut self, address: u64, bytes: u64) {
            let Some((&address, &(size, slot))) = self.plain.range(address..).next() else { return };
            if size <= bytes {
                self.remove(address);
            } else {
                self.plain.remove(&address);
                self.plain.insert(address + bytes, (size - bytes, slot));
                self.blocks.cut(&block(address, size), bytes);
            }
        }

        fn lowest_at_least(&self, size: u64, from: u64) -> Option<u32> {
            let mut all = self.plain.iter();
            all.find(|&(&address, &(own, _))| own >= size && address + own > from).map(|(_, &(_, slot))| slot)
        }
    }

    proptest! {
        /// The blocks, the heads of their runs and the answers are those of a walk over all blocks.
        #[test]
        fn as_a_plain_walk(
            filled in 0_u64..400,
            steps in vec((any::<bool>(), 0_u64..4_000, 1_u64..60), 0..900),
            asked in vec((0_u64..62, 0_u64..4_100), 20),
        ) {
            let mut both = Both::default();
            (0..filled).for_each(|place| both.insert(place * 10, 1 + place % 9));
            for (is_free, address, bytes) in steps {
                if is_free { both.free(address, bytes) } else { both.take(address, bytes) }
            }
            let plain = both.plain.iter().map(|(&address, &(size, slot))| (address, size, slot)).collect();
            prop_assert_eq!(both.blocks.listed(), Some(plain));
            for (size, from) in asked {
                prop_assert_eq!(both.blocks.lowest_at_least(size, from), both.lowest_at_least(size, from));
            }
        }
    }

    /// When only a few of many blocks are left, they do not stay spread over as many runs.
    #[test]
    fn runs_that_empty_are_joined() {
        let mut both = Both::default();
        (0..10_000).for_each(|place| both.insert(place * 20, 10));
        let most = both.blocks.runs.len();
        for place in (0..10_000).filter(|place| place % 100 != 0) {
            both.remove(place * 20);
        }
        let left = both.blocks.runs.len();
        assert!(most > 300 && left <= 2 * 100 / JOINED + 1, "{most} runs, then {left}");
    }
}
