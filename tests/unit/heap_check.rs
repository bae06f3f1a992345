//! The whole-heap sweep finds every kind of damage: the laws rely on it.

#[path = "../common/device.rs"]
mod device;
mod lowest;

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Allocation, Allocator};
use crate::block::{Block, BlockState, Marks, NIL};
use crate::heap::PoolSlot;
use crate::index::{ByAddress, Entry, Spot};
use crate::policy::PyTorch;
use crate::settings::Settings;
use crate::stats::{Family, Stats};
use crate::units::{Bytes, DeviceAddress, PoolClass, StreamId};
use device::PlainDevice;
use lowest::Lowest;

type Core = Allocator<PlainDevice, PyTorch>;

/// An allocator with four small blocks in a row (allocated, allocated, free, allocated), a free block behind
/// them, and a large segment; and the slots of the four.
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

/// What the sweep says of a heap after this damage.
fn found(is_expandable: bool, spoil: impl FnOnce(&mut Core, [u32; 4])) -> String {
    let (mut core, out, slots) = core(is_expandable);
    spoil(&mut core, slots);
    let answer = core.check().expect_err("a violation").to_string();
    // It can be neither used nor dropped.
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
    assert_finds("names another one as the one before it", |core, [_, second, ..]| core.heap.arena.at_mut(second).prev = NIL);
    assert_finds("is linked but has no bytes", |core, [_, second, ..]| core.heap.arena.at_mut(second).size = 0);
    assert_finds("blocks live, ", |core, [first, ..]| {
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
    assert_finds("is of another pool", |core, [_, second, ..]| core.heap.arena.at_mut(second).pool = 1);
    assert_finds("is of another stream", |core, [_, second, ..]| {
        core.heap.arena.at_mut(second).stream = core.heap.stream_slot(StreamId(7)).expect("a slot");
    });
    assert_finds("is of another kind", |core, [_, second, ..]| core.heap.arena.at_mut(second).marks = Marks::EXPANDABLE);
    assert_finds("is in no state", |core, [_, second, ..]| core.heap.arena.at_mut(second).state = BlockState::Detached);
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

/// In a heap that keeps this order, with a hole between two blocks and free memory behind them.
#[test]
fn an_order_by_address_that_is_not_the_free_blocks() {
    type ByAddressCore = Allocator<PlainDevice, Lowest>;
    let pool = PoolSlot::default_pool(PoolClass::Large);
    let spoil = |change: fn(&mut ByAddress, Entry)| {
        let mut core = ByAddressCore::new(PlainDevice::new(Bytes::mib(64), 1 << 44), Lowest, ());
        let [_first, gone, _last] = [512, 1024, 512].map(|bytes| core.allocate(Bytes(bytes), StreamId::DEFAULT).expect("room"));
        core.free(gone).expect("ours");
        assert_eq!(core.check(), Ok(()));
        let order = core.heap.by_address_mut(pool, 0).expect("it is kept");
        let hole = order.entries().next().expect("the hole");
        change(order, hole);
        let answer = core.check().expect_err("a violation").to_string();
        core::mem::forget(core);
        answer
    };
    let of_another = spoil(|order, hole| {
        order.remove(hole.address, Spot::default());
        let _ = order.insert(Entry { index: hole.index + 1, ..hole });
    });
    assert!(of_another.starts_with("the order by address of"), "{of_another}");
    let missing = spoil(|order, hole| order.remove(hole.address, Spot::default()));
    assert!(missing.starts_with("the order by address of"), "{missing}");
}

#[test]
fn events_that_do_not_match_their_blocks() {
    assert_finds("counts 0 events, 1 wait", |core, [first, ..]| core.pending.push(&mut core.heap.arena, StreamId(7), (), first));
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
    assert_finds("an event waits for a block that does not live", |core, _| {
        core.pending.push(&mut core.heap.arena, StreamId(7), (), 1 << 20);
    });
    assert_finds("an event waits for a block that does not live", |core, [first, second, ..]| {
        // A slot that was in use before.
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
    // Everything grows, except what the heap counts as reserved.
    assert_finds("reserved bytes, the segments", |core, _| {
        let is_last = |index: &u32| core.heap.arena.at(*index).size > 16 << 20;
        let last = core.heap.arena.live().find(is_last).expect("the large segment's rest");
        core.heap.detach(last);
        core.heap.arena.at_mut(last).size += 512;
        core.heap.attach(last, 0);
        core.stats.increase(Family::ReservedBytes, PoolClass::Large, 512);
        core.stats.increase(Family::InactiveSplitBytes, PoolClass::Large, 512);
    });
}

/// No false alarm: with pending blocks, and with expandable segments.
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
