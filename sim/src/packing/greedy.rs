//! Many orders, and the repair of an order: what lay too high comes earlier in the next attempt.

use super::place::Placer;
use super::{Instance, Packing};
use crate::random::Random;

/// Tries orders until the load is reached or `steps` are done; at least one order. Returns the best packing, and the steps done, which
/// `progress` is told after each order.
pub(super) fn improve(instance: &Instance, seed: u64, steps: u64, progress: &mut dyn FnMut(u64)) -> (Packing, u64) {
    let mut placer = Placer::new(instance);
    let target = instance.load();
    let mut best: Option<(Packing, Vec<u32>)> = None;
    for key in KEYS {
        let order = order(instance, key);
        let packing = placer.place(&order);
        progress(placer.steps);
        if best.as_ref().is_none_or(|(known, _)| packing.height < known.height) {
            best = Some((packing, order));
        }
        if placer.steps >= steps || best.as_ref().is_some_and(|(known, _)| known.height == target) {
            break;
        }
    }
    let Some((mut best, order)) = best else { return (Packing::default(), 0) };
    let mut random = Random::new(seed);
    let mut repair = Repair::new(instance, order, &best);
    while placer.steps < steps && best.height > target {
        let order = repair.next(&mut random, target);
        let packing = placer.place(&order);
        progress(placer.steps);
        if packing.height < best.height {
            best = packing.clone();
        }
        repair.judge(order, packing);
    }
    (best, placer.steps)
}

/// What the first orders are by; the highest comes first.
#[derive(Clone, Copy, Debug)]
enum Key {
    Size,
    Life,
    Area,
    CrowdThenSize,
    CrowdThenLife,
    AreaAndSize,
    Start,
}

const KEYS: [Key; 7] = [Key::Size, Key::Life, Key::Area, Key::CrowdThenSize, Key::CrowdThenLife, Key::AreaAndSize, Key::Start];

fn order(instance: &Instance, key: Key) -> Vec<u32> {
    let crowds = instance.crowds();
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
            Key::Start => (u128::from(u32::MAX - start), size),
        }
    };
    let mut order: Vec<u32> = (0..instance.buffers().len() as u32).collect();
    order.sort_by_cached_key(|&b| (std::cmp::Reverse(value(b as usize)), b));
    order
}

/// An order under repair: it wanders, and what is not much worse than of late is kept.
struct Repair<'a> {
    instance: &'a Instance,
    order: Vec<u32>,
    packing: Packing,
    /// Heights of the last rounds: a new order is kept if it is no worse than that many rounds ago.
    recent: Vec<u64>,
    round: usize,
}

/// How many rounds an order that is no better may live on.
const MEMORY: usize = 20;

impl<'a> Repair<'a> {
    fn new(instance: &'a Instance, order: Vec<u32>, packing: &Packing) -> Repair<'a> {
        Repair { instance, order, packing: packing.clone(), recent: vec![packing.height; MEMORY], round: 0 }
    }

    /// The order with some of what lies too high moved forward, and now and then something else.
    fn next(&self, random: &mut Random, target: u64) -> Vec<u32> {
        let buffers = self.instance.buffers();
        let span = self.packing.height - target;
        // Above this line, a different one each time, everything comes earlier.
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
