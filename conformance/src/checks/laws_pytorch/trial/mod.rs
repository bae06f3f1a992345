//! The trial: the core on a witnessed device, next to the naive model. The laws hold between operations: every byte is
//! accounted for exactly once, free neighbours are coalesced, and the statistics agree.
//!
//! `apply` performs a sequence's operations and checks every law after each one; `requests` contains the laws about
//! single requests. The sequence is kept as a script for `parkade ops`, so that a failure can be reproduced and run on
//! the real allocator.

mod accounting;
mod apply;
mod requests;

use std::collections::BTreeMap;

use parkade::device::BackendError;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::{Family, Stats};
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, PoolClass, StreamId};
use parkade::{Allocation, Allocator};
use parkade_sim::FaultPlan;

use super::operation::{Operation, POOLS, Setup};
use crate::backend::{
    AnyBackend, AnyDevice, Core, DeviceFacts, MadeCall, Needs, Places, Simulation, TestDevice, Unable, WitnessedDevice,
};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::{History, Model, Routing, Rules, SETTINGS};

pub(crate) use accounting::{Account, Ledger};

/// `parkade ops` numbers the streams; the handle of stream k is k times this value.
const HANDLE_STEP: u64 = 0x1000;

/// Returns the script's name for one of [`STREAMS`](crate::backend::STREAMS), given its index.
pub(crate) fn stream_name(place: usize) -> u64 {
    crate::backend::STREAMS[place] / HANDLE_STEP
}

/// The outcome of an operation. An error is a legal outcome, and the laws check whether it was justified.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// The operation was performed.
    Done,
    /// There was nothing to apply the operation to.
    Nothing,
    /// Out of memory.
    OutOfMemory,
    /// The device failed.
    Failed(BackendError),
}

/// The result of a finished run.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// The core's trace.
    pub trace: Vec<TraceEntry>,
    /// The statistics at the end.
    pub stats: Stats,
}

/// A live allocation and the word that its memory was filled with.
struct Held {
    allocation: Allocation,
    name: u64,
    word: u32,
}

/// How long segments of the large pool have been entirely free, as a number of searches in that pool (spec 2.7).
#[derive(Clone, Default, Debug)]
struct Ages {
    searches: u64,
    /// Maps a segment's start to the number of searches when it became free.
    free_since: BTreeMap<u64, u64>,
    searches_before: u64,
}

impl Ages {
    fn begin_operation(&mut self) {
        self.searches_before = self.searches;
    }

    /// A segment that became free in an operation became free before the operation's own search.
    fn end_operation(&mut self, segments: &[SegmentInfo]) {
        let is_free = |segment: &&SegmentInfo| segment.class == PoolClass::Large && segment.active.get() == 0;
        let free = segments.iter().filter(is_free).map(|segment| segment.address.get());
        let since = |address| (address, self.free_since.get(&address).copied().unwrap_or(self.searches_before));
        self.free_since = free.map(since).collect();
    }

    fn of(&self, address: u64) -> u64 {
        self.searches - self.free_since.get(&address).copied().unwrap_or(self.searches_before)
    }
}

/// The core, its device, and the expected state.
pub struct Trial {
    core: Core<AnyDevice>,
    device: WitnessedDevice<AnyDevice>,
    streams: [StreamId; 4],
    held: Vec<Held>,
    model: Model,
    history: History,
    followed: usize,
    rules: Rules,
    settings_changed: bool,
    limit: Option<u64>,
    setup: Setup,
    facts: DeviceFacts,
    others_hold: u64,
    ledger: Ledger,
    ages: Ages,
    routing: Routing,
    /// Whether new segments are expandable.
    expandable: bool,
    /// Whether driver calls are made to fail; a refusal then need not mean that there is no room.
    expects_faults: bool,
    /// Whether contents are written and read back.
    checks_contents: bool,
    /// Reserved bytes before the newest operation.
    reserved_before: u64,
    /// Address ranges that the allocator had reserved before the newest operation.
    ranges_before: BTreeMap<u64, u64>,
    /// `num_alloc_retries` before the newest operation.
    retries_before: i64,
    /// The number of allocations so far.
    names: u64,
    /// The operations so far, as a script.
    script: Vec<String>,
}

impl Trial {
    /// Creates an empty allocator on an idle device.
    ///
    /// # Errors
    /// If such a device is not available.
    pub fn new(backend: &AnyBackend, setup: &Setup) -> Result<Trial, Unable> {
        let Setup { timing, places, free_waits, .. } = *setup;
        let needs = Needs { capacity: Some(Bytes(setup.capacity)), simulation: Simulation { timing, places, free_waits } };
        let device = backend.open(&needs)?;
        let streams = device.streams();
        let device = WitnessedDevice::new(device);
        let settings = Settings::from_environment(setup.settings_text()).expect("settings in the table are legal");
        let rules = setup.rules();
        Ok(Trial {
            core: Allocator::new(device.clone(), PyTorch::new(settings), Vec::new()),
            device,
            streams,
            held: Vec::new(),
            model: Model::default(),
            history: History::default(),
            followed: 0,
            rules,
            settings_changed: false,
            limit: None,
            setup: *setup,
            facts: backend.facts(),
            others_hold: 0,
            ledger: Ledger::default(),
            ages: Ages::default(),
            routing: Routing::default(),
            expandable: setup.settings_text().contains("expandable_segments:True"),
            expects_faults: false,
            checks_contents: true,
            reserved_before: 0,
            ranges_before: BTreeMap::new(),
            retries_before: 0,
            names: 0,
            script: Vec::new(),
        })
    }

    /// Makes driver calls fail according to a plan that counts calls from now on.
    pub(crate) fn plan_faults(&mut self, plan: FaultPlan) {
        self.expects_faults = true;
        self.device.plan_faults(plan);
    }

    /// Returns how many planned failures have happened so far.
    #[must_use]
    pub(crate) fn faults_fired(&self) -> u64 {
        self.device.faults_fired()
    }

    /// Returns the core for reading.
    #[must_use]
    pub fn core(&self) -> &Core<AnyDevice> {
        &self.core
    }

    /// Returns the device calls made in the current operation.
    fn made_calls(&self) -> Vec<MadeCall> {
        self.device.calls_so_far()
    }

    /// Returns the operations so far as a script for `parkade ops`, with the command line that runs it. Operations that
    /// a script cannot express, such as letting time pass, are written as comments.
    #[must_use]
    pub fn script(&self) -> String {
        let order = match self.setup.places {
            Places::Descending => "down",
            Places::Ascending | Places::Reuse => "up",
        };
        let settings = self.setup.settings_text();
        let head = format!("# parkade ops SCRIPT --capacity {} --settings '{settings}' --addresses {order}", self.setup.capacity);
        let places = (self.setup.places == Places::Reuse).then(|| "# new segments were placed in the lowest hole".to_owned());
        let timing = format!("# events: {:?}", self.setup.timing);
        [head, timing].into_iter().chain(places).chain(self.script.iter().cloned()).map(|line| line + "\n").collect()
    }

    /// Returns an operation as a line of the script, before the operation is performed.
    fn line_of(&self, operation: &Operation) -> Option<String> {
        let stream = stream_name;
        let name = |which: usize| (!self.held.is_empty()).then(|| self.held[which % self.held.len()].name);
        Some(match *operation {
            Operation::Allocate(bytes, place) => format!("alloc a{} {bytes} {}", self.names + 1, stream(place)),
            Operation::Free(which) => format!("free a{}", name(which)?),
            Operation::RecordStream(which, place) => format!("record_stream a{} {}", name(which)?, stream(place)),
            Operation::Launch(place, duration) => format!("# work of {duration} ns on stream {}", stream(place)),
            Operation::Advance(duration) => format!("# {duration} ns pass"),
            Operation::Complete(place) => format!("complete {}", stream(place)),
            Operation::CompleteOne(place) => format!("complete_one {}", stream(place)),
            Operation::CompleteAll => "complete all".to_owned(),
            Operation::ProcessEvents => "# process_events".to_owned(),
            Operation::ReleaseCached => "empty_cache".to_owned(),
            Operation::SetFraction(hundredths) => format!("set_fraction {}", f64::from(hundredths) / 100.0),
            Operation::ChangeSettings(place) => format!("conf {}", SETTINGS[place].text),
            Operation::OthersHold(bytes) => format!("external {bytes}"),
            Operation::ResetPeaks => "reset_peak".to_owned(),
            Operation::ResetSums => "reset_accumulated".to_owned(),
            Operation::Expandable(true) => "conf expandable_segments:True".to_owned(),
            Operation::Expandable(false) => "conf expandable_segments:False".to_owned(),
            Operation::BeginPool(pool, None) => format!("pool_begin 0 {pool} all"),
            Operation::BeginPool(pool, Some(place)) => format!("pool_begin 0 {pool} stream {}", stream(place)),
            Operation::EndPool(pool) => format!("pool_end 0 {pool}"),
            Operation::ReleasePool(pool) => format!("pool_release 0 {pool}"),
            Operation::ReleaseCachedPool(pool) => format!("empty_cache 0 {pool}"),
            Operation::UseOnOom(pool) => format!("# pool 0 {pool} serves when memory runs out"),
            Operation::NoSplit(pool) => format!("# pool 0 {pool} is not split"),
        })
    }

    /// Checks every law that holds between operations.
    ///
    /// # Errors
    /// The first broken law.
    pub fn check(&mut self) -> Result<(), Broken> {
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        for entry in &self.core.observer()[self.followed..] {
            self.history.follow(entry)?;
            self.ledger.follow(entry);
        }
        self.followed = self.core.observer().len();
        let segments = self.core.segments();
        self.model.check(&segments, &self.device.witness(), self.setup.is_virtual)?;
        check_coalesced(&segments)?;
        self.check_accounts(&segments)?;
        self.check_device(&segments)?;
        self.check_uses()?;
        self.ages.end_operation(&segments);
        self.ledger.check(self.core.stats(), self.setup.is_virtual)?;
        if !self.settings_changed && !self.setup.is_virtual {
            self.check_oversize(&segments)?;
        }
        Ok(())
    }

    /// Checks that reserved bytes are the sum of live, rounding, pending, inactive split and whole bytes, and that each
    /// statistic agrees with its part.
    fn check_accounts(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let account = Account::of(segments);
        let current = |family| u64::try_from(self.core.stats().family(family).all.current).unwrap_or(u64::MAX);
        for (family, counted) in account.by_family().into_iter().chain([(Family::Allocation, self.model.live.len() as u64)]) {
            ensure(Law::Accounting, current(family) == counted, || {
                format!("{} is {}, but {counted} was counted: {account:?}", family.name(), current(family))
            })?;
        }
        let reserved = self.core.heap().reserved().get();
        ensure(Law::Accounting, reserved == account.sum(), || {
            format!("{reserved} bytes are reserved, but the account is {account:?}")
        })?;
        // A lowered limit applies only to later growth.
        let grew = reserved > self.reserved_before;
        // PyTorch checks the request against the limit, and then maps whole pages of up to 20 MiB (spec 4.4).
        let page = if self.setup.is_virtual { 20 << 20 } else { 0 };
        let kept = !grew || self.core.heap().limit().is_none_or(|limit| reserved <= limit.get() + page);
        ensure(Law::Limit, kept, || format!("{reserved} bytes are reserved, but the limit is {:?}", self.core.heap().limit()))
    }

    /// Checks that the ordinary segments are exactly the device's live ranges.
    fn check_device(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let page = self.facts.page.get();
        let device = self.device.look();
        let ranges: Vec<(u64, u64)> = device.live_ranges().iter().map(|(address, bytes)| (address.get(), bytes.get())).collect();
        let ordinary: Vec<&SegmentInfo> = segments.iter().filter(|segment| !segment.expandable).collect();
        let same = ranges.len() == ordinary.len()
            && ranges.iter().zip(&ordinary).all(|(range, segment)| {
                // The device hands out whole pages.
                range.0 == segment.address.get() && segment.total.get() <= range.1 && range.1 - segment.total.get() < page
            });
        ensure(Law::Accounting, same, || format!("the device's ranges are {ranges:x?}, but the segments are {ordinary:x?}"))
    }

    /// Checks that the counts of oversize blocks and segments follow from the rules, which have not changed since the
    /// start.
    fn check_oversize(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let oversize = |size: Bytes| i64::from(self.rules.is_oversize(size.get()));
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let allocated = blocks.filter(|block| block.state == BlockActivity::Allocated);
        let counted = (
            allocated.map(|block| oversize(block.size)).sum::<i64>(),
            segments.iter().map(|segment| oversize(segment.total)).sum::<i64>(),
        );
        let stats = self.core.stats();
        let said = (stats.oversize_allocations.current, stats.oversize_segments.current);
        ensure(Law::Accounting, said == counted, || format!("the oversize counts are {said:?}, but {counted:?} were counted"))
    }

    /// Compares the allocator's use counts with the trial's.
    fn check_uses(&self) -> Result<(), Broken> {
        self.routing.check_uses(&self.core, POOLS)
    }
}

/// Checks that no two adjacent free blocks remain, because they should have been coalesced.
fn check_coalesced(segments: &[SegmentInfo]) -> Result<(), Broken> {
    for segment in segments {
        let apart = segment.blocks.windows(2).find(|pair| pair.iter().all(|block| block.state == BlockActivity::Inactive));
        ensure(Law::Coalescing, apart.is_none(), || format!("adjacent free blocks: {apart:?}"))?;
    }
    Ok(())
}
