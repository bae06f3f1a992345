//! How fragmented one heap is.

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade_recording::Segment;

use crate::recorded_heap::recorded_heap;

/// A heap's bytes by use, and from them its fragmentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fragmentation {
    /// Reserved.
    pub reserved_bytes: u64,
    /// Of live blocks.
    pub allocated_bytes: u64,
    /// Of blocks that the program has freed and other streams still use.
    pub pending_bytes: u64,
    /// Requested for live and pending blocks; what these blocks have beyond it is rounding.
    pub requested_bytes: u64,
    /// Of free blocks.
    pub free_bytes: u64,
    /// Of these, in segments that are entirely free.
    pub free_segments_bytes: u64,
    /// Of these, in segments that are partly in use: only a request that fits a hole can use them. `inactive_split_bytes` of
    /// memory_stats() is the part of it in ordinary segments.
    pub partial_segments_bytes: u64,
    /// The largest free block: the largest request of that block's stream and pool that needs no memory from the device.
    pub largest_hole_bytes: u64,
    /// How many free blocks there are.
    pub holes: u64,
}

impl Fragmentation {
    /// The fragmentation of a core's heap.
    #[must_use]
    pub fn of(heap: &[SegmentInfo]) -> Fragmentation {
        let mut sums = Fragmentation::default();
        for segment in heap {
            let blocks = segment.blocks.iter().map(|block| (block.size.get(), block.requested.get(), block.state));
            sums.add(segment.total.get(), blocks);
        }
        sums
    }

    /// The fragmentation of the heap that a recording ends with, which is all that a file without a trace has.
    #[must_use]
    pub fn of_recorded(segments: &[Segment]) -> Fragmentation {
        Fragmentation::of(&recorded_heap(segments))
    }

    /// Adds a segment. The sums saturate, because sizes in a file may be absurd.
    fn add(&mut self, total_bytes: u64, blocks: impl Iterator<Item = (u64, u64, BlockActivity)>) {
        let mut free_bytes = 0_u64;
        self.reserved_bytes = self.reserved_bytes.saturating_add(total_bytes);
        for (size, requested, activity) in blocks {
            match activity {
                BlockActivity::Inactive => {
                    free_bytes = free_bytes.saturating_add(size);
                    self.largest_hole_bytes = self.largest_hole_bytes.max(size);
                    self.holes += 1;
                    continue;
                }
                BlockActivity::Allocated => self.allocated_bytes = self.allocated_bytes.saturating_add(size),
                BlockActivity::PendingFree => self.pending_bytes = self.pending_bytes.saturating_add(size),
            }
            self.requested_bytes = self.requested_bytes.saturating_add(requested);
        }
        self.free_bytes = self.free_bytes.saturating_add(free_bytes);
        let place = if free_bytes == total_bytes { &mut self.free_segments_bytes } else { &mut self.partial_segments_bytes };
        *place = place.saturating_add(free_bytes);
    }

    /// What live and pending blocks have beyond their requested bytes.
    #[must_use]
    pub fn rounding_bytes(&self) -> u64 {
        self.allocated_bytes.saturating_add(self.pending_bytes).saturating_sub(self.requested_bytes)
    }

    /// 1 - allocated / reserved, from 0 to 1; `None` if nothing is reserved. The documents call more than 0.3 a risk (scenario D2). It does
    /// not distinguish memory that the next request can use from memory that it cannot.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (self.reserved_bytes > 0).then(|| 1.0 - self.allocated_bytes as f64 / self.reserved_bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use parkade_recording::{Block, BlockState, StackId};

    use super::*;

    #[test]
    fn every_byte_is_counted_once() {
        let block =
            |address, size, requested, state| Block { address, size, requested: Some(requested), state, stack: StackId::NONE };
        let used = Segment::new(vec![
            block(0, 40, 37, BlockState::ActiveAllocated),
            block(40, 30, 99, BlockState::Inactive),
            block(70, 20, 20, BlockState::ActivePendingFree),
            block(90, 10, 0, BlockState::Inactive),
        ]);
        let found = Fragmentation::of_recorded(&[used, Segment::new(vec![block(200, 100, 50, BlockState::Inactive)])]);
        let expected = Fragmentation {
            reserved_bytes: 200,
            allocated_bytes: 40,
            pending_bytes: 20,
            requested_bytes: 57,
            free_bytes: 140,
            free_segments_bytes: 100,
            partial_segments_bytes: 40,
            largest_hole_bytes: 100,
            holes: 3,
        };
        assert_eq!(found, expected);
        assert_eq!((found.rounding_bytes(), found.ratio()), (3, Some(0.8)));
        assert_eq!(Fragmentation::default().ratio(), None);
    }
}
