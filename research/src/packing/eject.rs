//! Repairs a packing in place, for any number of buffers: a buffer that does not fit below a line pushes others out of its way.
//!
//! Buffers that end above the line are taken out. They are put back in one after another, each at the address with the least
//! in its way; the buffers in its way are taken out. Each buffer has a price that increases with its size and its lifetime,
//! and the cost of an address is the sum of the prices in the way. A buffer that finds no free address becomes more
//! expensive, so that eventually others give way to it. The packing changes only where something does not fit, which is
//! rarely much even in a large packing.

use super::greedy::{LiveIndex, Start};
use super::instance::{Buffer, Instance, Packing};
use crate::packing::random::Random;

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

/// For this many rounds after it was put in, a buffer costs [`SETTLING`] times its price.
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
    /// No power: only the lifetime counts.
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

    /// The cheapest address for a buffer, and its cost: the lowest free address or, if none is free, a random one of the
    /// cheapest addresses.
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
