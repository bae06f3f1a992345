//! What the core asks of a device: whole segments, virtual memory, memory information, events.
//!
//! The simulated device and the CUDA device implement [`DeviceBackend`]. Methods take `&mut self`: a device has one
//! owner and no locks. A wrapper can share it between threads.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::fmt;

use crate::units::{Bytes, DeviceAddress, StreamId};

/// A device as the allocator sees it.
///
/// The conformance suite checks this contract on every implementation:
/// - `malloc` and `reserve` return ranges that do not overlap any range still held, aligned to at least 512 bytes;
///   any other answer fails the request ([`AllocError::Answer`](crate::AllocError::Answer));
/// - a method that returns an error has changed nothing on the device;
/// - an event once reported complete stays complete until it is recorded again.
pub trait DeviceBackend {
    /// An event: a mark in a stream's queue of work. Return it with [`DeviceBackend::destroy_event`].
    type Event;

    /// A handle to memory that has no addresses but can be mapped. Return it with [`DeviceBackend::release`].
    type Physical;

    /// Whether streams complete in order of their handles: no stream's oldest event completes before that of a stream
    /// with a lower handle. Then the allocator polls streams by handle, not in the order of PyTorch's hash table
    /// (spec 13.1), and stops at the first incomplete event instead of querying every stream with events.
    fn completes_by_handle(&self) -> bool {
        false
    }

    /// Whether the allocator checks that each range it receives is aligned and apart from all others that it holds.
    /// False for a device that repeats a recording: a recording does not say how long a reserved range was, so ranges
    /// of an assumed length may overlap.
    fn answers_are_checked(&self) -> bool {
        true
    }

    /// The device's index on its host, as messages show it.
    fn index(&self) -> u32;

    /// The device's total memory, which memory fractions refer to. Constant.
    fn total_memory(&self) -> Bytes;

    /// Free and total memory as the driver sees them now, including other processes (cudaMemGetInfo).
    ///
    /// # Errors
    /// Any error of the driver.
    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError>;

    /// The processes that hold memory on the device, in the driver's order; empty if unknown (spec 2.13).
    fn processes(&mut self) -> Vec<ProcessMemory> {
        Vec::new()
    }

    /// Takes a range of `size` bytes (cudaMalloc).
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if the device has no room, the only error after which the allocator
    /// tries to free memory; [`BackendError::Driver`] for anything else.
    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError>;

    /// Frees a range that [`DeviceBackend::malloc`] returned (cudaFree).
    ///
    /// # Errors
    /// Any error of the driver. The caller still holds the range.
    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError>;

    /// Reserves a range of addresses without memory (cuMemAddressReserve). `size` is a multiple of 2 MiB.
    ///
    /// # Errors
    /// Any error of the driver. The default implementation refuses, as a device without virtual memory does.
    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let _ = size;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Frees a whole reserved range in which nothing is mapped (cuMemAddressFree).
    ///
    /// # Errors
    /// Any error of the driver. The caller still holds the range.
    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let _ = (address, size);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Creates `size` bytes of memory without addresses (cuMemCreate). `size` is a multiple of 2 MiB.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if the device has no room; [`BackendError::Driver`] for anything else.
    fn create(&mut self, size: Bytes) -> Result<Self::Physical, BackendError> {
        let _ = size;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Maps all of `memory` to `size` bytes of reserved addresses (cuMemMap).
    ///
    /// # Errors
    /// Any error of the driver.
    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &Self::Physical) -> Result<(), BackendError> {
        let _ = (address, size, memory);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Lets the device read and write a fully mapped range (cuMemSetAccess).
    ///
    /// # Errors
    /// Any error of the driver.
    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let _ = (address, size);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Unmaps a range (cuMemUnmap). Does not wait for work that still uses it.
    ///
    /// # Errors
    /// Any error of the driver.
    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let _ = (address, size);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Releases memory (cuMemRelease). The device gets it back once it is mapped nowhere.
    ///
    /// # Errors
    /// Any error of the driver, with the memory, which the caller still holds.
    fn release(&mut self, memory: Self::Physical) -> Result<(), (Self::Physical, BackendError)> {
        Err((memory, NO_VIRTUAL_MEMORY))
    }

    /// Whether the device can wait for other streams while a stream is captured ([`DeviceBackend::capture`]). CUDA can, with
    /// `cuStreamSynchronize` and the relaxed capture mode; `cuCtxSynchronize` invalidates the capture (measured on an H200).
    fn waits_in_captures(&self) -> bool {
        false
    }

    /// Whether this device supports [`DeviceBackend::break_handle`].
    fn breaks_handles(&self) -> bool {
        false
    }

    /// Replaces the memory behind parts of a handle by new memory with the same contents. All `size` bytes of `memory` are
    /// mapped at `address`. Each of `parts` is an offset in the handle and a size, in whole pages and in order. Afterwards
    /// each part is mapped and accessible with separate memory, the rest is unmapped, and `memory` is released. The result
    /// has one piece for each part. Waits for all work of the device, or while a graph is captured for all streams that the
    /// device knows outside of the capture. Until it returns, nothing may use the addresses: no
    /// other thread may submit work that does.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if the device has no room for the new memory, or any error of the driver. The error
    /// comes with memory of the same size that is mapped there and holds the contents of `parts`: the given memory, or the
    /// memory that the device has put in its place. The default implementation refuses, as a device that cannot guarantee
    /// this should.
    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: Self::Physical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<Self::Physical>, (Self::Physical, BackendError)> {
        let _ = (address, size, parts);
        Err((memory, NO_VIRTUAL_MEMORY))
    }

    /// How many pages the device now accepts in one call, in the methods below and in those that receive memory of
    /// [`DeviceBackend::create_run`]. 1 by default: each page has its own handle, and each call handles one. A device
    /// that only counts memory can accept more, as long as its answers equal those of one call for each page; then a
    /// size from a file costs no host memory.
    fn run_pages(&self) -> u64 {
        1
    }

    /// Creates memory for at most `pages` pages of `page` bytes, as that many calls of [`DeviceBackend::create`]
    /// would, up to the first that fails. Returns the memory and its number of pages, at least one. Mapping it, with
    /// the size of all its pages, counts as one call for each page, and so does releasing it.
    ///
    /// # Errors
    /// As [`DeviceBackend::create`], if it cannot create even one page.
    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(Self::Physical, u64), BackendError> {
        let _ = pages;
        self.create(page).map(|memory| (memory, 1))
    }

    /// Keeps the first `pages` pages, of `page` bytes each, of memory that has more pages, and returns the rest.
    ///
    /// # Errors
    /// The default implementation always fails, since it never has such memory.
    fn split_run(&mut self, memory: &mut Self::Physical, page: Bytes, pages: u64) -> Result<Self::Physical, BackendError> {
        let _ = (memory, page, pages);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Unmaps `pages` pages of `page` bytes, at most [`DeviceBackend::run_pages`], as one call of
    /// [`DeviceBackend::unmap`] for each would.
    ///
    /// # Errors
    /// Any error of the driver.
    fn unmap_run(&mut self, address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError> {
        self.unmap(address, Bytes(page.0.saturating_mul(pages)))
    }

    /// Waits for all work submitted to the stream so far (cudaStreamSynchronize).
    ///
    /// # Errors
    /// Any error of the driver.
    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        let _ = stream;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Creates an event (cudaEventCreate).
    ///
    /// # Errors
    /// Any error of the driver.
    fn create_event(&mut self) -> Result<Self::Event, BackendError>;

    /// Records the event at the end of the stream's queue (cudaEventRecord).
    ///
    /// # Errors
    /// Any error of the driver.
    fn record_event(&mut self, event: &mut Self::Event, stream: StreamId) -> Result<(), BackendError>;

    /// Whether all work before the event in its stream is done (cudaEventQuery). Does not wait.
    ///
    /// # Errors
    /// Any error of the driver; "not ready" is `Ok(false)`.
    fn is_complete(&mut self, event: &Self::Event) -> Result<bool, BackendError>;

    /// Waits until the event is complete (cudaEventSynchronize).
    ///
    /// # Errors
    /// Any error of the driver.
    fn wait(&mut self, event: &Self::Event) -> Result<(), BackendError>;

    /// Whether all work submitted to the stream so far is done (cudaStreamQuery). Does not wait. The default implementation
    /// records an event and queries it; some devices do not complete it at once even on an idle stream.
    ///
    /// # Errors
    /// Any error of the driver.
    fn is_idle(&mut self, stream: StreamId) -> Result<bool, BackendError> {
        let mut event = self.create_event()?;
        let is_idle = self.record_event(&mut event, stream).and_then(|()| self.is_complete(&event));
        self.destroy_event(event);
        is_idle
    }

    /// Makes later work of `stream` wait for the event (cudaStreamWaitEvent). The host does not wait, and the event
    /// may be recorded again afterwards.
    ///
    /// # Errors
    /// Any error of the driver. The default implementation does not support this call.
    fn stream_wait(&mut self, stream: StreamId, event: &Self::Event) -> Result<(), BackendError> {
        let _ = (stream, event);
        Err(BackendError::Driver { call: "cudaStreamWaitEvent", code: 801 })
    }

    /// The graph capture that the stream takes part in (cudaStreamGetCaptureInfo), or `None`. The default implementation
    /// knows of no captures; then no block that other streams use is reused during a capture (spec 3.8).
    ///
    /// # Errors
    /// Any error of the driver; or the capture is invalid.
    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        let _ = stream;
        Ok(None)
    }

    /// Adds all nodes of the stream's capture that its next work will wait for, directly or indirectly
    /// (cudaGraphNodeGetDependencies). Skips nodes that `awaited` already contains.
    ///
    /// # Errors
    /// As [`DeviceBackend::capture`].
    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError> {
        let _ = (stream, awaited);
        Ok(())
    }

    /// Destroys an event (cudaEventDestroy).
    fn destroy_event(&mut self, event: Self::Event);
}

/// A node of a graph, by its handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GraphNode(pub u64);

/// The capture of a graph, as one of its streams sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capture {
    /// The capture's number, unique in this process.
    pub id: u64,
    /// The nodes that the stream's next work will wait for.
    pub ends: Vec<GraphNode>,
}

/// What a device without virtual memory returns: the driver's code for "not supported".
const NO_VIRTUAL_MEMORY: BackendError = BackendError::Driver { call: "virtual memory", code: 801 };

/// Memory of a device as its driver reports it (cudaMemGetInfo).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Bytes that no process holds.
    pub free: Bytes,
    /// Bytes in total.
    pub total: Bytes,
}

/// A process that holds memory on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessMemory {
    /// The process's id, or `None` for the calling process.
    pub pid: Option<u32>,
    /// The bytes that the process holds, including the driver's context.
    pub used: Bytes,
}

/// Why a device refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackendError {
    /// The device has no room for this many bytes.
    OutOfMemory {
        /// The requested bytes.
        requested: Bytes,
    },
    /// Any other refusal.
    Driver {
        /// The driver call that failed.
        call: &'static str,
        /// The driver's result code.
        code: u32,
    },
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendError::OutOfMemory { requested } => write!(f, "the device has no room for {requested} bytes"),
            BackendError::Driver { call, code } => write!(f, "{call} failed with driver code {code}{}", meaning(call, *code)),
        }
    }
}

/// What an error code of the CUDA driver means, for codes whose remedy the call's name does not suggest.
fn meaning(call: &str, code: u32) -> &'static str {
    match code {
        _ if !call.starts_with("cu") => "",
        3 => {
            ": the driver is not initialised in this process; a child of fork cannot use CUDA if its parent did: spawn it instead"
        }
        709 => ": the context was destroyed, as by cudaDeviceReset, and all its memory with it: open the device again",
        _ => "",
    }
}

impl core::error::Error for BackendError {}
