//! Reading segments and their blocks (spec 7.3), in the form of every version (spec 7.8).

use std::collections::BTreeMap;

use super::budget::Budget;
use super::error::{FormatError, FormatProblem, Place};
use super::fields::Fields;
use super::stacks::StackReader;
use super::values::{self, optional};
use crate::dated_keys::{FileFields, Part};
use crate::pickle::{Loaded, Value};
use crate::recording::{Block, BlockState, Segment, StackId};

/// The length of a segment of the small pool (spec 1.6, `kSmallBuffer`), in bytes,
/// for files that do not name the pool.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Reads segments.
pub(crate) struct SegmentReader {
    fields: Fields<12>,
    block_fields: Fields<6>,
    history_fields: Fields<3>,
}

/// A segment whose blocks are not read yet, and the value that contains them.
struct Head {
    device: u32,
    segment: Segment,
    blocks: Value,
}

impl SegmentReader {
    pub(crate) fn new() -> Self {
        const SEGMENT: [&str; 12] = [
            "device",
            "address",
            "total_size",
            "allocated_size",
            "active_size",
            "requested_size",
            "stream",
            "segment_type",
            "segment_pool_id",
            "is_expandable",
            "frames",
            "blocks",
        ];
        const BLOCK: [&str; 6] = ["address", "size", "requested_size", "state", "frames", "history"];
        SegmentReader {
            fields: Fields::of(Part::Segment, SEGMENT, &["cpp_frames"]),
            block_fields: Fields::of(Part::Block, BLOCK, &["cpp_frames"]),
            history_fields: Fields::new(["real_size", "frames", "addr"], &["cpp_frames"]),
        }
    }

    /// Reads the list of segments, sorted by device and address.
    ///
    /// # Errors
    /// [`FormatError`] at the first segment or block that makes no sense, or if two segments overlap.
    pub(crate) fn read(
        &mut self,
        loaded: &Loaded,
        list: &[Value],
        stacks: &mut StackReader,
        budget: &mut Budget,
    ) -> Result<Vec<(u32, Segment)>, FormatError> {
        let whole = |problem| FormatError { place: Place::Snapshot, problem };
        budget.spend(list.len(), Budget::SEGMENT).map_err(whole)?;
        let mut heads = Vec::with_capacity(list.len());
        for (number, &dict) in list.iter().enumerate() {
            let head = self.head(loaded, dict, stacks);
            let head = head.map_err(|problem| FormatError { place: Place::Segment { segment: number }, problem })?;
            heads.push((number, head));
        }
        // Before the blocks are read: segments that share one list of blocks are refused here, not expanded.
        heads.sort_by_key(|(_, head)| (head.device, head.segment.address));
        check_overlap(&heads)?;
        let mut segments = Vec::with_capacity(heads.len());
        for (number, head) in heads {
            let mut segment = head.segment;
            segment.blocks = self.blocks(loaded, number, &segment, head.blocks, stacks, budget)?;
            segments.push((head.device, segment));
        }
        Ok(segments)
    }

    fn head(&mut self, loaded: &Loaded, dict: Value, stacks: &mut StackReader) -> Result<Head, FormatProblem> {
        let [device, address, total, allocated, active, requested, stream, kind, pool, expandable, frames, blocks] =
            self.fields.look_up(loaded, dict, "segments")?;
        let size = |value, key| optional(value, |value| values::unsigned(loaded, value, key));
        let address = values::unsigned(loaded, address, "address")?;
        let total_bytes = values::positive(loaded, total, "total_size")?;
        values::check_end(address, total_bytes)?;
        let large = match optional(kind, |kind| values::text(loaded, kind, "segment_type"))? {
            Some(b"large") => true,
            Some(b"small") => false,
            Some(other) => return Err(values::unknown_name("segment_type", other, "large, small")),
            None => total_bytes > SMALL_SEGMENT,
        };
        let segment = Segment {
            address,
            total_bytes,
            stream: optional(stream, |stream| values::bits(loaded, stream, "stream"))?.unwrap_or(0),
            large,
            pool: optional(pool, |pool| values::pool(loaded, pool, "segment_pool_id"))?,
            expandable: optional(expandable, |yes| values::boolean(loaded, yes, "is_expandable"))?.unwrap_or(false),
            allocated_bytes: size(allocated, "allocated_size")?,
            active_bytes: size(active, "active_size")?,
            requested_bytes: size(requested, "requested_size")?,
            stack: stacks.read(loaded, frames)?,
            blocks: Vec::new(),
        };
        let device = optional(device, |device| values::device(loaded, device, "device"))?.unwrap_or(0);
        Ok(Head { device, segment, blocks })
    }

    fn blocks(
        &mut self,
        loaded: &Loaded,
        number: usize,
        segment: &Segment,
        list: Value,
        stacks: &mut StackReader,
        budget: &mut Budget,
    ) -> Result<Vec<Block>, FormatError> {
        let whole = |problem| FormatError { place: Place::Segment { segment: number }, problem };
        let list = values::items(loaded, list, "blocks").map_err(whole)?;
        budget.spend(list.len(), Budget::BLOCK).map_err(whole)?;
        let mut blocks = Vec::with_capacity(list.len());
        let mut end = segment.address;
        for (index, &dict) in list.iter().enumerate() {
            let place = Place::Block { segment: number, block: index };
            let block = self.block(loaded, dict, end, stacks).map_err(|problem| FormatError { place, problem })?;
            end = block.address + block.size; // Checked as the block was read.
            blocks.push(block);
        }
        let (sum, total) = (end - segment.address, segment.total_bytes);
        if sum != total {
            return Err(whole(FormatProblem::WrongSum { blocks: sum, total }));
        }
        Ok(blocks)
    }

    /// Reads a block, which must begin at `expected`.
    fn block(&mut self, loaded: &Loaded, dict: Value, expected: u64, stacks: &mut StackReader) -> Result<Block, FormatProblem> {
        let [address, size, requested, state, frames, history] = self.block_fields.look_up(loaded, dict, "blocks")?;
        let size = values::positive(loaded, size, "size")?;
        let address = optional(address, |address| values::unsigned(loaded, address, "address"))?.unwrap_or(expected);
        if address != expected {
            return Err(FormatProblem::Gap { expected, found: address });
        }
        values::check_end(address, size)?;
        let state = match values::text(loaded, state, "state")? {
            b"active_allocated" => BlockState::ActiveAllocated,
            b"active_pending_free" | b"active_awaiting_free" => BlockState::ActivePendingFree,
            b"inactive" => BlockState::Inactive,
            other => {
                let known = "active_allocated, active_pending_free, active_awaiting_free, inactive";
                return Err(values::unknown_name("state", other, known));
            }
        };
        let requested = optional(requested, |size| values::unsigned(loaded, size, "requested_size"))?;
        let stack = stacks.read(loaded, frames)?;
        let (requested, stack) = match self.last_request(loaded, history, stacks)? {
            Some((old_requested, old_stack)) => {
                (requested.or(Some(old_requested)), if stack == StackId::NONE { old_stack } else { stack })
            }
            None => (requested, stack),
        };
        Ok(Block { address, size, requested, state, stack })
    }

    /// The request that a block serves in files of 1.x and 2.0: the first of its `history`, as in PyTorch's viewers.
    fn last_request(
        &mut self,
        loaded: &Loaded,
        history: Value,
        stacks: &mut StackReader,
    ) -> Result<Option<(u64, StackId)>, FormatProblem> {
        let Some(history) = optional(history, |list| values::items(loaded, list, "history"))? else {
            return Ok(None);
        };
        let Some(&first) = history.first() else {
            return Ok(None);
        };
        let [real_size, frames, _] = self.history_fields.look_up(loaded, first, "history")?;
        Ok(Some((values::unsigned(loaded, real_size, "real_size")?, stacks.read(loaded, frames)?)))
    }

    /// Which dated keys the segments and blocks have.
    pub(crate) fn dated(&self, loaded: &Loaded) -> FileFields {
        let mut dated = self.fields.dated(loaded);
        dated.add(self.block_fields.dated(loaded));
        dated
    }

    /// The unknown keys of segments, and those of blocks.
    pub(crate) fn finish(self) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
        (self.fields.into_unknown(), self.block_fields.into_unknown())
    }
}

fn check_overlap(heads: &[(usize, Head)]) -> Result<(), FormatError> {
    for pair in heads.windows(2) {
        let [(other, before), (number, after)] = pair else {
            continue;
        };
        let end = before.segment.address + before.segment.total_bytes; // Checked as the head was read.
        if before.device == after.device && after.segment.address < end {
            let address = after.segment.address;
            let problem = FormatProblem::Overlap { other: *other, device: after.device, address };
            return Err(FormatError { place: Place::Segment { segment: *number }, problem });
        }
    }
    Ok(())
}
