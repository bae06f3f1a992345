//! What a policy sees of handles, computed a second time from the device calls: which handles are in a free block and may be
//! moved, and which are partly free.

use std::collections::BTreeMap;
use std::ops::Range;

use parkade::policy::Policy;
use parkade::snapshot::SegmentInfo;
use parkade::trace::TraceAction;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolId, StreamId};
use parkade::{BlockView, HandleView, PartlyFreeView, PoolSlot};
use parkade_sim::CallName;

use super::caller::Caller;
use crate::law::{Broken, Law, ensure};

/// The page size with which policies ask for partly free handles.
const PAGE: u64 = 2 * MIB;

/// The memory that is mapped, and what private pools have handed out.
#[derive(Clone, Default, Debug)]
pub(super) struct Mappings {
    /// The address and the size of each mapping.
    mapped: BTreeMap<u64, u64>,
    /// For each reserved range from which a private pool has handed out a block: the end of the last address that it has handed
    /// out.
    handed_out: BTreeMap<u64, u64>,
    /// The same before the current step.
    handed_out_before: BTreeMap<u64, u64>,
    /// The pool and the stream of each reserved range that has had memory.
    owners: BTreeMap<u64, (PoolId, StreamId)>,
}

impl Mappings {
    /// Follows the device calls of a step, and the blocks that private pools handed out in it. `saved` is a pool that was saved,
    /// all of whose memory counts as handed out.
    pub(super) fn follow(&mut self, caller: &mut Caller, saved: Option<PoolId>) {
        self.handed_out_before.clone_from(&self.handed_out);
        for (place, call) in caller.calls.iter().enumerate().filter(|(_, call)| call.done) {
            match call.name {
                CallName::MemMap => {
                    self.mapped.insert(call.address, call.bytes);
                }
                CallName::MemUnmap => {
                    self.mapped.extract_if(call.address..call.address + call.bytes, |_, _| true).for_each(drop);
                }
                CallName::AddressFree => {
                    self.handed_out.remove(&call.address);
                    self.owners.remove(&call.address);
                }
                _ => {}
            }
            let kept = caller.broken.iter().filter(|broken| broken.calls == place + 1);
            self.mapped.extend(kept.flat_map(|broken| broken.kept.iter().copied()));
        }
        let mut taken = caller.core.policy_mut().take_handed_out();
        if saved.is_some() {
            let own = caller.core.segments().into_iter().filter(|segment| Some(segment.pool) == saved && segment.expandable);
            taken.extend(own.map(|segment| segment.address.get() + segment.total.get()).map(|end| (end - 1, end)));
        }
        let ranges = caller.device.reserved_ranges();
        for entry in caller.entries().iter().filter(|entry| entry.action == TraceAction::SegmentMap) {
            let base = ranges.range(..=entry.address).next_back().filter(|&(base, size)| entry.address - base < *size);
            self.owners.extend(base.map(|(&base, _)| (base, (entry.pool, entry.stream))));
        }
        for (address, end) in taken {
            let base = ranges.range(..=address).next_back().filter(|&(base, size)| address < base + size);
            if let Some((&base, _)) = base {
                let last = self.handed_out.entry(base).or_default();
                *last = end.max(*last);
            }
        }
    }

    /// Returns whether a private pool had handed out nothing at or behind this address, in the reserved range that holds it, before
    /// the current step.
    pub(super) fn was_untouched(&self, address: u64) -> bool {
        self.handed_out_before.range(..=address).next_back().is_none_or(|(_, &end)| end <= address)
    }

    /// Returns the pool and the stream of a reserved range, if it has had memory.
    pub(super) fn owner(&self, base: u64) -> Option<(PoolId, StreamId)> {
        self.owners.get(&base).copied()
    }

    /// Checks that the handles that the policy moved for a request have moved: none stays, except where another stream or pool has
    /// a part of the range, or where their stream may not be waited for and a graph may have used them. `may_wait` says whether the
    /// allocator may wait for a stream.
    ///
    /// # Errors
    /// The first handle that stayed.
    pub(super) fn check_moved(&self, caller: &Caller, may_wait: impl Fn(StreamId) -> bool) -> Result<(), Broken> {
        let all = caller.core.policy().moved();
        if all.is_empty() {
            return Ok(());
        }
        let unmapped: Vec<u64> =
            caller.calls.iter().filter(|call| call.name == CallName::MemUnmap && call.done).map(|call| call.address).collect();
        let ranges = caller.device.reserved_ranges();
        for moved in all {
            let address = moved.addresses.start;
            let base = ranges.range(..=address).next_back().filter(|&(base, size)| address - base < *size);
            let Some((pool, stream)) = base.and_then(|(&base, _)| self.owner(base)) else { continue };
            // Only the default pool's ranges have parts in other pools.
            let is_default = moved.pool == PoolSlot::default_pool(moved.pool.class());
            let is_home = stream == moved.stream && is_default == (pool == PoolId::DEFAULT);
            // Handles of a pool in use may move only if the pool has never handed them out, so no work uses them.
            let is_in_use = pool != PoolId::DEFAULT && caller.core.pool_use_count(pool).is_ok_and(|uses| uses > 0);
            let must_move = is_home && (is_in_use || may_wait(moved.stream));
            ensure(Law::Ladder, !must_move || unmapped.contains(&address), || {
                format!("the policy moves {moved:x?}, but that handle has stayed")
            })?;
        }
        Ok(())
    }

    /// Compares the handles that the heap shows in its free blocks.
    ///
    /// # Errors
    /// The first difference.
    pub(super) fn check(&self, caller: &Caller, segments: &[SegmentInfo]) -> Result<(), Broken> {
        let heap = caller.core.heap();
        let Some(has_handles) = caller.core.policy().has_handles(heap) else { return Ok(()) };
        let ranges = caller.device.reserved_ranges();
        for slot in heap.pool_slots() {
            let mut free: BTreeMap<u64, u64> = BTreeMap::new();
            for block in heap.free_blocks(slot).filter(|block| block.is_expandable) {
                let movable = self.movable(caller, segments, &ranges, &block);
                let inside = |start: u64, size: u64| movable.start <= start && start + size <= movable.end;
                let first = self.mapped.range(..=movable.start).next_back().map_or(movable.start, |(&start, _)| start);
                let near: Vec<(u64, u64)> = self.mapped.range(first..movable.end).map(|(&start, &size)| (start, size)).collect();
                let near = near.into_iter().filter(|_| has_handles);
                let whole = near.clone().filter(|&(start, size)| inside(start, size));
                let expected: Vec<HandleView> =
                    whole.map(|(start, size)| HandleView { address: DeviceAddress(start), size: Bytes(size) }).collect();
                let seen: Vec<HandleView> = heap.handles_in(block.id).collect();
                ensure(Law::Placement, seen == expected, || {
                    format!("the handles in {block:?} of {slot:?} are {seen:x?}, expected {expected:x?}")
                })?;
                for (start, size) in near {
                    let pages = (0..size / PAGE).map(|page| start + page * PAGE).filter(|&page| inside(page, PAGE));
                    *free.entry(start).or_default() += pages.count() as u64 * PAGE;
                }
            }
            let expected = free.into_iter().filter_map(|(start, free)| {
                let handle = HandleView { address: DeviceAddress(start), size: Bytes(self.mapped[&start]) };
                (0 < free && free < handle.size.get()).then_some(PartlyFreeView { handle, free: Bytes(free) })
            });
            let (seen, expected) = (heap.partly_free(slot, Bytes(PAGE)), expected.collect::<Vec<_>>());
            ensure(Law::Placement, seen == expected, || {
                format!("the partly free handles of {slot:?} are {seen:x?}, expected {expected:x?}")
            })?;
        }
        Ok(())
    }

    /// Returns the addresses of a free block whose memory may be moved: in a private pool in use, only those behind everything
    /// that was handed out; none if the default pool has lent them.
    fn movable(&self, caller: &Caller, segments: &[SegmentInfo], ranges: &BTreeMap<u64, u64>, block: &BlockView) -> Range<u64> {
        let (start, end) = (block.address.get(), block.address.get() + block.size.get());
        let pool = pool_of(segments, block);
        if pool == PoolId::DEFAULT {
            return start..end;
        }
        if caller.core.policy().lends_to_pools() {
            return end..end;
        }
        let is_in_use = caller.core.pool_use_count(pool).is_ok_and(|uses| uses > 0);
        let base = ranges.range(..=start).next_back().map(|(base, _)| base).filter(|_| is_in_use);
        let last = base.and_then(|base| self.handed_out.get(base)).map_or(start, |&last| last);
        last.clamp(start, end)..end
    }
}

/// Returns the pool of a free block.
fn pool_of(segments: &[SegmentInfo], block: &BlockView) -> PoolId {
    let holds = |segment: &&SegmentInfo| {
        let start = segment.address.get();
        (start..start + segment.total.get()).contains(&block.address.get())
    };
    segments.iter().find(holds).map_or(PoolId::DEFAULT, |segment| segment.pool)
}
