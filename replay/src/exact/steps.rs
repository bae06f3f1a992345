//! The operations of the recorded program, one after the other: which entries belong to
//! each, and repeating it on the core.

use parkade_recording::{Action, Entry};

use super::readings::Reading;
use super::runner::Runner;
use super::tally::{Mismatch, Release};
use crate::completions::stream_of;
use crate::entries::{Decision, gives_memory, is_inner, is_request, takes_memory};

/// After its first mismatch a replay reads entries in the likeliest way only, once it has copied this many blocks to
/// try others.
pub(crate) const MOST_COPIED: u64 = 1 << 24;

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
        // Missing only if the core failed to serve the request.
        if let Some(allocation) = self.live.remove(&entry.address) {
            if let Some(completed_at) = deferred {
                self.core.record_stream(&allocation, stream_of(completed_at));
            }
            // Cannot fail: the recorded device refuses no event, and the allocation is this core's.
            let _ = self.core.free(allocation);
        }
        self.close(at, end);
    }

    /// Marks private pools as unused whose segments are given back by these entries. Where PyTorch's hash table
    /// keeps two at one place, it is the order of this that decides which is given back first (spec 13.1).
    fn abandon_pools(&mut self, from: usize, end: usize) {
        for pool in self.pools.giving(&self.trace[from..end]) {
            if self.core.pool_use_count(pool).is_ok_and(|uses| uses > 0) {
                // Cannot fail: the pool exists and is in use.
                let _ = self.core.release_pool(pool);
            }
        }
    }

    /// The entries that belong to one request, or to none.
    fn group(&mut self, at: usize) {
        let run = self.trace[at..].iter().take_while(|entry| is_inner(entry)).count();
        // A recording that lost its beginning may begin inside a free, which has nothing to do with what follows.
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

    /// Segments given back and events completed with no request after them: calls of
    /// empty_cache, pools that are dropped.
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
                // Cannot fail: the recorded device does not.
                let _ = self.core.process_events();
            }
            if self.at() == before {
                break;
            }
        }
        self.close(at, end);
    }

    /// Whether to try several readings. They are copies of the whole state, so a replay that differs already
    /// ends trying them at some number.
    fn is_worth_reading(&self) -> bool {
        self.tally.mismatches == 0 || self.position.copied.get() < MOST_COPIED
    }

    /// Counts a mismatch if blocks become free here and others go on waiting. Events are looked at when a request begins
    /// (spec 3.6), and no request follows; empty_cache waits for all of them (spec 3.7).
    fn check_that_none_waits(&mut self, at: usize, end: usize) {
        // One private pool can be emptied by itself, and a trace may begin inside a free.
        let is_plain =
            at > 0 && self.trace[at..end].iter().all(|entry| entry.action == Action::FreeCompleted) && !self.pools.has_private();
        if is_plain && self.waiting > 0 {
            self.tally.decisions += 1;
            self.tally.mismatches += 1;
            self.tally.first.get_or_insert(Mismatch {
                entry: Some(at),
                recorded: format!("{} with no request after it", Decision::from(&self.trace[at])),
                replayed: format!("nothing, or all blocks that wait would become free; {} more wait", self.waiting),
                addresses: vec![self.trace[at].address],
            });
        }
    }

    /// The entries from `at` to the request at `request`.
    fn request_group(&mut self, at: usize, request: usize) {
        let inner = &self.trace[at..request];
        let completes = inner.iter().any(|entry| entry.action == Action::FreeCompleted);
        let is_plain = !inner.iter().any(takes_memory) && self.trace[request].action == Action::Alloc;
        let may_be_private = self.pools.has_private() && self.trace[request].action == Action::Oom;
        let is_ambiguous =
            (may_be_private || inner.iter().any(gives_memory) || (completes && !is_plain)) && self.is_worth_reading();
        let end = request + 1;
        let readings = if is_ambiguous { self.readings(at, request) } else { vec![Reading::Request { visible: end }] };
        if is_ambiguous && self.try_likeliest(at, request, &readings) {
            self.tally.ambiguous.push(request);
            self.tally.decisions += (end - at) as u64;
            return;
        }
        // No reading explains the entries: take the first one, with its mismatches.
        self.open(end, end);
        if let Reading::Release(release) = readings[0] {
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
                replayed: format!("the limit of {limit} bytes leaves room; was the limit different, or the device full?"),
                addresses: Vec::new(),
            });
        }
    }
}
