//! The directory of the bins: which ones have blocks, and where each one begins.
//!
//! Each size maps to one of 4,096 bins: its number of 512-byte units as a float with seven mantissa bits. A larger
//! size never maps to a lower bin, so the next occupied bin contains the next larger size; a two-level bitmap finds
//! that bin with two bit scans. Bins are stored in groups of 64, up to the highest bin ever used, because many streams
//! never have a large block.

use alloc::boxed::Box;

use crate::block::NIL;

const GROUP: usize = 64;
/// The bin for all sizes of 127.5 TiB or more.
pub(super) const LAST_BIN: usize = 64 * GROUP - 1;
const UNIT_SHIFT: u32 = 9;
const MANTISSA_BITS: u32 = 7;

/// The bin for a size. Below 128 KiB, a bin is 512 bytes wide; above that, its width is between 1/256 and 1/128 of the
/// size.
#[inline]
pub(super) fn bin_of(size: u64) -> usize {
    unlimited_bin_of(size).min(LAST_BIN)
}

/// The bin for a size, possibly beyond the last bin. No directory has bins beyond the last one, so a failed lookup
/// must be repeated with the last bin.
#[inline(always)]
pub(super) fn unlimited_bin_of(size: u64) -> usize {
    let units = size >> UNIT_SHIFT;
    let shift = (units | 1 << MANTISSA_BITS).ilog2() - MANTISSA_BITS;
    // The mantissa's top bit adds 1 to the exponent field, so small sizes map to themselves.
    ((u64::from(shift) << MANTISSA_BITS) + (units >> shift)) as usize
}

/// A bin's entry: the number of its blocks, and where they begin. Only the empty bin has a fixed representation here:
/// count 0 and head [`NIL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bin {
    pub(super) head: u32,
    pub(super) count: u32,
}

impl Bin {
    const EMPTY: Bin = Bin { head: NIL, count: 0 };
}

/// All bins of one collection.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    /// One bit per group: whether the group has an occupied bin.
    groups: u64,
    /// For each group, one bit per bin: whether the bin is occupied.
    occupied: Box<[u64]>,
    /// The entries of all bins in these groups.
    bins: Box<[Bin]>,
}

impl Directory {
    /// Whether no bin is occupied.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.groups == 0
    }

    /// A bin's entry.
    #[inline]
    pub(super) fn get(&self, bin: usize) -> Bin {
        self.bins.get(bin).copied().unwrap_or(Bin::EMPTY)
    }

    /// A mutable reference to the entry of an occupied bin, which must stay occupied.
    #[inline]
    pub(super) fn at_mut(&mut self, bin: usize) -> &mut Bin {
        debug_assert!(self.get(bin).count != 0, "an empty bin was changed as if it had blocks");
        &mut self.bins[bin]
    }

    /// Adds the first block to a bin. Returns false and does nothing if the bin already has blocks or is beyond the
    /// last group.
    #[inline(always)]
    pub(super) fn fill_empty(&mut self, bin: usize, head: u32) -> bool {
        let Some(entry) = self.bins.get_mut(bin).filter(|entry| entry.count == 0) else { return false };
        let Some(group) = self.occupied.get_mut(bin / GROUP) else { return false };
        *entry = Bin { head, count: 1 };
        *group |= 1 << (bin % GROUP);
        self.groups |= 1 << (bin / GROUP);
        true
    }

    /// Removes the only block from a bin. Returns false and does nothing if the bin has other blocks.
    #[inline(always)]
    pub(super) fn clear_single(&mut self, bin: usize) -> bool {
        let Some(entry) = self.bins.get_mut(bin).filter(|entry| entry.count == 1) else { return false };
        let Some(group) = self.occupied.get_mut(bin / GROUP) else { return false };
        *entry = Bin::EMPTY;
        *group &= !(1 << (bin % GROUP));
        if *group == 0 {
            self.groups &= !(1 << (bin / GROUP));
        }
        true
    }

    /// Whether there is an entry for the bin.
    #[inline]
    pub(super) fn reaches(&self, bin: usize) -> bool {
        bin < self.bins.len()
    }

    /// The first occupied bin at or after `bin`.
    #[inline(always)]
    pub(super) fn first_from(&self, bin: usize) -> Option<usize> {
        self.first_in(bin / GROUP, u64::MAX << (bin % GROUP))
    }

    /// The first occupied bin after `bin`.
    #[inline]
    pub(super) fn first_after(&self, bin: usize) -> Option<usize> {
        self.first_in(bin / GROUP, (u64::MAX << 1) << (bin % GROUP))
    }

    /// The last occupied bin before `bin`.
    pub(super) fn last_before(&self, bin: usize) -> Option<usize> {
        self.last_in(bin / GROUP, (1 << (bin % GROUP)) - 1)
    }

    /// The last occupied bin.
    pub(super) fn last(&self) -> Option<usize> {
        self.last_in(LAST_BIN / GROUP, u64::MAX)
    }

    /// The first occupied bin among a group's bins that the mask allows and the bins of all later groups.
    #[inline(always)]
    fn first_in(&self, own: usize, mask: u64) -> Option<usize> {
        let here = self.occupied.get(own)? & mask;
        if here != 0 {
            return Some(own * GROUP + here.trailing_zeros() as usize);
        }
        let later = self.groups & ((u64::MAX << 1) << own);
        let group = later.trailing_zeros() as usize;
        // If there is no later group, this is 64, and no group has that index.
        let bits = self.occupied.get(group)?;
        Some(group * GROUP + bits.trailing_zeros() as usize)
    }

    fn last_in(&self, own: usize, mask: u64) -> Option<usize> {
        let here = self.occupied.get(own).map_or(0, |occupied| occupied & mask);
        if here != 0 {
            return Some(own * GROUP + here.ilog2() as usize);
        }
        let group = (self.groups & ((1 << own) - 1)).checked_ilog2()? as usize;
        Some(group * GROUP + self.occupied[group].ilog2() as usize)
    }

    /// Adds entries up to and including the bin's.
    #[cold]
    #[inline(never)]
    pub(super) fn grow(&mut self, bin: usize) {
        let wanted = bin / GROUP + 1;
        self.occupied = longer(&self.occupied, wanted, 0);
        self.bins = longer(&self.bins, wanted * GROUP, Bin::EMPTY);
    }
}

/// Extends a boxed slice to `len` elements. A boxed slice takes less space than a vector, and there are many
/// directories.
fn longer<T: Copy>(short: &[T], len: usize, more: T) -> Box<[T]> {
    short.iter().copied().chain(core::iter::repeat(more)).take(len).collect()
}
