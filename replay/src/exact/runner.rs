//! A replay in progress: the operations of the recorded program, one by one.
//!
//! A trace shows the allocator's actions, not the program's calls: a call to `empty_cache` is visible only as released
//! segments, and the completion of an event only as a block that becomes free. The runner therefore first groups the entries
//! into operations and then repeats each operation on the core.
//!
//! A run of entries that ends in a request may have several readings: no entry shows whether `empty_cache` was called before
//! the request, or which events were complete when it began. The runner tries each reading on a copy of the core and takes
//! the first that produces exactly these entries. There is a mismatch only if none does. The number of readings is kept
//! small, because each costs a copy.
//!
//! The program may have restored checkpoints of private pools, as CUDA graph trees do (spec 5.8). No entry names a restore. A
//! restore first frees the pool's blocks in use, which looks like ordinary frees. It then hands out the blocks of the saved
//! segments one by one, each segment starting from its first byte and including the free blocks, and frees the latter again.
//! A run of entries of this form, at a point where no block of the pool is in use, therefore describes a checkpoint. If
//! requests do not explain the run, and the pool may have been in that state before, the core restores that checkpoint, and
//! its decisions are compared like any others.
//!
//! Requests explain most runs of that form. The runner therefore looks for restores only after a replay without them has
//! differed, and only for restores that end after that first difference.

use std::collections::{BTreeMap, BTreeSet};

use parkade::checkpoint::{SavedBlock, SavedSegment, SavedState};
use parkade::snapshot::{BlockActivity, PlacedBlock};
use parkade::stats::{Family, Stats};
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{AllocError, Allocation, PoolCheckpoint, PoolSlot};
use parkade_recording::{Action, Entry};
use rustc_hash::{FxHashMap, FxHashSet};

use super::flushes::{Capacity, Flush, FlushReason};
use super::recorded_core::{Position, ReplayCore};
use super::tally::{Mark, Mismatch, PeakWatch, Release, Tally};
use crate::completions::stream_of;
use crate::entries::{Decision, ELSEWHERE, gives_memory, is_inner, is_request, takes_memory};
use crate::initial_state::Start;
use crate::pools::{self, PoolTracker};

/// A replay in progress.
pub(crate) struct Runner<'a> {
    trace: &'a [Entry],
    position: &'a Position,
    pub(crate) core: ReplayCore<'a>,
    /// The allocations in use, by recorded address.
    live: FxHashMap<u64, Allocation>,
    /// For each entry that frees a block which does not immediately become free for reuse: the entry at which it does, if
    /// any.
    deferred: &'a FxHashMap<u32, Option<u32>>,
    pools: PoolTracker<'a>,
    capacity: Capacity,
    /// The requests to read in a way other than the likeliest.
    read_differently: &'a BTreeSet<usize>,
    /// The facts known about restored checkpoints, if the replay looks for them.
    restores: Option<Restores>,
    pub(crate) tally: Tally,
    /// The number of freed blocks that wait for events.
    waiting: usize,
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

    /// Returns the number of the next entry; the trace's length at the end.
    pub(crate) fn at(&self) -> usize {
        self.position.next.get()
    }

    /// Begins an operation whose entries end before `end`; events that completed before `visible` are complete.
    fn open(&mut self, end: usize, visible: usize) {
        self.position.end.set(end);
        self.position.visible.set(visible);
    }

    /// Ends the operation that began at `at` and should have brought the replay to `end`.
    #[inline]
    fn close(&mut self, at: usize, end: usize) {
        let reached = self.at();
        self.tally.decisions += (end - at) as u64;
        self.tally.refusals += self.position.refusals.take();
        if reached != end || self.core.observer().stray.is_some() {
            self.disagree(end);
        }
    }

    /// Counts the mismatches of an operation, and describes the first one.
    #[cold]
    fn disagree(&mut self, end: usize) {
        let reached = self.at();
        let (stray, count) = self.core.observer_mut().take_stray();
        let missed = (end - reached) as u64;
        self.tally.mismatches += missed.max(count);
        // Decisions that the recording does not have were compared too.
        self.tally.decisions += count.saturating_sub(missed);
        self.position.next.set(end);
        self.tally.first_stray = self.tally.first_stray.or(stray);
        if self.tally.first.is_none() {
            self.tally.stray = stray;
            let place = stray.map_or(reached, |(place, _)| place);
            let recorded = self.trace[..end].get(place).map(Decision::from);
            let replayed = stray.map(|(_, decision)| decision);
            // An out-of-memory entry has no real address, and the recording has nothing at addresses at or above ELSEWHERE.
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

    /// Repeats the request at the entry `at`. An out-of-memory entry contains the rounded size; rounding it again changes
    /// nothing.
    #[inline]
    fn request(&mut self, from: usize, at: usize) -> Option<Allocation> {
        self.request_from(self.pools.of_request(from, &self.trace[from..=at]), at)
    }

    /// Repeats the request at the entry `at`, from this pool.
    #[inline]
    fn request_from(&mut self, pool: PoolId, at: usize) -> Option<Allocation> {
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
            // A request for zero bytes, or one that exceeds 64 bits: it does nothing, which does not agree with the entry.
            Err(_) => None,
        }
    }

    /// Keeps the memory that the request at the entry `at` received until the recording frees it.
    #[inline]
    fn keep(&mut self, at: usize, allocation: Option<Allocation>) {
        let entry = &self.trace[at];
        match (entry.action, allocation) {
            (Action::Alloc, Some(allocation)) => {
                self.live.insert(entry.address, allocation);
            }
            // The recorded request ran out of memory, so the recording never frees this allocation.
            (_, Some(allocation)) => {
                let _ = self.core.free(allocation);
            }
            (_, None) => {}
        }
    }

    /// Makes the core release its cached memory.
    fn release(&mut self, release: Release) {
        self.tally.releases.push((self.at(), release));
        // Cannot fail: the recorded device does not fail.
        let _ = match release {
            Release::All => self.core.release_cached(),
            Release::Pool(pool) => self.core.release_cached_pool(pool),
        };
    }
}

/// After its first mismatch, a replay reads entries only in the likeliest way after it has copied this many blocks to try
/// other readings.
const MOST_COPIED: u64 = 1 << 24;

impl Runner<'_> {
    /// Repeats the next operation. Returns false at the end of the trace.
    #[inline]
    pub(crate) fn step(&mut self) -> bool {
        let at = self.at();
        let Some(entry) = self.trace.get(at) else { return false };
        if let Some(watch) = &mut self.watch {
            watch.before(at);
        }
        match entry.action {
            Action::FreeRequested => self.free(at, entry),
            Action::Alloc if self.restores.is_some() && self.is_worth_reading() && self.try_restore(at) => {}
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

    fn free(&mut self, at: usize, entry: &Entry) {
        let deferred = self.deferred.get(&(at as u32)).copied();
        let end = if deferred.is_some() { at + 1 } else { at + 2 };
        self.waiting += usize::from(deferred.is_some());
        self.open(end, at);
        // It is missing only if the core failed to serve the request.
        if let Some(allocation) = self.live.remove(&entry.address) {
            if let Some(completed_at) = deferred {
                self.core.record_stream(&allocation, stream_of(completed_at));
            }
            // Cannot fail: the recorded device refuses no event, and this core made the allocation.
            let _ = self.core.free(allocation);
        }
        self.close(at, end);
    }

    /// Marks private pools as unused if these entries release their segments. If two pools share a position in PyTorch's hash
    /// table, the order of these calls decides which is released first (spec 13.1).
    fn abandon_pools(&mut self, from: usize, end: usize) {
        for pool in self.pools.giving(&self.trace[from..end]) {
            if self.core.pool_use_count(pool).is_ok_and(|uses| uses > 0) {
                // Cannot fail: the pool exists and is in use.
                let _ = self.core.release_pool(pool);
            }
        }
    }

    /// Repeats the entries that belong to one request, or to no request.
    fn group(&mut self, at: usize) {
        let run = self.trace[at..].iter().take_while(|entry| is_inner(entry)).count();
        // A recording whose oldest entries are missing may begin inside a free, which is independent of the entries after it.
        let is_half_a_free = at == 0 && self.trace[at].action == Action::FreeCompleted;
        let end = if is_half_a_free { 1 } else { at + run };
        let completed = self.trace[at..end].iter().filter(|entry| entry.action == Action::FreeCompleted).count();
        self.waiting = self.waiting.saturating_sub(completed);
        self.abandon_pools(at, end);
        match self.trace.get(end) {
            Some(entry) if is_request(entry) && !is_half_a_free => self.request_group(at, end),
            _ => self.group_without_request(at, end),
        }
        self.pools.pass(at, &self.trace[at..end]);
    }

    /// Repeats entries that are not followed by a request and that release segments or complete events: calls to
    /// `empty_cache`, and dropped pools.
    fn group_without_request(&mut self, at: usize, end: usize) {
        self.open(end, end);
        self.check_that_none_waits(at, end);
        if self.pools.has_private() && self.is_worth_reading() && self.try_releases(end) {
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
                // Cannot fail: the recorded device does not fail.
                let _ = self.core.process_events();
            }
            if self.at() == before {
                break;
            }
        }
        self.close(at, end);
    }

    /// Returns whether to try several readings. They copy the entire state, so a replay that already differs stops trying them
    /// after some number of copies.
    fn is_worth_reading(&self) -> bool {
        self.tally.mismatches == 0 || self.position.copied.get() < MOST_COPIED
    }

    /// Counts a mismatch if some blocks become free here while others continue to wait. The allocator checks events when a
    /// request begins (spec 3.6), but no request follows, and `empty_cache` waits for all events (spec 3.7).
    fn check_that_none_waits(&mut self, at: usize, end: usize) {
        // A private pool can be emptied on its own, and a trace may begin inside a free.
        let is_plain =
            at > 0 && self.trace[at..end].iter().all(|entry| entry.action == Action::FreeCompleted) && !self.pools.has_private();
        if is_plain && self.waiting > 0 {
            self.tally.decisions += 1;
            self.tally.mismatches += 1;
            self.tally.first.get_or_insert(Mismatch {
                entry: Some(at),
                recorded: format!("{}, although no request follows", Decision::from(&self.trace[at])),
                replayed: format!(
                    "either no waiting block or every waiting block becomes free here, but {} more are still waiting",
                    self.waiting
                ),
                addresses: vec![self.trace[at].address],
            });
        }
    }

    /// Repeats the entries from `at` up to the request at `request`.
    fn request_group(&mut self, at: usize, request: usize) {
        let inner = &self.trace[at..request];
        let completes = inner.iter().any(|entry| entry.action == Action::FreeCompleted);
        let is_plain = !inner.iter().any(takes_memory) && self.trace[request].action == Action::Alloc;
        let may_be_private = self.pools.has_private() && self.trace[request].action == Action::Oom;
        let is_ambiguous =
            (may_be_private || inner.iter().any(gives_memory) || (completes && !is_plain)) && self.is_worth_reading();
        let end = request + 1;
        let readings = if is_ambiguous { self.readings(at, request) } else { vec![Reading::Request { visible: end }] };
        let (flush, releases, refusals) = (self.flush(at, request), self.tally.releases.len(), self.tally.refusals);
        if is_ambiguous && self.try_likeliest(at, request, &readings) {
            let (is_call, is_retry) = (self.tally.releases.len() > releases, self.tally.refusals > refusals);
            self.tally.flushes.extend(flush.and_then(|flush| flush.read_as(is_call, is_retry)));
            self.tally.ambiguous.push(request);
            self.tally.decisions += (end - at) as u64;
            return;
        }
        // No reading explains the entries: take the first one, with its mismatches. Nothing then supports a doubtful call to
        // `empty_cache`.
        self.open(end, end);
        let is_doubtful = flush.is_some_and(|flush| flush.reason.is_doubtful());
        if let Reading::Release(release) = readings[0]
            && !is_doubtful
        {
            self.release(release);
        }
        let allocation = self.request(self.at(), request);
        self.keep(request, allocation);
        self.check_refusals(at);
        self.close(at, end);
    }

    /// Counts a refusal as a mismatch if there is a limit and it does not explain the refusal.
    fn check_refusals(&mut self, at: usize) {
        let refusals = self.position.refusals.get();
        if refusals == 0 {
            return;
        }
        if let Some(limit) = self.core.heap().limit() {
            self.tally.decisions += 1;
            self.tally.mismatches += 1;
            self.tally.first.get_or_insert(Mismatch {
                entry: Some(at),
                recorded: "the device had no room".to_owned(),
                replayed: format!(
                    "the limit of {limit} bytes still has room for the request; was the limit different, or was the device full?"
                ),
                addresses: Vec::new(),
            });
        }
    }
}

/// A pool without memory, for requests that failed in a pool that no entry names. No recording has this id: in PyTorch's ids
/// one part counts from 1 and the other is 0. One pool is enough for all these requests, because it persists: PyTorch forgets
/// no pool while requests are routed to one.
const WITHOUT_MEMORY: PoolId = PoolId(u64::MAX, u64::MAX);

/// Returns the pool for one of these requests when the program is replayed under other settings, which may serve it. Each
/// request gets a different pool, because the program may have used a separate pool for each.
fn new_pool(request: usize) -> PoolId {
    PoolId(u64::MAX, request as u64)
}

/// Copying a pool's index takes about as long as copying this many blocks.
const BLOCKS_A_POOL: usize = 64;

/// A reading of a run of entries that ends in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    /// All entries belong to the request, and events that completed before entry
    /// `visible` were complete when it began.
    Request { visible: usize },
    /// Like [`Reading::Request`], but the request went to this private pool.
    InPool { visible: usize, pool: PoolId },
    /// The entries begin with a call that released cached memory.
    Release(Release),
}

impl<'a> Runner<'a> {
    /// Returns the readings to try, in order.
    ///
    /// The last rung of the retry ladder (what the allocator tries when no free block serves a request) and a call to
    /// `empty_cache` before the request leave the same entries. With a limit, it was the ladder if the limit required it.
    /// Without a limit, the stacks decide. Without stacks, it was the ladder if that much was never reserved, unless a
    /// capture follows or the program often calls `empty_cache`.
    fn readings(&self, at: usize, request: usize) -> Vec<Reading> {
        let inner = &self.trace[at..request];
        let first_run = inner.iter().take_while(|entry| entry.action == Action::FreeCompleted).count();
        let mut readings = vec![Reading::Request { visible: request + 1 }, Reading::Request { visible: at }];
        let releases = inner.iter().any(gives_memory);
        if releases {
            let was_short = self.reason(at, request).is_some_and(FlushReason::is_retry);
            let is_out = self.trace[request].action == Action::Oom;
            let place = if self.core.heap().limit().is_some() || was_short || is_out { readings.len() } else { 0 };
            readings.insert(place, Reading::Release(Release::All));
            let pool = self.pools.first_giving(inner);
            if pool != PoolId::DEFAULT {
                readings.push(Reading::Release(Release::Pool(pool)));
            }
        }
        // The first completed events were noticed either by the request's poll or by the ladder's wait for all events. If the
        // wait directly follows the poll, it does not matter how many each of them noticed: the poll yielded no block, and
        // nothing was released in between.
        if first_run > 0 {
            readings.push(Reading::Request { visible: at + first_run });
        }
        // No entry shows the pool in which a request failed. While requests are routed to a private pool, the default pool
        // releases nothing (spec 2.10). The request failed, so its pool had no fitting block; a pool without any memory
        // always explains that.
        let entry = &self.trace[request];
        let named = self.pools.of_failure(request);
        if let Some(pool) = named.filter(|&pool| pool != PoolId::DEFAULT) {
            let in_pool = [request + 1, at].map(|visible| Reading::InPool { visible, pool });
            readings.splice(0..0, in_pool);
        } else if named.is_none()
            && entry.action == Action::Oom
            && self.pools.has_private()
            && self.may_lack_a_segment(entry.size)
        {
            let visible = [request + 1, at];
            let in_pool = |pool: PoolId| visible.map(|visible| Reading::InPool { visible, pool });
            let new = in_pool(WITHOUT_MEMORY);
            // A private pool is likelier if the next request that was served went to a private pool; it is then that pool.
            match self.next_private(request + 1) {
                Some(next) => drop(readings.splice(0..0, in_pool(next).into_iter().chain(new))),
                None => readings.extend(new),
            }
        }
        readings
    }

    /// Returns the bytes that would be reserved if the request's entries, starting at `at`, took memory but released none.
    fn wanted_bytes(&self, at: usize, request: usize) -> u64 {
        let takes = self.trace[at..request].iter().filter(|entry| takes_memory(entry));
        takes.fold(self.core.heap().reserved().get(), |sum, entry| sum.saturating_add(entry.size))
    }

    /// Returns the flush in these entries, if there is one that may be a retry. If there is a limit, the limit decides.
    fn flush(&self, at: usize, request: usize) -> Option<Flush> {
        let inner = &self.trace[at..request];
        let is_served = self.trace[request].action == Action::Alloc;
        if !is_served || self.core.heap().limit().is_some() || !inner.iter().any(gives_memory) || !inner.iter().any(takes_memory)
        {
            return None;
        }
        Some(Flush { entry: request, wanted_bytes: self.wanted_bytes(at, request), reason: self.reason(at, request)? })
    }

    /// Returns the probable reason why memory was released in the request's entries, starting at `at`. Returns `None` if the
    /// device had room; then it was a call to `empty_cache`.
    fn reason(&self, at: usize, request: usize) -> Option<FlushReason> {
        let likely = self.capacity.reason(self.wanted_bytes(at, request), request);
        match FlushReason::of_stacks(&self.trace[at..=request]) {
            Some(FlushReason::OtherStack) => likely.map(|_| FlushReason::OtherStack),
            told => told.or(likely),
        }
    }

    /// Returns whether the limit or the device may have lacked room for a new segment for a request of this many bytes.
    fn may_lack_a_segment(&self, bytes: u64) -> bool {
        let asked = self.core.policy().most_asked_for(Bytes(bytes));
        let then = self.core.heap().reserved().get().saturating_add(asked.get());
        self.core.heap().limit().map_or_else(|| self.capacity.may_lack(then), |limit| then > limit.get())
    }

    /// Returns the pool of the first request at or after this entry that is served, if that pool is private.
    fn next_private(&self, from: usize) -> Option<PoolId> {
        let rest = &self.trace[from..];
        let end = rest.iter().position(|entry| entry.action == Action::Alloc)?;
        let own = rest[..end].iter().rev().take_while(|entry| takes_memory(entry)).count();
        Some(self.pools.of_request(from + end - own, &rest[end - own..=end])).filter(|&pool| pool != PoolId::DEFAULT)
    }

    /// Returns a copy of the state, which [`return_to`](Self::return_to) restores.
    fn copy(&self) -> (ReplayCore<'a>, Mark) {
        self.count_copy();
        (self.core.clone(), self.tally.mark())
    }

    /// Returns to this state and keeps it for later.
    fn return_to(&mut self, core: &ReplayCore<'a>, tally: &Mark) {
        self.core = core.clone();
        self.tally.return_to(tally);
        self.count_copy();
    }

    fn count_copy(&self) {
        let current = |family| self.core.stats().family(family).all.current.unsigned_abs();
        let blocks = current(Family::Segment) + current(Family::Active) + current(Family::InactiveSplit);
        let counts = self.tally.releases.len() + self.tally.ambiguous.len() + self.tally.failed_in.len();
        let pools = (self.pools.private_pools() + 1) * BLOCKS_A_POOL;
        self.position.copied.set(self.position.copied.get() + blocks + (counts + pools) as u64);
    }

    /// Takes the first reading that agrees. For a request that must be read differently, takes the next one that agrees and
    /// leads to different stats.
    fn try_likeliest(&mut self, at: usize, request: usize, readings: &[Reading]) -> bool {
        if !self.read_differently.contains(&request) {
            return self.try_readings(at, request, readings);
        }
        let (core, tally) = self.copy();
        let mut likeliest: Option<Stats> = None;
        for reading in readings {
            if self.try_readings(at, request, std::slice::from_ref(reading)) {
                let stats = self.core.stats();
                if *likeliest.get_or_insert_with(|| stats.clone()) != *stats {
                    return true;
                }
            }
            self.return_to(&core, &tally);
            self.position.next.set(at);
        }
        self.try_readings(at, request, readings)
    }

    /// Tries the readings, each from the current state. Returns true at the first that agrees up to the last entry,
    /// and keeps its state.
    fn try_readings(&mut self, at: usize, request: usize, readings: &[Reading]) -> bool {
        let (saved, tally) = self.copy();
        for &reading in readings {
            if self.try_reading(at, request, reading) {
                return true;
            }
            self.return_to(&saved, &tally);
            self.position.next.set(at);
            self.position.refusals.set(0);
        }
        false
    }

    fn try_reading(&mut self, at: usize, request: usize, reading: Reading) -> bool {
        let end = request + 1;
        match reading {
            Reading::Request { visible } | Reading::InPool { visible, .. } => {
                self.open(end, visible);
                let allocation = match reading {
                    Reading::InPool { pool, .. } => {
                        self.keep_pool_without_memory(pool);
                        self.request_from(pool, request)
                    }
                    _ => self.request(self.at(), request),
                };
                let refusals = self.position.refusals.take();
                self.tally.refusals += refusals;
                let explained = refusals == 0 || self.core.heap().limit().is_none();
                let agrees = self.at() == end && self.core.observer().stray.is_none() && explained;
                if agrees {
                    self.keep(request, allocation);
                    if let Reading::InPool { pool, .. } = reading {
                        let pool = if pool == WITHOUT_MEMORY { new_pool(request) } else { pool };
                        self.tally.failed_in.push((request, pool));
                    }
                }
                agrees
            }
            Reading::Release(release) => {
                self.open(end, end);
                self.release(release);
                let reached = self.at();
                if reached == at || self.core.observer().stray.is_some() {
                    return false;
                }
                let rest = self.readings(reached, request);
                self.try_readings(reached, request, &rest)
            }
        }
    }

    /// Creates the pool without memory at its first use. The pool then stays in use.
    fn keep_pool_without_memory(&mut self, pool: PoolId) {
        if pool == WITHOUT_MEMORY && self.core.pool_use_count(pool).is_err() {
            // Cannot fail unless there are too many pools, and then the request fails in the same way.
            let _ = self.core.create_pool(pool);
        }
    }

    /// Tries to read all entries up to `end`, where no request follows, as calls that release memory. Returns true at the
    /// first reading that agrees up to the last entry, and keeps its state.
    fn try_releases(&mut self, end: usize) -> bool {
        let at = self.at();
        let rest = &self.trace[at..end];
        if !rest.iter().any(gives_memory) {
            return self.core.process_events().is_ok() && self.at() == end && self.core.observer().stray.is_none();
        }
        let pool = self.pools.first_giving(rest);
        let of_pool = (pool != PoolId::DEFAULT).then_some(Release::Pool(pool));
        let (core, tally) = self.copy();
        let mut releases: Vec<Release> = std::iter::once(Release::All).chain(of_pool).collect();
        if self.read_differently.contains(&end) {
            releases.reverse();
        }
        for release in releases {
            self.release(release);
            let is_good = self.at() > at && self.core.observer().stray.is_none();
            if is_good && (self.at() == end || self.try_releases(end)) {
                return true;
            }
            self.return_to(&core, &tally);
            self.position.next.set(at);
        }
        false
    }
}

/// Every block's size is a multiple of this (spec 1.1).
const SMALLEST_BLOCK: u64 = 512;

/// A segment of a pool that is free from its first byte.
#[derive(Clone, Copy)]
struct FreeSegment {
    free_bytes: u64,
    stream: StreamId,
    is_expandable: bool,
}

/// The data that show whether a pool may have been in a given state.
struct Restores {
    /// Runs of entries that end at or before this entry are read as requests, never as restores.
    from: usize,
    history: Option<History>,
}

/// Everything that happened before, if the recording's oldest entries are not missing.
struct History {
    /// The blocks that were ever handed out, by address and size.
    handed_out: FxHashSet<(u64, u64)>,
    /// The addresses at which segments began, each with the entry that created the segment, in order.
    made: Vec<(u64, usize)>,
}

impl Restores {
    fn of(trace: &[Entry], start: &Start) -> Option<Restores> {
        let from = start.restores_from?;
        let made = || {
            let entries = trace.iter().zip(0..).filter(|(entry, _)| takes_memory(entry));
            let mut made: Vec<(u64, usize)> = entries.map(|(entry, at)| (entry.address, at)).collect();
            made.sort_unstable();
            made
        };
        let history = start.lost.is_none().then(|| History { handed_out: FxHashSet::default(), made: made() });
        Some(Restores { from, history })
    }

    /// Records a block that was handed out.
    fn note(&mut self, placed: Option<PlacedBlock>) {
        if let (Some(history), Some(placed)) = (&mut self.history, placed) {
            history.handed_out.insert((placed.block.address.get(), placed.block.size.get()));
        }
    }
}

impl History {
    /// Returns whether a pool may have been in this state before the entry `at`, given the other segments that it also has
    /// there. The state's blocks in use must have been handed out. A checkpoint contains all segments of its time, so the
    /// other segments must be newer.
    fn allows(&self, checkpoint: &PoolCheckpoint, others: impl Iterator<Item = u64>, at: usize) -> bool {
        let saved = || checkpoint.segments.iter().map(|segment| segment.address.get());
        let newest = saved().filter_map(|address| self.made_at(address, at)).max();
        let oldest = others.filter_map(|address| self.made_at(address, at)).min();
        let was_in_use = |segment: &SavedSegment| {
            let mut end = segment.address.get();
            segment.blocks.iter().all(|block| {
                end += block.size.get();
                block.state != SavedState::Allocated || self.handed_out.contains(&(end - block.size.get(), block.size.get()))
            })
        };
        newest.zip(oldest).is_none_or(|(newest, oldest)| newest < oldest) && checkpoint.segments.iter().all(was_in_use)
    }

    /// Returns the entry that created the segment at this address, before the entry `at`.
    fn made_at(&self, address: u64, at: usize) -> Option<usize> {
        let end = self.made.partition_point(|&made| made < (address, at));
        self.made[..end].last().filter(|made| made.0 == address).map(|made| made.1)
    }
}

impl Runner<'_> {
    /// Reads the entries starting at `at` as a restored checkpoint, if they have that form and requests do not explain them.
    /// If they cannot be read this way, returns false and changes nothing.
    fn try_restore(&mut self, at: usize) -> bool {
        let Some((checkpoint, end)) = self.checkpoint_at(at).filter(|&(_, end)| self.is_looked_for(end)) else { return false };
        let (core, tally) = self.copy();
        let mut agrees = self.explain_as_requests(end);
        if !agrees {
            self.core = core.clone();
            self.tally.return_to(&tally);
            self.position.next.set(at);
            self.position.refusals.set(0);
            agrees = self.was_possible(&checkpoint, at) && self.restore(&checkpoint, end);
        }
        if agrees {
            self.tally.decisions += (end - at) as u64;
        } else {
            self.core = core;
            self.tally.return_to(&tally);
            self.position.next.set(at);
        }
        agrees
    }

    /// Returns whether to look for a restore that ends at this entry.
    fn is_looked_for(&self, end: usize) -> bool {
        self.restores.as_ref().is_some_and(|restores| end > restores.from)
    }

    /// Returns whether the pool may have been in this state before.
    fn was_possible(&self, checkpoint: &PoolCheckpoint, at: usize) -> bool {
        let Some(history) = self.restores.as_ref().and_then(|restores| restores.history.as_ref()) else { return true };
        let saved: FxHashSet<u64> = checkpoint.segments.iter().map(|segment| segment.address.get()).collect();
        let segments = self.core.segments().into_iter().filter(|segment| segment.pool == checkpoint.pool);
        let others = segments.map(|segment| segment.address.get()).filter(|address| !saved.contains(address));
        history.allows(checkpoint, others, at)
    }

    fn restore(&mut self, checkpoint: &PoolCheckpoint, end: usize) -> bool {
        self.open(end, self.at());
        let Ok(restored) = self.core.restore_pool(checkpoint) else { return false };
        self.tally.restores += 1;
        let agrees = self.is_at(end);
        if agrees {
            self.live.extend(restored.allocations.into_iter().map(|allocation| (allocation.address().get(), allocation)));
        }
        agrees
    }

    /// Repeats the entries before `end` as requests and frees for as long as they agree.
    fn explain_as_requests(&mut self, end: usize) -> bool {
        let mut held: FxHashMap<u64, Allocation> = FxHashMap::default();
        while self.at() < end {
            let (at, entry) = (self.at(), &self.trace[self.at()]);
            let next = if entry.action == Action::Alloc { at + 1 } else { at + 2 };
            self.open(next, at);
            if entry.action == Action::Alloc {
                let Some(allocation) = self.request(at, at) else { return false };
                held.insert(entry.address, allocation);
            } else if let Some(allocation) = held.remove(&entry.address) {
                // Cannot fail: the recorded device refuses no event, and this core made the allocation.
                let _ = self.core.free(allocation);
            }
            if !self.is_at(next) {
                return false;
            }
        }
        self.live.extend(held);
        true
    }

    fn is_at(&self, entry: usize) -> bool {
        self.at() == entry && self.core.observer().stray.is_none()
    }

    /// Returns the checkpoint that the entries starting at `at` describe, and the entry where they end.
    fn checkpoint_at(&self, at: usize) -> Option<(PoolCheckpoint, usize)> {
        let (first, next) = (self.trace.get(at)?, self.trace.get(at + 1)?);
        if next.action != Action::Alloc && !is_free_of(next, first.address) {
            return None;
        }
        let pool = self.pools.of_request(at, &self.trace[at..=at]);
        if pool == PoolId::DEFAULT || !self.begins_segment(first.address) {
            return None;
        }
        let mut starts = self.starts_of(pool)?;
        let (mut segments, mut end) = (Vec::new(), at);
        while let Some((segment, after)) = self.saved_segment_at(end, &mut starts) {
            segments.push(segment);
            end = after;
        }
        (end > at).then_some((PoolCheckpoint { pool, segments }, end))
    }

    /// Returns whether a free block of a private pool begins at this address and may be an entire segment.
    fn begins_segment(&self, address: u64) -> bool {
        let heap = self.core.heap();
        let is_default = |slot: PoolSlot| slot == PoolSlot::default_pool(slot.class());
        let mut free = heap.pool_slots().filter(|&slot| !is_default(slot)).flat_map(|slot| heap.free_blocks(slot));
        free.any(|block| block.address.get() == address && (block.is_expandable || !block.is_split))
    }

    /// Returns the first bytes of the pool's segments, or `None` if any block of the pool is in use.
    fn starts_of(&self, pool: PoolId) -> Option<BTreeMap<u64, FreeSegment>> {
        let mut starts = BTreeMap::new();
        for segment in self.core.segments().into_iter().filter(|segment| segment.pool == pool) {
            if segment.allocated != Bytes::ZERO {
                return None;
            }
            let first = segment.blocks.first().filter(|block| block.state == BlockActivity::Inactive);
            if let Some(first) = first.filter(|first| segment.expandable || first.size == segment.total) {
                let (stream, is_expandable) = (segment.stream, segment.expandable);
                starts.insert(segment.address.get(), FreeSegment { free_bytes: first.size.get(), stream, is_expandable });
            }
        }
        Some(starts)
    }

    /// Returns the saved segment that the entries starting at `at` describe, and the entry where they end. They hand out
    /// blocks without gaps, starting from the first byte of one of these segments, and then free some of them in the same
    /// order.
    fn saved_segment_at(&self, at: usize, starts: &mut BTreeMap<u64, FreeSegment>) -> Option<(SavedSegment, usize)> {
        let address = self.trace.get(at)?.address;
        let FreeSegment { free_bytes, stream, is_expandable } = *starts.get(&address)?;
        let (mut blocks, mut rest, mut end) = (Vec::new(), free_bytes, at);
        while let Some(entry) = self.trace.get(end).filter(|entry| {
            let is_next = entry.action == Action::Alloc && entry.address == address + (free_bytes - rest);
            is_next && entry.stream == stream.get() && (SMALLEST_BLOCK..=rest).contains(&entry.size)
        }) {
            if !entry.size.is_multiple_of(SMALLEST_BLOCK) {
                return None;
            }
            blocks.push((entry.address, SavedBlock { size: Bytes(entry.size), state: SavedState::Allocated }));
            rest -= entry.size;
            end += 1;
        }
        // An expandable segment may have grown since the checkpoint.
        if blocks.is_empty() || (rest > 0 && !is_expandable) {
            return None;
        }
        for (address, block) in &mut blocks {
            let is_freed = self.trace.get(end).is_some_and(|entry| is_free_of(entry, *address));
            if is_freed && !self.deferred.contains_key(&(end as u32)) {
                block.state = SavedState::Free;
                end += 2;
            }
        }
        let unmapped = is_expandable.then_some(SavedBlock { size: Bytes(SMALLEST_BLOCK), state: SavedState::Unmapped });
        let blocks = blocks.into_iter().map(|(_, block)| block).chain(unmapped).collect();
        starts.remove(&address);
        Some((SavedSegment { address: DeviceAddress(address), stream, blocks }, end))
    }
}

fn is_free_of(entry: &Entry, address: u64) -> bool {
    entry.action == Action::FreeRequested && entry.address == address
}
