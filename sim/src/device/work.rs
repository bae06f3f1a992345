//! Work that a program submits to the device: streams, kernels that declare which memory they access, fills, copies,
//! reads by the host, and graph captures.
//!
//! This work is not the allocator's: it does not appear in the call counts or the log, and costs the host only the
//! time spent waiting. Streams do not wait for stream 0. CUDA's legacy default stream synchronizes only with blocking
//! streams, and these streams are non-blocking, so stream 0 is a stream like any other.
//!
//! Contents change in program order, at the time of the call: a read returns what earlier calls wrote, even if the
//! work is still running according to the clock. [`SimDevice::races`] shows whether real hardware could have returned
//! different data.

use std::borrow::Cow;

use parkade::device::GraphNode;
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::SimDevice;
use crate::memory::{ByteRange, PAGE_BYTES, PageId, PageRun, Stretch, bytes_of};
use crate::race::{Access, AccessError, AccessKind, Kernel, PhysicalAccess, Race, Span};
use crate::streams::SimEvent;

/// Streams.
impl SimDevice {
    /// Creates a non-blocking stream (cudaStreamCreateWithFlags). Handles are 0x1000, 0x2000 and so on; none is
    /// returned twice, and handles in use are skipped. A handle that was not created here becomes a stream when it is
    /// first used.
    pub fn create_stream(&mut self) -> StreamId {
        StreamId(self.streams.create())
    }

    /// Destroys a stream (cudaStreamDestroy). Does not wait; queued work still runs. Using the handle again starts a
    /// new stream.
    pub fn destroy_stream(&mut self, stream: StreamId) {
        self.streams.destroy(stream.get(), self.clock.now_ns());
    }

    /// Makes a stream wait (cudaStreamWaitEvent): work that is queued on it from now on starts only after the work
    /// before the event's latest recording. An event that has never been recorded causes no wait. The host does not
    /// wait.
    pub fn stream_wait(&mut self, stream: StreamId, event: &SimEvent) {
        if let Some(mark) = event.mark() {
            self.streams.wait(stream.get(), mark);
        }
        if let (Some(races), Some(order)) = (&mut self.races, event.order()) {
            races.stream_waits(stream.get(), order);
        }
    }
}

/// Work.
impl SimDevice {
    /// Makes the host wait until a stream is idle, as a program does with cudaStreamSynchronize.
    pub fn wait_for(&mut self, stream: StreamId) {
        let idle_at_ns = self.streams.stream_idle_at_ns(stream.get());
        self.clock.advance(idle_at_ns.saturating_sub(self.clock.now_ns()));
        self.finish_stream(stream.get());
    }

    /// Queues a kernel that accesses no memory. It starts when the stream's earlier work ends.
    pub fn spin(&mut self, stream: StreamId, duration_ns: u64) {
        self.queue(stream, duration_ns, Cow::Borrowed("spin"), &[]);
    }

    /// Queues a kernel. The data it writes is unknown and reads as [`UNWRITTEN`](crate::UNWRITTEN).
    ///
    /// # Errors
    /// One of the accesses is illegal; nothing is queued in that case. (A real device would report it later.)
    pub fn kernel(&mut self, kernel: Kernel) -> Result<(), AccessError> {
        let touched = kernel.accesses.iter().map(|&access| self.touch(access)).collect::<Result<Vec<_>, _>>()?;
        for written in touched.iter().filter(|touched| touched.access.kind == AccessKind::Write) {
            self.memory
                .contents_mut()
                .put(&written.ranges, &[Stretch { start: 0, end: written.access.size.get(), pattern: None }]);
        }
        self.queue(kernel.stream, kernel.duration_ns, kernel.label, &touched);
        Ok(())
    }

    /// Queues a fill with a 32-bit word (cuMemsetD32Async). It takes no time on the clock.
    ///
    /// # Errors
    /// The write is illegal, or the address or size is not a multiple of 4 bytes; nothing is queued in that case.
    pub fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), AccessError> {
        if !address.get().is_multiple_of(4) || !size.get().is_multiple_of(4) {
            return Err(AccessError::NotWords);
        }
        let written = self.touch(Access::write(address, size))?;
        let stretch = Stretch { start: 0, end: size.get(), pattern: Some(word.to_le_bytes()) };
        self.memory.contents_mut().put(&written.ranges, &[stretch]);
        self.queue(stream, 0, Cow::Borrowed("fill"), &[written]);
        Ok(())
    }

    /// Queues a copy within the device (cudaMemcpyAsync). It takes no time on the clock. If the two ranges overlap,
    /// the copy reads all bytes before it writes any.
    ///
    /// # Errors
    /// The read or the write is illegal; nothing is queued in that case.
    pub fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), AccessError> {
        let read = self.touch(Access::read(from, size))?;
        let written = self.touch(Access::write(to, size))?;
        let data = self.memory.contents().get(&read.ranges);
        self.memory.contents_mut().put(&written.ranges, &data);
        self.queue(stream, 0, Cow::Borrowed("copy"), &[read, written]);
        Ok(())
    }

    /// Copies bytes to the host (cudaMemcpy on stream 0), and waits only for work on stream 0. Bytes that have not been
    /// written since their memory was taken read as [`UNWRITTEN`](crate::UNWRITTEN).
    ///
    /// # Errors
    /// The read is illegal; in that case, the call does not wait, and `into` is unchanged.
    pub fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), AccessError> {
        let read = self.touch(Access::read(address, Bytes(into.len() as u64)))?;
        self.wait_for(StreamId::DEFAULT);
        if let Some(races) = &mut self.races {
            races.read_by_host(&read, self.clock.now_ns());
        }
        self.memory.contents().get(&read.ranges).iter().for_each(|stretch| stretch.write_to(into));
        Ok(())
    }

    fn touch(&self, access: Access) -> Result<PhysicalAccess, AccessError> {
        self.bytes_behind(access.address, access.size).map(|ranges| PhysicalAccess { access, ranges })
    }

    fn queue(&mut self, stream: StreamId, duration_ns: u64, label: Cow<'static, str>, touched: &[PhysicalAccess]) {
        let (start_ns, end_ns) = self.streams.launch(stream.get(), duration_ns, self.clock.now_ns());
        if touched.iter().any(|touched| !touched.ranges.is_empty()) {
            self.races.get_or_insert_default().launched(stream, label, Span { start_ns, end_ns }, touched);
        }
    }
}

/// Races.
impl SimDevice {
    /// Returns the first 100 races, in the order in which they were found. [`Race`] defines a race.
    #[must_use]
    pub fn races(&self) -> &[Race] {
        self.races.as_ref().map_or(&[], |races| races.found())
    }

    /// Returns how many races were found beyond those that [`SimDevice::races`] returns.
    #[must_use]
    pub fn more_races(&self) -> u64 {
        self.races.as_ref().map_or(0, |races| races.more())
    }
}

/// Graph captures as the program makes them: the graph nodes that the driver would create for work and waits while
/// streams are captured.
///
/// They take no time and appear in no log, because nothing runs during a capture.
impl SimDevice {
    /// Begins the capture of a graph on a stream. Returns the capture's number, counted from 1.
    pub fn begin_capture(&mut self, stream: StreamId) -> u64 {
        self.captures.begin(stream.get())
    }

    /// Ends the stream's capture on all streams that take part in it. Does nothing if the stream takes part in no
    /// capture.
    pub fn end_capture(&mut self, stream: StreamId) {
        self.captures.end(stream.get());
    }

    /// Returns whether the stream takes part in a capture.
    #[must_use]
    pub fn is_captured(&self, stream: StreamId) -> bool {
        self.captures.of(stream.get()).is_some()
    }

    /// Submits work to a captured stream: adds a node to the graph that waits for all work submitted to the stream so
    /// far. Returns `None` if the stream is not captured.
    pub fn capture_work(&mut self, stream: StreamId) -> Option<GraphNode> {
        self.captures.work(stream.get())
    }

    /// Makes future work on `stream` wait for all work submitted to `other` so far. From then on, `stream` takes part
    /// in the capture of `other`. Returns false and does nothing if `other` is not captured, or if `stream` takes part
    /// in a different capture.
    #[must_use]
    pub fn capture_wait(&mut self, stream: StreamId, other: StreamId) -> bool {
        self.captures.wait(stream.get(), other.get())
    }
}

/// Maps addresses to physical bytes: the bytes that work on the device accesses, or the reason why it cannot.
impl SimDevice {
    /// Returns the physical page behind an address.
    ///
    /// # Errors
    /// The device may not access the address; on a real GPU, this is an illegal access.
    pub fn page_behind(&self, address: DeviceAddress) -> Result<PageId, AccessError> {
        let ranges = self.bytes_behind(address, Bytes(1))?;
        ranges.first().map(|range| PageId(range.start / PAGE_BYTES)).ok_or(AccessError::NotMapped)
    }

    /// Returns the physical pages of the cudaMalloc, shared page or mapping that covers an address; empty if there is
    /// none.
    #[must_use]
    pub fn pages_at(&self, address: DeviceAddress) -> &[PageRun] {
        self.unit_at(address.get()).map_or(&[], |unit| unit.runs)
    }

    /// Returns the physical bytes behind `size` bytes at an address, which may span several cudaMallocs and mappings.
    /// As on the real device, access is by page: the unused rest of a page that small cudaMallocs share is also
    /// accessible.
    pub(super) fn bytes_behind(&self, address: DeviceAddress, size: Bytes) -> Result<Vec<ByteRange>, AccessError> {
        let mut ranges = Vec::new();
        let mut at = address.get();
        let end = at.checked_add(size.get()).ok_or(AccessError::NotMapped)?;
        while at < end {
            let unit = self.unit_at(at).ok_or(AccessError::NotMapped)?;
            if !unit.has_access {
                return Err(AccessError::NoAccess);
            }
            let until = unit.end().min(end);
            if until <= at {
                return Err(AccessError::NotMapped);
            }
            unit.push_bytes(at, until, &mut ranges);
            at = until;
        }
        Ok(ranges)
    }

    /// Returns the physical bytes that are mapped in a range.
    pub(super) fn bytes_mapped(&self, address: u64, size: u64) -> Vec<ByteRange> {
        let mut ranges = Vec::new();
        let range_end = address.saturating_add(size);
        for start in self.virtual_memory.mappings_in(address, range_end) {
            let mut at = start.max(address);
            let end = self.virtual_memory.mapping_end(start).map_or(at, |end| end.min(range_end));
            while at < end
                && let Some(unit) = self.unit_at(at)
            {
                let until = unit.end().min(end);
                unit.push_bytes(at, until, &mut ranges);
                at = until;
            }
        }
        ranges
    }

    fn unit_at(&self, address: u64) -> Option<Unit<'_>> {
        if let Some((start, _, runs)) = self.placed.covering(address) {
            return Some(Unit { start, runs, has_access: true });
        }
        let backing = self.virtual_memory.backing(address)?;
        Some(Unit { start: backing.start, runs: backing.runs, has_access: backing.has_access })
    }
}

/// A cudaMalloc, a shared page or a mapping: pages at consecutive addresses.
struct Unit<'a> {
    start: u64,
    runs: &'a [PageRun],
    has_access: bool,
}

impl Unit<'_> {
    fn end(&self) -> u64 {
        self.runs.iter().fold(self.start, |end, &run| end.saturating_add(bytes_of(run).1))
    }

    /// Appends the physical bytes behind addresses `from..until`, and joins consecutive ones.
    fn push_bytes(&self, from: u64, until: u64, ranges: &mut Vec<ByteRange>) {
        let mut run_address = self.start;
        for &run in self.runs {
            let (run_start, run_bytes) = bytes_of(run);
            let run_end = run_address.saturating_add(run_bytes);
            let (address, end) = (from.max(run_address), until.min(run_end));
            if address < end {
                let (start, bytes) = (run_start + (address - run_address), end - address);
                match ranges.last_mut() {
                    Some(last) if last.end() == start && last.address + last.bytes == address => last.bytes += bytes,
                    _ => ranges.push(ByteRange { start, bytes, address }),
                }
            }
            run_address = run_end;
        }
    }
}

#[cfg(test)]
mod tests {
    use parkade::device::DeviceBackend;

    use super::*;
    use crate::device::SimOptions;

    #[test]
    fn without_accesses_there_is_no_detector() {
        let mut device = SimDevice::new(SimOptions::new(Bytes::mib(64)));
        let stream = device.create_stream();
        let block = device.malloc(Bytes::mib(4)).unwrap();
        device.spin(stream, 100);
        let mut event = device.create_event().unwrap();
        device.record_event(&mut event, stream).unwrap();
        device.stream_wait(StreamId::DEFAULT, &event);
        device.wait(&event).unwrap();
        device.read(block, &mut [0; 9]).unwrap();
        device.fill(block, Bytes::ZERO, 1, stream).unwrap();
        device.free(block).unwrap();
        assert!(device.races.is_none() && device.memory.contents().is_empty());
        assert_eq!((device.races(), device.more_races()), (&[][..], 0));
    }
}
