//! The whole-heap sweep ([`Allocator::check`]): every segment, block, index and counter, with no code shared
//! with the allocator.
//!
//! It recomputes the statistics from the blocks. Tests call it after every operation; it takes time in
//! proportion to the heap.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::Allocator;
use crate::block::{Block, BlockState, NIL};
use crate::device::DeviceBackend;
use crate::heap::PoolSlot;
use crate::policy::Policy;
use crate::stats::Family;
use crate::trace::Observer;
use crate::units::PoolClass;

/// An invariant of the heap that is broken. Displays what was found and what should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for Violation {}

fn ensure(holds: bool, says: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation(says())) }
}

/// What each family of statistics should be now, for the small and the large pool.
type Sums = BTreeMap<Family, [i64; 2]>;

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Checks the whole heap.
    ///
    /// # Errors
    /// The first violation found: blocks that do not tile their segment, overlapping segments, free
    /// neighbours that should have coalesced, a free index that is not exactly the free blocks in order,
    /// events that do not match their blocks, a statistic that is not the sum over the blocks, a peak below
    /// its current value.
    pub fn check(&self) -> Result<(), Violation> {
        let arena = &self.heap().arena;
        let mut heads: Vec<u32> = arena.live().filter(|&index| arena.at(index).prev == NIL).collect();
        heads.sort_unstable_by_key(|&index| arena.at(index).address);
        let mut sums: Sums = Family::ALL.iter().map(|&family| (family, [0, 0])).collect();
        let (mut seen, mut end) = (0, 0);
        for head in heads {
            let start = arena.at(head).address;
            ensure(start >= end, || format!("the segment at {start:#x} begins inside another that ends at {end:#x}"))?;
            (seen, end) = self.check_segment(head, seen, &mut sums)?;
        }
        let live = arena.live().count();
        ensure(seen == live, || format!("{live} blocks live, {seen} belong to a segment"))?;
        self.check_indexes()?;
        self.check_events()?;
        self.check_statistics(&sums)
    }

    /// Walks one segment. Returns the number of blocks seen so far and the segment's end.
    fn check_segment(&self, head: u32, mut seen: usize, sums: &mut Sums) -> Result<(usize, u64), Violation> {
        let arena = &self.heap().arena;
        let first = arena.at(head);
        let class = usize::from(first.pool % 2);
        let (mut previous, mut index, mut end) = (NIL, head, first.address);
        while index != NIL {
            let block = arena.at(index);
            let at = block.address;
            ensure(block.size != 0, || format!("the block at {at:#x} is linked but has no bytes"))?;
            ensure(at == end, || format!("the block at {at:#x} does not begin where the one before it ends, {end:#x}"))?;
            ensure(block.prev == previous, || format!("the block at {at:#x} names another one as the one before it"))?;
            ensure(block.pool == first.pool, || format!("the block at {at:#x} is of another pool than its segment"))?;
            ensure(self.heap().mixes_streams() || block.stream == first.stream, || {
                format!("the block at {at:#x} is of another stream than its segment")
            })?;
            ensure(block.state != BlockState::Detached, || format!("the block at {at:#x} is in no state"))?;
            let fits = block.state != BlockState::Allocated || block.requested <= block.size;
            ensure(fits, || format!("the block at {at:#x} has {} bytes, {} were asked for", block.size, block.requested))?;
            let both = |state| block.state == state && arena.get(previous).is_some_and(|before| before.state == state);
            ensure(!both(BlockState::Free) || !self.heap().may_merge(previous, index), || {
                format!("the block at {at:#x} and the one before it are both free")
            })?;
            ensure(!both(BlockState::Unmapped), || format!("the block at {at:#x} and the one before it are both unmapped"))?;
            ensure(block.is_expandable() == first.is_expandable(), || {
                format!("the block at {at:#x} is of another kind than its segment")
            })?;
            count_block(block, class, sums);
            end = at + block.size;
            seen += 1;
            (previous, index) = (index, block.next);
        }
        if !first.is_expandable() {
            add(sums, Family::Segment, class, 1);
        }
        Ok((seen, end))
    }

    fn check_indexes(&self) -> Result<(), Violation> {
        let heap = self.heap();
        for pool in heap.pool_slots() {
            self.check_addresses(pool)?;
            let listed: Vec<_> = heap
                .free_blocks(pool)
                .map(|view| {
                    let block = heap.arena.at(view.id.index);
                    (heap.stream(block.stream), block.size, block.rank, block.address)
                })
                .collect();
            let mut expected: Vec<_> = heap
                .arena
                .live()
                .map(|index| heap.arena.at(index))
                .filter(|block| block.state == BlockState::Free && PoolSlot(block.pool) == pool)
                .map(|block| (heap.stream(block.stream), block.size, block.rank, block.address))
                .collect();
            expected.sort_unstable();
            ensure(listed == expected, || format!("the free index of {pool:?} is {listed:?}, the free blocks are {expected:?}"))?;
        }
        Ok(())
    }

    /// Checks the order by address, if the heap keeps one.
    fn check_addresses(&self, pool: PoolSlot) -> Result<(), Violation> {
        let heap = self.heap();
        for slot in (0..heap.streams_seen().len()).map(|slot| slot as u16) {
            let Some(order) = heap.by_address(pool, slot) else { continue };
            let listed: Vec<_> = order.entries().map(|entry| (entry.address, entry.size, entry.index)).collect();
            let free = heap
                .arena
                .live()
                .map(|index| (heap.arena.at(index), index))
                .filter(|(block, _)| block.state == BlockState::Free && PoolSlot(block.pool) == pool && block.stream == slot);
            let mut expected: Vec<_> = free.map(|(block, index)| (block.address, block.size, index)).collect();
            expected.sort_unstable();
            let stream = heap.stream(slot);
            ensure(listed == expected, || {
                format!("the order by address of {pool:?} on {stream:?} is {listed:?}, the free blocks are {expected:?}")
            })?;
            ensure(order.knows_its_runs(), || format!("the order by address of {pool:?} on {stream:?} is wrong about its runs"))?;
        }
        Ok(())
    }

    fn check_events(&self) -> Result<(), Violation> {
        let arena = &self.heap().arena;
        let waiting = self.pending().waiting();
        for index in arena.live() {
            let block = arena.at(index);
            let at = block.address;
            let events = waiting.get(&index).copied().unwrap_or(0);
            let counted = block.events();
            ensure(counted == events, || format!("the block at {at:#x} counts {counted} events, {events} wait"))?;
            let may_be_used = matches!(block.state, BlockState::Allocated | BlockState::Pending);
            ensure(may_be_used || !block.has_uses(), || format!("the block at {at:#x} is {:?} and has uses", block.state))?;
            let waits = events != 0 || self.pending().is_deferred(index);
            let pending = block.state == BlockState::Pending;
            ensure(pending == waits, || format!("the block at {at:#x} is {:?}, and it waits: {waits}", block.state))?;
        }
        ensure(self.pending().is_consistent(arena), || String::from("the uses, events and deferred blocks are miscounted"))?;
        let stray = waiting.keys().find(|&&index| arena.get(index).is_none_or(|block| block.size == 0));
        ensure(stray.is_none(), || String::from("an event waits for a block that does not live"))
    }

    fn check_statistics(&self, sums: &Sums) -> Result<(), Violation> {
        for (&family, &[small, large]) in sums {
            let set = self.stats().family(family);
            let name = family.name();
            for ((level, stat), expected) in set.levels().into_iter().zip([small + large, small, large]) {
                let current = stat.current;
                ensure(current == expected, || format!("{name}.{level}.current is {current}, the blocks say {expected}"))?;
                ensure(stat.peak >= current, || format!("{name}.{level}.peak is below the current value"))?;
            }
        }
        let [small, large] = sums[&Family::ReservedBytes];
        let reserved = self.heap().reserved().get();
        ensure(reserved == (small + large) as u64, || {
            format!("the heap counts {reserved} reserved bytes, the segments {}", small + large)
        })
    }
}

fn count_block(block: &Block, class: usize, sums: &mut Sums) {
    if block.state == BlockState::Unmapped {
        return;
    }
    add(sums, Family::ReservedBytes, class, block.size);
    match block.state {
        BlockState::Free => {
            if !block.is_expandable() && (block.prev != NIL || block.next != NIL) {
                add(sums, Family::InactiveSplit, class, 1);
                add(sums, Family::InactiveSplitBytes, class, block.size);
            }
            return;
        }
        BlockState::Allocated => {
            add(sums, Family::Allocation, class, 1);
            add(sums, Family::AllocatedBytes, class, block.size);
        }
        BlockState::Pending | BlockState::Detached | BlockState::Unmapped => {}
    }
    add(sums, Family::Active, class, 1);
    add(sums, Family::ActiveBytes, class, block.size);
    add(sums, Family::RequestedBytes, class, block.requested);
}

fn add(sums: &mut Sums, family: Family, class: usize, amount: u64) {
    sums.entry(family).or_default()[class] += amount as i64;
}

const _: () = assert!(PoolClass::Small as usize == 0 && PoolClass::Large as usize == 1);
