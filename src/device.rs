//! The interface that the core requires of a device: whole segments, virtual memory, memory information, and events.
//!
//! The simulated device and the CUDA device implement [`DeviceBackend`]. Methods take `&mut self`, because a device
//! has a single owner and no locks. A wrapper can share it between threads.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::fmt;

use crate::units::{Bytes, DeviceAddress, StreamId};

/// A device as the allocator sees it.
///
/// A device needs only the methods without a default: information, memory and events. With these alone, it runs every
/// policy that takes whole segments. The others come in groups, each for a feature that not every device has:
///
/// - Expandable segments: [`reserve`](DeviceBackend::reserve) and the seven methods after it.
/// - Policies that move blocks between streams: [`stream_wait`](DeviceBackend::stream_wait), and
///   [`is_idle`](DeviceBackend::is_idle) if an event on an idle stream is not complete at once.
/// - Reuse of blocks during captures (spec 3.8): [`capture`](DeviceBackend::capture) and
///   [`add_awaited`](DeviceBackend::add_awaited).
/// - Policies that break handles: [`breaks_handles`](DeviceBackend::breaks_handles) and
///   [`break_handle`](DeviceBackend::break_handle); to do so during captures,
///   [`waits_in_captures`](DeviceBackend::waits_in_captures).
/// - A device that only counts memory, for files with huge sizes: [`run_pages`](DeviceBackend::run_pages) and the three
///   methods after it.
///
/// The conformance suite checks this contract on every implementation:
/// - `malloc` and `reserve` return ranges that are aligned to at least 512 bytes and do not overlap any range still
///   held; any other answer fails the request ([`AllocError::Answer`](crate::AllocError::Answer));
/// - a method that returns an error has changed nothing on the device;
/// - an event that has been reported complete stays complete until it is recorded again.
pub trait DeviceBackend {
    /// An event: a mark in a stream's queue of work. Destroy it with [`DeviceBackend::destroy_event`].
    type Event;

    /// A handle to memory that has no addresses but can be mapped. Release it with [`DeviceBackend::release`].
    type Physical;

    /// The device's index on its host, as shown in messages.
    fn index(&self) -> u32;

    /// The device's total memory, to which memory fractions refer. This is constant.
    fn total_memory(&self) -> Bytes;

    /// The free and total memory that the driver currently reports, including other processes (cudaMemGetInfo).
    ///
    /// # Errors
    /// Any error from the driver.
    fn memory_info(&mut self) -> Result<MemoryInfo, BackendError>;

    /// Takes a range of `size` bytes (cudaMalloc).
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if the device has no room, which is the only error after which the allocator
    /// tries to free memory; [`BackendError::Driver`] for any other failure.
    fn malloc(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError>;

    /// Frees a range that [`DeviceBackend::malloc`] returned (cudaFree).
    ///
    /// # Errors
    /// Any error from the driver. The caller still holds the range.
    fn free(&mut self, address: DeviceAddress) -> Result<(), BackendError>;

    /// Creates an event (cudaEventCreate).
    ///
    /// # Errors
    /// Any error from the driver.
    fn create_event(&mut self) -> Result<Self::Event, BackendError>;

    /// Records the event at the end of the stream's queue (cudaEventRecord).
    ///
    /// # Errors
    /// Any error from the driver.
    fn record_event(&mut self, event: &mut Self::Event, stream: StreamId) -> Result<(), BackendError>;

    /// Whether all work before the event in its stream is done (cudaEventQuery). Does not wait.
    ///
    /// # Errors
    /// Any error from the driver; "not ready" is `Ok(false)`.
    fn is_complete(&mut self, event: &Self::Event) -> Result<bool, BackendError>;

    /// Waits until the event is complete (cudaEventSynchronize).
    ///
    /// # Errors
    /// Any error from the driver.
    fn wait(&mut self, event: &Self::Event) -> Result<(), BackendError>;

    /// Destroys an event (cudaEventDestroy).
    fn destroy_event(&mut self, event: Self::Event);

    /// The processes that hold memory on the device, in the driver's order; empty if unknown (spec 2.13).
    fn processes(&mut self) -> Vec<ProcessMemory> {
        Vec::new()
    }

    /// Whether the allocator checks that each range it receives is aligned and does not overlap any other range that
    /// it holds. False for a device that repeats a recording: the recording does not contain the lengths of reserved
    /// ranges, so ranges of an assumed length may overlap.
    fn answers_are_checked(&self) -> bool {
        true
    }

    /// Whether streams complete in the order of their handles: no stream's oldest event completes before that of a
    /// stream with a lower handle. If so, the allocator polls streams by handle, not in the order of PyTorch's hash
    /// table (spec 13.1), and stops at the first incomplete event instead of querying every stream with events.
    fn completes_by_handle(&self) -> bool {
        false
    }

    /// Reserves a range of addresses without memory (cuMemAddressReserve). `size` is a multiple of 2 MiB.
    ///
    /// # Errors
    /// Any error from the driver. The default implementation refuses, like a device without virtual memory.
    fn reserve(&mut self, size: Bytes) -> Result<DeviceAddress, BackendError> {
        let _ = size;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Frees an entire reserved range in which nothing is mapped (cuMemAddressFree).
    ///
    /// # Errors
    /// Any error from the driver. The caller still holds the range.
    fn unreserve(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let _ = (address, size);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Creates `size` bytes of memory without addresses (cuMemCreate). `size` is a multiple of 2 MiB.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if the device has no room; [`BackendError::Driver`] for any other failure.
    fn create(&mut self, size: Bytes) -> Result<Self::Physical, BackendError> {
        let _ = size;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Maps all of `memory` to `size` bytes of reserved addresses (cuMemMap).
    ///
    /// # Errors
    /// Any error from the driver.
    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &Self::Physical) -> Result<(), BackendError> {
        let _ = (address, size, memory);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Allows the device to read and write a fully mapped range (cuMemSetAccess).
    ///
    /// # Errors
    /// Any error from the driver.
    fn set_access(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let _ = (address, size);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Unmaps a range (cuMemUnmap). Does not wait for work that still uses it.
    ///
    /// # Errors
    /// Any error from the driver.
    fn unmap(&mut self, address: DeviceAddress, size: Bytes) -> Result<(), BackendError> {
        let _ = (address, size);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Releases memory (cuMemRelease). The device gets it back when it is no longer mapped.
    ///
    /// # Errors
    /// Any error from the driver, together with the memory, which the caller still holds.
    fn release(&mut self, memory: Self::Physical) -> Result<(), (Self::Physical, BackendError)> {
        Err((memory, NO_VIRTUAL_MEMORY))
    }

    /// Waits for all work submitted to the stream so far (cudaStreamSynchronize).
    ///
    /// # Errors
    /// Any error from the driver.
    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), BackendError> {
        let _ = stream;
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Whether all work submitted to the stream so far is done (cudaStreamQuery). Does not wait. The default
    /// implementation records an event and queries it; on some devices, the event does not complete immediately, even
    /// on an idle stream.
    ///
    /// # Errors
    /// Any error from the driver.
    fn is_idle(&mut self, stream: StreamId) -> Result<bool, BackendError> {
        let mut event = self.create_event()?;
        let is_idle = self.record_event(&mut event, stream).and_then(|()| self.is_complete(&event));
        self.destroy_event(event);
        is_idle
    }

    /// Makes future work on `stream` wait for the event (cudaStreamWaitEvent). The host does not wait, and the event
    /// may be recorded again afterwards.
    ///
    /// # Errors
    /// Any error from the driver. The default implementation does not support this call.
    fn stream_wait(&mut self, stream: StreamId, event: &Self::Event) -> Result<(), BackendError> {
        let _ = (stream, event);
        Err(BackendError::Driver { call: "cudaStreamWaitEvent", code: 801 })
    }

    /// The graph capture that the stream takes part in (cudaStreamGetCaptureInfo), or `None`. The default
    /// implementation does not know about captures, in which case no block that other streams use is reused during a
    /// capture (spec 3.8).
    ///
    /// # Errors
    /// Any error from the driver, or the capture is invalid.
    fn capture(&mut self, stream: StreamId) -> Result<Option<Capture>, BackendError> {
        let _ = stream;
        Ok(None)
    }

    /// Adds all nodes of the stream's capture that its next work will wait for, directly or indirectly
    /// (cudaGraphNodeGetDependencies). Skips nodes that `awaited` already contains.
    ///
    /// # Errors
    /// The errors of [`DeviceBackend::capture`].
    fn add_awaited(&mut self, stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError> {
        let _ = (stream, awaited);
        Ok(())
    }

    /// Whether the device can wait for other streams while a stream is captured ([`DeviceBackend::capture`]). CUDA can
    /// do this with `cuStreamSynchronize` in the relaxed capture mode; `cuCtxSynchronize` invalidates the capture
    /// (measured on an H200).
    fn waits_in_captures(&self) -> bool {
        false
    }

    /// Whether this device supports [`DeviceBackend::break_handle`].
    fn breaks_handles(&self) -> bool {
        false
    }

    /// Replaces the memory behind parts of a handle with new memory that has the same contents. All `size` bytes of
    /// `memory` are mapped at `address`. Each element of `parts` is an offset in the handle and a size, in whole pages
    /// and in order. Afterwards, each part is mapped and accessible with separate memory, the rest is unmapped, and
    /// `memory` is released. The result has one piece for each part. Waits for all work of the device or, while a
    /// graph is captured, for all streams outside the capture that the device knows. Until the method returns, nothing
    /// may use the addresses, so no other thread may submit work that does.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if the device has no room for the new memory, or any error of the driver. The
    /// error is returned with memory of the same size that is mapped there and has the contents of `parts`: the given
    /// memory, or the memory with which the device has replaced it. The default implementation refuses, as any device
    /// that cannot guarantee this should.
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

    /// The number of pages that the device currently accepts in one call, in the methods below and in those that
    /// receive memory from [`DeviceBackend::create_run`]. 1 by default: each page has its own handle, and each call
    /// handles one. A device that only counts memory can accept more, as long as its answers equal those of one call
    /// for each page, so that a huge size from a file costs no host memory.
    fn run_pages(&self) -> u64 {
        1
    }

    /// Creates memory for at most `pages` pages of `page` bytes, like that many calls of [`DeviceBackend::create`], up
    /// to the first failure. Returns the memory and its number of pages, which is at least one. Mapping it with the
    /// size of all its pages, and releasing it, each count as one call per page.
    ///
    /// # Errors
    /// The errors of [`DeviceBackend::create`], if not even one page can be created.
    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(Self::Physical, u64), BackendError> {
        let _ = pages;
        self.create(page).map(|memory| (memory, 1))
    }

    /// Keeps the first `pages` pages of `page` bytes in `memory`, which has more pages, and returns the rest.
    ///
    /// # Errors
    /// The default implementation always fails, because it never has memory with several pages.
    fn split_run(&mut self, memory: &mut Self::Physical, page: Bytes, pages: u64) -> Result<Self::Physical, BackendError> {
        let _ = (memory, page, pages);
        Err(NO_VIRTUAL_MEMORY)
    }

    /// Unmaps `pages` pages of `page` bytes, at most [`DeviceBackend::run_pages`], like one call of
    /// [`DeviceBackend::unmap`] for each page.
    ///
    /// # Errors
    /// Any error from the driver.
    fn unmap_run(&mut self, address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError> {
        self.unmap(address, Bytes(page.0.saturating_mul(pages)))
    }
}

/// A node of a graph, by its handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct GraphNode(pub u64);

/// A graph capture, from the perspective of one of its streams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capture {
    /// The capture's number, unique in this process.
    pub id: u64,
    /// The nodes that the stream's next work will wait for.
    pub ends: Vec<GraphNode>,
}

/// The error of a device without virtual memory: the driver's code for "not supported".
const NO_VIRTUAL_MEMORY: BackendError = BackendError::Driver { call: "virtual memory", code: 801 };

/// A device's memory as its driver reports it (cudaMemGetInfo).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// The bytes that no process holds.
    pub free: Bytes,
    /// The total bytes.
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

/// The reason why a device refused a call.
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

/// The meaning of an error code of the CUDA driver, for codes whose remedy is not obvious from the call's name.
fn meaning(call: &str, code: u32) -> &'static str {
    match code {
        _ if !call.starts_with("cu") => "",
        3 => {
            ": the driver is not initialised in this process; a forked child cannot use CUDA if its parent did: spawn the process instead"
        }
        709 => ": the context and all its memory were destroyed, for example by cudaDeviceReset: open the device again",
        _ => "",
    }
}

impl core::error::Error for BackendError {}
