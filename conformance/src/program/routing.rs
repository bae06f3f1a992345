//! The expected state of an allocator's private pools: their use counts, the requests they serve, and which of them
//! must keep their memory.

use std::collections::{BTreeMap, BTreeSet};

use parkade::PoolError;
use parkade::profile::{Deferral, Profile};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{PoolId, StreamId};

use super::step::{POOLS, Step};
use crate::law::{Broken, Law, ensure};

/// The expected state of private pools.
#[derive(Clone, Default, Debug)]
pub(super) struct Routing {
    /// Pools to which requests are routed, newest last, with the stream they serve, or `None` for all streams.
    routed: Vec<(PoolId, Option<StreamId>)>,
    uses: BTreeMap<PoolId, i64>,
    /// Pools that may serve other requests when memory runs out.
    serving: BTreeSet<PoolId>,
    /// Pools that are not split.
    whole: BTreeSet<PoolId>,
    /// Whether the current stream is captured.
    is_capturing: bool,
    /// Whether a routing has failed, which some releases count as one that never ends.
    has_failed: bool,
}

impl Routing {
    /// Returns whether requests are routed to any pool.
    pub(super) fn is_routing(&self) -> bool {
        !self.routed.is_empty()
    }

    /// Returns the stream whose requests are routed to the pool, or `Some(None)` for all streams;
    /// `None` if none are routed to it.
    pub(super) fn routed(&self, pool: PoolId) -> Option<Option<StreamId>> {
        self.routed.iter().find(|&&(routed, _)| routed == pool).map(|&(_, stream)| stream)
    }

    /// Returns whether a pool serves the requests of a single stream, as it does while a graph is captured on that stream.
    pub(super) fn captures_a_stream(&self) -> bool {
        self.routed.iter().any(|(_, stream)| stream.is_some())
    }

    /// Returns whether a pool serves the requests of this stream alone.
    pub(super) fn captures(&self, stream: StreamId) -> bool {
        self.routed.iter().any(|(_, routed)| *routed == Some(stream))
    }

    /// Returns whether waiting is deferred under the rules of a release.
    pub(super) fn is_deferring(&self, profile: &Profile) -> bool {
        match profile.deferral {
            Deferral::WhileRouting => self.is_routing() || profile.counts_failed_routings && self.has_failed,
            Deferral::WhileCapturing => self.is_capturing,
        }
    }

    /// Returns the pool for a request on the stream.
    fn pool_for(&self, profile: &Profile, stream: StreamId) -> PoolId {
        let mut accepting = self.routed.iter().filter(|(_, filter)| filter.is_none_or(|wanted| wanted == stream));
        let decides = if profile.oldest_routing_decides { accepting.next() } else { accepting.next_back() };
        decides.map_or(PoolId::DEFAULT, |&(pool, _)| pool)
    }

    /// Returns the pool's use count.
    pub(super) fn uses(&self, pool: PoolId) -> i64 {
        self.uses.get(&pool).copied().unwrap_or(0)
    }

    /// Returns whether any pool may serve other requests when memory runs out.
    pub(super) fn has_serving(&self) -> bool {
        !self.serving.is_empty()
    }

    /// Returns whether the pool's blocks are not split.
    pub(super) fn is_whole(&self, pool: PoolId) -> bool {
        self.whole.contains(&pool)
    }

    /// Applies a step on a pool, and checks its answer. The steps name streams by their indices in `streams`.
    ///
    /// # Errors
    /// If the answer does not match the pool's routing and uses.
    pub(super) fn follow(
        &mut self,
        profile: &Profile,
        streams: [StreamId; 4],
        step: Step,
        answer: Result<(), PoolError>,
    ) -> Result<(), Broken> {
        let (Step::CreatePool(pool) | Step::BeginPool(pool, _) | Step::EndPool(pool) | Step::ReleasePool(pool)) = step else {
            return Ok(());
        };
        let pool = POOLS[pool];
        let uses = self.uses(pool);
        let is_abandoned = matches!(answer, Err(PoolError::Abandoned(_))) && uses == 0;
        let is_routed = self.routed(pool).is_some();
        let is_right = match step {
            Step::CreatePool(_) => is_abandoned || answer.is_ok(),
            // Routing to a pool twice is refused, but still counts as a use.
            Step::BeginPool(..) => is_abandoned || matches!(answer, Err(PoolError::AlreadyRouted(_))) == is_routed,
            Step::EndPool(_) => answer.is_ok() == is_routed,
            _ => answer.is_ok() == (uses > 0),
        };
        ensure(Law::Pools, is_right, || format!("{step:?} returned {answer:?} under {}, with {self:?}", profile.name))?;
        match step {
            Step::CreatePool(_) | Step::BeginPool(..) if !is_abandoned => *self.uses.entry(pool).or_insert(0) += 1,
            Step::EndPool(_) => self.routed.retain(|&(routed, _)| routed != pool),
            Step::ReleasePool(_) if answer.is_ok() => *self.uses.entry(pool).or_insert(0) -= 1,
            _ => {}
        }
        if let Step::BeginPool(_, place) = step {
            self.has_failed |= answer.is_err();
            if answer.is_ok() {
                self.routed.push((pool, place.map(|place| streams[place])));
            }
        }
        Ok(())
    }

    /// Sets whether the pool may serve other requests when memory runs out.
    pub(super) fn serve_when_out(&mut self, pool: PoolId, serves: bool) {
        if serves {
            self.serving.insert(pool)
        } else {
            self.serving.remove(&pool)
        };
    }

    /// Stops splitting the pool's blocks.
    pub(super) fn keep_whole(&mut self, pool: PoolId) {
        self.whole.insert(pool);
    }

    /// Removes the mark that the pool is not split, because the pool no longer exists.
    pub(super) fn forget_whole(&mut self, pool: PoolId) {
        self.whole.remove(&pool);
    }

    /// Sets whether the current stream is captured.
    pub(super) fn set_capturing(&mut self, is_capturing: bool) {
        self.is_capturing = is_capturing;
    }

    /// Checks that no memory was taken from a pool in use, nor from the default pool while waiting is deferred (spec 2.10),
    /// except pages that `may_unmap` names.
    ///
    /// # Errors
    /// If any memory was taken.
    pub(super) fn check_kept(
        &self,
        entries: &[TraceEntry],
        is_deferring: bool,
        may_unmap: impl Fn(&TraceEntry) -> bool,
    ) -> Result<(), Broken> {
        let is_gone = |entry: &&TraceEntry| matches!(entry.action, TraceAction::SegmentFree | TraceAction::SegmentUnmap);
        for entry in entries.iter().filter(is_gone) {
            let is_excused = entry.action == TraceAction::SegmentUnmap && may_unmap(entry);
            let must_stay = if entry.pool == PoolId::DEFAULT { is_deferring } else { self.uses(entry.pool) > 0 };
            let is_kept = must_stay && !is_excused;
            ensure(Law::Pools, !is_kept, || format!("{entry:?}, while {self:?}"))?;
        }
        Ok(())
    }

    /// Checks that a request was served by the pool it was routed to, or by one that serves when memory runs out. Returns
    /// whether the pool served the request only because memory ran out.
    ///
    /// # Errors
    /// If a different pool served it.
    pub(super) fn check_served(&self, profile: &Profile, served: PoolId, bytes: u64, stream: StreamId) -> Result<bool, Broken> {
        let wanted = self.pool_for(profile, stream);
        let is_borrowed = served != wanted && wanted == PoolId::DEFAULT && self.serving.contains(&served);
        ensure(Law::Pools, served == wanted || is_borrowed, || {
            format!("{bytes} bytes for stream {stream} were served from {served:?}, expected {wanted:?}: {self:?}")
        })?;
        Ok(is_borrowed)
    }

    /// Handles a request that failed in a pool. Only a search in a pool to which requests are already routed may fail
    /// in this way, and the search counts as a use.
    ///
    /// # Errors
    /// If it failed for a different reason.
    pub(super) fn failed_in_pool(&mut self, error: PoolError) -> Result<(), Broken> {
        let is_legal = match error {
            PoolError::AlreadyRouted(id) => self.serving.contains(&id) && self.routed(id).is_some(),
            error => matches!(error, PoolError::Abandoned(_)),
        };
        ensure(Law::Pools, is_legal, || format!("a request failed: {error:?}, with {self:?}"))?;
        self.has_failed = true;
        if let PoolError::AlreadyRouted(id) = error {
            *self.uses.entry(id).or_insert(0) += 1;
        }
        Ok(())
    }
}
