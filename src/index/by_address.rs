//! The free blocks of one stream in the order of their addresses, for rules that want the lowest address that is large enough.
//!
//! Kept beside the order by size, and only where a policy asks for it. A sorted sequence in short runs. The first address and the largest
//! block of each run are in arrays of their own, so that a search, for an address or for a size, looks at these and then into one run.
//!
//! What leaves keeps its place until something new comes there, which is mostly at once: the rest of a block that was cut, or the block into
//! which neighbours merged. So the place that was left last is remembered: most blocks enter without a search, and hardly anything moves.

mod run;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::vec::Vec;

pub(crate) use run::Entry;
use run::Run;

/// A run that is out of places is cut in two if it has more blocks than this; else it is cleared of what has left.
const LONG_RUN: usize = Run::MOST * 3 / 4;
/// A run with fewer blocks than this looks for a neighbour to join.
const SPARSE: usize = Run::MOST / 8;
/// Runs that have no more blocks together become one.
const MOST_JOINED: usize = Run::MOST / 2;

/// A place in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Spot {
    at: usize,
    place: usize,
}

/// Free blocks by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByAddress {
    /// The address of each run's first place.
    firsts: Vec<u64>,
    /// The bytes of each run's largest block. Where a block has left last it may be more: what comes there is mostly as large.
    largest: Vec<u64>,
    /// The runs, each with at least one block.
    #[expect(clippy::vec_box, reason = "runs are inserted between others, and what moves then is to be short")]
    runs: Vec<Box<Run>>,
    /// Where a block has left last. It may be anything: what is done with it looks first whether it is right.
    left: Spot,
    /// The largest block of the run where a block has left last has left, and nothing as large has come.
    is_less: bool,
}

impl ByAddress {
    /// The run in which an address lies or would lie.
    #[inline]
    fn run_of(&self, address: u64) -> usize {
        self.firsts.partition_point(|&first| first <= address).saturating_sub(1)
    }

    /// Puts a block in. Its address and size must not change while it is in.
    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry) {
        match self.place_left_for(entry.address) {
            Some(Spot { at, place }) => {
                self.runs[at].put(place, entry);
                self.entered(at, entry.size);
            }
            None => self.insert_elsewhere(entry),
        }
    }

    /// The place that was left last, or a vacant one just before it, if it is where the address belongs.
    #[inline]
    fn place_left_for(&self, address: u64) -> Option<Spot> {
        let Spot { at, mut place } = self.left;
        let run = self.runs.get(at).filter(|run| run.is_vacant(place))?;
        let behind = run.addresses().get(place + 1).or_else(|| self.firsts.get(at + 1));
        if behind.is_some_and(|&behind| behind <= address) {
            return None;
        }
        // Where two blocks have left for the one into which they merge, the lower place is its own.
        while place > 0 && run.addresses()[place - 1] >= address {
            place -= 1;
            if !run.is_vacant(place) {
                return None;
            }
        }
        (place > 0 || at == 0 || self.firsts[at] <= address).then_some(Spot { at, place })
    }

    /// A block has entered a run.
    #[inline]
    fn entered(&mut self, at: usize, size: u64) {
        self.firsts[at] = self.runs[at].addresses()[0];
        if size >= self.largest[at] {
            self.largest[at] = size;
            self.is_less &= at != self.left.at;
        }
        self.settle();
    }

    /// Finds the largest block where the largest one has left.
    #[inline]
    fn settle(&mut self) {
        if core::mem::take(&mut self.is_less) {
            self.largest[self.left.at] = self.runs[self.left.at].largest();
        }
    }

    fn insert_elsewhere(&mut self, entry: Entry) {
        self.settle();
        let at = self.run_of(entry.address);
        let Some(run) = self.runs.get_mut(at) else { return self.insert_run(at, Run::new([entry])) };
        if run.insert(entry) {
            return self.entered(at, entry.size);
        }
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

    /// Takes a block out that is in.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64) {
        let Some(Spot { at, place }) = self.find(address) else {
            return debug_assert!(false, "a block left the order by address that was not in it");
        };
        if at != self.left.at {
            self.settle();
        }
        let run = &mut self.runs[at];
        self.is_less |= run.vacate(place) == self.largest[at];
        self.left = Spot { at, place };
        if run.live() < SPARSE {
            self.thin_out(at);
        }
    }

    /// Where the block at an address is.
    #[inline]
    fn find(&self, address: u64) -> Option<Spot> {
        let at = self.run_of(address);
        let place = self.runs.get(at)?.find(address)?;
        Some(Spot { at, place })
    }

    /// Drops a run that has no block any more, or joins one that has few with a neighbour that has not many.
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

    /// The lowest block with at least `size` bytes, which are at least one, among those that end behind `from`.
    pub(crate) fn lowest_at_least(&self, size: u64, from: u64) -> Option<u32> {
        let size = size.max(1);
        let mut at = 0;
        if from > 0 {
            // Blocks do not overlap: of those that begin before `from` only the last reaches behind it, and it may be in the run before.
            let last = self.run_of(from);
            at = last.saturating_sub(1);
            while at <= last && at < self.runs.len() {
                if self.largest[at] >= size
                    && let Some(index) = self.runs[at].lowest_behind(size, from)
                {
                    return Some(index);
                }
                at += 1;
            }
        }
        let mut runs = self.largest[at..].iter().zip(&self.runs[at..]);
        runs.find_map(|(&largest, run)| if largest >= size { run.lowest_at_least(size) } else { None })
    }

    /// All blocks, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.runs.iter().flat_map(|run| run.entries())
    }

    /// Whether what is kept about the runs is true: their first addresses, in order, their largest blocks, and that each has one.
    pub(crate) fn knows_its_runs(&self) -> bool {
        let places = self.runs.iter().flat_map(|run| run.addresses());
        let is_so = |(at, run): (usize, &Run)| {
            let most = run.entries().map(|entry| entry.size).max();
            let may_be_less = self.is_less && at == self.left.at;
            run.live() == run.entries().count()
                && self.firsts.get(at) == run.addresses().first()
                && (most.as_ref() == self.largest.get(at) || may_be_less && most.as_ref() < self.largest.get(at))
        };
        let counts = [self.firsts.len(), self.largest.len()];
        counts == [self.runs.len(); 2] && places.is_sorted() && self.runs.iter().map(Box::as_ref).enumerate().all(is_so)
    }
}
