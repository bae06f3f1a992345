//! Compares random virtual memory calls with a naive model of pages: results, memory in use, and the contents of
//! every address.

use std::collections::BTreeMap;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_sim::{AccessError, SimDevice, SimOptions, SimPhysical, UNWRITTEN};
use proptest::prelude::*;

const PAGE: u64 = 2 * MIB;
const CAPACITY_PAGES: u64 = 24;
/// The number of pages in a reservation: few, so that calls often overlap.
const RESERVED_PAGES: u64 = 12;

#[derive(Clone, Debug)]
enum Op {
    Reserve,
    Unreserve(usize),
    Create(u64),
    Release(usize),
    /// The memory, the reservation, the page in it, and by how many pages the mapping exceeds the memory.
    Map(usize, usize, u64, u64),
    SetAccess(usize, u64, u64),
    Unmap(usize, u64, u64),
    Write(usize, u64, u32),
    Malloc(u64),
    Free(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let pages = || 0..RESERVED_PAGES;
    let extra = prop_oneof![9 => Just(0_u64), 1 => 1..3_u64];
    prop_oneof![
        1 => Just(Op::Reserve),
        1 => any::<usize>().prop_map(Op::Unreserve),
        4 => (1..5_u64).prop_map(Op::Create),
        2 => any::<usize>().prop_map(Op::Release),
        6 => (any::<usize>(), any::<usize>(), pages(), extra).prop_map(|(m, r, page, extra)| Op::Map(m, r, page, extra)),
        5 => (any::<usize>(), pages(), 1..8_u64).prop_map(|(r, page, count)| Op::SetAccess(r, page, count)),
        5 => (any::<usize>(), pages(), 1..13_u64).prop_map(|(r, page, count)| Op::Unmap(r, page, count)),
        6 => (any::<usize>(), pages(), any::<u32>()).prop_map(|(r, page, word)| Op::Write(r, page, word)),
        1 => (1..5_u64).prop_map(Op::Malloc),
        1 => any::<usize>().prop_map(Op::Free),
    ]
}

/// Memory as a list of page contents.
#[derive(Default)]
struct Memory {
    words: Vec<Option<u32>>,
    released: bool,
}

/// One mapped page: its memory, its page in that memory, the start and end of its mapping, and whether the device may
/// access it.
#[derive(Clone, Copy)]
struct MappedPage {
    memory: usize,
    page: usize,
    first: u64,
    end: u64,
    has_access: bool,
}

#[derive(Default)]
struct Naive {
    memories: Vec<Memory>,
    handles: Vec<(usize, SimPhysical)>,
    /// The start of each live reservation, in pages.
    reservations: Vec<u64>,
    mapped: BTreeMap<u64, MappedPage>,
    mallocs: Vec<(DeviceAddress, u64)>,
}

impl Naive {
    fn is_mapped(&self, memory: usize) -> bool {
        self.mapped.values().any(|page| page.memory == memory)
    }

    fn used_pages(&self) -> u64 {
        let held = |&(index, memory): &(usize, &Memory)| !memory.released || self.is_mapped(index);
        let created: usize = self.memories.iter().enumerate().filter(held).map(|(_, memory)| memory.words.len()).sum();
        created as u64 + self.mallocs.iter().map(|&(_, pages)| pages).sum::<u64>()
    }

    fn reservation(&self, index: usize) -> Option<u64> {
        (!self.reservations.is_empty()).then(|| self.reservations[index % self.reservations.len()])
    }

    fn is_inside(&self, first: u64, count: u64) -> bool {
        self.reservations.iter().any(|&start| first >= start && first + count <= start + RESERVED_PAGES)
    }

    /// Returns whether a range is inside a reservation and does not cut a mapping.
    fn cuts_nothing(&self, first: u64, count: u64) -> bool {
        let whole = |page: &MappedPage| page.first >= first && page.end <= first + count;
        self.is_inside(first, count) && self.mapped.range(first..first + count).all(|(_, page)| whole(page))
    }
}

fn address(page: u64) -> DeviceAddress {
    DeviceAddress(page * PAGE)
}

fn refused(call: &'static str, accepted: bool, code: u32) -> Result<(), BackendError> {
    if accepted { Ok(()) } else { Err(BackendError::Driver { call, code }) }
}

fn step_memory(device: &mut SimDevice, naive: &mut Naive, op: &Op) -> Result<(), TestCaseError> {
    let room = CAPACITY_PAGES - naive.used_pages();
    match *op {
        Op::Create(pages) => {
            let outcome = device.create(Bytes(pages * PAGE));
            prop_assert_eq!(outcome.is_ok(), pages <= room);
            if let Ok(memory) = outcome {
                naive.handles.push((naive.memories.len(), memory));
                naive.memories.push(Memory { words: vec![None; pages as usize], released: false });
            }
        }
        Op::Release(index) if !naive.handles.is_empty() => {
            let (memory, handle) = naive.handles.swap_remove(index % naive.handles.len());
            prop_assert_eq!(device.release(handle), Ok(()));
            naive.memories[memory].released = true;
        }
        Op::Malloc(pages) => {
            let outcome = device.malloc(Bytes(pages * PAGE));
            prop_assert_eq!(outcome.is_ok(), pages <= room);
            naive.mallocs.extend(outcome.ok().map(|address| (address, pages)));
        }
        Op::Free(index) if !naive.mallocs.is_empty() => {
            let (address, _) = naive.mallocs.swap_remove(index % naive.mallocs.len());
            prop_assert_eq!(device.free(address), Ok(()));
        }
        _ => {}
    }
    Ok(())
}

fn map(device: &mut SimDevice, naive: &mut Naive, handle: usize, first: u64, extra: u64) -> Result<(), TestCaseError> {
    let (memory, handle) = &naive.handles[handle % naive.handles.len()];
    let own_pages = naive.memories[*memory].words.len() as u64;
    let (pages, end) = (own_pages + extra, first + own_pages);
    let outcome = device.map(address(first), Bytes(pages * PAGE), handle);
    if extra > 0 {
        prop_assert_eq!(outcome, refused("cuMemMap", false, 801));
        return Ok(());
    }
    let free = naive.is_inside(first, pages) && naive.mapped.range(first..end).next().is_none();
    prop_assert_eq!(outcome, refused("cuMemMap", free, 1));
    if free {
        let mapped = |page: u64| MappedPage { memory: *memory, page: page as usize, first, end, has_access: false };
        naive.mapped.extend((0..pages).map(|page| (first + page, mapped(page))));
    }
    Ok(())
}

fn step_addresses(device: &mut SimDevice, naive: &mut Naive, op: &Op) -> Result<(), TestCaseError> {
    match *op {
        Op::Reserve => {
            let start = device.reserve(Bytes(RESERVED_PAGES * PAGE)).unwrap().get() / PAGE;
            naive.reservations.push(start);
        }
        Op::Unreserve(index) => {
            let Some(start) = naive.reservation(index) else { return Ok(()) };
            let empty = naive.mapped.range(start..start + RESERVED_PAGES).next().is_none();
            let outcome = device.unreserve(address(start), Bytes(RESERVED_PAGES * PAGE));
            prop_assert_eq!(outcome, refused("cuMemAddressFree", empty, 1));
            if empty {
                naive.reservations.retain(|&other| other != start);
            }
        }
        Op::Map(handle, reservation, page, extra) if !naive.handles.is_empty() => {
            if let Some(start) = naive.reservation(reservation) {
                map(device, naive, handle, start + page, extra)?;
            }
        }
        Op::SetAccess(reservation, page, count) => {
            let Some(first) = naive.reservation(reservation).map(|start| start + page) else { return Ok(()) };
            let full = naive.mapped.range(first..first + count).count() as u64 == count;
            let accepted = full && naive.cuts_nothing(first, count);
            let outcome = device.set_access(address(first), Bytes(count * PAGE));
            prop_assert_eq!(outcome, refused("cuMemSetAccess", accepted, 1));
            if accepted {
                naive.mapped.range_mut(first..first + count).for_each(|(_, page)| page.has_access = true);
            }
        }
        Op::Unmap(reservation, page, count) => {
            let Some(first) = naive.reservation(reservation).map(|start| start + page) else { return Ok(()) };
            let accepted = naive.cuts_nothing(first, count);
            prop_assert_eq!(device.unmap(address(first), Bytes(count * PAGE)), refused("cuMemUnmap", accepted, 1));
            if accepted {
                naive.mapped.retain(|&page, _| page < first || page >= first + count);
            }
        }
        Op::Write(reservation, page, word) => {
            let Some(page) = naive.reservation(reservation).map(|start| start + page) else { return Ok(()) };
            let touchable = naive.mapped.get(&page).filter(|mapped| mapped.has_access);
            prop_assert_eq!(device.fill(address(page), Bytes(PAGE), word, StreamId::DEFAULT).is_ok(), touchable.is_some());
            if let Some(mapped) = touchable {
                naive.memories[mapped.memory].words[mapped.page] = Some(word);
            }
        }
        _ => {}
    }
    Ok(())
}

fn check(device: &mut SimDevice, naive: &Naive) -> Result<(), TestCaseError> {
    let used = naive.used_pages() * PAGE;
    prop_assert_eq!(device.used_bytes(), Bytes(used));
    prop_assert_eq!(device.memory_info().unwrap().free, Bytes(CAPACITY_PAGES * PAGE - used));
    for page in naive.reservations.iter().flat_map(|&start| start..start + RESERVED_PAGES) {
        let expected = match naive.mapped.get(&page) {
            None => Err(AccessError::NotMapped),
            Some(mapped) if !mapped.has_access => Err(AccessError::NoAccess),
            Some(mapped) => Ok(naive.memories[mapped.memory].words[mapped.page].unwrap_or(u32::from_le_bytes([UNWRITTEN; 4]))),
        };
        let mut bytes = [0; 4];
        let read = device.read(address(page).offset(Bytes(page * 4 % PAGE)), &mut bytes);
        prop_assert_eq!(read.map(|()| u32::from_le_bytes(bytes)), expected);
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_virtual_memory_calls_agree_with_a_naive_model(ops in prop::collection::vec(op(), 1..200)) {
        let mut device = SimDevice::new(SimOptions::new(Bytes(CAPACITY_PAGES * PAGE)));
        let mut naive = Naive::default();
        step_addresses(&mut device, &mut naive, &Op::Reserve)?;
        for op in &ops {
            step_memory(&mut device, &mut naive, op)?;
            step_addresses(&mut device, &mut naive, op)?;
            check(&mut device, &naive)?;
            prop_assert_eq!(device.now_ns(), device.driver_ns(), "nothing waits");
        }
        for (_, handle) in std::mem::take(&mut naive.handles) {
            device.release(handle).unwrap();
        }
        for start in naive.reservations {
            device.unmap(address(start), Bytes(RESERVED_PAGES * PAGE)).unwrap();
            device.unreserve(address(start), Bytes(RESERVED_PAGES * PAGE)).unwrap();
        }
        let held: u64 = naive.mallocs.iter().map(|&(_, pages)| pages * PAGE).sum();
        prop_assert_eq!(device.used_bytes(), Bytes(held));
    }
}
