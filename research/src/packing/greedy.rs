//! Places buffers in many orders, and repairs an order: what ended too high comes earlier in the next attempt.

use super::instance::{Instance, Packing};
use super::place::Placer;
use crate::packing::random::Random;

/// An order, and the packing that it gave.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) order: Vec<u32>,
    pub(super) packing: Packing,
    /// The buffers that found no place below the line and came after all others.
    pub(super) above: Vec<u32>,
    /// The steps that it took.
    pub(super) steps: u64,
}

/// The first orders and their packings; `line` is at least the load.
pub(super) fn starts(instance: &Instance, line: u64) -> impl Iterator<Item = Start> {
    each(instance, line, KEYS.into_iter())
}

/// The orders in which nothing hangs from above and no buffer waits for others; those that are usually good come
/// first.
pub(super) fn plain_starts(instance: &Instance) -> impl Iterator<Item = Start> {
    each(instance, u64::MAX, PLAIN.into_iter().map(|key| (key, Hanging::Nothing)))
}

fn each(instance: &Instance, line: u64, keys: impl Iterator<Item = (Key, Hanging)>) -> impl Iterator<Item = Start> {
    let mut placer = Placer::new(instance);
    let (crowds, load) = (instance.crowds(), instance.load());
    let last = instance.loads.len() as u32;
    keys.map(move |(key, hangs)| {
        let order = order(instance, &crowds, key);
        let before = placer.steps;
        let (packing, above) = placer.place(&order, line, |b| match hangs {
            Hanging::Nothing => false,
            Hanging::OffPeak => crowds[b as usize] < load,
            Hanging::Ending => instance.spans[b as usize].1 < last,
        });
        Start { order, packing, above, steps: placer.steps - before }
    })
}

/// Repairs the order of a packing until the height `target` is reached or `steps` are done. Returns the best
/// packing and the steps done. `progress` is called with the steps after each order.
pub(super) fn repair(
    instance: &Instance,
    (start, target): (&Start, u64),
    (seed, steps): (u64, u64),
    progress: &mut dyn FnMut(u64),
) -> (Packing, u64) {
    let mut placer = Placer::new(instance);
    let mut best = start.packing.clone();
    let mut random = Random::new(seed);
    let mut repair = Repair::new(instance, start.order.clone(), &best);
    while placer.steps < steps && best.height > target {
        let order = repair.next(&mut random, target);
        let (packing, _) = placer.place(&order, u64::MAX, |_| false);
        progress(placer.steps);
        if packing.height < best.height {
            best = packing.clone();
        }
        repair.judge(order, packing);
    }
    (best, placer.steps)
}

/// What the first orders are sorted by, in descending order.
#[derive(Clone, Copy, Debug)]
enum Key {
    Size,
    Life,
    Area,
    CrowdThenSize,
    CrowdThenLife,
    AreaAndSize,
    Start,
    CrowdThenEnd,
}

/// The first orders, and what hangs from above in each. Buffers that are not live at the peak load may hang from
/// above: as they are freed one after the other they make room for what grows from below, as the kept results of a
/// training step do for gradients.
const KEYS: [(Key, Hanging); 13] = [
    (Key::CrowdThenEnd, Hanging::OffPeak),
    (Key::CrowdThenLife, Hanging::Nothing),
    (Key::CrowdThenLife, Hanging::OffPeak),
    (Key::CrowdThenSize, Hanging::Nothing),
    (Key::CrowdThenEnd, Hanging::Ending),
    (Key::CrowdThenEnd, Hanging::Nothing),
    (Key::Size, Hanging::Nothing),
    (Key::Life, Hanging::OffPeak),
    (Key::Life, Hanging::Ending),
    (Key::Life, Hanging::Nothing),
    (Key::Area, Hanging::Nothing),
    (Key::AreaAndSize, Hanging::Nothing),
    (Key::Start, Hanging::Nothing),
];

/// The plain orders. The first two differ: sorting by size suits workloads with long lifetimes, by beginning those
/// whose buffers come and go all the time.
const PLAIN: [Key; 7] = [Key::Size, Key::Start, Key::Life, Key::Area, Key::CrowdThenSize, Key::CrowdThenLife, Key::AreaAndSize];

/// What is placed as high as possible in a first packing, instead of as low as possible.
#[derive(Clone, Copy, Debug)]
enum Hanging {
    /// No buffer.
    Nothing,
    /// Buffers that are not live at any peak of the load; each of several equal steps has such a peak.
    OffPeak,
    /// Buffers that do not live to the end.
    Ending,
}

fn order(instance: &Instance, crowds: &[u64], key: Key) -> Vec<u32> {
    let value = |b: usize| {
        let (size, start) = (instance.buffers()[b].size, instance.spans[b].0);
        let life = u64::from(instance.spans[b].1 - start);
        let area = u128::from(life) * u128::from(size);
        match key {
            Key::Size => (u128::from(size), life),
            Key::Life => (u128::from(life), size),
            Key::Area => (area, life),
            Key::CrowdThenSize => (u128::from(crowds[b]), size),
            Key::CrowdThenLife => (u128::from(crowds[b]), life),
            Key::AreaAndSize => ((area >> 16).saturating_mul(u128::from(size >> 10)), life),
            Key::CrowdThenEnd => (u128::from(crowds[b]), (u64::from(instance.spans[b].1) << 32) + life),
            Key::Start => (u128::from(u32::MAX - start), size),
        }
    };
    let mut order: Vec<u32> = (0..instance.buffers().len() as u32).collect();
    order.sort_by_cached_key(|&b| (std::cmp::Reverse(value(b as usize)), b));
    order
}

/// An order under repair: a random walk that accepts an order if it is no worse than some rounds ago.
struct Repair<'a> {
    instance: &'a Instance,
    order: Vec<u32>,
    packing: Packing,
    /// The heights of the last rounds, as many as [`MEMORY`].
    recent: Vec<u64>,
    round: usize,
}

/// A new order is kept if it is no worse than the one this many rounds ago.
const MEMORY: usize = 20;

impl<'a> Repair<'a> {
    fn new(instance: &'a Instance, order: Vec<u32>, packing: &Packing) -> Repair<'a> {
        Repair { instance, order, packing: packing.clone(), recent: vec![packing.height; MEMORY], round: 0 }
    }

    /// The next order: some of the buffers that are too high move forward, and now and then a random one.
    fn next(&self, random: &mut Random, target: u64) -> Vec<u32> {
        let buffers = self.instance.buffers();
        let span = self.packing.height - target;
        // Buffers above this line, which is different each time, come earlier.
        let line = target + (span as f64 * random.unit()) as u64;
        let count = self.order.len();
        let mut keys: Vec<(f64, u32)> = Vec::with_capacity(count);
        for (place, &buffer) in self.order.iter().enumerate() {
            let top = self.packing.offsets[buffer as usize] + buffers[buffer as usize].size;
            let factor = if top > line { random.unit() } else { 1.0 };
            keys.push((place as f64 * factor, buffer));
        }
        for _ in 0..random.below(3) {
            let one = random.below(count);
            keys[one].0 = count as f64 * random.unit();
        }
        keys.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        keys.into_iter().map(|(_, buffer)| buffer).collect()
    }

    fn judge(&mut self, order: Vec<u32>, packing: Packing) {
        let slot = self.round % MEMORY;
        if packing.height <= self.recent[slot] || packing.height <= self.packing.height {
            self.order = order;
            self.packing = packing;
        }
        self.recent[slot] = self.packing.height;
        self.round += 1;
    }
}
