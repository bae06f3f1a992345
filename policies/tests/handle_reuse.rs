//! PyTorch's expandable segments whose handles are reused: which calls are saved, and when nothing differs.

mod policy_run;

use parkade::units::MIB;
use parkade_sim::CallName;
use policy_run::Run;

/// Blocks of 40, 20 and 60 MiB with one of 20 MiB behind each, on a device of 200 MiB: then the three are given back.
fn three_holes(policy: &str) -> Run {
    let mut run = Run::new(policy, 200);
    for (name, mib) in [('a', 40), ('b', 20), ('c', 20), ('d', 20), ('e', 60), ('f', 20)] {
        run.take_mib(name, mib);
    }
    run.give("ace");
    run
}

#[test]
fn the_request_gets_handles_of_free_pages() {
    let mut run = three_holes("pytorch-expandable-reuse");
    let before = [CallName::MemCreate, CallName::MemRelease].map(|call| run.calls(call));
    // 20 MiB are left and 80 missing: the first attempt makes one page, is refused the next, and gives the page back.
    // Then the holes of 60 and 40 MiB give their five, and the one that is not needed goes back.
    run.take_mib('g', 80);
    let after = [CallName::MemCreate, CallName::MemRelease].map(|call| run.calls(call));
    assert_eq!([after[0] - before[0], after[1] - before[1]], [2, 2]);
    assert_eq!(run.reserved_mib(), 160, "the hole of 20 MiB stays mapped");

    let mut released = three_holes("pytorch-expandable");
    let before = [CallName::MemCreate, CallName::MemRelease].map(|call| released.calls(call));
    released.take_mib('g', 80);
    let after = [CallName::MemCreate, CallName::MemRelease].map(|call| released.calls(call));
    // The same first attempt; then all six pages go back and four are made.
    assert_eq!([after[0] - before[0], after[1] - before[1]], [6, 7]);
    assert_eq!(released.reserved_mib(), 140);
}

#[test]
fn one_block_is_enough_if_it_has_the_pages() {
    let mut run = three_holes("pytorch-expandable-reuse");
    run.take_mib('x', 20);
    let before = run.calls(CallName::MemUnmap);
    // In a new place: no hole has 60 MiB once the largest is taken.
    assert_eq!(run.take_mib('g', 60), 100);
    assert!(run.calls(CallName::MemUnmap) == before, "the hole of 60 MiB serves as it is");
    run.take_on(7, 'h', 40 * MIB);
    // 20 MiB were left, so the hole of 40 MiB goes to the other stream; its two pages are unmapped, no others.
    assert_eq!(run.calls(CallName::MemUnmap) - before, 2);
}

#[test]
fn with_room_it_is_pytorch() {
    let [mut reuse, mut pytorch] = ["pytorch-expandable-reuse", "pytorch-expandable"].map(three_holes);
    for run in [&mut reuse, &mut pytorch] {
        run.take_mib('g', 20);
        run.take('h', 100);
    }
    assert_eq!(reuse.segments(), pytorch.segments());
    for call in [CallName::MemCreate, CallName::MemMap, CallName::MemUnmap, CallName::MemRelease] {
        assert_eq!(reuse.calls(call), pytorch.calls(call));
    }
}

#[test]
fn what_pages_cannot_do_the_rest_of_the_cache_does() {
    let mut run = Run::new("pytorch-expandable-reuse", 42);
    run.take('a', 100);
    run.take_mib('b', 20);
    run.give("a");
    // The small pool's page of 2 MiB cannot serve the large pool: PyTorch's release follows.
    run.take_mib('c', 20);
    assert_eq!(run.reserved_mib(), 42);
    run.give("bc");
    assert!(run.is_out(60 * MIB));
    assert_eq!(run.reserved_mib(), 0, "and nothing is kept");
}
