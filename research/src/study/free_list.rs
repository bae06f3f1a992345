//! The free list to which a segment belongs, as studies number it.

use parkade::snapshot::SegmentInfo;
use parkade::units::PoolClass;

use super::run::stream_number;

/// The segments whose free blocks serve the same requests: those of one pool, one of its collections, and one stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FreeList {
    /// The pool; 0 is the default pool.
    pub pool: u64,
    /// The collection: the policy decides which requests are small.
    pub collection: PoolClass,
    /// The stream; 0 is the default stream.
    pub stream: u16,
}

impl FreeList {
    pub(super) fn of(segment: &SegmentInfo) -> FreeList {
        FreeList { pool: segment.pool.0, collection: segment.class, stream: stream_number(segment.stream) }
    }
}
