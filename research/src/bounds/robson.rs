//! Bounds that follow from sizes and load alone, for allocators that learn of requests one by one and never move a
//! buffer.
//!
//! The formulas count in units; all sizes are multiples of the unit. `live` is the most units live at once,
//! `largest` the largest request. docs/bounds.md says which formulas were checked against their sources, and
//! proves the others.

use crate::packing::Buffer;

/// Robson's bounds for workloads of a given load and given sizes, in bytes.
///
/// They are about one region of addresses that starts empty and only grows, and about sizes that the allocator
/// does not round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Robson {
    /// The smallest size.
    pub smallest_bytes: u64,
    /// The largest size.
    pub largest_bytes: u64,
    /// The load, with each size rounded up to a power of two.
    pub rounded_load_bytes: u64,
    /// Some workload with at most this load, and with sizes in this range, forces every allocator that does not
    /// move memory to need this much. (Not this workload, which may need no more than its load.)
    pub forced_bytes: u64,
    /// Enough for the best such allocator, which rounds sizes up to powers of two: for this workload, and for
    /// every other one with its range of sizes and its rounded load.
    pub sufficient_bytes: u64,
}

impl Robson {
    /// The bounds for workloads with these buffers. `None` without buffers, or if 64 bits cannot hold the bounds.
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

/// What a workload forces that has the smallest size, twice that and so on up to the largest; its load must be a
/// multiple of its largest size.
fn forced(load: u64, smallest: u64, largest: u64) -> Option<u64> {
    let largest_units = 1_u64 << (largest / smallest).ilog2();
    let live = load / smallest / largest_units * largest_units;
    powers_of_two(live, largest_units)?.checked_mul(smallest)
}

/// What is enough for a load that the largest size divides, rounded up to one if it does not.
fn sufficient(rounded_load: u64, smallest: u64, largest: u64) -> Option<u64> {
    let unit = smallest.checked_next_power_of_two()?;
    let largest_units = largest.checked_next_power_of_two()? / unit;
    let live = (rounded_load / unit).checked_next_multiple_of(largest_units)?;
    powers_of_two(live, largest_units)?.checked_mul(unit)
}

/// What the best allocator that never moves memory needs, and what is enough for it, in units: `live (1 +
/// log2(largest) / 2) - largest + 1`, for workloads whose sizes are powers of two up to `largest`, itself a power
/// of two that divides `live`. `None` if these conditions do not hold, or 64 bits cannot hold the number.
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

/// What is enough for first fit in one region, in units, with any sizes up to `largest`: `live H / ln 2`, where H
/// is the harmonic number of `largest`, rounded up. Knuth, The Art of Computer Programming 1, 2.5 exercise 43
/// (Robson 1977).
#[must_use]
pub fn first_fit(live: u64, largest: u64) -> f64 {
    // Beyond this many terms the sum equals its integral to the number's precision, from above.
    let summed = largest.min(1 << 20);
    let mut harmonic: f64 = (1..=summed).rev().map(|size| 1.0 / size as f64).sum();
    if largest > summed {
        harmonic += (largest as f64 / summed as f64).ln();
    }
    (live as f64 * harmonic / std::f64::consts::LN_2).ceil()
}

/// What is enough, in units, for every allocator that uses one region, coalesces free neighbours at once, and
/// grows the region only if no gap is large enough, by what is missing at its end: `live + (live - s)(s - 1)` at
/// the worst size `s` up to `largest`. Best fit comes close to it: Knuth 2.5 exercise 42 (Robson 1975) gives `live
/// largest - O(live + largest^2)`.
#[must_use]
pub fn any_fit(live: u64, largest: u64) -> u128 {
    // The product is largest if its factors are equal, at half of the live units.
    let worst = largest.min(live / 2 + 1).max(1);
    u128::from(live) + u128::from(live.saturating_sub(worst)) * u128::from(worst - 1)
}

/// The load, with each size rounded up to a power of two.
fn load_of_powers(buffers: &[Buffer]) -> Option<u64> {
    load(buffers.iter().map(|buffer| (buffer, buffer.size.checked_next_power_of_two())))
}

/// The most bytes live at once; `None` if 64 bits cannot hold them.
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
