//! A device wrapper that records the allocator's calls, the device's answers, and where it puts things.
//!
//! It can also make events independent of the device's speed: it then waits for all work before it queries an event.

use std::collections::BTreeSet;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::CallName;

use crate::backend::{AnyDevice, AnyEvent, AnyPhysical, TestDevice};

/// A call about memory, addresses or events, and its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    /// Which call.
    pub(super) call: CallName,
    /// Its size, if it has one.
    pub(super) bytes: u64,
    /// The address, for calls that free, map, set access, unmap or unreserve.
    pub(super) address: Option<u64>,
    /// Its outcome; for a query, whether the event is complete.
    pub(super) result: Result<bool, BackendError>,
}

/// A device and the record of its calls.
#[derive(Debug)]
pub(super) struct Recorder {
    device: AnyDevice,
    settles: bool,
    answers: Vec<Answer>,
    segments: Vec<u64>,
    reservations: Vec<u64>,
}

impl Recorder {
    /// Wraps a device. With `settles`, all work finishes before events are queried.
    pub(super) fn new(device: AnyDevice, settles: bool) -> Recorder {
        Recorder { device, settles, answers: Vec::new(), segments: Vec::new(), reservations: Vec::new() }
    }

    /// The device itself.
    pub(super) fn device(&mut self) -> &mut AnyDevice {
        &mut self.device
    }

    /// Takes the record so far: every answer, the addresses of segments, and those of reservations.
    pub(super) fn take_notes(&mut self) -> (Vec<Answer>, Vec<u64>, Vec<u64>) {
        let taken = (&mut self.answers, &mut self.segments, &mut self.reservations);
        (std::mem::take(taken.0), std::mem::take(taken.1), std::mem::take(taken.2))
    }

    fn note<T>(&mut self, call: CallName, bytes: Bytes, address: Option<DeviceAddress>, result: &Result<T, BackendError>) {
        let result = result.as_ref().map(|_| true).map_err(|error| *error);
        self.answers.push(Answer { call, bytes: bytes.get(), address: address.map(DeviceAddress::get), result });
    }
}

impl DeviceBackend for Recorder {
    type Event = AnyEvent;
    type Physical = AnyPhysical;

    fn index(&self) -> u32 {
        self.device.index()
    }

    fn total_memory(&self) -> Bytes {
        self.device.total_memory()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        self.device.memory_info()
    }

    fn processes(&mut self) -> Vec<ProcessMemory> {
        Vec::new()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let result = self.device.malloc(size);
        self.note(CallName::Malloc, size, None, &result);
        self.segments.extend(result.iter().map(|address| address.get()));
        result
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        let result = self.device.free(address);
        self.note(CallName::Free, Bytes::ZERO, Some(address), &result);
        result
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let result = self.device.reserve(size);
        self.note(CallName::AddressReserve, size, None, &result);
        self.reservations.extend(result.iter().map(|address| address.get()));
        result
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let result = self.device.unreserve(address, size);
        self.note(CallName::AddressFree, size, Some(address), &result);
        result
    }

    fn create(&mut self, size: Bytes) -> Result<AnyPhysical, BackendError> {
        let result = self.device.create(size);
        self.note(CallName::MemCreate, size, None, &result);
        result
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &AnyPhysical) -> Result<(), BackendError> {
        let result = self.device.map(address, size, memory);
        self.note(CallName::MemMap, size, Some(address), &result);
        result
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let result = self.device.set_access(address, size);
        self.note(CallName::MemSetAccess, size, Some(address), &result);
        result
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let result = self.device.unmap(address, size);
        self.note(CallName::MemUnmap, size, Some(address), &result);
        result
    }

    fn release(&mut self, memory: AnyPhysical) -> Result<(), (AnyPhysical, BackendError)> {
        let result = self.device.release(memory);
        let noted = result.as_ref().map_err(|(_, error)| *error);
        self.note(CallName::MemRelease, Bytes::ZERO, None, &noted);
        result
    }

    fn breaks_handles(&self) -> bool {
        self.device.breaks_handles()
    }

    /// Noted as the call that unmaps the handle: how many calls follow is the device's matter.
    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: AnyPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<AnyPhysical>, (AnyPhysical, BackendError)> {
        let result = self.device.break_handle(address, size, memory, parts);
        let noted = result.as_ref().map_err(|(_, error)| *error);
        self.note(CallName::MemUnmap, size, Some(address), &noted);
        result
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        let result = self.device.synchronize_stream(stream);
        self.note(CallName::StreamSynchronize, Bytes::ZERO, None, &result);
        result
    }

    fn create_event(&mut self) -> Result<AnyEvent, BackendError> {
        let result = self.device.create_event();
        self.note(CallName::EventCreate, Bytes::ZERO, None, &result);
        result
    }

    fn record_event(&mut self, event: &mut AnyEvent, stream: StreamId) -> Result<(), BackendError> {
        let result = self.device.record_event(event, stream);
        self.note(CallName::EventRecord, Bytes::ZERO, None, &result);
        result
    }

    fn stream_wait(&mut self, stream: StreamId, event: &AnyEvent) -> Result<(), BackendError> {
        let result = self.device.stream_wait(stream, event);
        self.note(CallName::StreamWaitEvent, Bytes::ZERO, None, &result);
        result
    }

    fn is_complete(&mut self, event: &AnyEvent) -> Result<bool, BackendError> {
        if self.settles {
            self.device.settle();
        }
        let result = self.device.is_complete(event);
        self.answers.push(Answer { call: CallName::EventQuery, bytes: 0, address: None, result });
        result
    }

    fn wait(&mut self, event: &AnyEvent) -> Result<(), BackendError> {
        let result = self.device.wait(event);
        self.note(CallName::EventSynchronize, Bytes::ZERO, None, &result);
        result
    }

    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        self.device.capture(stream)
    }

    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError> {
        self.device.add_awaited(stream, awaited)
    }

    fn destroy_event(&mut self, event: AnyEvent) {
        self.device.destroy_event(event);
    }
}
