//! Bounds: the smallest memory that could serve a workload, and the memory that the worst workload of its kind would need. A
//! policy's result is compared with these.
//!
//! In order, from a limit that no allocator can beat to one that no allocator can guarantee:
//!
//! 1. **Load**: the most bytes live at once, as requested and rounded to blocks of 512 bytes.
//! 2. **Page ideal** ([`PageIdeal`]): the memory needed by an allocator that takes memory in pages and remaps them at will.
//! 3. **Packing** ([`crate::packing`]): addresses in one region, with every lifetime known in advance and nothing ever moved.
//! 4. **Robson's bounds** ([`robson`]): the memory that the worst workload with this load and these sizes forces on any
//!    allocator that sees requests one by one and never moves memory, and the memory that is enough for the best of these
//!    allocators.
//!
//! Streams and private pools are ignored: any memory may serve any buffer. A buffer is live from its allocation until it is
//! freed, the earliest time at which its memory can be reused; work on other streams only delays this. docs/bounds.md
//! contains the definitions, proofs and sources.
//!
//! The page ideal is needed by an allocator that takes memory from the device in pages and may map them anywhere, at any
//! time, at no cost. There are two answers, under different assumptions:
//!
//! - If memory is taken and released in whole pages, and no byte serves two live buffers, then the load, rounded up to pages,
//!   is needed.
//! - If, in addition, each buffer of at least a page has its own pages, which it shares with no other buffer, and contents
//!   are never copied, then each of these buffers needs its size rounded up to pages, and the smaller buffers together need
//!   their bytes rounded up to pages. Without smaller buffers, this is exactly enough, because any free page can be mapped
//!   wherever a page is needed. With smaller buffers, it is only a lower bound, because a small buffer stays on its page; a
//!   packing of the small buffers provides a number that is enough. The packer finds these packings and the checker verifies
//!   them.

pub mod robson;

pub use robson::Robson;

use std::fmt;

use rustc_hash::FxHashMap;

use crate::packing::{self, Buffer, Effort, Fault, Found, Instance, InstanceError};
use crate::workload::{Event, Workload};

/// Blocks are multiples of this many bytes under any settings (spec 1.1).
pub const BLOCK_BYTES: u64 = 512;

/// All bounds for a workload, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The most bytes live at once, in requested sizes.
    pub load_bytes: u64,
    /// The same with every request rounded up to [`BLOCK_BYTES`].
    pub load_512_bytes: u64,
    /// The memory that is needed if pages can be remapped.
    pub pages: PageIdeal,
    /// The best packing found for the rounded requests, verified by the checker.
    pub packing: Found,
    /// Bounds that follow from sizes and load alone; `None` for a workload without buffers, or if the bounds do not fit in 64
    /// bits.
    pub robson: Option<Robson>,
}

impl Bounds {
    /// Computes all bounds. The packer takes at most about twice the steps of `effort`: once for all buffers, and once for
    /// those smaller than a page.
    ///
    /// # Errors
    /// Returns [`BoundsError`] for a buffer of 0 bytes, or for sizes that add up to more than 2^62 bytes.
    pub fn of(workload: &Workload, effort: &Effort) -> Result<Bounds, BoundsError> {
        let rounded = buffers(workload, BLOCK_BYTES);
        let pages = PageIdeal::of(&rounded, PAGE_BYTES, effort)?;
        let robson = Robson::of(&rounded);
        let instance = Instance::new(rounded).map_err(BoundsError::Instance)?;
        Ok(Bounds {
            load_bytes: workload.load_bytes(1),
            load_512_bytes: instance.load(),
            pages,
            packing: pack_checked(&instance, effort)?,
            robson,
        })
    }
}

/// Returns the buffers of a workload in order of allocation, with each size rounded up to a multiple of `unit` bytes.
///
/// Times are numbers of events. A buffer is live from its allocation until the event that frees it, or to the end. If another
/// stream is still using the buffer then, its memory becomes free later; the lifetime here is the shortest possible, so that
/// the bounds are valid however long the work takes. An event that frees a nonexistent buffer is skipped.
///
/// # Panics
/// Panics if `unit` is 0.
#[must_use]
pub fn buffers(workload: &Workload, unit: u64) -> Vec<Buffer> {
    let end_of_all = workload.events.len() as u64;
    let mut buffers: Vec<Buffer> = Vec::new();
    let mut place_of: FxHashMap<u32, usize> = FxHashMap::default();
    for (now, event) in workload.events.iter().enumerate() {
        match *event {
            Event::Allocate { buffer, bytes, .. } => {
                place_of.insert(buffer, buffers.len());
                let size = bytes.div_ceil(unit).saturating_mul(unit);
                buffers.push(Buffer { start: now as u64, end: end_of_all, size, alignment: 1 });
            }
            Event::Free { buffer } => {
                if let Some(place) = place_of.remove(&buffer) {
                    buffers[place].end = now as u64;
                }
            }
            _ => {}
        }
    }
    buffers
}

/// The size of a device page, the granularity of cuMemCreate and cuMemMap (facts: Sizes and addresses).
const PAGE_BYTES: u64 = 2 << 20;

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
    /// Returns the ideal for these buffers on pages of `page_bytes`. `effort` is the effort for packing the small buffers.
    ///
    /// # Errors
    /// Returns [`BoundsError`] for a buffer of 0 bytes, or for sizes that add up to more than 2^62 bytes.
    ///
    /// # Panics
    /// Panics if `page_bytes` is 0.
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
    /// At equal times, ends come before beginnings, because lifetimes are half-open.
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

/// Returns the most pages in use at once.
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

/// Returns the pages of the small buffers in a packing: each page is in use for as long as any of its buffers is live.
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

/// The reason why a workload has no bounds.
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

/// Returns the best packing found, after the checker has verified it.
fn pack_checked(instance: &Instance, effort: &Effort) -> Result<Found, BoundsError> {
    let found = packing::pack(instance, effort);
    packing::check(instance, &found.packing).map_err(BoundsError::Packing)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    //! Tests the ideal against exhaustive search.

    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::robson::tests::lives;
    use super::*;
    use crate::packing::{InstanceError, check, pack};
    use crate::workload::generators::around_a_model::Varlen;
    use crate::workload::generators::cnn::Cnn;
    use crate::workload::generators::mlp::Mlp;
    use crate::workload::generators::transformer::{Attention, Checkpointing, Transformer};

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
        // The first buffer takes two pages and the small one takes one; later, one buffer takes a page, and both small ones
        // share a page.
        let pages = PageIdeal { load_bytes: 2 * PAGE_BYTES, own_pages_bytes: 3 * PAGE_BYTES, reached_bytes: 3 * PAGE_BYTES };
        assert_eq!(bounds.pages, pages);
        assert_eq!(bounds.packing.packing.height, bounds.load_512_bytes);
        let robson = bounds.robson.unwrap();
        assert_eq!((robson.smallest_bytes, robson.largest_bytes), (512, 3 << 20));
        assert_eq!(robson.rounded_load_bytes, (4 << 20) + 1024);
        // The largest power of two in the range is 4096 units of 512 bytes, and it fits in the load once: 4096 (1 + 12 / 2) - 4095.
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

    /// Returns the height of the best packing found, divided by the load.
    fn packed(workload: &Workload) -> f64 {
        let end = workload.events.len() as u64;
        let mut buffers: Vec<Buffer> = Vec::new();
        for (now, event) in workload.events.iter().enumerate() {
            match *event {
                Event::Allocate { bytes, .. } => {
                    buffers.push(Buffer { start: now as u64, end, size: bytes.next_multiple_of(512), alignment: 1 });
                }
                Event::Free { buffer } => buffers[buffer as usize].end = now as u64,
                _ => {}
            }
        }
        let instance = Instance::new(buffers).unwrap();
        let found = pack(&instance, &Effort { steps: 20_000_000, seed: 1 });
        assert_eq!(check(&instance, &found.packing), Ok(()));
        found.packing.height as f64 / workload.load_bytes(512) as f64
    }

    fn small(checkpointing: Checkpointing) -> Transformer {
        let sizes =
            Transformer { layers: 6, hidden: 256, heads: 4, sequence: 512, batch: 4, vocabulary: 1000, ..Transformer::default() };
        Transformer { checkpointing, ..sizes }
    }

    #[test]
    fn a_step_without_mixed_lifetimes_is_packed_as_low_as_its_load() {
        for checkpointing in [Checkpointing::None, Checkpointing::EveryLayer, Checkpointing::Sqrt, Checkpointing::EveryOther] {
            assert_eq!(packed(&small(checkpointing).workload(1).unwrap()), 1.0, "{checkpointing:?}");
            // With two steps, the optimizer's states are allocated late and kept.
            assert_eq!(packed(&small(checkpointing).workload(2).unwrap()), 1.0, "{checkpointing:?}, two steps");
        }
    }

    #[test]
    fn so_are_other_generators_steps() {
        let chunked = Transformer { chunks: 2, ..small(Checkpointing::EveryLayer) };
        let scores = Transformer { attention: Attention::Materialized, accumulation: 2, ..small(Checkpointing::None) };
        let varlen = Varlen { model: small(Checkpointing::None), steps: 1, ..Varlen::default() };
        let cnn = |batch| Cnn { batches: vec![batch], ..Cnn::default() };
        for (name, workload) in [
            ("pieces", chunked.workload(1)),
            ("pieces, two steps", chunked.workload(2)),
            ("scores, two micro-batches", scores.workload(1)),
            ("variable lengths", varlen.workload()),
            ("perceptron", Mlp::default().workload(1)),
            ("perceptron, checkpointing", Mlp { checkpointing: true, ..Mlp::default() }.workload(1)),
            ("network, one sample", cnn(1).workload()),
            ("network", cnn(32).workload()),
        ] {
            assert_eq!(packed(&workload.unwrap()), 1.0, "{name}");
        }
    }

    const PAGE: u64 = 4;

    /// Returns the smallest number of four-byte pages, found by trying all placements of the small buffers. Buffers of at
    /// least a page need not be tried, because their pages can be any free pages.
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

    /// Returns the most pages in use at once with the small buffers at these offsets, or `None` if two of them overlap.
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
            let (large, small): (Vec<Buffer>, Vec<Buffer>) = lives(&buffers).into_iter().partition(|buffer| buffer.size >= PAGE);
            let packing = pack(&Instance::new(small.clone()).unwrap(), &QUICK).packing;
            prop_assert_eq!(Some(ideal.reached_bytes), pages_at(&large, &small, &packing.offsets).map(|pages| pages * PAGE));
            let live = |of: &[Buffer], time, size: fn(u64) -> u64| -> u64 {
                of.iter().filter(|buffer| buffer.start <= time && time < buffer.end).map(|buffer| size(buffer.size)).sum()
            };
            let own = |time| live(&large, time, |size| size.div_ceil(PAGE)) + live(&small, time, |size| size).div_ceil(PAGE);
            prop_assert_eq!(Some(ideal.own_pages_bytes), (0..12).map(|time| own(time) * PAGE).max());
            let load = (0..12).map(|time| live(&large, time, |size| size) + live(&small, time, |size| size)).max();
            prop_assert_eq!(Some(ideal.load_bytes), load.map(|load| load.next_multiple_of(PAGE)));
            prop_assert!(ideal.load_bytes <= ideal.own_pages_bytes && ideal.own_pages_bytes <= fewest && fewest <= ideal.reached_bytes);
            if small.is_empty() {
                prop_assert_eq!(ideal.own_pages_bytes, ideal.reached_bytes, "without small buffers the ideal is reached");
            }
        }
    }
}
