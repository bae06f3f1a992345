//! The reference allocator: PyTorch's allocator written a second time, with lists that are scanned from end to end.
//!
//! It owns no device. After each operation of the allocator under test it performs the same one, and wherever it would call the
//! device it reads the answer from the list of calls that the other one made: the next call there must be the same, down to its
//! arguments. So every decision is compared, on any device, whatever the device answers and however its calls fail.
//!
//! Afterwards trace, statistics, segments and the result of the operation must be equal, too. Sources: docs/spec.md, sections 1
//! to 6 and 11.0.

mod accounts;
mod adopt;
mod blocks;
mod callbacks;
mod checkpoint;
mod events;
mod expandable;
mod fit;
mod ladder;
mod pools;
mod request;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use parkade::PoolFilter;
use parkade::device::BackendError;
use parkade::profile::{Profile, TieBreak};
use parkade::settings::Settings;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{PoolClass, PoolId, StreamId};
use parkade_sim::CallName;

use crate::backend::MadeCall;
use crate::reference_model::ReleaseRules;
use crate::reference_model::table::Table;
use accounts::Accounts;
pub use blocks::FreeBlock;
use blocks::Segment;
pub use callbacks::{Deed, Made};
pub use checkpoint::{Restoration, Saved, SavedRun};
use pools::PrivatePool;

/// The reference allocator.
#[derive(Clone, Debug)]
pub struct Reference {
    rules: ReleaseRules,
    /// The settings in force.
    pub settings: Settings,
    total: u64,
    device: u32,
    limit: Option<u64>,
    segments: Vec<Segment>,
    /// Segments and reserved ranges made so far, or, where each block has its own age, blocks.
    made: u64,
    /// Reserved ranges made so far.
    ranges_made: u64,
    /// Searches of the default pool's large blocks while garbage collection was on.
    searches: u64,
    /// Events that have been recorded, by stream, oldest first, each with the block that waits for it.
    queues: BTreeMap<u64, VecDeque<(u64, u64)>>,
    /// The streams that have such events, in the order in which they are looked at.
    waited_for: Table<u64>,
    /// Unused events; the one used last is used next.
    spare_events: Vec<u64>,
    /// Freed blocks whose events are not all recorded, oldest first.
    deferred: VecDeque<u64>,
    pools: BTreeMap<PoolId, PrivatePool>,
    routings: Vec<(PoolId, PoolFilter)>,
    /// The pool that the caller chose for its next requests.
    chosen: Option<PoolId>,
    /// Whether a routing failed that counts as one that never ends.
    routes_for_ever: bool,
    serving: Table<PoolId>,
    /// Pools without uses: their memory may go.
    freeable: Table<PoolId>,
    whole: BTreeSet<PoolId>,
    is_capturing: bool,
    /// What the free-memory callbacks do, one deed each time, and whether they then say that they freed something.
    pub stocks: Vec<VecDeque<(Deed, bool)>>,
    /// What the callbacks of the operation were answered.
    pub callback_answers: Vec<Made>,
    /// The stock of each callback, in the order in which they were registered.
    pub registered: Vec<usize>,
    /// Pools that requests are on their way to.
    awaited: Vec<PoolId>,
    /// Handles of memory that the device failed to release.
    unreleased: u64,
    /// Ranges that the device failed to unmap.
    stuck: Vec<(u64, u64)>,
    accounts: Accounts,
    /// What an observer is told.
    pub trace: Vec<TraceEntry>,
    calls: VecDeque<MadeCall>,
    /// The first difference between the calls made and those that the rules demand.
    wrong: Option<String>,
}

/// The error after a call that the other allocator did not make.
const NOT_MADE: BackendError = BackendError::Driver { call: "a call that was not made", code: 0 };

impl Reference {
    /// An allocator without memory, on a device of `total` bytes.
    pub fn new(profile: &Profile, settings: Settings, total: u64, device: u32) -> Reference {
        let accounts = Accounts::new(settings.max_split_bytes as i64);
        Reference {
            rules: ReleaseRules::of(profile.name),
            settings,
            total,
            device,
            limit: None,
            segments: Vec::new(),
            made: 0,
            ranges_made: 0,
            searches: 0,
            queues: BTreeMap::new(),
            waited_for: Table::default(),
            spare_events: Vec::new(),
            deferred: VecDeque::new(),
            pools: BTreeMap::new(),
            routings: Vec::new(),
            chosen: None,
            routes_for_ever: false,
            serving: Table::default(),
            freeable: Table::default(),
            whole: BTreeSet::new(),
            is_capturing: false,
            stocks: Vec::new(),
            callback_answers: Vec::new(),
            registered: Vec::new(),
            awaited: Vec::new(),
            unreleased: 0,
            stuck: Vec::new(),
            accounts,
            trace: Vec::new(),
            calls: VecDeque::new(),
            wrong: None,
        }
    }

    /// Takes the device calls of the operation that follows.
    pub fn begin(&mut self, calls: Vec<MadeCall>) {
        (self.calls, self.wrong) = (calls.into(), None);
        self.trace.clear();
        self.callback_answers.clear();
    }

    /// What was wrong with the calls of the operation, if anything.
    pub fn end(&mut self) -> Option<String> {
        let left = self.calls.front().map(|call| format!("the allocator made {call:?}, which no rule asks for"));
        self.wrong.take().or(left)
    }

    /// Makes a call, by reading what the other allocator was answered.
    fn call(&mut self, asked: MadeCall) -> Result<u64, BackendError> {
        if self.wrong.is_some() {
            return Err(NOT_MADE);
        }
        match self.calls.pop_front() {
            Some(made) if made.asked() == asked => made.error.map_or(Ok(made.answer), Err),
            other => {
                self.wrong = Some(format!("the rules ask for {asked:?}, and the allocator made {other:?}"));
                Err(NOT_MADE)
            }
        }
    }

    fn tell(&mut self, action: TraceAction, address: u64, size: u64, stream: u64, pool: PoolId) {
        self.trace.push(TraceEntry { action, address, size, stream: StreamId(stream), pool });
    }

    /// Whether waiting is put off (spec 3.8, 11.0).
    pub fn is_deferring(&self) -> bool {
        if self.rules.defers_while_routing { self.routes_for_ever || !self.routings.is_empty() } else { self.is_capturing }
    }

    /// Says whether the caller's stream is being captured.
    pub fn set_capturing(&mut self, is_capturing: bool) {
        self.is_capturing = is_capturing;
    }

    /// Sets the limit in bytes.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Sets the limit to a fraction of the device (spec 2.15); false if that is none.
    pub fn set_fraction(&mut self, fraction: f64) -> bool {
        if fraction.is_nan() || !(0.0..=1.0).contains(&fraction) {
            return false;
        }
        if self.rules.asks_for_total {
            // The total is what it was, and after a failure it is taken to be.
            let _ = self.call(MadeCall::to(CallName::MemGetInfo));
        }
        let exact = fraction * self.total as f64;
        // Later releases round to the nearest, and a half up.
        let bytes = if self.rules.rounds_limits_down { exact.floor() } else { exact.round() };
        self.limit = if fraction == 1.0 && !self.rules.limits_whole_memory { None } else { Some(bytes as u64) };
        true
    }

    /// The limit.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    fn next_rank(&mut self) -> u64 {
        let rank = if self.rules.tie_break == TieBreak::Address { 0 } else { self.made };
        self.made += 1;
        rank
    }

    /// The rank of a new block that was a part of another, or is behind it.
    fn next_rank_beside(&mut self, other: u64) -> u64 {
        if self.rules.tie_break == TieBreak::BlockAge { self.next_rank() } else { other }
    }

    /// What the block records as the time at which it became free.
    fn stamp(&self, pool: PoolId, class: PoolClass) -> u64 {
        if (pool, class) == (PoolId::DEFAULT, PoolClass::Large) { self.searches } else { 0 }
    }

    fn is_oversize(&self, size: u64) -> bool {
        size >= self.settings.max_split_bytes
    }
}
