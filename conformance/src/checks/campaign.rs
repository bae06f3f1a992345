//! Campaigns: random programs on one policy, under every law. The subject is a policy that is created anew for each program.
//!
//! In fixed programs, driver calls are also made to fail, one at a time: whatever the policy has requested, every law holds
//! and nothing leaks.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use parkade::policy::{Policy, PyTorch};
use parkade::settings::Settings;
use parkade::trace::TraceEntry;
use parkade_policies::Named;
use parkade_sim::{CallName, FaultError, FaultPlan, When};
use proptest::prelude::{any, prop};
use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};

use crate::backend::{AnyBackend, EventTiming};
use crate::drawn::runner;
use crate::law::{Broken, Law};
use crate::program::contents::Contents;
use crate::program::draw::careful;
use crate::program::player::{Cast, Habits, Outcome, Player};
use crate::program::search::{Stopped, run_cases};
use crate::program::step::{Setup, Step};
use crate::program::watched::{Reached, Tested};
use crate::reference_policies::{self, Choices, Paired};
use crate::suite::{Effort, Evidence, Trouble, Verdict};

/// A policy under test. Its type is erased, so that the checks are compiled once.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(super) name: String,
    /// Whether the commands know the policy by this name.
    is_named: bool,
    make: Make,
    /// Creates the reference policy beside it.
    reference: Reference,
    habits: Habits,
    /// Whether the policy returns invalid answers.
    is_wrong: bool,
    /// Whether the reference allocator runs beside it.
    has_reference: bool,
    /// How closely the contents of memory are checked.
    contents: Contents,
    /// The policy's seeds for runs in which driver calls are made to fail.
    pub(super) fault_seeds: Vec<u64>,
}

/// Creates a policy for a setup.
type Make = Arc<dyn Fn(&Setup) -> Tested + Send + Sync>;

/// Creates a reference policy for a setup, if there is one.
type Reference = Arc<dyn Fn(&Setup) -> Option<Box<dyn Policy>> + Send + Sync>;

impl Subject {
    /// Returns a policy by its name.
    pub(super) fn of(named: &Named) -> Subject {
        let made = named.clone();
        let name = named.name.to_string();
        let subject = Subject::new(&*named.name, move |_| made.make()).with(Habits::of(named));
        Subject { is_named: true, ..subject }.beside(move |_| reference_policies::reference(&name))
    }

    /// Returns whether there is a reference policy with the subject's name.
    pub(super) fn has_reference_policy(&self) -> bool {
        reference_policies::reference(&self.name).is_some()
    }

    /// Returns the policy that `make` creates from a seed. Only randomly assembled policies use the
    /// seed.
    pub(super) fn new<P: Policy + 'static>(name: impl Into<String>, make: impl Fn(u64) -> P + Send + Sync + 'static) -> Subject {
        Subject {
            name: name.into(),
            is_named: false,
            make: Arc::new(move |setup| Tested::Other(Box::new(make(setup.policy_seed)))),
            reference: Arc::new(|_| None),
            habits: Habits::default(),
            is_wrong: false,
            has_reference: false,
            contents: Contents::Ends,
            fault_seeds: vec![0],
        }
    }

    /// Returns a policy that can be cloned.
    pub(super) fn clonable<P: Policy + Clone + 'static>(
        name: impl Into<String>,
        make: impl Fn() -> P + Send + Sync + 'static,
    ) -> Subject {
        let subject = Subject::new(name, |_| PyTorch::new(Settings::default()));
        Subject { make: Arc::new(move |_| Tested::Clonable(Box::new(make()))), ..subject }
    }

    /// Returns PyTorch's policy, with the release and the settings of the setup, beside the reference allocator.
    pub(crate) fn pytorch() -> Subject {
        let make = |setup: &Setup| {
            let profile = setup.profile();
            let settings = Settings::from_environment_as(&profile.dialect, setup.text(setup.settings));
            Tested::PyTorch(Box::new(PyTorch::of(profile, settings.expect("the strings in the table are valid"))))
        };
        Subject {
            name: "pytorch".to_owned(),
            is_named: true,
            make: Arc::new(make),
            reference: Arc::new(|_| None),
            habits: Habits::PYTORCH,
            is_wrong: false,
            has_reference: true,
            contents: Contents::Ends,
            fault_seeds: vec![0],
        }
    }

    /// Returns the same subject, created with each of these seeds when driver calls are made to
    /// fail.
    pub(super) fn failing_with(self, fault_seeds: Vec<u64>) -> Subject {
        Subject { fault_seeds, ..self }
    }

    /// Returns the same subject, whose choices are compared with those of a reference policy.
    pub(super) fn beside(self, make: impl Fn(&Setup) -> Option<Box<dyn Policy>> + Send + Sync + 'static) -> Subject {
        Subject { reference: Arc::new(make), ..self }
    }

    /// Returns the same subject with these habits.
    pub(super) fn with(self, habits: Habits) -> Subject {
        Subject { habits, ..self }
    }

    /// Returns the same subject, whose programs check their contents in this way.
    pub(super) fn with_contents(self, contents: Contents) -> Subject {
        Subject { contents, ..self }
    }

    /// Returns the same subject, expected to give invalid answers.
    pub(super) fn expected_wrong(self) -> Subject {
        Subject { is_wrong: true, ..self }
    }

    /// Begins a careful program.
    pub(super) fn begin(&self, backend: &AnyBackend, setup: &Setup) -> Result<Player, Stopped> {
        self.begin_as(backend, setup, true)
    }

    /// Begins a careful program, or a wild one.
    pub(crate) fn begin_as(&self, backend: &AnyBackend, setup: &Setup, is_careful: bool) -> Result<Player, Stopped> {
        let setup = if self.has_reference && is_careful { setup.for_careful_programs() } else { *setup };
        let (make, reference) = (Arc::clone(&self.make), Arc::clone(&self.reference));
        let both = move || match (make(&setup), reference(&setup)) {
            (Tested::Other(policy), Some(reference)) => Some((policy, reference)),
            _ => None,
        };
        let (policy, choices) = match Paired::new(both) {
            Some((paired, choices)) => (Tested::Other(Box::new(paired)), choices),
            None => ((self.make)(&setup), Choices::default()),
        };
        let cast = Cast {
            policy,
            name: self.is_named.then(|| self.name.clone()),
            choices,
            is_watched: is_careful && !self.has_reference,
            has_reference: self.has_reference,
            has_books: is_careful,
            habits: self.habits,
            is_wrong: self.is_wrong,
            contents: self.contents,
        };
        Player::new(backend, &setup, cast)
    }

    /// Runs a program to its end and keeps the resulting state.
    pub(super) fn play(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<Player, Stopped> {
        let mut player = self.begin(backend, setup)?;
        player.play(steps)?;
        Ok(player)
    }

    /// Runs a program and returns all memory to the device. Returns how often the policy took each kind of action.
    pub(super) fn whole_run(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<Reached, Stopped> {
        let player = self.play(backend, setup, steps)?;
        let reached = player.reached();
        Ok(Reached { driver_ns: player.finish()?.driver_ns, ..reached })
    }

    /// Checks that all runs of a program are identical: one by itself, and then two that take turns, step by step. A policy
    /// with state outside of itself finds the state of the other run there.
    fn repeated(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<(), Stopped> {
        let alone = self.play(backend, setup, steps)?;
        let script = alone.script();
        let expected = alone.finish()?;
        let mut pair = [self.begin(backend, setup)?, self.begin(backend, setup)?];
        for step in steps {
            pair.iter_mut().try_for_each(|player| player.play(std::slice::from_ref(step)))?;
        }
        for player in pair {
            let run = player.finish()?;
            let place = (0..run.trace.len().max(expected.trace.len())).find(|&at| run.trace.get(at) != expected.trace.get(at));
            let seen = match place {
                Some(place) => {
                    let [before, now] =
                        [&expected.trace, &run.trace].map(|trace| trace.get(place).map_or("no entry".to_owned(), entry));
                    format!("entry {place} of the trace was {before}, and when the program ran again, it was {now}")
                }
                None if run == expected => continue,
                None => {
                    "the trace is the same when the program runs again, but the statistics or the driver calls differ".to_owned()
                }
            };
            let seen = format!("the same program led to different decisions: {seen}");
            return Err(Stopped::Broken(Broken::new(Law::Determinism, seen), script));
        }
        Ok(())
    }
}

/// In a run of the entire suite, each law gets this many random sequences for every sequence that a policy gets.
const SHARE: u32 = 10;
/// The share of the effort that is spent on policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// All of the effort, because the policies are under test.
    Whole,
    /// Part of the effort, in a run of the entire suite.
    Part,
}

impl Share {
    pub(super) fn of(self, effort: &Effort) -> Effort {
        match self {
            Share::Whole => *effort,
            Share::Part => Effort { cases: effort.cases.div_ceil(SHARE), ..*effort },
        }
    }
}

/// The maximum number of steps of a program.
const LONGEST: usize = 100;

/// Checks every law after every step, and at the end.
pub(super) fn every_law(subject: &Subject, backend: &AnyBackend, effort: &Effort, timing: EventTiming) -> Verdict {
    let total = Cell::new(Reached::default());
    let evidence = run_cases(effort, 0x901c, careful(timing, LONGEST), |(setup, steps)| {
        total.set(total.get().and(subject.whole_run(backend, setup, steps)?));
        Ok(steps.len() as u64)
    })?;
    let Reached { reuses, transfers, remaps, releases, refusals, private, loads, driver_ns } = total.get();
    if subject.has_reference {
        return Ok(Evidence { measured: format!("{}{}", evidence.measured, driver_time(driver_ns)), ..evidence });
    }
    let reached = format!(
        "{reuses} reuses, {refusals} refusals, {transfers} transfers, {remaps} remaps, {releases} releases, {private} \
         requests to private pools, {loads} loads{}",
        driver_time(driver_ns)
    );
    Ok(Evidence { measured: format!("{}: {reached}", evidence.measured), ..evidence })
}

/// Returns the time of the driver calls as text, or an empty text if the device does not report it.
fn driver_time(driver_ns: u64) -> String {
    if driver_ns == 0 { String::new() } else { format!("; driver {} ms", driver_ns / 1_000_000) }
}

/// Describes an entry of a trace.
fn entry(entry: &TraceEntry) -> String {
    let TraceEntry { action, address, size, stream, .. } = *entry;
    format!("{} of {size} bytes at {address:#x} on stream {stream}", action.name())
}

/// Checks that the same program leads to the same decisions, also beside a second one.
pub(super) fn determinism(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    run_cases(&a_part(effort), 0x901d, careful(EventTiming::Seeded(0), LONGEST), |(setup, steps)| {
        subject.repeated(backend, setup, steps).map(|()| steps.len() as u64)
    })
}

/// The calls that may fail while an allocator is dropped.
const DROPPING: [CallName; 3] = [CallName::Free, CallName::StreamSynchronize, CallName::MemRelease];

/// Checks that an allocator returns all its memory whenever it is dropped, also if a call fails then, and waits before for those
/// who may still use it.
pub(super) fn dropped(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    let strategy = (careful(EventTiming::Seeded(0), LONGEST), 0..2 * DROPPING.len(), 1..4_u64);
    let strategy = strategy.prop_map(|((setup, steps), place, n)| (setup, steps, (place, n)));
    run_cases(&a_part(effort), 0x901e, strategy, |(setup, steps, (place, n))| {
        let player = subject.play(backend, setup, steps)?;
        let script = player.script();
        player
            .abandon(DROPPING.get(*place).map(|&call| (call, *n)))
            .map_err(|broken| Stopped::Broken(broken.during("dropped"), script))?;
        Ok(steps.len() as u64)
    })
}

/// Checks clones of an allocator, made in any state, and clones of clones: each goes on as its original does, and originals refuse
/// what only their clones have handed out. A driver call may fail at any time. The device of the programs is simulated, because
/// only such a device can be copied with the allocator.
pub(super) fn clones(subject: &Subject, effort: &Effort, programs: BoxedStrategy<Program>, is_careful: bool) -> Verdict {
    let failing = prop::option::weighted(0.2, 1..200_u64);
    let strategy = (programs, failing, prop::collection::vec(any::<u8>(), 1..4));
    let strategy = strategy
        .prop_map(|((setup, steps), failing, places)| (Setup { has_callbacks: false, ..setup }, steps, (failing, places)));
    run_cases(&a_part(effort), 0x9021, strategy, |(setup, steps, (failing, places))| {
        let mut first = subject.begin_as(&AnyBackend::simulated(), setup, is_careful)?;
        if let Some(n) = *failing {
            first.plan_faults(FaultPlan::none().and(When::Nth(n), ILLEGAL_ADDRESS));
        }
        let mut places: Vec<usize> = places.iter().map(|&place| usize::from(place) % (steps.len() + 1)).collect();
        places.sort_unstable();
        family(first, steps, &places)
    })
}

/// Plays a program with a clone at each of these places: the first is a clone of the given allocator, and each of the others one of
/// the clone before it.
fn family(first: Player, steps: &[Step], places: &[usize]) -> Result<u64, Stopped> {
    let mut family = vec![(first, 0, 0)];
    for &place in places {
        let Some((original, from, _)) = family.last_mut() else { break };
        original.play(&steps[*from..place])?;
        *from = place;
        let copy = (original.duplicate()?, place, original.newest_name());
        family.push(copy);
    }
    // The newest clone ends first, so its originals find what they share with it in a different state.
    for (player, from, _) in family.iter_mut().rev() {
        player.play(&steps[*from..])?;
    }
    for place in 1..family.len() {
        let (originals, clones) = family.split_at_mut(place);
        let (clone, _, since) = &clones[0];
        originals.iter_mut().try_for_each(|(original, ..)| original.refuse_from(clone, *since))?;
    }
    let (script, count) = (family[0].0.script(), family.len());
    let mut ends = Vec::new();
    // An original is dropped before its clones end.
    for (player, ..) in family {
        ends.push(player.finish()?);
    }
    let differs = ends.windows(2).position(|pair| pair[0] != pair[1]);
    let seen = |place: usize| {
        let [original, clone] = [&ends[place], &ends[place + 1]];
        let at = (0..original.trace.len().max(clone.trace.len())).find(|&at| original.trace.get(at) != clone.trace.get(at));
        let [own, other] = [original, clone].map(|end| at.and_then(|at| end.trace.get(at)).map_or("no entry".to_owned(), entry));
        format!(
            "clone {} of {count} did not go on as its original did, whose first different entry of the trace is {own}, and the clone's \
             {other}: a policy's clone must have all of its state, and share none",
            place + 1
        )
    };
    match differs {
        Some(place) => Err(Stopped::Broken(Broken::new(Law::Determinism, seen(place)), script)),
        None => Ok((steps.len() * count) as u64),
    }
}

fn a_part(effort: &Effort) -> Effort {
    Effort { cases: effort.cases.div_ceil(4), ..*effort }
}

/// A code that the allocator has no rule for ("an illegal memory access was encountered").
const ILLEGAL_ADDRESS: FaultError = FaultError::Code(700);
/// The number of a program's calls that fail in each way in a short run, on the simulated device and on a real one.
const FEWEST_POINTS: usize = 12;
const FEWEST_REAL_POINTS: usize = 1;

/// Returns the failures for the call with this number.
type Plan = fn(u64) -> Vec<(When, FaultError)>;

/// One call fails, one reports out of memory, and two in a row fail.
const PLANS: [Plan; 3] = [
    |n| vec![(When::Nth(n), ILLEGAL_ADDRESS)],
    |n| vec![(When::Nth(n), FaultError::OutOfMemory)],
    |n| vec![(When::Nth(n), ILLEGAL_ADDRESS), (When::Nth(n + 1), ILLEGAL_ADDRESS)],
];

/// Checks that every law holds after the n-th driver call fails, for n = 1, 2, ...
pub(super) fn every_call(subject: &Subject, backend: &AnyBackend, effort: &Effort, programs: Vec<Program>) -> Verdict {
    let (mut failures, mut operations, mut driver_ns) = (0, 0, 0);
    let seeds = subject.fault_seeds.len();
    // Each policy starts at a different point, so that in a short run over all policies different calls fail under
    // each.
    let shift = subject.name.bytes().map(usize::from).sum::<usize>();
    for (place, (setup, steps)) in programs.iter().enumerate() {
        // Policies of the same kind share the work: each is tested with one way of failing.
        let plans = if seeds > 1 && place < seeds { &PLANS[place % 3..][..1] } else { &PLANS[..] };
        let untouched = run(subject, backend, setup, steps, &[]).map_err(|stopped| trouble(stopped, &[]))?;
        let points = points(&untouched.calls);
        let cases = effort.cases as usize;
        let most = if backend.is_simulated() { cases.max(FEWEST_POINTS) } else { (cases / 4).max(FEWEST_REAL_POINTS) };
        for (number, plan) in plans.iter().enumerate() {
            for n in spread(&points, most, shift + place + number) {
                let faults = plan(n);
                let ran = run(subject, backend, setup, steps, &faults).map_err(|stopped| trouble(stopped, &faults))?;
                operations += steps.len() as u64;
                failures += ran.fired;
                driver_ns += ran.driver_ns;
            }
        }
    }
    if failures == 0 {
        return Err(Trouble::fail("no program makes a driver call that could fail"));
    }
    let measured = format!("{failures} failures in {} programs{}", programs.len(), driver_time(driver_ns));
    Ok(Evidence { measured, operations, text: String::new() })
}

/// Checks every law in random programs in which one call fails, anywhere and in any way.
pub(super) fn any_call(subject: &Subject, backend: &AnyBackend, effort: &Effort, timing: EventTiming) -> Verdict {
    let strategy = (careful(timing, 60), any::<u32>(), 0..PLANS.len());
    let strategy = strategy.prop_map(|((setup, steps), place, plan)| (setup, steps, (place, plan)));
    run_cases(effort, 0x9020, strategy, |(setup, steps, (place, plan))| {
        let points = points(&run(subject, backend, setup, steps, &[])?.calls);
        let Some(&n) = points.get(*place as usize % points.len().max(1)) else { return Ok(0) };
        let faults = PLANS[*plan](n);
        match run(subject, backend, setup, steps, &faults) {
            Ok(_) => Ok(steps.len() as u64),
            Err(Stopped::Broken(broken, script)) => Err(Stopped::Broken(broken, planned(&faults, &script))),
            Err(unable) => Err(unable),
        }
    })
}

/// A program and its setup.
pub(super) type Program = (Setup, Vec<Step>);

/// Returns random programs for runs in which driver calls fail: one for every two hundred in a campaign.
pub(super) fn drawn_programs(effort: &Effort) -> Vec<Program> {
    let mut runner = runner(effort.cases, effort.seed, 0x901f);
    let strategy = careful(EventTiming::Seeded(0), 40);
    (0..effort.cases / 200).filter_map(|_| strategy.new_tree(&mut runner).ok().map(|tree| tree.current())).collect()
}

/// Returns the numbers, counted from 1, of the calls to fail: for each step and each call name, the first, a middle and
/// the last call. The other calls are mostly repetitions for more pages.
fn points(calls: &[Vec<CallName>]) -> Vec<u64> {
    let (mut points, mut before) = (Vec::new(), 0);
    for step in calls {
        let mut places: BTreeMap<CallName, Vec<u64>> = BTreeMap::new();
        for (name, place) in step.iter().zip(before + 1..) {
            places.entry(*name).or_default().push(place);
        }
        points.extend(places.values().flat_map(|own| [own[0], own[own.len() / 2], own[own.len() - 1]]));
        before += step.len() as u64;
    }
    points.sort_unstable();
    points.dedup();
    points
}

/// Returns at most `most` of the points, evenly spread; the shift selects which ones.
fn spread(points: &[u64], most: usize, shift: usize) -> Vec<u64> {
    if points.len() <= most {
        return points.to_vec();
    }
    let first = shift * points.len() / most / 4 % points.len().div_ceil(most);
    (0..most).filter_map(|number| points.get(first + number * points.len() / most).copied()).collect()
}

/// The outcome of a run with planned failures.
pub(super) struct Ran {
    /// The number of failures.
    pub(super) fired: u64,
    /// The steps that reported one, in order.
    pub(super) told: Vec<String>,
    /// The steps that were performed.
    pub(super) script: String,
    /// The device calls made in each step.
    calls: Vec<Vec<CallName>>,
    /// The time of these calls in nanoseconds, if the device reports it.
    driver_ns: u64,
}

/// Runs a program with these planned failures.
pub(super) fn run(
    subject: &Subject,
    backend: &AnyBackend,
    setup: &Setup,
    steps: &[Step],
    faults: &[(When, FaultError)],
) -> Result<Ran, Stopped> {
    let mut player = subject.begin(backend, setup)?;
    player.plan_faults(faults.iter().fold(FaultPlan::none(), |plan, &(when, error)| plan.and(when, error)));
    let mut told = Vec::new();
    for (number, &step) in steps.iter().enumerate() {
        match player.apply(step) {
            Ok(Outcome::Failed(error)) => told.push(format!("step {number}, {step:?}: {error}")),
            Ok(_) => {}
            Err(broken) => return Err(player.stopped(broken)),
        }
    }
    let (fired, script) = (player.faults_fired(), player.script());
    if told.len() as u64 > fired && !subject.is_wrong {
        return Err(untold(fired, &told, script));
    }
    let finished = player.finish()?;
    Ok(Ran { fired, told, script, calls: finished.calls, driver_ns: finished.driver_ns })
}

/// Returns the failure of a run in which a wrong number of steps reported the failed calls.
pub(super) fn untold(fired: u64, told: &[String], script: String) -> Stopped {
    let seen = format!("{fired} driver calls failed, but {} steps reported a failure: {told:?}", told.len());
    Stopped::Broken(Broken::new(Law::Faults, seen), script)
}

/// Returns a script that begins with the planned failures, which `parkade ops` cannot cause.
fn planned(faults: &[(When, FaultError)], script: &str) -> String {
    format!("# planned failures: {faults:?}\n{script}")
}

/// Returns the failure of a run with planned failures.
pub(super) fn trouble(stopped: Stopped, faults: &[(When, FaultError)]) -> Trouble {
    match stopped {
        Stopped::Unable(unable) => unable.into(),
        Stopped::Broken(broken, script) => {
            Trouble::Fail { reason: format!("{faults:?}: {broken}"), script: Some(planned(faults, &script)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_calls_alike_three_fail() {
        let (create, map) = (CallName::MemCreate, CallName::MemMap);
        let calls = [vec![create, create, create, create, map], Vec::new(), vec![map, create]];
        assert_eq!(points(&calls), [1, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_part_of_the_points_is_spread_over_all_of_them() {
        let points: Vec<u64> = (1..=100).collect();
        assert_eq!(spread(&points, 100, 7), points);
        for shift in 0..50 {
            let part = spread(&points, 12, shift);
            assert_eq!(part.len(), 12, "{shift}");
            assert!(part[0] <= 9 && part[11] > 91 && part.windows(2).all(|pair| pair[1] - pair[0] <= 9), "{shift}: {part:?}");
        }
        let seen: std::collections::BTreeSet<u64> = (0..50).flat_map(|shift| spread(&points, 12, shift)).collect();
        assert!(seen.len() > 90, "{} of 100 points are reached by at least one policy", seen.len());
    }
}
