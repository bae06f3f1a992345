//! An index of the buffers in place: which of them are live at the same time as another buffer.

use super::instance::Instance;

/// The buffers in place, found by lifetime: a segment tree over the buffers in the order of their beginnings.
#[derive(Clone, Debug)]
pub(super) struct LiveIndex<'a> {
    instance: &'a Instance,
    /// All buffers in the order of their beginnings.
    by_start: Vec<u32>,
    /// The place of each buffer in `by_start`.
    rank: Vec<u32>,
    /// The tree over `by_start`: the latest end of the buffers in place below each node, 0 for none. Node 1 is the
    /// root.
    latest: Vec<u32>,
    leaves: usize,
}

impl<'a> LiveIndex<'a> {
    /// An index in which no buffer is in place.
    pub(super) fn new(instance: &'a Instance) -> LiveIndex<'a> {
        let count = instance.spans.len();
        let mut by_start: Vec<u32> = (0..count as u32).collect();
        by_start.sort_by_key(|&buffer| instance.spans[buffer as usize]);
        let mut rank = vec![0; count];
        by_start.iter().enumerate().for_each(|(place, &buffer)| rank[buffer as usize] = place as u32);
        let leaves = count.next_power_of_two().max(1);
        LiveIndex { instance, by_start, rank, latest: vec![0; 2 * leaves], leaves }
    }

    /// Takes all buffers out.
    pub(super) fn clear(&mut self) {
        self.latest.fill(0);
    }

    /// Puts a buffer in place.
    pub(super) fn add(&mut self, buffer: usize) {
        let end = self.instance.spans[buffer].1;
        let mut node = self.leaves + self.rank[buffer] as usize;
        while node > 0 && self.latest[node] < end {
            self.latest[node] = end;
            node /= 2;
        }
    }

    /// Takes a buffer out.
    pub(super) fn remove(&mut self, buffer: usize) {
        let mut node = self.leaves + self.rank[buffer] as usize;
        self.latest[node] = 0;
        while node > 1 {
            node /= 2;
            let latest = self.latest[2 * node].max(self.latest[2 * node + 1]);
            if self.latest[node] == latest {
                break;
            }
            self.latest[node] = latest;
        }
    }

    /// Calls `found` with each buffer in place that overlaps this one in time.
    pub(super) fn each_overlapping(&self, buffer: usize, found: &mut impl FnMut(usize)) {
        let (start, end) = self.instance.spans[buffer];
        // Of all that begin before this one ends, those that end after it begins.
        let before = self.by_start.partition_point(|&other| self.instance.spans[other as usize].0 < end);
        self.each_below((1, 0, self.leaves), before, start, found);
    }

    fn each_below(&self, (node, first, width): (usize, usize, usize), before: usize, start: u32, found: &mut impl FnMut(usize)) {
        if first >= before || self.latest[node] <= start {
            return;
        }
        if width == 1 {
            found(self.by_start[first] as usize);
            return;
        }
        let half = width / 2;
        self.each_below((2 * node, first, half), before, start, found);
        self.each_below((2 * node + 1, first + half, half), before, start, found);
    }
}
