//! Computes the memory needed by an allocator that takes memory from the device in pages and may map them anywhere, at any
//! time, at no cost.
//!
//! There are two answers, under different assumptions (docs/bounds.md):
//!
//! - If memory is taken and released in whole pages, and no byte serves two live buffers, then the load, rounded up to pages,
//!   is needed.
//! - If, in addition, each buffer of at least a page has its own pages, which it shares with no other buffer, and contents
//!   are never copied, then each of these buffers needs its size rounded up to pages, and the smaller buffers together need
//!   their bytes rounded up to pages. Without smaller buffers, this is exactly enough, because any free page can be mapped
//!   wherever a page is needed. With smaller buffers, it is only a lower bound, because a small buffer stays on its page; a
//!   packing of the small buffers provides a number that is enough. The packer finds these packings and the checker verifies
//!   them.

use std::fmt;

use crate::packing::{self, Buffer, Effort, Fault, Found, Instance, InstanceError};

/// The size of a device page, the granularity of cuMemCreate and cuMemMap (facts: Sizes and addresses).
pub const PAGE_BYTES: u64 = 2 << 20;

/// The memory that is needed if pages can be remapped, in bytes; all numbers are multiples of the page size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageIdeal {
    /// The load, rounded up to pages: no allocator that takes memory in pages needs less.
    pub load_bytes: u64,
    /// A lower bound for any allocator that assigns each buffer of at least a page its own pages and copies nothing.
    pub own_pages_bytes: u64,
    /// A number that is enough for that kind of allocator if the small buffers are packed into pages and each page is taken
    /// only while a buffer on it is live.
    pub reached_bytes: u64,
}

impl PageIdeal {
    /// The ideal for these buffers on pages of `page_bytes`. `effort` is the effort for packing the small buffers.
    ///
    /// # Errors
    /// [`BoundsError`] for a buffer of 0 bytes, or for sizes that add up to more than 2^62 bytes.
    ///
    /// # Panics
    /// If `page_bytes` is 0.
    pub fn of(buffers: &[Buffer], page_bytes: u64, effort: &Effort) -> Result<PageIdeal, BoundsError> {
        // Sizes and lifetimes are checked before anything is added up.
        let load = Instance::new(buffers.to_vec()).map_err(BoundsError::Instance)?.load();
        let (large, small): (Vec<Buffer>, Vec<Buffer>) = buffers.iter().partition(|buffer| buffer.size >= page_bytes);
        let mut changes: Vec<Change> = Vec::new();
        for buffer in &large {
            changes.extend(Change::of_life(buffer, Kind::Pages(buffer.size.div_ceil(page_bytes))));
        }
        let mut bound_changes = changes.clone();
        bound_changes.extend(small.iter().flat_map(|buffer| Change::of_life(buffer, Kind::SmallBytes(buffer.size))));
        changes.extend(pages_of_small(small, page_bytes, effort)?);
        let in_bytes = |pages: u64| pages.saturating_mul(page_bytes);
        Ok(PageIdeal {
            load_bytes: in_bytes(load.div_ceil(page_bytes)),
            own_pages_bytes: in_bytes(most_pages(bound_changes, page_bytes)),
            reached_bytes: in_bytes(most_pages(changes, page_bytes)),
        })
    }
}

/// The beginning or the end of a lifetime.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Change {
    time: u64,
    /// At equal times, ends come before beginnings, because lifetimes are half open.
    begins: bool,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Pages(u64),
    SmallBytes(u64),
}

impl Change {
    fn of_life(buffer: &Buffer, kind: Kind) -> [Change; 2] {
        [Change { time: buffer.start, begins: true, kind }, Change { time: buffer.end, begins: false, kind }]
    }
}

/// The most pages in use at once.
fn most_pages(mut changes: Vec<Change>, page_bytes: u64) -> u64 {
    changes.sort_unstable();
    let (mut pages, mut small_bytes, mut most) = (0_u64, 0_u64, 0);
    for change in changes {
        let (count, amount) = match change.kind {
            Kind::Pages(amount) => (&mut pages, amount),
            Kind::SmallBytes(amount) => (&mut small_bytes, amount),
        };
        if change.begins {
            *count += amount;
        } else {
            *count -= amount;
        }
        most = most.max(pages + small_bytes.div_ceil(page_bytes));
    }
    most
}

/// The pages of the small buffers in a packing: each page is in use for as long as any of its buffers is live.
fn pages_of_small(small: Vec<Buffer>, page_bytes: u64, effort: &Effort) -> Result<Vec<Change>, BoundsError> {
    let instance = Instance::new(small).map_err(BoundsError::Instance)?;
    let found = pack_checked(&instance, effort)?;
    let mut stays: Vec<(u64, Buffer)> = Vec::new();
    for (buffer, &offset) in instance.buffers().iter().zip(&found.packing.offsets) {
        let last = (offset + buffer.size - 1) / page_bytes;
        stays.extend((offset / page_bytes..=last).map(|page| (page, *buffer)));
    }
    stays.sort_unstable_by_key(|(page, buffer)| (*page, buffer.start, buffer.end));
    let mut changes = Vec::new();
    let mut stays = stays.into_iter().peekable();
    while let Some((page, mut whole)) = stays.next() {
        // Lifetimes on the same page with no break between them count as one.
        while let Some((_, next)) = stays.next_if(|(next_page, next)| *next_page == page && next.start <= whole.end) {
            whole.end = whole.end.max(next.end);
        }
        changes.extend(Change::of_life(&whole, Kind::Pages(1)));
    }
    Ok(changes)
}

/// Why a workload has no bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BoundsError {
    /// Its buffers are not an instance of the packing problem.
    Instance(InstanceError),
    /// The packer produced an invalid packing, which is a bug in parkade.
    Packing(Fault),
}

impl fmt::Display for BoundsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoundsError::Instance(error) => write!(f, "the workload has no bounds: {error}"),
            BoundsError::Packing(fault) => {
                write!(f, "the packer produced an invalid packing, which is a bug in parkade: {fault:?}")
            }
        }
    }
}

impl std::error::Error for BoundsError {}

/// The best packing found, after the checker has verified it.
pub(super) fn pack_checked(instance: &Instance, effort: &Effort) -> Result<Found, BoundsError> {
    let found = packing::pack(instance, effort);
    packing::check(instance, &found.packing).map_err(BoundsError::Packing)?;
    Ok(found)
}

/// Tests the ideal against exhaustive search.
#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::bounds::robson::tests::lives;

    const QUICK: Effort = Effort { steps: 200_000, seed: 1 };
    const PAGE: u64 = 4;

    /// The smallest number of four-byte pages, found by trying all placements of the small buffers. Buffers of at least a
    /// page need not be tried, because their pages can be any free pages.
    fn fewest_pages(buffers: &[Buffer]) -> u64 {
        let (large, small): (Vec<Buffer>, Vec<Buffer>) = buffers.iter().partition(|buffer| buffer.size >= PAGE);
        let mut offsets = vec![0; small.len()];
        let mut best = u64::MAX;
        loop {
            if let Some(pages) = pages_at(&large, &small, &offsets) {
                best = best.min(pages);
            }
            // The next combination of offsets, using as many pages as there are small buffers.
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
}
