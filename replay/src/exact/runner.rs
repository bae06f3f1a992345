//! A replay in progress, and the single things that it does to the core.
//!
//! A trace shows what the allocator did, not what it was asked: `empty_cache` shows only as segments given
//! back, an event's completion only as a block that becomes free. [`super::steps`] turns entries into
//! operations; where a run of entries can be read in several ways, [`super::readings`] tries them.

use std::collections::BTreeSet;

use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation};
use parkade_recording::{Action, Entry};
use rustc_hash::FxHashMap;

use super::peak_resets::PeakWatch;
use super::position::Position;
use super::recorded_capacity::Capacity;
use super::replay_core::ReplayCore;
use super::restores::Restores;
use super::tally::{Mismatch, Release, Tally};
use crate::entries::{Decision, ELSEWHERE};
use crate::initial_state::Start;
use crate::pools::{self, PoolTracker};

/// A replay in progress.
pub(crate) struct Runner<'a> {
    pub(crate) trace: &'a [Entry],
    pub(crate) position: &'a Position,
    pub(crate) core: ReplayCore<'a>,
    /// The allocations in use, by recorded address.
    pub(crate) live: FxHashMap<u64, Allocation>,
    /// For each entry that frees a block which does not become free for reuse at once:
    /// the entry at which it does, if any.
    pub(crate) deferred: &'a FxHashMap<u32, Option<u32>>,
    pub(crate) pools: PoolTracker<'a>,
    pub(crate) capacity: Capacity,
    /// Requests to read in another way than the likeliest.
    pub(crate) read_differently: &'a BTreeSet<usize>,
    /// What is known for restored checkpoints, if they are looked for.
    pub(crate) restores: Option<Restores>,
    pub(crate) tally: Tally,
    /// How many freed blocks wait for events.
    pub(crate) waiting: usize,
    /// Watches the peaks after every operation, if set.
    pub(crate) watch: Option<PeakWatch>,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(
        trace: &'a [Entry],
        position: &'a Position,
        core: ReplayCore<'a>,
        live: FxHashMap<u64, Allocation>,
        start: &'a Start,
        capacity: Capacity,
    ) -> Runner<'a> {
        let (deferred, pools) = (&start.deferred, PoolTracker::new(&start.pools));
        Runner {
            trace,
            position,
            core,
            live,
            deferred,
            pools,
            capacity,
            read_differently: &start.read_differently,
            restores: Restores::of(trace, start),
            tally: Tally::default(),
            waiting: start.pending.len(),
            watch: None,
        }
    }

    /// The number of the next entry; the trace's length at the end.
    pub(crate) fn at(&self) -> usize {
        self.position.next.get()
    }

    /// Begins an operation whose entries end before `end`; events that completed before `visible` are complete.
    pub(crate) fn open(&mut self, end: usize, visible: usize) {
        self.position.end.set(end);
        self.position.visible.set(visible);
    }

    /// Ends the operation that began at `at` and should have brought the replay to `end`.
    #[inline]
    pub(crate) fn close(&mut self, at: usize, end: usize) {
        let reached = self.at();
        self.tally.decisions += (end - at) as u64;
        self.tally.refusals += self.position.refusals.take();
        if reached != end || self.core.observer().stray.is_some() {
            self.disagree(end);
        }
    }

    /// Counts the mismatches of an operation, and describes the first.
    #[cold]
    fn disagree(&mut self, end: usize) {
        let reached = self.at();
        let (stray, count) = self.core.observer_mut().take_stray();
        let missed = (end - reached) as u64;
        self.tally.mismatches += missed.max(count);
        // Those that the recording does not have were compared too.
        self.tally.decisions += count.saturating_sub(missed);
        self.position.next.set(end);
        self.tally.first_stray = self.tally.first_stray.or(stray);
        if self.tally.first.is_none() {
            self.tally.stray = stray;
            let place = stray.map_or(reached, |(place, _)| place);
            let recorded = self.trace[..end].get(place).map(Decision::from);
            let replayed = stray.map(|(_, decision)| decision);
            // The address of an out-of-memory entry is not one, and the recording has
            // nothing at addresses from ELSEWHERE on.
            let has_history =
                |decision: &&Decision| !matches!(decision.action, Action::Oom | Action::Snapshot) && decision.address < ELSEWHERE;
            let mut addresses: Vec<u64> =
                recorded.iter().chain(&replayed).filter(has_history).map(|decision| decision.address).collect();
            addresses.dedup();
            self.tally.first = Some(Mismatch {
                entry: Some(place),
                recorded: recorded.map_or("nothing more".to_owned(), |decision| decision.to_string()),
                replayed: replayed.map_or("nothing".to_owned(), |decision| decision.to_string()),
                addresses,
            });
        }
    }

    /// Repeats the request of the entry `at`. An out-of-memory entry has the rounded size, which rounds to itself.
    #[inline]
    pub(crate) fn request(&mut self, from: usize, at: usize) -> Option<Allocation> {
        self.request_from(self.pools.of_request(from, &self.trace[from..=at]), at)
    }

    /// Repeats the request of the entry `at`, from this pool.
    #[inline]
    pub(crate) fn request_from(&mut self, pool: PoolId, at: usize) -> Option<Allocation> {
        let entry = &self.trace[at];
        let (bytes, stream) = (Bytes(entry.size), StreamId(entry.stream));
        let served = match pool {
            PoolId::DEFAULT => self.core.raw_allocate(bytes, stream),
            pool => pools::request_from(&mut self.core, pool, bytes, stream),
        };
        match served {
            Ok(allocation) => {
                if let Some(restores) = &mut self.restores {
                    restores.note(self.core.block_of(&allocation));
                }
                Some(allocation)
            }
            Err(AllocError::OutOfMemory(_)) => {
                self.tally.ooms += 1;
                None
            }
            // A request for no bytes, or over 64 bits: nothing happens, which does not agree with the entry.
            Err(_) => None,
        }
    }

    /// Keeps what the request of the entry `at` got, until the recording frees it.
    #[inline]
    pub(crate) fn keep(&mut self, at: usize, allocation: Option<Allocation>) {
        let entry = &self.trace[at];
        match (entry.action, allocation) {
            (Action::Alloc, Some(allocation)) => {
                self.live.insert(entry.address, allocation);
            }
            // The recording was out of memory here, so it never frees this.
            (_, Some(allocation)) => {
                let _ = self.core.free(allocation);
            }
            (_, None) => {}
        }
    }

    /// Makes the core give cached memory back.
    pub(crate) fn release(&mut self, release: Release) {
        self.tally.releases.push((self.at(), release));
        // Cannot fail: the recorded device does not.
        let _ = match release {
            Release::All => self.core.release_cached(),
            Release::Pool(pool) => self.core.release_cached_pool(pool),
        };
    }
}
