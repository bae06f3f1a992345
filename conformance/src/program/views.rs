//! What a policy sees of the heap, computed a second time from the segments and the reserved ranges: which segments are idle,
//! which free block follows another, and where a segment would grow.

use std::collections::BTreeMap;

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolId, StreamId};
use parkade::{BlockId, BlockView, GrowthView, Neighbour, PoolSlot};

use super::caller::Caller;
use super::handles::Mappings;
use crate::law::{Broken, Law, ensure};

/// Consecutive addresses in a reserved range.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    size: u64,
    /// `None` without memory.
    state: Option<BlockActivity>,
}

/// Compares what the heap shows of its free blocks.
///
/// # Errors
/// The first difference.
pub(super) fn check(caller: &Caller, segments: &[SegmentInfo], mappings: &Mappings) -> Result<(), Broken> {
    let heap = caller.core.heap();
    let ranges = caller.device.reserved_ranges();
    for slot in heap.pool_slots() {
        let free: Vec<BlockView> = heap.free_blocks(slot).collect();
        for (place, block) in free.iter().enumerate() {
            let next = free.get(place + 1).filter(|next| next.stream == block.stream).copied();
            let seen = heap.following(block.id);
            ensure(Law::Placement, seen == next, || format!("{seen:?} follows {block:?}, expected {next:?}"))?;
            let seen = heap.is_idle(block.id);
            ensure(Law::Placement, seen == is_idle(block, segments, &ranges, mappings), || {
                format!("the segment of {block:?} counts as idle: {seen}")
            })?;
        }
    }
    check_neighbours(caller, segments)?;
    check_growth(caller, segments, &ranges)
}

/// Returns whether nothing else in the block's segment is in use. The runs of memory in a reserved range that belong to the range's
/// pool are one segment, with the addresses between them; what another pool has there is a separate segment, and ends those
/// beside it.
fn is_idle(block: &BlockView, segments: &[SegmentInfo], ranges: &BTreeMap<u64, u64>, mappings: &Mappings) -> bool {
    let at = block.address.get();
    let base = ranges.range(..=at).next_back().filter(|&(base, size)| at - base < *size).map(|(&base, _)| base);
    let owner = base.and_then(|base| mappings.owner(base)).map(|(pool, _)| pool);
    let end = |segment: &SegmentInfo| segment.address.get() + segment.total.get();
    let is_linked = |pair: &[SegmentInfo]| {
        let is_in_range = base.is_some_and(|base| base <= pair[0].address.get() && pair[1].address.get() - base < ranges[&base]);
        let is_of_owner = pair.iter().all(|segment| Some(segment.pool) == owner);
        is_in_range && is_of_owner && end(&pair[0]) < pair[1].address.get()
    };
    let is_free = |segment: &SegmentInfo| segment.blocks.iter().all(|block| block.state == BlockActivity::Inactive);
    let Some(own) = segments.iter().position(|segment| segment.address.get() <= at && at < end(segment)) else { return false };
    let first =
        (1..=own).rev().take_while(|&place| is_linked(&segments[place - 1..=place])).last().map_or(own, |place| place - 1);
    let last = (own + 1..segments.len()).take_while(|&place| is_linked(&segments[place - 1..=place])).last().unwrap_or(own);
    segments[first..=last].iter().all(is_free)
}

/// Checks what the heap shows before and after each free or live block: the block that the segments show there. Where a
/// segment ends, there may only be addresses without memory.
fn check_neighbours(caller: &Caller, segments: &[SegmentInfo]) -> Result<(), Broken> {
    let heap = caller.core.heap();
    let free = heap.pool_slots().flat_map(|slot| heap.free_blocks(slot)).map(|block| (block.address, block.id));
    let live = heap.pool_slots().flat_map(|slot| heap.live_blocks(slot)).map(|block| (block.address(), block.id()));
    let ids: BTreeMap<DeviceAddress, BlockId> = free.chain(live).collect();
    let shown = |neighbour: Option<Neighbour<'_>>| match neighbour {
        Some(Neighbour::Live(block)) => Some((Some(block.address()), block.size(), BlockActivity::Allocated)),
        Some(Neighbour::Free(block)) => Some((Some(block.address), block.size, BlockActivity::Inactive)),
        Some(Neighbour::Pending(size)) => Some((None, size, BlockActivity::PendingFree)),
        Some(Neighbour::Unmapped(_)) | None => None,
    };
    for blocks in segments.iter().map(|segment| &segment.blocks) {
        for (place, block) in blocks.iter().enumerate() {
            let Some(&id) = ids.get(&block.address) else { continue };
            let [before, after] = [place.checked_sub(1), Some(place + 1)].map(|place| {
                let block = blocks.get(place?)?;
                let address = (block.state != BlockActivity::PendingFree).then_some(block.address);
                Some((address, block.size, block.state))
            });
            let seen = heap.neighbours(id).map(shown);
            ensure(Law::Placement, seen == [before, after], || {
                format!("the neighbours of {block:?} are {seen:?}, expected {before:?} and {after:?}")
            })?;
        }
    }
    Ok(())
}

/// Checks where segments of the default pool would grow, if each range belongs to one stream and one pool.
fn check_growth(caller: &Caller, segments: &[SegmentInfo], ranges: &BTreeMap<u64, u64>) -> Result<(), Broken> {
    let heap = caller.core.heap();
    let inside =
        |base: u64, size: u64| segments.iter().filter(move |segment| (base..base + size).contains(&segment.address.get()));
    let owner = |(&base, &size): (&u64, &u64)| {
        let owners: Vec<_> = inside(base, size).map(|segment| (segment.stream, segment.pool, segment.class)).collect();
        owners.first().copied().filter(|first| first.1 == PoolId::DEFAULT && owners.iter().all(|other| other == first))
    };
    let owners: Option<Vec<_>> = ranges.iter().map(owner).collect();
    let Some(owners) = owners.filter(|_| !caller.core.policy().has_transferred()) else { return Ok(()) };
    let page = Bytes(2 * MIB);
    for (turn, &(stream, _, class)) in owners.iter().enumerate() {
        let size = Bytes((caller.steps * 7 + turn as u64) % 30 * MIB + 512);
        let own = ranges.iter().zip(&owners).filter(|(_, owner)| (owner.0, owner.2) == (stream, class));
        let places = own.flat_map(|((&base, &bytes), _)| places(&pieces(base, bytes, inside(base, bytes)), size.get()));
        let least = places.min_by_key(|&(missing, start, _)| (missing, start));
        let (missing, start, end) = least.unwrap_or((size.get(), 0, 0));
        let missing = Bytes(missing.div_ceil(page.get()) * page.get());
        let expected = GrowthView { missing, addresses: DeviceAddress(start)..DeviceAddress(end) };
        let seen = heap.growth_place(PoolSlot::default_pool(class), StreamId(stream.get()), size, page);
        ensure(Law::Placement, seen == expected, || {
            format!("for {size} bytes on stream {stream}, the {class:?} pool grows at {seen:x?}, expected {expected:x?}")
        })?;
    }
    Ok(())
}

/// Returns a range's blocks and the gaps between them.
fn pieces<'s>(base: u64, bytes: u64, segments: impl Iterator<Item = &'s SegmentInfo>) -> Vec<Piece> {
    let (mut found, mut at) = (Vec::new(), base);
    for block in segments.flat_map(|segment| &segment.blocks) {
        let (start, size) = (block.address.get(), block.size.get());
        if at < start {
            found.push(Piece { start: at, size: start - at, state: None });
        }
        found.push(Piece { start, size, state: Some(block.state) });
        at = start + size;
    }
    if at < base + bytes {
        found.push(Piece { start: at, size: base + bytes - at, state: None });
    }
    found
}

/// Returns every run with room for `size` bytes that includes addresses without memory: the bytes that it lacks, its start
/// and its end.
fn places(pieces: &[Piece], size: u64) -> Vec<(u64, u64, u64)> {
    let is_usable = |piece: &Piece| piece.state.is_none_or(|state| state == BlockActivity::Inactive);
    let mut found = Vec::new();
    for gap in (0..pieces.len()).filter(|&place| pieces[place].state.is_none()) {
        let first = gap - usize::from(gap > 0 && is_usable(&pieces[gap - 1]));
        let (mut room, mut missing) = (0, 0);
        for piece in pieces[first..].iter().take_while(|piece| is_usable(piece)) {
            if room >= size {
                break;
            }
            missing += if piece.state.is_none() { piece.size.min(size - room) } else { 0 };
            room += piece.size;
        }
        if room >= size {
            found.push((missing, pieces[first].start, pieces[first].start + room));
        }
    }
    found
}
