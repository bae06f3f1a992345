//! What theory says about the adversaries, checked for every policy of the catalogue to which it applies.

use parkade::policy::{Policy, PyTorch};
use parkade::settings::Settings;
use parkade::units::PoolClass;
use parkade_policies::{CATALOGUE, Named, named};

use parkade::PoolSlot;

use super::{AttackError, Robson, comb, fence, robson, stream_per_buffer};
use crate::bounds::robson::{any_fit, first_fit, powers_of_two};
use crate::study::{Ending, RunOptions, run};
use crate::workload::{Event, Workload};
use parkade_sim::PAGE_BYTES;

const MIB: u64 = 1 << 20;

fn large() -> PoolSlot {
    PoolSlot::default_pool(PoolClass::Large)
}

fn of_catalogue(name: &str) -> &'static Named {
    named(name).unwrap()
}

/// What a policy reserves for a workload on a device with plenty of memory.
fn reserved(workload: &Workload, policy: Box<dyn Policy + Send>) -> u64 {
    let outcome = run(workload, policy, &RunOptions::plenty());
    assert_eq!(outcome.ending, Ending::Fits, "{}", workload.name);
    outcome.peak_reserved_bytes
}

#[test]
fn robsons_adversary_forces_its_bound_upon_every_policy_that_moves_nothing() {
    let mut bound_ones = Vec::new();
    for policy in CATALOGUE {
        for (live_units, largest_units) in [(64, 8), (256, 16), (192, 64)] {
            let numbers = Robson { unit_bytes: 4 * MIB, largest_units, live_units };
            let attack = robson((policy.make)(), numbers).unwrap();
            assert_eq!(attack.load_bytes, live_units * numbers.unit_bytes);
            assert!(attack.reserved_bytes >= attack.load_bytes, "{}", policy.name);
            if attack.never_moved() {
                let forced = powers_of_two(live_units, largest_units).unwrap() * numbers.unit_bytes;
                let got = attack.reserved_bytes;
                assert!(got >= forced, "{}: {got} bytes for {forced}, {numbers:?}", policy.name);
                bound_ones.push(policy.name);
            }
        }
    }
    for name in ["pytorch", "pytorch-expandable"] {
        assert_eq!(bound_ones.iter().filter(|&&one| one == name).count(), 3, "{name} moves nothing while there is memory");
    }
}

/// The policies to which the bounds for any fit apply, each with its page as the unit: one region that grows by
/// what is missing, all free neighbours coalesced, nothing rounded, and a free block used whenever one is large
/// enough.
fn any_fits() -> Vec<(&'static Named, u64)> {
    let names = [
        "first-fit-remap",
        "next-fit-remap",
        "best-fit-remap",
        "worst-fit-remap",
        "pytorch-expandable",
        "pytorch-2.15-expandable",
    ];
    names.into_iter().map(of_catalogue).map(|policy| (policy, (policy.make)().page(large()).get())).collect()
}

#[test]
fn one_growing_region_keeps_to_its_bounds_under_robsons_adversary() {
    let (live, largest) = (256, 16);
    for (policy, page) in any_fits() {
        assert!((policy.make)().is_expandable(large()), "{}", policy.name);
        let numbers = Robson { unit_bytes: page, largest_units: largest, live_units: live };
        let attack = robson((policy.make)(), numbers).unwrap();
        let units = attack.reserved_bytes / page;
        assert!(attack.never_moved() && units >= powers_of_two(live, largest).unwrap(), "{}", policy.name);
        assert!(u128::from(units) <= any_fit(live, largest), "{}", policy.name);
        if policy.name == "first-fit-remap" {
            assert!(units as f64 <= first_fit(live, largest), "{units}");
        }
    }
}

#[test]
fn segments_of_their_own_keep_to_their_bound() {
    let (live_units, largest_units) = (64, 8);
    let mut compared = Vec::new();
    for policy in CATALOGUE {
        let numbers = Robson { unit_bytes: 32 * MIB, largest_units, live_units };
        let takes_just_so_much = |units: u64| {
            let event = Event::Allocate { buffer: 0, bytes: units * numbers.unit_bytes, stream: 0 };
            let one = Workload { name: "one".into(), says: "one buffer".into(), events: vec![event], ..Workload::default() };
            reserved(&one, (policy.make)()) == units * numbers.unit_bytes
        };
        if (policy.make)().is_expandable(large()) || ![1, 2, 4, 8].into_iter().all(takes_just_so_much) {
            continue;
        }
        compared.push(policy.name);
        let attack = robson((policy.make)(), numbers).unwrap();
        // A segment is taken only if no gap is large enough, so each segment of that size has a live block: there
        // are at most `live` of each size.
        let bound = live_units * (2 * largest_units - 1) * numbers.unit_bytes;
        assert!(attack.reserved_bytes <= bound, "{}: {} of {bound}", policy.name, attack.reserved_bytes);
    }
    assert!(compared.contains(&"pytorch") && compared.contains(&"pytorch-2.15"), "{compared:?}");
}

#[test]
fn what_robsons_adversary_did_can_be_played_again() {
    let numbers = Robson { unit_bytes: 32 * MIB, largest_units: 16, live_units: 64 };
    let attack = robson((of_catalogue("pytorch").make)(), numbers).unwrap();
    assert_eq!(attack.workload.load_bytes(1), attack.load_bytes);
    for policy in CATALOGUE {
        let again = reserved(&attack.workload, (policy.make)());
        assert!(again >= attack.load_bytes, "{}", policy.name);
        if policy.name == "pytorch" {
            assert_eq!(again, attack.reserved_bytes);
        }
    }
}

#[test]
fn pages_that_are_mapped_elsewhere_escape_robsons_adversary() {
    // Every size is a multiple of a page, so no page is pinned by a small block: the load is enough.
    let policy = of_catalogue("pytorch-expandable");
    let unit_bytes = (policy.make)().page(large()).get();
    let attack = robson((policy.make)(), Robson { unit_bytes, largest_units: 16, live_units: 128 }).unwrap();
    let load = RunOptions::new(attack.load_bytes);
    let outcome = run(&attack.workload, (policy.make)(), &load);
    assert_eq!((outcome.ending, outcome.peak_reserved_bytes), (Ending::Fits, attack.load_bytes));
}

#[test]
fn segments_that_several_blocks_share_do_not_escape_it() {
    // Ten units of 2 MiB share a segment of 20 MiB, which is released only when all of them are free.
    let policy = of_catalogue("pytorch");
    let attack = robson((policy.make)(), Robson { unit_bytes: 2 * MIB, largest_units: 16, live_units: 160 }).unwrap();
    let outcome = run(&attack.workload, (policy.make)(), &RunOptions::new(attack.load_bytes));
    assert_eq!(outcome.ending, Ending::OutOfMemory);
}

#[test]
fn the_fence_makes_reserved_memory_grow_as_it_was_reported() {
    let settings = Settings { expandable_segments: true, max_split_bytes: 128 * MIB, ..Settings::default() };
    let whole = fence(101).unwrap();
    let at_cycle = |cycle: usize| {
        // Each cycle has five events.
        let workload = Workload { events: whole.events[..1 + 5 * (cycle + 1)].to_vec(), ..whole.clone() };
        reserved(&workload, Box::new(PyTorch::new(settings.clone()))) / MIB
    };
    // pytorch#193400: reserved at cycles 0, 20, 40 and so on.
    assert_eq!([0, 20, 40, 60, 80, 100].map(at_cycle), [220, 2980, 5760, 8520, 11300, 14060]);
    let alone = [
        Settings { max_split_bytes: Settings::default().max_split_bytes, ..settings.clone() },
        Settings { expandable_segments: false, ..settings },
    ];
    for settings in alone {
        assert!(reserved(&whole, Box::new(PyTorch::new(settings))) < 500 * MIB);
    }
}

#[test]
fn the_comb_needs_half_as_much_again_unless_pages_move() {
    let workload = comb(16, 20 * MIB).unwrap();
    let load = workload.load_bytes(1);
    assert_eq!(load, 32 * 20 * MIB);
    for policy in CATALOGUE {
        assert!(reserved(&workload, (policy.make)()) >= load, "{}", policy.name);
    }
    let mut grows = 0;
    for policy in CATALOGUE.iter().filter(|policy| policy.name.starts_with("pytorch")) {
        assert_eq!(reserved(&workload, (policy.make)()), load / 2 * 3, "{}", policy.name);
        let tight = run(&workload, (policy.make)(), &RunOptions::new(load));
        // Each tooth has a segment of its own, which is released whole; pages of an expandable segment are mapped
        // elsewhere.
        assert!(tight.fits(), "{}", policy.name);
        grows += u32::from((policy.make)().is_expandable(large()));
    }
    assert!(grows >= 2);
    // Teeth share segments: no segment can be released.
    let shared = comb(16, 5 * MIB).unwrap();
    let tight = RunOptions::new(shared.load_bytes(1));
    assert_eq!(run(&shared, (of_catalogue("pytorch").make)(), &tight).ending, Ending::OutOfMemory);
}

#[test]
fn every_stream_keeps_a_buffer_of_its_own() {
    let gib = 1 << 30;
    for (calls, streams, expected) in [(1, 32, 2), (8, 32, 16), (100, 32, 32), (100, 2, 2)] {
        let workload = stream_per_buffer(calls, streams, gib).unwrap();
        assert_eq!(workload.load_bytes(1), 2 * gib);
        // vllm#52951: from 2 to 16 GB in eight calls, at most 32, and 2 if the streams are made only once.
        assert_eq!(reserved(&workload, (of_catalogue("pytorch").make)()), expected * gib, "{calls} calls, {streams} streams");
    }
}

#[test]
fn numbers_that_make_no_adversary_are_refused() {
    let refused = |result: Result<Workload, AttackError>| matches!(result, Err(AttackError::Shape(_)));
    assert!(refused(comb(0, 5)) && refused(comb(5, 0)) && refused(comb(u32::MAX, u64::MAX)) && refused(comb(u32::MAX, 1)));
    assert!(refused(fence(0)) && refused(fence(u32::MAX)));
    assert!(
        refused(stream_per_buffer(0, 1, 1)) && refused(stream_per_buffer(1, 0, 1)) && refused(stream_per_buffer(1, 1, u64::MAX))
    );
    let play = |unit_bytes, largest_units, live_units| {
        robson((of_catalogue("pytorch").make)(), Robson { unit_bytes, largest_units, live_units }).map(|attack| attack.load_bytes)
    };
    for (unit, largest, live) in [(0, 2, 4), (u64::MAX, 2, 4), (1, 3, 6), (1, 0, 4), (1, 4, 6), (1, 4, 0), (1, 4, u64::MAX - 3)] {
        assert!(matches!(play(unit, largest, live), Err(AttackError::Shape(_))), "{unit} {largest} {live}");
    }
    assert_eq!(play(PAGE_BYTES, 1, 3), Ok(3 * PAGE_BYTES));
}

#[test]
fn numbers_of_buffers_are_in_order() {
    let attack = robson((of_catalogue("pytorch").make)(), Robson { unit_bytes: 512, largest_units: 8, live_units: 64 }).unwrap();
    for workload in [comb(4, 1).unwrap(), fence(3).unwrap(), attack.workload] {
        let numbers = workload.events.iter().filter_map(|event| match event {
            Event::Allocate { buffer, .. } => Some(*buffer),
            _ => None,
        });
        assert!(numbers.eq(0..workload.buffers() as u32), "{}", workload.name);
    }
}
