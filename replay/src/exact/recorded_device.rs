//! A device that answers as the recording says.
//!
//! The allocator did not decide where a segment was placed (the driver did), whether there was room (other
//! processes mattered) or when an event was complete (the GPU did). So this device takes these answers from the
//! recording. A request for a segment is granted at the recorded address if the recording's next entry is that
//! segment, and refused if the next entry shows that it failed. If the recording shows no such request, it is
//! granted at an address that no recording has, and the observer reports the mismatch.

use std::collections::BTreeMap;

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_recording::{Action, Entry};

use super::position::Position;
use crate::completions::completion_of;
use crate::entries::ELSEWHERE;
use crate::initial_state::TOTAL_MEMORY;

/// The recorded device.
#[derive(Clone, Debug)]
pub(crate) struct RecordedDevice<'a> {
    trace: &'a [Entry],
    position: &'a Position,
    index: u32,
    elsewhere: u64,
    /// Reserved ranges of addresses: where each begins, and the end of what was ever mapped.
    reserved: BTreeMap<u64, u64>,
}

impl<'a> RecordedDevice<'a> {
    pub(crate) fn new(index: u32, trace: &'a [Entry], position: &'a Position) -> RecordedDevice<'a> {
        RecordedDevice { trace, position, index, elsewhere: ELSEWHERE, reserved: BTreeMap::new() }
    }

    fn refuse(&self, requested: Bytes) -> BackendError {
        self.position.refusals.set(self.position.refusals.get() + 1);
        BackendError::OutOfMemory { requested }
    }

    fn place_elsewhere(&mut self, size: Bytes) -> Result<u64, BackendError> {
        let address = self.elsewhere;
        let end = size.0.checked_next_multiple_of(2 << 20).and_then(|length| address.checked_add(length));
        self.elsewhere = end.ok_or(BackendError::OutOfMemory { requested: size })?;
        Ok(address)
    }

    /// Adds a range that was reserved before the first entry, and mapped up to `end`.
    pub(crate) fn adopt_range(&mut self, address: u64, end: u64) {
        self.reserved.insert(address, end);
    }

    /// Where the next reserved range begins: at the first address that is mapped and that no range
    /// reserved so far grows into. A range grows upwards from its lowest address without gaps (spec 4.2),
    /// so its end tells what belongs to it.
    fn next_base(&self) -> Option<u64> {
        let first = self.position.next_map(self.trace)?;
        if self.reserved.range(..=self.trace[first].address).next_back().is_none_or(|(_, end)| self.trace[first].address > *end) {
            return Some(self.trace[first].address);
        }
        let mut reserved = self.reserved.clone();
        let mut maps = self.trace[first..].iter().filter(|entry| entry.action == Action::SegmentMap);
        maps.find(|entry| !grow(&mut reserved, entry.address, entry.size)).map(|entry| entry.address)
    }

    /// The number of entries in the recording.
    pub(crate) fn recorded_entries(&self) -> usize {
        self.trace.len()
    }

    fn next_entry(&self) -> Option<&Entry> {
        self.trace[..self.position.end.get()].get(self.position.next.get())
    }
}

/// Records that addresses are mapped; false if they belong to no range.
fn grow(reserved: &mut BTreeMap<u64, u64>, address: u64, size: u64) -> bool {
    match reserved.range_mut(..=address).next_back() {
        Some((_, end)) if address <= *end => {
            *end = (*end).max(address.saturating_add(size));
            true
        }
        _ => false,
    }
}

impl DeviceBackend for RecordedDevice<'_> {
    /// The entry at which the event's block became free.
    type Event = usize;
    /// A recording does not tell physical memory apart.
    type Physical = ();

    /// Each waiting block has a stream of its own, whose handle is the entry at which it becomes free. Without
    /// this, a replay with a hundred thousand waiting blocks would poll each of them at every request.
    fn completes_by_handle(&self) -> bool {
        true
    }

    fn answers_are_checked(&self) -> bool {
        false
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn total_memory(&self) -> Bytes {
        Bytes(TOTAL_MEMORY)
    }

    /// The free bytes at the recorded failure. The total is not in a recording.
    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        let free = self.next_entry().filter(|entry| entry.action == Action::Oom).map_or(0, |entry| entry.address);
        Ok(MemoryInfo { free: Bytes(free), total: Bytes::MAX })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        match self.next_entry() {
            Some(entry) if entry.action == Action::SegmentAlloc && entry.size == size.0 => Ok(DeviceAddress(entry.address)),
            Some(entry) if !matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap | Action::Alloc) => {
                Err(self.refuse(size))
            }
            // The recording has a segment of another size here, or none: the observer will report the mismatch.
            _ => self.place_elsewhere(size).map(DeviceAddress),
        }
    }

    fn free(&mut self, _: DeviceAddress) -> Result<(), BackendError> {
        Ok(())
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let address = self.next_base().map_or_else(|| self.place_elsewhere(size), Ok)?;
        self.reserved.insert(address, address);
        Ok(DeviceAddress(address))
    }

    fn unreserve(&mut self, address: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        self.reserved.remove(&address.0);
        Ok(())
    }

    fn create(&mut self, size: Bytes) -> Result<(), BackendError> {
        match self.next_entry() {
            Some(entry) if !matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap | Action::Alloc) => {
                Err(self.refuse(size))
            }
            // The recorded settings may name pages of any size, and no device has one like this.
            _ if size.0 > TOTAL_MEMORY => Err(self.refuse(size)),
            _ => Ok(()),
        }
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, (): &()) -> Result<(), BackendError> {
        grow(&mut self.reserved, address.0, size.0);
        Ok(())
    }

    fn set_access(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn unmap(&mut self, _: DeviceAddress, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn release(&mut self, (): ()) -> Result<(), ((), BackendError)> {
        Ok(())
    }

    fn run_pages(&self) -> u64 {
        u64::MAX
    }

    /// All or none: the recording says once whether a request found memory.
    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<((), u64), BackendError> {
        self.create(page).map(|()| ((), pages))
    }

    fn split_run(&mut self, (): &mut (), _: Bytes, _: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn synchronize_stream(&mut self, _: StreamId) -> Result<(), BackendError> {
        Ok(())
    }

    fn create_event(&mut self) -> Result<usize, BackendError> {
        Ok(usize::MAX)
    }

    /// The stream that a replay records on a block stands for the entry at which the block became free.
    fn record_event(&mut self, event: &mut usize, stream: StreamId) -> Result<(), BackendError> {
        *event = completion_of(stream);
        Ok(())
    }

    fn is_complete(&mut self, event: &usize) -> Result<bool, BackendError> {
        Ok(*event < self.position.visible.get())
    }

    fn wait(&mut self, _: &usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn destroy_event(&mut self, _: usize) {}
}
