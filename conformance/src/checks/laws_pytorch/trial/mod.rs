//! The trial: the core on a witnessed device next to the naive model, with every law checked after every operation.

mod accounts;
mod drive;
mod ending;
mod growth;
mod ladder_law;
mod ledger;
mod placement;
mod routing;
mod script;

use std::collections::BTreeMap;

use parkade::device::BackendError;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::stats::Stats;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, FreeError};
use parkade_sim::FaultPlan;

use crate::backend::{
    AnyBackend, AnyDevice, Core, DeviceFacts, MadeCall, Needs, Simulation, TestDevice, Unable, WitnessedDevice,
};
use crate::checks::laws_pytorch::operation::{Operation, Setup};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::{History, Model, Routing, Rules};

pub(crate) use accounts::Account;
use ladder_law::Ages;
pub(crate) use ledger::Ledger;
pub(crate) use script::stream_name;

/// The outcome of an operation. An error is a legal outcome; the laws check whether it was justified.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It was done.
    Done,
    /// There was nothing to apply it to.
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

/// A live allocation, and the word that its memory was filled with.
struct Held {
    allocation: Allocation,
    name: u64,
    word: u32,
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
    /// Whether driver calls are made to fail; a refusal then does not mean that there is no room.
    expects_faults: bool,
    /// Whether contents are written and read back.
    checks_contents: bool,
    /// Reserved bytes before the newest operation.
    reserved_before: u64,
    /// Address ranges that the allocator had reserved before it.
    ranges_before: BTreeMap<u64, u64>,
    /// `num_alloc_retries` before it.
    retries_before: i64,
    /// How many allocations there have been.
    names: u64,
    /// The operations so far, as a script.
    script: Vec<String>,
}

impl Trial {
    /// An empty allocator on an idle device.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn new(backend: &AnyBackend, setup: &Setup) -> Result<Trial, Unable> {
        let Setup { timing, places, free_waits, .. } = *setup;
        let needs = Needs { capacity: Some(Bytes(setup.capacity)), simulation: Simulation { timing, places, free_waits } };
        let device = backend.open(&needs)?;
        let streams = device.streams();
        let device = WitnessedDevice::new(device);
        let settings = Settings::from_environment(setup.settings_text()).expect("settings of the table are legal");
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

    /// Makes driver calls fail by a plan that counts from now.
    pub(crate) fn plan_faults(&mut self, plan: FaultPlan) {
        self.expects_faults = true;
        self.device.plan_faults(plan);
    }

    /// How many planned failures have happened so far.
    #[must_use]
    pub(crate) fn faults_fired(&self) -> u64 {
        self.device.faults_fired()
    }

    /// The core, for reading.
    #[must_use]
    pub fn core(&self) -> &Core<AnyDevice> {
        &self.core
    }

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

    /// The device calls of the current operation.
    fn made_calls(&self) -> Vec<MadeCall> {
        self.device.calls_so_far()
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
                return match self.core.release_cached_pool(PoolId(0, pool)) {
                    // There is no such pool, or its events cannot be waited for while requests are routed.
                    Err(AllocError::Pool(_)) => Ok(Outcome::Nothing),
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
                // Other settings may round a block differently; the requested size is always the caller's.
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
            // A pool that serves when memory runs out and is also routed: PyTorch refuses this, too.
            Err(AllocError::Pool(error)) if self.setup.is_virtual => {
                self.failed_in_pool(error)?;
                Ok(Outcome::OutOfMemory)
            }
            Err(error) => Err(Broken::new(Law::NoFalseOutOfMemory, format!("a request of {bytes} bytes: {error}"))),
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
}

/// The outcome of an operation that only the device can make fail.
fn failed(answer: Result<(), AllocError>) -> Result<Outcome, Broken> {
    match answer {
        Ok(()) => Ok(Outcome::Done),
        Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
        Err(error) => Err(Broken::new(Law::Sweep, error)),
    }
}
