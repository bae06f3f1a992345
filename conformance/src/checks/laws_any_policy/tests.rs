//! Coverage of the programs: a rung that no program reaches is not tested.

use parkade::Heap;
use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade_policies::{BESIDE, CATALOGUE};

use super::campaign::{Failing, Failure, search};
use super::drawn;
use super::fixed::{captures, every_rung, stitching};
use super::step::{Setup, Step};
use super::subject::{Stopped, Subject};
use super::trial::Habits;
use super::watched::Reached;
use super::wrong::Wrong;
use crate::backend::{AnyBackend, EventTiming};
use crate::suite::Effort;

fn reached(outcome: Result<Reached, Stopped>) -> Reached {
    match outcome {
        Ok(reached) => reached,
        Err(Stopped::Broken(broken, script)) => panic!("{broken}\n{script}"),
        Err(Stopped::Unable(unable)) => panic!("{unable}"),
    }
}

#[test]
fn blocks_change_streams_and_pages_their_places_under_policies_of_the_catalogue() {
    let mut total = Reached::default();
    for named in CATALOGUE.iter().chain(BESIDE) {
        let make = named.make;
        let subject = Subject::new(named.name, move |_| make()).with(Habits::of(named));
        for (setup, steps) in [every_rung(), stitching()] {
            total = total.and(reached(subject.whole_run(&AnyBackend::simulated(), &setup, &steps)));
        }
    }
    assert!(total.transfers > 0 && total.remaps > 0, "{total:?}");
}

#[test]
fn the_policies_whose_calls_fail_move_memory_in_both_ways() {
    let (subject, (setup, steps)) = (drawn(true), every_rung());
    let runs = subject.fault_seeds.iter().map(|&policy_seed| {
        let setup = Setup { policy_seed, ..setup };
        reached(subject.whole_run(&AnyBackend::simulated(), &setup, &steps))
    });
    let runs: Vec<Reached> = runs.collect();
    let with = |count: fn(&Reached) -> u64| runs.iter().filter(|run| count(run) > 0).count();
    let (transfers, remaps) = (with(|run| run.transfers), with(|run| run.remaps));
    assert!(transfers >= 4 && remaps >= 4, "{transfers} policies of {} transfer, {remaps} remap", runs.len());
}

/// Its one area is the whole limit, so that nothing is left for private pools.
const ONE_AREA: &str = "bfc-one-region";

#[test]
fn private_pools_serve_under_every_policy_that_leaves_memory_and_are_loaded_under_most() {
    let (setup, steps) = captures();
    let mut load = 0;
    for named in CATALOGUE.iter().chain(BESIDE) {
        let make = named.make;
        let subject = Subject::new(named.name, move |_| make()).with(Habits::of(named));
        let run = reached(subject.whole_run(&AnyBackend::simulated(), &setup, &steps));
        assert_eq!(run.private > 0, named.name != ONE_AREA, "{}: {run:?}", named.name);
        load += usize::from(run.loads > 0);
    }
    // A pool whose blocks have changed streams or are used elsewhere cannot be loaded.
    let all = CATALOGUE.len() + BESIDE.len();
    assert!(load * 3 >= all * 2, "{load} of {all} load");
}

/// It never waits and never gives anything back, so it runs out of memory too early.
struct Stubborn;

impl Policy for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    fn round(&self, requested: Bytes) -> Option<Bytes> {
        requested.checked_round_up(Bytes(512))
    }

    fn classify(&self, _size: Bytes) -> PoolClass {
        PoolClass::Large
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        match heap.first_at_least(request.pool, request.stream, request.size) {
            Some(block) => Placement::Reuse(block.id),
            None => Placement::Segment(request.size.checked_round_up(Bytes::mib(2)).unwrap_or(Bytes::MAX)),
        }
    }

    fn splits(&self, _whole: Bytes, _request: &Request) -> bool {
        true
    }

    fn relieve(&mut self, _heap: &Heap, _request: &Request, rung: u32) -> Relief {
        match rung {
            0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            _ => Relief::GiveUp,
        }
    }
}

/// Finds a failing program of a wrong policy and checks that no step can be left out. Returns its length.
fn no_step_can_go(subject: &Subject, seed: u64) -> usize {
    let one = |setup: &Setup, steps: &[Step]| subject.whole_run(&AnyBackend::simulated(), setup, steps).map(drop);
    let law = |setup: &Setup, steps: &[Step]| match one(setup, steps) {
        Err(Stopped::Broken(broken, _)) => Some(broken.law),
        _ => None,
    };
    let found = search(&Effort::new(200, seed), 0x901c, EventTiming::Seeded(0), &one);
    let Err(Failure::Program(failing)) = found else { panic!("{}, seed {seed}: nothing found", subject.name) };
    let Failing { setup, steps, .. } = *failing;
    let broken = law(&setup, &steps);
    assert!(broken.is_some(), "{}, seed {seed}: {steps:?} break no law", subject.name);
    for place in 0..steps.len() {
        let without = [&steps[..place], &steps[place + 1..]].concat();
        assert_ne!(law(&setup, &without), broken, "{}, seed {seed}: step {place} of {steps:?} does nothing", subject.name);
    }
    steps.len()
}

#[test]
fn no_step_of_a_failing_program_can_go() {
    let lengths: Vec<usize> = (0..4)
        .flat_map(|seed| {
            [
                no_step_can_go(&Subject::new("stubborn", |_| Stubborn), seed),
                no_step_can_go(&Subject::new("wrong", Wrong::new), seed),
            ]
        })
        .collect();
    assert!(lengths.iter().any(|&steps| steps > 2), "each failure is one step: {lengths:?}");
}
