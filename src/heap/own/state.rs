//! The state of the mechanisms that PyTorch does not have.

use alloc::collections::BTreeMap;

use super::untouched::Untouched;
use crate::units::Bytes;

/// The number of times that a policy may wait before requests are routed to private pools. The count is reset whenever
/// a pool has no free block for a request, so a program that only reuses its pools stops waiting
/// ([`Policy::waits_for_pools`](crate::policy::Policy::waits_for_pools)).
pub(super) const MOST_WAITS: u32 = 16;

/// The state of these mechanisms. Under PyTorch's rules, it never influences a decision.
#[derive(Clone, Debug)]
pub(in crate::heap) struct OwnState {
    /// Whether blocks of one segment may belong to different streams.
    mixes_streams: bool,
    /// Whether the policy has ever kept two adjacent free blocks apart.
    keeps_apart: bool,
    /// Whether the policy searches free blocks by address.
    pub(in crate::heap) searches_by_address: bool,
    /// Whether any of these is true, so that the path of a free checks only one flag.
    pub(in crate::heap) coalesces_slowly: bool,
    /// Whether any part of an expandable segment has ever served another pool.
    pub(super) has_parts_elsewhere: bool,
    /// How many more times the policy may wait before requests are routed to private pools.
    pub(super) waits_left: u32,
    /// The handles that were mapped as a whole: first byte and bytes.
    pub(super) handles: BTreeMap<u64, u64>,
    /// The memory that private pools have never handed out.
    pub(in crate::heap) untouched: Untouched,
    /// The page size to which all expandable segments were refined.
    pub(super) refined_page: Option<Bytes>,
}

impl OwnState {
    /// The state of an empty heap.
    pub(in crate::heap) fn new(searches_by_address: bool) -> OwnState {
        OwnState {
            mixes_streams: false,
            keeps_apart: false,
            searches_by_address,
            coalesces_slowly: searches_by_address,
            has_parts_elsewhere: false,
            waits_left: MOST_WAITS,
            handles: BTreeMap::new(),
            untouched: Untouched::default(),
            refined_page: None,
        }
    }

    pub(super) fn mixes_streams(&self) -> bool {
        self.mixes_streams
    }

    pub(in crate::heap) fn keeps_apart(&self) -> bool {
        self.keeps_apart
    }

    /// Records that blocks of one segment may belong to different streams from now on.
    pub(super) fn note_mixed_streams(&mut self) {
        (self.mixes_streams, self.coalesces_slowly) = (true, true);
    }

    /// Records that the policy has kept two adjacent free blocks apart.
    pub(in crate::heap) fn note_kept_apart(&mut self) {
        (self.keeps_apart, self.coalesces_slowly) = (true, true);
    }
}
