//! The bounds against exhaustive search.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::pages::PAGE_BYTES;
use super::robson::{any_fit, first_fit, powers_of_two};
use super::{Bounds, BoundsError, PageIdeal, Robson, buffers};
use crate::packing::{Buffer, Effort, InstanceError};
use crate::workload::{Event, Workload};

const QUICK: Effort = Effort { steps: 200_000, seed: 1 };

fn workload(events: Vec<Event>) -> Workload {
    Workload { name: "test".into(), says: "a test".into(), events, ..Workload::default() }
}

fn allocate(buffer: u32, bytes: u64) -> Event {
    Event::Allocate { buffer, bytes, stream: 0 }
}

fn free(buffer: u32) -> Event {
    Event::Free { buffer }
}

fn lives(buffers: &[(u64, u64, u64)]) -> Vec<Buffer> {
    buffers.iter().map(|&(start, end, size)| Buffer { start, end, size, alignment: 1 }).collect()
}

#[test]
fn a_buffer_is_live_until_it_is_freed_even_if_other_streams_use_it() {
    let events = vec![
        allocate(7, 100),
        Event::Use { buffer: 7, stream: 3 },
        Event::Launch { stream: 3, us: 50 },
        free(7),
        allocate(9, 513),
        free(8),
    ];
    assert_eq!(buffers(&workload(events), 512), lives(&[(0, 3, 512), (4, 6, 1024)]));
}

#[test]
fn all_bounds_of_a_small_program() {
    let events = vec![allocate(0, 3 << 20), allocate(1, 1000), free(0), allocate(2, PAGE_BYTES), allocate(3, 1), free(1)];
    let bounds = Bounds::of(&workload(events), &QUICK).unwrap();
    assert_eq!((bounds.load_bytes, bounds.load_512_bytes), ((3 << 20) + 1000, (3 << 20) + 1024));
    // Two pages for the first buffer and one for the small one; later one page, and one for both small ones.
    let pages = PageIdeal { load_bytes: 2 * PAGE_BYTES, own_pages_bytes: 3 * PAGE_BYTES, reached_bytes: 3 * PAGE_BYTES };
    assert_eq!(bounds.pages, pages);
    assert_eq!(bounds.packing.packing.height, bounds.load_512_bytes);
    let robson = bounds.robson.unwrap();
    assert_eq!((robson.smallest_bytes, robson.largest_bytes), (512, 3 << 20));
    assert_eq!(robson.rounded_load_bytes, (4 << 20) + 1024);
    // The largest power of two in the range is 4096 units of 512 bytes, and it fits into the load once: 4096 (1 +
    // 12 / 2) - 4095.
    assert_eq!(robson.forced_bytes, (4096 * 7 - 4095) * 512);
    // The largest size is rounded up to 8192 units, and the rounded load is at most twice that.
    assert_eq!(robson.sufficient_bytes, (16384 * 15 / 2 - 8191) * 512);
}

#[test]
fn a_program_without_buffers_needs_nothing() {
    let bounds = Bounds::of(&workload(vec![Event::EmptyCache]), &QUICK).unwrap();
    assert_eq!((bounds.load_bytes, bounds.load_512_bytes, bounds.packing.packing.height), (0, 0, 0));
    assert_eq!((bounds.pages.reached_bytes, bounds.robson), (0, None));
}

#[test]
fn what_has_no_bounds_is_an_error() {
    let bounds = |events| Bounds::of(&workload(events), &QUICK).map(|_| ());
    let refused = |error| Err(BoundsError::Instance(error));
    assert_eq!(bounds(vec![allocate(0, 5), allocate(1, 0)]), refused(InstanceError::Empty { buffer: 1 }));
    assert_eq!(bounds(vec![allocate(0, u64::MAX)]), refused(InstanceError::TooLarge));
    assert_eq!(bounds(vec![allocate(0, 1 << 61), allocate(1, 1 << 61), allocate(2, 1)]), refused(InstanceError::TooLarge));
}

#[test]
fn sizes_of_one_kind_force_nothing() {
    let robson = Robson::of(&lives(&[(0, 9, 4096), (1, 5, 4096), (6, 9, 4096)])).unwrap();
    assert_eq!((robson.forced_bytes, robson.sufficient_bytes), (8192, 8192));
}

#[test]
fn robsons_formula_at_values_from_its_sources() {
    // TAOCP 2.5, exercise 38: N(16, 2) = 23, and N(n, 2) = floor((3 n - 1) / 2).
    assert_eq!(powers_of_two(16, 2), Some(23));
    assert!((1..50).all(|half| powers_of_two(2 * half, 2) == Some((6 * half - 1) / 2)));
    assert_eq!((powers_of_two(15, 2), powers_of_two(12, 3), powers_of_two(0, 1)), (None, None, None), "its conditions");
    assert_eq!((powers_of_two(7, 1), powers_of_two(u64::MAX - 1, 2)), (Some(7), None));
    // From 512 bytes to 2 GiB: twelve times the load, if the load is much larger.
    let live = 1_u64 << 40;
    assert!((powers_of_two(live, 1 << 22).unwrap() as f64 / live as f64 - 12.0).abs() < 1e-4);
}

#[test]
fn the_bounds_are_in_their_order() {
    for (live, log) in [(64, 2), (1024, 5), (4096, 3)] {
        let largest = 1 << log;
        let best = powers_of_two(live, largest).unwrap();
        assert!(best as f64 <= first_fit(live, largest) && first_fit(live, largest) <= any_fit(live, largest) as f64);
    }
    assert_eq!((any_fit(5, 1), any_fit(10, 3)), (5, 24), "one size has no gaps; 10 + 7 gaps of 2");
    assert_eq!(first_fit(10, 1), 15.0);
    let (below, above) = (first_fit(1 << 30, 1 << 20), first_fit(1 << 30, 1 << 21));
    assert!(above > below && above / below < 1.06, "the sum goes on as its integral: {below} {above}");
}

/// Memory as cells: for each, the size of the block that starts there, or 0.
type Cells = Vec<u8>;

/// Whether some allocator can serve every workload of sizes that are powers of two up to `largest`, at most `live`
/// cells at once, in `memory` cells. It is a game, solved backward: a state is lost if something can be freed or
/// requested such that every outcome is lost.
fn is_enough(live: usize, largest: usize, memory: usize) -> bool {
    let mut states = Vec::new();
    let sizes: Vec<usize> = (0..=largest.ilog2()).map(|log| 1 << log).collect();
    all_states(&mut vec![0; memory], 0, live, &sizes, &mut states);
    let mut alive: BTreeSet<Cells> = states.iter().cloned().collect();
    loop {
        let before = alive.len();
        states.retain(|state| {
            let is_safe = is_safe(state, live, &sizes, &alive);
            if !is_safe {
                alive.remove(state);
            }
            is_safe
        });
        if alive.len() == before {
            return alive.contains(&vec![0; memory]);
        }
    }
}

fn all_states(cells: &mut Cells, at: usize, live: usize, sizes: &[usize], states: &mut Vec<Cells>) {
    if at == cells.len() {
        states.push(cells.clone());
        return;
    }
    all_states(cells, at + 1, live, sizes, states);
    let room = cells.len() - at;
    for &size in sizes.iter().filter(|&&size| size <= live.min(room)) {
        cells[at] = size as u8;
        all_states(cells, at + size, live - size, sizes, states);
        cells[at] = 0;
    }
}

fn is_safe(state: &Cells, live: usize, sizes: &[usize], alive: &BTreeSet<Cells>) -> bool {
    let mut changed = state.clone();
    let mut with = |at: usize, size: u8| {
        let was = std::mem::replace(&mut changed[at], size);
        let is_alive = alive.contains(&changed);
        changed[at] = was;
        is_alive
    };
    let used: usize = state.iter().map(|&size| usize::from(size)).sum();
    let mut reach = 0;
    let is_free: Vec<bool> = (0..state.len())
        .map(|at| {
            reach = reach.max(at + usize::from(state[at]));
            at >= reach
        })
        .collect();
    (0..state.len()).filter(|&at| state[at] != 0).all(|at| with(at, 0))
        && sizes.iter().filter(|&&size| used + size <= live).all(|&size| {
            let fits = |at: usize| at + size <= state.len() && is_free[at..at + size].iter().all(|&is_free| is_free);
            (0..state.len()).any(|at| fits(at) && with(at, size as u8))
        })
}

#[test]
fn robsons_formula_is_what_the_game_against_every_allocator_comes_to() {
    for (live, largest) in [(2, 2), (4, 2), (6, 2), (4, 4)] {
        let formula = powers_of_two(live, largest).unwrap() as usize;
        assert!(is_enough(live as usize, largest as usize, formula), "{live} {largest}");
        assert!(!is_enough(live as usize, largest as usize, formula - 1), "{live} {largest}");
    }
}

const PAGE: u64 = 4;

/// The fewest pages of four bytes, by trying all placements of the small buffers. Buffers of at least a page need
/// not be tried: their pages can be any free ones.
fn fewest_pages(buffers: &[Buffer]) -> u64 {
    let (large, small): (Vec<Buffer>, Vec<Buffer>) = buffers.iter().partition(|buffer| buffer.size >= PAGE);
    let mut offsets = vec![0; small.len()];
    let mut best = u64::MAX;
    loop {
        if let Some(pages) = pages_at(&large, &small, &offsets) {
            best = best.min(pages);
        }
        // The next combination of offsets, in as many pages as there are small buffers.
        let end = PAGE * small.len() as u64;
        let Some(place) = offsets.iter().position(|&offset| offset + 1 < end) else { return best };
        offsets[place] += 1;
        offsets[..place].fill(0);
    }
}

/// The most pages in use at once with the small buffers at these offsets; `None` if two of them overlap.
fn pages_at(large: &[Buffer], small: &[Buffer], offsets: &[u64]) -> Option<u64> {
    let lives = |buffer: &Buffer, time: u64| buffer.start <= time && time < buffer.end;
    let mut most = 0;
    for time in 0..12 {
        let own: u64 = large.iter().filter(|buffer| lives(buffer, time)).map(|buffer| buffer.size.div_ceil(PAGE)).sum();
        let mut bytes: BTreeMap<u64, u64> = BTreeMap::new();
        for (buffer, &offset) in small.iter().zip(offsets).filter(|(buffer, _)| lives(buffer, time)) {
            for byte in offset..offset + buffer.size {
                if bytes.insert(byte, byte / PAGE).is_some() {
                    return None;
                }
            }
        }
        let shared: BTreeSet<u64> = bytes.into_values().collect();
        most = most.max(own + shared.len() as u64);
    }
    Some(most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_page_ideal_holds_against_trying_everything(
        small in prop::collection::vec((0_u64..6, 1_u64..6, 1_u64..4), 0..4),
        large in prop::collection::vec((0_u64..6, 1_u64..6, 4_u64..11), 0..4),
    ) {
        let buffers: Vec<_> = small.iter().chain(&large).map(|&(start, life, size)| (start, start + life, size)).collect();
        let ideal = PageIdeal::of(&lives(&buffers), PAGE, &QUICK).unwrap();
        let fewest = fewest_pages(&lives(&buffers)) * PAGE;
        prop_assert!(ideal.load_bytes <= ideal.own_pages_bytes && ideal.own_pages_bytes <= fewest && fewest <= ideal.reached_bytes);
        if small.is_empty() {
            prop_assert_eq!(ideal.own_pages_bytes, ideal.reached_bytes, "without small buffers the ideal is reached");
        }
    }
}
