//! Guesses about the pools of one recording, one after the other.

use std::collections::BTreeSet;

use parkade::policy::PyTorch;
use parkade::units::PoolId;
use parkade_recording::DeviceRecording;

use super::choose::{self, Partition, Pool, Trial};
use super::evidence::{self, Evidence};
use super::guess::{Guess, GuessedSegment};
use super::layout::{Life, LifeId};
use crate::pools::AssumedPools;
use crate::start::Start;

/// Requests in a row that make a window long: a captured step has hundreds, and what alternates by chance has two or three.
const LONG_WINDOW: usize = 8;
/// How many readings of one recording are tried.
pub(crate) const MOST_GUESSES: usize = 48;
/// How many single places of one that is good are read more simply.
const MOST_SIMPLER: usize = 8;

/// Guesses of one recording's pools, one after the other.
///
/// The evidence is about pairs of segments. Which of those that went back together were the default pool's may still be open: a reading
/// that fails there is followed by others that say so for that place, until one gets further.
pub(crate) struct Guesses {
    evidence: Evidence,
    /// What is taken for granted because readings without failed.
    settled: Trial,
    /// The reading that is being tried, in the same terms.
    trial: Trial,
    /// All lives that are private in it.
    chosen: BTreeSet<LifeId>,
    /// What might be private in it instead.
    instead: Vec<Vec<LifeId>>,
    /// What else can be said about the place where readings fail.
    others: Vec<Trial>,
    /// How far the best reading came: its first entry that differed.
    reached: Option<usize>,
}

/// The pools in an order in which those that went back together did so; as far as there is one, for PyTorch's is that of a hash map.
fn in_order(mut pools: Vec<Pool>, evidence: &Evidence) -> Vec<Pool> {
    pools.sort_by_key(|pool| pool.abandoned_at.unwrap_or(usize::MAX));
    let pool_of = |life: LifeId| pools.iter().position(|pool| pool.members.contains(&life));
    let mut comes_after: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); pools.len()];
    for run in &evidence.releases {
        let mut order: Vec<usize> = run.iter().filter_map(|&(_, life)| pool_of(life)).collect();
        order.dedup();
        for pair in order.windows(2) {
            comes_after[pair[1]].insert(pair[0]);
        }
    }
    let mut rest: Vec<usize> = (0..pools.len()).collect();
    let mut ordered = Vec::new();
    while !rest.is_empty() {
        let is_next = |pool: &usize| comes_after[*pool].iter().all(|before| !rest.contains(before));
        let place = rest.iter().position(is_next).unwrap_or(0);
        ordered.push(pools[rest.remove(place)].clone());
    }
    ordered
}

impl Guesses {
    /// Gathers what a trace shows. `None` if nothing in it went back before the end, or no pools can explain it.
    pub(crate) fn of(recording: &DeviceRecording, start: &Start, policy: &PyTorch) -> Option<Guesses> {
        let evidence = evidence::gather(recording, start, policy)?;
        let has_unknown = evidence.lives.iter().any(|life| life.known.is_none());
        let (settled, trial, others) = (Trial::default(), Trial::default(), vec![Trial::default()]);
        let (chosen, instead) = (BTreeSet::new(), Vec::new());
        has_unknown.then_some(Guesses { evidence, settled, trial, chosen, instead, others, reached: None })
    }

    /// The next reading, if there is one left.
    pub(crate) fn next(&mut self) -> Option<(AssumedPools, Guess)> {
        while let Some(trial) = self.others.pop() {
            self.trial = trial;
            if let Some(partition) = choose::choose(&self.evidence, &self.trial) {
                self.instead.clone_from(&partition.instead);
                self.chosen = partition.pools.iter().flat_map(|pool| pool.members.iter().copied()).collect();
                return Some(self.assume(partition));
            }
        }
        None
    }

    /// The last reading gives the recording, with calls that give memory back before these entries. Where it needs several for what went
    /// back at once, simpler readings are tried next.
    pub(crate) fn simplify(&mut self, calls: &[usize]) {
        self.settled.clone_from(&self.trial);
        let has_several = |run: &&Vec<(usize, LifeId)>| {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { return false };
            calls.iter().filter(|&&call| first.0 <= call && call <= last.0).count() > 1
        };
        let runs: Vec<&Vec<(usize, LifeId)>> = self.evidence.releases.iter().filter(has_several).collect();
        // Of the default pool's memory it is the first stretch, or nothing.
        let without = |run: &[(usize, LifeId)], kept: usize| -> BTreeSet<LifeId> {
            let stretches = self.evidence.default_stretches(run);
            stretches.iter().skip(kept).flatten().copied().collect()
        };
        // Beside what is certain, or beside all that the good reading says of other places.
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
        privates.extend(instead.map(|lives| self.settled.private.iter().chain(lives).copied().collect()));
        // The last are tried first.
        let trials = [true, false]
            .map(|goes_at_once| privates.iter().map(move |private| Trial { private: private.clone(), goes_at_once }));
        self.others = trials.into_iter().flatten().filter(|other| *other != self.settled).collect();
    }

    /// The last reading differs from the recording first at this entry, or at its end. `released` is the segment that the default pool would
    /// have given back first where it stayed, and before which entry.
    pub(crate) fn fail(&mut self, at: Option<usize>, released: Option<(usize, u64)>) {
        let place = at.unwrap_or(usize::MAX);
        // A collection, which looks at the default pool alone, passed it over.
        let stayed =
            released.and_then(|(at, address)| self.life_at(at, address)).filter(|life| !self.trial.private.contains(life));
        match self.reached {
            Some(reached) if place < reached || (place == reached && stayed.is_none()) => return,
            // It passed over several.
            Some(reached) if place == reached => {}
            _ => {
                self.reached = Some(place);
                self.settled.clone_from(&self.trial);
                self.others = self.by_release(place);
            }
        }
        self.others.extend(stayed.map(|life| self.trial.also_private([life])));
    }

    /// The life of the segment that begins at an address, before an entry, if the file does not name its pool.
    fn life_at(&self, at: usize, address: u64) -> Option<LifeId> {
        let is_it = |life: &Life| {
            let is_there = life.made_at.is_none_or(|made| made < at) && life.gone_at.is_none_or(|gone| gone >= at);
            life.base == address && !life.expandable && life.known.is_none() && is_there
        };
        self.evidence.lives.iter().rposition(is_it)
    }

    /// What can be said of the memory that went back together at a place. The likeliest comes last.
    fn by_release(&self, place: usize) -> Vec<Trial> {
        // What should not have gone back shows behind what did.
        let is_there = |run: &&Vec<(usize, LifeId)>| {
            run.first().is_some_and(|first| first.0 <= place) && run.last().is_some_and(|last| place <= last.0.saturating_add(1))
        };
        let Some(run) = self.evidence.releases.iter().find(is_there) else { return Vec::new() };
        // The default pool's are one stretch: the likeliest is the first, for empty_cache begins with it; the least likely none, where a
        // single pool gave its memory back.
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
        // Several pools that go back together do so in the order of their ids, which is all that an id decides.
        partition.pools = in_order(partition.pools, &self.evidence);
        let lives = &self.evidence.lives;
        let guess = self.guess(&partition);
        let mut pools = AssumedPools::default();
        let mut pool_of = vec![PoolId::DEFAULT; lives.len()];
        for (number, pool) in partition.pools.iter().enumerate() {
            pool.members.iter().for_each(|&member| pool_of[member] = PoolId(0, number as u64 + 1));
        }
        for (life, &pool) in lives.iter().zip(&pool_of) {
            match life.made_at {
                // Of a range the default pool is said too: another's may be the nearest below it.
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
            // A long one in which memory that the file names is used is known.
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
