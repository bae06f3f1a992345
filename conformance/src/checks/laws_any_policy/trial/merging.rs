//! The coalescing law: no two adjacent free blocks of one stream are left.

use std::collections::BTreeMap;

use parkade::BlockView;
use parkade::snapshot::{BlockActivity, SegmentInfo};

use super::Trial;
use crate::law::{Broken, Law, ensure};

impl Trial {
    /// Checks that no two adjacent free blocks of one stream are left.
    pub(super) fn check_merged(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let heap = self.core.heap();
        let free = heap.pool_slots().flat_map(|pool| heap.free_blocks(pool));
        let free: BTreeMap<u64, BlockView> = free.map(|block| (block.address.get(), block)).collect();
        for pair in segments.iter().flat_map(|segment| segment.blocks.windows(2)) {
            let both = pair.iter().all(|block| block.state == BlockActivity::Inactive);
            let (Some(low), Some(high)) = (free.get(&pair[0].address.get()), free.get(&pair[1].address.get())) else { continue };
            ensure(Law::Coalescing, !both || low.stream != high.stream, || {
                format!("adjacent free blocks that should be merged: {low:?}, {high:?}")
            })?;
        }
        Ok(())
    }
}
