//! The solver: orders, and the systematic search where it can help, within a budget of steps.

use super::effort::{Effort, Found};
use super::instance::{Instance, Packing};
use super::orders::{Many, Orders, SHARES_OF_FEW};
use super::relations::Relations;
use super::search::{Outcome, Pick, Search};
use crate::packing::random::Random;

/// More buffers than this are left to orders alone: the search needs facts about pairs, which grow with the square.
const SEARCHABLE: usize = 2000;

/// Packs buffers into as little memory as it finds within the budget. Deterministic: no clock, no threads.
#[must_use]
pub fn pack(instance: &Instance, effort: &Effort) -> Found {
    pack_watched(instance, effort, &mut |_| ())
}

/// [`pack`], which also calls `progress` with the steps done after each order and each search.
#[must_use]
pub fn pack_watched(instance: &Instance, effort: &Effort, progress: &mut dyn FnMut(u64)) -> Found {
    let mut parts = instance.parts();
    // Small parts first: what they do not use is left to the others.
    parts.sort_by_key(|(buffers, _)| buffers.len());
    let mut found = Found { packing: Packing::of(instance), bound: instance.load(), steps: 0 };
    for (done, (buffers, part)) in parts.iter().enumerate() {
        let (before, share) = (found.steps, (effort.steps.saturating_sub(found.steps)) / (parts.len() - done) as u64);
        let of_part = pack_part(part, &Effort { steps: share, ..*effort }, found.bound, &mut |steps| progress(before + steps));
        buffers.iter().zip(&of_part.packing.offsets).for_each(|(&buffer, &offset)| found.packing.offsets[buffer] = offset);
        found.packing.height = found.packing.height.max(of_part.packing.height);
        found.bound = found.bound.max(of_part.bound);
        found.steps += of_part.steps;
    }
    found
}

/// With no more buffers than this, most of the budget is for the search.
const FEW: usize = 500;

/// With few buffers, this share of the budget, in hundredths, is for searches before orders are repaired: most
/// instances that can be searched at all are done soon, and trivial ones at once.
const SHARE_OF_FIRST_SEARCHES: u64 = 1;

/// Packs a part that cannot be divided. A packing of height `goal`, which is at least the load, is as good as any.
fn pack_part(instance: &Instance, effort: &Effort, goal: u64, progress: &mut dyn FnMut(u64)) -> Found {
    let count = instance.buffers().len();
    let mut found = Found { bound: goal, ..Found::default() };
    let mut searches = None;
    let mut search = |found: &mut Found, steps: u64, progress: &mut dyn FnMut(u64)| {
        if count <= SEARCHABLE && found.packing.height > found.bound && found.steps < steps {
            searches.get_or_insert_with(|| Portfolio::new(instance, effort)).run(found, steps, progress);
        }
    };
    if count <= FEW {
        let starts = Orders::start(instance, effort, SHARES_OF_FEW, &mut found, progress);
        let until = found.steps + effort.steps / 100 * SHARE_OF_FIRST_SEARCHES;
        search(&mut found, until, progress);
        Orders::go_on(instance, effort, SHARES_OF_FEW, starts, &mut found, progress);
    } else {
        Many::new(instance, effort, goal).run(&mut found, progress);
    }
    search(&mut found, effort.steps, progress);
    found
}

/// Searches that differ in the section they look at first and in the order in which they try buffers. Each is
/// hopeless on some instances and quick on others, so all get a few steps, then all a few more.
struct Portfolio<'a> {
    instance: &'a Instance,
    relations: Relations<'a>,
    /// How many branches failed in each section, separately for each kind of search: what one learns misleads
    /// another.
    weights: [Vec<u32>; Pick::ALL.len()],
    crowds: Vec<u64>,
    random: Random,
    /// The number of searches done.
    done: usize,
    /// The steps of a search in this round.
    limit: u64,
    /// The current order in which buffers are tried.
    rank: Vec<u32>,
}

/// The steps of a search in the first round.
const FIRST_LIMIT: u64 = 1_000_000;

/// What buffers are sorted by, in descending order.
#[derive(Clone, Copy, Debug)]
enum Key {
    Crowd,
    Life,
    Size,
    Area,
}

/// The orders in which buffers are tried: by the first key, then by the second.
const ORDERS: [[Key; 2]; 4] = [[Key::Crowd, Key::Area], [Key::Life, Key::Area], [Key::Crowd, Key::Life], [Key::Crowd, Key::Size]];

/// The heights at which the searches of a round aim, as fractions of the way from the bound to the best packing:
/// every other round aims at the bound itself.
const AIMS: [f64; 6] = [0.0, 0.5, 0.0, 0.25, 0.0, 0.75];

impl<'a> Portfolio<'a> {
    fn new(instance: &'a Instance, effort: &Effort) -> Portfolio<'a> {
        Portfolio {
            instance,
            relations: Relations::new(instance),
            weights: Pick::ALL.map(|_| vec![0; instance.loads.len()]),
            crowds: instance.crowds(),
            random: Random::new(effort.seed),
            done: 0,
            limit: FIRST_LIMIT,
            rank: Vec::new(),
        }
    }

    /// Searches until `steps` are done in all. The next call repeats a search that ran out of steps.
    fn run(&mut self, found: &mut Found, steps: u64, progress: &mut dyn FnMut(u64)) {
        while found.steps < steps && found.packing.height > found.bound {
            let (turn, place) = (self.done / Pick::ALL.len(), self.done % Pick::ALL.len());
            let (round, turn) = (turn / ORDERS.len(), turn % ORDERS.len());
            if place == 0 {
                self.rank = self.rank(ORDERS[turn], self.limit > 2 * FIRST_LIMIT);
            }
            let way = found.packing.height - 1 - found.bound;
            let capacity = found.bound + (way as f64 * AIMS[round % AIMS.len()]) as u64;
            let pick = Pick::ALL[place];
            let left = steps - found.steps;
            let mut search = Search::new(&self.relations, &self.rank, &mut self.weights[pick as usize], pick, capacity);
            let outcome = search.run(self.limit.min(left));
            found.steps += search.steps;
            progress(found.steps);
            match outcome {
                Outcome::Found(packing) => found.packing = packing,
                Outcome::Impossible => found.bound = capacity + 1,
                Outcome::Unknown if left < self.limit => return,
                Outcome::Unknown => {}
            }
            self.done += 1;
            if self.done.is_multiple_of(ORDERS.len() * Pick::ALL.len()) {
                self.limit += self.limit / 10;
            }
        }
    }

    /// The rank of each buffer in an order; with `shake`, the order is slightly different each time.
    fn rank(&mut self, keys: [Key; 2], shake: bool) -> Vec<u32> {
        let count = self.instance.buffers().len();
        let mut order: Vec<([f64; 2], usize)> = Vec::with_capacity(count);
        for buffer in 0..count {
            let mut values = keys.map(|key| self.value(key, buffer));
            if shake {
                values.iter_mut().for_each(|value| *value *= 1.0 + 0.3 * self.random.unit());
            }
            order.push((values, buffer));
        }
        order.sort_by(|(a, a_at), (b, b_at)| b[0].total_cmp(&a[0]).then(b[1].total_cmp(&a[1])).then(a_at.cmp(b_at)));
        let mut rank = vec![0; count];
        order.iter().enumerate().for_each(|(place, &(_, buffer))| rank[buffer] = place as u32);
        rank
    }

    fn value(&self, key: Key, buffer: usize) -> f64 {
        let (start, end) = self.instance.spans[buffer];
        let (life, size) = (f64::from(end - start), self.instance.buffers()[buffer].size as f64);
        match key {
            Key::Crowd => self.crowds[buffer] as f64,
            Key::Life => life,
            Key::Size => size,
            Key::Area => life * size,
        }
    }
}
