//! The CUDA device: the core's device trait over the driver.
//!
//! It keeps a list of what is its own, ranges and streams, and answers for anything else without asking the driver: an address
//! given back twice and a made-up stream handle are errors here, where the driver might take them for somebody else's or crash.
//! Dropping a device gives everything back. A device may be moved to and used from any thread; it has one user at a time, as the
//! trait's `&mut self` says.

use std::collections::BTreeMap;
use std::sync::Arc;

use parkade::device::{BackendError, DeviceBackend, MemoryInfo};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::driver::{Context, CudaEvent, INVALID_HANDLE, INVALID_VALUE, Memory, OUT_OF_MEMORY, Stream};
use crate::error::{DriverError, Unavailable};

/// A GPU under NVIDIA's driver.
pub struct CudaDevice {
    ordinal: u32,
    total_memory: Bytes,
    ranges: BTreeMap<DeviceAddress, Memory>,
    streams: BTreeMap<StreamId, Stream>,
    context: Arc<Context>,
}

impl CudaDevice {
    /// Opens the device with this index, in its primary context. Devices opened twice share their memory and their context, not
    /// what they own in it.
    ///
    /// # Errors
    /// Why there is no such device here. It never panics: without a driver the answer is [`Unavailable::NoDriver`].
    pub fn open(ordinal: u32) -> Result<CudaDevice, Unavailable> {
        let context = Context::open(ordinal)?;
        let total_memory = Bytes(context.total_memory_bytes()?);
        Ok(CudaDevice { ordinal, total_memory, ranges: BTreeMap::new(), streams: BTreeMap::new(), context })
    }

    /// The device's name.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn name(&self) -> Result<String, DriverError> {
        self.context.device_name()
    }

    /// The newest CUDA version that the driver knows, as (major, minor).
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn driver_version(&self) -> Result<(i32, i32), DriverError> {
        self.context.driver_version().map(|version| (version / 1000, version % 1000 / 10))
    }

    /// Driver calls made through this device and its events so far.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.context.calls()
    }

    /// How many ranges are taken and not given back.
    #[must_use]
    pub fn live_ranges(&self) -> usize {
        self.ranges.len()
    }

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

    /// Waits until the device has done all work of this process.
    ///
    /// # Errors
    /// Whatever the driver says; among it errors of work that was queued before.
    pub fn synchronize(&mut self) -> Result<(), DriverError> {
        self.context.synchronize()
    }

    /// Queues the writing of `word` over `size` bytes, in whole words of 4 bytes. For tests, which look at memory from the host.
    ///
    /// # Errors
    /// If the bytes are not inside one range of this device, the stream is unknown, or the driver refuses.
    pub fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), DriverError> {
        let call = "cuMemsetD32Async";
        let stream = self.stream(call, stream)?;
        let (memory, offset) = self.range_at(call, address)?;
        memory.fill(offset, size.get(), word, stream)
    }

    /// Copies memory to the host, after the default stream's work; other streams are not waited for. For tests.
    ///
    /// # Errors
    /// If the bytes are not inside one range of this device, or the driver refuses.
    pub fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DriverError> {
        let (memory, offset) = self.range_at("cuMemcpyDtoH_v2", address)?;
        memory.read(offset, into)
    }

    /// The stream of this name: none for the default stream. A name that this device does not know is refused.
    fn stream(&self, call: &'static str, id: StreamId) -> Result<Option<&Stream>, DriverError> {
        if id == StreamId::DEFAULT {
            return Ok(None);
        }
        self.streams.get(&id).map(Some).ok_or(DriverError { call, code: INVALID_HANDLE })
    }

    /// The range that begins at or before the address, and how far into it the address is.
    fn range_at(&self, call: &'static str, address: DeviceAddress) -> Result<(&Memory, u64), DriverError> {
        let (start, memory) = self.ranges.range(..=address).next_back().ok_or(DriverError { call, code: INVALID_VALUE })?;
        Ok((memory, address.get() - start.get()))
    }
}

impl DeviceBackend for CudaDevice {
    type Event = CudaEvent;
    type Physical = ();

    fn index(&self) -> u32 {
        self.ordinal
    }

    fn total_memory(&self) -> Bytes {
        self.total_memory
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError> {
        let (free, total) = self.context.memory_info()?;
        Ok(MemoryInfo { free: Bytes(free), total: Bytes(total) })
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let memory = Memory::take(&self.context, size.get()).map_err(|error| match error.code {
            OUT_OF_MEMORY => BackendError::OutOfMemory { requested: size },
            _ => error.into(),
        })?;
        let address = DeviceAddress(memory.address());
        self.ranges.insert(address, memory);
        Ok(address)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        let unknown = DriverError { call: "cuMemFree_v2", code: INVALID_VALUE };
        self.ranges.get_mut(&address).ok_or(unknown)?.give_back()?;
        self.ranges.remove(&address);
        Ok(())
    }

    fn create_event(&mut self) -> Result<CudaEvent, BackendError> {
        Ok(CudaEvent::create(&self.context)?)
    }

    fn record_event(&mut self, event: &mut CudaEvent, stream: StreamId) -> Result<(), BackendError> {
        let stream = self.stream("cuEventRecord", stream)?;
        Ok(event.record(stream)?)
    }

    fn is_complete(&mut self, event: &CudaEvent) -> Result<bool, BackendError> {
        Ok(event.is_complete()?)
    }

    fn wait(&mut self, event: &CudaEvent) -> Result<(), BackendError> {
        Ok(event.wait()?)
    }

    fn destroy_event(&mut self, event: CudaEvent) {
        drop(event);
    }
}

/// A device may move between threads, and an allocator over it be shared behind a lock.
const _: fn() = || {
    fn sendable<T: Send>() {}
    sendable::<CudaDevice>();
    sendable::<CudaEvent>();
};
