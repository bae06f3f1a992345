//! Private pools: which of them exist, how many uses each one has, which requests they serve, and whether a graph is
//! being captured (spec section 5).
//!
//! A private pool is a pair of collections in addition to those of the default pool. It serves requests while they are
//! routed to it. Its memory is released only when the pool has no uses. The order of PyTorch's hash tables decides
//! which of several pools serves a request when memory runs out, and which of several pools without uses is released
//! first.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::flat_table::{self, FlatTable};
use crate::profile::{Deferral, Profile};
use crate::units::{PoolId, StreamId};

/// The requests that are routed to a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolFilter {
    /// All requests, as within `use_mem_pool`.
    All,
    /// The requests of one stream, as while a graph is captured on it.
    Stream(StreamId),
    /// The requests for which the caller chooses the pool
    /// ([`Allocator::choose_pool`](crate::Allocator::choose_pool)).
    Chosen,
}

/// The pool's state does not allow the call. Displays PyTorch 2.11's message; [`PoolError::message`] returns those of
/// other releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolError {
    /// Requests are already routed to the pool. The call has still added a use, as in PyTorch.
    AlreadyRouted(PoolId),
    /// No requests are routed to the pool.
    NotRouted(PoolId),
    /// The pool does not exist.
    Unknown(PoolId),
    /// The pool has no uses left, and is only waiting for its memory to be released.
    Abandoned(PoolId),
    /// The pool has been released more often than used.
    NotInUse(PoolId),
    /// The pool has been released more often than used. Neither its memory nor that of the pools after it is released.
    Overreleased(PoolId),
    /// Since PyTorch 2.10, with the setting graph_capture_record_stream_reuse: routing to a pool cannot end while a stream
    /// of its capture is still being captured. Requests are still routed to the pool.
    Captured(PoolId),
    /// There are more than 32,767 private pools at the same time.
    TooMany,
}

impl PoolError {
    /// The message in a given PyTorch release.
    #[must_use]
    pub fn message(&self, profile: &Profile) -> String {
        let asserts = &profile.asserts;
        let mut more = "";
        let (assertion, line) = match self {
            PoolError::AlreadyRouted(_) => return "beginAllocateToPool: already recording to mempool_id".to_string(),
            PoolError::NotRouted(_) => return "endAllocatePool: not currently recording to mempool_id".to_string(),
            PoolError::TooMany => return "more than 32767 private pools".to_string(),
            PoolError::Unknown(_) => ("it != graph_pools.end()", asserts.unknown),
            PoolError::Abandoned(_) => ("it->second->use_count > 0", asserts.abandoned),
            PoolError::NotInUse(_) => ("uc >= 0", asserts.not_in_use),
            PoolError::Overreleased(_) => ("it->second->use_count == 0", asserts.overreleased),
            PoolError::Captured(_) => {
                more = "This stream should not be capturing when the capture is ended";
                ("stream_get_capture_info(stream).status == cudaStreamCaptureStatusNone", asserts.stream.unwrap_or_default().1)
            }
        };
        format!("{assertion} INTERNAL ASSERT FAILED at \"{}\":{line}, please report a bug to PyTorch. {more}", asserts.file)
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(&Profile::PYTORCH_2_11))
    }
}

impl core::error::Error for PoolError {}

/// A private pool.
#[derive(Clone, Debug)]
struct PrivatePool {
    id: PoolId,
    uses: i64,
    /// The number of requests that it is currently serving. There can be several, because callbacks may make requests
    /// during a request.
    serving: u32,
}

/// The hash of an id, as PyTorch's tables compute it.
fn hash(id: PoolId) -> u64 {
    if id.0 == 0 { id.1 } else { id.0 }
}

impl PoolId {
    /// The id of a user's pool at a given position, from 0 up to 2^64, in the order in which PyTorch iterates over its
    /// pools (spec 13.1). This is for choosing the ids of pools whose order is known but whose ids are not. Iteration
    /// over up to n pools follows the positions if these are at least 2^64 / 2n apart.
    #[must_use]
    pub fn walked_at(place: u64) -> PoolId {
        PoolId(0, flat_table::hash_at(place))
    }
}

/// All private pools. They are numbered from 1; 0 is the default pool. The number of a forgotten pool can be used
/// again.
#[derive(Clone, Debug)]
pub(crate) struct PrivatePools {
    /// When this PyTorch release postpones waiting: while requests are routed to a private pool, or while the caller's
    /// stream is being captured.
    deferral: Deferral,
    /// Whether requests may fail while any requests are routed to a private pool, if the caller's stream is not
    /// captured.
    needs_captures: bool,
    /// Whether the caller's current stream is being captured.
    pub(crate) is_capturing: bool,
    numbers: BTreeMap<PoolId, u16>,
    /// Indexed by the pool's number minus 1.
    pools: Vec<Option<PrivatePool>>,
    /// The indexes that can be used again.
    vacant: BTreeSet<usize>,
    routings: Vec<(PoolId, PoolFilter)>,
    /// The pool that the caller chose for the following requests.
    chosen: Option<PoolId>,
    /// Whether a failed routing counts as one that never ends.
    has_failed: bool,
    /// The pools that may serve requests to the default pool when the device is out of memory.
    serve_when_out: FlatTable<PoolId, ()>,
    /// The pools without uses, whose memory may be released, with their numbers.
    freeable: FlatTable<PoolId, u16>,
    no_split: BTreeSet<PoolId>,
}

impl PrivatePools {
    pub(crate) fn new(profile: &Profile) -> PrivatePools {
        PrivatePools {
            deferral: profile.deferral,
            needs_captures: profile.fails_outside_captures(),
            is_capturing: false,
            numbers: BTreeMap::new(),
            pools: Vec::new(),
            vacant: BTreeSet::new(),
            routings: Vec::new(),
            chosen: None,
            has_failed: false,
            serve_when_out: FlatTable::default(),
            freeable: FlatTable::default(),
            no_split: BTreeSet::new(),
        }
    }

    /// Whether a graph is being captured, as defined by the PyTorch release.
    #[inline]
    pub(crate) fn is_deferring(&self) -> bool {
        match self.deferral {
            Deferral::WhileRouting => self.is_recording(),
            Deferral::WhileCapturing => self.is_capturing,
        }
    }

    /// Whether requests may fail now because the caller's stream is not captured.
    #[inline]
    pub(crate) fn needs_capture(&self) -> bool {
        self.needs_captures && self.is_routing() && !self.is_capturing
    }

    /// Whether requests are routed to any pool, or a failed routing counts as one.
    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.has_failed || !self.routings.is_empty()
    }

    /// Makes a failed routing count as one that never ends.
    pub(crate) fn note_failure(&mut self) {
        self.has_failed = true;
    }

    /// Whether requests are routed to any pool.
    #[inline]
    pub(crate) fn is_routing(&self) -> bool {
        !self.routings.is_empty()
    }

    /// The number of the pool for a request of the stream, chosen by the last routing that accepts the request.
    #[inline]
    pub(crate) fn number_for(&self, stream: StreamId) -> u16 {
        if self.routings.is_empty() { 0 } else { self.routed_number(stream) }
    }

    // Out of line, because few requests are routed.
    #[cold]
    #[inline(never)]
    fn routed_number(&self, stream: StreamId) -> u16 {
        let routed = self.routings.iter().rev().find(|(id, filter)| match filter {
            PoolFilter::All => true,
            PoolFilter::Stream(routed) => *routed == stream,
            PoolFilter::Chosen => self.chosen == Some(*id),
        });
        routed.and_then(|(id, _)| self.numbers.get(id)).copied().unwrap_or(0)
    }

    /// The streams whose requests are routed to pools ([`PoolFilter::Stream`]).
    pub(crate) fn routed_streams(&self) -> Vec<StreamId> {
        let stream =
            |(_, filter): &(PoolId, PoolFilter)| if let PoolFilter::Stream(stream) = filter { Some(*stream) } else { None };
        self.routings.iter().filter_map(stream).collect()
    }

    /// Chooses the pool for requests that are routed by [`PoolFilter::Chosen`].
    pub(crate) fn choose(&mut self, id: Option<PoolId>) {
        self.chosen = id;
    }

    #[inline]
    pub(crate) fn id(&self, pool_number: u16) -> PoolId {
        self.pool(pool_number).map_or(PoolId::DEFAULT, |pool| pool.id)
    }

    pub(crate) fn number_of(&self, id: PoolId) -> Option<u16> {
        if id == PoolId::DEFAULT { Some(0) } else { self.numbers.get(&id).copied() }
    }

    fn pool_mut(&mut self, id: PoolId) -> Result<&mut PrivatePool, PoolError> {
        let pool_number = self.numbers.get(&id).copied().ok_or(PoolError::Unknown(id))?;
        self.numbered(pool_number).ok_or(PoolError::Unknown(id))
    }

    /// Creates the pool or adds a use. Returns its number.
    pub(crate) fn create_or_use(&mut self, id: PoolId) -> Result<u16, PoolError> {
        if let Some(&pool_number) = self.numbers.get(&id) {
            let pool = self.pool_mut(id)?;
            if pool.uses <= 0 {
                return Err(PoolError::Abandoned(id));
            }
            pool.uses += 1;
            return Ok(pool_number);
        }
        let pool = PrivatePool { id, uses: 1, serving: 0 };
        let vacant = self.vacant.first().copied();
        let place = vacant.unwrap_or(self.pools.len());
        let pool_number = u16::try_from(place + 1).ok().filter(|&pool_number| pool_number < 1 << 15).ok_or(PoolError::TooMany)?;
        match vacant {
            Some(place) => {
                self.vacant.remove(&place);
                self.pools[place] = Some(pool);
            }
            None => self.pools.push(Some(pool)),
        }
        self.numbers.insert(id, pool_number);
        Ok(pool_number)
    }

    pub(crate) fn begin(&mut self, id: PoolId, filter: PoolFilter, decides_first: bool) -> Result<(), PoolError> {
        if self.routings.iter().any(|(routed, _)| *routed == id) {
            return Err(PoolError::AlreadyRouted(id));
        }
        self.routings.insert(if decides_first { self.routings.len() } else { 0 }, (id, filter));
        Ok(())
    }

    pub(crate) fn end(&mut self, id: PoolId) -> Result<(), PoolError> {
        let place = self.routings.iter().position(|(routed, _)| *routed == id).ok_or(PoolError::NotRouted(id))?;
        self.routings.remove(place);
        Ok(())
    }

    /// Removes a use. The memory of a pool without uses may be released.
    pub(crate) fn release(&mut self, id: PoolId) -> Result<(), PoolError> {
        let pool_number = self.numbers.get(&id).copied().ok_or(PoolError::Unknown(id))?;
        let pool = self.pool_mut(id)?;
        pool.uses -= 1;
        match pool.uses {
            0 => self.freeable.insert(hash(id), id, pool_number),
            1.. => {}
            _ => return Err(PoolError::NotInUse(id)),
        }
        Ok(())
    }

    pub(crate) fn use_count(&self, id: PoolId) -> Result<i64, PoolError> {
        let pool = self.numbers.get(&id).and_then(|&pool_number| self.pool(pool_number));
        pool.map(|pool| pool.uses).ok_or(PoolError::Unknown(id))
    }

    fn pool(&self, pool_number: u16) -> Option<&PrivatePool> {
        usize::from(pool_number).checked_sub(1).and_then(|place| self.pools.get(place)?.as_ref())
    }

    pub(crate) fn set_serves_when_out(&mut self, id: PoolId, serves: bool) {
        match self.serve_when_out.find(hash(id), id) {
            None if serves => self.serve_when_out.insert(hash(id), id, ()),
            Some(place) if !serves => {
                self.serve_when_out.remove_at(place);
            }
            _ => {}
        }
    }

    /// The pools that may serve requests to the default pool when the device is out of memory, in the order in which
    /// they are tried.
    pub(crate) fn serving_when_out(&self) -> Vec<PoolId> {
        self.serve_when_out.iter().map(|(id, ())| id).collect()
    }

    pub(crate) fn set_no_split(&mut self, id: PoolId) {
        self.no_split.insert(id);
    }

    #[inline]
    pub(crate) fn is_no_split(&self, pool_number: u16) -> bool {
        pool_number != 0 && self.no_split.contains(&self.id(pool_number))
    }

    /// The numbers of the pools whose memory may be released, in the order of release.
    pub(crate) fn freeable(&self) -> Vec<u16> {
        self.freeable.iter().map(|(_, &pool_number)| pool_number).collect()
    }

    /// Whether the pool has no uses left, so that its memory may be released.
    pub(crate) fn is_abandoned(&self, pool_number: u16) -> bool {
        let id = self.id(pool_number);
        self.freeable.find(hash(id), id).is_some()
    }

    /// Fails if the pool, which has no uses, has been released more often than used.
    pub(crate) fn check_uses(&self, pool_number: u16) -> Result<(), PoolError> {
        let id = self.id(pool_number);
        if self.use_count(id).is_ok_and(|uses| uses < 0) { Err(PoolError::Overreleased(id)) } else { Ok(()) }
    }

    fn numbered(&mut self, pool_number: u16) -> Option<&mut PrivatePool> {
        let place = usize::from(pool_number).checked_sub(1)?;
        self.pools.get_mut(place)?.as_mut()
    }

    /// Records that the pool is serving a request. The pool must not be forgotten until the request has ended.
    pub(crate) fn begin_serving(&mut self, pool_number: u16) {
        self.numbered(pool_number).into_iter().for_each(|pool| pool.serving += 1);
    }

    /// Records that the request has ended.
    pub(crate) fn end_serving(&mut self, pool_number: u16) {
        self.numbered(pool_number).into_iter().for_each(|pool| pool.serving = pool.serving.saturating_sub(1));
    }

    /// Whether the pool is serving a request.
    pub(crate) fn is_serving(&self, pool_number: u16) -> bool {
        self.pool(pool_number).is_some_and(|pool| pool.serving > 0)
    }

    /// Whether requests are routed to the pool.
    pub(crate) fn is_routed(&self, pool_number: u16) -> bool {
        let id = self.id(pool_number);
        self.routings.iter().any(|(routed, _)| *routed == id)
    }

    /// Forgets a pool that has no memory. Its "never split" flag is also forgotten if the PyTorch release does so.
    pub(crate) fn forget(&mut self, pool_number: u16, forgets_no_split: bool) {
        let place = usize::from(pool_number).wrapping_sub(1);
        if let Some(pool) = self.pools.get_mut(place).and_then(Option::take) {
            self.vacant.insert(place);
            self.numbers.remove(&pool.id);
            self.freeable.remove(hash(pool.id), pool.id);
            if forgets_no_split {
                self.no_split.remove(&pool.id);
            }
        }
    }
}
