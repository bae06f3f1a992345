//! The allocator that a replay runs: a core for which the recording takes the place of the device.
//!
//! Its rules are PyTorch's. The recording supplies the device's answers, the facts that the rules cannot know, and the
//! position of the replay. The core's observer compares each decision with the recording's next entry.

use std::cell::Cell;
use std::collections::BTreeMap;

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::policy::{Policy, PyTorch, Wrapper};
use parkade::trace::{Observer, TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, PoolClass, PoolId, StreamId};
use parkade::{AdoptedContent, AdoptedSegment, Allocation, Allocator, BlockId, BlockView, Heap, PoolSlot};
use parkade_recording::{Action, Entry};
use rustc_hash::FxHashMap;

use crate::completions::{completion_of, stream_of};
use crate::entries::{Decision, ELSEWHERE};
use crate::error::VerifyError;
use crate::initial_state::{Start, TOTAL_MEMORY};

/// The position of the replay, shared by the runner, the device, the policy and the observer.
#[derive(Debug, Default)]
pub(crate) struct Position {
    /// The entry that the core must reproduce next.
    pub(crate) next: Cell<usize>,
    /// One past the last entry of the current operation.
    pub(crate) end: Cell<usize>,
    /// Events that completed before this entry are reported as complete.
    pub(crate) visible: Cell<usize>,
    /// The number of requests for a segment that were refused because the recording has no segment at that point.
    pub(crate) refusals: Cell<u64>,
    /// The total number of blocks copied to try readings.
    pub(crate) copied: Cell<u64>,
    /// An entry, and the first entry at or after it that maps pages. All entries in between have the same answer.
    mapped: Cell<Option<(usize, Option<usize>)>>,
}

impl Position {
    /// Returns the first entry, starting at the next one, that maps pages.
    fn next_map(&self, trace: &[Entry]) -> Option<usize> {
        let next = self.next.get();
        if let Some((from, known)) = self.mapped.get()
            && (from..=known.unwrap_or(usize::MAX)).contains(&next)
        {
            return known;
        }
        let found = trace.iter().skip(next).position(|entry| entry.action == Action::SegmentMap).map(|behind| next + behind);
        self.mapped.set(Some((next, found)));
        found
    }
}

/// Observes the core and advances the replay as long as the decisions agree.
#[derive(Clone, Debug)]
pub(crate) struct Comparer<'a> {
    trace: &'a [Entry],
    position: &'a Position,
    /// The first decision of this operation that the recording does not have, and the entry before which it came.
    pub(crate) stray: Option<(usize, Decision)>,
    /// The number of decisions in this operation that the recording does not have.
    stray_count: u64,
    /// Set while the state before the first entry is rebuilt: nothing is compared then.
    muted: bool,
    /// The addresses at which this operation took memory from the device, with the pools that the memory was for; `None` if
    /// no caller needs them.
    pub(crate) taken: Option<Vec<(u64, PoolId)>>,
}

impl<'a> Comparer<'a> {
    pub(crate) fn new(trace: &'a [Entry], position: &'a Position) -> Comparer<'a> {
        Comparer { trace, position, stray: None, stray_count: 0, muted: false, taken: None }
    }

    /// Ends an operation. Returns its first decision that did not agree, and the number that did not.
    pub(crate) fn take_stray(&mut self) -> (Option<(usize, Decision)>, u64) {
        (self.stray.take(), std::mem::take(&mut self.stray_count))
    }
}

impl Observer for Comparer<'_> {
    #[inline]
    fn observe(&mut self, entry: &TraceEntry) {
        if self.muted {
            return;
        }
        if let Some(taken) = &mut self.taken
            && matches!(entry.action, TraceAction::SegmentAlloc | TraceAction::SegmentMap)
        {
            taken.push((entry.address, entry.pool));
        }
        let next = self.position.next.get();
        let decision = Decision::from(entry);
        if self.stray.is_none()
            && next < self.position.end.get()
            && let Some(expected) = self.trace.get(next)
            && Decision::from(expected) == decision
        {
            self.position.next.set(next + 1);
            return;
        }
        self.stray_count += 1;
        self.stray.get_or_insert((next, decision));
    }
}

/// A device that takes its answers from the recording.
///
/// The allocator did not decide where a segment was placed (the driver did), whether there was room (other processes
/// mattered) or when an event was complete (the GPU did). This device therefore takes these answers from the recording. It
/// grants a request for a segment at the recorded address if the recording's next entry is that segment, and refuses it if
/// the next entry shows that it failed. If the recording shows no request there, the device grants it at an address that no
/// recording contains, and the observer reports the mismatch.
#[derive(Clone, Debug)]
pub(crate) struct RecordedDevice<'a> {
    trace: &'a [Entry],
    position: &'a Position,
    index: u32,
    elsewhere: u64,
    /// Reserved ranges of addresses: the first byte of each, and the highest end of the memory that was ever mapped in it.
    reserved: BTreeMap<u64, u64>,
}

impl<'a> RecordedDevice<'a> {
    pub(crate) fn new(index: u32, trace: &'a [Entry], position: &'a Position) -> RecordedDevice<'a> {
        RecordedDevice { trace, position, index, elsewhere: ELSEWHERE, reserved: BTreeMap::new() }
    }

    fn refuse(&self, requested: Bytes) -> BackendError {
        self.position.refusals.set(self.position.refusals.get() + 1);
        BackendError::OutOfMemory { requested }
    }

    fn place_elsewhere(&mut self, size: Bytes) -> Result<u64, BackendError> {
        let address = self.elsewhere;
        let end = size.0.checked_next_multiple_of(2 << 20).and_then(|length| address.checked_add(length));
        self.elsewhere = end.ok_or(BackendError::OutOfMemory { requested: size })?;
        Ok(address)
    }

    /// Adds a range that was reserved before the first entry and mapped up to `end`.
    fn adopt_range(&mut self, address: u64, end: u64) {
        self.reserved.insert(address, end);
    }

    /// Returns the beginning of the next reserved range: the first mapped address that no range reserved so far grows into. A
    /// range grows upwards from its lowest address without gaps (spec 4.2), so its end shows which addresses belong to it.
    fn next_base(&self) -> Option<u64> {
        let first = self.position.next_map(self.trace)?;
        if self.reserved.range(..=self.trace[first].address).next_back().is_none_or(|(_, end)| self.trace[first].address > *end) {
            return Some(self.trace[first].address);
        }
        let mut reserved = self.reserved.clone();
        let mut maps = self.trace[first..].iter().filter(|entry| entry.action == Action::SegmentMap);
        maps.find(|entry| !grow(&mut reserved, entry.address, entry.size)).map(|entry| entry.address)
    }

    /// Returns the number of entries in the recording.
    pub(crate) fn recorded_entries(&self) -> usize {
        self.trace.len()
    }

    fn next_entry(&self) -> Option<&Entry> {
        self.trace[..self.position.end.get()].get(self.position.next.get())
    }
}

/// Records that addresses are mapped. Returns false if the addresses belong to no range.
fn grow(reserved: &mut BTreeMap<u64, u64>, address: u64, size: u64) -> bool {
    match reserved.range_mut(..=address).next_back() {
        Some((_, end)) if address <= *end => {
            *end = (*end).max(address.saturating_add(size));
            true
        }
        _ => false,
    }
}

impl DeviceBackend for RecordedDevice<'_> {
    /// The entry at which the event's block became free.
    type Event = usize;
    /// A recording does not distinguish pieces of physical memory.
    type Physical = ();

    /// Returns true: each waiting block has a separate stream, whose handle is the entry at which the block becomes free.
    /// Without this, a replay with a hundred thousand waiting blocks would poll each of them at every request.
    fn completes_by_handle(&self) -> bool {
        true
    }

    fn answers_are_checked(&self) -> bool {
        false
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn total_memory(&self) -> Bytes {
        Bytes(TOTAL_MEMORY)
    }

    /// Returns the free bytes at the recorded failure. A recording does not contain the total.
    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        let free = self.next_entry().filter(|entry| entry.action == Action::Oom).map_or(0, |entry| entry.address);
        Ok(MemoryInfo { free: Bytes(free), total: Bytes::MAX })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        match self.next_entry() {
            Some(entry) if entry.action == Action::SegmentAlloc && entry.size == size.0 => Ok(DeviceAddress(entry.address)),
            Some(entry) if !matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap | Action::Alloc) => {
                Err(self.refuse(size))
            }
            // The recording has a segment of a different size at this point, or none; the observer will report the mismatch.
            _ => self.place_elsewhere(size).map(DeviceAddress),
        }
    }

    fn free(&mut self, _: DeviceAddress) -> Result<(), BackendError> {
        Ok(())
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let address = self.next_base().map_or_else(|| self.place_elsewhere(size), Ok)?;
        self.reserved.insert(address, address);
        Ok(DeviceAddress(address))
    }

    fn unreserve(&mut self, address: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        self.reserved.remove(&address.0);
        Ok(())
    }

    fn create(&mut self, size: Bytes) -> Result<(), BackendError> {
        match self.next_entry() {
            Some(entry) if !matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap | Action::Alloc) => {
                Err(self.refuse(size))
            }
            // The recorded settings may specify any page size, and no device has a page this large.
            _ if size.0 > TOTAL_MEMORY => Err(self.refuse(size)),
            _ => Ok(()),
        }
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, (): &()) -> Result<(), BackendError> {
        grow(&mut self.reserved, address.0, size.0);
        Ok(())
    }

    fn set_access(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn unmap(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn release(&mut self, (): ()) -> Result<(), ((), BackendError)> {
        Ok(())
    }

    fn run_pages(&self) -> u64 {
        u64::MAX
    }

    /// Returns all or none: the recording contains a single answer to whether a request found memory.
    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<((), u64), BackendError> {
        self.create(page).map(|()| ((), pages))
    }

    fn split_run(&mut self, (): &mut (), _: Bytes, _: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn synchronize_stream(&mut self, _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }

    fn create_event(&mut self) -> Result<usize, BackendError> {
        Ok(usize::MAX)
    }

    /// Records an event. The stream that a replay records on a block represents the entry at which the block became free.
    fn record_event(&mut self, event: &mut usize, stream: StreamId) -> Result<(), BackendError> {
        *event = completion_of(stream);
        Ok(())
    }

    fn is_complete(&mut self, event: &usize) -> Result<bool, BackendError> {
        Ok(*event < self.position.visible.get())
    }

    fn wait(&mut self, _: &usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn destroy_event(&mut self, _: usize) {}
}

/// PyTorch's rules, except that garbage collection takes its victims from the recording if block ages are unknown.
///
/// A collection chooses free blocks by age (spec 2.7). The age of a block that has been free since before the first entry is
/// unknown, except that no other block is older. If such a block is a candidate, the victims are therefore those that the
/// recording releases next, provided that PyTorch would release them for some block ages. All other decisions, and all
/// collections once the ages are known, follow the rules.
#[derive(Clone, Debug)]
pub(crate) struct Recorded<'a> {
    rules: PyTorch,
    trace: &'a [Entry],
    position: &'a Position,
    has_lost_beginning: bool,
    /// The number of collections that took their victims from the recording.
    pub(crate) assumed: u64,
}

impl<'a> Recorded<'a> {
    pub(crate) fn new(rules: PyTorch, trace: &'a [Entry], position: &'a Position, has_lost_beginning: bool) -> Recorded<'a> {
        Recorded { rules, trace, position, has_lost_beginning, assumed: 0 }
    }

    /// Returns the maximum number of bytes that PyTorch requests from the device for a block of this size.
    ///
    /// With expandable segments this includes one page: the limit counts sizes, but whole pages are mapped, so the
    /// recorded run may have reserved that much more than its limit.
    pub(crate) fn most_asked_for(&self, block: Bytes) -> Bytes {
        let settings = &self.rules.settings;
        let beyond = if settings.expandable_segments { settings.large_segment_bytes } else { 0 };
        Bytes(self.rules.segment_for(block).unwrap_or(Bytes::MAX).get().saturating_add(beyond))
    }

    /// Returns the blocks that a due collection releases, if only the recording shows them, or `None` if the rules decide.
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
        // If the next entry is a request to the device, the collection released the entire run. If not, the device had no
        // room after the collection, and later rungs of the retry ladder released the rest. In that case, the shortest run
        // that explains it leads to the same state.
        let is_whole = rest.get(run.len()).is_some_and(|entry| entry.action == Action::SegmentAlloc);
        let is_legal = |&count: &usize| explains(&run[..count], &candidates, target);
        let count = if is_whole { (1..=run.len()).rev().find(is_legal) } else { (1..=run.len()).find(is_legal) };
        Some(run[..count?].iter().map(|block| block.id).collect())
    }
}

/// Returns whether a block has been free since before the first search, as every block that was free before the first entry
/// has been.
fn is_of_unknown_age(block: &BlockView) -> bool {
    block.stamp == 0
}

fn released_by(entry: &Entry, candidates: &[BlockView]) -> Option<BlockView> {
    let is_it =
        |block: &&BlockView| !block.is_expandable && block.address.get() == entry.address && block.size.get() == entry.size;
    candidates.iter().find(is_it).copied().filter(|_| entry.action == Action::SegmentFree)
}

/// Returns whether a collection would release exactly these blocks for some block ages.
///
/// Each pass of a collection releases all blocks above some age. The blocks that are kept are therefore younger than those
/// that are released, and blocks of the same known age are released together. The collection ends when enough has been
/// reclaimed, or when only blocks in expandable segments are left, which are always kept.
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

    fn garbage(&mut self, heap: &Heap) -> Vec<BlockId> {
        if self.has_lost_beginning
            && let Some(blocks) = self.recorded_victims(heap)
        {
            self.assumed += 1;
            return blocks;
        }
        self.rules.garbage(heap)
    }
}

/// The core that a replay runs: PyTorch's rules, on a device that takes its answers from the recording.
pub(crate) type ReplayCore<'a> = Allocator<RecordedDevice<'a>, Recorded<'a>, Comparer<'a>>;

/// Rebuilds the state before the first entry on a new core. Returns the allocations in use, by address.
pub(crate) fn restore(start: &Start, core: &mut ReplayCore<'_>) -> Result<FxHashMap<u64, Allocation>, VerifyError> {
    let mut live = FxHashMap::default();
    for pool in start.pools.private() {
        let problem = "exceeds the maximum number of private pools";
        core.create_pool(pool).map_err(|_| VerifyError::Start { what: "pool", address: pool.0, problem, missing: &[] })?;
    }
    if start.lost.is_none() {
        return Ok(live);
    }
    core.observer_mut().muted = true;
    for segment in &start.extents.segments {
        let unusable = |_| VerifyError::Start {
            what: "segment",
            address: segment.address.get(),
            problem: "cannot be rebuilt",
            missing: &[],
        };
        if segment.page.is_some() {
            core.device_mut().adopt_range(segment.address.get(), end_of_memory(segment));
        }
        for allocation in core.adopt(segment, &mut |_, pages| ((), pages)).map_err(unusable)? {
            let address = allocation.address().get();
            match start.pending.get(&address) {
                None => {
                    live.insert(address, allocation);
                }
                Some(&completed_at) => {
                    core.record_stream(&allocation, stream_of(completed_at));
                    // Cannot fail: the recorded device refuses no event, and this core made the allocation.
                    let _ = core.free(allocation);
                }
            }
        }
    }
    core.observer_mut().muted = false;
    core.reset_accumulated_stats();
    core.reset_peak_stats();
    Ok(live)
}

/// Returns the end of the mapped memory of an expandable segment.
fn end_of_memory(segment: &AdoptedSegment) -> u64 {
    let (mut at, mut end) = (segment.address.get(), segment.address.get());
    for block in &segment.blocks {
        at += block.size.get();
        if block.content != AdoptedContent::Unmapped {
            end = at;
        }
    }
    end
}
