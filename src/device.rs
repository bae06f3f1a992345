//! What the core asks of a device: whole segments, virtual memory, memory information, events.
//!
//! The core owns this trait; the simulated device and the CUDA device implement it. Every method takes `&mut self`: a device has
//! one owner and no locks of its own, sharing is a wrapper's business.

use alloc::vec::Vec;
use core::fmt;

use crate::units::{Bytes, DeviceAddress, StreamId};

/// A device as the allocator sees it.
///
/// Contract, held by the conformance suite on every implementation:
/// - `malloc` returns ranges that do not overlap any range not yet given back, aligned to at least 512 bytes;
/// - after an error of any method nothing has changed on the device;
/// - an event that was reported complete stays complete until it is recorded again.
pub trait DeviceBackend {
    /// An event: a mark in a stream's queue of work. Dropped only through [`DeviceBackend::destroy_event`].
    type Event;

    /// Memory that was created and may be mapped to addresses. Given back only through [`DeviceBackend::release`].
    type Physical;

    /// True if no stream's oldest event can be done while that of a stream with a lower handle is not. Polling then ends at the
    /// first stream that is not done, where it would otherwise ask every stream that has events.
    const COMPLETES_BY_HANDLE: bool = false;

    /// The device's index in its host, as it appears in messages.
    fn index(&self) -> u32;

    /// The device's whole memory, which a memory fraction is a fraction of. Constant while the device lives.
    fn total_memory(&self) -> Bytes;

    /// Free and total memory as the driver sees them now, other processes' use included.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError>;

    /// The processes that hold memory on the device, in the driver's order; empty where nothing can tell (spec 2.14's second part).
    fn processes(&mut self) -> Vec<ProcessMemory> {
        Vec::new()
    }

    /// Takes a range of `size` bytes (cudaMalloc).
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] when the device has no room, which is the only error that the allocator answers by freeing
    /// memory; [`BackendError::Driver`] for anything else.
    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError>;

    /// Gives back a range that [`DeviceBackend::malloc`] returned, whole (cudaFree).
    ///
    /// # Errors
    /// Whatever the driver says; the range then still belongs to the caller.
    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError>;

    /// Reserves a range of addresses with no memory behind it (cuMemAddressReserve). `size` is a multiple of 2 MiB.
    ///
    /// # Errors
    /// Whatever the driver says; a device without virtual memory refuses.
    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let _ = size;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Gives back a reserved range, whole, with nothing mapped in it (cuMemAddressFree).
    ///
    /// # Errors
    /// Whatever the driver says; the range then still belongs to the caller.
    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let _ = (address, size);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Takes `size` bytes of memory that have no address yet (cuMemCreate). `size` is a multiple of 2 MiB.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] when the device has no room; [`BackendError::Driver`] for anything else.
    fn create(&mut self, size: Bytes) -> Result<Self::Physical, BackendError> {
        let _ = size;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Puts memory, whole, behind `size` bytes of reserved addresses (cuMemMap).
    ///
    /// # Errors
    /// Whatever the driver says.
    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &Self::Physical) -> Result<(), BackendError> {
        let _ = (address, size, memory);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Lets the device read and write a range in which everything is mapped (cuMemSetAccess).
    ///
    /// # Errors
    /// Whatever the driver says.
    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let _ = (address, size);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Takes memory away from behind addresses (cuMemUnmap). Does not wait for work that still uses it.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let _ = (address, size);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Gives memory back (cuMemRelease). It is the device's again once it is nowhere mapped.
    ///
    /// # Errors
    /// Whatever the driver says, with the memory, which still belongs to the caller.
    fn release(&mut self, memory: Self::Physical) -> Result<(), (Self::Physical, BackendError)> {
        Err((memory, NO_VIRTUAL_MEMORY))
    }

    /// Waits for everything that the stream was given so far (cudaStreamSynchronize).
    ///
    /// # Errors
    /// Whatever the driver says.
    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        let _ = stream;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Makes an event that has not been recorded yet.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn create_event(&mut self) -> Result<Self::Event, BackendError>;

    /// Puts the event at the end of the stream's queue of work.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn record_event(&mut self, event: &mut Self::Event, stream: StreamId) -> Result<(), BackendError>;

    /// True once everything before the event in its stream is done. Does not wait.
    ///
    /// # Errors
    /// Whatever the driver says; "not ready" is `Ok(false)`.
    fn is_complete(&mut self, event: &Self::Event) -> Result<bool, BackendError>;

    /// Waits until the event is complete.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn wait(&mut self, event: &Self::Event) -> Result<(), BackendError>;

    /// Lets work that is put on `stream` from now on begin only when everything before the event is done (cudaStreamWaitEvent). The host does
    /// not wait; the event may be recorded again afterwards.
    ///
    /// # Errors
    /// Whatever the driver says; a device that cannot refuses.
    fn stream_wait(&mut self, stream: StreamId, event: &Self::Event) -> Result<(), BackendError> {
        let _ = (stream, event);
        Err(BackendError::Driver { call: "cudaStreamWaitEvent", code: 801 })
    }

    /// Gives an event back.
    fn destroy_event(&mut self, event: Self::Event);
}

/// What a device without virtual memory says to its calls: the driver's code for "not supported".
const NO_VIRTUAL_MEMORY: BackendError = BackendError::Driver { call: "virtual memory", code: 801 };

/// Memory of a device as its driver reports it (cudaMemGetInfo).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Bytes that nobody holds.
    pub free: Bytes,
    /// Bytes that the driver calls total.
    pub total: Bytes,
}

/// A process that holds memory on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessMemory {
    /// The process's id, or `None` for the calling process.
    pub pid: Option<u32>,
    /// What it holds, the driver's own context included.
    pub used: Bytes,
}

/// Why a device refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackendError {
    /// The device has no room for this many bytes.
    OutOfMemory {
        /// What was asked for.
        requested: Bytes,
    },
    /// Any other refusal.
    Driver {
        /// The call that failed, by its driver name.
        call: &'static str,
        /// The driver's result code.
        code: u32,
    },
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendError::OutOfMemory { requested } => write!(f, "the device has no room for {requested} bytes"),
            BackendError::Driver { call, code } => write!(f, "{call} failed with driver code {code}"),
        }
    }
}

impl core::error::Error for BackendError {}
