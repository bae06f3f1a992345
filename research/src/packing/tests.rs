//! The checker finds every kind of fault; the solver finds what exhaustive search finds.

use proptest::prelude::*;

use super::{Buffer, Effort, Fault, Found, Instance, InstanceError, Packing, check, pack, pack_watched};

fn instance(buffers: &[(u64, u64, u64)]) -> Instance {
    aligned(&buffers.iter().map(|&(start, end, size)| (start, end, size, 1)).collect::<Vec<_>>())
}

fn aligned(buffers: &[(u64, u64, u64, u64)]) -> Instance {
    let buffer = |&(start, end, size, alignment): &(u64, u64, u64, u64)| Buffer { start, end, size, alignment };
    Instance::new(buffers.iter().map(buffer).collect()).unwrap()
}

fn solve(instance: &Instance) -> Found {
    let found = pack(instance, &Effort { steps: 2_000_000, seed: 1 });
    assert_eq!(check(instance, &found.packing), Ok(()));
    assert!(found.bound >= instance.load() && found.bound <= found.packing.height.max(instance.load()));
    found
}

#[test]
fn the_checker_finds_every_kind_of_fault() {
    let instance = aligned(&[(0, 4, 10, 1), (2, 6, 6, 4), (4, 9, 10, 1)]);
    let good = Packing { offsets: vec![0, 12, 0], height: 18 };
    assert_eq!(check(&instance, &good), Ok(()), "lifetimes are half open");
    let with = |offsets: Vec<u64>, height| check(&instance, &Packing { offsets, height });
    assert_eq!(with(vec![0, 8, 0], 14), Err(Fault::Overlap { later: 1, earlier: 0 }));
    assert_eq!(with(vec![7, 0, 0], 17), Err(Fault::Overlap { later: 2, earlier: 1 }));
    assert_eq!(with(vec![u64::MAX, 0, 8], u64::MAX), Err(Fault::TooHigh { buffer: 0 }));
    assert_eq!(with(vec![0, 13, 0], 19), Err(Fault::Alignment { buffer: 1 }));
    assert_eq!(with(vec![0, 12, 0], 17), Err(Fault::Height { said: 17, is: 18 }));
    assert_eq!(with(vec![0, 12], 18), Err(Fault::Count { offsets: 2, buffers: 3 }));
}

#[test]
fn what_is_no_instance_is_refused() {
    let with = |buffers: &[(u64, u64, u64, u64)]| {
        let buffer = |&(start, end, size, alignment): &(u64, u64, u64, u64)| Buffer { start, end, size, alignment };
        Instance::new(buffers.iter().map(buffer).collect()).map(|_| ())
    };
    assert_eq!(with(&[(0, 1, 1, 1), (3, 3, 1, 1)]), Err(InstanceError::EmptyLifetime { buffer: 1 }));
    assert_eq!(with(&[(0, 1, 0, 1)]), Err(InstanceError::Empty { buffer: 0 }));
    assert_eq!(with(&[(0, 1, 1, 0)]), Err(InstanceError::Empty { buffer: 0 }));
    assert_eq!(with(&[(0, 1, 1 << 61, 1), (5, 9, 1 << 61, 1), (5, 9, 1, 1)]), Err(InstanceError::TooLarge));
    assert_eq!(with(&[(0, u64::MAX, 1 << 62, 1)]), Ok(()));
}

#[test]
fn the_load_is_the_most_bytes_live_at_once() {
    assert_eq!(instance(&[]).load(), 0);
    assert_eq!(instance(&[(0, 2, 5), (2, 4, 7), (1, 3, 2)]).load(), 9);
    assert_eq!(solve(&instance(&[])).packing, Packing::default());
}

/// Cuts a rectangle of time and memory into this many pieces, so that a packing without gaps exists.
fn cut(pieces: usize, seed: u64) -> Vec<(u64, u64, u64)> {
    let mut random = crate::packing::random::Random::new(seed);
    // First time, last time, first byte, last byte.
    let mut cuts = vec![(0_u64, 1000_u64, 0_u64, 1000_u64)];
    while cuts.len() < pieces {
        let (start, end, first, last) = cuts.swap_remove(random.below(cuts.len()));
        let across = 1 + random.below(998) as u64;
        let (time, byte) = (start + (end - start) * across / 1000, first + (last - first) * across / 1000);
        if random.below(2) == 0 && start < time {
            cuts.extend([(start, time, first, last), (time, end, first, last)]);
        } else if first < byte {
            cuts.extend([(start, end, first, byte), (start, end, byte, last)]);
        } else {
            cuts.push((start, end, first, last));
        }
    }
    cuts.into_iter().map(|(start, end, first, last)| (start, end, last - first)).collect()
}

#[test]
fn a_rectangle_that_was_cut_into_pieces_is_put_together_again() {
    for seed in 0..8 {
        let instance = instance(&cut(50, seed));
        assert_eq!(instance.load(), 1000);
        assert_eq!(solve(&instance).packing.height, 1000, "seed {seed}");
    }
}

#[test]
fn a_packing_that_cannot_reach_the_load_is_proved_to_be_the_best() {
    // The load is 10 bytes, but the first two start at multiples of 8, and the space between them is too small for
    // the third.
    let instance = aligned(&[(0, 4, 1, 8), (1, 5, 1, 8), (2, 6, 8, 1)]);
    let found = solve(&instance);
    assert_eq!((instance.load(), least_height(&instance)), (10, 17));
    assert_eq!((found.packing.height, found.bound), (17, 17));
}

#[test]
fn what_is_soon_shown_to_be_the_best_costs_no_share_of_a_large_budget() {
    let instance = aligned(&[(0, 4, 1, 8), (1, 5, 1, 8), (2, 6, 8, 1)]);
    let found = pack(&instance, &Effort::default());
    assert_eq!((found.packing.height, found.bound), (17, 17));
    assert!(found.steps < 10_000, "{} steps", found.steps);
}

#[test]
fn the_same_seed_and_budget_give_the_same_packing() {
    let mut random = crate::packing::random::Random::new(3);
    let buffers: Vec<(u64, u64, u64)> = (0..60)
        .map(|_| {
            let start = random.below(40) as u64;
            (start, start + 1 + random.below(12) as u64, 1 + random.below(50) as u64)
        })
        .collect();
    let instance = instance(&buffers);
    let effort = Effort { steps: 300_000, seed: 9 };
    assert_eq!(pack(&instance, &effort), pack(&instance, &effort));
    assert!(pack(&instance, &effort).steps < 600_000, "the budget is kept");
}

#[test]
fn progress_is_told_all_along_and_changes_nothing() {
    // Two buffers start at multiples of 8, and the third does not fit between them: orders miss the load, and the
    // search proves why.
    let instance = aligned(&[(0, 4, 1, 8), (1, 5, 1, 8), (2, 6, 8, 1)]);
    let effort = Effort { steps: 2_000_000, seed: 1 };
    let mut told = Vec::new();
    let found = pack_watched(&instance, &effort, &mut |steps| told.push(steps));
    assert_eq!(found, pack(&instance, &effort));
    assert!(told.len() > 7 && told.is_sorted(), "orders and searches: {told:?}");
    assert_eq!(told.last(), Some(&found.steps), "the last step is reported");
}

#[test]
fn parts_of_time_that_share_no_buffer_are_packed_one_by_one() {
    // Rectangles one after the other in time, shuffled in the list: none depends on the packing of another.
    let mut buffers: Vec<(u64, u64, u64)> = Vec::new();
    for part in 0..6 {
        buffers.extend(cut(25, part).into_iter().map(|(start, end, size)| (start + 1000 * part, end + 1000 * part, size)));
    }
    buffers.sort_unstable_by_key(|&(start, _, size)| (size, start));
    let instance = instance(&buffers);
    let parts = instance.parts();
    assert!(parts.len() >= 6 && parts.iter().map(|(places, _)| places.len()).sum::<usize>() == buffers.len());
    for (places, part) in &parts {
        assert!(places.iter().zip(part.buffers()).all(|(&place, buffer)| instance.buffers()[place] == *buffer));
    }
    let found = solve(&instance);
    assert_eq!((found.packing.height, found.bound), (1000, 1000));
}

#[test]
fn buffers_of_one_lifetime_are_put_together_where_that_needs_no_gap() {
    // The first, third and fifth are live in the same section; the fourth needs a gap after it, so it stays alone.
    let instance = aligned(&[(0, 4, 8, 4), (2, 6, 3, 1), (1, 4, 4, 4), (0, 4, 6, 4), (0, 5, 12, 4), (7, 9, 5, 1)]);
    let (groups, merged) = instance.merged();
    assert_eq!(merged.load(), instance.load());
    assert!(groups[0] == groups[2] && groups[0] == groups[4] && groups[0] != groups[3]);
    assert_eq!(merged.buffers()[groups[0] as usize].size, 24);
    assert_eq!(merged.buffers().len(), 4);
}

/// The least height of all packings, by trying all orders: placing each buffer as low as possible in some order
/// gives a best packing.
fn least_height(instance: &Instance) -> u64 {
    let mut best = u64::MAX;
    let mut offsets = vec![None; instance.buffers().len()];
    place_rest(instance, &mut offsets, 0, &mut best);
    best
}

fn place_rest(instance: &Instance, offsets: &mut [Option<u64>], height: u64, best: &mut u64) {
    if height >= *best {
        return;
    }
    if offsets.iter().all(Option::is_some) {
        *best = height;
        return;
    }
    let buffers = instance.buffers();
    for next in 0..buffers.len() {
        if offsets[next].is_some() {
            continue;
        }
        let wanted = buffers[next];
        let lives = |other: &Buffer| other.start < wanted.end && wanted.start < other.end;
        let placed = || {
            buffers
                .iter()
                .zip(offsets.iter())
                .filter_map(|(other, at)| at.filter(|_| lives(other)).map(|at| (at, at + other.size)))
        };
        let is_free = |at: u64| placed().all(|(first, end)| end <= at || at + wanted.size <= first);
        let places = placed().map(|(_, end)| end.next_multiple_of(wanted.alignment)).chain([0]);
        let Some(at) = places.filter(|&at| is_free(at)).min() else { continue };
        offsets[next] = Some(at);
        place_rest(instance, offsets, height.max(at + wanted.size), best);
        offsets[next] = None;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_instances_are_packed_as_well_as_can_be(
        buffers in prop::collection::vec((0_u64..8, 1_u64..5, 1_u64..9, prop::sample::select(vec![1_u64, 1, 1, 2, 4])), 1..7)
    ) {
        let buffers: Vec<_> = buffers.into_iter().map(|(start, life, size, alignment)| (start, start + life, size, alignment)).collect();
        let instance = aligned(&buffers);
        let found = solve(&instance);
        prop_assert_eq!(found.packing.height, least_height(&instance));
        prop_assert_eq!(found.bound, found.packing.height);
    }

    #[test]
    fn a_packing_that_is_disturbed_is_refused(
        buffers in prop::collection::vec((0_u64..20, 1_u64..9, 1_u64..50), 2..30),
        moved in any::<prop::sample::Index>(),
    ) {
        let buffers: Vec<_> = buffers.into_iter().map(|(start, life, size)| (start, start + life, size)).collect();
        let instance = instance(&buffers);
        let found = solve(&instance);
        let mut disturbed = found.packing.clone();
        let moved = moved.index(buffers.len());
        let lives = |&other: &usize| other != moved && buffers[other].0 < buffers[moved].1 && buffers[moved].0 < buffers[other].1;
        if let Some(other) = (0..buffers.len()).find(lives) {
            // Onto the last byte of a buffer that is live at the same time.
            disturbed.offsets[moved] = disturbed.offsets[other] + buffers[other].2 - 1;
            let tops = disturbed.offsets.iter().zip(&buffers).map(|(at, buffer)| at + buffer.2);
            disturbed.height = tops.max().unwrap_or(0);
            let is_refused = matches!(check(&instance, &disturbed), Err(Fault::Overlap { .. }));
            prop_assert!(is_refused);
        }
    }
}

proptest! {
    #[test]
    fn pairs_are_those_that_overlap(buffers in prop::collection::vec((0_u64..20, 1_u64..8, 1_u64..4), 1..30)) {
        let instance = instance(&buffers.iter().map(|&(start, life, size)| (start, start + life, size)).collect::<Vec<_>>());
        let count = instance.buffers().len();
        let expected = (0..count).flat_map(|a| (0..a).map(move |b| (a, b))).filter(|&(a, b)| instance.overlap(a, b)).count();
        prop_assert_eq!(instance.pairs(), expected as u64);
    }
}
