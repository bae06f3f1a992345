//! The facts on which the rules are based: how much memory is left, which handles are entirely free, and which ones to
//! break.

use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

use parkade::policy::{Relief, Request};
use parkade::units::{Bytes, DeviceAddress};
use parkade::{BlockId, HandleView, Heap, PartlyFreeView, PoolSlot};

/// Handles are multiples of this, the smallest size that the driver maps.
pub(crate) const PAGE: Bytes = Bytes::mib(2);

/// If more handles than this would have to move for a request, new ones replace them. Otherwise, broken memory would
/// stay in small handles, and dozens of them would move again and again in a loop.
const MOST_MOVED: usize = 4;

/// Whether the request is for a private pool.
#[inline]
pub(crate) fn is_private(request: &Request) -> bool {
    request.pool != PoolSlot::default_pool(request.pool.class())
}

/// The maximum number of bytes that may be reserved.
#[inline]
pub(crate) fn all(heap: &Heap) -> u64 {
    heap.limit().map_or(heap.device_total(), |limit| limit.min(heap.device_total())).get()
}

/// The number of bytes that may still be reserved.
pub(crate) fn left(heap: &Heap) -> u64 {
    all(heap).saturating_sub(heap.reserved().get())
}

/// The entirely free handles that may be moved.
fn free_handles(heap: &Heap) -> impl Iterator<Item = HandleView> + '_ {
    heap.pool_slots().flat_map(|slot| heap.free_blocks(slot)).flat_map(|block| heap.handles_in(block.id))
}

/// The handles that are partly free.
pub(crate) fn partly_free(heap: &Heap) -> impl Iterator<Item = PartlyFreeView> {
    heap.pool_slots().flat_map(|slot| heap.partly_free(slot, PAGE))
}

/// Whether there is room for the missing bytes of the request, as far as the heap knows.
pub(crate) fn has_room(heap: &Heap, request: &Request) -> bool {
    let place = heap.growth_place(request.pool, request.stream, request.size, PAGE);
    place.missing.get() <= left(heap)
}

/// Entirely free handles for the missing bytes of the request: the tightest one that is large enough, or else the
/// largest, the next largest, and so on. The list is empty if they are not enough even with the bytes that may still
/// be reserved.
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

/// Moves entirely free handles to where the request's segment grows; `None` if they are not enough. `is_refused` means
/// that the device unexpectedly had no room for the request. Memory that is returned to the device may be taken by
/// other processes, or may be unusable if the limit has been lowered. In these cases, all the handles move.
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

/// The handles to break for the missing bytes of the request that neither entirely free handles nor `left`, the bytes
/// that may still be reserved, can provide. These are the handles that yield the most memory; `None` if all of them
/// together are not enough.
pub(crate) fn breakable(heap: &Heap, request: &Request, left: u64) -> Option<Vec<DeviceAddress>> {
    let place = heap.growth_place(request.pool, request.stream, request.size, PAGE);
    let there = breakable_for(heap, place.missing, &place.addresses, left);
    // These addresses may have more free memory than the request's segment can use. In that case, the segment grows
    // elsewhere.
    let elsewhere = || {
        let size = request.size.checked_round_up(PAGE).unwrap_or(Bytes::MAX);
        breakable_for(heap, size, &(DeviceAddress(0)..DeviceAddress(0)), left)
    };
    there.or_else(elsewhere)
}

/// The same, if the request's segment grows at these addresses: their free memory is used for the request in any case.
/// `None` if all handles together are not enough.
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
    // If the limit has been lowered, more bytes must be released.
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
