//! PyTorch's rules, except that a garbage collection takes its victims from the recording if block ages are unknown.
//!
//! A collection chooses free blocks by age (spec 2.7). The age of a block that has been free since before the
//! first entry is unknown, except that no other block is older. So if such a block is a candidate, the victims
//! are those that the recording releases next, provided that there are ages for which PyTorch would release
//! them. All other decisions, and all collections once the ages are known, follow the rules.

use parkade::policy::{Attempt, Policy, PyTorch, Relief, Request, Wrapper};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, BlockView, Heap, PoolSlot};
use parkade_recording::{Action, Entry};

use super::position::Position;

/// PyTorch's rules, and the recording to take unknown victims from.
#[derive(Clone, Debug)]
pub(crate) struct Recorded<'a> {
    rules: PyTorch,
    trace: &'a [Entry],
    position: &'a Position,
    has_lost_beginning: bool,
    /// How many collections took their victims from the recording.
    pub(crate) assumed: u64,
}

impl<'a> Recorded<'a> {
    pub(crate) fn new(rules: PyTorch, trace: &'a [Entry], position: &'a Position, has_lost_beginning: bool) -> Recorded<'a> {
        Recorded { rules, trace, position, has_lost_beginning, assumed: 0 }
    }

    /// The most bytes that PyTorch asks the device for, for a block of this size.
    ///
    /// With expandable segments this includes one page: the limit counts sizes, but whole pages are mapped, so
    /// the recorded run may have reserved that much more than its limit.
    pub(crate) fn most_asked_for(&self, block: Bytes) -> Bytes {
        let settings = &self.rules.settings;
        let beyond = if settings.expandable_segments { settings.large_segment_bytes } else { 0 };
        Bytes(self.rules.segment_for(block).unwrap_or(Bytes::MAX).get().saturating_add(beyond))
    }

    /// The blocks that a collection that is due releases, if only the recording can tell; otherwise `None`.
    fn recorded_victims(&self, heap: &Heap) -> Option<Vec<BlockId>> {
        let target = self.rules.collection_target(heap)?;
        let pool = PoolSlot::default_pool(PoolClass::Large);
        let candidates: Vec<BlockView> = heap.free_blocks(pool).filter(|block| !block.is_split).collect();
        if !candidates.iter().any(is_of_unknown_age) {
            return None;
        }
        let rest = self.trace[..self.position.end.get()].get(self.position.next.get()..)?;
        let released = rest.iter().map_while(|entry| released_by(entry, &candidates));
        let run: Vec<BlockView> = released.collect();
        // If the device is asked next, the collection released the whole run. If not, later steps of the
        // retry ladder released the rest, as the device had no room after the collection; then the shortest
        // run that explains it leaves the same state.
        let is_whole = rest.get(run.len()).is_some_and(|entry| entry.action == Action::SegmentAlloc);
        let is_legal = |&count: &usize| explains(&run[..count], &candidates, target);
        let count = if is_whole { (1..=run.len()).rev().find(is_legal) } else { (1..=run.len()).find(is_legal) };
        Some(run[..count?].iter().map(|block| block.id).collect())
    }
}

/// Whether a block has been free since before the first search, as everything from before the first entry has.
fn is_of_unknown_age(block: &BlockView) -> bool {
    block.stamp == 0
}

fn released_by(entry: &Entry, candidates: &[BlockView]) -> Option<BlockView> {
    let is_it =
        |block: &&BlockView| !block.is_expandable && block.address.get() == entry.address && block.size.get() == entry.size;
    candidates.iter().find(is_it).copied().filter(|_| entry.action == Action::SegmentFree)
}

/// Whether there are ages for which a collection releases exactly these blocks.
///
/// Each pass of a collection releases all blocks above some age. So the blocks that stay are younger than those
/// that go, and blocks of the same known age go together. It ends once enough is reclaimed, or when only blocks
/// of expandable segments are left, which always stay.
fn explains(victims: &[BlockView], candidates: &[BlockView], target: Bytes) -> bool {
    let youngest = victims.iter().map(|block| block.stamp).max().unwrap_or(0);
    let stays = |block: &&BlockView| !block.is_expandable && !victims.iter().any(|victim| victim.id == block.id);
    let mut survivors = candidates.iter().filter(stays);
    let reclaimed: u64 = victims.iter().map(|block| block.size.get()).sum();
    let is_enough =
        reclaimed >= target.get() || survivors.clone().next().is_none() || candidates.iter().any(|block| block.is_expandable);
    is_enough && survivors.all(|block| block.stamp > youngest || (youngest == 0 && is_of_unknown_age(block)))
}

impl Wrapper for Recorded<'_> {
    type Inner = PyTorch;

    #[inline]
    fn inner(&self) -> &PyTorch {
        &self.rules
    }

    #[inline]
    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.rules
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        if rung == 0
            && self.has_lost_beginning
            && let Some(blocks) = self.recorded_victims(heap)
        {
            self.assumed += 1;
            return Relief::Release { blocks, attempt: Attempt::Ask };
        }
        self.rules.relieve(heap, request, rung)
    }
}
