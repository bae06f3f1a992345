//! Which bins hold blocks, and where each bin begins.
//!
//! A size has one of 4,096 bins: its number of 512-byte units as a float with seven mantissa bits. A larger
//! size never has a smaller bin, so the next occupied bin holds the next larger size; a bitmap of two levels
//! finds it with two bit scans. Bins are kept in groups of 64, up to the largest bin ever used: many streams
//! never hold a large block.

use alloc::vec::Vec;

use crate::block::NIL;

const GROUP: usize = 64;
/// The bin of all sizes from 127.5 TiB on.
const LAST_BIN: usize = 64 * GROUP - 1;
const UNIT_SHIFT: u32 = 9;
const MANTISSA_BITS: u32 = 7;

/// The bin of a size. Below 128 KiB a bin is 512 bytes wide; from there on, between a 256th and a 128th of
/// the size.
#[inline]
pub(super) fn bin_of(size: u64) -> usize {
    let units = size >> UNIT_SHIFT;
    let shift = (units | 1 << MANTISSA_BITS).ilog2() - MANTISSA_BITS;
    // The mantissa's top bit adds one to the exponent's field, so small sizes come out as themselves.
    let bin = (u64::from(shift) << MANTISSA_BITS) + (units >> shift);
    (bin as usize).min(LAST_BIN)
}

/// Up to 64 neighbouring bins.
#[derive(Clone, Debug)]
struct Group {
    occupied: u64,
    counts: [u8; GROUP],
    heads: [u32; GROUP],
}

/// A bin's entry: how many blocks it has, and where they begin. Only the empty bin has a fixed meaning here:
/// count 0 and head [`NIL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bin {
    pub(super) count: u8,
    pub(super) head: u32,
}

/// A bin's entry, looked up once and then changed.
pub(super) struct BinMut<'a> {
    group: &'a mut Group,
    /// One bit per group.
    occupied: &'a mut u64,
    bin: usize,
}

impl BinMut<'_> {
    #[inline]
    pub(super) fn get(&self) -> Bin {
        Bin { count: self.group.counts[self.bin % GROUP], head: self.group.heads[self.bin % GROUP] }
    }

    /// Whether the bin has no block.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.group.counts[self.bin % GROUP] == 0
    }

    /// Whether the bin has one block.
    #[inline]
    pub(super) fn is_single(&self) -> bool {
        self.group.counts[self.bin % GROUP] == 1
    }

    /// Changes the entry of an occupied bin, which stays occupied.
    #[inline]
    pub(super) fn set(&mut self, entry: Bin) {
        debug_assert!(self.get().count != 0 && entry.count != 0);
        self.group.counts[self.bin % GROUP] = entry.count;
        self.group.heads[self.bin % GROUP] = entry.head;
    }

    /// Fills an empty bin.
    #[inline]
    pub(super) fn fill(&mut self, entry: Bin) {
        debug_assert!(self.get().count == 0 && entry.count != 0);
        self.group.occupied |= 1 << (self.bin % GROUP);
        self.group.counts[self.bin % GROUP] = entry.count;
        self.group.heads[self.bin % GROUP] = entry.head;
        *self.occupied |= 1 << (self.bin / GROUP);
    }

    /// Empties a bin.
    #[inline]
    pub(super) fn clear(&mut self) {
        debug_assert!(self.get().count != 0);
        self.group.counts[self.bin % GROUP] = 0;
        self.group.heads[self.bin % GROUP] = NIL;
        self.group.occupied &= !(1 << (self.bin % GROUP));
        if self.group.occupied == 0 {
            *self.occupied &= !(1 << (self.bin / GROUP));
        }
    }
}

/// All bins of one collection.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    /// One bit per group: whether it has an occupied bin.
    occupied: u64,
    groups: Vec<Group>,
}

impl Directory {
    /// Whether no bin is occupied.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// A bin's entry.
    #[inline]
    pub(super) fn get(&self, bin: usize) -> Bin {
        match self.groups.get(bin / GROUP) {
            Some(group) => Bin { count: group.counts[bin % GROUP], head: group.heads[bin % GROUP] },
            None => Bin { count: 0, head: NIL },
        }
    }

    /// Changes the entry of an occupied bin, which stays occupied.
    #[inline]
    pub(super) fn set(&mut self, bin: usize, entry: Bin) {
        self.at_mut(bin).set(entry);
    }

    /// A bin's entry, to change.
    #[inline]
    pub(super) fn at_mut(&mut self, bin: usize) -> BinMut<'_> {
        if self.groups.len() <= bin / GROUP {
            self.grow(bin);
        }
        BinMut { group: &mut self.groups[bin / GROUP], occupied: &mut self.occupied, bin }
    }

    /// The same; `None` beyond the last group, where every bin is empty.
    #[inline]
    pub(super) fn existing_mut(&mut self, bin: usize) -> Option<BinMut<'_>> {
        Some(BinMut { group: self.groups.get_mut(bin / GROUP)?, occupied: &mut self.occupied, bin })
    }

    /// The first occupied bin from `bin` on.
    #[inline]
    pub(super) fn first_from(&self, bin: usize) -> Option<usize> {
        self.first_in(bin, u64::MAX << (bin % GROUP))
    }

    /// The first occupied bin after `bin`.
    #[inline]
    pub(super) fn first_after(&self, bin: usize) -> Option<usize> {
        self.first_in(bin, (u64::MAX << 1) << (bin % GROUP))
    }

    /// The last occupied bin before `bin`.
    pub(super) fn last_before(&self, bin: usize) -> Option<usize> {
        self.last_in(bin / GROUP, (1 << (bin % GROUP)) - 1)
    }

    /// The last occupied bin.
    pub(super) fn last(&self) -> Option<usize> {
        self.last_in(LAST_BIN / GROUP, u64::MAX)
    }

    /// The first occupied bin among those in the bin's group that the mask allows, and in all later groups.
    #[inline]
    fn first_in(&self, bin: usize, mask: u64) -> Option<usize> {
        let own = bin / GROUP;
        let here = self.groups.get(own)?.occupied & mask;
        if here != 0 {
            return Some(own * GROUP + here.trailing_zeros() as usize);
        }
        let later = self.occupied & ((u64::MAX << 1) << own);
        let group = later.trailing_zeros() as usize;
        // Without a later group this is 64, and no group has that index.
        let bits = self.groups.get(group)?.occupied;
        Some(group * GROUP + bits.trailing_zeros() as usize)
    }

    fn last_in(&self, own: usize, mask: u64) -> Option<usize> {
        let here = self.groups.get(own).map_or(0, |group| group.occupied & mask);
        if here != 0 {
            return Some(own * GROUP + here.ilog2() as usize);
        }
        let group = (self.occupied & ((1 << own) - 1)).checked_ilog2()? as usize;
        Some(group * GROUP + self.groups[group].occupied.ilog2() as usize)
    }

    #[cold]
    fn grow(&mut self, bin: usize) {
        let wanted = bin / GROUP + 1;
        self.groups.reserve_exact(wanted - self.groups.len());
        self.groups.resize(wanted, Group { occupied: 0, counts: [0; GROUP], heads: [NIL; GROUP] });
    }
}
