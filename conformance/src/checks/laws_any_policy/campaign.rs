//! Runs programs on one policy. The subject is a named policy that is created anew for each program. Random programs
//! are drawn, run under every law, and shrunk if one of them breaks a law.
//!
//! Proptest shrinks a program's values and length within a budget and may leave steps that the failure does not need;
//! those are removed afterwards.
//!
//! In fixed programs, driver calls are also made to fail, one at a time: whatever the policy has requested, every law holds
//! and nothing leaks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use parkade::policy::Policy;
use parkade_policies::Named;
use parkade_sim::{CallName, FaultError, FaultPlan, When};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{TestCaseError, TestError};

use super::programs::{Setup, Step, captures, every_rung, programs, stitching};
use super::trial::{Expected, Habits, Outcome, Trial};
use crate::backend::{AnyBackend, EventTiming, Unable};
use crate::law::{Broken, Law, ensure};
use crate::program::search::{hunt, program_line, runner};
use crate::program::watched::Reached;
use crate::suite::{Effort, Evidence, Trouble, Verdict};

/// A named policy. Its type is erased, so that the checks are compiled once.
pub(super) struct Subject {
    pub(super) name: String,
    make: Arc<dyn Fn(u64) -> Box<dyn Policy> + Send + Sync>,
    /// The errors that are expected from the policy.
    expected: Expected,
    habits: Habits,
    /// The policy's seeds for runs in which driver calls are made to fail.
    pub(super) fault_seeds: Vec<u64>,
}

impl Clone for Subject {
    fn clone(&self) -> Subject {
        let (name, make, fault_seeds) = (self.name.clone(), Arc::clone(&self.make), self.fault_seeds.clone());
        Subject { name, make, expected: self.expected, habits: self.habits, fault_seeds }
    }
}

/// The reason why a program stopped early.
pub(super) enum Stopped {
    /// A law was broken, with the script that reproduces it.
    Broken(Broken, String),
    /// There is no device for the program.
    Unable(Unable),
}

impl Subject {
    /// Returns a policy by its name.
    pub(super) fn of(named: &Named) -> Subject {
        let made = named.clone();
        Subject::new(&*named.name, move |_| made.make()).with(Habits::of(named))
    }

    /// Returns the policy that `make` creates from a seed. Only randomly assembled policies use the
    /// seed.
    pub(super) fn new<P: Policy + 'static>(name: impl Into<String>, make: impl Fn(u64) -> P + Send + Sync + 'static) -> Subject {
        Subject {
            name: name.into(),
            make: Arc::new(move |seed| Box::new(make(seed))),
            expected: Expected::default(),
            habits: Habits::default(),
            fault_seeds: vec![0],
        }
    }

    /// Returns the same subject, created with each of these seeds when driver calls are made to
    /// fail.
    pub(super) fn failing_with(self, fault_seeds: Vec<u64>) -> Subject {
        Subject { fault_seeds, ..self }
    }

    /// Returns the same subject with these habits.
    pub(super) fn with(self, habits: Habits) -> Subject {
        Subject { habits, ..self }
    }

    /// Returns the same subject, expected to give invalid answers.
    pub(super) fn expected_wrong(self) -> Subject {
        Subject { expected: Expected { wrong_answers: true, ..self.expected }, ..self }
    }

    pub(super) fn trial(&self, backend: &AnyBackend, setup: &Setup) -> Result<Trial, Stopped> {
        Trial::new(backend, setup, (self.make)(setup.policy_seed), self.expected, self.habits).map_err(Stopped::Unable)
    }

    /// Runs a program to its end and keeps the resulting state.
    fn play(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<Trial, Stopped> {
        let mut trial = self.trial(backend, setup)?;
        for (number, &step) in steps.iter().enumerate() {
            if let Err(broken) = trial.apply(step) {
                return Err(Stopped::Broken(broken.during(format!("step {number}, {step:?}")), trial.script()));
            }
        }
        Ok(trial)
    }

    /// Runs a program and returns all memory to the device. Returns how often the policy took each kind of action.
    pub(super) fn whole_run(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<Reached, Stopped> {
        let trial = self.play(backend, setup, steps)?;
        let (script, reached) = (trial.script(), trial.reached());
        let finished = trial.finish().map_err(|broken| Stopped::Broken(broken.during("returning all memory"), script))?;
        Ok(Reached { driver_ns: finished.driver_ns, ..reached })
    }

    /// Checks that two runs of a program are identical.
    fn twice(&self, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<(), Stopped> {
        let run = || -> Result<_, Stopped> {
            let trial = self.play(backend, setup, steps)?;
            let script = trial.script();
            let finished = trial.finish().map_err(|broken| Stopped::Broken(broken, script.clone()))?;
            Ok((finished, script))
        };
        let ((first, script), (second, _)) = (run()?, run()?);
        if first == second {
            return Ok(());
        }
        let place = first.trace.iter().zip(&second.trace).position(|(a, b)| a != b);
        let pair = place.map(|place| (place, &first.trace[place], &second.trace[place]));
        let seen = format!(
            "two runs of the same program differ: first different entries {pair:?}, {} and {} entries in all; if the entries \
             agree, the statistics differ",
            first.trace.len(),
            second.trace.len()
        );
        Err(Stopped::Broken(Broken::new(Law::Determinism, seen), script))
    }
}

/// The budget for shrinking a failing program's values, as a number of performed steps. Afterwards, unneeded steps are
/// removed.
const SHRINK_STEPS: usize = 5000;
/// The maximum number of steps of a program.
const LONGEST: usize = 100;

/// Checks every law after every step, and at the end.
pub(super) fn every_law(subject: &Subject, backend: &AnyBackend, effort: &Effort, timing: EventTiming) -> Verdict {
    let total = Cell::new(Reached::default());
    let evidence = random(effort, 0x901c, timing, |setup, steps| {
        let reached = subject.whole_run(backend, setup, steps)?;
        total.set(total.get().and(reached));
        Ok(())
    })?;
    let Reached { reuses, transfers, remaps, releases, refusals, private, loads, driver_ns } = total.get();
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

/// Checks that the same program leads to the same decisions.
pub(super) fn determinism(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    random(&a_part(effort), 0x901d, EventTiming::Seeded(0), |setup, steps| subject.twice(backend, setup, steps))
}

/// Checks that an allocator returns all its memory whenever it is dropped.
pub(super) fn dropped(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    random(&a_part(effort), 0x901e, EventTiming::Seeded(0), |setup, steps| {
        let trial = subject.play(backend, setup, steps)?;
        let script = trial.script();
        trial.abandon().map(drop).map_err(|broken| Stopped::Broken(broken.during("dropped"), script))
    })
}

fn a_part(effort: &Effort) -> Effort {
    Effort { cases: effort.cases.div_ceil(4), ..*effort }
}

fn random(effort: &Effort, salt: u64, timing: EventTiming, one: impl Fn(&Setup, &[Step]) -> Result<(), Stopped>) -> Verdict {
    let failure = match search(effort, salt, timing, &one) {
        Ok(operations) => {
            let measured = format!("{operations} steps in {} programs", effort.cases);
            return Ok(Evidence { operations, measured, text: String::new() });
        }
        Err(Failure::Unable(reason)) => return Err(reason.into()),
        Err(Failure::Other(reason)) => return Err(Trouble::fail(reason)),
        Err(Failure::Program(failure)) => failure,
    };
    // Run the smallest program again: on a real device the failure may depend on timing.
    let (reason, script) = match one(&failure.setup, &failure.steps) {
        Err(Stopped::Broken(again, script)) => (again.to_string(), script),
        _ => (format!("seen only once: {}", failure.broken), failure.script),
    };
    Err(Trouble::Fail { reason, script: Some(script + &program_line(&(failure.setup, failure.steps))) })
}

/// The reason why a search ended early.
pub(super) enum Failure {
    /// There is no device for a program.
    Unable(Unable),
    /// A program breaks a law.
    Program(Box<Failing>),
    /// No programs could be drawn.
    Other(String),
}

/// Returns the smallest failing program found.
pub(super) struct Failing {
    pub(super) setup: Setup,
    pub(super) steps: Vec<Step>,
    /// The message of the last failing run during shrinking, and its script.
    broken: String,
    script: String,
}

/// Runs random programs until one breaks a law, then shrinks it. Returns the number of steps performed if no law is broken.
pub(super) fn search(
    effort: &Effort,
    salt: u64,
    timing: EventTiming,
    one: &impl Fn(&Setup, &[Step]) -> Result<(), Stopped>,
) -> Result<u64, Failure> {
    let (operations, unable, broken) = (Cell::new(0), RefCell::new(None), RefCell::new(None));
    let spent = Cell::new(0);
    let outcome = hunt(effort, salt, &programs(timing, LONGEST), |(setup, steps)| {
        if broken.borrow().is_some() {
            spent.set(spent.get() + steps.len());
        }
        // Programs beyond the budget count as passing, so that the smallest failing one so far is
        // kept.
        if spent.get() > SHRINK_STEPS {
            return Ok(());
        }
        match one(&setup, &steps) {
            Ok(()) => {
                operations.set(operations.get() + steps.len() as u64);
                Ok(())
            }
            Err(Stopped::Unable(reason)) => {
                unable.replace(Some(reason));
                Ok(())
            }
            Err(Stopped::Broken(found, script)) => {
                let message = found.to_string();
                broken.replace(Some((found, script)));
                Err(TestCaseError::fail(message))
            }
        }
    });
    if let Some(reason) = unable.take() {
        return Err(Failure::Unable(reason));
    }
    match (outcome, broken.take()) {
        (Ok(()), _) => Ok(operations.get()),
        (Err(TestError::Fail(_, (setup, steps))), Some((found, script))) => {
            // If a different law broke, it would be a different failure.
            let fails = |steps: &[Step]| matches!(one(&setup, steps), Err(Stopped::Broken(again, _)) if again.law == found.law);
            let steps = without_needless(steps, fails);
            Err(Failure::Program(Box::new(Failing { setup, steps, broken: found.to_string(), script })))
        }
        (Err(error), _) => Err(Failure::Other(error.to_string())),
    }
}

/// Removes steps as long as `fails` reports that the program still fails, until no single step can be removed. A
/// program that does not fail is returned unchanged.
fn without_needless<S: Copy>(steps: Vec<S>, mut fails: impl FnMut(&[S]) -> bool) -> Vec<S> {
    if !fails(&steps) {
        return steps;
    }
    let mut left = steps;
    // Start with many steps at once, because that takes fewer runs, and at the end, because few steps depend on the
    // last ones.
    let mut together = (left.len() / 2).max(1);
    loop {
        let before = left.len();
        let mut end = left.len();
        while end > 0 {
            let start = end.saturating_sub(together);
            let shorter = [&left[..start], &left[end..]].concat();
            if fails(&shorter) {
                left = shorter;
            }
            end = start;
        }
        match together {
            1 if left.len() == before => return left,
            1 => {}
            _ => together /= 2,
        }
    }
}

/// A code that the allocator has no rule for ("an illegal memory access was encountered").
const ILLEGAL_ADDRESS: FaultError = FaultError::Code(700);
/// The number of a program's calls that fail in each way in a short run.
const FEWEST_POINTS: usize = 12;

/// Returns the failures for the call with this number.
type Plan = fn(u64) -> Vec<(When, FaultError)>;

/// One call fails, one reports out of memory, and two in a row fail.
const PLANS: [Plan; 3] = [
    |n| vec![(When::Nth(n), ILLEGAL_ADDRESS)],
    |n| vec![(When::Nth(n), FaultError::OutOfMemory)],
    |n| vec![(When::Nth(n), ILLEGAL_ADDRESS), (When::Nth(n + 1), ILLEGAL_ADDRESS)],
];

/// Checks that every law holds after the n-th driver call fails, for n = 1, 2, ...
pub(super) fn every_call(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    let mut runner = runner(effort, 0x901f_u64);
    let strategy = programs(EventTiming::Seeded(0), 40);
    // One additional program is drawn for every two hundred in a campaign.
    let drawn = (0..effort.cases / 200).filter_map(|_| strategy.new_tree(&mut runner).ok().map(|tree| tree.current()));
    let (setup, steps) = every_rung();
    let rungs = subject.fault_seeds.iter().map(|&policy_seed| (Setup { policy_seed, ..setup }, steps.clone()));
    let mut programs: Vec<(Setup, Vec<Step>)> = rungs.chain([captures()]).chain(drawn).collect();
    let stitching = stitching();
    // A long program, for policies that make use of it.
    if subject.whole_run(backend, &stitching.0, &stitching.1).map_err(|stopped| trouble(stopped, &[]))?.remaps > 0 {
        programs.push(stitching);
    }
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
        let most = FEWEST_POINTS.max(effort.cases as usize);
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

/// The outcome of a run.
struct Ran {
    /// The number of failures.
    fired: u64,
    /// The device calls made in each step.
    calls: Vec<Vec<CallName>>,
    /// The time of these calls in nanoseconds, if the device reports it.
    driver_ns: u64,
}

/// Runs a program with these planned failures.
fn run(
    subject: &Subject,
    backend: &AnyBackend,
    setup: &Setup,
    steps: &[Step],
    faults: &[(When, FaultError)],
) -> Result<Ran, Stopped> {
    let mut trial = subject.trial(backend, setup)?;
    trial.plan_faults(faults.iter().fold(FaultPlan::none(), |plan, &(when, error)| plan.and(when, error)));
    let mut told = 0;
    for (number, &step) in steps.iter().enumerate() {
        match trial.apply(step) {
            Ok(Outcome::Failed(_)) => told += 1,
            Ok(_) => {}
            Err(broken) => return Err(Stopped::Broken(broken.during(format!("step {number}, {step:?}")), trial.script())),
        }
    }
    let (fired, script) = (trial.faults_fired(), trial.script());
    let enough: Result<(), Broken> = ensure(Law::Faults, told <= fired || subject.expected.wrong_answers, || {
        format!("{fired} calls failed, but {told} steps reported a failure")
    });
    let finished = enough.and_then(|()| trial.finish()).map_err(|broken| Stopped::Broken(broken, script))?;
    Ok(Ran { fired, calls: finished.calls, driver_ns: finished.driver_ns })
}

fn trouble(stopped: Stopped, faults: &[(When, FaultError)]) -> Trouble {
    match stopped {
        Stopped::Unable(unable) => unable.into(),
        Stopped::Broken(broken, script) => {
            let planned = format!("# planned failures: {faults:?}\n{script}");
            Trouble::Fail { reason: format!("{faults:?}: {broken}"), script: Some(planned) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_together_stays_and_nothing_else() {
        let steps: Vec<u32> = (0..100).collect();
        // In this test, 41 cannot be removed before 40.
        let fails = |steps: &[u32]| steps.contains(&7) && steps.contains(&93) && (!steps.contains(&40) || steps.contains(&41));
        assert_eq!(without_needless(steps, fails), [7, 93]);
        assert_eq!(without_needless(vec![1, 2], |_| false), [1, 2]);
        assert_eq!(without_needless(vec![1, 2], |_| true), [0; 0]);
    }

    #[test]
    fn a_step_that_can_go_after_another_goes() {
        // Each step needs the one before it, so only the last step can be removed at any time; the first, which is the
        // failure, must remain.
        let fails = |steps: &[u32]| steps.first() == Some(&0) && steps.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert_eq!(without_needless((0..50).collect(), fails), [0]);
        let fails = |steps: &[u32]| steps.last() == Some(&9) && steps.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert_eq!(without_needless((0..10).collect(), fails), [9]);
    }

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
