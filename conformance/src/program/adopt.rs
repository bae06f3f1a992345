//! Segments that exist before the allocator does, as in a recording that begins in the middle of a run. The allocator under
//! test and the reference allocator adopt them.

use std::collections::VecDeque;

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation};

use super::search::Draws;
use super::step::POOLS;
use super::watched::Core;
use crate::backend::{AnyDevice, AnyPhysical, WitnessedDevice};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::Reference;

/// An allocation in an adopted segment, with its pool and stream.
pub(super) type Adopted = (Allocation, PoolId, StreamId);

/// Adopts up to three segments, drawn at random from a seed. Returns their allocations.
pub(super) fn adopt(
    device: &WitnessedDevice<AnyDevice>,
    core: &mut Core,
    reference: &mut Reference,
    streams: [StreamId; 4],
    seed: u64,
) -> Result<Vec<Adopted>, Broken> {
    let (mut draws, mut held) = (Draws::new(seed), Vec::new());
    for _ in 0..=draws.below(3) {
        let class = if draws.below(2) == 0 { PoolClass::Small } else { PoolClass::Large };
        let pool = if draws.below(3) == 0 { POOLS[0] } else { PoolId::DEFAULT };
        if pool != PoolId::DEFAULT && reference.uses(pool).is_err() {
            let answers = (core.create_pool(pool), reference.create_pool(pool));
            ensure(Law::Reference, answers.0 == answers.1, || format!("create_pool returned {answers:?}"))?;
        }
        let stream = streams[draws.below(4) as usize];
        let page = (draws.below(2) == 0).then_some(match class {
            PoolClass::Small => 2 * MIB,
            PoolClass::Large => reference.settings.large_segment_bytes,
        });
        let blocks = match page {
            None if class == PoolClass::Small => filled(&mut draws, 2 * MIB, MIB / 2, MIB),
            None => {
                let size = (6 + draws.below(10)) * 2 * MIB;
                filled(&mut draws, size, 9 * MIB, 2 * MIB)
            }
            Some(page) => expandable(&mut draws, page),
        };
        let mut handles = VecDeque::new();
        let Some(address) = take(device, &blocks, page, &mut handles) else { return Ok(held) };
        let segment = AdoptedSegment { address, stream, pool, class, page: page.map(Bytes), blocks };
        for (wrong, error) in wrong(&segment) {
            let answer = core.adopt(&wrong, &mut |_, _| unreachable!("a refused segment asks for no memory"));
            ensure(Law::Reference, answer == Err(error), || format!("{wrong:?} returned {answer:?}, expected {error:?}"))?;
        }
        let mut asked = Vec::new();
        let answer = core.adopt(&segment, &mut |address, pages| {
            asked.push((address.get(), pages));
            (handles.pop_front().expect("there is one handle for each mapped page"), 1)
        });
        let runs = page.map_or(Vec::new(), |page| asked_for(&segment, page));
        ensure(Law::Reference, asked == runs, || {
            format!("memory for {segment:?} was requested at {asked:x?}, expected {runs:x?}")
        })?;
        let expected = reference.adopt(&segment);
        let allocations = answer.map_err(|error| Broken::new(Law::Reference, format!("{segment:?}: {error}")))?;
        let same = allocations.iter().map(|allocation| allocation.address().get()).eq(expected.iter().copied());
        ensure(Law::Reference, same && handles.is_empty(), || format!("{segment:?} has the allocations {allocations:?}"))?;
        held.extend(allocations.into_iter().map(|allocation| (allocation, pool, stream)));
        misplaced(core, &segment)?;
    }
    Ok(held)
}

fn block(size: u64, content: AdoptedContent) -> AdoptedBlock {
    AdoptedBlock { size: Bytes(size), content }
}

/// Checks that the allocator refuses a segment that already exists, or that begins or ends inside
/// another one.
fn misplaced(core: &mut Core, segment: &AdoptedSegment) -> Result<(), Broken> {
    let bytes: u64 = segment.blocks.iter().map(|block| block.size.get()).sum();
    let (base, free) = (segment.address.get(), |size: u64| vec![block(size, AdoptedContent::Free)]);
    let at = |address: u64, size: u64| AdoptedSegment {
        address: DeviceAddress(address),
        page: None,
        blocks: free(size),
        ..segment.clone()
    };
    for wrong in
        [segment.clone(), at(base + bytes - 512, 1024), at(base - 512, 1024), at(base - 512, bytes + 1024), at(base + 512, 512)]
    {
        let answer = core.adopt(&wrong, &mut |_, _| unreachable!("a refused segment asks for no memory"));
        let expected = Err(AdoptError::Misplaced);
        ensure(Law::Reference, answer == expected, || format!("beside {segment:?}, {wrong:?} returned {answer:?}"))?;
    }
    Ok(())
}

/// Returns the memory requests for an expandable segment: for each mapped page, the number of consecutive mapped pages
/// from there.
fn asked_for(segment: &AdoptedSegment, page: u64) -> Vec<(u64, u64)> {
    let base = segment.address.get();
    let total: u64 = segment.blocks.iter().map(|block| block.size.get()).sum();
    let mut is_mapped = vec![true; (total / page) as usize];
    let mut offset = 0;
    for block in &segment.blocks {
        if block.content == AdoptedContent::Unmapped {
            is_mapped[(offset / page) as usize..((offset + block.size.get()) / page) as usize].fill(false);
        }
        offset += block.size.get();
    }
    let left = |place: usize| is_mapped[place..].iter().take_while(|mapped| **mapped).count() as u64;
    (0..is_mapped.len()).filter(|&place| is_mapped[place]).map(|place| (base + place as u64 * page, left(place))).collect()
}

/// Returns blocks that fill these bytes: allocated ones, and free ones that are not adjacent. Some of them end at a
/// multiple of `round`.
fn filled(draws: &mut Draws, bytes: u64, largest: u64, round: u64) -> Vec<AdoptedBlock> {
    let (mut blocks, mut left): (Vec<AdoptedBlock>, u64) = (Vec::new(), bytes);
    while left > 0 {
        let size = match draws.below(4) {
            0 => round - (bytes - left) % round,
            1 => 2 * round - (bytes - left) % round,
            _ => (1 + draws.below(largest / 512)) * 512,
        };
        let size = size.min(left);
        let may_be_free = blocks.last().is_none_or(|last| last.content != AdoptedContent::Free);
        let content = if may_be_free && draws.below(2) == 0 {
            AdoptedContent::Free
        } else {
            AdoptedContent::Allocated(Bytes(size - draws.below(512)))
        };
        blocks.push(block(size, content));
        left -= size;
    }
    blocks
}

/// Returns stretches of one or two pages, alternately with and without memory.
fn expandable(draws: &mut Draws, page: u64) -> Vec<AdoptedBlock> {
    let (mut blocks, mut is_mapped) = (Vec::new(), draws.below(2) == 0);
    for _ in 0..2 + draws.below(4) {
        let bytes = page * (1 + draws.below(3));
        if is_mapped {
            blocks.extend(filled(draws, bytes, page / 2, page));
        } else {
            blocks.push(block(bytes, AdoptedContent::Unmapped));
        }
        is_mapped = !is_mapped;
    }
    blocks
}

/// Takes the segment's memory from the device without the allocator's knowledge. Returns `None` if the device has no
/// room for it.
fn take(
    device: &WitnessedDevice<AnyDevice>,
    blocks: &[AdoptedBlock],
    page: Option<u64>,
    handles: &mut VecDeque<AnyPhysical>,
) -> Option<DeviceAddress> {
    let mut device = device.steer();
    let total = blocks.iter().map(|block| block.size.get()).sum();
    let Some(page) = page else { return device.malloc(Bytes(total)).ok() };
    let base = device.reserve(Bytes(total)).ok()?;
    let mut offset = 0;
    let mut taken: Vec<u64> = Vec::new();
    for block in blocks {
        let end = offset + block.size.get();
        if block.content != AdoptedContent::Unmapped {
            for place in offset / page..end.div_ceil(page) {
                if taken.last().is_none_or(|&last| last < place) {
                    taken.push(place);
                }
            }
        }
        offset = end;
    }
    for place in &taken {
        let address = base.offset(Bytes(place * page));
        let Ok(handle) = device.create(Bytes(page)) else {
            return give_back(&mut device, base, total, &taken, page, handles);
        };
        device.map(address, Bytes(page), &handle).and_then(|()| device.set_access(address, Bytes(page))).ok()?;
        handles.push_back(handle);
    }
    Some(base)
}

/// Returns to the device the memory that was taken for a segment before memory ran out.
fn give_back(
    device: &mut AnyDevice,
    base: DeviceAddress,
    total: u64,
    taken: &[u64],
    page: u64,
    handles: &mut VecDeque<AnyPhysical>,
) -> Option<DeviceAddress> {
    for (handle, place) in handles.drain(..).zip(taken) {
        device.unmap(base.offset(Bytes(place * page)), Bytes(page)).ok()?;
        device.release(handle).ok()?;
    }
    device.unreserve(base, Bytes(total)).ok()?;
    None
}

/// Returns segments like this one that cannot be adopted, each with its error.
fn wrong(segment: &AdoptedSegment) -> Vec<(AdoptedSegment, AdoptError)> {
    let with = |blocks: Vec<AdoptedBlock>| AdoptedSegment { blocks, ..segment.clone() };
    let free = |size: u64| block(size, AdoptedContent::Free);
    let hole = |size: u64| block(size, AdoptedContent::Unmapped);
    let page = segment.page.map_or(2 * MIB, Bytes::get);
    let mut wrong = vec![
        (with(Vec::new()), AdoptError::Empty),
        (with(vec![free(page), block(0, AdoptedContent::Allocated(Bytes(0)))]), AdoptError::Empty),
        (with(vec![free(512), free(page - 512)]), AdoptError::NotCoalesced),
        (with(vec![hole(page), hole(page)]), AdoptError::NotCoalesced),
        (with(vec![free(u64::MAX), block(page, AdoptedContent::Allocated(Bytes(1)))]), AdoptError::TooLarge),
        (AdoptedSegment { address: DeviceAddress(u64::MAX - page + 512), ..with(vec![free(page)]) }, AdoptError::TooLarge),
        (with(vec![free(512), hole(page), free(page - 512)]), AdoptError::NotWholePages),
        (AdoptedSegment { page: None, ..with(vec![hole(page)]) }, AdoptError::NotWholePages),
        (AdoptedSegment { pool: PoolId(9, 9), ..segment.clone() }, AdoptError::UnknownPool),
    ];
    wrong.extend([
        (with(vec![hole(page - 512), free(512)]), AdoptError::NotWholePages),
        (with(vec![free(512), hole(page - 512)]), AdoptError::NotWholePages),
        (with(vec![free(page), hole(512), free(page - 512)]), AdoptError::NotWholePages),
        (AdoptedSegment { page: Some(Bytes(0)), ..with(vec![free(page)]) }, AdoptError::NotWholePages),
        (AdoptedSegment { page: Some(Bytes(page)), ..with(vec![free(page + 512)]) }, AdoptError::NotWholePages),
        (AdoptedSegment { page: None, ..with(vec![free(1 << 63)]) }, AdoptError::TooMuch),
        (AdoptedSegment { address: DeviceAddress(segment.address.get() + 256), ..with(vec![free(page)]) }, AdoptError::Misplaced),
        (AdoptedSegment { address: DeviceAddress(0), ..with(vec![free(page)]) }, AdoptError::Misplaced),
    ]);
    wrong
}
