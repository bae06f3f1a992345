//! The private pools of segments that went back before the end, which no file of PyTorch 2.11 names.
//!
//! A recording names pools only in the segments that it lists at its end. Where the program dropped a pool before (a MemPool destroyed, a
//! graph reset), its segments look like the default pool's, and the replay departs from the recording at the first block that is not the
//! best fit of both pools together. Then the trace is read once more for what it shows of pools ([`evidence`], on the blocks of
//! [`layout`]), and the reading with the fewest private segments that agrees with it is chosen ([`choose`]). It counts only if replaying
//! under it gives the recording to the last entry, and if it is [`Guess::is_sound`].

mod choose;
mod evidence;
mod layout;

use std::collections::BTreeSet;

use parkade::policy::PyTorch;
use parkade::units::PoolId;
use rustc_hash::FxHashMap;

use super::start::Start;
use choose::{Partition, Pool, Trial};
use evidence::Evidence;
use layout::{Life, LifeId};
use parkade_recording::DeviceRecording;

/// Private pools that a guess may have, whatever it explains.
const FEW_POOLS: u64 = 8;
/// Windows of one request that a guess may have, whatever it explains.
const FEW_WINDOWS: u64 = 6;
/// Requests in a row that make a window long: a captured step has hundreds, and what alternates by chance has two or three.
const LONG_WINDOW: usize = 8;

/// How many private pools were guessed that the file does not name, of which segments, and how well that is founded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guess {
    /// Segments, and ranges of expandable memory, of which the file does not name the pool: those taken to be of private pools.
    pub segments: Vec<GuessedSegment>,
    /// The private pools that they are of.
    pub pools: usize,
    /// How often the requests changed over from the default pool, or from one that the file names, to these. Not counted where private
    /// memory that the file names served too, in a window of some length.
    pub windows: u64,
    /// Requests until they changed back, together.
    pub requests: u64,
    /// Requests that a single pool would have served otherwise, and that the guess explains.
    pub contradictions: u64,
    /// How many of the segments are ranges of expandable memory.
    pub ranges: u64,
}

impl Guess {
    /// Whether it explains more than it takes for granted. Enough pools would explain any allocator's trace. But real ones are used in
    /// windows, a few requests in a row that one pool would mostly have served otherwise; a segment taken wrongly for a private one
    /// serves single requests all over the trace, of which few are contradictions. And no pool is for a single request.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        // Two ranges of a kind are two pools, whatever else.
        let is_explained = self.windows <= self.contradictions / 2 + self.ranges * 2 + FEW_WINDOWS;
        let is_used = self.windows <= self.requests / 2 + FEW_WINDOWS;
        // Where only an order of release speaks for them, no pool is for a single request.
        let is_evident = self.contradictions > 0 || self.ranges > 0 || self.requests >= 2 * self.windows;
        // Of 215 real recordings none has more than a pool for each fourth of what it explains, and these few, nor more segments than this.
        let has_few_pools = self.pools as u64 <= self.contradictions / 4 + FEW_POOLS;
        let has_few_segments = self.segments.len() as u64 <= self.contradictions + FEW_WINDOWS;
        has_few_pools && has_few_segments && is_explained && is_used && is_evident
    }
}

/// A segment, or a range of expandable memory, that was taken to be of a private pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuessedSegment {
    /// Its first byte.
    pub address: u64,
    /// The entry that made it; `None` if it was there before the first.
    pub made_at: Option<usize>,
    /// The entry by which the last of it went back.
    pub gone_at: Option<usize>,
    /// Which of the guessed pools, from 1.
    pub pool: usize,
}

/// What to take for granted about the pools of a recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Assumption {
    /// The private pools of the segments that the trace makes, by entry; of ranges, by the entry that maps their first page.
    pub(super) made: FxHashMap<u32, PoolId>,
    /// The pools of what was there before the first entry, by address.
    pub(super) before: FxHashMap<u64, PoolId>,
    /// Where ranges end: the entry that unmaps their last page, and the range's first address.
    pub(super) range_ends: FxHashMap<u32, u64>,
    pub(super) guess: Guess,
}

/// How many readings of one recording are tried.
pub(super) const MOST_READINGS: usize = 48;
/// How many single places of one that is good are read more simply.
const MOST_SIMPLER: usize = 8;

/// Readings of one recording's pools, one after the other.
///
/// The evidence is about pairs of segments. Which of those that went back together were the default pool's may still be open: a reading
/// that fails there is followed by others that say so for that place, until one gets further.
pub(super) struct Readings {
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

impl Readings {
    /// Gathers what a trace shows. `None` if nothing in it went back before the end, or no pools can explain it.
    pub(super) fn of(recording: &DeviceRecording, start: &Start, policy: &PyTorch) -> Option<Readings> {
        let evidence = evidence::gather(recording, start, policy)?;
        let has_unknown = evidence.lives.iter().any(|life| life.known.is_none());
        let (settled, trial, others) = (Trial::default(), Trial::default(), vec![Trial::default()]);
        let (chosen, instead) = (BTreeSet::new(), Vec::new());
        has_unknown.then_some(Readings { evidence, settled, trial, chosen, instead, others, reached: None })
    }

    /// The next reading, if there is one left.
    pub(super) fn next(&mut self) -> Option<Assumption> {
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
    pub(super) fn simplify(&mut self, calls: &[usize]) {
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
    pub(super) fn fail(&mut self, at: Option<usize>, released: Option<(usize, u64)>) {
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

    fn assume(&self, mut partition: Partition) -> Assumption {
        // Several pools that go back together do so in the order of their ids, which is all that an id decides.
        partition.pools = in_order(partition.pools, &self.evidence);
        let lives = &self.evidence.lives;
        let mut assumption = Assumption { guess: self.guess(&partition), ..Assumption::default() };
        let mut pool_of = vec![PoolId::DEFAULT; lives.len()];
        for (number, pool) in partition.pools.iter().enumerate() {
            pool.members.iter().for_each(|&member| pool_of[member] = PoolId(0, number as u64 + 1));
        }
        for (life, &pool) in lives.iter().zip(&pool_of) {
            match life.made_at {
                // Of a range the default pool is said too: another's may be the nearest below it.
                Some(at) if pool != PoolId::DEFAULT || life.expandable => {
                    assumption.made.insert(at as u32, pool);
                }
                Some(_) => {}
                None => {
                    assumption.before.insert(life.base, pool);
                }
            }
            if let (true, Some(at)) = (life.expandable, life.gone_at) {
                assumption.range_ends.insert(at as u32, life.base);
            }
        }
        assumption
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

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(pools: usize, segments: usize, windows: u64, requests: u64, contradictions: u64) -> Guess {
        let segment = GuessedSegment { address: 1 << 40, made_at: Some(0), gone_at: Some(9), pool: 1 };
        Guess { segments: vec![segment; segments], pools, windows, requests, contradictions, ranges: 0 }
    }

    #[test]
    fn a_guess_explains_more_than_it_takes_for_granted() {
        assert!(guess(9, 14, 8, 48, 100).is_sound());
        assert!(!guess(9, 14, 57, 200, 100).is_sound(), "a window for each second contradiction");
        assert!(!guess(9, 14, 40, 60, 100).is_sound(), "windows of one request");
        assert!(!guess(34, 40, 8, 48, 100).is_sound(), "a pool for each third contradiction");
        assert!(!guess(9, 107, 8, 48, 100).is_sound(), "a segment for each contradiction");
        assert!(!guess(1, 3, 4, 7, 0).is_sound() && guess(1, 3, 4, 8, 0).is_sound(), "only an order of release speaks for it");
    }
}
