//! The trial: the core on a witnessed device, next to the naive model. The laws hold between operations: every byte is
//! accounted for exactly once, free neighbours are coalesced, and the statistics agree.
//!
//! A sequence's operations are performed one by one: requests, private pools, settings, work and time on the device, and the
//! contents of memory. Every law is checked after each one, and nothing is left at the end, whatever happened before.
//! `requests` contains the laws about single requests. The sequence is kept as a script for `parkade ops`, so that a failure
//! can be reproduced and run on the real allocator.

mod requests;

use std::collections::BTreeMap;

use parkade::device::{BackendError, DeviceBackend as _};
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::{Family, Stats};
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, FreeError, PoolError};
use parkade_sim::{CallName, FaultPlan};

use super::operation::{Operation, POOLS, Setup};
use crate::backend::{
    AnyBackend, AnyDevice, Core, DeviceFacts, MadeCall, Needs, Places, Race, Simulation, TestDevice, Touch, Unable,
    WitnessedDevice,
};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::{History, Model, Routing, Rules, SETTINGS};

pub(crate) use crate::program::accounts::{Account, Ledger};

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

/// The time for which segments of the large pool have been entirely free, as a number of searches in that pool (spec
/// 2.7).
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
        let settings = Settings::from_environment(setup.settings_text()).expect("settings in the table are valid");
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
            Operation::UseOnOom(pool) => format!("# pool 0 {pool} serves requests when memory runs out"),
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
                format!("{} is {}, but should be {counted}: {account:?}", family.name(), current(family))
            })?;
        }
        let reserved = self.core.heap().reserved().get();
        ensure(Law::Accounting, reserved == account.sum(), || {
            format!("{reserved} bytes are reserved, but the segments account for {account:?}")
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
        ensure(Law::Accounting, same, || {
            format!("the device holds the ranges {ranges:x?}, but the heap has the segments {ordinary:x?}")
        })
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
        ensure(Law::Accounting, said == counted, || {
            format!("the statistics of oversize blocks are {said:?}, but should be {counted:?}")
        })
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
        ensure(Law::Coalescing, apart.is_none(), || format!("adjacent free blocks were not coalesced: {apart:?}"))?;
    }
    Ok(())
}

/// Number of bytes read back at the start and at the end of a block; reuse would overwrite one of
/// them.
const READ_BYTES: usize = 512;

impl Trial {
    /// Performs an operation, then checks every law.
    ///
    /// # Errors
    /// The first broken law.
    pub fn apply(&mut self, operation: &Operation) -> Result<Outcome, Broken> {
        self.device.begin_operation();
        self.reserved_before = self.core.heap().reserved().get();
        self.retries_before = self.core.stats().num_alloc_retries;
        self.ages.begin_operation();
        let _ = self.device.list_calls();
        self.ranges_before = self.device.reserved_ranges();
        let queues = self.model.waiting_streams(&self.device.witness());
        self.script.extend(self.line_of(operation));
        let outcome = self.carry_out(operation)?;
        if !self.expects_faults {
            self.check_calls(operation, queues)?;
        }
        if let Outcome::Failed(error) = &outcome {
            ensure(Law::Faults, self.expects_faults, || format!("the device failed without a planned fault: {error}"))?;
        }
        self.check()?;
        Ok(outcome)
    }

    fn carry_out(&mut self, operation: &Operation) -> Result<Outcome, Broken> {
        match *operation {
            Operation::Allocate(bytes, stream) => return self.allocate(bytes, self.streams[stream]),
            Operation::Free(which) => return self.free(which),
            Operation::RecordStream(which, stream) if !self.held.is_empty() => {
                let which = which % self.held.len();
                self.model.record(which, self.streams[stream].get(), self.core.heap().is_deferring());
                self.core.record_stream(&self.held[which].allocation, self.streams[stream]);
            }
            Operation::RecordStream(..) => return Ok(Outcome::Nothing),
            Operation::ProcessEvents => return failed(self.core.process_events().map_err(AllocError::Device)),
            Operation::ReleaseCached => {
                let outcome = failed(self.core.release_cached())?;
                self.check_released()?;
                return Ok(outcome);
            }
            Operation::ReleaseCachedPool(pool) => {
                let is_deferring = self.core.heap().is_deferring();
                return match self.core.release_cached_pool(PoolId(0, pool)) {
                    // The pool was released more often than used.
                    Err(AllocError::Pool(_)) => Ok(Outcome::Nothing),
                    // While a graph counts as being captured, the pool's events cannot be waited for.
                    Err(AllocError::Capturing) if is_deferring => Ok(Outcome::Nothing),
                    answer => failed(answer),
                };
            }
            Operation::ResetPeaks => {
                self.core.reset_peak_stats();
                self.ledger.peaks_were_reset();
            }
            Operation::ResetSums => {
                self.core.reset_accumulated_stats();
                self.ledger.sums_were_reset(self.core.stats());
            }
            Operation::SetFraction(_) | Operation::ChangeSettings(_) | Operation::Expandable(_) => self.turn_knob(operation)?,
            Operation::BeginPool(..)
            | Operation::EndPool(_)
            | Operation::ReleasePool(_)
            | Operation::UseOnOom(_)
            | Operation::NoSplit(_) => self.pools(operation)?,
            _ => return self.drive(operation),
        }
        Ok(Outcome::Done)
    }

    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Outcome, Broken> {
        let segments = self.core.segments();
        let before = self.before_request(segments, bytes);
        let answer = self.core.allocate(Bytes(bytes), stream);
        let witness = self.device.witness();
        let checks_places = !self.expects_faults && !self.setup.is_virtual;
        let checks_pools = !self.expects_faults && self.setup.is_virtual;
        match answer {
            Ok(allocation) => {
                let address = allocation.address();
                self.names += 1;
                let word = self.names as u32;
                self.held.push(Held { allocation, name: self.names, word });
                if checks_places {
                    self.check_place(&before.segments, bytes, stream.get(), address.get())?;
                    self.check_ladder(&before, bytes, stream.get(), true)?;
                }
                if checks_pools {
                    self.check_pool(&before.segments, bytes, stream, address.get())?;
                }
                // Other settings may round a block differently, but the requested size is always the caller's.
                let rounded = if self.setup.is_virtual { bytes } else { self.rules.rounded(bytes) };
                self.model.add(address.get(), bytes, rounded, stream.get(), &witness)?;
                self.write(address, bytes, word, stream)?;
                Ok(Outcome::Done)
            }
            Err(AllocError::OutOfMemory(_)) => {
                if checks_places {
                    self.check_out_of_memory(&before.segments, bytes, stream.get())?;
                    self.check_ladder(&before, bytes, stream.get(), false)?;
                }
                if checks_pools {
                    self.check_nobody_serves(&before.segments, bytes, stream)?;
                }
                Ok(Outcome::OutOfMemory)
            }
            Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
            // A pool that serves when memory runs out and to which requests are also routed: PyTorch refuses this too.
            Err(AllocError::Pool(error)) if self.setup.is_virtual => {
                self.failed_in_pool(error)?;
                Ok(Outcome::OutOfMemory)
            }
            Err(error) => Err(Broken::new(Law::NoFalseOutOfMemory, format!("a request for {bytes} bytes failed: {error}"))),
        }
    }

    fn free(&mut self, which: usize) -> Result<Outcome, Broken> {
        if self.held.is_empty() {
            return Ok(Outcome::Nothing);
        }
        let which = which % self.held.len();
        self.read_back(which)?;
        let held = self.held.swap_remove(which);
        self.model.give_back(which, self.core.heap().is_deferring(), &self.device.witness());
        match self.core.free(held.allocation) {
            Ok(()) => Ok(Outcome::Done),
            Err(FreeError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(error) => Err(Broken::new(Law::Accounting, error)),
        }
    }

    /// Operations on private pools. A refused operation changes nothing, except that routing to a pool twice counts as a use.
    fn pools(&mut self, operation: &Operation) -> Result<(), Broken> {
        let Trial { routing, core, .. } = self;
        match *operation {
            Operation::BeginPool(pool, stream) => routing.begin(core, pool, stream.map(|place| self.streams[place]))?,
            Operation::EndPool(pool) => routing.end(core, pool)?,
            Operation::ReleasePool(pool) => routing.release(core, pool)?,
            Operation::UseOnOom(pool) => routing.serve_when_out(core, pool),
            Operation::NoSplit(pool) => routing.keep_whole(core, pool),
            _ => {}
        }
        Ok(())
    }

    /// `empty_cache` releases nothing from a pool in use, nor from the default pool while requests are routed elsewhere
    /// (spec 2.10).
    fn check_released(&self) -> Result<(), Broken> {
        self.routing.check_kept(&self.core.observer()[self.followed..], self.routing.is_routing())
    }

    /// Handles a request that failed in a pool.
    fn failed_in_pool(&mut self, error: PoolError) -> Result<(), Broken> {
        self.routing.failed_in_pool(error)
    }

    /// Checks the waits. A request queries the oldest event of every stream that has pending events, and pages are
    /// unmapped only after a wait for their stream (spec 3.6, 4.6). `queues` is the number of streams with events that
    /// the allocator did not know to be complete.
    fn check_calls(&mut self, operation: &Operation, queues: usize) -> Result<(), Broken> {
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

    /// Stops writing and reading memory, for runs that check decisions only.
    pub fn without_contents(&mut self) {
        self.checks_contents = false;
    }

    fn turn_knob(&mut self, operation: &Operation) -> Result<(), Broken> {
        match *operation {
            Operation::SetFraction(hundredths) => {
                let fraction = f64::from(hundredths) / 100.0;
                self.limit = (hundredths < 100).then_some((fraction * self.setup.capacity as f64) as u64);
                if self.core.device().look().total_memory().get() == self.setup.capacity {
                    self.core.set_memory_fraction(fraction).map_err(|error| Broken::new(Law::Limit, error))?;
                    for illegal in [fraction + 1.01, fraction - 1.01, f64::NAN] {
                        let answer = self.core.set_memory_fraction(illegal);
                        ensure(Law::Limit, answer.is_err(), || format!("the invalid fraction {illegal} was accepted"))?;
                    }
                } else {
                    // A real device reports more memory than the ballast leaves.
                    self.core.set_limit(self.limit.map(Bytes));
                }
                let limit = self.core.heap().limit().map(Bytes::get);
                ensure(Law::Limit, limit == self.limit, || {
                    format!("a fraction of {fraction} means a limit of {:?}, but the limit is {limit:?}", self.limit)
                })?;
            }
            Operation::ChangeSettings(place) => {
                let settings = &mut self.core.policy_mut().settings;
                settings.apply(SETTINGS[place].text).map_err(|error| Broken::new(Law::Placement, error))?;
                self.rules = SETTINGS[place].applied_to(self.rules);
                self.settings_changed = true;
            }
            Operation::Expandable(on) => {
                self.core.policy_mut().settings.expandable_segments = on;
                self.expandable = on;
            }
            _ => {}
        }
        Ok(())
    }

    /// Performs operations that concern only the device. A real device completes work without help, so the trial waits
    /// for the work that the sequence completes.
    fn drive(&mut self, operation: &Operation) -> Result<Outcome, Broken> {
        let mut device = self.device.steer();
        let answer = match *operation {
            Operation::Launch(place, duration) => device.spin(self.streams[place], duration),
            Operation::OthersHold(bytes) => {
                self.others_hold = bytes;
                device.others_hold(Bytes(bytes))
            }
            Operation::Advance(duration) => {
                device.pause(duration);
                Ok(())
            }
            _ => complete(&mut device, &self.streams, operation),
        };
        answer.map(|()| Outcome::Done).map_err(|error| Broken::new(Law::Faults, format!("{operation:?}: {error}")))
    }

    /// Fills a new allocation, on its own stream.
    fn write(&mut self, address: DeviceAddress, bytes: u64, word: u32, stream: StreamId) -> Result<(), Broken> {
        let whole = bytes / 4 * 4;
        if !self.checks_contents || whole == 0 {
            return Ok(());
        }
        let answer = self.device.steer().fill(address, Bytes(whole), word, stream);
        answer.map_err(|error| Broken::new(Law::Contents, format!("{bytes} bytes at {address} cannot be written: {error}")))
    }

    /// Checks that an allocation still holds what was written.
    fn read_back(&mut self, which: usize) -> Result<(), Broken> {
        let (address, word) = (self.held[which].allocation.address(), self.held[which].word);
        let live = &self.model.live[which];
        let whole = live.requested / 4 * 4;
        if !self.checks_contents || whole == 0 {
            return Ok(());
        }
        let mut device = self.device.steer();
        if device.insight().is_none() {
            let answer = device.synchronize_stream(StreamId(live.stream));
            answer.map_err(|error| Broken::new(Law::Contents, error))?;
        }
        let piece = whole.min(READ_BYTES as u64);
        let mut bytes = [0; READ_BYTES];
        let bytes = &mut bytes[..piece as usize];
        for offset in [0, whole - piece] {
            let place = address.offset(Bytes(offset));
            device.read(place, bytes).map_err(|error| Broken::new(Law::Contents, format!("{place} cannot be read: {error}")))?;
            let wrong = bytes.chunks_exact(4).position(|found| found != word.to_le_bytes());
            ensure(Law::Contents, wrong.is_none(), || {
                let at = offset + 4 * wrong.unwrap_or(0) as u64;
                format!("{live:?} was filled with {word:#x}, but contains something else at byte {at}")
            })?;
        }
        Ok(())
    }

    /// Frees all memory, checks that nothing is left, drops the allocator and checks the device again.
    ///
    /// # Errors
    /// If anything is left.
    pub fn finish(mut self) -> Result<Finished, Broken> {
        for pool in 1..=if self.setup.is_virtual { POOLS } else { 0 } {
            self.apply(&Operation::EndPool(pool))?;
            while self.core.pool_use_count(PoolId(0, pool)).is_ok_and(|uses| uses > 0) {
                self.apply(&Operation::ReleasePool(pool))?;
            }
        }
        while !self.held.is_empty() {
            self.apply(&Operation::Free(0))?;
        }
        self.apply(&Operation::CompleteAll)?;
        // At most two planned failures may hit this call. If it fails again after that, the checks below find the
        // leftovers.
        for _ in 0..3 {
            if !matches!(self.apply(&Operation::ReleaseCached)?, Outcome::Failed(_)) {
                break;
            }
        }
        ensure(Law::Endings, self.history.is_empty(), || {
            format!("the trace ends with memory that is still held: {:?}", self.history)
        })?;
        let reserved = self.core.heap().reserved();
        ensure(Law::Endings, reserved == Bytes::ZERO, || format!("{reserved} bytes are still reserved"))?;
        for family in Family::ALL {
            let current = self.core.stats().family(family).all.current;
            ensure(Law::Endings, current == 0, || format!("{}.all.current is {current} at the end", family.name()))?;
        }
        let holdings = self.device.look().holdings();
        // Growth that fails for lack of memory leaves its addresses reserved for the next attempt, even if the request
        // is then served elsewhere: the heap knows the addresses, and nothing has ever been mapped there. A range that
        // had memory is unreserved together with its last page.
        let known = self.core.expandable_segments().iter().filter(|(_, _, mapped)| *mapped == Bytes::ZERO).count();
        let bare = self.device.bare_ranges().min(known);
        let is_empty = holdings.ranges == 0 && holdings.physical == 0 && holdings.reservations == bare;
        ensure(Law::Endings, self.expects_faults || is_empty, || format!("an empty heap still holds {holdings:?}"))?;
        let finished = Finished { trace: std::mem::take(self.core.observer_mut()), stats: self.core.stats().clone() };
        self.abandon()?;
        Ok(finished)
    }

    /// Drops the allocator in its current state, and checks that everything was returned to the
    /// device.
    ///
    /// # Errors
    /// If anything is left on the device, or memory was taken away while in use.
    pub fn abandon(self) -> Result<(), Broken> {
        let Trial { core, device, held, .. } = self;
        // If the very last call failed, the allocator could not do anything more.
        device.plan_faults(FaultPlan::none());
        drop((core, held));
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("these were not returned to the device: {left:?}"))?;
        let used = device.steer().insight().map_or(Bytes::ZERO, |device| device.used_bytes());
        ensure(Law::Endings, used == Bytes::ZERO, || format!("{used} bytes were not returned to the device"))?;
        // On a real device, work fails if its memory is unmapped, and takes down the entire
        // process.
        let is_pulled_away = |race: &&Race| race.second.touch == Touch::Unmapped;
        let race =
            device.steer().insight().and_then(|device| device.races().iter().find(is_pulled_away).map(ToString::to_string));
        ensure(Law::NoRace, race.is_none(), || race.unwrap_or_default())
    }
}

/// The outcome of an operation that only the device can make fail.
fn failed(answer: Result<(), AllocError>) -> Result<Outcome, Broken> {
    match answer {
        Ok(()) => Ok(Outcome::Done),
        Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
        Err(error) => Err(Broken::new(Law::Sweep, error)),
    }
}

/// Completes the work that the operation names.
fn complete(device: &mut AnyDevice, streams: &[StreamId; 4], operation: &Operation) -> Result<(), BackendError> {
    if let Some(device) = device.insight() {
        match *operation {
            Operation::Complete(place) => device.complete(streams[place]),
            Operation::CompleteOne(place) => {
                device.complete_one(streams[place]);
            }
            Operation::CompleteAll => device.complete_all(),
            _ => {}
        }
        return Ok(());
    }
    match *operation {
        Operation::Complete(place) | Operation::CompleteOne(place) => device.synchronize_stream(streams[place])?,
        Operation::CompleteAll => device.settle(),
        _ => {}
    }
    Ok(())
}
