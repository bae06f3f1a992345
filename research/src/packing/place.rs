//! Places buffers one after the other, each at the lowest address that is free for its whole lifetime.

use super::instance::{Instance, Packing};
use super::live_index::LiveIndex;

/// What it costs to look at a buffer that is in another one's way.
pub(super) const STEPS_OF_A_PAIR: u64 = 4;

/// Places one order after another, reusing its memory.
#[derive(Clone, Debug)]
pub(super) struct Placer<'a> {
    instance: &'a Instance,
    live: LiveIndex<'a>,
    /// The first and the last byte (exclusive) of the placed buffers that are in the way of the current one.
    in_the_way: Vec<(u64, u64)>,
    offsets: Vec<u64>,
    /// Work done so far, in buffers looked at.
    pub(super) steps: u64,
}

impl<'a> Placer<'a> {
    pub(super) fn new(instance: &'a Instance) -> Placer<'a> {
        let offsets = vec![0; instance.spans.len()];
        Placer { instance, live: LiveIndex::new(instance), in_the_way: Vec::new(), offsets, steps: 0 }
    }

    /// Places all buffers in this order: those for which `hanging` is true as high as possible below `line`, the
    /// others as low as possible. Buffers that find no place below `line` come after all others, as low as
    /// possible, and are returned.
    pub(super) fn place(&mut self, order: &[u32], line: u64, hanging: impl Fn(u32) -> bool) -> (Packing, Vec<u32>) {
        self.live.clear();
        let mut height = 0;
        let mut above = Vec::new();
        for &buffer in order {
            let end = if hanging(buffer) { self.highest(buffer as usize, line) } else { Some(self.lowest(buffer as usize)) };
            match end.filter(|&end| end <= line) {
                Some(end) => {
                    height = height.max(end);
                    self.live.add(buffer as usize);
                }
                None => above.push(buffer),
            }
        }
        for &buffer in &above {
            height = height.max(self.lowest(buffer as usize));
            self.live.add(buffer as usize);
        }
        (Packing { offsets: self.offsets.clone(), height }, above)
    }

    /// Places a buffer at the lowest free address. Returns its end.
    fn lowest(&mut self, buffer: usize) -> u64 {
        self.look(buffer);
        let wanted = self.instance.buffers()[buffer];
        let mut free = 0_u64;
        for &(first, end) in &self.in_the_way {
            if first >= free && first - free >= wanted.size {
                break;
            }
            free = free.max(end.next_multiple_of(wanted.alignment));
        }
        self.offsets[buffer] = free;
        free + wanted.size
    }

    /// Places a buffer at the highest free address below `line`, if there is one. Returns its end.
    fn highest(&mut self, buffer: usize, line: u64) -> Option<u64> {
        self.look(buffer);
        let wanted = self.instance.buffers()[buffer];
        let mut found = None;
        // The end of everything below.
        let mut free = 0_u64;
        let above = std::iter::once((line, line));
        for (first, end) in self.in_the_way.iter().copied().chain(above) {
            let highest = first.min(line).checked_sub(wanted.size).map(|highest| highest / wanted.alignment * wanted.alignment);
            found = highest.filter(|&highest| highest >= free).or(found);
            free = free.max(end);
        }
        self.offsets[buffer] = found?;
        found.map(|offset| offset + wanted.size)
    }

    /// Finds the placed buffers that are in a buffer's way.
    fn look(&mut self, buffer: usize) {
        let buffers = self.instance.buffers();
        let (offsets, in_the_way) = (&self.offsets, &mut self.in_the_way);
        in_the_way.clear();
        self.live.each_overlapping(buffer, &mut |other| in_the_way.push((offsets[other], offsets[other] + buffers[other].size)));
        self.steps += 8 + STEPS_OF_A_PAIR * in_the_way.len() as u64;
        in_the_way.sort_unstable();
    }
}
