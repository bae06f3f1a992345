//! Work on the device: streams, timed kernels, fills, copies and reads. The allocator needs none of it; tests
//! do.

use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::cuda_device::CudaDevice;
use crate::driver::{CudaEvent, INVALID_HANDLE, Spin, Stream};
use crate::error::DriverError;

impl CudaDevice {
    /// Creates a non-blocking stream. Its id is the driver's handle.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn create_stream(&mut self) -> Result<StreamId, DriverError> {
        let stream = Stream::create(&self.context)?;
        let id = StreamId(stream.number());
        self.streams.insert(id, stream);
        Ok(id)
    }

    /// Destroys a stream. Work queued on it still runs.
    ///
    /// # Errors
    /// If the stream is not this device's.
    pub fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DriverError> {
        let unknown = DriverError { call: "cuStreamDestroy_v2", code: INVALID_HANDLE };
        self.streams.remove(&stream).map(drop).ok_or(unknown)
    }

    /// Waits for all work of this process on the device.
    ///
    /// # Errors
    /// If the driver call fails, which includes errors of work that was queued before.
    pub fn synchronize(&mut self) -> Result<(), DriverError> {
        self.context.synchronize()
    }

    /// Makes a stream's later work wait for the work before the event's newest record. The host does not wait.
    ///
    /// # Errors
    /// If the stream is not this device's, or the driver call fails.
    pub fn stream_wait(&mut self, stream: StreamId, event: &CudaEvent) -> Result<(), DriverError> {
        event.hold_back(&self.context, self.stream("cuStreamWaitEvent", stream)?)
    }

    /// Queues a kernel that keeps one thread of the device busy for at least this time and touches no memory.
    /// The first launch also loads the kernel, which may wait for running work.
    ///
    /// # Errors
    /// If the stream is not this device's, the time is above [`LONGEST_SPIN_NS`](crate::LONGEST_SPIN_NS), or
    /// a driver call fails.
    pub fn spin(&mut self, stream: StreamId, duration_ns: u64) -> Result<(), DriverError> {
        let call = "cuLaunchKernel";
        self.stream(call, stream)?;
        if self.spin.is_none() {
            self.spin = Some(Spin::load(&self.context)?);
        }
        let stream = self.stream(call, stream)?;
        self.spin.as_ref().map_or(Ok(()), |spin| spin.launch(duration_ns, stream))
    }

    /// Queues a fill of `size` bytes with a 32-bit word. The address must be a multiple of 4. Bytes after the
    /// last whole word stay as they are.
    ///
    /// # Errors
    /// If the bytes are neither in one range of this device nor mapped with access in one of its
    /// reservations, the stream is not this device's, or the driver call fails.
    pub fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), DriverError> {
        let call = "cuMemsetD32Async";
        let stream = self.stream(call, stream)?;
        self.span(call, address, size)?.fill(word, stream)
    }

    /// Queues a copy of `size` bytes on the device. If the two ranges overlap, the contents of the overlap
    /// are unspecified.
    ///
    /// # Errors
    /// As for [`CudaDevice::fill`], for both ranges.
    pub fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoDAsync_v2";
        let stream = self.stream(call, stream)?;
        self.span(call, to, size)?.copy_from(&self.span(call, from, size)?, stream)
    }

    /// Copies memory to the host, after the default stream's work. Other streams are not waited for.
    ///
    /// # Errors
    /// If the bytes are neither in one range of this device nor mapped with access in one of its
    /// reservations, or the driver call fails.
    pub fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DriverError> {
        self.span("cuMemcpyDtoH_v2", address, Bytes(into.len() as u64))?.read(into)
    }
}
