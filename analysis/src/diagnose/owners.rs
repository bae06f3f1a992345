//! Who allocated a block: the entry, with its stack and time; and how much each stack holds.

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade_recording::{Action, BlockState, DeviceRecording, StackId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::stacks::{StackUse, by_stack};

/// The allocation that a live block comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Its entry; `None` if that was before the first entry.
    pub entry: Option<usize>,
    /// Its stack; [`StackId::NONE`] if the file does not state it.
    pub stack: StackId,
    /// Its time, in microseconds since 1970, if the file states it.
    pub time_us: Option<u64>,
}

/// The owners of all blocks in use at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    served: FxHashMap<u64, Owner>,
}

impl Owners {
    /// The owners after the first `entries` entries of the trace.
    pub(super) fn after(recording: &DeviceRecording, entries: usize) -> Owners {
        let mut served = FxHashMap::default();
        let (before, later) = recording.trace.split_at(entries.min(recording.trace.len()));
        let later: FxHashSet<u64> =
            later.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.address).collect();
        // A block in use from before the first entry until the end has its stack in the final segments.
        for block in recording.segments.iter().flat_map(|segment| &segment.blocks) {
            if block.state != BlockState::Inactive && !later.contains(&block.address) {
                served.insert(block.address, Owner { entry: None, stack: block.stack, time_us: None });
            }
        }
        for (at, entry) in before.iter().enumerate().filter(|(_, entry)| entry.action == Action::Alloc) {
            served.insert(entry.address, Owner { entry: Some(at), stack: entry.stack, time_us: entry.time() });
        }
        Owners { served }
    }

    /// The owner of the block in use at this address.
    pub(super) fn of(&self, address: u64) -> Owner {
        self.served.get(&address).copied().unwrap_or(Owner { entry: None, stack: StackId::NONE, time_us: None })
    }
}

/// What each stack holds of a heap's live blocks, the largest first.
pub(super) fn live_by_stack(segments: &[SegmentInfo], owners: &Owners) -> Vec<StackUse> {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.state == BlockActivity::Allocated);
    by_stack(live.map(|block| (owners.of(block.address.get()).stack, block.size.get())).collect())
}
