//! The whole of it: orders, and the systematic search where it can help, within a budget of steps.

use super::effort::{Effort, Found};
use super::instance::{Instance, Packing};
use super::orders::{Many, Orders, SHARES_OF_FEW};
use super::relations::Relations;
use super::search::{Asked, Outcome, Search};
use crate::random::Random;

/// More buffers than this are left to orders alone: what the search needs to know of pairs grows with their square.
const SEARCHABLE: usize = 2000;

/// Packs buffers into as little memory as is found within the budget. Deterministic: no clock, no threads.
#[must_use]
pub fn pack(instance: &Instance, effort: &Effort) -> Found {
    pack_watched(instance, effort, &mut |_| ())
}

/// [`pack`], which tells now and then how many steps are done: after each order, and after each search.
#[must_use]
pub fn pack_watched(instance: &Instance, effort: &Effort, progress: &mut dyn FnMut(u64)) -> Found {
    let mut parts = instance.parts();
    // What is soon done leaves its steps to the others.
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

/// Where there are no more buffers than this, most of the budget is for the search.
const FEW: usize = 500;

/// Of few buffers, this part of the budget is for searches before orders are repaired, in hundredths: most of what can be searched at
/// all is soon done, and what is trivial at once.
const SHARE_OF_FIRST_SEARCHES: u64 = 1;

/// Packs what cannot be divided; a packing of height `goal`, which is at least the load, is as good as any.
fn pack_part(instance: &Instance, effort: &Effort, goal: u64, progress: &mut dyn FnMut(u64)) -> Found {
    let count = instance.buffers().len();
    let mut found = Found { bound: goal, ..Found::default() };
    let mut searches = None;
    let mut search = |found: &mut Found, steps: u64, progress: &mut dyn FnMut(u64)| {
        if count <= SEARCHABLE && found.packing.height > found.bound {
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

/// Searches that differ in what they ask and try first. Each fails on other instances, quickly or never; so all get a little
/// time, then all a little more.
struct Portfolio<'a> {
    instance: &'a Instance,
    relations: Relations<'a>,
    /// How often branches failed in each section, for each kind of search by itself: what one learns leads another astray.
    weights: [Vec<u32>; Asked::ALL.len()],
    crowds: Vec<u64>,
    random: Random,
    /// How many searches are done.
    done: usize,
    /// The steps of a search in this round.
    limit: u64,
    /// The order in which buffers are tried now.
    rank: Vec<u32>,
}

/// The steps of a search in the first round.
const FIRST_LIMIT: u64 = 1_000_000;

/// What buffers are ordered by; the highest comes first.
#[derive(Clone, Copy, Debug)]
enum Key {
    Crowd,
    Life,
    Size,
    Area,
}

/// The orders in which buffers are tried: by the first key, then the second.
const ORDERS: [[Key; 2]; 4] = [[Key::Crowd, Key::Area], [Key::Life, Key::Area], [Key::Crowd, Key::Life], [Key::Crowd, Key::Size]];

/// How far above the bound the searches of a round aim, as a fraction of the way to the best packing: at the bound itself every
/// other round.
const AIMS: [f64; 6] = [0.0, 0.5, 0.0, 0.25, 0.0, 0.75];

impl<'a> Portfolio<'a> {
    fn new(instance: &'a Instance, effort: &Effort) -> Portfolio<'a> {
        Portfolio {
            instance,
            relations: Relations::new(instance),
            weights: Asked::ALL.map(|_| vec![0; instance.loads.len()]),
            crowds: instance.crowds(),
            random: Random::new(effort.seed),
            done: 0,
            limit: FIRST_LIMIT,
            rank: Vec::new(),
        }
    }

    /// Goes on until `steps` are done in all. What the last search had no steps left for is asked again by the next call.
    fn run(&mut self, found: &mut Found, steps: u64, progress: &mut dyn FnMut(u64)) {
        while found.steps < steps && found.packing.height > found.bound {
            let (turn, place) = (self.done / Asked::ALL.len(), self.done % Asked::ALL.len());
            let (round, turn) = (turn / ORDERS.len(), turn % ORDERS.len());
            if place == 0 {
                self.rank = self.rank(ORDERS[turn], self.limit > 2 * FIRST_LIMIT);
            }
            let way = found.packing.height - 1 - found.bound;
            let capacity = found.bound + (way as f64 * AIMS[round % AIMS.len()]) as u64;
            let asked = Asked::ALL[place];
            let left = steps - found.steps;
            let mut search = Search::new(&self.relations, &self.rank, &mut self.weights[asked as usize], asked, capacity);
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
            if self.done.is_multiple_of(ORDERS.len() * Asked::ALL.len()) {
                self.limit += self.limit / 10;
            }
        }
    }

    /// The place of each buffer in an order; with `shake`, in one that differs a little each time.
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
