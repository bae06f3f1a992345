//! Handles that are partly in use are broken: what is in use keeps its addresses and its contents in memory of its own, and the
//! free pages go back to the device.
//!
//! PyTorch does not do that. So a large handle, which is cheap to map, strands no more than pages once memory is short.

use alloc::vec::Vec;
use core::ops::Range;

use super::Allocator;
use crate::device::{BackendError, DeviceBackend};
use crate::error::AllocError;
use crate::heap::{BlockView, PoolSlot, whole_pages};
use crate::policy::Policy;
use crate::reservation::Run;
use crate::trace::Observer;
use crate::units::{Bytes, DeviceAddress};

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Breaks the handles in order, and those that the device had no room for again after others have given memory back. One
    /// that it has never room for stays as it is.
    pub(super) fn break_handles(&mut self, handles: &[DeviceAddress]) -> Result<(), AllocError> {
        for (place, &DeviceAddress(address)) in handles.iter().enumerate() {
            if self.heap.handle_at(address).is_none() || handles[..place].contains(&DeviceAddress(address)) {
                return Err(self.fault("breaks a handle that does not exist, or twice").into());
            }
        }
        if self.heap.is_deferring() || !self.device.breaks_handles() {
            return Ok(());
        }
        let (mut left, mut before) = (handles.to_vec(), usize::MAX);
        while left.len() < before {
            before = left.len();
            for handle in core::mem::take(&mut left) {
                // A device may find out that it cannot.
                if !self.device.breaks_handles() {
                    return Ok(());
                }
                match self.break_handle(handle.0) {
                    Err(AllocError::Device(BackendError::OutOfMemory { .. })) => left.push(handle),
                    outcome => outcome?,
                }
            }
        }
        Ok(())
    }

    fn break_handle(&mut self, address: u64) -> Result<(), AllocError> {
        let Some(bytes) = self.heap.handle_at(address) else { return Ok(()) };
        let Some((base, range)) = self.reservations.holding(address) else {
            return Err(self.fault("breaks a handle that is in no reserved range").into());
        };
        let (page, pool) = (range.page, range.pool);
        let pool_number = PoolSlot(pool).pool_number();
        if pool_number != 0 && !self.heap.private_pools().freeable().contains(&pool_number) {
            return Ok(());
        }
        let free = self.free_pages(address..address + bytes, page, pool);
        let used = between(&free, address..address + bytes);
        if free.is_empty() || used.is_empty() {
            return Ok(());
        }
        let parts: Vec<(Bytes, Bytes)> =
            used.iter().map(|part| (Bytes(part.start - address), Bytes(part.end - part.start))).collect();
        let Some(run) = self.reservations.holding(base).and_then(|(_, range)| range.take((address - base) / page)) else {
            return Err(self.fault("breaks a handle that is not mapped").into());
        };
        let broken = self.device.break_handle(DeviceAddress(address), Bytes(bytes), run.memory, &parts);
        let Some((_, range)) = self.reservations.holding(base) else { return Ok(()) };
        match broken {
            Ok(pieces) => {
                for (part, memory) in used.iter().zip(pieces) {
                    let pages = (part.end - part.start) / page;
                    range.put((part.start - base) / page, Run { pages, memory, is_handle: true });
                }
            }
            Err((memory, error)) => {
                range.put((address - base) / page, Run { memory, ..run });
                return Err(error.into());
            }
        }
        self.heap.forget_handles(address, bytes);
        used.iter().for_each(|part| self.heap.note_handles(part.start, &[(true, part.end - part.start)]));
        free.into_iter().try_for_each(|part| {
            let Some(index) = self.heap.free_block_at(part.start) else { return Ok(()) };
            self.account_unmapped(index, part.start, part.end - part.start, PoolSlot(pool), base)
        })
    }

    /// The whole pages of free blocks in a range, by address: without blocks that belong to another pool or stream than their
    /// segment.
    fn free_pages(&mut self, range: Range<u64>, page: u64, pool: u16) -> Vec<Range<u64>> {
        let touches = |block: &BlockView| block.address.0 < range.end && block.address.0 + block.size.0 > range.start;
        let blocks: Vec<u32> = self.heap.free_blocks(PoolSlot(pool)).filter(touches).map(|block| block.id.index).collect();
        let mut pages = Vec::new();
        for index in blocks {
            let block = self.heap.arena.at(index);
            let inside =
                whole_pages(block.address.max(range.start)..(block.address + block.size).min(range.end), range.start, page);
            if !inside.is_empty() && !self.is_away(index) {
                pages.push(inside);
            }
        }
        pages.sort_unstable_by_key(|part| part.start);
        pages
    }
}

/// What of a range lies between these parts of it, which are in order.
fn between(parts: &[Range<u64>], range: Range<u64>) -> Vec<Range<u64>> {
    let ends = parts.iter().map(|part| part.end);
    let starts = parts.iter().map(|part| part.start).chain([range.end]);
    let gaps = core::iter::once(range.start).chain(ends).zip(starts).map(|(from, to)| from..to);
    gaps.filter(|gap| !gap.is_empty()).collect()
}
