//! The trial of policies: an allocator under any policy on a witnessed device, who holds what beside it, and after every step
//! every law that no policy may break.
//!
//! Where a request goes is the policy's own business here. What is checked is that the allocator did what the policy said,
//! that nobody lost anything by it, and that "out of memory" is true by the policy's own rules.

mod accounts;
mod book;
mod checkpoints;
mod ending;
mod merging;
mod pools;
mod program;
mod request;

use std::collections::BTreeMap;

use parkade::device::BackendError;
use parkade::policy::Policy;
use parkade::snapshot::SegmentInfo;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocator, PoolCheckpoint};
use parkade_sim::{CallName, FaultPlan};

use super::habits::Habits;
use super::step::{Setup, Step};
use super::watched::{Reached, Watched};
use crate::backend::{Backend, Needs, Simulation, TestDevice, Unable, WitnessedDevice};
use crate::checks::pytorch_laws::trial::Ledger;
use crate::law::{Broken, Law, ensure};
use crate::model::{History, Routing};
use book::Book;

/// What may go wrong that is nobody's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Nothing.
    Honest,
    /// Driver calls fail, by a plan.
    Faults,
    /// The policy gives wrong answers.
    Wrong,
}

/// What a step came to.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Outcome {
    /// It was done, or there was nothing to do it to.
    Done,
    /// No memory.
    Refused,
    /// The device failed.
    Failed(BackendError),
    /// The policy was at fault.
    AtFault,
}

/// The allocator, its device, and what ought to be.
pub(super) struct Trial<D: TestDevice, P: Policy> {
    core: Allocator<WitnessedDevice<D>, Watched<P>, Vec<TraceEntry>>,
    device: WitnessedDevice<D>,
    streams: [StreamId; 4],
    mode: Mode,
    habits: Habits,
    setup: Setup,
    /// The page of the device, and its code for "invalid value".
    page: Bytes,
    invalid_value: u32,
    book: Book,
    history: History,
    /// So much of what the observer was told has been followed; and so much was told before the step under way.
    followed: usize,
    before_step: usize,
    ledger: Ledger,
    routing: Routing,
    /// What private pools were when they were saved last.
    saved: BTreeMap<u64, PoolCheckpoint>,
    /// The calls of the device, step by step, where some of them are to fail.
    calls: Vec<Vec<CallName>>,
    words: u32,
    /// The heap, and what was reserved, after the step before.
    before: Vec<SegmentInfo>,
    reserved_before: u64,
    script: Vec<String>,
}

impl<D: TestDevice, P: Policy> Trial<D, P> {
    /// An allocator that holds nothing, on an idle device.
    ///
    /// # Errors
    /// If there is no such device.
    pub(super) fn new<B: Backend<Device = D>>(
        backend: &B,
        setup: &Setup,
        policy: P,
        mode: Mode,
        habits: Habits,
    ) -> Result<Trial<D, P>, Unable> {
        let Setup { timing, places, .. } = *setup;
        // Giving memory back waits for the device, as the driver does: else a policy would have to.
        let needs = Needs { capacity: Some(Bytes(setup.capacity)), simulation: Simulation { timing, places, free_waits: true } };
        let device = backend.open(&needs)?;
        let (facts, streams) = (backend.facts(), device.streams());
        let device = WitnessedDevice::new(device).claiming(Bytes(setup.capacity));
        let script = vec![format!("# the policy {}, on {setup:?}", policy.name())];
        Ok(Trial {
            core: Allocator::new(device.clone(), Watched::new(policy), Vec::new()),
            device,
            streams,
            mode,
            habits,
            setup: *setup,
            page: facts.page,
            invalid_value: facts.codes.invalid_value,
            book: Book::default(),
            history: History::default(),
            followed: 0,
            before_step: 0,
            ledger: Ledger::default(),
            routing: Routing::default(),
            saved: BTreeMap::new(),
            calls: Vec::new(),
            words: 0,
            before: Vec::new(),
            reserved_before: 0,
            script,
        })
    }

    /// Makes driver calls fail by a plan, whose counts begin now.
    pub(super) fn plan_faults(&mut self, plan: FaultPlan) {
        self.mode = Mode::Faults;
        self.device.plan_faults(plan);
    }

    /// How many planned failures have happened.
    pub(super) fn faults_fired(&self) -> u64 {
        self.device.faults_fired()
    }

    /// How often the policy did what it may do.
    pub(super) fn reached(&self) -> Reached {
        self.core.policy().notes().reached
    }

    /// The steps so far.
    pub(super) fn script(&self) -> String {
        self.script.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Carries out a step, then checks every law.
    ///
    /// # Errors
    /// The first law broken.
    pub(super) fn apply(&mut self, step: Step) -> Result<Outcome, Broken> {
        self.device.begin_operation();
        self.script.push(step.line());
        self.before_step = self.core.observer().len();
        drop(self.device.list_calls());
        let was_deferring = self.should_defer();
        let outcome = self.carry_out(step)?;
        if self.mode == Mode::Faults {
            self.calls.push(self.device.calls_so_far().iter().map(|call| call.name).collect());
        }
        match &outcome {
            // Pages that no device has are a wrong answer too, which the driver finds: "invalid value".
            Outcome::Failed(BackendError::Driver { code, .. }) if self.mode == Mode::Wrong && *code == self.invalid_value => {}
            Outcome::Failed(error) => ensure(Law::Faults, self.mode == Mode::Faults, || {
                format!("the device failed, which nobody had planned: {error}")
            })?,
            Outcome::AtFault => ensure(Law::Answers, self.mode == Mode::Wrong, || "an error of the policy".to_owned())?,
            Outcome::Done | Outcome::Refused => {}
        }
        self.check_calls(step, was_deferring)?;
        self.check(matches!(step, Step::Free(_) | Step::ProcessEvents))?;
        Ok(outcome)
    }

    fn carry_out(&mut self, step: Step) -> Result<Outcome, Broken> {
        match step {
            Step::Allocate(bytes, place) => return self.allocate(bytes, self.streams[place]),
            Step::ProcessEvents => {
                let answer = self.core.process_events().map_err(AllocError::Device);
                return self.outcome(answer);
            }
            Step::ReleaseCached => {
                self.core.policy_mut().begin();
                let answer = self.core.release_cached();
                return self.outcome(answer);
            }
            Step::Limit(hundredths) => {
                let limit = u64::from(hundredths) * (self.setup.capacity / 100);
                self.core.set_limit((hundredths < 100).then_some(Bytes(limit)));
            }
            Step::ResetPeaks => {
                self.core.reset_peak_stats();
                self.ledger.peaks_were_reset();
            }
            Step::ResetSums => {
                self.core.reset_accumulated_stats();
                self.ledger.sums_were_reset(self.core.stats());
            }
            Step::Launch(..) | Step::Advance(_) | Step::CompleteOne(_) | Step::CompleteAll | Step::OthersHold(_) => {
                self.drive(step).map_err(|error| Broken::new(Law::Faults, error))?;
            }
            Step::Pool(step) => return self.pool(step),
            _ if self.book.live.is_empty() => {}
            Step::Free(which) | Step::Replace(which) if !self.may_free(which % self.book.live.len()) => {}
            Step::Free(which) => return self.free(which % self.book.live.len()),
            Step::Replace(which) => {
                let which = which % self.book.live.len();
                let (bytes, stream) = (self.book.live[which].requested, self.book.live[which].home);
                match self.free(which)? {
                    Outcome::Done => {}
                    failed => return Ok(failed),
                }
                self.check(true)?;
                return self.allocate(bytes, stream);
            }
            Step::Use(which, place) => self.use_by(which % self.book.live.len(), self.streams[place])?,
            Step::Read(which) => self.read(which % self.book.live.len())?,
        }
        Ok(Outcome::Done)
    }

    /// What came of an operation that the device or the policy can fail.
    fn outcome(&self, answer: Result<(), AllocError>) -> Result<Outcome, Broken> {
        match answer {
            Ok(()) => Ok(Outcome::Done),
            Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(AllocError::Policy(fault)) => self.at_fault(&fault),
            Err(error) => Err(Broken::new(Law::Answers, format!("giving back says {error}"))),
        }
    }
}
