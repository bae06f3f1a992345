//! What a heap holds at one moment, and which of its free bytes a request could use.

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::PoolId;
use parkade_recording::{BlockState, DeviceRecording};

/// A heap's bytes by state. Free bytes are told apart by whether a request of one stream and pool could use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Reserved.
    pub reserved_bytes: u64,
    /// In live blocks.
    pub live_bytes: u64,
    /// Freed by the program, but still in use by other streams.
    pub pending_bytes: u64,
    /// Free, in the request's own pool and stream; without a request, anywhere in the default pool.
    pub free_bytes: u64,
    /// Free, in segments of other streams.
    pub other_streams_bytes: u64,
    /// Free, in private pools other than the request's.
    pub private_pools_bytes: u64,
    /// The largest block among `free_bytes`.
    pub largest_free_bytes: u64,
}

impl Held {
    /// What a heap holds, from the point of view of a request of this stream and pool.
    pub(super) fn seen_from(segments: &[SegmentInfo], stream: u64, pool: PoolId) -> Held {
        let mut held = Held::default();
        for segment in segments {
            held.reserved_bytes += segment.total.get();
            for block in &segment.blocks {
                let bytes = block.size.get();
                match block.state {
                    BlockActivity::Allocated => held.live_bytes += bytes,
                    BlockActivity::PendingFree => held.pending_bytes += bytes,
                    BlockActivity::Inactive if segment.pool != pool && segment.pool != PoolId::DEFAULT => {
                        held.private_pools_bytes += bytes;
                    }
                    BlockActivity::Inactive if segment.stream.0 != stream => held.other_streams_bytes += bytes,
                    BlockActivity::Inactive => held.add_free(bytes),
                }
            }
        }
        held
    }

    /// What a device held when its recording was written: all that a file without a trace shows.
    #[must_use]
    pub fn at_end(recording: &DeviceRecording) -> Held {
        let mut held = Held::default();
        for segment in &recording.segments {
            held.reserved_bytes = held.reserved_bytes.saturating_add(segment.total_bytes);
            for block in &segment.blocks {
                match block.state {
                    BlockState::ActiveAllocated => held.live_bytes = held.live_bytes.saturating_add(block.size),
                    BlockState::ActivePendingFree => held.pending_bytes = held.pending_bytes.saturating_add(block.size),
                    BlockState::Inactive if segment.pool.is_some_and(|pool| pool != (0, 0)) => {
                        held.private_pools_bytes = held.private_pools_bytes.saturating_add(block.size);
                    }
                    BlockState::Inactive => held.add_free(block.size),
                }
            }
        }
        held
    }

    fn add_free(&mut self, bytes: u64) {
        self.free_bytes = self.free_bytes.saturating_add(bytes);
        self.largest_free_bytes = self.largest_free_bytes.max(bytes);
    }
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Block, Segment, StackId};

    use super::*;

    #[test]
    fn a_file_without_a_trace_shows_what_was_held() {
        let block = |size, state| Block { address: 0, size, requested: None, state, stack: StackId::NONE };
        let blocks = vec![block(3, BlockState::ActiveAllocated), block(4, BlockState::Inactive), block(6, BlockState::Inactive)];
        let segment = |pool| Segment { pool: Some(pool), ..Segment::new(blocks.clone()) };
        let recording = DeviceRecording { segments: vec![segment((0, 0)), segment((0, 2))], ..DeviceRecording::default() };
        let held = Held::at_end(&recording);
        assert_eq!((held.reserved_bytes, held.live_bytes, held.free_bytes, held.largest_free_bytes), (26, 6, 10, 6));
        assert_eq!((held.private_pools_bytes, held.pending_bytes), (10, 0));
    }
}
