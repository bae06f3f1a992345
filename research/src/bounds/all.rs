//! All bounds for a workload, and its buffers with their lifetimes, in numbers of events.

use rustc_hash::FxHashMap;

use super::pages::{self, BoundsError, PageIdeal, pack_checked};
use super::robson::Robson;
use crate::packing::{Buffer, Effort, Found, Instance};
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
    /// [`BoundsError`] for a buffer of 0 bytes, or for sizes that add up to more than 2^62 bytes.
    pub fn of(workload: &Workload, effort: &Effort) -> Result<Bounds, BoundsError> {
        let rounded = buffers(workload, BLOCK_BYTES);
        let pages = PageIdeal::of(&rounded, pages::PAGE_BYTES, effort)?;
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

/// The buffers of a workload in order of allocation, with each size rounded up to a multiple of `unit` bytes.
///
/// Times are numbers of events. A buffer is live from its allocation until the event that frees it, or to the end. If another
/// stream is still using the buffer then, its memory becomes free later; the lifetime here is the shortest possible, so that
/// the bounds are valid however long the work takes. An event that frees a nonexistent buffer is skipped.
///
/// # Panics
/// If `unit` is 0.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::pages::PAGE_BYTES;
    use crate::bounds::robson::tests::lives;
    use crate::packing::{InstanceError, check, pack};
    use crate::workload::generators::cnn::Cnn;
    use crate::workload::generators::mlp::Mlp;
    use crate::workload::generators::transformer::{Attention, Checkpointing, Transformer};
    use crate::workload::generators::varlen::Varlen;

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

    /// The height of the best packing found, divided by the load.
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
}
