//! How well a heap is used: fragmentation as the documents define it, and measures that tell more; at chosen moments of a run.

mod series;
mod steps;

use parkade::snapshot::{BlockActivity, SegmentInfo};

use parkade_recording::{BlockState, Segment};

pub use series::{ReplayedRun, Sample, SampledRun, recorded_run, replayed_run};
pub use steps::{Step, StepError, Steps, steps};

/// What a heap's bytes are doing. All but `fragmentation` in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measures {
    /// Taken from the device.
    pub reserved_bytes: u64,
    /// Of blocks that are handed out.
    pub allocated_bytes: u64,
    /// Of blocks that were given back and wait for other streams.
    pub pending_bytes: u64,
    /// Asked for, of blocks handed out or waiting; what these have beyond it is rounding.
    pub requested_bytes: u64,
    /// Of free blocks.
    pub free_bytes: u64,
    /// Of these, in segments that are free as a whole.
    pub free_segments_bytes: u64,
    /// Of these, beside blocks in use or waiting: only a request that fits a hole can use them.
    pub stranded_bytes: u64,
    /// The largest free block: the largest request that needs no memory from the device, if its stream and pool are that block's.
    pub largest_hole_bytes: u64,
    /// How many free blocks there are.
    pub holes: u64,
}

impl Measures {
    /// The measures of a core's heap.
    #[must_use]
    pub fn of(heap: &[SegmentInfo]) -> Measures {
        let mut measures = Measures::default();
        for segment in heap {
            let blocks = segment.blocks.iter().map(|block| (block.size.get(), block.requested.get(), block.state));
            measures.add(segment.total.get(), blocks);
        }
        measures
    }

    /// The measures of the heap that a recording ends with, which is all that a file without a trace has.
    #[must_use]
    pub fn of_recorded(segments: &[Segment]) -> Measures {
        let mut measures = Measures::default();
        for segment in segments {
            let blocks = segment.blocks.iter().map(|block| {
                let activity = match block.state {
                    BlockState::ActiveAllocated => BlockActivity::Allocated,
                    BlockState::ActivePendingFree => BlockActivity::PendingFree,
                    BlockState::Inactive => BlockActivity::Inactive,
                };
                (block.size, block.requested.unwrap_or(block.size), activity)
            });
            measures.add(segment.total_bytes, blocks);
        }
        measures
    }

    /// Adds a segment; sizes in files may be absurd, so the sums stop at 64 bits.
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
        let place = if free_bytes == total_bytes { &mut self.free_segments_bytes } else { &mut self.stranded_bytes };
        *place = place.saturating_add(free_bytes);
    }

    /// What blocks in use or waiting have beyond what was asked for.
    #[must_use]
    pub fn rounding_bytes(&self) -> u64 {
        self.allocated_bytes.saturating_add(self.pending_bytes).saturating_sub(self.requested_bytes)
    }

    /// 1 - allocated / reserved, from 0 to 1; `None` if nothing is reserved. Above 0.3 is called a risk (documents, D2). It does not tell
    /// memory that the next request can use from memory that it cannot.
    #[must_use]
    pub fn fragmentation(&self) -> Option<f64> {
        (self.reserved_bytes > 0).then(|| 1.0 - self.allocated_bytes as f64 / self.reserved_bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parkade_recording::{Block, StackId};

    #[test]
    fn every_byte_has_one_place() {
        let block =
            |address, size, requested, state| Block { address, size, requested: Some(requested), state, stack: StackId::NONE };
        let segment = |blocks: Vec<Block>| Segment {
            address: blocks[0].address,
            total_bytes: blocks.iter().map(|block| block.size).sum(),
            stream: 0,
            large: true,
            pool: None,
            expandable: false,
            allocated_bytes: None,
            active_bytes: None,
            requested_bytes: None,
            stack: StackId::NONE,
            blocks,
        };
        let used = segment(vec![
            block(0, 40, 37, BlockState::ActiveAllocated),
            block(40, 30, 99, BlockState::Inactive),
            block(70, 20, 20, BlockState::ActivePendingFree),
            block(90, 10, 0, BlockState::Inactive),
        ]);
        let measures = Measures::of_recorded(&[used, segment(vec![block(200, 100, 50, BlockState::Inactive)])]);
        let expected = Measures {
            reserved_bytes: 200,
            allocated_bytes: 40,
            pending_bytes: 20,
            requested_bytes: 57,
            free_bytes: 140,
            free_segments_bytes: 100,
            stranded_bytes: 40,
            largest_hole_bytes: 100,
            holes: 3,
        };
        assert_eq!(measures, expected);
        assert_eq!((measures.rounding_bytes(), measures.fragmentation()), (3, Some(0.8)));
        assert_eq!(Measures::default().fragmentation(), None);
    }
}
