//! Makes driver calls fail, one at a time: whatever the policy has requested, every law holds and nothing leaks.

use std::collections::BTreeMap;

use parkade_sim::{CallName, FaultError, FaultPlan, When};
use proptest::strategy::{Strategy, ValueTree};

use super::campaign::driver_time;
use super::campaign::{Stopped, Subject};
use super::programs::{Setup, Step, programs};
use super::programs::{captures, every_rung, stitching};
use super::trial::Outcome;
use crate::backend::{AnyBackend, EventTiming};
use crate::checks::draw::runner;
use crate::law::{Broken, Law, ensure};
use crate::suite::{Effort, Evidence, Trouble, Verdict};

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
        return Err(Trouble::fail("no program makes a call that could fail"));
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
