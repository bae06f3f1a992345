//! What a heap holds at one moment, and why what is free in it does not serve a request.

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::PoolId;

use parkade_recording::{BlockState, DeviceRecording};

/// A heap's bytes, by what they are for. Where a request is looked at, seen from its stream and pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Taken from the device.
    pub reserved_bytes: u64,
    /// In blocks that are in use.
    pub live_bytes: u64,
    /// Given back, waiting for other streams.
    pub pending_bytes: u64,
    /// Free, in the request's own pool and stream, or anywhere in the default pool if there is no request.
    pub free_bytes: u64,
    /// Free, in segments of other streams.
    pub other_streams_bytes: u64,
    /// Free, in private pools that are not the request's.
    pub private_pools_bytes: u64,
    /// The largest free block of the request's own pool and stream.
    pub largest_free_bytes: u64,
}

impl Held {
    /// What a heap holds, seen from a request of this stream and pool.
    #[must_use]
    pub fn seen_from(segments: &[SegmentInfo], stream: u64, pool: PoolId) -> Held {
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
                    BlockActivity::Inactive => held.is_free(bytes),
                }
            }
        }
        held
    }

    /// What a device held when its recording ended: all that a file without trace tells.
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
                    BlockState::Inactive => held.is_free(block.size),
                }
            }
        }
        held
    }

    fn is_free(&mut self, bytes: u64) {
        self.free_bytes = self.free_bytes.saturating_add(bytes);
        self.largest_free_bytes = self.largest_free_bytes.max(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parkade_recording::{Block, Segment, StackId};

    #[test]
    fn a_file_without_trace_says_what_was_held() {
        let block = |size, state| Block { address: 0, size, requested: None, state, stack: StackId::NONE };
        let blocks = vec![block(3, BlockState::ActiveAllocated), block(4, BlockState::Inactive), block(6, BlockState::Inactive)];
        let segment = |pool| Segment {
            address: 0,
            total_bytes: 13,
            stream: 0,
            large: true,
            pool: Some(pool),
            expandable: false,
            allocated_bytes: None,
            active_bytes: None,
            requested_bytes: None,
            stack: StackId::NONE,
            blocks: blocks.clone(),
        };
        let recording = DeviceRecording { segments: vec![segment((0, 0)), segment((0, 2))], ..DeviceRecording::default() };
        let held = Held::at_end(&recording);
        assert_eq!((held.reserved_bytes, held.live_bytes, held.free_bytes, held.largest_free_bytes), (26, 6, 10, 6));
        assert_eq!((held.private_pools_bytes, held.pending_bytes), (10, 0));
    }
}
