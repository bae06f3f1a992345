//! The packer's methods for any number of buffers: placing each buffer when it begins, placing them in many orders, and
//! repairing a packing in place.
//!
//! - [`place_online`] places each buffer when it begins, in the smallest gap that is large enough. The running time hardly
//!   depends on the number of live buffers.
//! - Orders ([`starts`]): buffers are placed one after another, each at the lowest address that is free for its entire
//!   lifetime, in many orders. An order is repaired by moving buffers that ended too high forward in the next attempt. An
//!   index of the placed buffers finds those that are live at the same time as another buffer.
//! - [`Ejection`]: a buffer that does not fit below a line pushes others out of its way. Buffers that end above the line are
//!   taken out. They are put back in one after another, each at the address with the least in its way; the buffers in its way
//!   are taken out. Each buffer has a price that increases with its size and its lifetime, and the cost of an address is the
//!   sum of the prices in the way. A buffer that finds no free address becomes more expensive, so that eventually others give
//!   way to it. The packing changes only where something does not fit, which is rarely much even in a large packing.

use std::collections::{BTreeMap, BTreeSet};

use super::instance::{Buffer, Instance, Packing};
use super::random::Random;

/// Places all buffers in the order in which they begin.
pub(super) fn place_online(instance: &Instance) -> Packing {
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

/// An order, and the packing that it produced.
#[derive(Clone, Debug)]
pub(super) struct Start {
    order: Vec<u32>,
    pub(super) packing: Packing,
    /// The buffers that found no address below the line and were placed after all others.
    pub(super) above: Vec<u32>,
    /// The number of steps that the order took.
    pub(super) steps: u64,
}

/// Returns the first orders and their packings; `line` is at least the load.
pub(super) fn starts(instance: &Instance, line: u64) -> impl Iterator<Item = Start> {
    each(instance, line, KEYS.into_iter())
}

/// Returns the orders in which nothing hangs from above and no buffer waits for others, starting with those that are usually
/// good.
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

/// Repairs the order of a packing until the height `target` is reached or `steps` steps have been taken. Returns the best
/// packing and the number of steps taken. `progress` is called with the steps after each order.
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

/// The property by which the first orders are sorted, in descending order.
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

/// The first orders, and the buffers that hang from above in each. Buffers that are not live at the peak load may hang from
/// above: as they are freed one after another, they make room for buffers that grow from below, as the kept results in a
/// training step make room for gradients.
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

/// The plain orders. The first two differ: sorting by size suits workloads with long lifetimes, and sorting by beginning
/// suits those whose buffers are allocated and freed all the time.
const PLAIN: [Key; 7] = [Key::Size, Key::Start, Key::Life, Key::Area, Key::CrowdThenSize, Key::CrowdThenLife, Key::AreaAndSize];

/// The buffers that a first packing places as high as possible instead of as low as possible.
#[derive(Clone, Copy, Debug)]
enum Hanging {
    /// No buffer.
    Nothing,
    /// Buffers that are not live at any peak of the load; if there are several equal steps, each has a peak.
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

/// An order under repair: a random walk that accepts an order if it is no worse than the one some rounds ago.
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

    /// Returns the next order, in which some of the buffers that are too high, and occasionally a random one, have moved
    /// forward.
    fn next(&self, random: &mut Random, target: u64) -> Vec<u32> {
        let buffers = self.instance.buffers();
        let span = self.packing.height - target;
        // Buffers above this line, which is different each time, are placed earlier.
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

/// The cost of visiting a buffer that is in another buffer's way.
pub(super) const STEPS_OF_A_PAIR: u64 = 4;

/// Places one order after another, reusing its memory.
#[derive(Clone, Debug)]
struct Placer<'a> {
    instance: &'a Instance,
    live: LiveIndex<'a>,
    /// The first and last byte (exclusive) of the placed buffers that are in the way of the current one.
    in_the_way: Vec<(u64, u64)>,
    offsets: Vec<u64>,
    /// The work done so far, in buffers visited.
    pub(super) steps: u64,
}

impl<'a> Placer<'a> {
    fn new(instance: &'a Instance) -> Placer<'a> {
        let offsets = vec![0; instance.spans.len()];
        Placer { instance, live: LiveIndex::new(instance), in_the_way: Vec::new(), offsets, steps: 0 }
    }

    /// Places all buffers in this order: those for which `hanging` is true as high as possible below `line`, and the others
    /// as low as possible. Buffers that find no address below `line` are placed after all others, as low as possible, and are
    /// returned.
    fn place(&mut self, order: &[u32], line: u64, hanging: impl Fn(u32) -> bool) -> (Packing, Vec<u32>) {
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
        // The end of the buffers below.
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

/// The buffers in place, found by lifetime: a segment tree over the buffers, in order of their beginnings.
#[derive(Clone, Debug)]
struct LiveIndex<'a> {
    instance: &'a Instance,
    /// All buffers, in order of their beginnings.
    by_start: Vec<u32>,
    /// The index of each buffer in `by_start`.
    rank: Vec<u32>,
    /// The tree over `by_start`: the latest end of the buffers in place below each node, or 0 if there are none. Node 1 is
    /// the root.
    latest: Vec<u32>,
    leaves: usize,
}

impl<'a> LiveIndex<'a> {
    /// Creates an index in which no buffer is in place.
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
    fn clear(&mut self) {
        self.latest.fill(0);
    }

    /// Puts a buffer in place.
    fn add(&mut self, buffer: usize) {
        let end = self.instance.spans[buffer].1;
        let mut node = self.leaves + self.rank[buffer] as usize;
        while node > 0 && self.latest[node] < end {
            self.latest[node] = end;
            node /= 2;
        }
    }

    /// Takes a buffer out.
    fn remove(&mut self, buffer: usize) {
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
    fn each_overlapping(&self, buffer: usize, found: &mut impl FnMut(usize)) {
        let (start, end) = self.instance.spans[buffer];
        // These are the buffers that begin before this one ends and end after it begins.
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

/// A packing under repair.
#[derive(Clone, Debug)]
pub(super) struct Ejection<'a> {
    instance: &'a Instance,
    live: LiveIndex<'a>,
    /// No buffer in place ends above this address.
    line: u64,
    offsets: Vec<u64>,
    prices: Vec<u64>,
    /// The buffers that are out; the last one is put in first.
    out: Vec<u32>,
    /// The last round in which each buffer was put in.
    came: Vec<u64>,
    round: u64,
    random: Random,
    neighbours: Neighbours,
    /// The work done so far, in buffers visited.
    pub(super) steps: u64,
}

/// The placed buffers that overlap the one that is being put in.
#[derive(Clone, Debug, Default)]
struct Neighbours {
    /// The first byte, the price and the index of each buffer, by first byte.
    by_offset: Vec<(u64, u64, u32)>,
    /// The end and the price of each buffer, by end.
    by_end: Vec<(u64, u64)>,
    /// The candidate addresses: directly above and directly below each neighbour.
    places: Vec<u64>,
}

/// For this many rounds after it has been put in, a buffer costs [`SETTLING`] times its price.
const SETTLES: u64 = 5;
const SETTLING: u64 = 50;

/// The initial price of the most expensive buffer.
const DEAREST: f64 = (1_u64 << 20) as f64;

/// When a price exceeds this, all prices are reduced so that no sum of prices overflows.
const TOO_DEAR: u64 = 1 << 25;

/// A buffer's initial price: its lifetime times a power of its size. No single power is best for all instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Price {
    /// The square root.
    Root,
    /// The size itself.
    Area,
    /// The fourth root.
    FourthRoot,
    /// The zeroth power: only the lifetime counts.
    Life,
}

impl Price {
    pub(super) const ALL: [Price; 4] = [Price::Root, Price::Area, Price::FourthRoot, Price::Life];
}

impl<'a> Ejection<'a> {
    /// Starts from the packing of an order; `line` is at least the load.
    pub(super) fn new(instance: &'a Instance, start: &Start, line: u64, price: Price, seed: u64) -> Ejection<'a> {
        let count = instance.buffers().len();
        let mut live = LiveIndex::new(instance);
        let mut is_out = vec![false; count];
        start.above.iter().for_each(|&buffer| is_out[buffer as usize] = true);
        (0..count).filter(|&buffer| !is_out[buffer]).for_each(|buffer| live.add(buffer));
        Ejection {
            instance,
            live,
            line,
            offsets: start.packing.offsets.clone(),
            prices: prices(instance, price),
            out: start.above.iter().rev().copied().collect(),
            came: vec![0; count],
            round: SETTLES,
            random: Random::new(seed),
            neighbours: Neighbours::default(),
            steps: count as u64,
        }
    }

    /// Continues until all buffers are in place or a total of `limit` steps have been taken.
    pub(super) fn run(&mut self, limit: u64) -> Option<Packing> {
        while self.steps < limit {
            let Some(buffer) = self.out.pop() else {
                let tops = self.instance.buffers().iter().zip(&self.offsets).map(|(buffer, offset)| offset + buffer.size);
                return Some(Packing { height: tops.max().unwrap_or(0), offsets: self.offsets.clone() });
            };
            self.come_in(buffer as usize);
        }
        None
    }

    fn come_in(&mut self, buffer: usize) {
        let size = self.instance.buffers()[buffer].size;
        self.round += 1;
        self.look(buffer);
        let (offset, price) = self.cheapest(buffer);
        if price > 0 {
            self.prices[buffer] += self.prices[buffer] / 20 + 1;
            for &(first, _, other) in &self.neighbours.by_offset {
                let o = other as usize;
                if first < offset + size && first + self.instance.buffers()[o].size > offset {
                    self.live.remove(o);
                    self.out.push(other);
                }
            }
            if self.prices[buffer] > TOO_DEAR {
                self.prices.iter_mut().for_each(|price| *price = (*price >> 6).max(1));
            }
        }
        self.offsets[buffer] = offset;
        self.came[buffer] = self.round;
        self.live.add(buffer);
    }

    /// Finds the buffers that overlap this one in time, and the candidate addresses.
    fn look(&mut self, buffer: usize) {
        let Neighbours { by_offset, by_end, places } = &mut self.neighbours;
        let buffers = self.instance.buffers();
        let wanted = buffers[buffer];
        let highest = (self.line - wanted.size) / wanted.alignment * wanted.alignment;
        by_offset.clear();
        by_end.clear();
        places.clear();
        places.extend([0, highest]);
        let (offsets, prices, came, round) = (&self.offsets, &self.prices, &self.came, self.round);
        self.live.each_overlapping(buffer, &mut |other| {
            let (first, end) = (offsets[other], offsets[other] + buffers[other].size);
            let price = if came[other] + SETTLES > round { SETTLING * prices[other] } else { prices[other] };
            by_offset.push((first, price, other as u32));
            by_end.push((end, price));
            places.push(end.next_multiple_of(wanted.alignment).min(highest));
            if first >= wanted.size {
                places.push((first - wanted.size) / wanted.alignment * wanted.alignment);
            }
        });
        self.steps += 16 + 12 * by_offset.len() as u64;
        by_offset.sort_unstable();
        by_end.sort_unstable();
        places.sort_unstable();
        places.dedup();
    }

    /// Returns the cheapest address for a buffer, and its cost: the lowest free address or, if none is free, a random one of
    /// the cheapest addresses.
    fn cheapest(&mut self, buffer: usize) -> (u64, u64) {
        let Neighbours { by_offset, by_end, places } = &self.neighbours;
        let size = self.instance.buffers()[buffer].size;
        // A buffer is in the way if it begins below the end of the address range and does not end below its beginning.
        let (mut begun, mut ended, mut sum) = (0, 0, 0_u64);
        let (mut cheapest, mut at, mut equals) = (u64::MAX, 0, 0);
        for &place in places {
            while let Some(&(_, price, _)) = by_offset.get(begun).filter(|other| other.0 < place + size) {
                sum += price;
                begun += 1;
            }
            while let Some(&(_, price)) = by_end.get(ended).filter(|other| other.0 <= place) {
                sum -= price;
                ended += 1;
            }
            if sum == 0 {
                return (place, 0);
            }
            if sum < cheapest {
                (cheapest, at, equals) = (sum, place, 1);
            } else if sum == cheapest {
                equals += 1;
                if self.random.below(equals) == 0 {
                    at = place;
                }
            }
        }
        (at, cheapest)
    }
}

fn prices(instance: &Instance, price: Price) -> Vec<u64> {
    let value = |(buffer, &(start, end)): (&Buffer, &(u32, u32))| {
        let (size, life) = (buffer.size as f64, f64::from(end - start));
        life * match price {
            Price::Root => size.sqrt(),
            Price::Area => size,
            Price::FourthRoot => size.sqrt().sqrt(),
            Price::Life => 1.0,
        }
    };
    let values: Vec<f64> = instance.buffers().iter().zip(&instance.spans).map(value).collect();
    let most = values.iter().fold(1.0, |most: f64, &value| most.max(value));
    values.into_iter().map(|value| 1 + (value / most * DEAREST) as u64).collect()
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
            let packing = place_online(&instance);
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
