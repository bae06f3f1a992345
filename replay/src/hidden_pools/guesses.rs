//! Makes guesses for the pools of one recording. Each guess learns from how the one before it failed. This module also
//! decides whether a guess explains more than it assumes.

use std::collections::BTreeSet;
use std::mem;

use parkade::policy::PyTorch;
use parkade::units::PoolId;
use parkade_recording::DeviceRecording;

use super::choose::{self, Grounds, Partition, Pool, Trial, assumed, ids, in_order};
use super::evidence::{self, Evidence, Releases, Unused};
use super::layout::{Life, LifeId};
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
    /// Whether the guess explains more than it assumes.
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
/// The evidence concerns pairs of segments. It may therefore not determine which of the segments that were freed together
/// belonged to the default pool. When a guess fails at a point like this, variants for that point follow until one gets
/// further.
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
    /// No segment was freed before the end, no division into pools explains the evidence, or there is too much evidence.
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
            if let Some(partition) = choose::choose(&self.evidence, &self.grounds, &self.trial, &mut self.work) {
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

    /// The life of the segment at an address, before the entry `at`, if the file does not name its pool.
    fn life_at(&self, at: usize, address: u64) -> Option<LifeId> {
        let is_it = |life: &Life| {
            let is_there = life.made_at.is_none_or(|made| made < at) && life.gone_at.is_none_or(|gone| gone >= at);
            life.base == address && !life.expandable && life.known.is_none() && is_there
        };
        self.evidence.lives.iter().rposition(is_it)
    }

    /// If a segment that differs is in one of two sets that exclude each other, the variants make the other set
    /// private.
    fn by_exclusion(&self, place: usize, addresses: &[u64]) -> Vec<Trial> {
        let is_there = |life: LifeId| {
            let life = &self.evidence.lives[life];
            life.gone_at.is_none_or(|gone| gone >= place) && addresses.contains(&life.base)
        };
        let concerns = |(private, other): &&(Vec<LifeId>, Vec<LifeId>)| private.iter().chain(other).any(|&life| is_there(life));
        let others = self.instead.iter().filter(concerns).take(MOST_SIMPLER);
        others.map(|(_, other)| self.settled.also_private(other.iter().copied())).collect()
    }

    /// The possibilities for the memory that was freed together at this point, the likeliest last.
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
