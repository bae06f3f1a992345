//! Work that a program puts on the device: streams, kernels that declare what they touch, fills, copies, and
//! reads by the host.
//!
//! None of it belongs to the allocator: it is not in the call counts or the log, and costs the host only the
//! time it waits. Streams do not wait for stream 0. CUDA's legacy default stream synchronizes with blocking
//! streams only; these are non-blocking, so stream 0 is a stream like any other.
//!
//! Contents change in program order, at the moment of the call: a read returns what earlier calls wrote, even
//! if the work is still running by the clock. Whether real hardware could have returned something else is
//! what [`SimDevice::races`] tells.

use std::borrow::Cow;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::state::SimDevice;
use crate::kernel::{Access, AccessError, AccessKind, Kernel, PhysicalAccess};
use crate::memory::Stretch;
use crate::race::{Race, Span};
use crate::streams::SimEvent;

/// Streams.
impl SimDevice {
    /// Creates a non-blocking stream (cudaStreamCreateWithFlags). Handles are 0x1000, 0x2000 and so on; none
    /// is returned twice. A handle that was not created here becomes a stream when it is first used, and
    /// handles in use are skipped.
    pub fn create_stream(&mut self) -> StreamId {
        StreamId(self.streams.create())
    }

    /// Destroys a stream (cudaStreamDestroy). Does not wait: queued work still runs. Using the handle again
    /// starts a new stream.
    pub fn destroy_stream(&mut self, stream: StreamId) {
        self.streams.destroy(stream.get(), self.clock.now_ns());
    }

    /// Makes a stream wait (cudaStreamWaitEvent): work queued on it from now on starts only after the work
    /// before the event's newest record. An event that was never recorded holds nothing up. The host does not
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

    /// Queues a kernel that touches no memory. It starts when the stream's earlier work ends.
    pub fn spin(&mut self, stream: StreamId, duration_ns: u64) {
        self.queue(stream, duration_ns, Cow::Borrowed("spin"), &[]);
    }

    /// Queues a kernel. The data it writes is unknown and reads as [`UNWRITTEN`](crate::UNWRITTEN).
    ///
    /// # Errors
    /// If one of the accesses is illegal; then nothing is queued. (A real device would report it later.)
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
    /// If the write is illegal, or address or size is not a multiple of 4 bytes; then nothing is queued.
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

    /// Queues a copy within the device (cudaMemcpyAsync). It takes no time on the clock. If the two ranges
    /// overlap, everything is read before anything is written.
    ///
    /// # Errors
    /// If the read or the write is illegal; then nothing is queued.
    pub fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), AccessError> {
        let read = self.touch(Access::read(from, size))?;
        let written = self.touch(Access::write(to, size))?;
        let data = self.memory.contents().get(&read.ranges);
        self.memory.contents_mut().put(&written.ranges, &data);
        self.queue(stream, 0, Cow::Borrowed("copy"), &[read, written]);
        Ok(())
    }

    /// Copies bytes to the host (cudaMemcpy on stream 0): waits for work on stream 0 and on no other. Bytes
    /// not written since their memory was taken read as [`UNWRITTEN`](crate::UNWRITTEN).
    ///
    /// # Errors
    /// If the read is illegal; then it does not wait, and `into` is unchanged.
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
    /// The first 100 races, in the order in which they were found. [`Race`] says what counts as one.
    #[must_use]
    pub fn races(&self) -> &[Race] {
        self.races.as_ref().map_or(&[], |races| races.found())
    }

    /// How many races were found beyond those that [`SimDevice::races`] returns.
    #[must_use]
    pub fn more_races(&self) -> u64 {
        self.races.as_ref().map_or(0, |races| races.more())
    }
}

#[cfg(test)]
mod tests {
    use parkade::device::DeviceBackend;

    use super::super::options::SimOptions;
    use super::*;

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
