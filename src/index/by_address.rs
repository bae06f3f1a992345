//! The free blocks of one stream by address, for rules that take the lowest address that is large enough.
//!
//! The blocks form a sorted sequence, which is cut into short runs. Separate arrays contain the first address and the
//! largest block of each run, so a search for an address or a size scans one array and then one run.
//!
//! When a block is removed, its position becomes vacant, and usually another block fills it immediately: the remainder
//! of a split, or the block into which neighbours have coalesced. The index therefore remembers the most recently
//! vacated position, so most blocks are added without a search, and few others move. Most blocks are also removed
//! without a search, because the caller keeps the position of each block, which is valid until other blocks or runs
//! move.
//!
//! A run keeps addresses, sizes and slots in separate arrays: a search for an address reads only the first array, and
//! a search for a size only the second.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// A free block: its first byte, its size in bytes, and its slot in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) index: u32,
}

/// Consecutive positions.
#[derive(Clone, Debug)]
struct Run {
    places: usize,
    live: usize,
    addresses: [u64; Run::MOST],
    /// The sizes; 0 for a vacant position, and after the last one.
    sizes: [u64; Run::MOST],
    indices: [u32; Run::MOST],
}

impl Run {
    /// The maximum number of positions in a run.
    const MOST: usize = 32;

    /// Builds a run from at most [`Run::MOST`] blocks, in order.
    fn new(entries: impl IntoIterator<Item = Entry>) -> Run {
        let nothing = [0; Run::MOST];
        let mut run = Run { places: 0, live: 0, addresses: nothing, sizes: nothing, indices: [0; Run::MOST] };
        for entry in entries {
            run.places += 1;
            run.put(run.places - 1, entry);
        }
        run
    }

    /// The number of positions that hold a block.
    #[inline]
    fn live(&self) -> usize {
        self.live
    }

    /// The addresses of all positions.
    #[inline]
    fn addresses(&self) -> &[u64] {
        &self.addresses[..self.places]
    }

    #[inline]
    fn sizes(&self) -> &[u64] {
        &self.sizes[..self.places]
    }

    /// Whether the position exists and is vacant.
    #[inline]
    fn is_vacant(&self, place: usize) -> bool {
        self.sizes().get(place) == Some(&0)
    }

    /// The blocks.
    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let all = self.addresses().iter().zip(&self.sizes).zip(&self.indices);
        all.map(|((&address, &size), &index)| Entry { address, size, index }).filter(|entry| entry.size != 0)
    }

    /// The size of the largest block in bytes.
    #[inline]
    fn largest(&self) -> u64 {
        // Loops over all positions, used or not, because a loop of fixed length is faster than a shorter one.
        let mut most = [0; 4];
        for sizes in self.sizes.as_chunks::<4>().0 {
            most = core::array::from_fn(|lane| sizes[lane].max(most[lane]));
        }
        most.into_iter().fold(0, u64::max)
    }

    /// The position of the block at an address.
    #[inline]
    fn find(&self, address: u64) -> Option<usize> {
        let place = self.first_from(address);
        (self.addresses().get(place) == Some(&address) && self.sizes[place] != 0).then_some(place)
    }

    /// The slot of the lowest block with at least `size` bytes, at or after the position `first`. `size` must not be
    /// 0.
    #[inline]
    fn lowest_at_least(&self, first: usize, size: u64) -> Option<u32> {
        let place = self.sizes()[first..].iter().position(|&own| own >= size)?;
        Some(self.indices[first + place])
    }

    /// The first position whose address is at least this one, or the number of positions.
    #[inline]
    fn first_from(&self, address: u64) -> usize {
        self.addresses().partition_point(|&other| other < address)
    }

    /// The last block before a position.
    #[inline]
    fn last_before(&self, place: usize) -> Option<Entry> {
        let place = self.sizes().iter().take(place).rposition(|&own| own != 0)?;
        Some(Entry { address: self.addresses[place], size: self.sizes[place], index: self.indices[place] })
    }

    /// Fills a vacant position.
    #[inline]
    fn put(&mut self, place: usize, entry: Entry) {
        self.addresses[place] = entry.address;
        self.sizes[place] = entry.size;
        self.indices[place] = entry.index;
        self.live += 1;
    }

    /// Vacates a position. Returns the size of the block that was there.
    #[inline]
    fn vacate(&mut self, place: usize) -> u64 {
        self.live -= 1;
        core::mem::take(&mut self.sizes[place])
    }

    /// Adds a block in the order of its address, at a vacant or a new position. Returns the position, or `None` if the
    /// run is full.
    fn insert(&mut self, entry: Entry) -> Option<usize> {
        let mut place = self.first_from(entry.address);
        debug_assert!(self.find(entry.address).is_none(), "a block was added to the order by address twice");
        if self.is_vacant(place) {
            self.put(place, entry);
        } else if place > 0 && self.is_vacant(place - 1) {
            place -= 1;
            self.put(place, entry);
        } else if self.places < Run::MOST {
            let later = place..self.places;
            self.addresses.copy_within(later.clone(), place + 1);
            self.sizes.copy_within(later.clone(), place + 1);
            self.indices.copy_within(later, place + 1);
            self.places += 1;
            self.put(place, entry);
        } else {
            return None;
        }
        Some(place)
    }
}

/// A full run is cut in two if it has more blocks than this; if not, its vacant positions are removed.
const LONG_RUN: usize = Run::MOST * 3 / 4;
/// A run with fewer blocks than this tries to join a neighbour.
const SPARSE: usize = Run::MOST / 8;
/// Two runs join if they have at most this many blocks together.
const MOST_JOINED: usize = Run::MOST / 2;

/// A position in one of the runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spot {
    /// The index of the run.
    pub(crate) at: u32,
    /// The position in the run.
    pub(crate) place: u32,
}

impl Spot {
    fn new(at: usize, place: usize) -> Spot {
        // Every run has a block, and a heap has fewer than 2^32 blocks.
        Spot { at: at as u32, place: place as u32 }
    }

    fn numbers(self) -> (usize, usize) {
        (self.at as usize, self.place as usize)
    }
}

/// Free blocks by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByAddress {
    /// The address of each run's first position.
    firsts: Vec<u64>,
    /// The size of each run's largest block. It may be too high for the run from which a block was removed last,
    /// because the next block added there is often as large.
    largest: Vec<u64>,
    /// The runs, each with at least one block.
    #[expect(clippy::vec_box, reason = "inserting a run should move pointers, not runs")]
    runs: Vec<Box<Run>>,
    /// The most recently vacated position. It may be stale, so every use checks it.
    left: Spot,
    /// Whether the run of `left` has lost its largest block, and no equally large block has been added since.
    is_less: bool,
}

impl ByAddress {
    /// The run that contains an address or would contain it.
    #[inline]
    fn run_of(&self, address: u64) -> usize {
        self.firsts.partition_point(|&first| first <= address).saturating_sub(1)
    }

    /// Adds a block, whose address and size must not change until it is removed. Returns its position, which may
    /// change later.
    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry) -> Spot {
        match self.place_left_for(entry.address) {
            Some(spot) => {
                let (at, place) = spot.numbers();
                self.runs[at].put(place, entry);
                self.entered(at, entry.size);
                spot
            }
            None => self.insert_elsewhere(entry),
        }
    }

    /// The most recently vacated position, or a vacant one just before it, if the address belongs there.
    #[inline]
    fn place_left_for(&self, address: u64) -> Option<Spot> {
        let (at, mut place) = self.left.numbers();
        let run = self.runs.get(at).filter(|run| run.is_vacant(place))?;
        let behind = run.addresses().get(place + 1).or_else(|| self.firsts.get(at + 1));
        if behind.is_some_and(|&behind| behind <= address) {
            return None;
        }
        // Two blocks that coalesced have left two vacant positions. Use the lower one.
        while place > 0 && run.addresses()[place - 1] >= address {
            place -= 1;
            if !run.is_vacant(place) {
                return None;
            }
        }
        (place > 0 || at == 0 || self.firsts[at] <= address).then_some(Spot::new(at, place))
    }

    /// Records that a block was added to a run.
    #[inline]
    fn entered(&mut self, at: usize, size: u64) {
        self.firsts[at] = self.runs[at].addresses()[0];
        if size >= self.largest[at] {
            self.largest[at] = size;
            self.is_less &= at != self.left.at as usize;
        }
        self.settle();
    }

    /// Finds the largest block of a run that has lost its previous one.
    #[inline]
    fn settle(&mut self) {
        if core::mem::take(&mut self.is_less) {
            let at = self.left.at as usize;
            self.largest[at] = self.runs[at].largest();
        }
    }

    fn insert_elsewhere(&mut self, entry: Entry) -> Spot {
        self.settle();
        let at = self.run_of(entry.address);
        let Some(run) = self.runs.get_mut(at) else {
            self.insert_run(at, Run::new([entry]));
            return Spot::new(at, 0);
        };
        if let Some(place) = run.insert(entry) {
            self.entered(at, entry.size);
            return Spot::new(at, place);
        }
        self.make_room(at, entry);
        self.find(entry.address).unwrap_or_default()
    }

    /// Removes the vacant positions of a full run, or cuts the run in two, and then adds a block that belongs there.
    fn make_room(&mut self, at: usize, entry: Entry) {
        let run = &self.runs[at];
        let (low, high): (Vec<Entry>, Vec<Entry>) = run.entries().partition(|other| other.address < entry.address);
        let all = low.iter().chain([&entry]).chain(&high).copied();
        let count = low.len() + 1 + high.len();
        let stay = if count > LONG_RUN { count / 2 } else { count };
        self.set_run(at, Run::new(all.clone().take(stay)));
        if stay < count {
            self.insert_run(at + 1, Run::new(all.skip(stay)));
        }
    }

    fn set_run(&mut self, at: usize, run: Run) {
        self.firsts[at] = run.addresses()[0];
        self.largest[at] = run.largest();
        *self.runs[at] = run;
    }

    fn insert_run(&mut self, at: usize, run: Run) {
        self.firsts.insert(at, run.addresses()[0]);
        self.largest.insert(at, run.largest());
        self.runs.insert(at, Box::new(run));
    }

    fn remove_run(&mut self, at: usize) {
        self.firsts.remove(at);
        self.largest.remove(at);
        self.runs.remove(at);
    }

    /// Removes a block, which may still be at the position that [`ByAddress::insert`] returned.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64, perhaps: Spot) {
        let Some(spot) = self.is_at(address, perhaps).then_some(perhaps).or_else(|| self.find(address)) else {
            return debug_assert!(false, "a block that is not in the order by address was removed");
        };
        if spot.at != self.left.at {
            self.settle();
        }
        let (at, place) = spot.numbers();
        let run = &mut self.runs[at];
        self.is_less |= run.vacate(place) == self.largest[at];
        self.left = spot;
        if run.live() < SPARSE {
            self.thin_out(at);
        }
    }

    /// Whether the block at this address is at this position.
    #[inline]
    fn is_at(&self, address: u64, spot: Spot) -> bool {
        let (at, place) = spot.numbers();
        self.runs.get(at).is_some_and(|run| run.addresses().get(place) == Some(&address) && !run.is_vacant(place))
    }

    /// The position of the block at this address.
    fn find(&self, address: u64) -> Option<Spot> {
        let at = self.run_of(address);
        let place = self.runs.get(at)?.find(address)?;
        Some(Spot::new(at, place))
    }

    /// Drops an empty run, or joins a sparse one with a neighbour that has room.
    fn thin_out(&mut self, at: usize) {
        let live = self.runs[at].live();
        if live == 0 {
            self.is_less = false;
            return self.remove_run(at);
        }
        let has_room = |other: usize| self.runs.get(other).is_some_and(|run| run.live() + live <= MOST_JOINED);
        let low = if has_room(at + 1) { at } else { at.wrapping_sub(1) };
        if low == at || has_room(low) {
            let joined = Run::new(self.runs[low].entries().chain(self.runs[low + 1].entries()));
            self.is_less = false;
            self.set_run(low, joined);
            self.remove_run(low + 1);
        }
    }

    /// The slot of the lowest block with at least `size` bytes that ends after `from`.
    pub(crate) fn lowest_at_least(&self, size: u64, from: u64) -> Option<u32> {
        let size = size.max(1);
        if from == 0 {
            return self.lowest_from(0, size);
        }
        let at = self.run_of(from);
        let run = self.runs.get(at)?;
        let place = run.first_from(from);
        // Blocks do not overlap, so only the last block that begins before `from` can end after it. That block may be
        // in the previous run.
        let before = run.last_before(place).or_else(|| self.runs[at.checked_sub(1)?].last_before(Run::MOST));
        if let Some(entry) = before.filter(|entry| entry.size >= size && entry.address + entry.size > from) {
            return Some(entry.index);
        }
        let here = if self.largest[at] >= size { run.lowest_at_least(place, size) } else { None };
        here.or_else(|| self.lowest_from(at + 1, size))
    }

    /// The slot of the lowest block with at least `size` bytes, in run `first` or a later one. `size` must not be 0.
    #[inline]
    fn lowest_from(&self, first: usize, size: u64) -> Option<u32> {
        let mut runs = self.largest[first..].iter().zip(&self.runs[first..]);
        runs.find_map(|(&largest, run)| if largest >= size { run.lowest_at_least(0, size) } else { None })
    }

    /// All blocks, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.runs.iter().flat_map(|run| run.entries())
    }

    /// Whether the arrays are consistent with the runs: first addresses in order, largest blocks, and no empty run.
    pub(crate) fn knows_its_runs(&self) -> bool {
        let places = self.runs.iter().flat_map(|run| run.addresses());
        let is_so = |(at, run): (usize, &Run)| {
            let most = run.entries().map(|entry| entry.size).max();
            let may_be_less = self.is_less && at == self.left.at as usize;
            run.live() == run.entries().count()
                && self.firsts.get(at) == run.addresses().first()
                && (most.as_ref() == self.largest.get(at) || may_be_less && most.as_ref() < self.largest.get(at))
        };
        let counts = [self.firsts.len(), self.largest.len()];
        counts == [self.runs.len(); 2] && places.is_sorted() && self.runs.iter().map(Box::as_ref).enumerate().all(is_so)
    }
}

#[cfg(test)]
mod tests {
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

    /// Two neighbours coalesce across the end of a run: the new block is in the first run and ends after the start of
    /// the second one.
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

    /// When only a few of many blocks are left, they do not stay spread over as many runs.
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

    /// One step of a heap, at an address in a range with about 100 blocks.
    #[derive(Clone, Debug)]
    enum Step {
        /// A block of at most `size` bytes becomes free. If `merges` is true, it coalesces with adjacent free blocks.
        Enter { address: u64, size: u64, merges: bool },
        /// The first free block at or after `address` is taken.
        Leave { address: u64 },
        /// `size` bytes are split off the front of that block.
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

    /// Performs the same steps in both orders.
    #[derive(Default)]
    struct Both {
        blocks: ByAddress,
        plain: BTreeMap<u64, u64>,
        /// The position of each block when it was added.
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
        /// The order and the answers equal those of a walk over all blocks, and the arrays are consistent with the
        /// runs.
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
}
