//! How a heap's bytes are used at a moment of a timeline.

use crate::fragmentation::Fragmentation;
use crate::timeline::HeapLog;

/// The fragmentation at a moment, and the number of segments then. What lies between the blocks in use counts as free.
pub(super) fn heap_at(log: &HeapLog, moment: u32) -> (Fragmentation, usize) {
    let segments = log.at(moment);
    let mut sums = Fragmentation::default();
    for segment in &segments {
        let (mut free_bytes, mut from) = (0_u64, segment.address);
        let end = segment.address.saturating_add(segment.size);
        let blocks = segment.blocks.iter().map(|block| (block.address, block.address.saturating_add(block.size)));
        for (address, block_end) in blocks.chain([(end, end)]) {
            let hole = address.saturating_sub(from);
            if hole > 0 {
                free_bytes = free_bytes.saturating_add(hole);
                sums.largest_hole_bytes = sums.largest_hole_bytes.max(hole);
                sums.holes += 1;
            }
            from = from.max(block_end);
        }
        for block in &segment.blocks {
            let place = if block.is_pending { &mut sums.pending_bytes } else { &mut sums.allocated_bytes };
            *place = place.saturating_add(block.size);
            let requested = log.blocks.get(block.place).map_or(block.size, |life| life.requested);
            sums.requested_bytes = sums.requested_bytes.saturating_add(requested);
        }
        sums.reserved_bytes = sums.reserved_bytes.saturating_add(segment.size);
        sums.free_bytes = sums.free_bytes.saturating_add(free_bytes);
        let place = if segment.blocks.is_empty() { &mut sums.free_segments_bytes } else { &mut sums.partial_segments_bytes };
        *place = place.saturating_add(free_bytes);
    }
    (sums, segments.len())
}
