//! The trial of policies: an allocator under any policy on a witnessed device, next to a record of who holds what, with every
//! policy law checked after every step.
//!
//! The policy decides where a request goes. The trial checks that the allocator did what the policy said, that no memory was
//! lost or damaged, and that out of memory is justified by the policy's own rules.

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
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, Allocator, PoolCheckpoint};
use parkade_sim::{CallName, FaultPlan};

use super::habits::Habits;
use super::step::{Setup, Step};
use super::watched::{Reached, Watched};
use crate::backend::{AnyBackend, AnyDevice, Needs, Simulation, TestDevice, Unable, WitnessedDevice};
use crate::checks::laws_pytorch::trial::Ledger;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::{History, Routing};
use book::Book;

/// Which errors are expected.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Expected {
    /// Driver calls fail by a plan.
    pub(super) faults: bool,
    /// The policy gives invalid answers.
    pub(super) wrong_answers: bool,
}

impl Expected {
    /// Whether neither is.
    fn nothing(self) -> bool {
        self == Expected::default()
    }
}

/// The outcome of a step.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Outcome {
    /// It was done, or there was nothing to apply it to.
    Done,
    /// Out of memory.
    Refused,
    /// The device failed.
    Failed(BackendError),
    /// The policy gave an invalid answer.
    AtFault,
}

/// The allocator, its device, and the expected state.
pub(super) struct Trial {
    core: Allocator<WitnessedDevice<AnyDevice>, Watched, Vec<TraceEntry>>,
    device: WitnessedDevice<AnyDevice>,
    streams: [StreamId; 4],
    expected: Expected,
    habits: Habits,
    setup: Setup,
    /// The page of the device, and its code for "invalid value".
    page: Bytes,
    invalid_value: u32,
    book: Book,
    history: History,
    /// How many trace entries have been followed, and how many there were before the current step.
    followed: usize,
    before_step: usize,
    /// Whether waiting was deferred before the current step.
    was_deferring: bool,
    ledger: Ledger,
    routing: Routing,
    /// The newest checkpoint of each private pool.
    saved: BTreeMap<u64, PoolCheckpoint>,
    /// The device calls of each step, if calls are made to fail.
    calls: Vec<Vec<CallName>>,
    words: u32,
    /// The reserved bytes after the previous step.
    reserved_before: u64,
    script: Vec<String>,
}

impl Trial {
    /// An empty allocator on an idle device.
    ///
    /// # Errors
    /// If there is no such device.
    pub(super) fn new(
        backend: &AnyBackend,
        setup: &Setup,
        policy: Box<dyn Policy>,
        expected: Expected,
        habits: Habits,
    ) -> Result<Trial, Unable> {
        let Setup { timing, places, .. } = *setup;
        // Freeing waits for the device, as the driver does; otherwise the policy would have to.
        let needs = Needs { capacity: Some(Bytes(setup.capacity)), simulation: Simulation { timing, places, free_waits: true } };
        let device = backend.open(&needs)?;
        let (facts, streams) = (backend.facts(), device.streams());
        let device = WitnessedDevice::new(device).claiming(Bytes(setup.capacity));
        let script = vec![format!("# the policy {}, on {setup:?}", policy.name())];
        Ok(Trial {
            core: Allocator::new(device.clone(), Watched::new(policy), Vec::new()),
            device,
            streams,
            expected,
            habits,
            setup: *setup,
            page: facts.page,
            invalid_value: facts.codes.invalid_value,
            book: Book::default(),
            history: History::default(),
            followed: 0,
            before_step: 0,
            was_deferring: false,
            ledger: Ledger::default(),
            routing: Routing::default(),
            saved: BTreeMap::new(),
            calls: Vec::new(),
            words: 0,
            reserved_before: 0,
            script,
        })
    }

    /// Makes driver calls fail by a plan that counts from now.
    pub(super) fn plan_faults(&mut self, plan: FaultPlan) {
        self.expected.faults = true;
        self.device.plan_faults(plan);
    }

    /// How many planned failures have happened so far.
    pub(super) fn faults_fired(&self) -> u64 {
        self.device.faults_fired()
    }

    /// How often the policy did what.
    pub(super) fn reached(&self) -> Reached {
        self.core.policy().notes().reached
    }

    /// The steps so far.
    pub(super) fn script(&self) -> String {
        self.script.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Performs a step, then checks every law.
    ///
    /// # Errors
    /// The first broken law.
    pub(super) fn apply(&mut self, step: Step) -> Result<Outcome, Broken> {
        self.device.begin_operation();
        self.script.push(step.line());
        self.before_step = self.core.observer().len();
        drop(self.device.list_calls());
        self.was_deferring = self.should_defer();
        let outcome = self.carry_out(step)?;
        if self.expected.faults {
            self.calls.push(self.device.calls_so_far().iter().map(|call| call.name).collect());
        }
        match &outcome {
            // A page size that the device does not have is an invalid answer, too; the driver rejects it as an invalid value.
            Outcome::Failed(BackendError::Driver { code, .. }) if self.expected.wrong_answers && *code == self.invalid_value => {}
            Outcome::Failed(error) => {
                ensure(Law::Faults, self.expected.faults, || format!("the device failed without a planned fault: {error}"))?
            }
            Outcome::AtFault => {
                ensure(Law::Answers, self.expected.wrong_answers, || "the policy gave an invalid answer".to_owned())?
            }
            Outcome::Done | Outcome::Refused => {}
        }
        self.check_calls(step)?;
        self.check()?;
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
                self.check()?;
                return self.allocate(bytes, stream);
            }
            Step::Use(which, place) => self.use_by(which % self.book.live.len(), self.streams[place])?,
            Step::Read(which) => self.read(which % self.book.live.len())?,
        }
        Ok(Outcome::Done)
    }

    /// The outcome of an operation that the device or the policy can make fail.
    fn outcome(&self, answer: Result<(), AllocError>) -> Result<Outcome, Broken> {
        match answer {
            Ok(()) => Ok(Outcome::Done),
            Err(AllocError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(AllocError::Policy(fault)) => self.at_fault(&fault),
            Err(error) => Err(Broken::new(Law::Answers, format!("freeing failed: {error}"))),
        }
    }
}
