//! PyTorch's rules (spec sections 1 to 5): how a request is rounded, which block serves it, and what happens if no
//! free block can.

use alloc::vec::Vec;

use super::{Attempt, Placement, Policy, Request, Rung};
use crate::block::BlockId;
use crate::heap::{BlockView, Heap, PoolSlot};
use crate::profile::Profile;
use crate::settings::Settings;
use crate::units::{Bytes, MIB, PoolClass};

/// PyTorch's rules under given settings. The settings may be changed at any time, as in PyTorch.
#[derive(Clone, Debug)]
pub struct PyTorch {
    /// The settings, which apply from the next decision.
    pub settings: Settings,
    /// The release's rules. They cannot change, because the order of free blocks depends on them.
    profile: &'static Profile,
    /// The number of searches in each pool while garbage collection was on: the clock by which free blocks age (spec
    /// 2.5, step 1).
    searches: Vec<u64>,
}

impl PyTorch {
    /// PyTorch 2.11's rules under these settings.
    #[must_use]
    pub fn new(settings: Settings) -> PyTorch {
        PyTorch::of(&Profile::PYTORCH_2_11, settings)
    }

    /// The rules of a PyTorch release under these settings.
    #[must_use]
    pub fn of(profile: &'static Profile, settings: Settings) -> PyTorch {
        PyTorch { settings, profile, searches: Vec::new() }
    }

    /// The limit, if garbage collection can run, which requires both a limit and a threshold.
    #[inline]
    fn limit_if_collecting(&self, heap: &Heap) -> Option<Bytes> {
        heap.limit().filter(|_| self.collects_garbage())
    }

    /// The size in bytes of a new segment for a block of this size; `None` if it exceeds 64 bits (spec 1.6). With
    /// expandable segments, the allocator may map fewer bytes, in which case this size only matters for the check
    /// against the limit and for the error.
    #[must_use]
    pub fn segment_for(&self, block: Bytes) -> Option<Bytes> {
        segment_size(block, &self.settings)
    }

    /// The number of bytes that a garbage collection would have to release now; `None` if none is due (spec 2.7).
    #[must_use]
    pub fn collection_target(&self, heap: &Heap) -> Option<Bytes> {
        let trigger = (self.settings.garbage_collection_threshold * self.limit_if_collecting(heap)?.0 as f64) as u64;
        heap.reserved().0.checked_sub(trigger).filter(|&excess| excess > 0).map(Bytes)
    }

    /// Whether the settings have a threshold for garbage collection.
    // Out of line, because there is usually no limit.
    #[cold]
    #[inline(never)]
    fn collects_garbage(&self) -> bool {
        self.settings.garbage_collection_threshold > 0.0
    }

    #[cold]
    #[inline(never)]
    fn count_search(&mut self, pool: PoolSlot) {
        let place = usize::from(pool.0);
        if self.searches.len() <= place {
            self.searches.resize(place + 1, 0);
        }
        self.searches[place] += 1;
    }

    /// The first free block that is large enough. `None` if the rules for oversize blocks refuse it, because PyTorch
    /// considers only one candidate (spec 2.5).
    #[inline(always)]
    fn find(&self, heap: &Heap, request: &Request) -> Option<BlockId> {
        let first = heap.first_at_least(request.pool, request.stream, request.size)?;
        let (size, id) = if !first.is_expandable {
            (first.size, first.id)
        } else if request.is_expandable {
            choose_among_expandable(heap, first.id, first.size)
        } else {
            first_elsewhere(heap, *request)?
        };
        self.reuses(size, request).then_some(id)
    }

    /// Whether the rules for oversize blocks allow the request to use a free block of `whole` bytes (spec 2.5).
    #[inline(always)]
    fn reuses(&self, whole: Bytes, request: &Request) -> bool {
        let max_split = self.settings.max_split_bytes;
        if request.size.0 < max_split {
            return whole.0 < max_split;
        }
        // The sum wraps around, as in PyTorch: with a slack near 2^64, which is the result of -1 in the settings, no
        // oversize block is reused.
        let bound = request.size.0.wrapping_add(self.settings.max_non_split_rounding_bytes);
        whole.0 < bound
    }
}

/// Chooses a block if the first candidate belongs to an expandable segment. The growing end of a segment is used last
/// (spec 2.5, step 3).
// Out of line, so that heaps without expandable segments do not pay for it.
#[inline(never)]
fn choose_among_expandable(heap: &Heap, mut id: BlockId, mut size: Bytes) -> (Bytes, BlockId) {
    // Compares the sizes that blocks could grow to. Later blocks are at least as large, so a block that cannot grow is
    // chosen.
    let mut growth = heap.unmapped_after(id);
    while growth > Bytes::ZERO
        && let Some(next) = heap.following(id)
    {
        let next_growth = heap.unmapped_after(next.id);
        if next.size + next_growth >= size + growth {
            break;
        }
        // This is zero for a block outside expandable segments, which ends the walk.
        (id, size, growth) = (next.id, next.size, next_growth);
    }
    (size, id)
}

/// The first free block that is large enough and not in an expandable segment. While expandable segments are switched
/// off, PyTorch never reuses their blocks (spec 2.5, step 3).
#[cold]
#[inline(never)]
fn first_elsewhere(heap: &Heap, request: Request) -> Option<(Bytes, BlockId)> {
    let mut blocks = heap.at_least(request.pool, request.stream, request.size);
    blocks.find(|block| !block.is_expandable).map(|block| (block.size, block.id))
}

impl Policy for PyTorch {
    fn name(&self) -> &'static str {
        "pytorch"
    }

    fn profile(&self) -> &'static Profile {
        self.profile
    }

    #[inline]
    fn round(&self, requested: Bytes) -> Option<Bytes> {
        block_size(requested.0, &self.settings, self.profile).map(Bytes)
    }

    #[inline]
    fn classify(&self, size: Bytes) -> PoolClass {
        if size.0 <= SMALL_SIZE { PoolClass::Small } else { PoolClass::Large }
    }

    fn is_expandable(&self, _: PoolSlot) -> bool {
        self.settings.expandable_segments
    }

    /// See spec 4.1.
    fn page(&self, pool: PoolSlot) -> Bytes {
        match pool.class() {
            PoolClass::Small => Bytes::mib(2),
            PoolClass::Large => Bytes(self.settings.large_segment_bytes),
        }
    }

    // Always inlined: a request calls it in only one place, and the compiler would stop inlining it when it grows.
    #[inline(always)]
    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        if self.limit_if_collecting(heap).is_some() {
            self.count_search(request.pool);
        }
        match self.find(heap, request) {
            Some(block) => Placement::Reuse(block),
            None => Placement::Segment(self.segment_for(request.size).unwrap_or(Bytes::MAX)),
        }
    }

    fn as_pytorch(&self) -> Option<&PyTorch> {
        Some(self)
    }

    /// Spec 4.1: nine eighths of the memory, unless the settings specify a different size.
    fn reservation(&self, total: Bytes) -> Bytes {
        let full = total.checked_add(Bytes(total.0 / 8)).unwrap_or(Bytes::MAX);
        self.settings.expandable_segments_reserve.map_or(full, |size| size.bytes(total).min(full))
    }

    /// Compares with the fraction in the settings, even if the limit has since changed (spec 11).
    fn rejects(&self, reserved: Bytes, size: Bytes, total: Bytes) -> bool {
        self.settings.throw_on_cudamalloc_oom && {
            let most = self.settings.per_process_memory_fraction * total.0 as f64;
            reserved.checked_add(size).is_none_or(|wanted| wanted.0 > most as u64)
        }
    }

    /// Spec 3.1: in the small pool, a remainder of at least 512 bytes is split off; in the large pool, it must exceed
    /// 1 MiB, and requests of `max_split_size` or more keep the entire block.
    #[inline]
    fn splits(&self, whole: Bytes, request: &Request) -> bool {
        let rest = whole.0 - request.size.0;
        match request.pool.class() {
            _ if request.is_expandable => rest >= MIN_BLOCK,
            PoolClass::Small => rest >= MIN_BLOCK,
            PoolClass::Large => request.size.0 < self.settings.max_split_bytes && rest > SMALL_SIZE,
        }
    }

    /// Spec 2.4, step 6.
    fn ladder(&self) -> &'static [Rung] {
        if self.profile.borrows_last { &BORROWING_LAST } else { &LADDER }
    }

    /// Free segments of the large default pool that are at least as old as the average: as many as are needed to
    /// reclaim enough bytes (spec 2.7).
    fn garbage(&mut self, heap: &Heap) -> Vec<BlockId> {
        let Some(Bytes(target)) = self.collection_target(heap) else { return Vec::new() };
        let pool = PoolSlot::default_pool(PoolClass::Large);
        let now = self.stamp(pool);
        let age = |block: &BlockView| now.saturating_sub(block.stamp);
        let mut candidates: Vec<BlockView> = heap.free_blocks(pool).filter(|block| !block.is_split).collect();
        let mut total_age = candidates.iter().map(age).sum::<u64>() as f64;
        let mut victims = Vec::new();
        let mut reclaimed = 0;
        while reclaimed < target && !candidates.is_empty() {
            let least_age = total_age / candidates.len() as f64;
            let before = victims.len();
            candidates.retain(|block| {
                let old = age(block) as f64 >= least_age && !block.is_expandable;
                if old {
                    reclaimed += block.size.0;
                    total_age -= age(block) as f64;
                    victims.push(block.id);
                }
                !old
            });
            if victims.len() == before {
                break;
            }
        }
        victims
    }

    /// The oversize blocks of the request's stream: the smallest block that is large enough on its own, or as many of the
    /// largest ones as are large enough together (spec 2.9).
    ///
    /// PyTorch does not check that these blocks are entire segments, and corrupts its heap if the setting has been
    /// lowered at run time. This method skips parts of segments, which makes no difference while the setting is constant.
    fn oversize(&self, heap: &Heap, request: &Request) -> (Vec<BlockId>, Attempt) {
        let max_split = Bytes(self.settings.max_split_bytes);
        if max_split == Bytes::MAX {
            return (Vec::new(), Attempt::No);
        }
        let fails_at_expandable = self.profile.fails_to_release_expandable();
        let wanted = request.size.max(max_split);
        let mut sufficient =
            heap.at_least(request.pool, request.stream, wanted).filter(|block| block.is_expandable || !block.is_split);
        match sufficient.next() {
            Some(block) if !block.is_expandable => return (alloc::vec![block.id], Attempt::Ask),
            Some(_) if fails_at_expandable => return (Vec::new(), Attempt::Fail),
            _ => {}
        }
        let mut victims = Vec::new();
        let mut released = 0;
        let smaller = heap.below(request.pool, request.stream, wanted).take_while(|block| block.size >= max_split);
        for block in smaller {
            if released >= wanted.0 {
                break;
            }
            if block.is_expandable && fails_at_expandable {
                return (victims, Attempt::Fail);
            }
            if block.is_expandable || block.is_split {
                continue;
            }
            released += block.size.0;
            victims.push(block.id);
        }
        (victims, if released >= wanted.0 { Attempt::Ask } else { Attempt::No })
    }

    /// Garbage collection and the release of oversize blocks ignore captures (spec 2.7, 2.9).
    fn releases_during_captures(&self) -> bool {
        true
    }

    fn reuses_in_captures(&self) -> bool {
        self.settings.graph_capture_record_stream_reuse
    }

    #[inline]
    fn stamp(&self, pool: PoolSlot) -> u64 {
        self.searches.get(usize::from(pool.0)).copied().unwrap_or(0)
    }

    #[inline]
    fn is_oversize(&self, size: Bytes) -> bool {
        size.0 >= self.settings.max_split_bytes
    }

    fn max_split_size(&self) -> i64 {
        self.settings.max_split_bytes as i64
    }
}

/// The ladder since PyTorch 2.11.
const LADDER: [Rung; 7] = [
    Rung::CollectGarbage,
    Rung::Grow,
    Rung::BorrowFromPools,
    Rung::ReleaseOversize,
    Rung::WaitForEvents,
    Rung::ReleaseAll,
    Rung::GrowAgain,
];

/// The ladder up to PyTorch 2.10, which searches the pools last.
const BORROWING_LAST: [Rung; 7] = [
    Rung::CollectGarbage,
    Rung::Grow,
    Rung::ReleaseOversize,
    Rung::WaitForEvents,
    Rung::ReleaseAll,
    Rung::GrowAgain,
    Rung::BorrowFromPools,
];

/// Every block size is a multiple of this (spec 1.1).
const MIN_BLOCK: u64 = 512;
/// The size of the largest block of the small pool. In the large pool, a remainder must exceed this size to be split
/// off (spec 1.1).
const SMALL_SIZE: u64 = MIB;
/// The size of a small-pool segment (spec 1.1).
const SMALL_BUFFER: u64 = 2 * MIB;
/// For blocks of at least this size, a segment has the block's size rounded up to [`ROUND_LARGE`] (spec 1.1).
const MIN_LARGE_ALLOC: u64 = 10 * MIB;
/// The sizes of segments for blocks of at least [`MIN_LARGE_ALLOC`] are multiples of this (spec 1.1).
const ROUND_LARGE: u64 = 2 * MIB;

/// The block size for a request (spec 1.2); `None` if it exceeds 64 bits.
#[inline]
fn block_size(requested: u64, settings: &Settings, profile: &Profile) -> Option<u64> {
    if requested < MIN_BLOCK {
        return Some(MIN_BLOCK);
    }
    match division(requested, &settings.roundup_power2_divisions) {
        0 => whole_units(requested),
        divisions => by_divisions(requested, divisions, profile),
    }
}

/// The block size if the settings divide the interval up to the next power of two, which few settings do.
#[cold]
fn by_divisions(requested: u64, divisions: u64, profile: &Profile) -> Option<u64> {
    if divisions == 1 {
        return if profile.rounds_by_one_division { whole_units(requested) } else { Some(requested) };
    }
    // The product wraps around, as in PyTorch: with 2^55 divisions or more, the bound is 0.
    if requested > divisions.wrapping_mul(MIN_BLOCK) { next_division(requested, divisions) } else { whole_units(requested) }
}

/// Rounds up to a multiple of [`MIN_BLOCK`].
#[inline]
fn whole_units(requested: u64) -> Option<u64> {
    // Does the same as `checked_next_multiple_of` in fewer steps, because the unit is a power of two.
    requested.checked_add(requested.wrapping_neg() & (MIN_BLOCK - 1))
}

/// The number of divisions for a request: one of 16 slots, chosen by the power of two below it, from less than 2 MiB
/// to 32 GiB or more (spec 1.3).
#[inline]
fn division(requested: u64, divisions: &[u64; 16]) -> u64 {
    let slot = (requested >> 20 | 1).ilog2().min(15);
    divisions[slot as usize]
}

/// Rounds up to the next of `divisions` equal steps between two powers of two (spec 1.4).
fn next_division(requested: u64, divisions: u64) -> Option<u64> {
    if requested.is_power_of_two() {
        return Some(requested);
    }
    let floor = 1_u64 << requested.ilog2();
    match floor / divisions {
        0 => floor.checked_mul(2),
        step => requested.checked_next_multiple_of(step),
    }
}

/// The size of a new segment for a block (spec 1.6); `None` if it exceeds 64 bits.
fn segment_size(block: Bytes, settings: &Settings) -> Option<Bytes> {
    if block.0 <= SMALL_SIZE {
        Some(Bytes(SMALL_BUFFER))
    } else if block.0 < MIN_LARGE_ALLOC {
        Some(Bytes(settings.large_segment_bytes))
    } else {
        block.checked_round_up(Bytes(ROUND_LARGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_size_of(requested: u64, settings: &Settings) -> Option<u64> {
        block_size(requested, settings, &Profile::PYTORCH_2_11)
    }

    fn settings(divisions: [u64; 16]) -> Settings {
        Settings { roundup_power2_divisions: divisions, ..Settings::default() }
    }

    #[test]
    fn sizes_of_the_specification() {
        let mut slots = [8; 16];
        slots[0] = 4;
        let settings = settings(slots);
        for (requested, size) in [
            (1, 512),
            (513, 1024),
            (1200, 1536),
            (2049, 2560),
            (4097, 5120),
            (8193, 10240),
            (1_048_577, 1_310_720),
            (1_572_865, 1_835_008),
            (2_097_153, 2_359_296),
            (10_485_759, 10_485_760),
            (67_108_865, 75_497_472),
            (100_000_000, 100_663_296),
            (134_217_729, 150_994_944),
            (268_435_457, 301_989_888),
        ] {
            assert_eq!(block_size_of(requested, &settings), Some(size), "request of {requested}");
        }
    }

    #[test]
    fn absurdly_many_divisions_round_to_powers_of_two() {
        for exponent in [55, 62, 63] {
            assert_eq!(block_size_of(2049, &settings([1 << exponent; 16])), Some(4096), "2^{exponent} divisions");
        }
    }

    #[test]
    fn a_size_beyond_64_bits_is_none() {
        assert_eq!(block_size_of(u64::MAX, &Settings::default()), None);
        assert_eq!(block_size_of(u64::MAX - 511, &Settings::default()), Some(u64::MAX - 511));
        assert_eq!(block_size_of(u64::MAX, &settings([2; 16])), None);
        assert_eq!(segment_size(Bytes(u64::MAX - 511), &Settings::default()), None);
    }

    #[test]
    fn segments_of_the_specification() {
        let settings = Settings::default();
        let segment = |block| segment_size(Bytes(block), &settings).map(Bytes::get);
        assert_eq!(segment(MIB), Some(2 * MIB));
        assert_eq!(segment(MIB + 512), Some(20 * MIB));
        assert_eq!(segment(10 * MIB - 512), Some(20 * MIB));
        assert_eq!(segment(10 * MIB), Some(10 * MIB));
        assert_eq!(segment(10 * MIB + 512), Some(12 * MIB));
    }
}
