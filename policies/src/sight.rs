//! The facts that the rules use: how much memory is left, which handles are entirely free, and which ones to break.

use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

use parkade::policy::{Relief, Request};
use parkade::units::{Bytes, DeviceAddress};
use parkade::{BlockId, HandleView, Heap, PartlyFreeView, PoolSlot};

/// Handles are multiples of this, the smallest size that the driver maps.
pub(crate) const PAGE: Bytes = Bytes::mib(2);

/// If a request would need more handles than this to move, they are replaced by new ones. Broken memory would otherwise stay
/// in small handles, and in a loop dozens of them would move again and again.
const MOST_MOVED: usize = 4;

/// Whether the request is for a private pool.
#[inline]
pub(crate) fn is_private(request: &Request) -> bool {
    request.pool != PoolSlot::default_pool(request.pool.class())
}

/// The bytes that may be reserved in total.
#[inline]
pub(crate) fn all(heap: &Heap) -> u64 {
    heap.limit().map_or(heap.device_total(), |limit| limit.min(heap.device_total())).get()
}

/// Bytes that may still be reserved.
pub(crate) fn left(heap: &Heap) -> u64 {
    all(heap).saturating_sub(heap.reserved().get())
}

/// The entirely free handles that may move.
fn free_handles(heap: &Heap) -> impl Iterator<Item = HandleView> + '_ {
    heap.pool_slots().flat_map(|slot| heap.free_blocks(slot)).flat_map(|block| heap.handles_in(block.id))
}

/// The handles that are partly free.
pub(crate) fn partly_free(heap: &Heap) -> impl Iterator<Item = PartlyFreeView> {
    heap.pool_slots().flat_map(|slot| heap.partly_free(slot, PAGE))
}

/// Whether there is memory for the bytes that the request lacks, as far as the heap knows.
pub(crate) fn has_room(heap: &Heap, request: &Request) -> bool {
    let place = heap.growth_place(request.pool, request.stream, request.size, PAGE);
    place.missing.get() <= left(heap)
}

/// Entirely free handles for the bytes that the request lacks: the tightest one that is enough, or the
/// largest, then the next largest, and so on. None if they are not enough even with the bytes that may still be reserved.
pub(crate) fn movable(heap: &Heap, request: &Request) -> Vec<DeviceAddress> {
    let place = heap.growth_place(request.pool, request.stream, request.size, PAGE);
    let is_elsewhere = |handle: &HandleView| !place.addresses.contains(&handle.address);
    let mut free: Vec<HandleView> = free_handles(heap).filter(is_elsewhere).collect();
    free.sort_unstable_by_key(|handle| (handle.size, handle.address));
    let (mut missing, mut chosen) = (place.missing.get(), Vec::new());
    while missing > 0 && !free.is_empty() {
        let enough = free.partition_point(|handle| handle.size.get() < missing);
        let handle = free.remove(enough.min(free.len() - 1));
        missing = missing.saturating_sub(handle.size.get());
        chosen.push(handle.address);
    }
    if missing > left(heap) { Vec::new() } else { chosen }
}

/// Brings entirely free handles to where the request's segment grows; `None` if they are not enough. `is_refused` says that
/// the device had no room for the request although it should have. Memory that goes back to the device may be taken by
/// other processes, or may stay unusable if the limit was lowered. In these cases all the handles move.
pub(crate) fn gather(heap: &Heap, request: &Request, is_refused: bool) -> Option<Relief> {
    let handles = movable(heap, request);
    let comes_back = !is_refused && heap.reserved().get() <= all(heap);
    match handles.len() {
        0 => None,
        count if count > MOST_MOVED && comes_back => Some(Relief::Replace { handles }),
        _ => Some(Relief::Move { handles }),
    }
}

/// The tightest free block of another stream.
pub(crate) fn elsewhere(heap: &Heap, request: &Request) -> Option<BlockId> {
    let blocks = heap.first_at_least_elsewhere(request.pool, request.stream, request.size);
    blocks.min_by_key(|block| (block.size, block.address)).map(|block| block.id)
}

/// Handles to break for the bytes that the request lacks beyond entirely free handles and `left`, the bytes that may still
/// be reserved: the handles that give the most. `None` if all of them together are not enough.
pub(crate) fn breakable(heap: &Heap, request: &Request, left: u64) -> Option<Vec<DeviceAddress>> {
    let place = heap.growth_place(request.pool, request.stream, request.size, PAGE);
    let there = breakable_for(heap, place.missing, &place.addresses, left);
    // More may be free there than the request's segment can use. If so, the segment grows elsewhere.
    let elsewhere = || {
        let size = request.size.checked_round_up(PAGE).unwrap_or(Bytes::MAX);
        breakable_for(heap, size, &(DeviceAddress(0)..DeviceAddress(0)), left)
    };
    there.or_else(elsewhere)
}

/// The same if the request's segment grows at these addresses: the free memory there serves the request in any case. `None`
/// if it is not enough.
fn breakable_for(heap: &Heap, missing: Bytes, addresses: &Range<DeviceAddress>, left: u64) -> Option<Vec<DeviceAddress>> {
    let is_outside = |handle: &HandleView| !addresses.contains(&handle.address);
    let whole: u64 = free_handles(heap).filter(is_outside).map(|handle| handle.size.get()).sum();
    let inside = |handle: HandleView| {
        let from = handle.address.get().max(addresses.start.get().next_multiple_of(PAGE.get()));
        (handle.address.get() + handle.size.get()).min(addresses.end.get()).saturating_sub(from) / PAGE.get() * PAGE.get()
    };
    let mut gains: Vec<(u64, DeviceAddress)> =
        partly_free(heap).map(|part| (part.free.get().saturating_sub(inside(part.handle)), part.handle.address)).collect();
    gains.retain(|&(gain, _)| gain > 0);
    gains.sort_unstable_by_key(|&(gain, address)| (Reverse(gain), address));
    // If the limit was lowered, more bytes have to go back.
    let excess = heap.reserved().get().saturating_sub(all(heap));
    let mut missing = missing.get().saturating_add(excess).saturating_sub(left + whole);
    let mut chosen = Vec::new();
    for (gain, address) in gains {
        if missing == 0 {
            break;
        }
        missing = missing.saturating_sub(gain);
        chosen.push(address);
    }
    (missing == 0).then_some(chosen)
}
