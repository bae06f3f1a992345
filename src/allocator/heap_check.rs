//! The sweep over the entire heap ([`Allocator::check`]): every segment, block, index and counter. It
//! recomputes all of them from the blocks.
//!
//! The sweep recomputes the statistics from the blocks. Its time is proportional to the size of the heap. Tests call
//! it after every operation.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::Allocator;
use crate::block::{Block, BlockState, NIL};
use crate::device::DeviceBackend;
use crate::heap::PoolSlot;
use crate::index::ByAddress;
use crate::policy::Policy;
use crate::stats::Family;
use crate::trace::Observer;
use crate::units::PoolClass;

/// A broken invariant of the heap. Displays the value that the sweep found and the expected one.
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

/// The expected value of each family of statistics, in the order of [`Family::ALL`], for the small and the large pool.
type Sums = [[i64; 2]; Family::ALL.len()];

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Checks the entire heap.
    ///
    /// # Errors
    /// The first violation found: blocks that do not tile their segment, overlapping segments, adjacent free blocks
    /// that should have coalesced (unless the policy kept them apart), a free index that differs from the free blocks in order, events that do not match
    /// their blocks, a statistic that is not the sum over the blocks, or a peak below its current value.
    pub fn check(&self) -> Result<(), Violation> {
        let arena = &self.heap().arena;
        let mut heads: Vec<u32> = arena.occupied().filter(|&index| arena.at(index).prev == NIL).collect();
        heads.sort_unstable_by_key(|&index| arena.at(index).address);
        let mut sums = Sums::default();
        let (mut seen, mut end) = (0, 0);
        for head in heads {
            let start = arena.at(head).address;
            ensure(start >= end, || format!("the segment at {start:#x} begins inside another that ends at {end:#x}"))?;
            (seen, end) = self.check_segment(head, seen, &mut sums)?;
        }
        let live = arena.occupied().count();
        ensure(seen == live, || format!("{live} blocks are live, but {seen} belong to a segment"))?;
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
            ensure(block.prev == previous, || format!("the block at {at:#x} links to a different block before it"))?;
            ensure(block.pool == first.pool, || format!("the block at {at:#x} belongs to a different pool than its segment"))?;
            ensure(self.heap().mixes_streams() || block.stream == first.stream, || {
                format!("the block at {at:#x} belongs to a different stream than its segment")
            })?;
            ensure(block.state != BlockState::Detached, || format!("the block at {at:#x} is still detached"))?;
            let fits = block.state != BlockState::Allocated || block.requested <= block.size;
            ensure(fits, || format!("the block at {at:#x} has {} bytes, but {} were requested", block.size, block.requested))?;
            let is_marked = block.state != BlockState::Allocated || self.heap().is_marked_as_handed_out(block);
            ensure(is_marked, || {
                format!("the private block at {at:#x} is allocated, but the heap counts it as never handed out")
            })?;
            let both = |state| block.state == state && arena.get(previous).is_some_and(|before| before.state == state);
            let may_be_apart = block.is_kept_apart() && self.heap().keeps_apart();
            ensure(!both(BlockState::Free) || !self.heap().may_merge(previous, index) || may_be_apart, || {
                format!("the block at {at:#x} and the one before it are both free, but the policy did not keep them apart")
            })?;
            ensure(!both(BlockState::Unmapped), || format!("the block at {at:#x} and the one before it are both unmapped"))?;
            ensure(block.is_expandable() == first.is_expandable(), || {
                format!("the block at {at:#x} is of a different kind than its segment")
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
        heap.pool_slots().try_for_each(|pool| self.check_addresses(pool))?;
        let row = |pool, block: &Block| (pool, heap.stream(block.stream), block.size, block.rank, block.address);
        let blocks = heap.arena.occupied().map(|index| heap.arena.at(index));
        let free = blocks.filter(|block| block.state == BlockState::Free);
        let mut expected: Vec<_> = free.map(|block| row(PoolSlot(block.pool), block)).collect();
        expected.sort_unstable();
        let listed = heap.pool_slots().flat_map(|pool| heap.free_blocks(pool).map(move |view| (pool, view.id.index)));
        let listed: Vec<_> = listed.map(|(pool, index)| row(pool, heap.arena.at(index))).collect();
        ensure(listed == expected, || format!("the free index of the pools is {listed:?}, but the free blocks are {expected:?}"))
    }

    /// Checks the order by address, if the heap keeps one.
    fn check_addresses(&self, pool: PoolSlot) -> Result<(), Violation> {
        let heap = self.heap();
        let Some(streams) = heap.by_address(pool) else { return Ok(()) };
        for stream in 0..heap.streams_seen().len() as u16 {
            let is_listed = |block: &Block| block.state == BlockState::Free && (block.pool, block.stream) == (pool.0, stream);
            let free = heap.arena.occupied().map(|index| (heap.arena.at(index), index)).filter(|(block, _)| is_listed(block));
            let mut expected: Vec<_> = free.map(|(block, index)| (block.address, block.size, index)).collect();
            expected.sort_unstable();
            let listed = streams.get(usize::from(stream)).map_or_else(|| Some(Vec::new()), ByAddress::listed);
            ensure(listed.as_ref() == Some(&expected), || {
                format!("the order by address of {pool:?} is {listed:?}, but the free blocks are {expected:?}")
            })?;
        }
        Ok(())
    }

    fn check_events(&self) -> Result<(), Violation> {
        let arena = &self.heap().arena;
        let waiting = self.pending().waiting();
        for index in arena.occupied() {
            let block = arena.at(index);
            let at = block.address;
            let events = waiting.get(&index).copied().unwrap_or(0);
            let counted = block.events();
            ensure(counted == events, || format!("the block at {at:#x} counts {counted} events, but the queues have {events}"))?;
            let may_be_used = matches!(block.state, BlockState::Allocated | BlockState::Pending);
            ensure(may_be_used || !block.has_uses(), || format!("the block at {at:#x} is {:?} and has uses", block.state))?;
            let waits = events != 0 || self.pending().is_deferred(index);
            let pending = block.state == BlockState::Pending;
            ensure(pending == waits, || format!("the block at {at:#x} is {:?}, and it waits: {waits}", block.state))?;
        }
        ensure(self.pending().is_consistent(arena), || String::from("the uses, events and deferred blocks are miscounted"))?;
        let stray = waiting.keys().find(|&&index| arena.get(index).is_none_or(|block| block.size == 0));
        ensure(stray.is_none(), || String::from("an event belongs to a block that is not live"))
    }

    fn check_statistics(&self, sums: &Sums) -> Result<(), Violation> {
        for (family, &[small, large]) in Family::ALL.into_iter().zip(sums) {
            let set = self.stats().family(family);
            let name = family.name();
            for ((level, stat), expected) in set.levels().into_iter().zip([small + large, small, large]) {
                let current = stat.current;
                ensure(current == expected, || {
                    format!("{name}.{level}.current is {current}, but the blocks add up to {expected}")
                })?;
                ensure(stat.peak >= current, || format!("{name}.{level}.peak is below the current value"))?;
            }
        }
        let [small, large] = sums[Family::ReservedBytes as usize];
        let reserved = self.heap().reserved().get();
        ensure(reserved == (small + large) as u64, || {
            format!("the heap counts {reserved} reserved bytes, but the segments have {}", small + large)
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
    sums[family as usize][class] += amount as i64;
}

const _: () = assert!(PoolClass::Small as usize == 0 && PoolClass::Large as usize == 1);

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    use crate::allocator::{Allocation, Allocator};
    use crate::block::{Block, BlockState, Marks, NIL};
    use crate::heap::PoolSlot;
    use crate::plain_device::PlainDevice;
    use crate::policy::{PyTorch, Wrapper};
    use crate::settings::Settings;
    use crate::stats::{Family, Stats};
    use crate::units::{Bytes, DeviceAddress, PoolClass, StreamId};

    // The sweep must find every kind of damage, because the laws rely on it.

    type Core = Allocator<PlainDevice, PyTorch>;

    /// Returns an allocator with four small adjacent blocks (allocated, allocated, free, allocated), a free block
    /// after them, and a large segment; also returns the slots of the four blocks.
    fn core(expandable_segments: bool) -> (Core, Vec<Allocation>, [u32; 4]) {
        let settings = Settings { expandable_segments, ..Settings::default() };
        let mut core = Allocator::new(PlainDevice::new(Bytes::mib(64), 1 << 44), PyTorch::new(settings), ());
        let mut out: Vec<Allocation> =
            [600, 512, 1024, 100].map(|bytes| core.allocate(Bytes(bytes), StreamId::DEFAULT).expect("room")).into();
        let slots = [0, 1, 2, 3].map(|place: usize| out[place].id().index);
        out.push(core.allocate(Bytes::mib(3), StreamId::DEFAULT).expect("room"));
        let gone = out.remove(2);
        core.free(gone).expect("ours");
        assert_eq!(core.check(), Ok(()));
        (core, out, slots)
    }

    /// Returns the sweep's report on a heap with this damage.
    fn found(is_expandable: bool, spoil: impl FnOnce(&mut Core, [u32; 4])) -> String {
        let (mut core, out, slots) = core(is_expandable);
        spoil(&mut core, slots);
        let answer = core.check().expect_err("a violation").to_string();
        // The damaged allocator must be neither used nor dropped.
        core::mem::forget((core, out));
        answer
    }

    #[track_caller]
    fn assert_finds(words: &str, spoil: impl FnOnce(&mut Core, [u32; 4])) {
        let answer = found(false, spoil);
        assert!(answer.contains(words), "{answer}");
    }

    #[test]
    fn blocks_that_do_not_tile_their_segment() {
        assert_finds("does not begin where the one before it ends", |core, [_, second, ..]| {
            core.heap.arena.at_mut(second).address += 512
        });
        assert_finds("links to a different block before it", |core, [_, second, ..]| core.heap.arena.at_mut(second).prev = NIL);
        assert_finds("is linked but has no bytes", |core, [_, second, ..]| core.heap.arena.at_mut(second).size = 0);
        assert_finds("blocks are live, but ", |core, [first, ..]| {
            let stray = core.heap.arena.at(first).clone();
            core.heap.arena.insert(Block { prev: first, address: 512, ..stray });
        });
    }

    #[test]
    fn segments_that_overlap() {
        assert_finds("begins inside another that ends at", |core, [_, second, ..]| {
            let address = DeviceAddress(core.heap.arena.at(second).address);
            let inner = core.heap.add_segment(address, Bytes(512), 0, PoolSlot::default_pool(PoolClass::Small));
            core.heap.arena.at_mut(inner).state = BlockState::Allocated;
        });
    }

    #[test]
    fn blocks_that_differ_from_their_segment() {
        assert_finds("belongs to a different pool", |core, [_, second, ..]| core.heap.arena.at_mut(second).pool = 1);
        assert_finds("belongs to a different stream", |core, [_, second, ..]| {
            core.heap.arena.at_mut(second).stream = core.heap.stream_slot(StreamId(7)).expect("a slot");
        });
        assert_finds("is of a different kind", |core, [_, second, ..]| core.heap.arena.at_mut(second).marks = Marks::EXPANDABLE);
        assert_finds("is still detached", |core, [_, second, ..]| core.heap.arena.at_mut(second).state = BlockState::Detached);
    }

    #[test]
    fn neighbours_that_should_be_one() {
        assert_finds("are both free", |core, [_, second, ..]| core.heap.arena.at_mut(second).state = BlockState::Free);
        let unmapped = found(true, |core, [first, second, ..]| {
            for slot in [first, second] {
                core.heap.arena.at_mut(slot).state = BlockState::Unmapped;
            }
        });
        assert!(unmapped.contains("are both unmapped"), "{unmapped}");
    }

    #[test]
    fn a_free_index_that_is_not_the_free_blocks() {
        assert_finds("the free index of", |core, [_, _, third, _]| {
            core.heap.detach(third);
            core.heap.arena.at_mut(third).state = BlockState::Free;
        });
        assert_finds("the free index of", |core, [_, _, third, _]| core.heap.arena.at_mut(third).state = BlockState::Allocated);
    }

    #[test]
    fn an_order_by_address_that_is_not_the_free_blocks() {
        let policy = SearchesByAddress(PyTorch::new(Settings::default()));
        let mut core = Allocator::new(PlainDevice::new(Bytes::mib(64), 1 << 44), policy, ());
        let out = core.allocate(Bytes(512), StreamId::DEFAULT).expect("room");
        assert_eq!(core.check(), Ok(()));
        let rest = core.heap.arena.at(out.id().index).next;
        core.heap.arena.at_mut(rest).state = BlockState::Allocated;
        let answer = core.check().expect_err("a violation").to_string();
        core::mem::forget((core, out));
        assert!(answer.starts_with("the order by address of"), "{answer}");
    }

    /// PyTorch's policy, for which the heap keeps an order by address that it does not need.
    struct SearchesByAddress(PyTorch);

    impl Wrapper for SearchesByAddress {
        type Inner = PyTorch;

        fn inner(&self) -> &PyTorch {
            &self.0
        }

        fn inner_mut(&mut self) -> &mut PyTorch {
            &mut self.0
        }

        fn searches_by_address(&self) -> bool {
            true
        }
    }

    #[test]
    fn events_that_do_not_match_their_blocks() {
        assert_finds("counts 0 events, but the queues have 1", |core, [first, ..]| {
            core.pending.push(&mut core.heap.arena, StreamId(7), (), first)
        });
        assert_finds("and it waits: false", |core, [first, ..]| {
            core.heap.arena.at_mut(first).state = BlockState::Pending;
            core.heap.arena.at_mut(first).set_events(0);
        });
        assert_finds("and it waits: true", |core, [first, ..]| core.pending.defer(first));
        assert_finds("and has uses", |core, [_, _, third, _]| {
            core.pending.add_use(&mut core.heap.arena, third, StreamId(7), false);
        });
        assert_finds("are miscounted", |core, [first, ..]| {
            core.pending.add_use(&mut core.heap.arena, first, StreamId(7), false);
            core.pending.add_use(&mut core.heap.arena, first, StreamId(8), false);
            core.heap.arena.at_mut(first).set_first_use(None);
        });
        assert_finds("are miscounted", |core, [first, ..]| drop(core.pending.ends.insert(first, Vec::new())));
        assert_finds("an event belongs to a block that is not live", |core, _| {
            core.pending.push(&mut core.heap.arena, StreamId(7), (), 1 << 20);
        });
        assert_finds("an event belongs to a block that is not live", |core, [first, second, ..]| {
            // This slot was used earlier.
            core.heap.arena.at_mut(first).next = core.heap.arena.at(second).next;
            core.heap.arena.at_mut(first).size += 512;
            let after = core.heap.arena.at(second).next;
            core.heap.arena.at_mut(after).prev = first;
            core.heap.arena.remove(second);
            core.pending.push(&mut core.heap.arena, StreamId(7), (), second);
        });
    }

    #[test]
    fn statistics_that_are_not_the_sums() {
        for family in Family::ALL {
            for class in [PoolClass::Small, PoolClass::Large] {
                assert_finds(family.name(), |core, _| core.stats.increase(family, class, 512));
                assert_finds(family.name(), |core, _| core.stats.decrease(family, class, 1));
            }
        }
        assert_finds("peak is below the current value", |core, _| {
            let entries = core.stats.entries();
            let lower = entries.iter().map(|(name, value)| (name.as_str(), if name == "active.all.peak" { 1 } else { *value }));
            core.stats = Stats::from_entries(lower).expect("its own");
        });
        // Everything grows except the heap's count of reserved bytes.
        assert_finds("reserved bytes, but the segments have", |core, _| {
            let is_last = |index: &u32| core.heap.arena.at(*index).size > 16 << 20;
            let last = core.heap.arena.occupied().find(is_last).expect("the large segment's remainder");
            core.heap.detach(last);
            core.heap.arena.at_mut(last).size += 512;
            core.heap.attach(last, 0);
            core.stats.increase(Family::ReservedBytes, PoolClass::Large, 512);
            core.stats.increase(Family::InactiveSplitBytes, PoolClass::Large, 512);
        });
    }

    /// The sweep raises no false alarm with pending blocks or expandable segments.
    #[test]
    fn a_sound_heap_passes() {
        for is_expandable in [false, true] {
            let (mut core, mut out, _) = core(is_expandable);
            core.record_stream(&out[0], StreamId(7));
            core.free(out.remove(0)).expect("ours");
            assert_eq!(core.check(), Ok(()));
            for allocation in out {
                core.free(allocation).expect("ours");
                assert_eq!(core.check(), Ok(()));
            }
            core.release_cached().expect("a device");
            assert_eq!(core.check(), Ok(()));
            assert_eq!(core.heap().reserved(), Bytes::ZERO);
        }
    }
}
