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
    pub(in crate::heap) mixes_streams: bool,
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

impl Default for OwnState {
    fn default() -> OwnState {
        OwnState {
            mixes_streams: false,
            has_parts_elsewhere: false,
            waits_left: MOST_WAITS,
            handles: BTreeMap::new(),
            untouched: Untouched::default(),
            refined_page: None,
        }
    }
}
