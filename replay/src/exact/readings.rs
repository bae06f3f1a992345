//! The possible readings of a run of entries that ends in a request.
//!
//! No entry says whether `empty_cache` was called before the request, or which events were complete when it
//! began. Each reading is tried on a copy of the core, and the first that gives exactly these entries is taken.
//! Only if none does, there is a mismatch. There are never more than a few readings, as each costs a copy.

use parkade::stats::{Family, Stats};
use parkade::units::{Bytes, PoolId};
use parkade_recording::Action;

use super::replay_core::ReplayCore;
use super::runner::Runner;
use super::tally::{Mark, Release};
use crate::entries::{gives_memory, takes_memory};

/// A pool without memory, for requests that failed in a pool that nothing names. No recording has it: in PyTorch's
/// ids one part counts from 1 and the other is 0. It is one pool for all of them, as it stays: PyTorch forgets no
/// pool while requests are routed to one.
const WITHOUT_MEMORY: PoolId = PoolId(u64::MAX, u64::MAX);

/// The pool of such a request where the program is replayed under other settings, which may serve it: different
/// for each request, because the program may have used a pool for each.
fn new_pool(request: usize) -> PoolId {
    PoolId(u64::MAX, request as u64)
}

/// Copying the index of a pool takes as long as copying about this many blocks.
const BLOCKS_A_POOL: usize = 64;

/// A reading of a run of entries that ends in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reading {
    /// All entries belong to the request, and events that completed before entry
    /// `visible` were complete when it began.
    Request { visible: usize },
    /// As [`Reading::Request`], but the request went to this private pool.
    InPool { visible: usize, pool: PoolId },
    /// The entries begin with a call that gives cached memory back.
    Release(Release),
}

impl<'a> Runner<'a> {
    /// The readings to try, in this order.
    ///
    /// The last step of the retry ladder (what the allocator tries when no free block serves a request) and a
    /// call of empty_cache before the request leave the same entries. With a limit it is the ladder if the
    /// limit required it. Without one it is the ladder if the device was never seen to have so much reserved,
    /// unless the program calls empty_cache often.
    pub(crate) fn readings(&self, at: usize, request: usize) -> Vec<Reading> {
        let inner = &self.trace[at..request];
        let first_run = inner.iter().take_while(|entry| entry.action == Action::FreeCompleted).count();
        let mut readings = vec![Reading::Request { visible: request + 1 }, Reading::Request { visible: at }];
        let releases = inner.iter().any(gives_memory);
        if releases {
            let asked: u64 =
                inner.iter().filter(|entry| takes_memory(entry)).fold(0, |sum, entry| sum.saturating_add(entry.size));
            let was_short = self.capacity.may_refuse(self.core.heap().reserved().get().saturating_add(asked));
            let is_out = self.trace[request].action == Action::Oom;
            let place = if self.core.heap().limit().is_some() || was_short || is_out { readings.len() } else { 0 };
            readings.insert(place, Reading::Release(Release::All));
            let pool = self.pools.first_giving(inner);
            if pool != PoolId::DEFAULT {
                readings.push(Reading::Release(Release::Pool(pool)));
            }
        }
        // The first events were seen either by the request's poll or by the ladder's wait for all events. If
        // the wait follows the poll directly, it does not matter which saw how many: the poll led to no block,
        // and nothing was released in between.
        if first_run > 0 {
            readings.push(Reading::Request { visible: at + first_run });
        }
        // No entry says in which pool a request failed. While requests are routed to a private pool, the
        // default pool gives nothing back (spec 2.10). As the request failed, its pool had no fitting block, so
        // a pool without any memory always explains it.
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
            // A private pool is likelier if the next request that was served went to one, and then it is that one.
            match self.next_private(request + 1) {
                Some(next) => drop(readings.splice(0..0, in_pool(next).into_iter().chain(new))),
                None => readings.extend(new),
            }
        }
        readings
    }

    /// Whether the limit or the device may have had no room for a new segment for a request of this many bytes.
    fn may_lack_a_segment(&self, bytes: u64) -> bool {
        let asked = self.core.policy().most_asked_for(Bytes(bytes));
        let then = self.core.heap().reserved().get().saturating_add(asked.get());
        self.core.heap().limit().map_or_else(|| self.capacity.may_lack(then), |limit| then > limit.get())
    }

    /// The pool of the next request that is served, from this entry on, if that is a private one.
    fn next_private(&self, from: usize) -> Option<PoolId> {
        let rest = &self.trace[from..];
        let end = rest.iter().position(|entry| entry.action == Action::Alloc)?;
        let own = rest[..end].iter().rev().take_while(|entry| takes_memory(entry)).count();
        Some(self.pools.of_request(from + end - own, &rest[end - own..=end])).filter(|&pool| pool != PoolId::DEFAULT)
    }

    /// A copy of the state, to return to.
    pub(super) fn copy(&self) -> (ReplayCore<'a>, Mark) {
        self.count_copy();
        (self.core.clone(), self.tally.mark())
    }

    /// Returns to this state, which is kept.
    pub(super) fn return_to(&mut self, core: &ReplayCore<'a>, tally: &Mark) {
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

    /// Takes the first reading that agrees; for a request that is to be read differently, the next one
    /// that agrees and leads to other stats.
    pub(crate) fn try_likeliest(&mut self, at: usize, request: usize, readings: &[Reading]) -> bool {
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

    /// Tries the readings, each from the present state. Returns true at the first that agrees to
    /// the last entry, and keeps its state.
    pub(crate) fn try_readings(&mut self, at: usize, request: usize, readings: &[Reading]) -> bool {
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

    /// Makes the pool without memory when it is first needed. This use of it never ends.
    fn keep_pool_without_memory(&mut self, pool: PoolId) {
        if pool == WITHOUT_MEMORY && self.core.pool_use_count(pool).is_err() {
            // Cannot fail unless there are too many pools, and then the request fails in the same way.
            let _ = self.core.create_pool(pool);
        }
    }

    /// Tries to read all entries up to `end`, where no request follows, as calls that give memory back. Returns
    /// true at the first reading that agrees to the last entry, and keeps its state.
    pub(crate) fn try_releases(&mut self, end: usize) -> bool {
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
