//! A user-defined device with 64 KiB pages and no virtual memory, and the entire suite on it.
//!
//! Work takes effect as soon as it is queued, and the stream is then busy for a while. A stream and an event are therefore
//! represented by the time at which work ends. Memory is a list of writes: the newest write to a byte determines its value.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_conformance::backend::{Backend, DeviceFacts, Holdings, Needs, TestDevice, Unable};

const MEMORY: u64 = 4 << 30;
const STREAMS: [StreamId; 4] = [StreamId::DEFAULT, StreamId(1), StreamId(2), StreamId(3)];
const FACTS: DeviceFacts = DeviceFacts {
    page: Bytes(64 << 10),
    sharing: None,
    has_virtual_memory: false,
    remaps_pages: false, // A range is contiguous, so free memory can be too fragmented for it.
    source: "the code of this device",
    ..DeviceFacts::H200 // The result codes, and which calls wait.
};
const INVALID: BackendError = BackendError::Driver { call: "memory", code: FACTS.codes.invalid_value };
const NO_STREAM: BackendError = BackendError::Driver { call: "stream", code: FACTS.codes.invalid_handle };
type Done = Result<(), BackendError>;

struct Host;
#[rustfmt::skip]
impl Backend for Host {
    type Device = HostDevice;
    fn name(&self) -> &'static str { "host" }
    fn facts(&self) -> DeviceFacts { FACTS }
    fn open(&self, needs: &Needs) -> Result<HostDevice, Unable> {
        let capacity = needs.capacity.map_or(MEMORY, Bytes::get).min(MEMORY);
        Ok(HostDevice { capacity, others: 0, ranges: BTreeMap::new(), ends: [Instant::now(); 4], events: 0 })
    }
}

struct HostDevice {
    capacity: u64,
    others: u64,                  // Bytes that others hold.
    ranges: BTreeMap<u64, Range>, // Ranges by start address.
    ends: [Instant; 4],           // The times at which each stream's work ends.
    events: usize,
}
/// Its size, and the writes to it: start, end and word.
type Range = (u64, Vec<(u64, u64, u32)>);

#[rustfmt::skip]
impl HostDevice {
    fn free_bytes(&self) -> u64 {
        (self.capacity - self.ranges.values().map(|(size, _)| size).sum::<u64>()).saturating_sub(self.others)
    }
    fn end(&mut self, stream: StreamId) -> Result<&mut Instant, BackendError> {
        STREAMS.iter().position(|&own| own == stream).map(|place| &mut self.ends[place]).ok_or(NO_STREAM)
    }
    fn sleep_until(end: Instant) { std::thread::sleep(end.saturating_duration_since(Instant::now())); }
    /// Returns the writes to the range that contains these bytes.
    fn writes(&mut self, address: DeviceAddress, size: u64) -> Result<&mut Vec<(u64, u64, u32)>, BackendError> {
        let (start, (whole, writes)) = self.ranges.range_mut(..=address.get()).next_back().ok_or(INVALID)?;
        if address.get() + size <= start + *whole { Ok(writes) } else { Err(INVALID) }
    }
    fn write(&mut self, at: u64, size: u64, word: u32) -> Done {
        let writes = self.writes(DeviceAddress(at), size)?;
        writes.retain(|&(from, to, _)| from < at || at + size < to);
        writes.push((at, at + size, word));
        Ok(())
    }
}

#[rustfmt::skip]
impl DeviceBackend for HostDevice {
    type Event = Option<Instant>; // `None` before the first record.
    type Physical = ();
    fn index(&self) -> u32 { 0 }
    fn total_memory(&self) -> Bytes { Bytes(self.capacity) }
    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        Ok(MemoryInfo { free: Bytes(self.free_bytes()), total: Bytes(self.capacity) })
    }
    fn malloc(&mut self, requested: Bytes) -> Result<DeviceAddress, BackendError> {
        let (page, no_room) = (FACTS.page.get(), BackendError::OutOfMemory { requested });
        let size = requested.checked_round_up(FACTS.page).ok_or(no_room)?.get();
        if size == 0 { return Err(INVALID); }
        if size > self.free_bytes() { return Err(no_room); }
        // Finds the lowest gap that is large enough. Nothing starts at address zero.
        let after = |start, (&next, &(taken, _)): (&u64, &Range)| if start + size <= next { start } else { next + taken };
        let start = self.ranges.iter().fold(page, after);
        if start + size > page + self.capacity { return Err(no_room); }
        self.ranges.insert(start, (size, Vec::new()));
        Ok(DeviceAddress(start))
    }
    fn free(&mut self, address: DeviceAddress) -> Done {
        self.settle(); // The allocator expects this wait, because its own stream may still use the range.
        self.ranges.remove(&address.get()).map(drop).ok_or(INVALID)
    }
    fn synchronize_stream(&mut self, stream: StreamId) -> Done { self.end(stream).map(|end| HostDevice::sleep_until(*end)) }
    fn create_event(&mut self) -> Result<Option<Instant>, BackendError> { self.events += 1; Ok(None) }
    fn record_event(&mut self, event: &mut Option<Instant>, stream: StreamId) -> Done {
        self.end(stream).map(|end| *event = Some(*end))
    }
    fn is_complete(&mut self, event: &Option<Instant>) -> Result<bool, BackendError> {
        Ok(event.is_none_or(|end| end <= Instant::now()))
    }
    fn wait(&mut self, event: &Option<Instant>) -> Done { event.iter().for_each(|end| HostDevice::sleep_until(*end)); Ok(()) }
    fn stream_wait(&mut self, stream: StreamId, event: &Option<Instant>) -> Done {
        self.end(stream).map(|end| *end = event.map_or(*end, |event| event.max(*end)))
    }
    fn destroy_event(&mut self, _: Option<Instant>) { self.events -= 1; }
}

#[rustfmt::skip]
impl TestDevice for HostDevice {
    fn streams(&self) -> [StreamId; 4] { STREAMS }
    fn spin(&mut self, stream: StreamId, duration_ns: u64) -> Done {
        self.end(stream).map(|end| *end = Instant::now().max(*end) + Duration::from_nanos(duration_ns))
    }
    fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Done {
        self.end(stream)?;
        self.write(address.get(), size.get(), word)
    }
    fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Done {
        self.end(stream)?;
        let (first, last) = (from.get(), from.get() + size.get());
        let copied = self.writes(from, size.get())?.clone();
        self.write(to.get(), size.get(), 0)?;
        for (start, end, word) in copied.into_iter().filter(|&(start, end, _)| start < last && first < end) {
            self.write(to.get() + start.max(first) - first, end.min(last) - start.max(first), word)?;
        }
        Ok(())
    }
    fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Done {
        into.fill(0);
        let (low, high) = (address.get(), address.get() + into.len() as u64);
        let bytes = self.writes(address, high - low)?.iter().flat_map(|w| (w.0.max(low)..w.1.min(high)).map(move |at| (at, w.2)));
        bytes.for_each(|(at, word)| into[(at - low) as usize] = word.to_le_bytes()[at as usize % 4]); // The newest write wins.
        Ok(())
    }
    fn live_ranges(&self) -> Vec<(DeviceAddress, Bytes)> {
        self.ranges.iter().map(|(&start, &(size, _))| (DeviceAddress(start), Bytes(size))).collect()
    }
    fn holdings(&self) -> Holdings { Holdings { ranges: self.ranges.len(), events: self.events, ..Holdings::default() } }
    fn others_hold(&mut self, bytes: Bytes) -> Done { self.others = bytes.get(); Ok(()) }
}

fn main() -> ExitCode {
    parkade_conformance::main(Host)
}
