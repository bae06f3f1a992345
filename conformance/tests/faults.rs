//! Failing driver calls, one at a time: for n = 1, 2, ... the n-th call fails, until a run passes untouched.
//!
//! After the failure the heap is valid, the statistics agree with it, the rest of the sequence goes on, and nothing is leaked at the
//! end. All of that is checked by the world, after every operation.

use parkade::units::MIB;
use parkade_conformance::Broken;
use parkade_conformance::operation::{Operation, Places, Setup, operations, setup};
use parkade_conformance::world::{Outcome, World};
use parkade_sim::device::{Adversary, CallName, FaultError, FaultPlan, When};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// A code that no rule of the allocator knows ("an illegal memory access was encountered").
const ILLEGAL_ADDRESS: FaultError = FaultError::Code(700);

/// Calls that can fail.
const CALLS: [CallName; 7] = [
    CallName::MemGetInfo,
    CallName::Malloc,
    CallName::Free,
    CallName::EventCreate,
    CallName::EventRecord,
    CallName::EventQuery,
    CallName::EventSynchronize,
];

fn lazy(capacity: u64, settings: usize) -> Setup {
    Setup { capacity, adversary: Adversary::Lazy, settings, places: Places::Ascending, free_waits: false }
}

/// Every rung of the ladder, with two streams' events pending: collected garbage, oversize blocks, waiting, out of memory.
fn fixed() -> Vec<(Setup, Vec<Operation>)> {
    use Operation::{Allocate, CompleteOne, Free, OthersHold, ProcessEvents, RecordStream, ReleaseCached, SetFraction};
    let events = vec![
        Allocate(30 * MIB, 0),
        RecordStream(0, 1),
        RecordStream(0, 2),
        RecordStream(0, 3),
        Allocate(700, 0),
        RecordStream(1, 1),
        Free(1),
        Free(0),
        Allocate(600, 0),
        CompleteOne(1),
        ProcessEvents,
        Allocate(50 * MIB, 0),
        Allocate(50 * MIB, 1),
        Free(0),
        ReleaseCached,
        Allocate(512, 2),
    ];
    let ladder = vec![
        SetFraction(90),
        Allocate(40 * MIB, 0),
        Allocate(45 * MIB, 0),
        Allocate(5 * MIB, 1),
        RecordStream(1, 2),
        Free(0),
        Free(0),
        Allocate(60 * MIB, 0),
        Allocate(90 * MIB, 0),
        OthersHold(60 * MIB),
        Allocate(35 * MIB, 1),
        Free(0),
        Free(0),
        Allocate(2 * MIB, 0),
        Allocate(300 * MIB, 0),
        ReleaseCached,
    ];
    let settings = [0, 1, 4, 5];
    let on = |sequence: &[Operation]| settings.map(|settings| (lazy(128 * MIB, settings), sequence.to_vec()));
    [on(&events), on(&ladder)].concat()
}

fn random(count: usize) -> Vec<(Setup, Vec<Operation>)> {
    let mut runner = TestRunner::deterministic();
    let strategy = (setup(), operations(40..60));
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("a case").current()).collect()
}

/// Runs a sequence under a plan of failures. Returns how many of them happened, and how many operations told of one.
fn run(setup: &Setup, sequence: &[Operation], plan: FaultPlan) -> Result<(u64, u64), Broken> {
    let mut world = World::new(setup);
    world.plan_faults(plan);
    let mut told = 0;
    for (number, operation) in sequence.iter().enumerate() {
        let outcome = world.apply(operation).map_err(|broken| Broken(format!("operation {number}, {operation:?}: {broken}")))?;
        told += u64::from(matches!(outcome, Outcome::Failed(_)));
    }
    let fired = world.faults_fired();
    world.finish()?;
    Ok((fired, told))
}

/// Fails the n-th call for all n. Returns how many there were.
fn fail_each(setup: &Setup, sequence: &[Operation], when: impl Fn(u64) -> When, error: FaultError) -> u64 {
    for n in 1.. {
        let when = when(n);
        let (fired, told) = run(setup, sequence, FaultPlan::none().and(when, error))
            .unwrap_or_else(|broken| panic!("{when:?} fails with {error:?}, {setup:?}, {sequence:?}: {broken}"));
        if fired == 0 {
            return n - 1;
        }
        let is_refusal = error == FaultError::OutOfMemory;
        assert!(is_refusal || told == 1, "{when:?}: {told} operations told of the failure, {setup:?}, {sequence:?}");
    }
    unreachable!("the numbers do not end")
}

#[test]
fn after_the_failure_of_any_call_everything_holds() {
    let mut failures = [0; CALLS.len()];
    for (setup, sequence) in fixed().into_iter().chain(random(6)) {
        for (count, call) in failures.iter_mut().zip(CALLS) {
            *count += fail_each(&setup, &sequence, |n| When::NthOf(call, n), ILLEGAL_ADDRESS);
        }
        failures[1] += fail_each(&setup, &sequence, |n| When::NthOf(CallName::Malloc, n), FaultError::OutOfMemory);
        fail_each(&setup, &sequence, When::Nth, FaultError::OutOfMemory);
    }
    assert!(failures.iter().all(|&count| count > 0), "a call never failed: {CALLS:?} {failures:?}");
}

#[test]
fn two_failures_in_a_row_are_no_worse() {
    for (setup, sequence) in fixed() {
        for n in 1..60 {
            let plan = FaultPlan::none().and(When::Nth(n), ILLEGAL_ADDRESS).and(When::Nth(n + 1), ILLEGAL_ADDRESS);
            run(&setup, &sequence, plan).unwrap_or_else(|broken| panic!("calls {n} and {}, {setup:?}: {broken}", n + 1));
        }
    }
}
