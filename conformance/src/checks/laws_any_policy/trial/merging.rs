//! The coalescing law: exactly those adjacent free blocks are merged that the policy's rule says.

use std::collections::BTreeMap;

use parkade::BlockView;
use parkade::policy::{Coalescing, Policy};
use parkade::snapshot::{BlockActivity, SegmentInfo};

use super::Trial;
use crate::backend::TestDevice;
use crate::law::{Broken, Law, ensure};

/// Whether the buddy rule may have merged these bytes at this offset of their segment, given where the parts started.
fn are_halves(offset: u64, size: u64, starts: &[u64]) -> bool {
    let inside = |&&start: &&u64| offset < start && start < offset + size;
    if !starts.iter().any(|start| inside(&start)) {
        return true;
    }
    let half = size / 2;
    size.is_multiple_of(2)
        && offset.is_multiple_of(size)
        && starts.contains(&(offset + half))
        && are_halves(offset, half, starts)
        && are_halves(offset + half, half, starts)
}

impl<D: TestDevice, P: Policy> Trial<D, P> {
    /// All free blocks.
    pub(super) fn free_blocks(&self) -> impl Iterator<Item = BlockView> + '_ {
        let heap = self.core.heap();
        heap.pool_slots().flat_map(|pool| heap.free_blocks(pool))
    }

    fn free_by_address(&self) -> BTreeMap<u64, BlockView> {
        self.free_blocks().map(|block| (block.address.get(), block)).collect()
    }

    /// Checks that no two adjacent free blocks are left that should be one.
    pub(super) fn check_merged(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let rule = self.core.policy().coalescing();
        if rule == Coalescing::Never {
            return Ok(());
        }
        let (heap, free) = (self.core.heap(), self.free_by_address());
        for pair in segments.iter().flat_map(|segment| segment.blocks.windows(2)) {
            let both = pair.iter().all(|block| block.state == BlockActivity::Inactive);
            let (Some(low), Some(high)) = (free.get(&pair[0].address.get()), free.get(&pair[1].address.get())) else { continue };
            if !both || low.stream != high.stream {
                continue;
            }
            let offset = low.address.get() - heap.segment_start(low.id).map_or(0, |start| start.get());
            let are_buddies = low.size == high.size && offset.is_multiple_of(2 * low.size.get());
            ensure(Law::Coalescing, rule == Coalescing::Buddies && !are_buddies, || {
                format!("adjacent free blocks that should be merged by the rule {rule:?}: {low:?}, {high:?}")
            })?;
        }
        Ok(())
    }

    /// After an operation that only merges: no block absorbed more than the rule allows.
    pub(super) fn check_not_overmerged(&self, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let rule = self.core.policy().coalescing();
        if rule == Coalescing::Neighbours {
            return Ok(());
        }
        let before: Vec<u64> = self.before.iter().flat_map(|segment| &segment.blocks).map(|block| block.address.get()).collect();
        let free = self.free_by_address();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        for block in blocks.filter(|block| block.state == BlockActivity::Inactive) {
            let (address, size) = (block.address.get(), block.size.get());
            let inside = before.iter().any(|&start| address < start && start < address + size);
            if !inside {
                continue;
            }
            let start =
                free.get(&address).and_then(|view| self.core.heap().segment_start(view.id)).map_or(0, |start| start.get());
            let starts: Vec<u64> = before.iter().filter(|&&other| other >= start).map(|&other| other - start).collect();
            let allowed = rule == Coalescing::Buddies && are_halves(address - start, size, &starts);
            ensure(Law::Coalescing, allowed, || {
                format!("{block:?} absorbed neighbours against the rule {rule:?}; the blocks before: {:x?}", before)
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::are_halves;

    #[test]
    fn halves_of_halves_are_told_from_neighbours() {
        assert!(are_halves(0, 8, &[0, 4]));
        assert!(are_halves(8, 8, &[8, 12, 14]));
        assert!(!are_halves(4, 8, &[4, 8]), "neighbours of one size that are not buddies");
        assert!(!are_halves(0, 8, &[0, 2, 4, 7]), "a half with an uneven split");
        assert!(!are_halves(0, 8, &[0, 2]), "two sizes");
    }
}
