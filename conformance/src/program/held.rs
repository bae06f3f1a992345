//! A live allocation, as the program knows it.

use parkade::Allocation;
use parkade::units::{DeviceAddress, PoolId, StreamId};

/// A live allocation.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) allocation: Allocation,
    /// Its name in scripts.
    pub(super) name: u64,
    /// Whether it came from `raw_allocate`.
    pub(super) is_raw: bool,
    /// The requested size in bytes.
    pub(crate) requested: u64,
    /// The stream it was requested on.
    pub(crate) home: StreamId,
    /// The pool that handed it out.
    pub(super) pool: PoolId,
    /// The stream that used it last. Every user waits for the previous one, so all uses are ordered.
    pub(super) last: StreamId,
    /// Its contents, as runs of one repeated word: the end offset and the word of each run.
    pub(super) holds: Vec<(u64, u32)>,
    /// Other streams whose use was recorded.
    pub(super) told: Vec<u64>,
    /// Whether one of these uses was recorded while a graph was captured. The allocator forgets that use if the block is freed
    /// during a capture (spec 3.8).
    pub(super) is_captured: bool,
}

impl Held {
    pub(super) fn address(&self) -> DeviceAddress {
        self.allocation.address()
    }

    /// Returns the number of bytes that are filled, in whole words; 0 if the address is not word-aligned, which only an
    /// invalid policy can cause.
    pub(super) fn whole_words(&self) -> u64 {
        if self.address().get().is_multiple_of(4) { self.requested / 4 * 4 } else { 0 }
    }
}

impl Clone for Held {
    /// Returns a second handle to the allocation.
    fn clone(&self) -> Held {
        let Held { allocation, name, is_raw, requested, home, pool, last, holds, told, is_captured } = self;
        let (allocation, holds, told) = (allocation.in_a_clone(), holds.clone(), told.clone());
        let (name, is_raw, requested, home) = (*name, *is_raw, *requested, *home);
        Held { allocation, name, is_raw, requested, home, pool: *pool, last: *last, holds, told, is_captured: *is_captured }
    }
}
