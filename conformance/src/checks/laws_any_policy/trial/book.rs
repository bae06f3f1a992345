//! Who holds which bytes: the live allocations, and freed ones that other streams may still use.

use parkade::Allocation;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::{DeviceAddress, StreamId};

use crate::backend::Witness;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::Leaving;

/// A live allocation.
pub(super) struct Live {
    pub(super) allocation: Allocation,
    /// The requested size in bytes.
    pub(super) requested: u64,
    /// The stream it was requested on.
    pub(super) home: StreamId,
    /// The stream that used it last.
    pub(super) last: StreamId,
    /// The word it was last filled with.
    pub(super) word: u32,
    /// Other streams whose use was recorded.
    pub(super) told: Vec<u64>,
    /// Whether one of these uses was recorded while a graph was captured: the allocator forgets such a use if the block is freed
    /// during a capture, so the program does not free it then.
    pub(super) is_captured: bool,
    /// The number of the private pool it came from; 0 is the default pool.
    pub(super) pool: u64,
}

impl Live {
    /// A block that a pool has just handed out to a stream and that is not used yet.
    pub(super) fn new(allocation: Allocation, requested: u64, home: StreamId, pool: u64) -> Live {
        Live { allocation, requested, home, last: home, word: 0, told: Vec::new(), is_captured: false, pool }
    }

    pub(super) fn address(&self) -> DeviceAddress {
        self.allocation.address()
    }

    /// The bytes that are filled, in whole words; 0 if its address is not word-aligned, which only an invalid policy causes.
    pub(super) fn whole_words(&self) -> u64 {
        if self.address().get().is_multiple_of(4) { self.requested / 4 * 4 } else { 0 }
    }

    fn overlaps(&self, address: u64, size: u64) -> bool {
        let start = self.address().get();
        start < address + size && address < start + self.requested
    }
}

/// Who holds what.
#[derive(Default)]
pub(super) struct Book {
    pub(super) live: Vec<Live>,
    leaving: Vec<Leaving>,
}

impl Book {
    /// Adds a new allocation whose block has `size` bytes.
    ///
    /// # Errors
    /// If the block is misaligned, or overlaps memory that is in use.
    pub(super) fn add(&mut self, live: Live, size: u64, unit: u64, witness: &Witness) -> Result<(), Broken> {
        let address = live.address().get();
        ensure(Law::Alignment, address.is_multiple_of(unit), || format!("{address:#x} is not a multiple of {unit}"))?;
        for other in &self.live {
            ensure(Law::NoOverlap, !other.overlaps(address, size), || {
                let (at, bytes) = (other.address(), other.requested);
                format!("the {size} bytes at {address:#x} overlap a live allocation of {bytes} bytes at {at}")
            })?;
        }
        for other in self.leaving.iter().filter(|other| !other.is_known_done(witness)) {
            let overlap = other.address < address + size && address < other.address + other.requested;
            ensure(Law::NoEarlyReuse, !overlap, || {
                format!("the {size} bytes at {address:#x} are reused before their events are complete: {other:?}")
            })?;
        }
        self.live.push(live);
        Ok(())
    }

    /// Removes a live allocation, which is about to be freed.
    pub(super) fn give_back(&mut self, which: usize, witness: &Witness) -> Live {
        let live = self.live.swap_remove(which);
        if !live.told.is_empty() {
            let waits = live.told.iter().map(|&stream| (stream, witness.recorded(stream))).collect();
            self.leaving.push(Leaving { address: live.address().get(), requested: live.requested, waits, deferred: false });
        }
        live
    }

    /// The indices of the allocations that a pool has handed out.
    pub(super) fn of_pool(&self, pool: u64) -> impl Iterator<Item = usize> + '_ {
        (0..self.live.len()).filter(move |&which| self.live[which].pool == pool)
    }

    /// How many freed allocations are still pending in the heap.
    pub(super) fn pending(&self) -> usize {
        self.leaving.len()
    }

    /// Checks that exactly the live allocations are handed out, each in a large enough block, and that what may still be in use
    /// is pending.
    ///
    /// # Errors
    /// If they disagree.
    pub(super) fn check(&mut self, segments: &[SegmentInfo], witness: &Witness) -> Result<(), Broken> {
        let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
        let mut expected: Vec<&Live> = self.live.iter().collect();
        expected.sort_unstable_by_key(|live| live.address());
        let mut expected = expected.into_iter();
        for block in blocks().filter(|block| block.state == BlockActivity::Allocated) {
            let live = expected.next().map(|live| (live.address(), live.requested));
            let agrees = live == Some((block.address, block.requested.get())) && block.size >= block.requested;
            ensure(Law::Accounting, agrees, || format!("the heap has {block:?} handed out, the program holds {live:?}"))?;
        }
        let missing = expected.next().map(|live| (live.address(), live.requested));
        ensure(Law::Accounting, missing.is_none(), || format!("the heap does not have {missing:?}"))?;
        let pending: Vec<u64> =
            blocks().filter(|block| block.state == BlockActivity::PendingFree).map(|block| block.address.get()).collect();
        for leaving in self.leaving.iter().filter(|leaving| !leaving.is_known_done(witness)) {
            ensure(Law::NoEarlyReuse, pending.contains(&leaving.address), || format!("{leaving:?} is not pending"))?;
        }
        let stray = pending.iter().find(|&&address| self.leaving.iter().all(|leaving| leaving.address != address));
        ensure(Law::Accounting, stray.is_none(), || format!("the block at {stray:x?} is pending, and no stream uses it"))?;
        self.leaving.retain(|leaving| pending.contains(&leaving.address));
        Ok(())
    }
}
