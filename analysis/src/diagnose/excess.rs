//! Why reserved memory is above allocated memory: every byte between the two, for exactly one cause that no request decides.
//!
//! This is the question where nothing failed. Whether a hole would serve the next request depends on that request; whether it is a whole
//! free segment, waits for an event, belongs to a private pool or another stream, or lies beside blocks in use does not.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parkade::policy::PyTorch;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::{PoolClass, PoolId, StreamId};

use super::stranded::View;

/// Why a byte is reserved but not allocated. The first cause that applies, in the order of [`ExcessCause::ALL`], counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ExcessCause {
    /// Its block was freed, but another stream may still use it: an event is outstanding (spec 3.5).
    PendingEvent,
    /// It is free in a private pool (spec 5).
    PrivatePool,
    /// It is cached for a stream other than [`Excess::main_stream`] (spec 2.3).
    OtherStream,
    /// It is in a segment, or in pages of an expandable segment, that are entirely free: `empty_cache` gives it back.
    FreeSegment,
    /// It is a hole in a segment of the small pool that is partly in use.
    SmallPoolHole,
    /// It is a hole in a segment of the large pool that is partly in use.
    LargePoolHole,
}

impl ExcessCause {
    /// Every cause, in the order in which they are tried.
    pub const ALL: [ExcessCause; 6] = [
        ExcessCause::PendingEvent,
        ExcessCause::PrivatePool,
        ExcessCause::OtherStream,
        ExcessCause::FreeSegment,
        ExcessCause::SmallPoolHole,
        ExcessCause::LargePoolHole,
    ];

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ExcessCause::PendingEvent => "pending_event",
            ExcessCause::PrivatePool => "private_pool",
            ExcessCause::OtherStream => "other_stream",
            ExcessCause::FreeSegment => "free_segment",
            ExcessCause::SmallPoolHole => "small_pool_hole",
            ExcessCause::LargePoolHole => "large_pool_hole",
        }
    }
}

/// All bytes of one cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExcessPart {
    /// The cause.
    pub cause: ExcessCause,
    /// Their sum.
    pub bytes: u64,
    /// How many pieces they are: segments, runs of pages, or holes.
    pub pieces: usize,
    /// The largest of these pieces.
    pub largest_bytes: u64,
    /// The part of the sum in segments or pages that are entirely free. `empty_cache` gives it back, except in private pools that are
    /// still used.
    pub whole_bytes: u64,
}

/// The bytes between reserved and allocated, by cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excess {
    /// The stream with the most allocated bytes outside of private pools; of equal ones that with the most reserved bytes, then the lowest
    /// number. `None` if there is no segment outside of private pools.
    pub main_stream: Option<StreamId>,
    /// The bytes by cause, in the order of [`ExcessCause::ALL`], causes without bytes included.
    pub parts: [ExcessPart; ExcessCause::ALL.len()],
}

impl Excess {
    /// The bytes of one cause.
    #[must_use]
    pub fn of(&self, cause: ExcessCause) -> &ExcessPart {
        &self.parts[cause as usize]
    }

    /// Reserved minus allocated bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    fn add(&mut self, cause: ExcessCause, bytes: u64, whole_bytes: u64) {
        if bytes > 0 {
            let part = &mut self.parts[cause as usize];
            part.bytes = part.bytes.saturating_add(bytes);
            part.whole_bytes = part.whole_bytes.saturating_add(whole_bytes);
            part.pieces += 1;
            part.largest_bytes = part.largest_bytes.max(bytes);
        }
    }
}

/// Why this heap has more reserved than allocated. The policy knows the size of pages.
#[must_use]
pub fn excess(segments: &[SegmentInfo], policy: &PyTorch) -> Excess {
    let main_stream = main_stream(segments);
    let empty = |cause| ExcessPart { cause, bytes: 0, pieces: 0, largest_bytes: 0, whole_bytes: 0 };
    let mut excess = Excess { main_stream, parts: ExcessCause::ALL.map(empty) };
    for segment in segments {
        let view = View::of(segment, policy);
        for block in segment.blocks.iter().filter(|block| block.state != BlockActivity::Allocated) {
            let (size, whole) = (block.size.get(), view.whole(block));
            if block.state == BlockActivity::PendingFree {
                excess.add(ExcessCause::PendingEvent, size, whole);
            } else if segment.pool != PoolId::DEFAULT {
                excess.add(ExcessCause::PrivatePool, size, whole);
            } else if Some(segment.stream) != main_stream {
                excess.add(ExcessCause::OtherStream, size, whole);
            } else {
                // A free block of an expandable segment may have whole pages, and parts of pages that live blocks share.
                let is_small = segment.class == PoolClass::Small;
                let hole = if is_small { ExcessCause::SmallPoolHole } else { ExcessCause::LargePoolHole };
                excess.add(ExcessCause::FreeSegment, whole, whole);
                excess.add(hole, size.saturating_sub(whole), 0);
            }
        }
    }
    excess
}

fn main_stream(segments: &[SegmentInfo]) -> Option<StreamId> {
    let mut uses: BTreeMap<StreamId, (u64, u64)> = BTreeMap::new();
    for segment in segments.iter().filter(|segment| segment.pool == PoolId::DEFAULT) {
        let live = segment.blocks.iter().filter(|block| block.state == BlockActivity::Allocated);
        let (allocated, reserved) = uses.entry(segment.stream).or_default();
        *allocated = live.fold(*allocated, |sum, block| sum.saturating_add(block.size.get()));
        *reserved = reserved.saturating_add(segment.total.get());
    }
    uses.into_iter().min_by_key(|&(stream, uses)| (Reverse(uses), stream)).map(|(stream, _)| stream)
}
