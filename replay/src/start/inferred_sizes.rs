//! Sizes from before the first entry that show only in what did not happen.
//!
//! Where nothing is allocated in the free gap behind a block, the block is taken as its rounded request, and the gap may be up to
//! 1 MiB smaller than it looks. If the core then serves a request from the beginning of the gap, and the recording serves it from
//! somewhere else, the gap was too small for it: the block owns at least so much more.

use parkade::policy::{Policy, PyTorch};
use parkade::units::{Bytes, MIB};
use parkade::{AdoptedContent, AdoptedSegment};
use parkade_recording::Action;

use crate::decision::Decision;

/// The size by which sizes of blocks differ (spec 1.1).
const BLOCK_SIZE: u64 = 512;

/// A block whose size shows nowhere in the trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumed {
    /// First byte behind what it is taken to own: the beginning of the gap.
    pub(crate) gap: u64,
    /// Bytes behind its rounded request that it must own.
    pub(crate) own: u64,
    /// The entry at which it is given back, if in the trace.
    pub(crate) freed_at: Option<u32>,
}

/// The gap of an assumed block, as it must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallerGap {
    place: usize,
    by: u64,
}

/// The segments before the first entry, with all their blocks; and the blocks whose size is assumed.
#[derive(Clone)]
pub(crate) struct Extents {
    pub(crate) segments: Vec<AdoptedSegment>,
    pub(crate) assumed: Vec<Assumed>,
}

impl Extents {
    /// Whether a gap that is smaller than assumed explains why the recording did not do at `entry` what the core did.
    pub(crate) fn explain(&self, entry: usize, doing: &Decision, policy: &PyTorch) -> Option<SmallerGap> {
        if doing.action != Action::Alloc {
            return None;
        }
        let is_it =
            |assumed: &Assumed| assumed.gap == doing.address && assumed.freed_at.is_none_or(|freed| freed as usize > entry);
        let place = self.assumed.iter().position(is_it)?;
        let (segment, block) = self.find_gap(doing.address)?;
        let rounded = policy.round(Bytes(doing.size))?.get();
        let by = self.segments[segment].blocks[block].size.get().checked_sub(rounded.checked_sub(BLOCK_SIZE)?)?;
        // A gap of nothing is none, and a rest of more than 1 MiB would have been split off.
        (by > 0 && rounded > BLOCK_SIZE && self.assumed[place].own + by <= MIB).then_some(SmallerGap { place, by })
    }

    /// Gives the beginning of a gap to the block before it.
    pub(crate) fn shrink(&mut self, SmallerGap { place, by }: SmallerGap) {
        let Some((segment, block)) = self.find_gap(self.assumed[place].gap) else { return };
        extend(&mut self.segments[segment], block, by);
        self.assumed[place].gap += by;
        self.assumed[place].own += by;
    }

    /// Assumed blocks of which something is known.
    pub(crate) fn inferred(&self) -> usize {
        self.assumed.iter().filter(|assumed| assumed.own > 0).count()
    }

    /// The free block that begins at an address: its segment and its place there.
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

/// Gives the first `own` bytes of a free block to the block before it.
pub(crate) fn extend(segment: &mut AdoptedSegment, gap: usize, own: u64) {
    let blocks = &mut segment.blocks;
    let size = blocks[gap].size.get();
    if own > 0 && own < size {
        blocks[gap].size = Bytes(size - own);
        blocks[gap - 1].size = Bytes(blocks[gap - 1].size.get() + own);
    }
}
