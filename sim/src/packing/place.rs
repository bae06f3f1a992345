//! Putting buffers in place one after the other, each at the lowest address that is free for as long as it lives.

use super::{Instance, Packing};

/// The placing of one order after the other, with memory that is used again.
#[derive(Clone, Debug)]
pub(super) struct Placer<'a> {
    instance: &'a Instance,
    /// Buffers by the section in which they begin.
    by_start: Vec<u32>,
    /// Where each buffer is in `by_start`.
    rank: Vec<u32>,
    /// Above `by_start`: the latest end of the placed buffers below each node; 0 is none. Node 1 is the root.
    latest: Vec<u32>,
    leaves: usize,
    /// First and last byte (exclusive) of placed buffers in the way of the one being placed.
    in_the_way: Vec<(u64, u64)>,
    offsets: Vec<u64>,
    /// Work done since it was made, in buffers looked at.
    pub(super) steps: u64,
}

impl<'a> Placer<'a> {
    pub(super) fn new(instance: &'a Instance) -> Placer<'a> {
        let count = instance.spans.len();
        let mut by_start: Vec<u32> = (0..count as u32).collect();
        by_start.sort_by_key(|&buffer| instance.spans[buffer as usize]);
        let mut rank = vec![0; count];
        by_start.iter().enumerate().for_each(|(place, &buffer)| rank[buffer as usize] = place as u32);
        let leaves = count.next_power_of_two().max(1);
        let latest = vec![0; 2 * leaves];
        let offsets = vec![0; count];
        Placer { instance, by_start, rank, latest, leaves, in_the_way: Vec::new(), offsets, steps: 0 }
    }

    /// Places all buffers in this order.
    pub(super) fn place(&mut self, order: &[u32]) -> Packing {
        self.latest.fill(0);
        let mut height = 0;
        for &buffer in order {
            let buffer = buffer as usize;
            let offset = self.lowest(buffer);
            self.offsets[buffer] = offset;
            height = height.max(offset + self.instance.buffers()[buffer].size);
            self.add(buffer);
        }
        Packing { offsets: self.offsets.clone(), height }
    }

    /// The lowest address at which this buffer is in nobody's way.
    fn lowest(&mut self, buffer: usize) -> u64 {
        self.in_the_way.clear();
        let (start, end) = self.instance.spans[buffer];
        // All that begin before this one ends; of these, all that end after it begins.
        let before = self.by_start.partition_point(|&other| self.instance.spans[other as usize].0 < end);
        self.collect(1, 0, self.leaves, before, start);
        self.steps += 8 + 4 * self.in_the_way.len() as u64;
        self.in_the_way.sort_unstable();
        let wanted = self.instance.buffers()[buffer];
        let mut free = 0_u64;
        for &(first, end) in &self.in_the_way {
            if first >= free && first - free >= wanted.size {
                break;
            }
            free = free.max(end.next_multiple_of(wanted.alignment));
        }
        free
    }

    fn collect(&mut self, node: usize, first: usize, width: usize, before: usize, start: u32) {
        if first >= before || self.latest[node] <= start {
            return;
        }
        if width == 1 {
            let other = self.by_start[first] as usize;
            let offset = self.offsets[other];
            self.in_the_way.push((offset, offset + self.instance.buffers()[other].size));
            return;
        }
        let half = width / 2;
        self.collect(2 * node, first, half, before, start);
        self.collect(2 * node + 1, first + half, half, before, start);
    }

    fn add(&mut self, buffer: usize) {
        let end = self.instance.spans[buffer].1;
        let mut node = self.leaves + self.rank[buffer] as usize;
        while node > 0 && self.latest[node] < end {
            self.latest[node] = end;
            node /= 2;
        }
    }
}
