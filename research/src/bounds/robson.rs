//! Bounds that follow from sizes and load alone, for allocators that see requests one by one and never move a buffer.
//!
//! The formulas count in units; all sizes are multiples of the unit. `live` is the most units live at once, and `largest` is
//! the largest request. docs/bounds.md states which formulas were checked against their sources and proves the others.

use crate::packing::Buffer;

/// Robson's bounds for workloads with a given load and given sizes, in bytes.
///
/// They apply to one region of addresses that starts empty and only grows, and to sizes that the allocator does not round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Robson {
    /// The smallest size.
    pub smallest_bytes: u64,
    /// The largest size.
    pub largest_bytes: u64,
    /// The load when each size is rounded up to a power of two.
    pub rounded_load_bytes: u64,
    /// Some workload with at most this load and with sizes in this range forces every allocator that does not move memory to
    /// use this much. (It is not this workload, which may need no more than its load.)
    pub forced_bytes: u64,
    /// The memory that is enough for the best allocator of this kind, which rounds sizes up to powers of two: for this
    /// workload and for every other workload with the same range of sizes and the same rounded load.
    pub sufficient_bytes: u64,
}

impl Robson {
    /// Returns the bounds for workloads with these buffers. Returns `None` if there are no buffers, or if the bounds do not
    /// fit in 64 bits.
    #[must_use]
    pub fn of(buffers: &[Buffer]) -> Option<Robson> {
        let smallest_bytes = buffers.iter().map(|buffer| buffer.size).min().filter(|&size| size > 0)?;
        let largest_bytes = buffers.iter().map(|buffer| buffer.size).max()?;
        let load = load(buffers.iter().map(|buffer| (buffer, Some(buffer.size))))?;
        let rounded_load_bytes = load_of_powers(buffers)?;
        Some(Robson {
            smallest_bytes,
            largest_bytes,
            rounded_load_bytes,
            forced_bytes: forced(load, smallest_bytes, largest_bytes)?,
            sufficient_bytes: sufficient(rounded_load_bytes, smallest_bytes, largest_bytes)?,
        })
    }
}

/// Returns the memory forced by a workload whose sizes are the smallest size, twice that size, and so on up to the largest
/// size; its load must be a multiple of its largest size.
fn forced(load: u64, smallest: u64, largest: u64) -> Option<u64> {
    let largest_units = 1_u64 << (largest / smallest).ilog2();
    let live = load / smallest / largest_units * largest_units;
    powers_of_two(live, largest_units)?.checked_mul(smallest)
}

/// Returns the memory that is enough for a load that the largest size divides; any other load is first rounded up.
fn sufficient(rounded_load: u64, smallest: u64, largest: u64) -> Option<u64> {
    let unit = smallest.checked_next_power_of_two()?;
    let largest_units = largest.checked_next_power_of_two()? / unit;
    let live = (rounded_load / unit).checked_next_multiple_of(largest_units)?;
    powers_of_two(live, largest_units)?.checked_mul(unit)
}

/// Returns the memory, in units, that the best allocator that never moves memory needs, and that is enough for it: `live (1 +
/// log2(largest) / 2) - largest + 1`, for workloads whose sizes are powers of two up to `largest`, itself a power of two that
/// divides `live`. Returns `None` if these conditions are not met, or if the number does not fit in 64 bits.
///
/// Robson, Bounds for some functions concerning dynamic storage allocation, J. ACM 21 (1974).
#[must_use]
pub fn powers_of_two(live: u64, largest: u64) -> Option<u64> {
    if !largest.is_power_of_two() || live == 0 || !live.is_multiple_of(largest) {
        return None;
    }
    let halves = u128::from(live) * u128::from(largest.ilog2());
    u64::try_from(u128::from(live) + halves / 2 - u128::from(largest) + 1).ok()
}

/// Returns the load when each size is rounded up to a power of two.
fn load_of_powers(buffers: &[Buffer]) -> Option<u64> {
    load(buffers.iter().map(|buffer| (buffer, buffer.size.checked_next_power_of_two())))
}

/// Returns the most bytes live at once, or `None` if the number does not fit in 64 bits.
fn load<'a>(sized: impl Iterator<Item = (&'a Buffer, Option<u64>)>) -> Option<u64> {
    let mut changes: Vec<(u64, bool, u64)> = Vec::new();
    for (buffer, size) in sized {
        changes.extend([(buffer.start, true, size?), (buffer.end, false, size?)]);
    }
    changes.sort_unstable();
    let (mut live, mut most) = (0_u64, 0);
    for (_, begins, size) in changes {
        live = if begins { live.checked_add(size)? } else { live - size };
        most = most.max(live);
    }
    Some(most)
}

/// Tests the formulas against exhaustive search.
#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use proptest::collection;
    use proptest::prelude::*;

    use super::*;

    pub(in crate::bounds) fn lives(buffers: &[(u64, u64, u64)]) -> Vec<Buffer> {
        buffers.iter().map(|&(start, end, size)| Buffer { start, end, size, alignment: 1 }).collect()
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

    /// Returns the most units live at once, looking at every moment.
    fn most_live(lives: &[(u64, u64, u64)], size: impl Fn(u64) -> u64) -> u64 {
        let live = |time| lives.iter().filter(|life| life.0 <= time && time < life.1).map(|life| size(life.2)).sum();
        (0..20).map(live).max().unwrap_or(0)
    }

    proptest! {
        /// The units and the loads that the formula needs are found by trying.
        #[test]
        fn the_formula_gets_the_largest_and_the_load_in_whole_units(
            drawn in collection::vec((0..9_u64, 1..9_u64, 1..40_u64), 1..8),
        ) {
            let drawn: Vec<_> = drawn.iter().map(|&(start, life, size)| (start, start + life, size)).collect();
            let sizes = || drawn.iter().map(|life| life.2);
            let (smallest, largest) = (sizes().min().unwrap(), sizes().max().unwrap());
            let power = |size: u64| (0..7).map(|log| 1 << log).find(|&power| power >= size).unwrap();
            let (load, rounded) = (most_live(&drawn, |size| size), most_live(&drawn, power));
            // The largest size that is the smallest one doubled several times, and the largest load that is a multiple of it.
            let units = (0..7).map(|log| 1 << log).filter(|units| units * smallest <= largest).max().unwrap();
            let live = (1..=load).filter(|live| live * smallest <= load && live.is_multiple_of(units)).max().unwrap();
            let (unit, whole) = (power(smallest), power(largest));
            let enough = (0..400).map(|times| times * whole).find(|&enough| enough >= rounded).unwrap();
            let expected = Robson {
                smallest_bytes: smallest,
                largest_bytes: largest,
                rounded_load_bytes: rounded,
                forced_bytes: powers_of_two(live, units).unwrap() * smallest,
                sufficient_bytes: powers_of_two(enough / unit, whole / unit).unwrap() * unit,
            };
            prop_assert_eq!(Robson::of(&lives(&drawn)), Some(expected));
        }
    }

    /// Memory as cells: for each, the size of the block that starts there, or 0.
    type Cells = Vec<u8>;

    /// Returns whether some allocator can serve, in `memory` cells, every workload whose sizes are powers of two up to
    /// `largest` and that has at most `live` cells live at once. Solves a game backwards: a state is lost if there is a free
    /// or a request for which every outcome is lost.
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
}
