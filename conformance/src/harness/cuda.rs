//! The CUDA device as the suite drives it: with streams of its own, and a ballast that leaves it as much memory as a test wants.

use std::time::Duration;

use parkade::device::{BackendError, DeviceBackend, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_gpu::{CudaDevice, CudaEvent, CudaPhysical};

use super::{Backend, Holdings, Needs, TestDevice, Unable};

/// Free bytes that the driver of an H200 reports and never gives: in all fill-ups of the measurements (facts: Holes).
const WITHHELD: Bytes = Bytes(3_276_800);
/// The page of the device.
const PAGE: u64 = 2 * MIB;
/// The ballast is made of pieces of at most this size.
const PIECE: u64 = 16 << 30;

/// Opens a CUDA device.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    /// Its index.
    pub ordinal: u32,
}

impl Backend for Cuda {
    type Device = Rig;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn open(&self, needs: &Needs) -> Result<Rig, Unable> {
        let unable = |error: &dyn std::fmt::Display| Unable(error.to_string());
        let mut device = CudaDevice::open(self.ordinal).map_err(|error| unable(&error))?;
        let mut streams = [StreamId::DEFAULT; 4];
        for stream in &mut streams[1..] {
            *stream = device.create_stream().map_err(|error| unable(&error))?;
        }
        warm_up(&mut device, streams[1]).map_err(|error| unable(&error))?;
        let ballast = Ballast::open(self.ordinal).map_err(|error| unable(&error))?;
        let mut rig = Rig { device, streams, ballast };
        if let Some(capacity) = needs.capacity {
            rig.leave(capacity).map_err(|error| Unable(format!("{capacity} bytes cannot be left of the device: {error}")))?;
        }
        Ok(rig)
    }

    fn is_simulated(&self) -> bool {
        false
    }
}

/// Makes calls of every kind once, so that what the driver takes for itself on first use is taken before memory is counted.
fn warm_up(device: &mut CudaDevice, stream: StreamId) -> Result<(), BackendError> {
    device.spin(stream, 1)?;
    let event = device.create_event()?;
    device.destroy_event(event);
    let (page, range, base) = (Bytes(PAGE), device.malloc(Bytes(PAGE))?, device.reserve(Bytes(PAGE))?);
    let memory = device.create(page)?;
    device.map(base, page, &memory)?;
    device.set_access(base, page)?;
    device.fill(base, page, 1, stream)?;
    device.copy(base, range, page, stream)?;
    device.synchronize()?;
    device.read(range, &mut [0; 4])?;
    device.unmap(base, page)?;
    device.release(memory).map_err(|(_, error)| error)?;
    device.unreserve(base, page)?;
    device.free(range)
}

/// Memory held so that a test has less: created, never mapped.
struct Ballast {
    device: CudaDevice,
    base: Vec<CudaPhysical>,
    others: Vec<CudaPhysical>,
}

impl Ballast {
    fn open(ordinal: u32) -> Result<Ballast, parkade_gpu::Unavailable> {
        Ok(Ballast { device: CudaDevice::open(ordinal)?, base: Vec::new(), others: Vec::new() })
    }

    /// Takes so many bytes, rounded down to pages.
    fn take(&mut self, bytes: Bytes) -> Result<Vec<CudaPhysical>, BackendError> {
        let mut taken = Vec::new();
        let mut left = bytes.get() / PAGE * PAGE;
        while left > 0 {
            let piece = left.min(PIECE);
            taken.push(self.device.create(Bytes(piece))?);
            left -= piece;
        }
        Ok(taken)
    }
}

/// A CUDA device with its streams and its ballast.
pub struct Rig {
    device: CudaDevice,
    streams: [StreamId; 4],
    ballast: Ballast,
}

impl Rig {
    /// Takes everything but so many bytes that may be had.
    fn leave(&mut self, capacity: Bytes) -> Result<(), BackendError> {
        let free = self.device.memory_info()?.free.saturating_sub(WITHHELD);
        if free < capacity {
            return Err(BackendError::OutOfMemory { requested: capacity });
        }
        self.ballast.base = self.ballast.take(free.saturating_sub(capacity))?;
        Ok(())
    }

    /// The CUDA device itself.
    pub fn device(&mut self) -> &mut CudaDevice {
        &mut self.device
    }
}

impl TestDevice for Rig {
    fn streams(&self) -> [StreamId; 4] {
        self.streams
    }

    fn spin(&mut self, stream: StreamId, duration_ns: u64) -> Result<(), BackendError> {
        Ok(self.device.spin(stream, duration_ns)?)
    }

    fn stream_wait(&mut self, stream: StreamId, event: &CudaEvent) -> Result<(), BackendError> {
        Ok(self.device.stream_wait(stream, event)?)
    }

    fn fill(&mut self, address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), BackendError> {
        Ok(self.device.fill(address, size, word, stream)?)
    }

    fn copy(&mut self, from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), BackendError> {
        Ok(self.device.copy(from, to, size, stream)?)
    }

    fn read(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), BackendError> {
        Ok(self.device.read(address, into)?)
    }

    fn settle(&mut self) {
        // Work that failed shows in the next call, whatever it is.
        let _ = self.device.synchronize();
    }

    fn pause(&mut self, duration_ns: u64) {
        std::thread::sleep(Duration::from_nanos(duration_ns));
    }

    fn live_ranges(&self) -> Vec<(DeviceAddress, Bytes)> {
        self.device.ranges().collect()
    }

    fn holdings(&self) -> Holdings {
        let held = self.device.holdings();
        let physical = held.handles + held.mappings;
        Holdings { ranges: held.ranges, reservations: held.reservations, physical, events: held.events }
    }

    fn others_hold(&mut self, bytes: Bytes) -> Result<(), BackendError> {
        self.ballast.others.clear();
        let free = self.device.memory_info()?.free.saturating_sub(WITHHELD);
        // As on a simulated device, where others may hold more than there is: then nothing is left.
        self.ballast.others = self.ballast.take(bytes.min(free))?;
        Ok(())
    }

    fn withheld_bytes(&self) -> Bytes {
        WITHHELD
    }
}

impl DeviceBackend for Rig {
    type Event = CudaEvent;
    type Physical = CudaPhysical;

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
        self.device.processes()
    }

    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.device.malloc(size)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError> {
        self.device.free(address)
    }

    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        self.device.reserve(size)
    }

    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.device.unreserve(address, size)
    }

    fn create(&mut self, size: Bytes) -> Result<CudaPhysical, BackendError> {
        self.device.create(size)
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &CudaPhysical) -> Result<(), BackendError> {
        self.device.map(address, size, memory)
    }

    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.device.set_access(address, size)
    }

    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        self.device.unmap(address, size)
    }

    fn release(&mut self, memory: CudaPhysical) -> Result<(), (CudaPhysical, BackendError)> {
        self.device.release(memory)
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        self.device.synchronize_stream(stream)
    }

    fn create_event(&mut self) -> Result<CudaEvent, BackendError> {
        self.device.create_event()
    }

    fn record_event(&mut self, event: &mut CudaEvent, stream: StreamId) -> Result<(), BackendError> {
        self.device.record_event(event, stream)
    }

    fn is_complete(&mut self, event: &CudaEvent) -> Result<bool, BackendError> {
        self.device.is_complete(event)
    }

    fn wait(&mut self, event: &CudaEvent) -> Result<(), BackendError> {
        self.device.wait(event)
    }

    fn destroy_event(&mut self, event: CudaEvent) {
        self.device.destroy_event(event);
    }
}
