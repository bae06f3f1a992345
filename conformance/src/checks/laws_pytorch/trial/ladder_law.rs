//! The ladder law: a request gives back, waits for and asks for exactly what it must.

use std::collections::{BTreeMap, BTreeSet};

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::trace::TraceAction;
use parkade::units::PoolClass;
use parkade_sim::CallName;

use super::Trial;
use crate::backend::{MadeCall, TestDevice};
use crate::checks::laws_pytorch::operation::Operation;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::{Candidate, Climb, Ladder, Rules, best};

/// How long segments of the large pool have been entirely free, counted in searches of that pool (spec 2.7).
#[derive(Clone, Default, Debug)]
pub(super) struct Ages {
    searches: u64,
    /// By segment start: the number of searches when it became free.
    free_since: BTreeMap<u64, u64>,
    searches_before: u64,
}

impl Ages {
    pub(super) fn begin_operation(&mut self) {
        self.searches_before = self.searches;
    }

    /// A segment that became free in an operation did so before the operation's own search.
    pub(super) fn end_operation(&mut self, segments: &[SegmentInfo]) {
        let is_free = |segment: &&SegmentInfo| segment.class == PoolClass::Large && segment.active.get() == 0;
        let free = segments.iter().filter(is_free).map(|segment| segment.address.get());
        let since = |address| (address, self.free_since.get(&address).copied().unwrap_or(self.searches_before));
        self.free_since = free.map(since).collect();
    }

    fn of(&self, address: u64) -> u64 {
        self.searches - self.free_since.get(&address).copied().unwrap_or(self.searches_before)
    }
}

/// The state before a request, to compare with afterwards.
pub(super) struct Before {
    pub(super) segments: Vec<SegmentInfo>,
    syncs: i64,
    retries: i64,
}

impl Trial {
    /// Must be called before a request; `segments` is the heap at that point.
    pub(super) fn before_request(&mut self, segments: Vec<SegmentInfo>, bytes: u64) -> Before {
        if self.limit.is_some() && self.rules.collection_hundredths > 0 && Rules::is_large(self.rules.rounded(bytes)) {
            self.ages.searches += 1;
        }
        let stats = self.core.stats();
        Before { segments, syncs: stats.num_sync_all_streams, retries: stats.num_alloc_retries }
    }

    /// Checks that the request did what the rules say, rung by rung. What a real device has room for is not predicted.
    pub(super) fn check_ladder(&self, before: &Before, bytes: u64, stream: u64, is_served: bool) -> Result<(), Broken> {
        if self.device.steer().insight().is_none() {
            return Ok(());
        }
        let size = self.rules.rounded(bytes);
        let runs = self.model.free_at_search(&before.segments, &self.device.witness());
        let expected = match best(&runs, &self.rules, size, stream) {
            Some(_) => Climb { served: true, ..Climb::default() },
            None => self.ladder(&before.segments, size, stream).climb(),
        };
        let entries = &self.core.observer()[self.followed..];
        let freed = entries.iter().filter(|entry| entry.action == TraceAction::SegmentFree);
        let stats = self.core.stats();
        let waits = (stats.num_sync_all_streams - before.syncs, stats.num_alloc_retries - before.retries);
        let seen = Climb {
            given_back: freed.map(|entry| entry.address).collect::<BTreeSet<u64>>(),
            asked: self.made_calls().iter().filter(|call| call.name == CallName::Malloc).count(),
            waited: waits == (1, 1),
            served: is_served,
        };
        let counts = waits == (0, 0) || waits == (1, 1);
        ensure(Law::Ladder, counts, || format!("a request of {bytes} bytes waited and retried {waits:?} times"))?;
        ensure(Law::Ladder, seen == expected, || {
            format!("a request of {bytes} bytes did {seen:x?}, but the rules say {expected:x?}")
        })
    }

    /// Requests query the oldest event of every stream that has pending events, and pages are unmapped only after waiting for
    /// their stream (spec 3.6, 4.6). `queues` is the number of streams with events that the allocator did not know to be
    /// complete.
    pub(super) fn check_calls(&mut self, operation: &Operation, queues: usize) -> Result<(), Broken> {
        let done = |call: CallName| move |made: &&MadeCall| made.name == call && made.done;
        let calls = self.made_calls();
        let looked = calls.iter().filter(done(CallName::EventQuery)).count();
        let looks = matches!(operation, Operation::Allocate(..) | Operation::ProcessEvents) && !self.core.heap().is_deferring();
        ensure(Law::Ladder, !looks || looked >= queues, || {
            format!("{queues} streams have pending events, but {looked} events were queried")
        })?;
        let waited = calls.iter().position(|made| made.name == CallName::StreamSynchronize);
        let unmapped = calls.iter().position(|made| made.name == CallName::MemUnmap);
        let in_order = unmapped.is_none_or(|unmapped| waited.is_some_and(|waited| waited < unmapped));
        ensure(Law::NoEarlyReuse, in_order, || "pages were unmapped without waiting for the segment's stream".to_owned())?;
        Ok(())
    }

    fn ladder(&self, segments: &[SegmentInfo], size: u64, stream: u64) -> Ladder {
        let witness = self.device.witness();
        let is_done = |address: u64| self.model.was_known_done(address, &witness);
        let candidates = segments.iter().map(|segment| {
            let is_free = |waits: bool| {
                segment.blocks.iter().all(|block| match block.state {
                    BlockActivity::Inactive => true,
                    BlockActivity::Allocated => false,
                    BlockActivity::PendingFree => waits || is_done(block.address.get()),
                })
            };
            Candidate {
                address: segment.address.get(),
                size: segment.total.get(),
                stream: segment.stream.get(),
                large: segment.class == PoolClass::Large,
                is_free: is_free(false),
                is_free_after_waiting: is_free(true),
                age: self.ages.of(segment.address.get()),
            }
        });
        let page = self.facts.page.get();
        let taken: u64 = segments.iter().map(|segment| segment.total.get().div_ceil(page)).sum();
        let given = (self.setup.capacity as i64 - self.others_hold as i64).div_euclid(page as i64);
        Ladder {
            rules: self.rules,
            size,
            stream,
            limit: self.limit,
            room_pages: given - taken as i64,
            segments: candidates.collect(),
        }
    }
}
