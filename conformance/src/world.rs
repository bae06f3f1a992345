//! The world: the core on a witnessed device, the naive model beside it, and every law checked after every operation.

mod ending;
mod ledger;
mod placement;

use parkade::device::BackendError;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::stats::{Family, Stats};
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocation, Allocator, FreeError};
use parkade_sim::device::address::{Ascending, Descending, Reuse};
use parkade_sim::device::{FaultPlan, SimDevice, SimOptions};

use crate::device::WitnessedDevice;
use crate::history::History;
use crate::model::Model;
use crate::operation::{Operation, Places, STREAMS, Setup};
use crate::rules::{Rules, SETTINGS};
use crate::{Broken, ensure};
use ledger::Ledger;

/// The core as the laws run it.
pub type Core = Allocator<WitnessedDevice, PyTorch, Vec<TraceEntry>>;

/// What an operation came to. An error is a legal outcome; whether it was rightly given is a law.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It was done.
    Done,
    /// There was nothing to do it to.
    Nothing,
    /// No memory.
    OutOfMemory,
    /// The device failed.
    Failed(BackendError),
}

/// What is left when a run is over.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// Everything that the core told its observer.
    pub trace: Vec<TraceEntry>,
    /// The statistics at the end.
    pub stats: Stats,
}

/// The core, its device, and what ought to be.
pub struct World {
    core: Core,
    device: WitnessedDevice,
    held: Vec<Allocation>,
    model: Model,
    history: History,
    followed: usize,
    rules: Rules,
    settings_changed: bool,
    limit: Option<u64>,
    capacity: u64,
    others_hold: u64,
    ledger: Ledger,
    /// Whether driver calls are made to fail: then a refusal says nothing about room.
    expects_faults: bool,
}

impl World {
    /// An allocator that holds nothing, on an idle device.
    #[must_use]
    pub fn new(setup: &Setup) -> World {
        let options = SimOptions::fake_driver(Bytes(setup.capacity)).adversary(setup.adversary).free_waits(setup.free_waits);
        let options = match setup.places {
            Places::Ascending => options.address_model(Ascending::new()),
            Places::Descending => options.address_model(Descending::new()),
            Places::Reuse => options.address_model(Reuse::new()),
        };
        let device = WitnessedDevice::new(SimDevice::new(options));
        let settings = Settings::from_environment(SETTINGS[setup.settings].text).expect("settings of the table are legal");
        World {
            core: Allocator::new(device.clone(), PyTorch::new(settings), Vec::new()),
            device,
            held: Vec::new(),
            model: Model::default(),
            history: History::default(),
            followed: 0,
            rules: SETTINGS[setup.settings].applied_to(Rules::default()),
            settings_changed: false,
            limit: None,
            capacity: setup.capacity,
            others_hold: 0,
            ledger: Ledger::default(),
            expects_faults: false,
        }
    }

    /// Makes driver calls fail by a plan, whose counts begin now.
    pub fn plan_faults(&mut self, plan: FaultPlan) {
        self.expects_faults = true;
        self.device.steer().set_fault_plan(plan);
    }

    /// How many planned failures have happened.
    #[must_use]
    pub fn faults_fired(&self) -> u64 {
        self.device.look().fault_plan().fired()
    }

    /// The core, to look at.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Carries out an operation, then checks every law.
    ///
    /// # Errors
    /// The first law broken.
    pub fn apply(&mut self, operation: &Operation) -> Result<Outcome, Broken> {
        self.device.begin_operation();
        let outcome = self.carry_out(operation)?;
        if let Outcome::Failed(error) = &outcome {
            ensure(self.expects_faults, || format!("the device failed, which nobody had planned: {error}"))?;
        }
        self.check()?;
        Ok(outcome)
    }

    fn carry_out(&mut self, operation: &Operation) -> Result<Outcome, Broken> {
        match *operation {
            Operation::Allocate(bytes, stream) => return self.allocate(bytes, STREAMS[stream]),
            Operation::Free(which) => return self.free(which),
            Operation::RecordStream(which, stream) if !self.held.is_empty() => {
                let which = which % self.held.len();
                self.model.record(which, STREAMS[stream]);
                self.core.record_stream(&self.held[which], StreamId(STREAMS[stream]));
            }
            Operation::RecordStream(..) => return Ok(Outcome::Nothing),
            Operation::ProcessEvents => return Ok(failed(self.core.process_events().map_err(AllocError::Device))),
            Operation::ReleaseCached => return Ok(failed(self.core.release_cached())),
            Operation::SetFraction(hundredths) => {
                let fraction = f64::from(hundredths) / 100.0;
                self.limit = (hundredths < 100).then_some((fraction * self.capacity as f64) as u64);
                self.core.set_memory_fraction(fraction).map_err(|error| Broken(error.to_string()))?;
            }
            Operation::ChangeSettings(place) => {
                let settings = &mut self.core.policy_mut().settings;
                settings.apply(SETTINGS[place].text).map_err(|error| Broken(error.to_string()))?;
                self.rules = SETTINGS[place].applied_to(self.rules);
                self.settings_changed = true;
            }
            Operation::ResetPeaks => {
                self.core.reset_peak_stats();
                self.ledger.peaks_were_reset();
            }
            Operation::ResetSums => {
                self.core.reset_accumulated_stats();
                self.ledger.sums_were_reset(self.core.stats());
            }
            _ => self.steer(operation),
        }
        Ok(Outcome::Done)
    }

    /// What happens to the device alone.
    fn steer(&mut self, operation: &Operation) {
        let mut device = self.device.steer();
        match *operation {
            Operation::Launch(stream, duration) => device.spin(StreamId(STREAMS[stream]), duration),
            Operation::Advance(duration) => device.advance(duration),
            Operation::Complete(stream) => device.complete(StreamId(STREAMS[stream])),
            Operation::CompleteOne(stream) => {
                device.complete_one(StreamId(STREAMS[stream]));
            }
            Operation::CompleteAll => device.complete_all(),
            Operation::OthersHold(bytes) => {
                self.others_hold = bytes;
                device.set_external_bytes(Bytes(bytes));
            }
            _ => {}
        }
    }

    fn allocate(&mut self, bytes: u64, stream: u64) -> Result<Outcome, Broken> {
        let before = self.core.segments();
        let answer = self.core.allocate(Bytes(bytes), StreamId(stream));
        let witness = self.device.witness();
        match answer {
            Ok(allocation) => {
                let address = allocation.address().get();
                self.held.push(allocation);
                if !self.expects_faults {
                    self.check_place(&before, bytes, stream, address)?;
                }
                self.model.add(address, bytes, self.rules.rounded(bytes), stream, &witness)?;
                Ok(Outcome::Done)
            }
            Err(AllocError::OutOfMemory(_)) => {
                if !self.expects_faults {
                    self.check_out_of_memory(&before, bytes, stream)?;
                }
                Ok(Outcome::OutOfMemory)
            }
            Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(error) => Err(Broken(format!("a request of {bytes} bytes: {error}"))),
        }
    }

    fn free(&mut self, which: usize) -> Result<Outcome, Broken> {
        if self.held.is_empty() {
            return Ok(Outcome::Nothing);
        }
        let which = which % self.held.len();
        let allocation = self.held.swap_remove(which);
        self.model.give_back(which, &self.device.witness());
        match self.core.free(allocation) {
            Ok(()) => Ok(Outcome::Done),
            Err(FreeError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(error) => Err(Broken(error.to_string())),
        }
    }

    /// Checks every law that holds between operations.
    ///
    /// # Errors
    /// The first one broken.
    pub fn check(&mut self) -> Result<(), Broken> {
        self.core.check().map_err(|violation| Broken(format!("the heap's own check: {violation}")))?;
        for entry in &self.core.observer()[self.followed..] {
            self.history.follow(entry)?;
        }
        self.followed = self.core.observer().len();
        let segments = self.core.segments();
        self.model.check(&segments, &self.device.witness())?;
        self.check_device(&segments)?;
        self.ledger.check(self.core.stats())?;
        self.check_sums()
    }

    /// Every segment is a live range of the device, and there are no others.
    fn check_device(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let device = self.device.look();
        let ranges: Vec<(u64, u64)> = device.live_ranges().map(|(address, bytes)| (address.get(), bytes.get())).collect();
        let same = ranges.len() == segments.len()
            && ranges.iter().zip(segments).all(|(range, segment)| {
                // The device gives whole pages.
                range.0 == segment.address.get() && segment.total.get() <= range.1 && range.1 - segment.total.get() < 2 << 20
            });
        ensure(same, || format!("the device's ranges are {ranges:x?}, the segments {segments:x?}"))
    }

    /// Statistics that follow from the model.
    fn check_sums(&self) -> Result<(), Broken> {
        let current = |family| self.core.stats().family(family).all.current;
        let live = self.model.live.len() as i64;
        ensure(current(Family::Allocation) == live, || {
            format!("allocation.all.current is {}, live {live}", current(Family::Allocation))
        })?;
        if !self.settings_changed {
            let sizes = || self.core.segments().into_iter().flat_map(|segment| segment.blocks);
            let oversize = |size: u64| i64::from(self.rules.is_oversize(size));
            let allocated = |block: &parkade::snapshot::BlockInfo| block.state == parkade::snapshot::BlockActivity::Allocated;
            let blocks: i64 = sizes().filter(allocated).map(|block| oversize(block.size.get())).sum();
            let segments: i64 = self.core.segments().iter().map(|segment| oversize(segment.total.get())).sum();
            let stats = self.core.stats();
            let counted = (stats.oversize_allocations.current, stats.oversize_segments.current);
            ensure(counted == (blocks, segments), || format!("oversize {counted:?}, counted {:?}", (blocks, segments)))?;
        }
        Ok(())
    }
}

fn failed(answer: Result<(), AllocError>) -> Outcome {
    match answer {
        Err(AllocError::Device(error)) => Outcome::Failed(error),
        _ => Outcome::Done,
    }
}
