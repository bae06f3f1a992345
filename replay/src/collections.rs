//! The recorded rules: PyTorch's, except that a garbage collection whose victims nothing tells takes them from the recording.
//!
//! A collection goes by the ages of free blocks (spec 2.7). Of blocks that have been free since before the first entry the age is
//! unknown, only that they are at least as old as every other: so where such a block is a candidate, the victims are those that
//! the recording releases next, as long as there are ages under which PyTorch would release them. All other decisions, and all
//! collections once the ages are known, are made by the rules.

use parkade::policy::{Attempt, Policy, PyTorch, Relief, Request, Wrapper};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockId, BlockView, Heap, PoolSlot};

use super::device::Position;
use parkade_recording::{Action, Entry};

/// PyTorch's rules beside a recording.
#[derive(Clone, Debug)]
pub(super) struct Recorded<'a> {
    rules: PyTorch,
    trace: &'a [Entry],
    position: &'a Position,
    has_lost_beginning: bool,
    /// Collections whose victims were taken from the recording.
    pub(super) assumed: u64,
}

impl<'a> Recorded<'a> {
    pub(super) fn new(rules: PyTorch, trace: &'a [Entry], position: &'a Position, has_lost_beginning: bool) -> Recorded<'a> {
        Recorded { rules, trace, position, has_lost_beginning, assumed: 0 }
    }

    /// The most that PyTorch asks the device for, for a block of this size. With expandable segments, by how much the recorded run may
    /// have held more than its limit too, which looks at sizes and not at the page that they end in.
    pub(super) fn most_asked_for(&self, block: Bytes) -> Bytes {
        let settings = &self.rules.settings;
        let beyond = if settings.expandable_segments { settings.large_segment_bytes } else { 0 };
        Bytes(self.rules.segment_for(block).unwrap_or(Bytes::MAX).get().saturating_add(beyond))
    }

    /// What a collection that is due releases, if only the recording can tell.
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
        // Where the device is asked next, all of the run came before. Else later rungs released the rest of it, and as the
        // device had no room after the collection, the shortest that explains it leaves the same state.
        let is_whole = rest.get(run.len()).is_some_and(|entry| entry.action == Action::SegmentAlloc);
        let is_legal = |&count: &usize| explains(&run[..count], &candidates, target);
        let count = if is_whole { (1..=run.len()).rev().find(is_legal) } else { (1..=run.len()).find(is_legal) };
        Some(run[..count?].iter().map(|block| block.id).collect())
    }
}

/// Free since before the first search, and with it everything from before the first entry.
fn is_of_unknown_age(block: &BlockView) -> bool {
    block.stamp == 0
}

fn released_by(entry: &Entry, candidates: &[BlockView]) -> Option<BlockView> {
    let is_it =
        |block: &&BlockView| !block.is_expandable && block.address.get() == entry.address && block.size.get() == entry.size;
    candidates.iter().find(is_it).copied().filter(|_| entry.action == Action::SegmentFree)
}

/// Whether there are ages under which a collection releases exactly these. Each of its passes releases everything from some age on: so
/// what stays is younger than what goes, and what is of one known age goes together. It ends once enough is reclaimed, or when
/// nothing is left but blocks of expandable segments, which stay.
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
