//! Work on the device: streams, timed kernels, fills, copies and reads. The allocator needs none of these; tests do.
//!
//! Copies to host memory cannot fail silently: they never read outside the device's memory, and a lack of host memory
//! is an error.

use parkade::units::{Bytes, DeviceAddress, StreamId};
use thiserror::Error;

use super::CudaDevice;
use crate::driver::{CudaEvent, DriverError, INVALID_HANDLE, Spin, Stream};

impl CudaDevice {
    /// Creates a non-blocking stream. Its id is the driver's handle.
    ///
    /// # Errors
    /// The driver call fails.
    pub fn create_stream(&mut self) -> Result<StreamId, DriverError> {
        let stream = Stream::create(&self.context)?;
        let id = StreamId(stream.number());
        self.streams.insert(id, stream);
        Ok(id)
    }

    /// Destroys a stream. Work that is queued on it still runs.
    ///
    /// # Errors
    /// The stream does not belong to this device.
    pub fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DriverError> {
        let unknown = DriverError { call: "cuStreamDestroy_v2", code: INVALID_HANDLE };
        self.streams.remove(&stream).map(drop).ok_or(unknown)
    }

    /// Waits for all of this process's work on the device.
    ///
    /// # Errors
    /// The driver call fails; this includes errors from work that was queued earlier.
    pub fn synchronize(&mut self) -> Result<(), DriverError> {
        self.context.synchronize()
    }

    /// Makes a stream's future work wait for the work before the event's latest recording. The host does not wait.
    ///
    /// # Errors
    /// The stream does not belong to this device, or the driver call fails.
    pub fn stream_wait(&mut self, stream: StreamId, event: &CudaEvent) -> Result<(), DriverError> {
        event.hold_back(&self.context, self.stream("cuStreamWaitEvent", stream)?)
    }

    /// Queues a kernel that keeps one thread of the device busy for at least this time and accesses no memory. The
    /// first launch also loads the kernel, which may wait for running work.
    ///
    /// # Errors
    /// The stream does not belong to this device, the time is above [`LONGEST_SPIN_NS`](crate::LONGEST_SPIN_NS), or a
    /// driver call fails.
    pub fn spin(&mut self, stream: StreamId, duration_ns: u64) -> Result<(), DriverError> {
        let call = "cuLaunchKernel";
        self.stream(call, stream)?;
        if self.spin.is_none() {
            self.spin = Some(Spin::load(&self.context)?);
        }
        let stream = self.stream(call, stream)?;
        self.spin.as_ref().map_or(Ok(()), |spin| spin.launch(duration_ns, stream))
    }

    /// Queues a fill of `size` bytes with a 32-bit word. The address must be a multiple of 4. Bytes after the last
    /// whole word do not change.
    ///
    /// # Errors
    /// The bytes are neither in one range of this device nor mapped with access in one of its reservations, the
    /// stream does not belong to this device, or the driver call fails.
    pub fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), DriverError> {
        let call = "cuMemsetD32Async";
        let stream = self.stream(call, stream)?;
        self.span(call, address, size)?.fill(word, stream)
    }

    /// Queues a copy of `size` bytes on the device. If the two ranges overlap, the contents of the overlap
    /// are unspecified.
    ///
    /// # Errors
    /// The errors of [`CudaDevice::fill`], for both ranges.
    pub fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), DriverError> {
        let call = "cuMemcpyDtoDAsync_v2";
        let stream = self.stream(call, stream)?;
        self.span(call, to, size)?.copy_from(&self.span(call, from, size)?, stream)
    }

    /// Copies memory to the host, after the default stream's work. Does not wait for other streams.
    ///
    /// # Errors
    /// The bytes are neither in one range of this device nor mapped with access in one of its reservations, or the
    /// driver call fails.
    pub fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DriverError> {
        self.span("cuMemcpyDtoH_v2", address, Bytes(into.len() as u64))?.read(into)
    }
}

/// The number of bytes that one driver call copies: enough to make the call's own cost negligible, but few enough to
/// let other threads make calls in between.
const CHUNK_BYTES: usize = 64 << 20;

/// Device memory could not be copied to the host.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum HostCopyError {
    /// The host has no room for the copy.
    #[error("the host has no room for a copy of {requested} bytes: copy the memory in parts, or write it to a file as you go")]
    NoHostMemory {
        /// The copy's size.
        requested: Bytes,
    },
    /// The bytes are not in one range of the device, or the driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl CudaDevice {
    /// Copies device memory into a new vector, after the default stream's work. Does not wait for other streams.
    ///
    /// The end of the range is checked before host memory is allocated, so a wrong size costs nothing. The host memory
    /// is then allocated in one piece, and a failure is an error, not an abort.
    ///
    /// # Errors
    /// The bytes are not in one range of this device, the host has no room, or the driver call fails. Nothing remains
    /// allocated in that case.
    pub fn read_to_vec(&mut self, address: DeviceAddress, size: Bytes) -> Result<Vec<u8>, HostCopyError> {
        copy(size, CHUNK_BYTES, |offset, into| self.read(DeviceAddress(address.get().saturating_add(offset)), into))
    }
}

/// Copies `size` bytes in chunks, and calls `read` with the offset of each chunk.
fn copy<R>(size: Bytes, chunk_bytes: usize, mut read: R) -> Result<Vec<u8>, HostCopyError>
where
    R: FnMut(u64, &mut [u8]) -> Result<(), DriverError>,
{
    if let Some(last) = size.get().checked_sub(1) {
        read(last, &mut [0])?;
    }
    // If the size does not fit, the reservation below fails.
    let bytes = usize::try_from(size.get()).unwrap_or(usize::MAX);
    let mut copied = Vec::new();
    copied.try_reserve_exact(bytes).map_err(|_| HostCopyError::NoHostMemory { requested: size })?;
    while copied.len() < bytes {
        let start = copied.len();
        copied.resize(start + chunk_bytes.min(bytes - start), 0);
        read(start as u64, &mut copied[start..])?;
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: DriverError = DriverError { call: "cuMemcpyDtoH_v2", code: 1 };

    /// Reads from a fake device whose only range has these bytes.
    fn reader(memory: &[u8]) -> impl FnMut(u64, &mut [u8]) -> Result<(), DriverError> {
        move |offset, into| {
            let start = usize::try_from(offset).map_err(|_| REFUSED)?;
            let end = start.checked_add(into.len()).ok_or(REFUSED)?;
            into.copy_from_slice(memory.get(start..end).ok_or(REFUSED)?);
            Ok(())
        }
    }

    #[test]
    fn every_byte_arrives_for_any_chunk_size() {
        let memory: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for chunk_bytes in [1, 7, 500, 999, 1000, 4096] {
            assert_eq!(copy(Bytes(1000), chunk_bytes, reader(&memory)).as_ref(), Ok(&memory), "chunks of {chunk_bytes}");
        }
        assert_eq!(copy(Bytes(0), 7, reader(&memory)), Ok(Vec::new()));
    }

    #[test]
    fn a_wrong_size_costs_no_host_memory() {
        let memory = [1; 1000];
        for size in [1001, 1 << 60, u64::MAX] {
            let mut calls = 0;
            let mut read = reader(&memory);
            let refused = copy(Bytes(size), 64, |offset, into| {
                calls += 1;
                read(offset, into)
            });
            assert_eq!((refused, calls), (Err(HostCopyError::Driver(REFUSED)), 1), "{size} bytes");
        }
    }

    #[test]
    fn too_little_host_memory_is_an_error() {
        let requested = Bytes(u64::MAX);
        assert_eq!(copy(requested, 64, |_, _| Ok(())), Err(HostCopyError::NoHostMemory { requested }));
    }

    #[test]
    fn a_later_failure_is_reported() {
        let mut calls = 0;
        let outcome = copy(Bytes(100), 10, |_, _| {
            calls += 1;
            if calls == 5 { Err(REFUSED) } else { Ok(()) }
        });
        assert_eq!((outcome, calls), (Err(HostCopyError::Driver(REFUSED)), 5));
    }
}
