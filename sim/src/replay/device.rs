//! A device that answers as the recording says.
//!
//! Where a segment lies was the driver's choice, whether there was room was other processes' business, and when an event was done was the
//! GPU's: none of these is the allocator's decision, so the device reads them off the recording. A request for a segment is
//! granted, at the recorded address, exactly if the entry that comes next records a segment; else it is refused. What the
//! allocator then makes of it is compared.

use std::cell::Cell;

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::recording::{Action, Entry};

/// Where new segments go that the recording does not have: far above any GPU's addresses.
pub(super) const ELSEWHERE: u64 = 1 << 60;

/// What the runner, the device and the observer share: how far into the recording the replay is.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The entry that the core is to reproduce next.
    pub(super) next: Cell<usize>,
    /// One past the last entry of the operation under way.
    pub(super) end: Cell<usize>,
    /// Events that completed before this entry are visible to a query.
    pub(super) visible: Cell<usize>,
    /// Requests for a segment that were refused because the recording has no segment there.
    pub(super) refusals: Cell<u64>,
}

/// The recorded device.
#[derive(Clone, Debug)]
pub(super) struct RecordedDevice<'a> {
    trace: &'a [Entry],
    position: &'a Position,
    index: u32,
    elsewhere: u64,
}

impl<'a> RecordedDevice<'a> {
    pub(super) fn new(index: u32, trace: &'a [Entry], position: &'a Position) -> RecordedDevice<'a> {
        RecordedDevice { trace, position, index, elsewhere: ELSEWHERE }
    }

    /// How many entries the recording has.
    pub(super) fn recorded_entries(&self) -> usize {
        self.trace.len()
    }

    fn next_entry(&self) -> Option<&Entry> {
        self.trace[..self.position.end.get()].get(self.position.next.get())
    }
}

impl DeviceBackend for RecordedDevice<'_> {
    /// The entry at which the event's block became free.
    type Event = usize;

    /// Each waiting block has a stream of its own, whose handle is the entry at which it becomes free. Without this a replay
    /// with a hundred thousand waiting blocks would ask for each of them at every request.
    const COMPLETES_BY_HANDLE: bool = true;

    fn index(&self) -> u32 {
        self.index
    }

    fn total_memory(&self) -> Bytes {
        Bytes::MAX
    }

    /// The free bytes of the recorded failure; the total is not in a recording.
    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        let free = self.next_entry().filter(|entry| entry.action == Action::Oom).map_or(0, |entry| entry.address);
        Ok(MemoryInfo { free: Bytes(free), total: Bytes::MAX })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        match self.next_entry() {
            Some(entry) if entry.action == Action::SegmentAlloc && entry.size == size.0 => Ok(DeviceAddress(entry.address)),
            // A segment of another size, or none where the core has already left the recording: the observer reports it.
            Some(entry) if !matches!(entry.action, Action::SegmentAlloc | Action::Alloc) => {
                self.position.refusals.set(self.position.refusals.get() + 1);
                Err(BackendError::OutOfMemory { requested: size })
            }
            _ => {
                let address = self.elsewhere;
                let end = size.0.checked_next_multiple_of(2 << 20).and_then(|length| address.checked_add(length));
                self.elsewhere = end.ok_or(BackendError::OutOfMemory { requested: size })?;
                Ok(DeviceAddress(address))
            }
        }
    }

    fn free(&mut self, _: DeviceAddress) -> Result<(), BackendError> {
        Ok(())
    }

    fn create_event(&mut self) -> Result<usize, BackendError> {
        Ok(usize::MAX)
    }

    /// The stream that a replay records on a block is made of the entry at which the block became free.
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

/// The first stream handle used for blocks that other streams used: the recording does not say which streams these were, only
/// when they were done. Each such block gets a stream of its own, and the streams are in the order in which the blocks became
/// free, which is the order in which the core polls them.
const COMPLETIONS: u64 = 0xffff_fff0_0000_0000;

/// The stream to record on a block that becomes free at an entry, or never.
pub(super) fn stream_of(completed_at: Option<u32>) -> StreamId {
    StreamId(COMPLETIONS + completed_at.map_or(u64::from(u32::MAX), u64::from))
}

fn completion_of(stream: StreamId) -> usize {
    match stream.0 - COMPLETIONS {
        entry if entry < u64::from(u32::MAX) => entry as usize,
        _ => usize::MAX,
    }
}
