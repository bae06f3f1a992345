//! What the core asks of a device: whole segments, virtual memory, memory information, events.
//!
//! The simulated device and the CUDA device implement [`DeviceBackend`]. Methods take `&mut self`: a device
//! has one owner and no locks; a wrapper can share it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::fmt;

use crate::units::{Bytes, DeviceAddress, StreamId};

/// A device as the allocator sees it.
///
/// Contract, which the conformance suite checks on every implementation:
/// - `malloc` and `reserve` return ranges that do not overlap any range still held, aligned to at least 512
///   bytes; any other answer fails the request ([`AllocError::Answer`](crate::AllocError::Answer));
/// - a method that returns an error has changed nothing on the device;
/// - an event once reported complete stays complete until it is recorded again.
pub trait DeviceBackend {
    /// An event: a mark in a stream's queue of work. Goes back through [`DeviceBackend::destroy_event`].
    type Event;

    /// A handle to memory without addresses, which can be mapped. Goes back through [`DeviceBackend::release`].
    type Physical;

    /// Whether no stream's oldest event can be complete before that of a stream with a lower handle. Streams are
    /// then polled by handle, not in the order of PyTorch's hash table (spec 13.1), and polling stops at the first
    /// incomplete event instead of asking every stream with events.
    fn completes_by_handle(&self) -> bool {
        false
    }

    /// Whether the allocator checks each range that it is handed out: aligned, and apart from all others that
    /// it holds. Not for a device that repeats a recording, which does not say how long a reserved range was,
    /// so that ranges of an assumed length may overlap.
    fn answers_are_checked(&self) -> bool {
        true
    }

    /// The device's index in its host, as messages show it.
    fn index(&self) -> u32;

    /// The device's total memory, to which memory fractions refer. Constant.
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
    /// Any error of the driver; the caller then still holds the range.
    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError>;

    /// Reserves a range of addresses without memory (cuMemAddressReserve). `size` is a multiple of 2 MiB.
    ///
    /// # Errors
    /// Any error of the driver; a device without virtual memory refuses, by default.
    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let _ = size;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Frees a whole reserved range in which nothing is mapped (cuMemAddressFree).
    ///
    /// # Errors
    /// Any error of the driver; the caller then still holds the range.
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

    /// Releases memory (cuMemRelease). The device has it back once it is mapped nowhere.
    ///
    /// # Errors
    /// Any error of the driver, together with the memory, which the caller still holds.
    fn release(&mut self, memory: Self::Physical) -> Result<(), (Self::Physical, BackendError)> {
        Err((memory, NO_VIRTUAL_MEMORY))
    }

    /// Whether [`DeviceBackend::break_handle`] works here.
    fn breaks_handles(&self) -> bool {
        false
    }

    /// Puts new memory behind parts of a handle, with what is in them. All `size` bytes of `memory` are mapped at `address`;
    /// afterwards each of `parts`, where it begins in the handle and its size, in whole pages and in order, is mapped and open
    /// with memory of its own, the rest is unmapped, and `memory` is released. The answer has one piece for each part. Waits for
    /// all work of the device. Until it returns, nothing may use the addresses: no other thread may give the device work that
    /// does.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if the device has no room for the new memory, or any error of the driver; together with
    /// memory of the same size that is mapped there with the contents of `parts`: what was given, or what the device has put in its
    /// place. A device that cannot promise that refuses, by default.
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

    /// How many pages the device would now take together, in the calls below and in those that are given
    /// memory of [`DeviceBackend::create_run`]. 1, by default: each page has a handle of its own, and each
    /// call is about one. A device that counts instead of holding memory can take more, as long as its
    /// answers are those of one call for each page; then a size that comes from a file costs no memory.
    fn run_pages(&self) -> u64 {
        1
    }

    /// Creates memory for at most `pages` pages of `page` bytes, as that many calls of
    /// [`DeviceBackend::create`] would, up to the first that fails. Returns it, and for how many pages it is:
    /// at least one. Mapping it, with the size of all its pages, and releasing it count as a call for each.
    ///
    /// # Errors
    /// As [`DeviceBackend::create`], if there is not even one.
    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(Self::Physical, u64), BackendError> {
        let _ = pages;
        self.create(page).map(|memory| (memory, 1))
    }

    /// Keeps the first `pages` pages, of `page` bytes each, of memory that is for more, and returns the rest.
    ///
    /// # Errors
    /// By default, since there is no such memory.
    fn split_run(&mut self, memory: &mut Self::Physical, page: Bytes, pages: u64) -> Result<Self::Physical, BackendError> {
        let _ = (memory, page, pages);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Unmaps `pages` pages of `page` bytes, at most [`DeviceBackend::run_pages`], as a call of
    /// [`DeviceBackend::unmap`] for each.
    ///
    /// # Errors
    /// Any error of the driver.
    fn unmap_run(&mut self, address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError> {
        self.unmap(address, Bytes(page.0.saturating_mul(pages)))
    }

    /// Waits for all work that the stream was given so far (cudaStreamSynchronize).
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

    /// Whether all work that the stream was given so far is done (cudaStreamQuery). Does not wait. By default an event tells, which
    /// a device may not complete at once even where the stream is idle.
    ///
    /// # Errors
    /// Any error of the driver.
    fn is_idle(&mut self, stream: StreamId) -> Result<bool, BackendError> {
        let mut event = self.create_event()?;
        let is_idle = self.record_event(&mut event, stream).and_then(|()| self.is_complete(&event));
        self.destroy_event(event);
        is_idle
    }

    /// Makes later work of `stream` wait for the event (cudaStreamWaitEvent). The host does not wait, and the
    /// event may be recorded again afterwards.
    ///
    /// # Errors
    /// Any error of the driver; by default the call is not supported.
    fn stream_wait(&mut self, stream: StreamId, event: &Self::Event) -> Result<(), BackendError> {
        let _ = (stream, event);
        Err(BackendError::Driver { call: "cudaStreamWaitEvent", code: 801 })
    }

    /// The capture of a graph that the stream takes part in (cudaStreamGetCaptureInfo); `None` if it takes part in none. By default
    /// nothing is known of captures, and no block is reused during one that other streams of it use (spec 3.8).
    ///
    /// # Errors
    /// Any error of the driver, and if the capture is invalid.
    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        let _ = stream;
        Ok(None)
    }

    /// Adds all nodes of the stream's capture that its next work will wait for, directly or through others
    /// (cudaGraphNodeGetDependencies). Those that are there already have been looked at.
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
    /// The capture's number, which no other has in this process.
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
    /// The bytes it holds, including the driver's context.
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

/// What a code of CUDA's driver means, where the way out is not in the call.
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
