//! What a program puts on the device: streams that wait for each other, kernels that say what they touch, fills and copies, and
//! the host's reads.
//!
//! None of it is the allocator's: it is no driver call in the accounts and the log, and costs the host nothing but waiting.
//! Streams do not wait for stream 0: the legacy default stream of CUDA synchronizes with blocking streams only, and these are
//! non-blocking ones, so stream 0 is a stream like any other.
//!
//! Contents change in program order, in the moment of the call: a read shows what the calls before it wrote, though the clock has
//! the work still running. That other data would have been read in a race is what [`SimDevice::races`] says.

use std::borrow::Cow;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::state::SimDevice;
use crate::kernel::{Access, AccessError, AccessKind, Kernel, PhysicalAccess};
use crate::memory::Stretch;
use crate::race::{Race, Span};
use crate::streams::SimEvent;

/// Streams.
impl SimDevice {
    /// Makes a stream (cudaStreamCreateWithFlags, non-blocking). Handles are 0x1000, 0x2000 and so on, without those that are in
    /// use already, since a handle that was not made here becomes a stream when it is first used. None is given out twice.
    pub fn create_stream(&mut self) -> StreamId {
        StreamId(self.streams.create())
    }

    /// Ends a stream (cudaStreamDestroy). Does not wait: what is on it is done in its time. A handle that is used after this is
    /// a new stream's.
    pub fn destroy_stream(&mut self, stream: StreamId) {
        self.streams.destroy(stream.get(), self.clock.now_ns());
    }

    /// Lets a stream wait (cudaStreamWaitEvent): what is put on it from now on begins only after the work before the event's
    /// newest record. An event that was never recorded is waited for by nobody. The host does not wait.
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
    /// Lets the host wait until a stream is idle, as a program does with cudaStreamSynchronize.
    pub fn wait_for(&mut self, stream: StreamId) {
        let idle_at_ns = self.streams.stream_idle_at_ns(stream.get());
        self.clock.advance(idle_at_ns.saturating_sub(self.clock.now_ns()));
        self.finish_stream(stream.get());
    }

    /// Puts a kernel that touches nothing at the end of a stream. It begins when the stream's earlier work ends.
    pub fn spin(&mut self, stream: StreamId, duration_ns: u64) {
        self.queue(stream, duration_ns, Cow::Borrowed("spin"), &[]);
    }

    /// Puts a kernel at the end of a stream. What it writes is not known: it reads as [`UNWRITTEN`](crate::UNWRITTEN).
    ///
    /// # Errors
    /// Where one of the accesses would be illegal; then nothing was put anywhere. (The real device would report it later.)
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

    /// Puts a fill with a word at the end of a stream (cuMemsetD32Async). It takes no time of the clock.
    ///
    /// # Errors
    /// Where it would write illegally, or not whole words.
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

    /// Puts a copy within the device at the end of a stream (cudaMemcpyAsync). It takes no time of the clock. Where both places
    /// overlap, everything is read before anything is written.
    ///
    /// # Errors
    /// Where it would read or write illegally.
    pub fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), AccessError> {
        let read = self.touch(Access::read(from, size))?;
        let written = self.touch(Access::write(to, size))?;
        let data = self.memory.contents().get(&read.ranges);
        self.memory.contents_mut().put(&written.ranges, &data);
        self.queue(stream, 0, Cow::Borrowed("copy"), &[read, written]);
        Ok(())
    }

    /// Copies bytes to the host (cudaMemcpy on stream 0): waits for the work on stream 0, and for no other. Bytes that nobody
    /// wrote since their memory was taken read as [`UNWRITTEN`](crate::UNWRITTEN).
    ///
    /// # Errors
    /// Where it would read illegally; then it did not wait and `into` is as it was.
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
    /// The first 100 races, in the order in which they were found. See [`Race`] for what is one.
    #[must_use]
    pub fn races(&self) -> &[Race] {
        self.races.as_ref().map_or(&[], |races| races.found())
    }

    /// How many more races there were than [`SimDevice::races`] shows.
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
