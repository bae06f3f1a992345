//! Which buffers are in place while another one lives.

use super::instance::Instance;

/// The buffers that are in place, to be found by lifetime.
#[derive(Clone, Debug)]
pub(super) struct LiveIndex<'a> {
    instance: &'a Instance,
    /// Buffers by the section in which they begin.
    by_start: Vec<u32>,
    /// Where each buffer is in `by_start`.
    rank: Vec<u32>,
    /// Above `by_start`: the latest end of the buffers in place below each node; 0 is none. Node 1 is the root.
    latest: Vec<u32>,
    leaves: usize,
}

impl<'a> LiveIndex<'a> {
    /// None is in place.
    pub(super) fn new(instance: &'a Instance) -> LiveIndex<'a> {
        let count = instance.spans.len();
        let mut by_start: Vec<u32> = (0..count as u32).collect();
        by_start.sort_by_key(|&buffer| instance.spans[buffer as usize]);
        let mut rank = vec![0; count];
        by_start.iter().enumerate().for_each(|(place, &buffer)| rank[buffer as usize] = place as u32);
        let leaves = count.next_power_of_two().max(1);
        LiveIndex { instance, by_start, rank, latest: vec![0; 2 * leaves], leaves }
    }

    pub(super) fn clear(&mut self) {
        self.latest.fill(0);
    }

    pub(super) fn add(&mut self, buffer: usize) {
        let end = self.instance.spans[buffer].1;
        let mut node = self.leaves + self.rank[buffer] as usize;
        while node > 0 && self.latest[node] < end {
            self.latest[node] = end;
            node /= 2;
        }
    }

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

    /// Calls `found` with each buffer in place that lives together with this one.
    pub(super) fn each_beside(&self, buffer: usize, found: &mut impl FnMut(usize)) {
        let (start, end) = self.instance.spans[buffer];
        // All that begin before this one ends; of these, all that end after it begins.
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
