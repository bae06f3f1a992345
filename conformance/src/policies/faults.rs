//! Failing driver calls, one at a time: whatever the policy had asked for, everything holds and nothing is lost.

use parkade::policy::Policy;
use parkade_sim::device::{Adversary, FaultError, FaultPlan, When};
use proptest::strategy::{Strategy, ValueTree};

use super::fixed::{captures, every_rung, stitching};
use super::step::{Setup, Step, programs};
use super::subject::{Stopped, Subject};
use super::world::Outcome;
use crate::harness::Backend;
use crate::laws::runner;
use crate::suite::{Effort, Evidence, Trouble, Verdict};
use crate::{Broken, Law, ensure};

/// A code that no rule of the allocator knows ("an illegal memory access was encountered").
const ILLEGAL_ADDRESS: FaultError = FaultError::Code(700);
/// Every call fails in turn up to this one; of those that come later, and are mostly pages like others, one of a few.
const EACH_UP_TO: u64 = 100;

/// What fails, for a number of a call.
type Plan = fn(u64) -> Vec<(When, FaultError)>;

/// One call fails; one says that memory is out; two in a row fail.
const PLANS: [Plan; 3] = [
    |n| vec![(When::Nth(n), ILLEGAL_ADDRESS)],
    |n| vec![(When::Nth(n), FaultError::OutOfMemory)],
    |n| vec![(When::Nth(n), ILLEGAL_ADDRESS), (When::Nth(n + 1), ILLEGAL_ADDRESS)],
];

/// After the n-th driver call has failed, for n = 1, 2, ..., every law holds.
pub(super) fn every_call<B: Backend, P: Policy>(subject: &Subject<P>, backend: &B, effort: &Effort) -> Verdict {
    let mut runner = runner(effort, 0x901f_u64);
    let strategy = programs(Adversary::Seeded(0), 40);
    // One more for every two hundred programs of a campaign.
    let drawn = (0..effort.cases / 200).filter_map(|_| strategy.new_tree(&mut runner).ok().map(|tree| tree.current()));
    let (setup, steps) = every_rung();
    let rungs = subject.fault_seeds.iter().map(|&policy_seed| (Setup { policy_seed, ..setup }, steps.clone()));
    let mut programs: Vec<(Setup, Vec<Step>)> = rungs.chain([captures()]).chain(drawn).collect();
    let stitching = stitching();
    // A long one, for whoever makes something of it.
    if subject.whole_run(backend, &stitching.0, &stitching.1).map_err(|stopped| trouble(stopped, &[]))?.remaps > 0 {
        programs.push(stitching);
    }
    let (mut failures, mut operations) = (0, 0);
    let seeds = subject.fault_seeds.len();
    for (place, (setup, steps)) in programs.iter().enumerate() {
        // Many policies of one kind share the work: each gets one way of failing, and every third call.
        let is_shared = seeds > 1 && place < seeds;
        let (plans, first, stride) =
            if is_shared { (&PLANS[place % 3..][..1], 1 + place as u64 / 3 % 3, 3) } else { (&PLANS[..], 1, 1) };
        for plan in plans {
            let mut n = first;
            loop {
                let faults = plan(n);
                let fired = run(subject, backend, setup, steps, &faults).map_err(|stopped| trouble(stopped, &faults))?;
                operations += steps.len() as u64;
                if fired == 0 {
                    break;
                }
                failures += fired;
                n += stride + n / EACH_UP_TO;
            }
        }
    }
    if failures == 0 {
        return Err(Trouble::fail("no program makes a call that could fail"));
    }
    Ok(Evidence { measured: format!("{failures} failures in {} programs", programs.len()), operations, text: String::new() })
}

/// Runs a program with these failures; how many happened.
fn run<B: Backend, P: Policy>(
    subject: &Subject<P>,
    backend: &B,
    setup: &Setup,
    steps: &[Step],
    faults: &[(When, FaultError)],
) -> Result<u64, Stopped> {
    let mut world = subject.world(backend, setup)?;
    world.plan_faults(faults.iter().fold(FaultPlan::none(), |plan, &(when, error)| plan.and(when, error)));
    let mut told = 0;
    for (number, &step) in steps.iter().enumerate() {
        match world.apply(step) {
            Ok(Outcome::Failed(_)) => told += 1,
            Ok(_) => {}
            Err(broken) => return Err(Stopped::Broken(broken.during(format!("step {number}, {step:?}")), world.script())),
        }
    }
    let (fired, script) = (world.faults_fired(), world.script());
    let enough: Result<(), Broken> =
        ensure(Law::Faults, told <= fired, || format!("{fired} calls failed, and {told} steps told of it"));
    enough.and_then(|()| world.finish().map(drop)).map_err(|broken| Stopped::Broken(broken, script))?;
    Ok(fired)
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
