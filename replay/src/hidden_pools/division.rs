//! Divides the segments into pools: those that the entries name or, in files from earlier releases, guessed ones.
//!
//! Since PyTorch 2.12, every entry has the id of its pool. For files from earlier releases, the evidence is turned into a
//! division with as few segments in private pools and as few pools as possible. The pools then get ids in the order in which
//! they were freed. Each guess learns from the failure of the one before it. This module also decides whether a guess
//! explains more than it assumes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use parkade::policy::{Policy, PyTorch};
use parkade::units::{Bytes, PoolClass, PoolId};
use parkade_recording::{Action, DeviceRecording, Entry};

use super::evidence::{self, Evidence, Layout, Life, LifeId, Releases, Unused};
use crate::entries::{is_inner, is_request};
use crate::initial_state::Start;
use crate::pools::AssumedPools;

/// A guess may always have this many private pools, however little it explains.
const FEW_POOLS: u64 = 8;
/// A guess may always have this many windows, however little it explains.
const FEW_WINDOWS: u64 = 6;

/// The guesses for private pools that the file does not name, and the evidence for them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guess {
    /// The segments that the guess assigned to private pools. An expandable segment counts as one.
    pub segments: Vec<GuessedSegment>,
    /// The number of private pools that contain these segments.
    pub pools: usize,
    /// The number of windows: runs of requests that these segments served.
    ///
    /// A long run does not count if memory from a private pool that the file names also served it.
    pub windows: u64,
    /// The number of requests in the windows.
    pub requests: u64,
    /// The number of requests that a single pool would have served differently and that the guess explains.
    pub contradictions: u64,
    /// The number of these segments that are expandable.
    pub ranges: u64,
}

impl Guess {
    /// Returns whether the guess explains more than it assumes.
    ///
    /// With enough pools, any allocator's trace can be explained. Real pools, however, are used in windows of several
    /// requests, most of which a single pool would have served differently. A segment that is wrongly assigned to a private
    /// pool serves isolated requests all over the trace, and few of them are contradictions. Moreover, no real pool serves
    /// only a single request.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        // All requests that support a segment from before the first entry may be missing.
        let made = self.segments.iter().filter(|segment| segment.made_at.is_some()).count() as u64;
        let early = self.segments.len() as u64 - made;
        // Two expandable segments with the same stream and class prove that there are two pools.
        let is_explained = self.windows <= self.contradictions / 2 + self.ranges * 2 + early + FEW_WINDOWS;
        let is_used = self.windows <= self.requests / 2 + FEW_WINDOWS;
        // If only the order of release supports the pools, each window must have at least two requests.
        let is_evident = self.contradictions > 0 || self.ranges > 0 || self.requests >= 2 * self.windows;
        // None of 215 real recordings exceeds these limits.
        let has_few_pools = self.pools as u64 <= self.contradictions / 4 + FEW_POOLS;
        let has_few_segments = made <= self.contradictions + FEW_WINDOWS;
        has_few_pools && has_few_segments && is_explained && is_used && is_evident
    }
}

/// A segment that the guess assigned to a private pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuessedSegment {
    /// The address of its first byte.
    pub address: u64,
    /// The entry that allocated it, or mapped its first page; `None` if it existed before the first entry.
    pub made_at: Option<usize>,
    /// The entry that freed it, or unmapped its last page; `None` if it existed at the end.
    pub gone_at: Option<usize>,
    /// The number of its guessed pool, counted from 1.
    pub pool: usize,
}

/// A window with at least this many requests is long: a captured step has hundreds, whereas chance alternation produces two
/// or three.
const LONG_WINDOW: usize = 8;
/// The maximum number of guesses to try for one recording.
pub(crate) const MOST_GUESSES: usize = 48;
/// The maximum number of points at which to try simpler variants of a good guess.
const MOST_SIMPLER: usize = 8;

/// The guesses for one recording's pools.
///
/// The evidence concerns pairs of segments. It may therefore not determine which of the segments that were freed
/// together belonged to the default pool. When a guess fails at a point like this, variants for that point follow until
/// one of them gets further.
pub(crate) struct Guesses {
    evidence: Evidence,
    grounds: Grounds,
    /// The number of pairs of segments examined so far.
    pub(crate) work: u64,
    /// The assumptions that are now settled, because guesses without them failed.
    settled: Trial,
    /// The assumptions of the current guess.
    trial: Trial,
    /// The lives that are private in the current guess.
    chosen: BTreeSet<LifeId>,
    /// Pairs of sets of lives, one of which must be private in the current guess: the chosen set and the other one.
    instead: Vec<(Vec<LifeId>, Vec<LifeId>)>,
    /// The variants still to try; the last one comes next.
    others: Vec<Trial>,
    /// The progress of the best guess: its first entry that differed.
    reached: Option<usize>,
}

impl Guesses {
    /// Gathers the evidence in a trace.
    ///
    /// # Errors
    /// Fails if no segment was freed before the end, if no division into pools explains the evidence, or if there is too much
    /// evidence.
    pub(crate) fn of(
        recording: &DeviceRecording,
        start: &Start,
        policy: &PyTorch,
        releases: Releases,
    ) -> Result<Guesses, Unused> {
        let evidence = evidence::gather(recording, start, policy, releases)?;
        let has_unknown = evidence.lives.iter().any(|life| life.known.is_none());
        let (settled, trial, others) = (Trial::default(), Trial::default(), vec![Trial::default()]);
        let (chosen, instead) = (BTreeSet::new(), Vec::new());
        if !has_unknown {
            return Err(Unused::Contradictory);
        }
        let grounds = Grounds::of(&evidence);
        Ok(Guesses { evidence, grounds, work: 0, settled, trial, chosen, instead, others, reached: None })
    }

    /// Returns the next guess, if there is one left.
    pub(crate) fn next(&mut self) -> Option<(AssumedPools, Guess)> {
        while let Some(trial) = self.others.pop() {
            self.trial = trial;
            if let Some(partition) = choose(&self.evidence, &self.grounds, &self.trial, &mut self.work) {
                self.instead.clone_from(&partition.instead);
                self.chosen = partition.pools.iter().flat_map(|pool| pool.members.iter().copied()).collect();
                return Some(self.assume(partition));
            }
        }
        None
    }

    /// Records that the current guess agrees with the recording, with calls that release memory before the entries `calls`.
    /// If it needs several calls for memory that was freed at once, simpler guesses come next.
    pub(crate) fn simplify(&mut self, calls: &[usize]) {
        self.settled.clone_from(&self.trial);
        let has_several = |run: &&Vec<(usize, LifeId)>| {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { return false };
            calls.iter().filter(|&&call| first.0 <= call && call <= last.0).count() > 1
        };
        let runs: Vec<&Vec<(usize, LifeId)>> = self.evidence.releases.iter().filter(has_several).collect();
        // In these guesses, the default pool's memory is the first stretch, or there is none.
        let without = |run: &[(usize, LifeId)], kept: usize| -> BTreeSet<LifeId> {
            let stretches = self.evidence.default_stretches(run);
            stretches.iter().skip(kept).flatten().copied().collect()
        };
        // Added to the settled assumptions, or to all that the good guess assumes for other points.
        let bases = [&self.settled.private, &self.chosen];
        let beside = |base: &BTreeSet<LifeId>, runs: &[&Vec<(usize, LifeId)>], kept: usize| -> BTreeSet<LifeId> {
            base.iter().copied().chain(runs.iter().flat_map(|run| without(run, kept))).collect()
        };
        let mut privates = Vec::new();
        for base in bases {
            let each = runs.chunks(1).flat_map(|run| [0, 1].map(|kept| beside(base, run, kept)));
            privates.extend(each.take(MOST_SIMPLER));
            privates.extend([0, 1].map(|kept| beside(base, &runs, kept)));
            privates.push(base.clone());
        }
        let instead = self.instead.iter().take(MOST_SIMPLER);
        privates.extend(instead.map(|(_, lives)| self.settled.private.iter().chain(lives).copied().collect()));
        // The last of these variants are tried first.
        let trials = [true, false]
            .map(|goes_at_once| privates.iter().map(move |private| Trial { private: private.clone(), goes_at_once }));
        self.others = trials.into_iter().flatten().filter(|other| *other != self.settled).collect();
    }

    /// Records that the current guess first differs from the recording at the entry `at`, or at its end if `at` is `None`.
    ///
    /// `released` is the first segment that the replay's default pool frees but the recorded pool kept, with the entry before
    /// which that happens. `addresses` are the addresses involved in the difference.
    pub(crate) fn fail(&mut self, at: Option<usize>, released: Option<(usize, u64)>, addresses: &[u64]) {
        let place = at.unwrap_or(usize::MAX);
        // A garbage collection passed over the segment, and collections look only at the default pool.
        let stayed =
            released.and_then(|(at, address)| self.life_at(at, address)).filter(|life| !self.trial.private.contains(life));
        match self.reached {
            Some(reached) if place < reached || (place == reached && stayed.is_none()) => return,
            // The collection may have passed over several segments.
            Some(reached) if place == reached => {}
            _ => {
                self.reached = Some(place);
                self.settled.clone_from(&self.trial);
                self.others = self.by_exclusion(place, addresses);
                self.others.extend(self.by_release(place));
            }
        }
        self.others.extend(stayed.map(|life| self.trial.also_private([life])));
    }

    /// Returns the life of the segment at an address, before the entry `at`, if the file does not name its pool.
    fn life_at(&self, at: usize, address: u64) -> Option<LifeId> {
        let is_it = |life: &Life| {
            let is_there = life.made_at.is_none_or(|made| made < at) && life.gone_at.is_none_or(|gone| gone >= at);
            life.base == address && !life.expandable && life.known.is_none() && is_there
        };
        self.evidence.lives.iter().rposition(is_it)
    }

    /// Returns the variants for a segment that differs: if it is in one of two sets that exclude each other, the variants
    /// make the other set private.
    fn by_exclusion(&self, place: usize, addresses: &[u64]) -> Vec<Trial> {
        let is_there = |life: LifeId| {
            let life = &self.evidence.lives[life];
            life.gone_at.is_none_or(|gone| gone >= place) && addresses.contains(&life.base)
        };
        let concerns = |(private, other): &&(Vec<LifeId>, Vec<LifeId>)| private.iter().chain(other).any(|&life| is_there(life));
        let others = self.instead.iter().filter(concerns).take(MOST_SIMPLER);
        others.map(|(_, other)| self.settled.also_private(other.iter().copied())).collect()
    }

    /// Returns the possibilities for the memory that was freed together at this point, the likeliest last.
    fn by_release(&self, place: usize) -> Vec<Trial> {
        // A segment that should not have been freed shows up right after those that were.
        let is_there = |run: &&Vec<(usize, LifeId)>| {
            run.first().is_some_and(|first| first.0 <= place) && run.last().is_some_and(|last| place <= last.0.saturating_add(1))
        };
        let Some(run) = self.evidence.releases.iter().find(is_there) else { return Vec::new() };
        // The default pool's segments are one stretch. The first stretch is the likeliest, because empty_cache begins with
        // the default pool. An empty stretch is the least likely: it means that a single private pool freed its memory.
        let stretches = self.evidence.default_stretches(run);
        let outside = |stretch: &Vec<LifeId>| -> Vec<LifeId> {
            run.iter().map(|&(_, life)| life).filter(|life| !stretch.contains(life)).collect()
        };
        std::iter::once(&Vec::new())
            .chain(stretches.iter().rev())
            .map(|stretch| self.settled.also_private(outside(stretch)))
            .collect()
    }

    fn assume(&self, mut partition: Partition) -> (AssumedPools, Guess) {
        let ordered = in_order(mem::take(&mut partition.pools), &self.evidence);
        let ids = ids(&ordered);
        partition.pools = ordered.into_iter().map(|(pool, _)| pool).collect();
        let lives = &self.evidence.lives;
        let guess = self.guess(&partition);
        let mut pool_of = vec![PoolId::DEFAULT; lives.len()];
        for (pool, id) in partition.pools.iter().zip(ids) {
            pool.members.iter().for_each(|&member| pool_of[member] = id);
        }
        let pools = assumed(lives.iter().zip(&pool_of));
        (pools, guess)
    }

    fn guess(&self, partition: &Partition) -> Guess {
        let lives = &self.evidence.lives;
        let is_guessed = |life: LifeId| lives[life].known.is_none();
        let guessed: Vec<&Pool> =
            partition.pools.iter().filter(|pool| pool.members.iter().any(|&life| is_guessed(life))).collect();
        let mut segments: Vec<GuessedSegment> = Vec::new();
        for (number, pool) in guessed.iter().enumerate() {
            segments.extend(pool.members.iter().copied().filter(|&life| is_guessed(life)).map(|life| {
                let Life { base: address, made_at, gone_at, .. } = lives[life];
                GuessedSegment { address, made_at, gone_at, pool: number + 1 }
            }));
        }
        segments.sort_unstable_by_key(|segment| (segment.made_at, segment.address));
        let private: BTreeSet<LifeId> =
            guessed.iter().flat_map(|pool| pool.members.iter().copied()).filter(|&life| is_guessed(life)).collect();
        let mut is_named = vec![None; lives.len()];
        for pool in &partition.pools {
            pool.members.iter().for_each(|&life| is_named[life] = Some(pool.known.is_some()));
        }
        let (mut windows, mut requests) = (0, 0);
        for window in self.evidence.served.chunk_by(|&one, &other| is_named[one].is_some() == is_named[other].is_some()) {
            // A long window that uses memory from a named private pool is certain.
            if window.len() >= LONG_WINDOW && window.iter().any(|life| !private.contains(life)) {
                continue;
            }
            for run in window.chunk_by(|&one, &other| is_named[one] == is_named[other]) {
                let is_guessed = run.iter().all(|life| private.contains(life));
                windows += u64::from(is_guessed);
                requests += if is_guessed { run.len() as u64 } else { 0 };
            }
        }
        let explained = |(_, (one, other)): &&(usize, (LifeId, LifeId))| private.contains(one) || private.contains(other);
        Guess {
            pools: guessed.len(),
            requests,
            ranges: private.iter().filter(|&&life| lives[life].expandable).count() as u64,
            windows,
            contradictions: self.evidence.contradictions.iter().filter(explained).count() as u64,
            segments,
        }
    }
}

/// The number of lives, among those that one pool may have freed at once, that are checked for each life assigned to a pool.
const MOST_MATES: usize = 16;

/// A division of lives into private pools. A life that is in none of them belongs to the default pool.
#[derive(Clone, Debug, Default)]
struct Partition {
    pools: Vec<Pool>,
    /// Pairs of sets of lives, one of which must be private: the chosen set and the other one.
    instead: Vec<(Vec<LifeId>, Vec<LifeId>)>,
}

/// A private pool.
#[derive(Clone, Debug)]
struct Pool {
    /// Its id, if the recording names it.
    pub(super) known: Option<PoolId>,
    /// The lives of the pool's segments.
    members: Vec<LifeId>,
    /// The first entry that frees memory of the pool: the pool is not used from then on.
    abandoned_at: Option<usize>,
}

/// For each life, the lives that must not share a pool with it, in order.
#[derive(Debug)]
struct Graph(Vec<Vec<LifeId>>);

impl Graph {
    fn of(lives: usize, pairs: impl Iterator<Item = (LifeId, LifeId)>) -> Graph {
        let mut graph = vec![Vec::new(); lives];
        for (a, b) in pairs {
            graph[a].push(b);
            graph[b].push(a);
        }
        for others in &mut graph {
            others.sort_unstable();
            others.dedup();
        }
        Graph(graph)
    }

    fn neighbours(&self, life: LifeId) -> impl Iterator<Item = LifeId> {
        self.0[life].iter().copied()
    }
}

/// The conclusions that follow from the evidence, regardless of the choice.
#[derive(Debug)]
struct Grounds {
    /// Pairs of lives that cannot both be in the default pool.
    both: Graph,
    /// Pairs of lives that cannot both be in one private pool.
    apart: Graph,
    weights: Vec<u64>,
    /// For each life, the lives that were freed together with it.
    goes_with: Vec<BTreeSet<LifeId>>,
    /// The lives among these that one pool may have freed at once together with it.
    mates: Vec<BTreeSet<LifeId>>,
}

impl Grounds {
    pub(super) fn of(evidence: &Evidence) -> Grounds {
        let lives = evidence.lives.len();
        let apart = Graph::of(lives, evidence.apart.iter().chain(&evidence.not_private).copied());
        let mut goes_with = vec![BTreeSet::new(); lives];
        let mut mates = goes_with.clone();
        for run in &evidence.releases {
            let together: BTreeSet<LifeId> = run.iter().map(|&(_, life)| life).collect();
            let is_of_one = together.iter().all(|&life| !apart.neighbours(life).any(|other| together.contains(&other)));
            for &life in &together {
                goes_with[life].extend(&together);
                if is_of_one {
                    mates[life].extend(together.iter().filter(|&&other| other != life));
                }
            }
        }
        let both = Graph::of(lives, evidence.apart.iter().chain(&evidence.not_default).copied());
        Grounds { both, apart, weights: weights(evidence), goes_with, mates }
    }
}

/// The assumptions of a guess beyond the evidence.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Trial {
    /// Lives that are assumed to be private.
    private: BTreeSet<LifeId>,
    /// Whether a pool frees all its memory at once. If not, it may later free memory that was in use at that time.
    goes_at_once: bool,
}

impl Trial {
    /// Returns the same assumptions, with these lives also private.
    fn also_private(&self, lives: impl IntoIterator<Item = LifeId>) -> Trial {
        Trial { private: self.private.iter().copied().chain(lives).collect(), ..self.clone() }
    }
}

/// Chooses a division into pools. Returns `None` if no division agrees with the evidence. Counts the pairs examined in
/// `work`.
fn choose(evidence: &Evidence, grounds: &Grounds, trial: &Trial, work: &mut u64) -> Option<Partition> {
    let private = &trial.private;
    let lives = &evidence.lives;
    let Grounds { both, weights, .. } = grounds;
    let mut is_private: Vec<bool> = lives.iter().map(|life| life.known.is_some_and(|pool| pool != PoolId::DEFAULT)).collect();
    let is_default = |life: LifeId| lives[life].known == Some(PoolId::DEFAULT);
    for &life in private.iter().filter(|&&life| lives[life].known.is_none()) {
        is_private[life] = true;
    }
    for (life, private) in is_private.iter_mut().enumerate() {
        *private |= both.neighbours(life).any(is_default);
    }
    // A segment that the file lists in the default pool cannot be private.
    if (0..lives.len()).any(|life| is_private[life] && is_default(life)) {
        return None;
    }
    let mut instead = Vec::new();
    while let Some(component) = open_component(both, &is_private) {
        *work += component.iter().map(|&life| both.0[life].len() as u64).sum::<u64>();
        let (lighter, heavier) = parts(both, &component, weights);
        lighter.iter().for_each(|&life| is_private[life] = true);
        instead.extend(heavier.map(|heavier| (lighter, heavier)));
    }
    let is_open = |life: &LifeId| lives[*life].known.is_none() && !private.contains(life);
    take_back(both, &mut is_private, (0..lives.len()).filter(is_open).collect(), weights);
    Some(Partition { pools: partition(evidence, grounds, &is_private, trial.goes_at_once), instead })
}

/// Moves lives back to the default pool if they need not be private because all lives that exclude them are private. Starts
/// with the heaviest.
fn take_back(both: &Graph, is_private: &mut [bool], mut order: Vec<LifeId>, weights: &[u64]) {
    order.retain(|&life| is_private[life]);
    order.sort_by_key(|&life| std::cmp::Reverse(weights[life]));
    for life in order {
        is_private[life] = both.neighbours(life).any(|other| !is_private[other]);
    }
}

/// Returns a connected set of lives, in order, that are not private so far and cannot all be in the default pool.
fn open_component(both: &Graph, is_private: &[bool]) -> Option<Vec<LifeId>> {
    let is_open = |life: LifeId| !is_private[life] && both.neighbours(life).any(|other| !is_private[other]);
    let first = (0..is_private.len()).find(|&life| is_open(life))?;
    let mut is_in = vec![false; is_private.len()];
    is_in[first] = true;
    let (mut component, mut rest) = (vec![first], vec![first]);
    while let Some(life) = rest.pop() {
        for other in both.neighbours(life).filter(|&other| !is_private[other]) {
            if !mem::replace(&mut is_in[other], true) {
                component.push(other);
                rest.push(other);
            }
        }
    }
    component.sort_unstable();
    Some(component)
}

/// Returns, for each life, the weight of the evidence that it belongs to the default pool: the number of requests that it
/// served. The weight is much higher if several pools freed memory at once and this life was among the first to be freed,
/// starting with a large segment, as `empty_cache` does.
fn weights(evidence: &Evidence) -> Vec<u64> {
    let mut weights: Vec<u64> = evidence.lives.iter().map(|life| life.requests + 1).collect();
    let most: u64 = weights.iter().sum();
    for run in &evidence.releases {
        let stretches = evidence.default_stretches(run);
        let first = stretches.first().filter(|_| stretches.len() > 1);
        for &life in first.filter(|first| evidence.lives[first[0]].class == PoolClass::Large).into_iter().flatten() {
            weights[life] += most;
        }
    }
    weights
}

/// Returns two parts that exclude each other: first the lighter one, which becomes private, and then the heavier one. If the
/// lives do not form two parts, the first part is the single life that excludes the most others relative to its weight.
fn parts(both: &Graph, component: &[LifeId], weights: &[u64]) -> (Vec<LifeId>, Option<Vec<LifeId>>) {
    let mut is_in = vec![false; weights.len()];
    component.iter().for_each(|&life| is_in[life] = true);
    if let Some(side) = two_sides(both, component, &is_in) {
        let weight = |part: &[LifeId]| part.iter().map(|&life| weights[life]).sum::<u64>();
        let (one, other): (Vec<LifeId>, Vec<LifeId>) = component.iter().partition(|&&life| side[life] == Some(true));
        return if weight(&one) < weight(&other) { (one, Some(other)) } else { (other, Some(one)) };
    }
    let degree = |life: LifeId| both.neighbours(life).filter(|&other| is_in[other]).count() as u64;
    let degrees = component.iter().map(|&life| (life, degree(life)));
    // Compares the fraction degree / weight without a division.
    let most = degrees.reduce(|best, one| {
        let (of_best, of_one) = (best.1.saturating_mul(weights[one.0]), one.1.saturating_mul(weights[best.0]));
        if of_one > of_best { one } else { best }
    });
    (most.map(|(life, _)| life).into_iter().collect(), None)
}

/// Returns, for each life in a component, which of two parts it is in, if lives in the same part never exclude each other.
fn two_sides(both: &Graph, component: &[LifeId], is_in: &[bool]) -> Option<Vec<Option<bool>>> {
    let mut side: Vec<Option<bool>> = vec![None; is_in.len()];
    let mut rest: Vec<LifeId> = component.first().copied().into_iter().collect();
    rest.iter().for_each(|&first| side[first] = Some(false));
    while let Some(life) = rest.pop() {
        for other in both.neighbours(life).filter(|&other| is_in[other]) {
            if side[other].is_none() {
                side[other] = side[life].map(|own| !own);
                rest.push(other);
            } else if side[other] == side[life] {
                return None;
            }
        }
    }
    Some(side)
}

/// Assigns the private lives to pools, in the order in which they began. A life goes into the pool that it was freed
/// with, or into the pool used last, if the evidence allows it.
fn partition(evidence: &Evidence, grounds: &Grounds, is_private: &[bool], goes_at_once: bool) -> Vec<Pool> {
    let lives = &evidence.lives;
    let mut pools: Vec<Pool> = Vec::new();
    let mut pool_of: Vec<Option<usize>> = vec![None; lives.len()];
    // The lives whose pool the file names come first, because they may exclude later ones.
    let named = |id: &LifeId| lives[*id].known.is_some();
    let private = || (0..lives.len()).filter(|&id| is_private[id]);
    for id in private().filter(named).chain(private().filter(|id| !named(id))) {
        let life = &lives[id];
        let place = match life.known {
            Some(_) => pools.iter().position(|pool| pool.known == life.known),
            None => best_of(&pools, &pool_of, id, lives, grounds, goes_at_once),
        };
        let place = place.unwrap_or_else(|| {
            pools.push(Pool { known: life.known, members: Vec::new(), abandoned_at: None });
            pools.len() - 1
        });
        let pool = &mut pools[place];
        pool.members.push(id);
        pool_of[id] = Some(place);
        pool.abandoned_at = pool.abandoned_at.into_iter().chain(life.first_given_at).min();
    }
    pools
}

/// Returns whether a life fits into a pool that no evidence excludes: the pool serves no request after it has been abandoned.
fn fits(pool: &Pool, life: &Life, lives: &[Life]) -> bool {
    let comes_late = pool.abandoned_at.is_some_and(|abandoned| abandoned < life.last_used_at);
    let goes_early =
        life.first_given_at.is_some_and(|given| pool.members.iter().any(|&member| lives[member].last_used_at > given));
    !comes_late && !goes_early
}

fn best_of(
    pools: &[Pool],
    pool_of: &[Option<usize>],
    id: LifeId,
    lives: &[Life],
    grounds: &Grounds,
    goes_at_once: bool,
) -> Option<usize> {
    let places = |others: &mut dyn Iterator<Item = LifeId>| {
        let mut is_one = vec![false; pools.len()];
        others.filter_map(|other| pool_of[other]).for_each(|place| is_one[place] = true);
        is_one
    };
    let goes_with = &grounds.goes_with[id];
    let goes = places(&mut goes_with.iter().copied());
    let is_excluded = places(&mut grounds.apart.neighbours(id));
    // Lives that one pool may have freed at once belong to one pool. None of them can therefore be in a pool that excludes
    // another of them.
    let mut excludes_mates = vec![false; pools.len()];
    for &mate in grounds.mates[id].iter().take(MOST_MATES) {
        let excludes = places(&mut grounds.apart.neighbours(mate));
        excludes_mates.iter_mut().zip(excludes).for_each(|(any, excludes)| *any |= excludes);
    }
    let last_before = |pool: &Pool| pool.members.iter().copied().filter(|&member| member < id).max();
    let rank = |place: usize| Some((goes[place], last_before(&pools[place])?));
    let may_be = |place: &usize| {
        let pool = &pools[*place];
        !is_excluded[*place]
            && !excludes_mates[*place]
            && fits(pool, &lives[id], lives)
            && (!goes_at_once || goes[*place] || (goes_with.is_empty() && pool.abandoned_at.is_none()))
    };
    let open = (0..pools.len()).filter(may_be).filter_map(|place| Some((rank(place)?, place)));
    open.max_by_key(|&(rank, _)| rank).map(|(_, place)| place)
}

/// Returns the pools, sorted by the order in which pools released together were freed, if there is one: PyTorch iterates over
/// a hash map. Each pool comes with the number of pools that must be freed before it.
fn in_order(mut pools: Vec<Pool>, evidence: &Evidence) -> Vec<(Pool, u64)> {
    pools.sort_by_key(|pool| pool.abandoned_at.unwrap_or(usize::MAX));
    let mut pool_of = vec![None; evidence.lives.len()];
    for (place, pool) in pools.iter().enumerate() {
        pool.members.iter().for_each(|&life| pool_of[life] = Some(place));
    }
    let mut comes_after: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); pools.len()];
    for run in &evidence.releases {
        let mut order: Vec<usize> = run.iter().filter_map(|&(_, life)| pool_of[life]).collect();
        order.dedup();
        for pair in order.windows(2) {
            comes_after[pair[1]].insert(pair[0]);
        }
    }
    let mut rest: Vec<usize> = (0..pools.len()).collect();
    let mut is_left = vec![true; pools.len()];
    let mut ordered = Vec::new();
    let mut depths = vec![0; pools.len()];
    while !rest.is_empty() {
        let is_next = |pool: &usize| comes_after[*pool].iter().all(|&before| !is_left[before]);
        let place = rest.iter().position(is_next).unwrap_or(0);
        let pool = rest.remove(place);
        is_left[pool] = false;
        let before = comes_after[pool].iter().filter(|&&before| !is_left[before] && before != pool);
        depths[pool] = before.map(|&before| depths[before] + 1).max().unwrap_or(0);
        ordered.push((pools[pool].clone(), depths[pool]));
    }
    ordered
}

/// Ids for these pools, chosen so that pools that are freed together are freed in this order. Pools of different
/// depths are as far apart in PyTorch's hash table as possible.
fn ids(pools: &[(Pool, u64)]) -> Vec<PoolId> {
    let depths = pools.iter().map(|&(_, depth)| depth + 1).max().unwrap_or(1);
    let distance = u64::MAX / depths;
    // No position is 0, which is the default pool's.
    (1..).zip(pools).map(|(number, (_, depth))| PoolId::walked_at(depth * distance + number)).collect()
}

/// Lives with their pools, in the form in which the replay looks them up.
fn assumed<'l>(lives: impl Iterator<Item = (&'l Life, &'l PoolId)>) -> AssumedPools {
    let mut pools = AssumedPools::default();
    for (life, &pool) in lives {
        match life.made_at {
            // For an expandable segment, the default pool is also stated: the nearest segment below may belong to a different
            // pool.
            Some(at) if pool != PoolId::DEFAULT || life.expandable => {
                pools.made.insert(at as u32, pool);
            }
            Some(_) => {}
            None => {
                pools.before.insert(life.base, pool);
            }
        }
        if let (true, Some(at)) = (life.expandable, life.gone_at) {
            pools.range_ends.insert(at as u32, life.base);
        }
    }
    pools
}

/// Returns the pools of a trace's segments and failed requests, as named by its entries.
///
/// The order in which several pools release their memory at once follows a hash table of their ids, so it also depends on
/// pools that no entry names. The result therefore contains the pools twice: with their own ids, and with ids in the trace's
/// order. Empty if the entries name no private pool, or if a name does not fit the blocks before it.
pub(crate) fn named(recording: &DeviceRecording, start: &Start, policy: &PyTorch) -> Option<[AssumedPools; 2]> {
    let name = |entry: &Entry| recording.pools.get(entry.pool).map(|(first, second)| PoolId(first, second));
    if recording.pools.is_empty() || !recording.trace.iter().filter_map(name).any(|pool| pool != PoolId::DEFAULT) {
        return None;
    }
    let mut walk = Walk { layout: Layout::new(policy, &start.extents.segments), names: Vec::new(), releases: Vec::new() };
    let mut failed = Vec::new();
    let trace = &recording.trace;
    let mut at = 0;
    while at < trace.len() {
        let is_plain_free = trace[at].action == Action::FreeRequested && !start.deferred.contains_key(&(at as u32));
        if is_plain_free && let Some(completed) = trace.get(at + 1) {
            walk.layout.free(at + 1, completed);
            at += 2;
            continue;
        }
        let end = at + trace[at..].iter().take_while(|entry| is_inner(entry)).count();
        let asked = trace.get(end).filter(|entry| is_request(entry));
        // An out-of-memory entry contains the rounded size; rounding it again changes nothing.
        let size = asked.and_then(|entry| policy.round(Bytes(entry.size.max(1))));
        let class = size.map_or(PoolClass::Large, |size| policy.classify(size));
        walk.releases.push(Vec::new());
        for (place, entry) in trace[at..end].iter().enumerate().map(|(n, entry)| (at + n, entry)) {
            walk.inner(place, entry, class, name(entry))?;
        }
        match asked {
            Some(entry) if entry.action == Action::Alloc => {
                let life = walk.layout.serve(end, entry, size?.get())?;
                walk.name(life, name(entry));
            }
            Some(entry) => failed.extend(name(entry).map(|pool| (end as u32, pool))),
            None => {}
        }
        at = end + 1;
    }
    Some(walk.end(&failed))
}

struct Walk<'a> {
    layout: Layout<'a>,
    /// The pool of each life, if an entry has named it.
    names: Vec<Option<PoolId>>,
    /// The lives that released memory between two requests, in order, each with the entry of its release.
    releases: Vec<Vec<(usize, LifeId)>>,
}

impl Walk<'_> {
    fn name(&mut self, life: LifeId, pool: Option<PoolId>) {
        if self.names.len() <= life {
            self.names.resize(life + 1, None);
        }
        self.names[life] = self.names[life].or(pool);
    }

    /// Processes an entry for memory that was taken or released, or for a block that became free.
    fn inner(&mut self, at: usize, entry: &Entry, class: PoolClass, pool: Option<PoolId>) -> Option<()> {
        let life = match entry.action {
            Action::SegmentAlloc => {
                self.layout.make(at, entry);
                self.layout.life_at(entry.address)
            }
            Action::SegmentMap => {
                self.layout.map(at, entry, class);
                self.layout.life_at(entry.address)
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let life = self.layout.give(at, entry)?;
                self.releases.last_mut()?.push((at, life));
                Some(life)
            }
            _ => {
                self.layout.free(at, entry);
                None
            }
        };
        if let Some(life) = life {
            self.name(life, pool);
        }
        Some(())
    }

    fn end(self, failed: &[(u32, PoolId)]) -> [AssumedPools; 2] {
        let evidence = Evidence { lives: self.layout.lives, releases: self.releases, ..Evidence::default() };
        let new = |id| (id, Pool { known: Some(id), members: Vec::new(), abandoned_at: None });
        // A request may fail in a pool that never has memory.
        let private = failed.iter().map(|&(_, id)| id).filter(|&id| id != PoolId::DEFAULT);
        let mut pools: BTreeMap<PoolId, Pool> = private.map(new).collect();
        for (life, name) in self.names.iter().enumerate() {
            let Some(id) = name.filter(|&id| id != PoolId::DEFAULT) else { continue };
            let pool = pools.entry(id).or_insert_with(|| new(id).1);
            pool.members.push(life);
            pool.abandoned_at = pool.abandoned_at.into_iter().chain(evidence.lives[life].first_given_at).min();
        }
        let ordered = in_order(pools.into_values().collect(), &evidence);
        let own: Vec<PoolId> = ordered.iter().filter_map(|(pool, _)| pool.known).collect();
        [own, ids(&ordered)].map(|ids| {
            let mut pool_of = vec![PoolId::DEFAULT; evidence.lives.len()];
            let mut id_of = BTreeMap::from([(PoolId::DEFAULT, PoolId::DEFAULT)]);
            for (id, (pool, _)) in ids.into_iter().zip(&ordered) {
                pool.members.iter().for_each(|&life| pool_of[life] = id);
                id_of.extend(pool.known.map(|name| (name, id)));
            }
            let failed = failed.iter().filter_map(|(at, name)| Some((*at, *id_of.get(name)?)));
            AssumedPools { failed: failed.collect(), ..assumed(evidence.lives.iter().zip(&pool_of)) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(pools: usize, segments: usize, windows: u64, requests: u64, contradictions: u64) -> Guess {
        let segment = GuessedSegment { address: 1 << 40, made_at: Some(0), gone_at: Some(9), pool: 1 };
        Guess { segments: vec![segment; segments], pools, windows, requests, contradictions, ranges: 0 }
    }

    #[test]
    fn a_guess_explains_more_than_it_assumes() {
        assert!(guess(9, 14, 8, 48, 100).is_sound());
        assert!(!guess(9, 14, 57, 200, 100).is_sound(), "more than one window for two contradictions");
        assert!(!guess(9, 14, 40, 60, 100).is_sound(), "windows of one request");
        assert!(!guess(34, 40, 8, 48, 100).is_sound(), "more than one pool for four contradictions");
        assert!(!guess(9, 107, 8, 48, 100).is_sound(), "more than one segment for each contradiction");
        assert!(!guess(1, 3, 4, 7, 0).is_sound() && guess(1, 3, 4, 8, 0).is_sound(), "only the order of release speaks for it");
    }
}
