//! The solver: divides a budget of steps between the methods for any number of buffers (orders, ejection from their packings,
//! and repair of the best order; with many buffers, the solver decides their sequence) and the systematic search, if that can
//! help.

use super::heuristics::{self, Ejection, Price, STEPS_OF_A_PAIR, Start};
use super::instance::{Buffer, Effort, Found, Instance, Packing};
use super::random::Random;
use super::search::{Outcome, Pick, Relations, Search};

/// With more buffers than this, only orders are used, because the search needs facts about pairs, whose number grows
/// quadratically.
const SEARCHABLE: usize = 2000;

/// Packs buffers into the smallest memory that it finds within the budget. It is deterministic: it uses no clock and no
/// threads.
#[must_use]
pub fn pack(instance: &Instance, effort: &Effort) -> Found {
    pack_watched(instance, effort, &mut |_| ())
}

/// Like [`pack`], but also calls `progress` with the number of steps taken after each order and each search.
#[must_use]
pub fn pack_watched(instance: &Instance, effort: &Effort, progress: &mut dyn FnMut(u64)) -> Found {
    let mut parts = instance.parts();
    // Small parts come first, so that what they do not use is left for the others.
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

/// With at most this many buffers, most of the budget is for the search.
const FEW: usize = 500;

/// With few buffers, this share of the budget, in hundredths, is spent on searches before orders are repaired: most instances
/// that a search can solve are solved quickly, and trivial ones immediately.
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

/// Searches that differ in the section they visit first and in the order in which they try buffers. Each is hopeless on some
/// instances and quick on others, so they all run for a few steps, and then for a few more.
struct Portfolio<'a> {
    instance: &'a Instance,
    relations: Relations<'a>,
    /// The number of branches that failed in each section, separately for each kind of search, because what one search learns
    /// misleads another.
    weights: [Vec<u32>; Pick::ALL.len()],
    crowds: Vec<u64>,
    random: Random,
    /// The number of searches run.
    done: usize,
    /// The number of steps for a search in this round.
    limit: u64,
    /// The current order in which buffers are tried.
    rank: Vec<u32>,
}

/// The number of steps for a search in the first round.
const FIRST_LIMIT: u64 = 1_000_000;

/// The property by which buffers are sorted, in descending order.
#[derive(Clone, Copy, Debug)]
enum Key {
    Crowd,
    Life,
    Size,
    Area,
}

/// The orders in which buffers are tried: by the first key, then by the second.
const ORDERS: [[Key; 2]; 4] = [[Key::Crowd, Key::Area], [Key::Life, Key::Area], [Key::Crowd, Key::Life], [Key::Crowd, Key::Size]];

/// The heights that the searches in a round aim for, as fractions of the way from the bound to the best packing: every other
/// round aims for the bound itself.
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

    /// Searches until a total of `steps` steps have been taken. The next call repeats a search that ran out of steps.
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

    /// Returns the rank of each buffer in an order; with `shake`, the order is slightly different each time.
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

/// The packing of many buffers.
struct Many<'a> {
    instance: &'a Instance,
    effort: &'a Effort,
    goal: u64,
    /// For each buffer, its group of buffers with the same lifetime.
    groups: Vec<u32>,
    merged: Instance,
}

impl<'a> Many<'a> {
    fn new(instance: &'a Instance, effort: &'a Effort, goal: u64) -> Many<'a> {
        let (groups, merged) = instance.merged();
        Many { instance, effort, goal, groups, merged }
    }

    /// Groups come first if they are much less work; if not, the plain orders come first: a small budget is enough only for
    /// what comes first. If the budget is not enough for either, the buffers are placed as they begin.
    fn run(&self, found: &mut Found, progress: &mut dyn FnMut(u64)) {
        let least_pairs = self.merged.pairs().min(self.instance.pairs());
        if least_pairs.saturating_mul(STEPS_OF_A_PAIR) > self.effort.steps {
            found.packing = heuristics::place_online(self.instance);
            found.steps += self.instance.buffers().len() as u64;
            progress(found.steps);
            return;
        }
        if self.merged.pairs() <= self.instance.pairs() / MUCH_LESS {
            self.pack_groups(found, progress);
            self.place_plainly(found, progress);
        } else {
            self.place_plainly(found, progress);
            self.pack_groups(found, progress);
        }
        if self.is_open(found) {
            Orders::run(self.instance, self.effort, SHARES_OF_MANY, found, progress);
        }
    }

    fn is_open(&self, found: &Found) -> bool {
        found.packing.offsets.is_empty() || (found.packing.height > self.goal && found.steps < self.effort.steps)
    }

    fn pack_groups(&self, found: &mut Found, progress: &mut dyn FnMut(u64)) {
        if !self.is_open(found) || self.merged.buffers().len() == self.instance.buffers().len() {
            return;
        }
        let before = std::mem::take(&mut found.packing);
        Orders::run(&self.merged, self.effort, SHARES_OF_MERGED, found, progress);
        let packing = apart(self.instance, &self.groups, &found.packing);
        let is_lower = before.offsets.is_empty() || packing.height < before.height;
        found.packing = if is_lower { packing } else { before };
    }

    fn place_plainly(&self, found: &mut Found, progress: &mut dyn FnMut(u64)) {
        if !self.is_open(found) {
            return;
        }
        let until = found.steps + self.effort.steps / 100 * SHARE_OF_PLAIN;
        for start in heuristics::plain_starts(self.instance) {
            found.steps += start.steps;
            progress(found.steps);
            if found.packing.offsets.is_empty() || start.packing.height < found.packing.height {
                found.packing = start.packing;
            }
            if !self.is_open(found) || found.steps >= until {
                break;
            }
        }
    }
}

/// Groups count as much less work than buffers if the pairs that overlap in time are this many times fewer.
const MUCH_LESS: u64 = 4;

/// Derives the packing of buffers from the packing of their groups.
fn apart(instance: &Instance, groups: &[u32], packing: &Packing) -> Packing {
    let mut free = packing.offsets.clone();
    let place = |(buffer, &group): (&Buffer, &u32)| {
        let offset = free[group as usize];
        free[group as usize] += buffer.size;
        offset
    };
    Packing { offsets: instance.buffers().iter().zip(groups).map(place).collect(), height: packing.height }
}

/// The share of the budget for the plain orders of many buffers, in hundredths.
const SHARE_OF_PLAIN: u64 = 50;

/// The shares of the budget, in hundredths, at which placing the first orders, ejection, and the repair of orders end. The
/// search uses the rest.
type Shares = (u64, u64, u64);

const SHARES_OF_FEW: Shares = (100, 2, 4);
const SHARES_OF_MERGED: Shares = (40, 40, 40);
const SHARES_OF_MANY: Shares = (100, 80, 90);

/// The methods for any number of buffers.
struct Orders<'a> {
    instance: &'a Instance,
    effort: &'a Effort,
    starts: Vec<Start>,
    found: &'a mut Found,
    progress: &'a mut dyn FnMut(u64),
}

/// In the first round, the number of steps for ejection from an order is divided by this.
const FIRST_EJECTION: u64 = 8;

impl<'a> Orders<'a> {
    /// Runs all methods. The packing found replaces the one in `found` if it is lower, or if there is none.
    fn run(instance: &'a Instance, effort: &'a Effort, shares: Shares, found: &'a mut Found, progress: &'a mut dyn FnMut(u64)) {
        let starts = Orders::start(instance, effort, shares, found, progress);
        Orders::go_on(instance, effort, shares, starts, found, progress);
    }

    /// Runs the first part: places the first orders and returns them.
    fn start(
        instance: &'a Instance,
        effort: &'a Effort,
        (for_starts, _, _): Shares,
        found: &'a mut Found,
        progress: &'a mut dyn FnMut(u64),
    ) -> Vec<Start> {
        let mut work = Orders { instance, effort, starts: Vec::new(), found, progress };
        work.place(effort.steps / 100 * for_starts);
        work.starts
    }

    /// Runs the second part: ejection from the first orders, and repair of the best one.
    fn go_on(
        instance: &'a Instance,
        effort: &'a Effort,
        (_, for_ejection, for_orders): Shares,
        starts: Vec<Start>,
        found: &'a mut Found,
        progress: &'a mut dyn FnMut(u64),
    ) {
        let mut work = Orders { instance, effort, starts, found, progress };
        work.eject(effort.steps / 100 * for_ejection);
        work.repair(effort.steps / 100 * for_orders);
    }

    /// Places the first orders, each followed by a short ejection.
    fn place(&mut self, steps: u64) {
        for start in heuristics::starts(self.instance, self.found.bound) {
            self.found.steps += start.steps;
            if self.found.packing.offsets.is_empty() || start.packing.height < self.found.packing.height {
                self.found.packing = start.packing.clone();
            }
            (self.progress)(self.found.steps);
            self.eject_from(&start, Price::ALL[0], start.steps / FIRST_EJECTION, self.effort.seed);
            self.starts.push(start);
            if self.is_done(steps) {
                break;
            }
        }
    }

    fn is_done(&self, steps: u64) -> bool {
        self.found.packing.height <= self.found.bound || self.found.steps >= steps
    }

    /// Ejects from all first orders repeatedly, with more steps in each round, until a total of `steps` steps have been
    /// taken.
    fn eject(&mut self, steps: u64) {
        let starts = std::mem::take(&mut self.starts);
        for (round, price) in Price::ALL.into_iter().cycle().enumerate().skip(1) {
            for start in &starts {
                if self.is_done(steps) {
                    self.starts = starts;
                    return;
                }
                let limit = (start.steps.max(1_000_000) / FIRST_EJECTION) << round.min(30);
                self.eject_from(start, price, limit.min(steps - self.found.steps), self.effort.seed.wrapping_add(round as u64));
            }
        }
    }

    fn eject_from(&mut self, start: &Start, price: Price, limit: u64, seed: u64) {
        if start.above.is_empty() {
            return;
        }
        let mut ejection = Ejection::new(self.instance, start, self.found.bound, price, seed);
        if let Some(packing) = ejection.run(limit) {
            self.found.packing = packing;
        }
        self.found.steps += ejection.steps;
        (self.progress)(self.found.steps);
    }

    /// Repairs the order with the best packing until a total of `steps` steps have been taken.
    fn repair(&mut self, steps: u64) {
        if self.is_done(steps) {
            return;
        }
        let Some(best) = self.starts.iter().min_by_key(|start| start.packing.height) else { return };
        let (done, progress) = (self.found.steps, &mut self.progress);
        let (packing, steps) =
            heuristics::repair(self.instance, (best, self.found.bound), (self.effort.seed, steps - done), &mut |steps| {
                progress(done + steps)
            });
        self.found.steps += steps;
        if packing.height < self.found.packing.height {
            self.found.packing = packing;
        }
    }
}

/// Tests that the checker finds every kind of fault, and that the solver finds what exhaustive search finds.
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packing::{Fault, InstanceError, check};

    fn instance(buffers: &[(u64, u64, u64)]) -> Instance {
        aligned(&buffers.iter().map(|&(start, end, size)| (start, end, size, 1)).collect::<Vec<_>>())
    }

    fn aligned(buffers: &[(u64, u64, u64, u64)]) -> Instance {
        let buffer = |&(start, end, size, alignment): &(u64, u64, u64, u64)| Buffer { start, end, size, alignment };
        Instance::new(buffers.iter().map(buffer).collect()).unwrap()
    }

    fn solve(instance: &Instance) -> Found {
        let found = pack(instance, &Effort { steps: 2_000_000, seed: 1 });
        assert_eq!(check(instance, &found.packing), Ok(()));
        assert!(found.bound >= instance.load() && found.bound <= found.packing.height.max(instance.load()));
        found
    }

    #[test]
    fn the_checker_finds_every_kind_of_fault() {
        let instance = aligned(&[(0, 4, 10, 1), (2, 6, 6, 4), (4, 9, 10, 1)]);
        let good = Packing { offsets: vec![0, 12, 0], height: 18 };
        assert_eq!(check(&instance, &good), Ok(()), "lifetimes are half open");
        let with = |offsets: Vec<u64>, height| check(&instance, &Packing { offsets, height });
        assert_eq!(with(vec![0, 8, 0], 14), Err(Fault::Overlap { later: 1, earlier: 0 }));
        assert_eq!(with(vec![7, 0, 0], 17), Err(Fault::Overlap { later: 2, earlier: 1 }));
        assert_eq!(with(vec![u64::MAX, 0, 8], u64::MAX), Err(Fault::TooHigh { buffer: 0 }));
        assert_eq!(with(vec![0, 13, 0], 19), Err(Fault::Alignment { buffer: 1 }));
        assert_eq!(with(vec![0, 12, 0], 17), Err(Fault::Height { said: 17, is: 18 }));
        assert_eq!(with(vec![0, 12], 18), Err(Fault::Count { offsets: 2, buffers: 3 }));
    }

    #[test]
    fn what_is_no_instance_is_refused() {
        let with = |buffers: &[(u64, u64, u64, u64)]| {
            let buffer = |&(start, end, size, alignment): &(u64, u64, u64, u64)| Buffer { start, end, size, alignment };
            Instance::new(buffers.iter().map(buffer).collect()).map(|_| ())
        };
        assert_eq!(with(&[(0, 1, 1, 1), (3, 3, 1, 1)]), Err(InstanceError::EmptyLifetime { buffer: 1 }));
        assert_eq!(with(&[(0, 1, 0, 1)]), Err(InstanceError::Empty { buffer: 0 }));
        assert_eq!(with(&[(0, 1, 1, 0)]), Err(InstanceError::Empty { buffer: 0 }));
        assert_eq!(with(&[(0, 1, 1 << 61, 1), (5, 9, 1 << 61, 1), (5, 9, 1, 1)]), Err(InstanceError::TooLarge));
        assert_eq!(with(&[(0, u64::MAX, 1 << 62, 1)]), Ok(()));
    }

    #[test]
    fn the_load_is_the_most_bytes_live_at_once() {
        assert_eq!(instance(&[]).load(), 0);
        assert_eq!(instance(&[(0, 2, 5), (2, 4, 7), (1, 3, 2)]).load(), 9);
        assert_eq!(solve(&instance(&[])).packing, Packing::default());
    }

    /// Cuts a rectangle of time and memory into this many pieces, so that a packing without gaps exists.
    fn cut(pieces: usize, seed: u64) -> Vec<(u64, u64, u64)> {
        let mut random = Random::new(seed);
        // First time, last time, first byte, last byte.
        let mut cuts = vec![(0_u64, 1000_u64, 0_u64, 1000_u64)];
        while cuts.len() < pieces {
            let (start, end, first, last) = cuts.swap_remove(random.below(cuts.len()));
            let across = 1 + random.below(998) as u64;
            let (time, byte) = (start + (end - start) * across / 1000, first + (last - first) * across / 1000);
            if random.below(2) == 0 && start < time {
                cuts.extend([(start, time, first, last), (time, end, first, last)]);
            } else if first < byte {
                cuts.extend([(start, end, first, byte), (start, end, byte, last)]);
            } else {
                cuts.push((start, end, first, last));
            }
        }
        cuts.into_iter().map(|(start, end, first, last)| (start, end, last - first)).collect()
    }

    #[test]
    fn a_rectangle_that_was_cut_into_pieces_is_put_together_again() {
        for seed in 0..8 {
            let instance = instance(&cut(50, seed));
            assert_eq!(instance.load(), 1000);
            assert_eq!(solve(&instance).packing.height, 1000, "seed {seed}");
        }
    }

    #[test]
    fn a_packing_that_cannot_reach_the_load_is_proved_to_be_the_best() {
        // The load is 10 bytes, but the first two start at multiples of 8, and the space between them is too small for
        // the third.
        let instance = aligned(&[(0, 4, 1, 8), (1, 5, 1, 8), (2, 6, 8, 1)]);
        let found = solve(&instance);
        assert_eq!((instance.load(), least_height(&instance)), (10, 17));
        assert_eq!((found.packing.height, found.bound), (17, 17));
    }

    #[test]
    fn what_is_soon_shown_to_be_the_best_costs_no_share_of_a_large_budget() {
        let instance = aligned(&[(0, 4, 1, 8), (1, 5, 1, 8), (2, 6, 8, 1)]);
        let found = pack(&instance, &Effort::default());
        assert_eq!((found.packing.height, found.bound), (17, 17));
        assert!(found.steps < 10_000, "{} steps", found.steps);
    }

    #[test]
    fn the_same_seed_and_budget_give_the_same_packing() {
        let mut random = Random::new(3);
        let buffers: Vec<(u64, u64, u64)> = (0..60)
            .map(|_| {
                let start = random.below(40) as u64;
                (start, start + 1 + random.below(12) as u64, 1 + random.below(50) as u64)
            })
            .collect();
        let instance = instance(&buffers);
        let effort = Effort { steps: 300_000, seed: 9 };
        assert_eq!(pack(&instance, &effort), pack(&instance, &effort));
        assert!(pack(&instance, &effort).steps < 600_000, "the budget is kept");
    }

    #[test]
    fn progress_is_told_all_along_and_changes_nothing() {
        // Two buffers start at multiples of 8, and the third does not fit between them: orders do not reach the load, and the
        // search proves why.
        let instance = aligned(&[(0, 4, 1, 8), (1, 5, 1, 8), (2, 6, 8, 1)]);
        let effort = Effort { steps: 2_000_000, seed: 1 };
        let mut told = Vec::new();
        let found = pack_watched(&instance, &effort, &mut |steps| told.push(steps));
        assert_eq!(found, pack(&instance, &effort));
        assert!(told.len() > 7 && told.is_sorted(), "orders and searches: {told:?}");
        assert_eq!(told.last(), Some(&found.steps), "the last step is reported");
    }

    #[test]
    fn parts_of_time_that_share_no_buffer_are_packed_one_by_one() {
        // Rectangles one after another in time, shuffled in the list; none depends on the packing of another.
        let mut buffers: Vec<(u64, u64, u64)> = Vec::new();
        for part in 0..6 {
            buffers.extend(cut(25, part).into_iter().map(|(start, end, size)| (start + 1000 * part, end + 1000 * part, size)));
        }
        buffers.sort_unstable_by_key(|&(start, _, size)| (size, start));
        let instance = instance(&buffers);
        let parts = instance.parts();
        assert!(parts.len() >= 6 && parts.iter().map(|(places, _)| places.len()).sum::<usize>() == buffers.len());
        for (places, part) in &parts {
            assert!(places.iter().zip(part.buffers()).all(|(&place, buffer)| instance.buffers()[place] == *buffer));
        }
        let found = solve(&instance);
        assert_eq!((found.packing.height, found.bound), (1000, 1000));
    }

    #[test]
    fn buffers_of_one_lifetime_are_put_together_where_that_needs_no_gap() {
        // The first, third and fifth are live in the same section; the fourth needs a gap after it, so it is not merged.
        let instance = aligned(&[(0, 4, 8, 4), (2, 6, 3, 1), (1, 4, 4, 4), (0, 4, 6, 4), (0, 5, 12, 4), (7, 9, 5, 1)]);
        let (groups, merged) = instance.merged();
        assert_eq!(merged.load(), instance.load());
        assert!(groups[0] == groups[2] && groups[0] == groups[4] && groups[0] != groups[3]);
        assert_eq!(merged.buffers()[groups[0] as usize].size, 24);
        assert_eq!(merged.buffers().len(), 4);
    }

    /// Returns the smallest height of all packings, found by trying all orders: placing each buffer as low as possible in
    /// some order produces an optimal packing.
    fn least_height(instance: &Instance) -> u64 {
        let mut best = u64::MAX;
        let mut offsets = vec![None; instance.buffers().len()];
        place_rest(instance, &mut offsets, 0, &mut best);
        best
    }

    fn place_rest(instance: &Instance, offsets: &mut [Option<u64>], height: u64, best: &mut u64) {
        if height >= *best {
            return;
        }
        if offsets.iter().all(Option::is_some) {
            *best = height;
            return;
        }
        let buffers = instance.buffers();
        for next in 0..buffers.len() {
            if offsets[next].is_some() {
                continue;
            }
            let wanted = buffers[next];
            let lives = |other: &Buffer| other.start < wanted.end && wanted.start < other.end;
            let placed = || {
                buffers
                    .iter()
                    .zip(offsets.iter())
                    .filter_map(|(other, at)| at.filter(|_| lives(other)).map(|at| (at, at + other.size)))
            };
            let is_free = |at: u64| placed().all(|(first, end)| end <= at || at + wanted.size <= first);
            let places = placed().map(|(_, end)| end.next_multiple_of(wanted.alignment)).chain([0]);
            let Some(at) = places.filter(|&at| is_free(at)).min() else { continue };
            offsets[next] = Some(at);
            place_rest(instance, offsets, height.max(at + wanted.size), best);
            offsets[next] = None;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn small_instances_are_packed_as_well_as_can_be(
            buffers in prop::collection::vec((0_u64..8, 1_u64..5, 1_u64..9, prop::sample::select(vec![1_u64, 1, 1, 2, 4])), 1..7)
        ) {
            let buffers: Vec<_> = buffers.into_iter().map(|(start, life, size, alignment)| (start, start + life, size, alignment)).collect();
            let instance = aligned(&buffers);
            let found = solve(&instance);
            prop_assert_eq!(found.packing.height, least_height(&instance));
            prop_assert_eq!(found.bound, found.packing.height);
        }

        #[test]
        fn a_packing_that_is_disturbed_is_refused(
            buffers in prop::collection::vec((0_u64..20, 1_u64..9, 1_u64..50), 2..30),
            moved in any::<prop::sample::Index>(),
        ) {
            let buffers: Vec<_> = buffers.into_iter().map(|(start, life, size)| (start, start + life, size)).collect();
            let instance = instance(&buffers);
            let found = solve(&instance);
            let mut disturbed = found.packing.clone();
            let moved = moved.index(buffers.len());
            let lives = |&other: &usize| other != moved && buffers[other].0 < buffers[moved].1 && buffers[moved].0 < buffers[other].1;
            if let Some(other) = (0..buffers.len()).find(lives) {
                // Move it onto the last byte of a buffer that is live at the same time.
                disturbed.offsets[moved] = disturbed.offsets[other] + buffers[other].2 - 1;
                let tops = disturbed.offsets.iter().zip(&buffers).map(|(at, buffer)| at + buffer.2);
                disturbed.height = tops.max().unwrap_or(0);
                let is_refused = matches!(check(&instance, &disturbed), Err(Fault::Overlap { .. }));
                prop_assert!(is_refused);
            }
        }
    }

    proptest! {
        #[test]
        fn pairs_are_those_that_overlap(buffers in prop::collection::vec((0_u64..20, 1_u64..8, 1_u64..4), 1..30)) {
            let instance = instance(&buffers.iter().map(|&(start, life, size)| (start, start + life, size)).collect::<Vec<_>>());
            let count = instance.buffers().len();
            let expected = (0..count).flat_map(|a| (0..a).map(move |b| (a, b))).filter(|&(a, b)| instance.overlap(a, b)).count();
            prop_assert_eq!(instance.pairs(), expected as u64);
        }
    }
}
