//! Who asked for a block: the entry that handed it out, with its stack and time; and which stacks hold the most.

use parkade::snapshot::{BlockActivity, SegmentInfo};
use rustc_hash::{FxHashMap, FxHashSet};

use parkade_recording::{Action, BlockState, DeviceRecording, StackId};

/// Where a block that is in use comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The entry that handed it out; `None` if that was before the first entry.
    pub entry: Option<usize>,
    /// The stack of the request; [`StackId::NONE`] if the file does not say.
    pub stack: StackId,
    /// When that was, in microseconds since 1970, if the file says.
    pub time_us: Option<u64>,
}

/// The owners of all blocks that are in use at one moment.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    served: FxHashMap<u64, Owner>,
}

impl Owners {
    /// The owners after the first `entries` entries of the trace.
    #[must_use]
    pub fn after(recording: &DeviceRecording, entries: usize) -> Owners {
        let mut served = FxHashMap::default();
        let (before, later) = recording.trace.split_at(entries.min(recording.trace.len()));
        let later: FxHashSet<u64> =
            later.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.address).collect();
        // What was in use before the first entry and still is at the end has its stack there.
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
    #[must_use]
    pub fn of(&self, address: u64) -> Owner {
        self.served.get(&address).copied().unwrap_or(Owner { entry: None, stack: StackId::NONE, time_us: None })
    }
}

/// What one stack holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackUse {
    /// The stack; [`StackId::NONE`] is all blocks without one.
    pub stack: StackId,
    /// Bytes of its blocks that are handed out.
    pub bytes: u64,
    /// How many those are.
    pub blocks: usize,
}

/// What each stack holds of a heap, the most first.
#[must_use]
pub fn live_by_stack(segments: &[SegmentInfo], owners: &Owners) -> Vec<StackUse> {
    let mut uses: Vec<StackUse> = Vec::new();
    let mut places: FxHashMap<StackId, usize> = FxHashMap::default();
    let live = segments.iter().flat_map(|segment| &segment.blocks).filter(|block| block.state == BlockActivity::Allocated);
    for block in live {
        let stack = owners.of(block.address.get()).stack;
        let place = *places.entry(stack).or_insert_with(|| {
            uses.push(StackUse { stack, bytes: 0, blocks: 0 });
            uses.len() - 1
        });
        uses[place].bytes = uses[place].bytes.saturating_add(block.size.get());
        uses[place].blocks += 1;
    }
    uses.sort_by_key(|held| (std::cmp::Reverse(held.bytes), held.stack));
    uses
}
