//! STAlloc: where a plan puts requests, and how requests outside the plan are served.

use std::sync::Arc;

use crate::policy_run::{KIB, Run};
use parkade::units::{Bytes, MIB, StreamId};
use parkade_policies::{FirstStep, Plan, Stalloc, Traced};
use parkade_sim::{CallName, SimOptions};

const STREAM: StreamId = StreamId(0);

fn traced(mib: u64, freed_after: Option<usize>) -> Traced {
    Traced { bytes: Bytes::mib(mib), stream: STREAM, freed_after, comes_again: true }
}

/// A weight of 6 MiB, then steps of 8, 4 and 10 MiB. The 4 MiB are placed where the 10 MiB were, and the 8 MiB next to
/// them.
fn step() -> FirstStep {
    FirstStep { requests: [traced(6, None), traced(8, Some(4)), traced(4, Some(3)), traced(10, Some(4))].into(), repeats_from: 1 }
}

fn run_of(step: &FirstStep, capacity_mib: u64) -> Run {
    let policy = Stalloc::with_plan(Arc::new(Plan::of(step)));
    Run::of(Box::new(policy), SimOptions::new(Bytes::mib(capacity_mib)))
}

#[test]
fn a_plan_is_as_high_as_what_lives_at_once() {
    assert_eq!(Plan::of(&step()).bytes(), Bytes::mib(6 + 8 + 10));
    // A block that survives into the next step also occupies its place there. The blocks of 3 and 5 are live at the
    // same time only because of this.
    let wraps = FirstStep { requests: [traced(3, Some(1)), traced(5, Some(3))].into(), repeats_from: 0 };
    assert_eq!(Plan::of(&wraps).bytes(), Bytes::mib(8));
    let ends = FirstStep { requests: [traced(3, Some(1)), traced(5, Some(2))].into(), repeats_from: 0 };
    assert_eq!(Plan::of(&ends).bytes(), Bytes::mib(5));
    // The plan contains neither requests of 512 bytes nor a step that does not exist.
    let small = Traced { bytes: Bytes(512), ..traced(0, None) };
    assert_eq!(Plan::of(&FirstStep { requests: [small, small].into(), repeats_from: 0 }), Plan::default());
    assert_eq!(Plan::of(&FirstStep { repeats_from: 4, ..step() }), Plan::default());
    let dynamic = Traced { comes_again: false, ..traced(50, Some(3)) };
    let mixed = FirstStep { requests: [traced(3, Some(2)), dynamic].into(), repeats_from: 0 };
    assert_eq!(Plan::of(&mixed).bytes(), Bytes::mib(3));
    let other = Traced { stream: StreamId(7), ..traced(5, Some(2)) };
    let streams = FirstStep { requests: [traced(3, Some(1)), other].into(), repeats_from: 0 };
    assert_eq!(Plan::of(&streams).bytes(), Bytes::mib(8), "an area for each stream");
}

#[test]
fn every_step_goes_to_the_same_places_in_one_segment() {
    let mut run = run_of(&step(), 100);
    let weight = run.take_mib('w', 6);
    let mut places = Vec::new();
    for _ in 0..3 {
        let first = run.take_mib('a', 8);
        let second = run.take_mib('b', 4);
        run.give("b");
        places.push([first, second, run.take_mib('c', 10)]);
        run.give("ac");
    }
    assert_eq!(places, [places[0]; 3]);
    assert!(places[0].iter().all(|&place| place != weight));
    assert_eq!((run.segments_mib(), run.calls(CallName::Malloc)), ([24].into(), 1));
}

#[test]
fn a_request_that_is_not_planned_goes_to_pytorchs_policy_and_the_next_is_planned_again() {
    let mut run = run_of(&step(), 100);
    run.take('w', 6 * MIB);
    let planned = run.take_mib('a', 8);
    run.take('x', 5 * MIB);
    run.take('y', 300);
    // There are PyTorch's 20 MiB and 2 MiB segments in addition to the area.
    assert_eq!(run.reserved_mib(), 24 + 20 + 2);
    run.take('b', 4 * MIB);
    run.give("b");
    run.take('c', 10 * MIB);
    run.give("ac");
    assert_eq!((run.take_mib('a', 8), run.reserved_mib()), (planned, 46));
    run.take('b', 4 * MIB);
    run.give("b");
    run.take('c', 10 * MIB);
    // The next step begins, but its first place is still occupied.
    run.take('d', 8 * MIB);
    assert_eq!(run.reserved_mib(), 46, "from the 15 MiB that are left in PyTorch's segment");
}

#[test]
fn without_room_for_the_area_there_is_no_plan() {
    let mut run = run_of(&step(), 22);
    run.take('w', 6 * MIB);
    assert_eq!(run.segments_mib(), [20], "as under PyTorch's policy");
    run.take('a', 8 * MIB);
    assert_eq!(run.reserved_mib(), 20);
}

#[test]
fn idle_ranges_of_the_area_serve_when_memory_is_out() {
    let mut run = run_of(&step(), 30);
    run.take('w', 6 * MIB);
    run.take('x', 12 * MIB);
    assert_eq!(run.reserved_mib(), 24, "6 MiB are left, so 12 of the 18 idle MiB are used");
    // 6 MiB are left in the area: requests get any of its places that is free, and the others are served by PyTorch's
    // policy.
    assert!(run.is_out(10 * MIB));
    run.give("x");
    assert_eq!(run.take('a', 8 * MIB) % (512 * KIB), 0);
    run.give("aw");
    // An area that is entirely free is released like any segment, and is allocated again later.
    run.take('z', 30 * MIB);
    assert_eq!(run.segments_mib(), [30]);
    run.give("z");
    run.core.release_cached().expect("a device");
    assert_eq!(run.reserved_mib(), 0);
    run.take('b', 4 * MIB);
    assert_eq!(run.segments_mib(), [24]);
}
