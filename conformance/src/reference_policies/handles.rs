//! The rules that our own policies share: which handles move, which are broken, and how many bytes each of them yields for a
//! request. From `docs/compaction.md` and `docs/rescue.md`.

use std::cmp::Reverse;
use std::ops::Range;

use parkade::policy::{Attempt, Relief, Request};
use parkade::units::{Bytes, DeviceAddress, MIB};
use parkade::{GrowthView, HandleView, Heap, PartlyFreeView, PoolSlot};

use super::lists::tightest_of_others;

pub(super) const PAGE: u64 = 2 * MIB;

/// Returns the bytes that may be reserved in total.
pub(super) fn memory(heap: &Heap) -> u64 {
    heap.device_total().get().min(heap.limit().map_or(u64::MAX, Bytes::get))
}

/// Returns the bytes that may still be reserved.
pub(super) fn unreserved(heap: &Heap) -> u64 {
    memory(heap).saturating_sub(heap.reserved().get())
}

/// Returns whether the request belongs to a private pool.
pub(super) fn is_private(request: &Request) -> bool {
    request.pool != PoolSlot::default_pool(request.pool.class())
}

fn place_to_grow(heap: &Heap, request: &Request) -> GrowthView {
    heap.growth_place(request.pool, request.stream, request.size, Bytes(PAGE))
}

/// Returns whether the missing bytes may still be reserved.
pub(super) fn has_room(heap: &Heap, request: &Request) -> bool {
    unreserved(heap) >= place_to_grow(heap, request).missing.get()
}

fn entirely_free(heap: &Heap) -> Vec<HandleView> {
    let mut handles = Vec::new();
    for pool in heap.pool_slots() {
        for block in heap.free_blocks(pool) {
            handles.extend(heap.handles_in(block.id));
        }
    }
    handles
}

/// Returns the partly free handles of all pools.
pub(super) fn partly_free(heap: &Heap) -> Vec<PartlyFreeView> {
    heap.pool_slots().flat_map(|pool| heap.partly_free(pool, Bytes(PAGE))).collect()
}

/// Returns the step that takes part of the tightest block of another stream.
pub(super) fn from_another_stream(heap: &Heap, request: &Request) -> Option<Relief> {
    tightest_of_others(heap, request).first().map(|block| Relief::TransferPart { block: block.id })
}

/// Returns the step that moves as few entirely free handles as possible to where the request needs them. Handles that are
/// already where the segment grows do not count. If more than four would move, new handles replace them, unless the memory
/// might not come back from the device.
pub(super) fn gather(heap: &Heap, request: &Request, was_refused: bool) -> Option<Relief> {
    let place = place_to_grow(heap, request);
    let mut free: Vec<HandleView> =
        entirely_free(heap).into_iter().filter(|handle| !place.addresses.contains(&handle.address)).collect();
    let mut missing = place.missing.get();
    let mut handles = Vec::new();
    while missing > 0 {
        let order = |handle: &&HandleView| (handle.size, handle.address);
        let sufficient = free.iter().filter(|handle| handle.size.get() >= missing).min_by_key(order);
        let Some(&chosen) = sufficient.or_else(|| free.iter().max_by_key(order)) else { break };
        free.retain(|handle| *handle != chosen);
        missing = missing.saturating_sub(chosen.size.get());
        handles.push(chosen.address);
    }
    if handles.is_empty() || missing > unreserved(heap) {
        return None;
    }
    let may_be_lost = was_refused || heap.reserved().get() > memory(heap);
    Some(if handles.len() > 4 && !may_be_lost { Relief::Replace { handles } } else { Relief::Move { handles } })
}

/// Returns the number of the handle's pages that are in a range of addresses.
fn pages_within(handle: HandleView, range: &Range<DeviceAddress>) -> u64 {
    let (begin, end) = (handle.address.get(), handle.address.get() + handle.size.get());
    let pages = (begin / PAGE..end.div_ceil(PAGE)).map(|number| (number * PAGE, (number + 1) * PAGE));
    let is_within = |from: u64, to: u64| from >= begin && to <= end && from >= range.start.get() && to <= range.end.get();
    pages.filter(|&(from, to)| is_within(from, to)).count() as u64
}

/// Returns the fewest handles whose free pages are enough for the request together with all entirely free handles and the
/// bytes that may still be reserved, best first. `None` if all of them are not enough.
pub(super) fn breakable(heap: &Heap, request: &Request, unreserved: u64) -> Option<Vec<DeviceAddress>> {
    let place = place_to_grow(heap, request);
    let anew = GrowthView {
        missing: request.size.checked_round_up(Bytes(PAGE)).unwrap_or(Bytes::MAX),
        addresses: DeviceAddress(0)..DeviceAddress(0),
    };
    [place, anew].iter().find_map(|place| breakable_at(heap, place, unreserved))
}

fn breakable_at(heap: &Heap, place: &GrowthView, unreserved: u64) -> Option<Vec<DeviceAddress>> {
    let free = entirely_free(heap).into_iter().filter(|handle| !place.addresses.contains(&handle.address));
    let free: u64 = free.map(|handle| handle.size.get()).sum();
    let beyond_limit = heap.reserved().get().saturating_sub(memory(heap));
    let mut missing = i128::from(place.missing.get().saturating_add(beyond_limit)) - i128::from(unreserved) - i128::from(free);
    let mut yields: Vec<(u64, DeviceAddress)> = partly_free(heap)
        .into_iter()
        .map(|part| {
            let used_there = pages_within(part.handle, &place.addresses) * PAGE;
            (part.free.get().saturating_sub(used_there), part.handle.address)
        })
        .filter(|&(bytes, _)| bytes > 0)
        .collect();
    yields.sort_by_key(|&(_, address)| address);
    yields.sort_by_key(|&(bytes, _)| Reverse(bytes));
    let mut chosen = Vec::new();
    for (bytes, address) in yields {
        if missing > 0 {
            missing -= i128::from(bytes);
            chosen.push(address);
        }
    }
    (missing <= 0).then_some(chosen)
}

/// Returns the step that breaks handles, if there are any.
pub(super) fn break_all(handles: Vec<DeviceAddress>) -> Option<Relief> {
    (!handles.is_empty()).then_some(Relief::Break { handles })
}

/// Returns the step that breaks every partly free handle if that can serve the request.
pub(super) fn break_every(heap: &Heap, request: &Request) -> Option<Relief> {
    breakable(heap, request, unreserved(heap))?;
    break_all(partly_free(heap).into_iter().map(|part| part.handle.address).collect())
}

/// Returns the step that asks the device for what the request lacks.
pub(super) fn ask() -> Relief {
    Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask }
}
