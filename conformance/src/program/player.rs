//! The player: performs programs on an allocator, with observers that compare what happens.
//!
//! A [`Beside`] runs the reference allocator beside PyTorch's policy. The [`Books`] check what holds under any policy; their
//! programs are careful: they touch their memory, wait wherever they must, and keep PyTorch's rules for callers.

use std::ops::Range;

use parkade::device::BackendError;
use parkade::policy::Policy as _;
use parkade::stats::Stats;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, StreamId};
use parkade::{AllocError, BlockView, CheckpointError, FreeError, PoolCheckpoint, PoolSlot};
use parkade_policies::Named;
use parkade_sim::{CallName, FaultError, FaultPlan, When};

use super::adopt::adopt;
use super::answer::Answer;
use super::beside::Beside;
use super::books::{Books, Expected, is_out_of_memory};
use super::caller::Caller;
use super::contents::Contents;
use super::search::Stopped;
use super::step::{POOLS, Setup, Step};
use super::watched::{Reached, Tested};
use crate::backend::{AnyBackend, Hidden, TestDevice as _, Unable};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::allocator::Saved;
use crate::reference_policies::Choices;

/// Properties of a policy that decide whether its out-of-memory errors are justified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habits {
    /// Whether its rules forbid releasing memory to the device before reporting out of memory.
    pub keeps_memory: bool,
    /// Whether it searches for a free block again after waiting for events ([`Relief::Wait`](parkade::policy::Relief::Wait)). A
    /// policy that does not may report out of memory although the wait has just freed a fitting block.
    pub looks_after_waiting: bool,
}

impl Default for Habits {
    /// Returns the default: the policy releases memory and searches again.
    fn default() -> Habits {
        Habits { keeps_memory: false, looks_after_waiting: true }
    }
}

impl Habits {
    /// Returns the habits that a policy's declaration states.
    pub(crate) fn of(named: &Named) -> Habits {
        Habits { keeps_memory: named.keeps_memory(), looks_after_waiting: named.entry.looks_after_waiting }
    }

    /// PyTorch's habits: after waiting, it releases free segments and asks the device for memory; a part of a segment that
    /// the wait freed is found only by the next request (spec 2.4, step 6e; pytorch#189504).
    pub(crate) const PYTORCH: Habits = Habits { keeps_memory: false, looks_after_waiting: false };
}

/// The outcome of a step.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Outcome {
    /// The step was performed, or there was nothing to apply it to.
    Done,
    /// Out of memory.
    Refused,
    /// The rules forbid it at this time: a pool is abandoned, a graph is captured, or one of PyTorch's asserts fails.
    Forbidden,
    /// The device failed.
    Failed(BackendError),
    /// The policy gave an invalid answer.
    AtFault,
}

/// The result of a finished program.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Finished {
    /// The trace.
    pub(crate) trace: Vec<TraceEntry>,
    /// The statistics at the end.
    pub(crate) stats: Stats,
    /// The device calls made in each step, if calls were made to fail.
    pub(crate) calls: Vec<Vec<CallName>>,
    /// The time of the driver calls in nanoseconds; 0 on a real device, which does not report it.
    pub(crate) driver_ns: u64,
}

/// What to play with: the policy, what is known of it, and what is compared.
pub(crate) struct Cast {
    /// The policy.
    pub(crate) policy: Tested,
    /// The name by which the commands know the policy; `None` if they do not know it.
    pub(crate) name: Option<String>,
    /// Where the policy's answers differ from its reference policy's.
    pub(crate) choices: Choices,
    /// Whether the policy's answers are compared with the allocator's actions.
    pub(crate) is_watched: bool,
    /// Whether the reference allocator runs beside it. The policy must be PyTorch's.
    pub(crate) has_reference: bool,
    /// Whether there are books, and programs are therefore careful.
    pub(crate) has_books: bool,
    /// What is known of the policy.
    pub(crate) habits: Habits,
    /// Whether the policy returns invalid answers.
    pub(crate) is_wrong: bool,
    /// How closely the contents of memory are checked.
    pub(crate) contents: Contents,
}

/// A program in progress.
pub(crate) struct Player {
    pub(crate) caller: Caller,
    pub(crate) beside: Option<Beside>,
    books: Option<Books>,
    choices: Choices,
    habits: Habits,
    expected: Expected,
    contents: Contents,
    /// The device calls made in each step, if calls are made to fail.
    calls: Vec<Vec<CallName>>,
}

impl Player {
    /// Begins a program on an idle device.
    ///
    /// # Errors
    /// If such a device is not available, or segments are adopted wrongly.
    pub(crate) fn new(backend: &AnyBackend, setup: &Setup, cast: Cast) -> Result<Player, Stopped> {
        let Cast { policy, name, choices, is_watched, has_reference, has_books, habits, is_wrong, contents } = cast;
        let mut caller = Caller::new(backend, setup, (policy, name.as_deref()), is_watched)
            .map_err(|unable: Unable| Stopped::Unable(unable))?;
        let mut beside = has_reference.then(|| Beside::new(&caller));
        let expected = Expected { faults: false, wrong_answers: is_wrong };
        if let (Some(beside), Some(seed)) = (&mut beside, setup.adopted) {
            let begin = |broken: Broken| Stopped::Broken(broken.during("adopting segments"), caller.script.text());
            let adopted = adopt(&caller.device, &mut caller.core, &mut beside.reference, caller.streams, seed);
            match adopted {
                Ok(held) => {
                    held.into_iter().for_each(|(allocation, pool, stream)| caller.hold(allocation, false, 0, stream, pool))
                }
                Err(broken) => return Err(begin(broken)),
            }
            beside.compare(&caller).map_err(|broken| Stopped::Broken(broken, caller.script.text()))?;
        }
        let races = contents == Contents::Unchecked;
        let books = has_books.then(|| Books::new(backend.facts(), expected, races));
        Ok(Player { caller, beside, books, choices, habits, expected, contents, calls: Vec::new() })
    }

    /// Returns a clone of the allocator on a copy of its device, with copies of the observers, which follow it from now on.
    ///
    /// # Errors
    /// If the device cannot be copied.
    pub(crate) fn duplicate(&self) -> Result<Player, Unable> {
        let caller = self.caller.duplicate().ok_or_else(|| Unable::Absent("the device cannot be copied".to_owned()))?;
        let (beside, books, choices, calls) = (self.beside.clone(), self.books.clone(), self.choices.clone(), self.calls.clone());
        let Player { habits, expected, contents, .. } = *self;
        Ok(Player { caller, beside, books, choices, habits, expected, contents, calls })
    }

    /// Returns the name of the newest allocation, by which the later ones are known ([`Player::refuse_from`]).
    pub(crate) fn newest_name(&self) -> u64 {
        self.caller.script.newest_name()
    }

    /// Offers the allocator what a clone of it has handed out, after the allocation with this name: it must refuse everything,
    /// whatever it has at the same address.
    ///
    /// # Errors
    /// If it accepts any of it, or changes.
    pub(crate) fn refuse_from(&mut self, clone: &Player, since: u64) -> Result<(), Stopped> {
        let own = clone.caller.held.iter().filter(|held| held.name > since);
        let user = self.caller.streams[1];
        let Player { caller, beside, .. } = self;
        let mut all = own.map(|held| caller.refuse(&held.allocation, user));
        let refused = all.find(Result::is_err).unwrap_or(Ok(()));
        drop(all);
        let checked = refused.and_then(|()| beside.as_ref().map_or(Ok(()), |beside| beside.compare(caller)));
        checked.map_err(|broken| Stopped::Broken(broken.during("offering what a clone has handed out"), self.script()))
    }

    /// Makes driver calls fail according to a plan that counts calls from now on.
    pub(crate) fn plan_faults(&mut self, plan: FaultPlan) {
        self.expected.faults = true;
        if let Some(books) = &mut self.books {
            books.expect_faults();
        }
        self.caller.plan_faults(plan);
    }

    /// Returns how many planned failures have happened so far.
    pub(crate) fn faults_fired(&self) -> u64 {
        self.caller.device.faults_fired()
    }

    /// Returns how often the policy took each kind of action.
    pub(crate) fn reached(&self) -> Reached {
        self.caller.core.policy().notes().reached
    }

    /// Returns the steps performed so far, as a script.
    pub(crate) fn script(&self) -> String {
        self.caller.script.text()
    }

    /// Returns the end of a program at a broken law, with the line of the script at which it broke: a step may be several lines.
    pub(crate) fn stopped(&self, broken: Broken) -> Stopped {
        Stopped::Broken(broken.during(format!("`{}`", self.caller.script.newest_line())), self.script())
    }

    /// Takes the checkpoints that were saved so far, those of the reference allocator with them.
    pub(crate) fn take_checkpoints(&mut self) -> (Vec<PoolCheckpoint>, Vec<Saved>) {
        let saved = self.beside.as_mut().map(|beside| std::mem::take(&mut beside.saved));
        (std::mem::take(&mut self.caller.checkpoints), saved.unwrap_or_default())
    }

    /// Gives the program checkpoints of another allocator.
    pub(crate) fn give_checkpoints(&mut self, (checkpoints, saved): (Vec<PoolCheckpoint>, Vec<Saved>)) {
        self.caller.checkpoints = checkpoints;
        if let Some(beside) = &mut self.beside {
            beside.saved = saved;
        }
    }

    /// Performs steps until one breaks a law.
    ///
    /// # Errors
    /// The first broken law, with the script.
    pub(crate) fn play(&mut self, steps: &[Step]) -> Result<(), Stopped> {
        for &step in steps {
            let played = self.apply(step);
            played.map_err(|broken| self.stopped(broken))?;
        }
        Ok(())
    }

    /// Performs a step, then checks every law. A careful program may leave out a step that would break PyTorch's rules for
    /// callers, or perform more.
    ///
    /// # Errors
    /// The first broken law.
    pub(crate) fn apply(&mut self, step: Step) -> Result<Outcome, Broken> {
        match step {
            Step::Replace(which) => self.replace(which),
            _ if self.books.is_some() => self.apply_carefully(step),
            Step::Use(which, place) => self.perform(Step::Record(which, place)),
            _ => self.perform(step),
        }
    }

    /// Frees an allocation and requests the same size on the same stream.
    fn replace(&mut self, which: usize) -> Result<Outcome, Broken> {
        let Some(place) = self.caller.pick(which) else { return Ok(Outcome::Done) };
        let (bytes, home) = (self.caller.held[place].requested, self.caller.held[place].home);
        if !self.may_free(which) {
            return Ok(Outcome::Done);
        }
        match self.apply(Step::Free(which))? {
            Outcome::Done => {}
            failed => return Ok(failed),
        }
        let stream = self.caller.streams.iter().position(|&stream| stream == home).unwrap_or(0);
        self.apply(Step::Allocate(bytes, stream))
    }

    /// Returns whether a careful program may free an allocation. It may not do so during a capture if another stream used the
    /// allocation during a capture, because that use would be forgotten (spec 3.8) and the memory would be reused too early.
    fn may_free(&self, which: usize) -> bool {
        let is_captured = self.caller.pick(which).is_some_and(|which| self.caller.held[which].is_captured);
        !is_captured || !self.caller.core.heap().is_deferring()
    }

    fn apply_carefully(&mut self, step: Step) -> Result<Outcome, Broken> {
        let Some(books) = &self.books else { return Ok(Outcome::Done) };
        match step {
            Step::Free(which) if !self.may_free(which) => Ok(Outcome::Done),
            Step::Allocate(..) => {
                let waiting = books.pending();
                let owners = books.routing.has_serving().then(|| free_memory(&self.caller));
                let outcome = self.perform(step)?;
                if outcome == Outcome::Refused {
                    self.read_all()?;
                    if self.tells_false_alarms() {
                        self.check_refusal(step, waiting, owners.as_deref())?;
                    }
                }
                Ok(outcome)
            }
            Step::EndGraph(place) if books.routing.captures(self.caller.streams[place]) => Ok(Outcome::Done),
            Step::Use(which, place) => self.use_by(which, place),
            Step::Copy(from, to, place) => self.copy(from, to, place),
            Step::Read(which) => self.read(which),
            // Not set for a pool that does not exist yet: some releases drop the setting together with the pool, others never
            // drop it.
            Step::NoSplit(pool) if POOLS.get(pool).is_none_or(|&pool| self.caller.core.pool_use_count(pool).is_err()) => {
                Ok(Outcome::Done)
            }
            Step::ReleasePool(pool) if books.routing.uses(POOLS[pool]) == 0 => Ok(Outcome::Done),
            Step::Restore(which) if !self.may_restore(which) => Ok(Outcome::Done),
            // The reference allocator judges these.
            Step::RestoreChanged(..) | Step::FailNext(..) => Ok(Outcome::Done),
            Step::ReleaseCached => {
                let outcome = self.perform(step)?;
                self.read_all()?;
                Ok(outcome)
            }
            Step::Apply(place) if is_unsafe(self.caller.setup.text(place)) => Ok(Outcome::Done),
            Step::EndPool(pool) => {
                let (id, was_routed) = (POOLS[pool], books.routing.routed(POOLS[pool]));
                let routed: Vec<StreamId> = was_routed.flatten().into_iter().collect();
                let outcome = self.perform(step)?;
                // `use_mem_pool` then also ends its use of the pool; a capture's graph keeps its use.
                if was_routed == Some(None) && self.caller.core.pool_use_count(id).is_ok_and(|uses| uses > 0) {
                    self.perform(Step::ReleasePool(pool))?;
                }
                self.follow_captures(&routed)?;
                Ok(outcome)
            }
            // Some releases defer waiting forever after a routing has failed.
            Step::BeginPool(pool, _)
                if self.caller.core.policy().profile().counts_failed_routings && books.routing.routed(POOLS[pool]).is_some() =>
            {
                Ok(Outcome::Done)
            }
            Step::BeginPool(..) => {
                let outcome = self.perform(step)?;
                self.follow_captures(&[])?;
                Ok(outcome)
            }
            _ => self.perform(step),
        }
    }

    /// Makes captures follow the routing: the current stream is captured exactly while requests of a single stream are routed, and
    /// the device captures that stream. `routed` are the streams that were routed before.
    fn follow_captures(&mut self, routed: &[StreamId]) -> Result<(), Broken> {
        let captures = self.books.as_ref().is_some_and(|books| books.routing.captures_a_stream());
        self.perform(Step::Capturing(captures))?;
        let captured = self.caller.captured_streams();
        for (place, stream) in self.caller.streams.into_iter().enumerate() {
            let is_routed = self.books.as_ref().is_some_and(|books| books.routing.captures(stream));
            match (captured.contains(&stream), is_routed) {
                (false, true) => self.perform(Step::BeginGraph(place))?,
                (true, false) if routed.contains(&stream) => self.perform(Step::EndGraph(place))?,
                _ => continue,
            };
        }
        Ok(())
    }

    /// A pool that is restored takes back everything it has handed out, as if the program freed it.
    fn may_restore(&self, which: usize) -> bool {
        let checkpoints = &self.caller.checkpoints;
        let Some(checkpoint) = checkpoints.get(which % checkpoints.len().max(1)) else { return false };
        let mut own = self.caller.held.iter().filter(|held| held.pool == checkpoint.pool);
        !self.caller.core.heap().is_deferring() || !own.any(|held| held.is_captured)
    }

    /// Returns whether an unjustified out-of-memory error can be detected. While requests are routed or a graph is
    /// captured, the rules forbid waiting for memory, or releasing memory, that would serve a request.
    fn tells_false_alarms(&self) -> bool {
        let is_routing = self.books.as_ref().is_some_and(|books| books.routing.is_routing());
        // An oversize block does not serve a small request, but a part of it that remains mapped does.
        let has_oversize = self.caller.core.policy().pytorch().is_some_and(|policy| policy.settings.max_split_bytes != u64::MAX);
        // PyTorch's policy asks no stream whether the device captures it.
        let may_be_captured = !self.caller.captured_streams().is_empty() || self.caller.device.hides_captures();
        let is_captured = self.caller.core.policy().pytorch().is_none() && may_be_captured;
        let is_capturing = is_captured || self.caller.core.heap().is_deferring();
        !has_oversize && self.expected.nothing() && !is_routing && !is_capturing
    }

    /// Checks that an out-of-memory error is justified: the policy finds no block even after all work is done and
    /// everything that its rules allow has been released. At most `waiting` blocks were pending; if there were any, a
    /// policy that does not search again after waiting may have missed one. `owners` is the free memory before the request, if a
    /// pool serves when memory runs out.
    fn check_refusal(&mut self, step: Step, waiting: usize, owners: Option<&[FreeMemory]>) -> Result<(), Broken> {
        // As in PyTorch, pools that serve when memory runs out are searched once, before any wait.
        if waiting > 0 && (owners.is_some() || !self.habits.looks_after_waiting) {
            return Ok(());
        }
        let overlooked = self.caller.core.policy().notes().overlooked;
        ensure(Law::NoFalseOutOfMemory, overlooked.is_none(), || overlooked.unwrap_or_default())?;
        let before = self.caller.core.heap().reserved();
        if self.habits.keeps_memory {
            self.perform(Step::CompleteAll)?;
            self.perform(Step::ProcessEvents)?;
        } else {
            self.perform(Step::ReleaseCached)?;
        }
        // Before memory is released, for the request or here, free blocks return to the streams of their segments, where pools that
        // serve would have found them.
        let after = self.caller.core.heap().reserved();
        if owners.is_some_and(|owners| has_changed_owners(owners, &free_memory(&self.caller))) {
            return Ok(());
        }
        let again = self.perform(step)?;
        ensure(Law::NoFalseOutOfMemory, again != Outcome::Done, || {
            format!(
                "the request was refused with at most {waiting} blocks pending and {before} bytes reserved; with nothing pending \
                 and {after} bytes reserved, it was served"
            )
        })
    }

    fn use_by(&mut self, which: usize, place: usize) -> Result<Outcome, Broken> {
        let Some(picked) = self.caller.pick(which) else { return Ok(Outcome::Done) };
        let stream = self.caller.streams[place];
        self.caller.wait_for_last_user(picked, stream)?;
        let outcome = if self.records_uses() { self.perform(Step::Use(which, place))? } else { Outcome::Done };
        self.caller.fill(picked, stream, self.contents)?;
        self.check_races()?;
        Ok(outcome)
    }

    fn copy(&mut self, from: usize, to: usize, place: usize) -> Result<Outcome, Broken> {
        let (Some(source), Some(target)) = (self.caller.pick(from), self.caller.pick(to)) else { return Ok(Outcome::Done) };
        if source == target {
            return Ok(Outcome::Done);
        }
        let stream = self.caller.streams[place];
        for (which, picked) in [(from, source), (to, target)] {
            self.caller.wait_for_last_user(picked, stream)?;
            if self.records_uses() {
                self.perform(Step::Record(which, place))?;
            }
        }
        self.caller.copy(source, target, stream)?;
        self.check_races()?;
        Ok(Outcome::Done)
    }

    fn read(&mut self, which: usize) -> Result<Outcome, Broken> {
        if let Some(which) = self.caller.pick(which) {
            self.caller.read(which, self.contents)?;
        }
        Ok(Outcome::Done)
    }

    /// Reads everything after the allocator may have released pages, if every byte counts.
    fn read_all(&self) -> Result<(), Broken> {
        let is_close = matches!(self.contents, Contents::Stretches(_));
        (0..if is_close { self.caller.held.len() } else { 0 }).try_for_each(|which| self.caller.read(which, self.contents))
    }

    /// The programs whose races are expected do not record their uses.
    fn records_uses(&self) -> bool {
        self.contents != Contents::Unchecked
    }

    fn check_races(&self) -> Result<(), Broken> {
        self.books.as_ref().map_or(Ok(()), |books| books.check_races(&self.caller))
    }

    /// Performs one step, and lets the observers compare.
    fn perform(&mut self, step: Step) -> Result<Outcome, Broken> {
        let Player { caller, beside, books, .. } = self;
        if let Some(books) = books {
            if let Step::Free(which) = step {
                // Only a read shows on a real device whether something was overwritten.
                let is_real = caller.device.steer().insight().is_none();
                let picked = caller.pick(which).filter(|_| is_real);
                picked.map_or(Ok(()), |which| caller.read(which, self.contents))?;
            }
            books.before(caller, step);
        }
        let seen = caller.perform(step)?;
        // Only the reuse by the graph, which careful programs do not have, reports that a question about a capture failed.
        self.expected.faults |= caller.device.faults_fired() > 0 || books.is_none() && caller.device.hides_captures();
        self.choices.check()?;
        if let Some(beside) = beside {
            beside.follow(caller, step, &seen)?;
        }
        caller.take_over(step, &seen);
        caller.end_step();
        if self.expected.faults {
            self.calls.push(self.caller.calls.iter().map(|call| call.name).collect());
        }
        let outcome = self.outcome(step, &seen)?;
        let Player { caller, beside, books, contents, .. } = self;
        if let Some(beside) = beside {
            beside.compare(caller)?;
            caller.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        }
        if let Some(books) = books {
            books.after(caller, step, &seen)?;
            let filled = match &seen {
                Answer::Allocated(_) => 1,
                Answer::Restored(_, allocations) => allocations.len(),
                _ => 0,
            };
            for which in caller.held.len().saturating_sub(filled)..caller.held.len() {
                caller.fill(which, caller.held[which].home, *contents)?;
            }
            books.check_races(caller)?;
        }
        Ok(outcome)
    }

    /// Judges an answer: which errors are expected, and which are the allocator's fault.
    fn outcome(&mut self, step: Step, seen: &Answer) -> Result<Outcome, Broken> {
        let failed = |error: BackendError, player: &Player| match &player.books {
            Some(books) => books.check_device_error(error).map(|()| Outcome::Failed(error)),
            None => ensure(Law::Faults, player.expected.faults, || format!("the device failed without a planned fault: {error}"))
                .map(|()| Outcome::Failed(error)),
        };
        let error = match seen {
            Answer::Refused(error) | Answer::Done(Err(error)) => error,
            Answer::Freed(_, Some(FreeError::Device(error)))
            | Answer::Saved(Err(CheckpointError::Device(error)))
            | Answer::NotRestored(CheckpointError::Device(error)) => return failed(*error, self),
            Answer::Freed(_, Some(error)) => return Err(Broken::new(Law::Accounting, error)),
            Answer::Saved(Err(_)) | Answer::NotRestored(_) => return Ok(Outcome::Forbidden),
            _ => return Ok(Outcome::Done),
        };
        if let AllocError::Device(error) = error {
            return failed(*error, self);
        }
        let capacity = self.caller.setup.capacity;
        let is_deferring = self.caller.core.heap().is_deferring();
        let Some(books) = &mut self.books else { return Ok(Outcome::Refused) };
        let has_reference = self.beside.is_some();
        match (step, error) {
            (_, AllocError::Policy(fault)) => books.check_fault(&self.caller, fault).map(|()| Outcome::AtFault),
            (Step::Allocate(..), error) if is_out_of_memory(error) => {
                books.check_rescue(&self.caller, error).map(|()| Outcome::Refused)
            }
            (Step::Allocate(bytes, _), AllocError::TooLarge { .. }) if self.expected.wrong_answers || bytes > capacity => {
                Ok(Outcome::Refused)
            }
            (Step::Allocate(..), AllocError::Pool(error)) => books.routing.failed_in_pool(*error).map(|()| Outcome::Forbidden),
            // While a graph counts as being captured, the events cannot be waited for.
            (Step::ReleaseCachedPool(_) | Step::ReleaseCached, AllocError::Capturing) if is_deferring => Ok(Outcome::Forbidden),
            // The reference allocator has failed in the same way.
            _ if has_reference => Ok(Outcome::Forbidden),
            (_, error) => Err(Broken::new(Law::NoFalseOutOfMemory, format!("{step:?} failed: {error}"))),
        }
    }

    /// Ends all routings and uses of pools, frees everything if the setup requires it, and checks that nothing is left. Drops
    /// the allocator, and checks the device again.
    ///
    /// # Errors
    /// If anything is left.
    pub(crate) fn finish(mut self) -> Result<Finished, Stopped> {
        let script = self.script();
        let finished = if self.caller.setup.is_finished { self.give_everything_back() } else { Ok(()) };
        let stats = self.caller.core.stats().clone();
        let finished = finished.and_then(|()| self.reset_stats());
        let trace = std::mem::take(self.caller.core.observer_mut());
        let calls = std::mem::take(&mut self.calls);
        // If the very last call failed, the allocator could not do anything more.
        let ended = finished.and_then(|()| self.abandon(None));
        let driver_ns = ended.map_err(|broken| Stopped::Broken(broken.during("returning all memory"), script))?;
        Ok(Finished { trace, stats, calls, driver_ns })
    }

    /// Drops the allocator in its current state, and checks that everything was returned to the device; if a call of a driver
    /// function is to fail during the drop, everything that the failure does not keep there. Returns the time of the driver calls
    /// in nanoseconds.
    ///
    /// # Errors
    /// If anything is left on the device, or memory was taken away while in use.
    pub(crate) fn abandon(self, failing: Option<(CallName, u64)>) -> Result<u64, Broken> {
        let Player { caller, contents, .. } = self;
        let device = caller.device.clone();
        let plan =
            failing.map_or(FaultPlan::none(), |(call, n)| FaultPlan::none().and(When::NthOf(call, n), FaultError::Code(999)));
        let driver_ns = caller.abandon(plan)?;
        // Without the wait that failed, the drop cannot be in order.
        let contents = if device.faults_fired() > 0 { Contents::Unchecked } else { contents };
        let race = device.steer().insight().and_then(|device| device.races().first().map(ToString::to_string));
        let may_race = contents == Contents::Unchecked;
        ensure(Law::NoRace, may_race || race.is_none(), || race.unwrap_or_default())?;
        Ok(driver_ns)
    }

    fn free_all(&mut self) -> Result<(), Broken> {
        while !self.caller.held.is_empty() {
            self.perform(Step::Free(0))?;
        }
        Ok(())
    }

    /// Resets all statistics, whatever the program has done to them.
    fn reset_stats(&mut self) -> Result<(), Broken> {
        [Step::ResetSums, Step::ResetPeaks].into_iter().try_for_each(|step| self.perform(step).map(drop))
    }

    fn give_everything_back(&mut self) -> Result<(), Broken> {
        self.perform(Step::Capturing(false))?;
        if self.caller.device.hides_captures() {
            (0..self.caller.streams.len())
                .try_for_each(|place| self.perform(Step::HideGraph(place, Hidden::Nothing)).map(drop))?;
        }
        (0..self.caller.streams.len()).try_for_each(|place| self.perform(Step::EndGraph(place)).map(drop))?;
        for (pool, id) in POOLS.into_iter().enumerate() {
            self.apply(Step::EndPool(pool))?;
            while self.caller.core.pool_use_count(id).is_ok_and(|uses| uses > 0) {
                self.perform(Step::ReleasePool(pool))?;
            }
        }
        if self.books.is_some() {
            for which in 0..self.caller.held.len() {
                self.read(which)?;
            }
        }
        if self.caller.core.heap().is_deferring() {
            // Uses recorded during a capture are forgotten, so the program waits for them.
            self.perform(Step::CompleteAll)?;
        }
        self.free_all()?;
        self.caller.recall();
        if let Some(beside) = &mut self.beside {
            beside.forget_callbacks();
        }
        self.free_all()?;
        self.apply(Step::CompleteAll)?;
        // At most two planned failures may hit this call. If it fails again after that, the checks below find the
        // leftovers.
        for _ in 0..4 {
            if self.apply(Step::ReleaseCached)? == Outcome::Done && self.books.is_some() {
                break;
            }
        }
        match &self.books {
            Some(_) if self.expected.wrong_answers => Ok(()),
            Some(books) => books.check_nothing_left(&self.caller),
            None => {
                let reserved = self.caller.core.heap().reserved();
                let may_stay = self.expected.faults || self.beside.as_ref().is_some_and(|beside| beside.reference.keeps_memory());
                ensure(Law::Endings, may_stay || reserved == Bytes::ZERO, || format!("{reserved} bytes are still reserved"))
            }
        }
    }
}

/// The addresses of a free block, and its owner.
type FreeMemory = (Range<u64>, (PoolSlot, StreamId));

fn free_memory(caller: &Caller) -> Vec<FreeMemory> {
    let heap = caller.core.heap();
    let blocks = heap.pool_slots().flat_map(|slot| heap.free_blocks(slot).map(move |block| (slot, block)));
    let addresses = |block: &BlockView| block.address.get()..block.address.get() + block.size.get();
    blocks.map(|(slot, block)| (addresses(&block), (slot, block.stream))).collect()
}

/// Returns whether any memory that was free before is free now in another pool, or on another stream.
fn has_changed_owners(before: &[FreeMemory], after: &[FreeMemory]) -> bool {
    let overlap = |one: &Range<u64>, other: &Range<u64>| one.start < other.end && other.start < one.end;
    before.iter().any(|(own, owner)| after.iter().any(|(other, now)| overlap(own, other) && owner != now))
}

/// Settings under which a careful program cannot tell whether memory is reused too early, because the graph orders the uses,
/// or whether a refusal is justified, because the allocator gives up at the driver's first refusal.
fn is_unsafe(text: &str) -> bool {
    text.contains("graph_capture_record_stream_reuse") || text.contains("throw_on_cudamalloc_oom:True")
}

impl Setup {
    /// Returns the same setup, with settings under which a program can be careful.
    pub(crate) fn for_careful_programs(&self) -> Setup {
        let is_unsafe = is_unsafe(self.text(self.settings));
        Setup { settings: if is_unsafe { 0 } else { self.settings }, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use parkade::units::MIB;

    use super::super::search::Stopped;
    use super::super::step::{Setup, Step};
    use crate::backend::AnyBackend;
    use crate::checks::campaign::Subject;
    use crate::law::Law;

    /// The device is at fault, and neither the allocator nor the reference allocator is asked about it.
    #[test]
    fn a_device_that_hands_out_a_range_twice_is_named() {
        for (text, call) in [("", "malloc"), ("expandable_segments:True", "reserve")] {
            for is_careful in [true, false] {
                let setup = Setup::PLAIN.with_settings(text);
                let player = Subject::pytorch().begin_as(&AnyBackend::simulated(), &setup, is_careful);
                let mut player = player.expect("a simulated device");
                player.play(&[Step::Allocate(30 * MIB, 0)]).expect("there is room");
                let first = player.caller.held[0].allocation.address().get();
                player.caller.device.answer_wrongly(first + 2 * MIB);
                let Err(Stopped::Broken(broken, script)) = player.play(&[Step::Allocate(30 * MIB, 1)]) else {
                    panic!("{call}: nothing was found")
                };
                let expected = format!("{call} returned [{:#x}, ", first + 2 * MIB);
                let overlapped = format!("which overlaps [{first:#x}, ");
                let text = broken.to_string();
                assert!(broken.law == Law::Device && text.contains(&expected) && text.contains(&overlapped), "{text}");
                assert_eq!(script.lines().filter(|line| line.starts_with("alloc ")).count(), 2, "{script}");
            }
        }
    }
}
