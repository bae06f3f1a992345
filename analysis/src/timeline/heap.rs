//! The heap at any moment, reconstructed from the log.

use super::log::{HeapLog, SegmentLife};

/// A segment at a moment; of an expandable one, a mapped run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentNow {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Handle of its stream.
    pub stream: u64,
    /// Its pool; `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// Whether it is a run of an expandable segment.
    pub expandable: bool,
    /// Its blocks in use, by address; everything between them is free.
    pub blocks: Vec<BlockNow>,
}

/// A block in use at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockNow {
    /// Its index in [`HeapLog::blocks`].
    pub place: usize,
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The program has freed it, but other streams still use it.
    pub is_pending: bool,
}

impl HeapLog {
    /// The heap at a moment: its segments with their blocks in use, by address.
    #[must_use]
    pub fn at(&self, moment: u32) -> Vec<SegmentNow> {
        let mut pieces: Vec<&SegmentLife> = self.segments.iter().filter(|s| s.born <= moment && moment < s.gone).collect();
        pieces.sort_unstable_by_key(|piece| piece.address);
        let mut segments: Vec<SegmentNow> = Vec::new();
        for piece in pieces {
            match segments.last_mut() {
                Some(last) if continues(last, piece) => last.size = last.size.saturating_add(piece.size),
                _ => segments.push(SegmentNow {
                    address: piece.address,
                    size: piece.size,
                    stream: piece.stream,
                    pool: piece.pool,
                    expandable: piece.expandable,
                    blocks: Vec::new(),
                }),
            }
        }
        let blocks = self.blocks.iter().enumerate().filter(|(_, block)| block.born <= moment && moment < block.gone);
        for (place, block) in blocks {
            let behind = segments.partition_point(|segment| segment.address <= block.address);
            // No block is outside all segments: the replay refuses a trace that contradicts itself.
            if let Some(segment) = behind.checked_sub(1).and_then(|place| segments.get_mut(place)) {
                let (address, size, is_pending) = (block.address, block.size, block.freed <= moment);
                segment.blocks.push(BlockNow { place, address, size, is_pending });
            }
        }
        for segment in &mut segments {
            segment.blocks.sort_unstable_by_key(|block| block.address);
        }
        segments
    }
}

fn continues(last: &SegmentNow, piece: &SegmentLife) -> bool {
    let is_next = last.address.checked_add(last.size) == Some(piece.address);
    last.expandable && piece.expandable && is_next && (last.stream, last.pool) == (piece.stream, piece.pool)
}
