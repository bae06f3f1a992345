//! Work of the device: streams, declared kernels, and writing, copying and reading memory. For tests, which look at memory from
//! the host; the allocator itself needs none of it.

use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::CudaDevice;
use crate::driver::{CudaEvent, INVALID_HANDLE, Spin, Stream};
use crate::error::DriverError;

impl CudaDevice {
    /// Makes a stream that runs beside the default stream. Its name is the driver's raw handle.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn create_stream(&mut self) -> Result<StreamId, DriverError> {
        let stream = Stream::create(&self.context)?;
        let id = StreamId(stream.number());
        self.streams.insert(id, stream);
        Ok(id)
    }

    /// Gives a stream back; what is queued on it still runs.
    ///
    /// # Errors
    /// If the device did not make the stream, or no longer has it.
    pub fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DriverError> {
        let unknown = DriverError { call: "cuStreamDestroy_v2", code: INVALID_HANDLE };
        self.streams.remove(&stream).map(drop).ok_or(unknown)
    }

    /// Waits until the device has done all work of this process on it.
    ///
    /// # Errors
    /// Whatever the driver says; among it errors of work that was queued before.
    pub fn synchronize(&mut self) -> Result<(), DriverError> {
        self.context.synchronize()
    }

    /// Lets a stream's later work wait for what is before the event in the stream where it was recorded. The host does not wait.
    ///
    /// # Errors
    /// If the stream is unknown, or the driver refuses.
    pub fn stream_wait(&mut self, stream: StreamId, event: &CudaEvent) -> Result<(), DriverError> {
        event.hold_back(self.stream("cuStreamWaitEvent", stream)?)
    }

    /// Puts a kernel at the end of a stream that keeps one thread of the device busy for at least so many nanoseconds and touches
    /// no memory. The first launch also loads the kernel, which may wait for work that is running.
    ///
    /// # Errors
    /// If the stream is unknown, the time is over [`LONGEST_SPIN_NS`](crate::LONGEST_SPIN_NS), or the driver refuses.
    pub fn spin(&mut self, stream: StreamId, duration_ns: u64) -> Result<(), DriverError> {
        let call = "cuLaunchKernel";
        self.stream(call, stream)?;
        if self.spin.is_none() {
            self.spin = Some(Spin::load(&self.context)?);
        }
        let stream = self.stream(call, stream)?;
        self.spin.as_ref().map_or(Ok(()), |spin| spin.launch(duration_ns, stream))
    }

    /// Queues the writing of `word` over `size` bytes, in whole words of 4 bytes, at an address that is a multiple of 4.
    ///
    /// # Errors
    /// If the bytes are not all in one range of this device, or mapped with access in one of its reservations, the stream is
    /// unknown, or the driver refuses.
    pub fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), DriverError> {
        let call = "cuMemsetD32Async";
        let stream = self.stream(call, stream)?;
        self.span(call, address, size)?.fill(word, stream)
    }

    /// Queues copying `size` bytes on the device. What overlaps is left with unspecified contents.
    ///
    /// # Errors
    /// As for [`CudaDevice::fill`], of both places.
    pub fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoDAsync_v2";
        let stream = self.stream(call, stream)?;
        self.span(call, to, size)?.copy_from(&self.span(call, from, size)?, stream)
    }

    /// Copies memory to the host, after the default stream's work; other streams are not waited for.
    ///
    /// # Errors
    /// If the bytes are not all in one range of this device, or mapped with access in one of its reservations, or the driver
    /// refuses.
    pub fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DriverError> {
        self.span("cuMemcpyDtoH_v2", address, Bytes(into.len() as u64))?.read(into)
    }
}
