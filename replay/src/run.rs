//! Carrying out a recording's requests, one operation after the other.
//!
//! A trace shows what the allocator did, not what it was asked: an `empty_cache` shows only as segments given back, an event's
//! completion only as a block that becomes free. Where one run of entries can be read in several ways, [`super::readings`] tries them.

use std::collections::BTreeSet;

use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation};
use rustc_hash::FxHashMap;

use super::capacity::Capacity;
use super::compare::{Doing, Mismatch};
use super::device::{ELSEWHERE, Position, stream_of};
use super::peaks::PeakWatch;
use super::pools::{self, PoolsNow};
use super::readings::Reading;
use super::start::{ReplayCore, Start};
use parkade_recording::{Action, Entry};

/// What a replay counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) decisions: u64,
    pub(super) mismatches: u64,
    pub(super) first: Option<Mismatch>,
    /// What the core did there, and before which entry.
    pub(super) stray: Option<(usize, Doing)>,
    /// What the core did first that the recording has not, anywhere.
    pub(super) first_stray: Option<(usize, Doing)>,
    pub(super) ooms: u64,
    /// Calls that gave cached memory back and show in the trace: the entry before which each was made.
    pub(super) releases: Vec<(usize, Release)>,
    /// Requests that failed in a private pool, and which: no entry says it, and the reading that agrees supposes it.
    pub(super) failed_in: Vec<(usize, PoolId)>,
    /// Requests that can be read in several ways.
    pub(super) ambiguous: Vec<usize>,
    /// Requests that the driver refused, taken from the recording.
    pub(super) refusals: u64,
}

impl Tally {
    /// How much had to happen that no entry says: of two readings the one with less is likelier.
    pub(super) fn effort(&self) -> u64 {
        self.releases.len() as u64 + self.refusals
    }
}

/// A call that gives cached memory back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Release {
    /// empty_cache.
    All,
    /// The end of a MemPool: all of this pool, which nobody uses any more (spec 5.4).
    Pool(PoolId),
}

pub(super) fn takes_memory(entry: &Entry) -> bool {
    matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap)
}

pub(super) fn gives_memory(entry: &Entry) -> bool {
    matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap)
}

/// A replay under way.
pub(super) struct Runner<'a> {
    pub(super) trace: &'a [Entry],
    pub(super) position: &'a Position,
    pub(super) core: ReplayCore<'a>,
    live: FxHashMap<u64, Allocation>,
    deferred: &'a FxHashMap<u32, Option<u32>>,
    pub(super) pools: PoolsNow<'a>,
    pub(super) capacity: Capacity,
    /// Requests whose likeliest reading is not the one.
    pub(super) otherwise: &'a BTreeSet<usize>,
    pub(super) tally: Tally,
    /// Watches the peaks operation by operation, when that is wanted.
    pub(super) watch: Option<PeakWatch>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        trace: &'a [Entry],
        position: &'a Position,
        core: ReplayCore<'a>,
        live: FxHashMap<u64, Allocation>,
        start: &'a Start,
        capacity: Capacity,
    ) -> Runner<'a> {
        let (deferred, pools) = (&start.deferred, PoolsNow::new(&start.pools));
        Runner {
            trace,
            position,
            core,
            live,
            deferred,
            pools,
            capacity,
            otherwise: &start.otherwise,
            tally: Tally::default(),
            watch: None,
        }
    }

    /// The entry that comes next; the trace's length when all is done.
    pub(super) fn at(&self) -> usize {
        self.position.next.get()
    }

    /// Carries out the next operation. False at the end of the trace.
    #[inline]
    pub(super) fn step(&mut self) -> bool {
        let at = self.at();
        let Some(entry) = self.trace.get(at) else { return false };
        if let Some(watch) = &mut self.watch {
            watch.before(at);
        }
        match entry.action {
            Action::FreeRequested => self.free(at, entry),
            Action::Alloc => {
                self.open(at + 1, at);
                let allocation = self.request(at, at);
                self.keep(at, allocation);
                self.close(at, at + 1);
            }
            Action::Snapshot => self.position.next.set(at + 1),
            _ => self.group(at),
        }
        if let Some(watch) = &mut self.watch {
            watch.after(&mut self.core);
        }
        true
    }

    pub(super) fn open(&mut self, end: usize, visible: usize) {
        self.position.end.set(end);
        self.position.visible.set(visible);
    }

    /// The operation that began at `at` is over, and should have brought the replay to `end`.
    #[inline]
    fn close(&mut self, at: usize, end: usize) {
        let reached = self.at();
        self.tally.decisions += (end - at) as u64;
        self.tally.refusals += self.position.refusals.take();
        if reached != end || self.core.observer().stray.is_some() {
            self.disagree(end);
        }
    }

    #[cold]
    fn disagree(&mut self, end: usize) {
        let reached = self.at();
        let (stray, count) = self.core.observer_mut().take_stray();
        self.tally.mismatches += ((end - reached) as u64).max(count);
        self.position.next.set(end);
        self.tally.first_stray = self.tally.first_stray.or(stray);
        if self.tally.first.is_none() {
            self.tally.stray = stray;
            let place = stray.map_or(reached, |(place, _)| place);
            let recorded = self.trace[..end].get(place).map(Doing::from);
            let replayed = stray.map(|(_, doing)| doing);
            // Of an out-of-memory point the address is no address, and what lies elsewhere has no history.
            let has_history =
                |doing: &&Doing| !matches!(doing.action, Action::Oom | Action::Snapshot) && doing.address < ELSEWHERE;
            let mut addresses: Vec<u64> =
                recorded.iter().chain(&replayed).filter(has_history).map(|doing| doing.address).collect();
            addresses.dedup();
            self.tally.first = Some(Mismatch {
                entry: Some(place),
                recorded: recorded.map_or("nothing more".to_owned(), |doing| doing.to_string()),
                replayed: replayed.map_or("nothing".to_owned(), |doing| doing.to_string()),
                addresses,
            });
        }
    }

    fn free(&mut self, at: usize, entry: &Entry) {
        let deferred = self.deferred.get(&(at as u32)).copied();
        let end = if deferred.is_some() { at + 1 } else { at + 2 };
        self.open(end, at);
        // Missing only where the core has already failed to serve the request.
        if let Some(allocation) = self.live.remove(&entry.address) {
            if let Some(completed_at) = deferred {
                self.core.record_stream(&allocation, stream_of(completed_at));
            }
            // The recorded device refuses no event, and the allocation is this core's.
            let _ = self.core.free(allocation);
        }
        self.close(at, end);
    }

    /// Asks the core for what the entry at `at` asked for. An out-of-memory entry has the rounded size, which rounds to itself.
    #[inline]
    pub(super) fn request(&mut self, from: usize, at: usize) -> Option<Allocation> {
        self.request_from(self.pools.of_request(from, &self.trace[from..=at]), at)
    }

    /// The same, of a pool.
    #[inline]
    pub(super) fn request_from(&mut self, pool: PoolId, at: usize) -> Option<Allocation> {
        let entry = &self.trace[at];
        let (bytes, stream) = (Bytes(entry.size), StreamId(entry.stream));
        let served = match pool {
            PoolId::DEFAULT => self.core.raw_allocate(bytes, stream),
            pool => pools::request_from(&mut self.core, pool, bytes, stream),
        };
        match served {
            Ok(allocation) => Some(allocation),
            Err(AllocError::OutOfMemory(_)) => {
                self.tally.ooms += 1;
                None
            }
            // A request of no bytes, or beyond 64 bits: nothing happens, which does not agree with the entry.
            Err(_) => None,
        }
    }

    /// Pools whose segments go back in these entries are no longer used by anybody.
    fn abandon_pools(&mut self, from: usize, end: usize) {
        for pool in self.pools.giving(&self.trace[from..end]) {
            if self.core.pool_use_count(pool).is_ok_and(|uses| uses > 0) {
                // It exists and is in use.
                let _ = self.core.release_pool(pool);
            }
        }
    }

    #[inline]
    pub(super) fn keep(&mut self, at: usize, allocation: Option<Allocation>) {
        let entry = &self.trace[at];
        match (entry.action, allocation) {
            (Action::Alloc, Some(allocation)) => {
                self.live.insert(entry.address, allocation);
            }
            // Served where the recording was out of memory: nobody will give it back.
            (_, Some(allocation)) => {
                let _ = self.core.free(allocation);
            }
            (_, None) => {}
        }
    }

    /// Entries that belong to one request, or to none.
    fn group(&mut self, at: usize) {
        let inner = |entry: &&Entry| entry.action == Action::FreeCompleted || takes_memory(entry) || gives_memory(entry);
        let run = self.trace[at..].iter().take_while(inner).count();
        let end = at + run;
        self.abandon_pools(at, end);
        match self.trace.get(end) {
            Some(entry) if matches!(entry.action, Action::Alloc | Action::Oom) => self.request_group(at, end),
            _ => self.group_without_request(at, end),
        }
        self.pools.pass(at, &self.trace[at..end]);
    }

    /// Segments given back and events completed with no request behind them: calls of empty_cache, pools that are dropped.
    fn group_without_request(&mut self, at: usize, end: usize) {
        self.open(end, end);
        if self.pools.has_private() && self.try_releases(end) {
            self.tally.ambiguous.push(end);
            self.tally.decisions += (end - at) as u64;
            return;
        }
        while self.at() < end && self.core.observer().stray.is_none() {
            let before = self.at();
            let releases = self.trace[before..end].iter().any(gives_memory);
            if releases {
                self.release(Release::All);
            } else {
                // The recorded device fails nothing.
                let _ = self.core.process_events();
            }
            if self.at() == before {
                break;
            }
        }
        self.close(at, end);
    }

    /// Gives cached memory back.
    pub(super) fn release(&mut self, release: Release) {
        self.tally.releases.push((self.at(), release));
        // The recorded device fails nothing.
        let _ = match release {
            Release::All => self.core.release_cached(),
            Release::Pool(pool) => self.core.release_cached_pool(pool),
        };
    }

    /// Entries from `at` on that end with the request at `request`.
    fn request_group(&mut self, at: usize, request: usize) {
        let inner = &self.trace[at..request];
        let completes = inner.iter().any(|entry| entry.action == Action::FreeCompleted);
        let is_plain = !inner.iter().any(takes_memory) && self.trace[request].action == Action::Alloc;
        let is_elsewhere = self.pools.has_private() && self.trace[request].action == Action::Oom;
        let is_ambiguous = is_elsewhere || inner.iter().any(gives_memory) || (completes && !is_plain);
        let end = request + 1;
        let readings = if is_ambiguous { self.readings(at, request) } else { vec![Reading::Request { visible: end }] };
        if is_ambiguous && self.try_likeliest(at, request, &readings) {
            self.tally.ambiguous.push(request);
            self.tally.decisions += (end - at) as u64;
            return;
        }
        // Nothing else explains it: the first reading, with its mismatches.
        self.open(end, end);
        if let Reading::Release(release) = readings[0] {
            self.release(release);
        }
        let allocation = self.request(self.at(), request);
        self.keep(request, allocation);
        self.check_refusals(at);
        self.close(at, end);
    }

    /// With a limit, a refusal that the limit does not explain is a mismatch.
    fn check_refusals(&mut self, at: usize) {
        let refusals = self.position.refusals.get();
        if refusals == 0 {
            return;
        }
        if let Some(limit) = self.core.heap().limit() {
            self.tally.mismatches += 1;
            self.tally.first.get_or_insert(Mismatch {
                entry: Some(at),
                recorded: "the device had no room".to_owned(),
                replayed: format!("the limit of {limit} bytes leaves room; is it another one, or was the device full?"),
                addresses: Vec::new(),
            });
        }
    }
}
