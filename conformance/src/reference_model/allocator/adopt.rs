//! Adopted segments: counted as if they had been made here, except for driver calls.

use parkade::stats::Family;
use parkade::units::PoolId;
use parkade::{AdoptedContent, AdoptedSegment};

use super::Reference;
use super::accounts::add;
use super::blocks::{Block, Segment, State};

impl Reference {
    /// Takes over a segment that fits. Returns the addresses of its allocations.
    pub fn adopt(&mut self, adopted: &AdoptedSegment) -> Vec<u64> {
        let (pool, class, base) = (adopted.pool, adopted.class, adopted.address.get());
        let (mut blocks, mut end) = (Vec::new(), base);
        for block in &adopted.blocks {
            let (state, requested) = match block.content {
                AdoptedContent::Free => (State::Free, 0),
                AdoptedContent::Allocated(requested) => (State::Allocated, requested.get()),
                AdoptedContent::Unmapped => (State::Unmapped, 0),
            };
            let stamp = if state == State::Free { self.stamp(pool, class) } else { 0 };
            let rank = match blocks.last() {
                None => self.next_rank(),
                Some(Block { rank, .. }) => self.next_rank_beside(*rank),
            };
            blocks.push(Block { requested, stamp, ..Block::new(end, block.size.get(), state, rank) });
            end += block.size.get();
        }
        let page = adopted.page.map_or(0, |page| page.get());
        let number = self.ranges_made;
        self.ranges_made += u64::from(page > 0);
        let stream = adopted.stream.get();
        let segment = Segment { base, size: end - base, page, stream, pool, class, number, blocks };
        self.count_adopted(&segment, pool);
        let held = segment.blocks.iter().filter(|block| block.state == State::Allocated).map(|block| block.address).collect();
        self.segments.push(segment);
        held
    }

    fn count_adopted(&mut self, segment: &Segment, pool: PoolId) {
        let class = segment.class;
        self.count_reserved(pool, class, segment.mapped() as i64);
        if !segment.is_expandable() {
            self.accounts.change(Family::Segment, class, 1);
            if self.is_oversize(segment.size) {
                add(&mut self.accounts.oversize_segments, 1);
            }
        }
        for block in &segment.blocks {
            let size = block.size as i64;
            match block.state {
                State::Free if segment.blocks.len() > 1 && !segment.is_expandable() => {
                    self.accounts.change(Family::InactiveSplit, class, 1);
                    self.accounts.change(Family::InactiveSplitBytes, class, size);
                }
                State::Allocated => {
                    self.accounts.change(Family::Allocation, class, 1);
                    self.accounts.change(Family::AllocatedBytes, class, size);
                    self.accounts.change(Family::Active, class, 1);
                    self.accounts.change(Family::ActiveBytes, class, size);
                    self.accounts.change(Family::RequestedBytes, class, block.requested as i64);
                    if self.is_oversize(block.size) {
                        add(&mut self.accounts.oversize_allocations, 1);
                    }
                }
                _ => {}
            }
        }
    }
}
