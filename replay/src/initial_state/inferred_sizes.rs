//! Block sizes from before the first entry that show only in what the recorded allocator did not do.
//!
//! If nothing is ever allocated in the gap after a block, the block is assumed to be as long as its rounded
//! request, and the gap may be up to 1 MiB smaller than it looks. If the core then serves a request from the
//! beginning of the gap where the recording serves it from elsewhere, the gap was too small for it, so the
//! block must be longer: the least length that explains this is assumed, and the replay starts again.

use parkade::policy::{Policy, PyTorch};
use parkade::units::{Bytes, MIB};
use parkade::{AdoptedContent, AdoptedSegment};
use parkade_recording::Action;

use crate::entries::Decision;

/// Block sizes are multiples of this (spec 1.1).
const BLOCK_SIZE: u64 = 512;

/// A block whose size does not show in the trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumed {
    /// The address where it is assumed to end and the gap begins.
    pub(crate) gap: u64,
    /// By how many bytes it is longer than its rounded request, as far as inferred.
    pub(crate) own: u64,
    /// The entry at which it is freed, if that is in the trace.
    pub(crate) freed_at: Option<u32>,
}

/// A correction: the gap after an assumed block is smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallerGap {
    place: usize,
    by: u64,
}

/// The segments before the first entry with all their blocks, and the blocks whose size is assumed.
#[derive(Clone)]
pub(crate) struct Extents {
    pub(crate) segments: Vec<AdoptedSegment>,
    pub(crate) assumed: Vec<Assumed>,
}

impl Extents {
    /// The smaller gap that explains why the recording did not do at `entry` what the
    /// core did; `None` if no gap explains it.
    pub(crate) fn explain(&self, entry: usize, decision: &Decision, policy: &PyTorch) -> Option<SmallerGap> {
        if decision.action != Action::Alloc {
            return None;
        }
        let is_it =
            |assumed: &Assumed| assumed.gap == decision.address && assumed.freed_at.is_none_or(|freed| freed as usize > entry);
        let place = self.assumed.iter().position(is_it)?;
        let (segment, block) = self.find_gap(decision.address)?;
        let rounded = policy.round(Bytes(decision.size))?.get();
        let by = self.segments[segment].blocks[block].size.get().checked_sub(rounded.checked_sub(BLOCK_SIZE)?)?;
        // The gap must shrink, must not vanish, and the block's remainder must be one
        // that is not split off: at most 1 MiB.
        (by > 0 && rounded > BLOCK_SIZE && self.assumed[place].own + by <= MIB).then_some(SmallerGap { place, by })
    }

    /// Makes a gap smaller and the block before it longer.
    pub(crate) fn shrink(&mut self, SmallerGap { place, by }: SmallerGap) {
        let Some((segment, block)) = self.find_gap(self.assumed[place].gap) else { return };
        extend(&mut self.segments[segment], block, by);
        self.assumed[place].gap += by;
        self.assumed[place].own += by;
    }

    /// How many assumed blocks turned out to be longer.
    pub(crate) fn inferred(&self) -> usize {
        self.assumed.iter().filter(|assumed| assumed.own > 0).count()
    }

    /// The free block at an address: the index of its segment, and its index there.
    fn find_gap(&self, address: u64) -> Option<(usize, usize)> {
        for (place, segment) in self.segments.iter().enumerate() {
            let mut at = segment.address.get();
            for (block, adopted) in segment.blocks.iter().enumerate().take_while(|_| segment.address.get() < address) {
                if at == address {
                    return (adopted.content == AdoptedContent::Free && block > 0).then_some((place, block));
                }
                at += adopted.size.get();
            }
        }
        None
    }
}

/// Moves the first `own` bytes of a free block to the block before it.
pub(crate) fn extend(segment: &mut AdoptedSegment, gap: usize, own: u64) {
    let blocks = &mut segment.blocks;
    let size = blocks[gap].size.get();
    if own > 0 && own < size {
        blocks[gap].size = Bytes(size - own);
        blocks[gap - 1].size = Bytes(blocks[gap - 1].size.get() + own);
    }
}
