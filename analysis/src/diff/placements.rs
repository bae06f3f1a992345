//! Where two runs of the same requests begin to differ in what the allocator did, whatever addresses the driver gave it.

use std::collections::BTreeMap;

use parkade_recording::{Action, Entry};

/// The first entry that differs: in what it is, in its size, or in where its block lies. A place is the segment, counted in the order
/// in which they were made, and the offset in it; memory that was there before the first entry has its address.
pub(super) fn first_difference(a: &[Entry], b: &[Entry]) -> Option<usize> {
    let (mut places_a, mut places_b) = (Places::default(), Places::default());
    let is_same = |a: &Entry, b: &Entry| (a.action, a.size) == (b.action, b.size);
    let differs = a.iter().zip(b).position(|(a, b)| !is_same(a, b) || places_a.of(a) != places_b.of(b));
    differs.or((a.len() != b.len()).then_some(a.len().min(b.len())))
}

/// The segments of a run, or pages of expandable ones, by their first address.
#[derive(Default)]
struct Places {
    by_address: BTreeMap<u64, (u64, usize)>,
    made: usize,
}

impl Places {
    fn of(&mut self, entry: &Entry) -> Option<(Option<usize>, u64)> {
        match entry.action {
            Action::SegmentAlloc | Action::SegmentMap => {
                self.by_address.insert(entry.address, (entry.size, self.made));
                self.made += 1;
                None
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let place = self.find(entry.address);
                self.by_address.remove(&entry.address);
                Some(place)
            }
            Action::Alloc | Action::FreeRequested | Action::FreeCompleted => Some(self.find(entry.address)),
            _ => None,
        }
    }

    /// The number of its segment, and the offset in it.
    fn find(&self, address: u64) -> (Option<usize>, u64) {
        match self.by_address.range(..=address).next_back() {
            Some((first, (size, number))) if address - first < *size => (Some(*number), address - first),
            _ => (None, address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Two segments, and a block in one of them.
    fn run(first: u64, second: u64, block: u64) -> Vec<Entry> {
        let entry = |action, address, mib: u64| Entry::new(action, address, mib * MIB, 0);
        let taken = [first, second].map(|address| entry(Action::SegmentAlloc, address, 20));
        [&taken[..], &[entry(Action::Alloc, block, 4)]].concat()
    }

    #[test]
    fn other_addresses_of_the_driver_are_no_difference() {
        let (here, there) = (1 << 40, 1 << 41);
        let run_here = run(here, here + 20 * MIB, here + 20 * MIB);
        assert_eq!(first_difference(&run_here, &run(there + 50 * MIB, there, there)), None, "in the second one in both");
        assert_eq!(first_difference(&run_here, &run(there, there + 50 * MIB, there)), Some(2), "in the first one");
        assert_eq!(first_difference(&run_here, &run(there, there + 50 * MIB, there + 51 * MIB)), Some(2), "further on");
        assert_eq!(first_difference(&run_here, &run_here[..2]), Some(2), "not at all");
        let mut smaller = run_here.clone();
        smaller[0].size = 2 * MIB;
        assert_eq!(first_difference(&run_here, &smaller), Some(0));
    }
}
