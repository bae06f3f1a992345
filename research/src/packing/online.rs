//! Places each buffer when it begins, in the smallest gap that is large enough. The running time hardly depends on the number
//! of live buffers.

use std::collections::{BTreeMap, BTreeSet};

use super::instance::{Buffer, Instance, Packing};

/// Places all buffers in the order in which they begin.
pub(super) fn place(instance: &Instance) -> Packing {
    let buffers = instance.buffers();
    let mut events: Vec<(u32, bool, u32)> = Vec::with_capacity(2 * buffers.len());
    for (buffer, &(start, end)) in instance.spans.iter().enumerate() {
        events.push((start, true, buffer as u32));
        events.push((end, false, buffer as u32));
    }
    // The buffers of a section end before those of the next section begin.
    events.sort_unstable();
    let mut packing = Packing::of(instance);
    let mut gaps = Gaps::default();
    for (_, begins, buffer) in events {
        let (wanted, offset) = (buffers[buffer as usize], &mut packing.offsets[buffer as usize]);
        if begins {
            *offset = gaps.take(wanted);
        } else {
            gaps.give_back(*offset, *offset + wanted.size);
        }
    }
    packing.height = gaps.height;
    packing
}

/// The free addresses below the highest end so far; no two gaps touch.
#[derive(Default)]
struct Gaps {
    /// The end of each gap, by its start.
    by_start: BTreeMap<u64, u64>,
    /// The size and the start of each gap.
    by_size: BTreeSet<(u64, u64)>,
    height: u64,
}

impl Gaps {
    /// Takes the smallest gap that certainly has room for the buffer, regardless of what its alignment skips, or addresses
    /// above all other buffers.
    fn take(&mut self, wanted: Buffer) -> u64 {
        let enough = wanted.size + wanted.alignment - 1;
        let fits = |&(size, start): &(u64, u64)| start.next_multiple_of(wanted.alignment) - start + wanted.size <= size;
        let smallest = |from: u64| self.by_size.range((from, 0)..).next().copied();
        let gap = smallest(wanted.size).filter(fits).or_else(|| smallest(enough));
        let (first, end) = match gap {
            Some((size, start)) => {
                self.remove(start, start + size);
                (start, start + size)
            }
            None => (self.height, u64::MAX),
        };
        let offset = first.next_multiple_of(wanted.alignment);
        self.insert(first, offset);
        if gap.is_some() {
            self.insert(offset + wanted.size, end);
        }
        self.height = self.height.max(offset + wanted.size);
        offset
    }

    /// Frees addresses and merges them with the gaps beside them.
    fn give_back(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, _)) = self.by_start.range(..start).next_back().filter(|&(_, &its_end)| its_end == start) {
            self.remove(before, start);
            start = before;
        }
        if let Some(&behind) = self.by_start.get(&end) {
            self.remove(end, behind);
            end = behind;
        }
        self.insert(start, end);
    }

    fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            self.by_start.insert(start, end);
            self.by_size.insert((end - start, start));
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.by_start.remove(&start);
        self.by_size.remove(&(end - start, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packing::{Effort, check, pack};

    proptest! {
        #[test]
        fn no_two_live_buffers_share_an_address(
            buffers in prop::collection::vec((0_u64..40, 1_u64..16, 1_u64..30, 0_u32..5), 1..60),
        ) {
            let buffer = |&(start, life, size, alignment): &(u64, u64, u64, u32)| {
                Buffer { start, end: start + life, size, alignment: 1 << alignment }
            };
            let instance = Instance::new(buffers.iter().map(buffer).collect()).expect("sane buffers");
            let packing = place(&instance);
            prop_assert_eq!(check(&instance, &packing), Ok(()));
        }
    }

    #[test]
    fn a_budget_too_small_for_any_order_is_kept() {
        // All buffers are live at once, each beginning and ending in its own section: eight million pairs.
        let buffers = (0..4_000).map(|n| Buffer { start: n, end: 8_000 - n, size: 1 + n % 7, alignment: 1 }).collect();
        let instance = Instance::new(buffers).expect("sane buffers");
        let found = pack(&instance, &Effort { steps: 1_000, seed: 1 });
        assert!(found.steps <= 4_000, "{} steps", found.steps);
        assert_eq!(found.packing.height, instance.load());
    }

    #[test]
    fn what_was_given_back_is_one_gap_again() {
        let mut gaps = Gaps::default();
        let of = |size| Buffer { start: 0, end: 1, size, alignment: 1 };
        let offsets: Vec<u64> = (0..3).map(|_| gaps.take(of(10))).collect();
        for place in [0, 2, 1] {
            gaps.give_back(offsets[place], offsets[place] + 10);
        }
        assert_eq!((gaps.take(of(30)), gaps.height), (0, 30));
    }
}
