//! Streams, which are queues of work that run concurrently; events, which are marks in a stream's queue; the graph
//! capture in which a stream takes part; and a kernel that runs for a given time and accesses no memory, like declared
//! work on the simulated device.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{ptr, slice};

use cudarc::driver::sys::{
    CUevent_flags, CUevent_st, CUfunc_st, CUgraphNode, CUmod_st, CUresult, CUstream, CUstream_flags, CUstream_st,
    CUstreamCaptureStatus,
};
use parkade::device::{Capture, GraphNode};

use super::context::Context;
use super::table::{CONTEXT_IS_DESTROYED, DriverError, Handle, INVALID_VALUE, NOT_READY, call, check};

/// A stream. It is destroyed when dropped if this process created it through the device.
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: Handle<CUstream_st>,
    /// Whether the device created it.
    is_own: bool,
}

/// The promise that every stream handle passed to a device is valid:
/// [`CudaDevice::trust_streams`](crate::CudaDevice::trust_streams).
#[derive(Clone, Copy, Debug)]
pub struct StreamsAreValid(());

impl StreamsAreValid {
    /// Makes the promise.
    ///
    /// # Safety
    /// Each handle passed to the device from then on must belong to a stream of the device's context, or, for
    /// [`CudaDevice::stream_elsewhere`](crate::CudaDevice::stream_elsewhere), of the primary context of the named
    /// device. The stream must live for as long as the device may use it: until the memory that was allocated or
    /// recorded for it has no work left. The driver does not check handles. While one of these streams takes part in a
    /// graph capture, no other thread may submit work to a stream in that capture during a call to the allocator: CUDA
    /// requires this for every graph.
    #[must_use]
    pub const unsafe fn promise() -> StreamsAreValid {
        StreamsAreValid(())
    }
}

/// The promise that no other thread submits work that uses the allocator's memory while the allocator serves a call:
/// [`CudaDevice::trust_work`](crate::CudaDevice::trust_work).
#[derive(Clone, Copy, Debug)]
pub struct WorkIsSerial(());

impl WorkIsSerial {
    /// Makes the promise.
    ///
    /// # Safety
    /// While the allocator serves a call that asks for memory or routes requests to a private pool, no other thread
    /// may queue work on the device that uses the allocator's memory, no other device may use that memory, and it must
    /// not be registered elsewhere (for example for RDMA). While a graph is captured, no work from before the capture
    /// may still be running. Every stream that was passed to the device must exist as long as the device does.
    /// During the call, the allocator may replace the memory behind addresses in use, and data written at that time is
    /// lost.
    #[must_use]
    pub const unsafe fn promise() -> WorkIsSerial {
        WorkIsSerial(())
    }
}

impl Stream {
    /// Creates a non-blocking stream, which does not synchronize with the default stream. PyTorch's streams are also
    /// non-blocking.
    pub(crate) fn create(context: &Arc<Context>) -> Result<Stream, DriverError> {
        let _entered = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        unsafe { call!(context.cuStreamCreate(&raw mut handle, CUstream_flags::CU_STREAM_NON_BLOCKING as u32)) }?;
        Ok(Stream { context: Arc::clone(context), handle: Handle(handle), is_own: true })
    }

    /// Returns a stream that other code has created.
    pub(crate) fn foreign(context: &Arc<Context>, number: u64, _: StreamsAreValid) -> Stream {
        let handle = ptr::with_exposed_provenance_mut(number as usize);
        Stream { context: Arc::clone(context), handle: Handle(handle), is_own: false }
    }

    /// Returns the context of the stream.
    fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the raw handle as a number, which is the core's id for the stream.
    pub(crate) fn number(&self) -> u64 {
        self.handle.0.addr() as u64
    }
}

/// Waits for all work on a stream; `None` is the default stream of the context.
pub(crate) fn synchronize(context: &Arc<Context>, stream: Option<&Stream>) -> Result<(), DriverError> {
    let context = stream.map_or(context, Stream::context);
    let _entered = context.enter()?;
    // SAFETY: the handle is live.
    unsafe { call!(context.cuStreamSynchronize(raw(stream))) }
}

/// Returns whether a stream has no work left; `None` is the default stream of the context.
pub(crate) fn is_idle(context: &Arc<Context>, stream: Option<&Stream>) -> Result<bool, DriverError> {
    let context = stream.map_or(context, Stream::context);
    let _entered = context.enter()?;
    // SAFETY: the handle is live.
    match unsafe { call!(context.cuStreamQuery(raw(stream))) } {
        Ok(()) => Ok(true),
        Err(DriverError { code: NOT_READY, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the raw handle. `None` is the default stream, whose handle is null and always valid.
pub(super) fn raw(stream: Option<&Stream>) -> CUstream {
    stream.map_or(ptr::null_mut(), |stream| stream.handle.0)
}

impl Drop for Stream {
    /// Queued work still runs; the driver does not wait for it.
    fn drop(&mut self) {
        let context = &self.context;
        if !self.is_own {
            return;
        }
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: it is created once and destroyed once, and its context is alive. There is no caller to report an
        // error to.
        let _: Result<(), DriverError> = unsafe { call!(context.cuStreamDestroy_v2(self.handle.0)) };
    }
}

/// An event of a [`CudaDevice`](crate::CudaDevice). It is destroyed when dropped, and keeps the device's context
/// alive.
pub struct CudaEvent {
    context: Arc<Context>,
    handle: Handle<CUevent_st>,
}

impl CudaEvent {
    /// Creates an event without time stamps, which is cheaper. PyTorch's allocator does the same.
    pub(crate) fn create(context: &Arc<Context>) -> Result<CudaEvent, DriverError> {
        let _entered = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle through the pointer.
        unsafe { call!(context.cuEventCreate(&raw mut handle, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)) }?;
        context.events.fetch_add(1, Ordering::Relaxed);
        Ok(CudaEvent { context: Arc::clone(context), handle: Handle(handle) })
    }

    /// Records the event on a stream; `None` is the default stream of the context. An event belongs to one context, so a
    /// stream of another context gets a new event.
    pub(crate) fn record(&mut self, context: &Arc<Context>, stream: Option<&Stream>) -> Result<(), DriverError> {
        let context = stream.map_or(context, Stream::context);
        if !Arc::ptr_eq(context, &self.context) {
            *self = CudaEvent::create(context)?;
        }
        let _entered = context.enter()?;
        // SAFETY: both handles are live and belong to this context.
        unsafe { call!(context.cuEventRecord(self.handle.0, raw(stream))) }
    }

    /// Makes the stream's later work wait for the work before the event. An event that has never been recorded causes
    /// no wait. `None` is the default stream of the context; the event may belong to a different context.
    pub(crate) fn hold_back(&self, context: &Arc<Context>, stream: Option<&Stream>) -> Result<(), DriverError> {
        let context = stream.map_or(context, Stream::context);
        let _entered = context.enter()?;
        // SAFETY: both handles are live. The flags must be 0.
        unsafe { call!(context.cuStreamWaitEvent(raw(stream), self.handle.0, 0)) }
    }

    /// Returns whether everything before the event is done. Also returns true if the event has never been recorded, or if
    /// the event belongs to a different device than `own` and that device has been reset: the work no longer exists.
    pub(crate) fn is_complete(&self, own: &Arc<Context>) -> Result<bool, DriverError> {
        let context = &self.context;
        let _entered = match context.enter() {
            Err(error) if error.code == CONTEXT_IS_DESTROYED && !Arc::ptr_eq(context, own) => return Ok(true),
            entered => entered?,
        };
        // SAFETY: the handle is live.
        match unsafe { call!(context.cuEventQuery(self.handle.0)) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until everything before the event is done.
    pub(crate) fn wait(&self) -> Result<(), DriverError> {
        let context = &self.context;
        let _entered = context.enter()?;
        // SAFETY: the handle is live.
        unsafe { call!(context.cuEventSynchronize(self.handle.0)) }
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let context = &self.context;
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: it is created once and destroyed once, and its context is alive. There is no caller to report an
        // error to.
        if unsafe { call!(context.cuEventDestroy_v2(self.handle.0)) }.is_ok() {
            context.events.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

const CAPTURE_INFO: &str = "cuStreamGetCaptureInfo_v3";

/// Returns whether the driver can report which streams are captured.
pub(crate) fn knows_captures(context: &Context) -> bool {
    context.table.cuStreamGetCaptureInfo_v3.is_some()
}

/// Returns the graph capture in which a stream takes part, or `None`. If no stream is given, this is the capture of the
/// context's default stream. With a driver older than CUDA 12.3, the answer is always `None`.
///
/// # Errors
/// The driver call fails, or the capture is invalid.
pub(crate) fn capture_of_stream(context: &Arc<Context>, stream: Option<&Stream>) -> Result<Option<Capture>, DriverError> {
    let mut capture = Capture { id: 0, ends: Vec::new() };
    let is_captured = look_at_capture(context, stream, |id, ends| {
        capture.id = id;
        capture.ends.extend(ends.iter().map(|node| GraphNode(node.addr() as u64)));
        Ok(())
    })?;
    Ok(is_captured.then_some(capture))
}

/// Adds the nodes for which the stream's next work will wait. Does not follow the dependencies of a node that is
/// already in the set.
///
/// # Errors
/// The errors of [`capture_of_stream`].
pub(crate) fn add_awaited(
    context: &Arc<Context>,
    stream: Option<&Stream>,
    awaited: &mut BTreeSet<GraphNode>,
) -> Result<(), DriverError> {
    let context = stream.map_or(context, Stream::context);
    look_at_capture(context, stream, |_, ends| {
        let mut nodes = ends.to_vec();
        while let Some(node) = nodes.pop() {
            if awaited.insert(GraphNode(node.addr() as u64)) {
                // SAFETY: the driver has just named this node, which belongs to the graph that is being captured.
                unsafe { add_dependencies(context, node, &mut nodes) }?;
            }
        }
        Ok(())
    })
    .map(|_| ())
}

/// Queries the stream's capture and calls `each` with the capture's number and the nodes for which the stream's next
/// work will wait. Returns whether there is a capture.
fn look_at_capture(
    context: &Arc<Context>,
    stream: Option<&Stream>,
    each: impl FnOnce(u64, &[CUgraphNode]) -> Result<(), DriverError>,
) -> Result<bool, DriverError> {
    let context = stream.map_or(context, Stream::context);
    let Some(get_capture_info) = context.table.cuStreamGetCaptureInfo_v3 else { return Ok(false) };
    let _entered = context.enter()?;
    // This is a number because newer drivers may have values that are not in the enum.
    let mut status = 0_u32;
    let (mut id, mut nodes, mut count) = (0, ptr::null(), 0);
    context.count_call();
    // SAFETY: the handle is live, and the driver writes through four pointers; the one for the enum has the enum's
    // size.
    let code = unsafe {
        get_capture_info(
            raw(stream),
            (&raw mut status).cast(),
            &raw mut id,
            ptr::null_mut(),
            &raw mut nodes,
            ptr::null_mut(),
            &raw mut count,
        )
    };
    check(CAPTURE_INFO, code)?;
    if status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32 {
        return Ok(false);
    }
    if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as u32 {
        let code = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED as u32;
        return Err(DriverError { call: CAPTURE_INFO, code });
    }
    let nodes = if count == 0 {
        &[]
    } else {
        // SAFETY: the driver owns the array, which stays valid until the next call for this stream. No other thread
        // makes such a call now, as promised when the stream was passed in (`StreamsAreValid`).
        unsafe { slice::from_raw_parts(nodes, count) }
    };
    each(id, nodes)?;
    Ok(true)
}

/// Adds the nodes for which a node waits.
///
/// # Safety
/// `node` must be a node of an existing graph.
unsafe fn add_dependencies(context: &Arc<Context>, node: CUgraphNode, nodes: &mut Vec<CUgraphNode>) -> Result<(), DriverError> {
    let call = "cuGraphNodeGetDependencies_v2";
    let Some(get_dependencies) = context.table.cuGraphNodeGetDependencies_v2 else { return Ok(()) };
    let mut count = 0;
    context.count_call();
    // SAFETY: the node exists, as the caller guarantees; only the number is written.
    check(call, unsafe { get_dependencies(node, ptr::null_mut(), ptr::null_mut(), &raw mut count) })?;
    // The driver refuses to list zero nodes.
    if count == 0 {
        return Ok(());
    }
    let mut more = vec![ptr::null_mut(); count];
    context.count_call();
    // SAFETY: as above, and there is room for the number of handles that was reported.
    check(call, unsafe { get_dependencies(node, more.as_mut_ptr(), ptr::null_mut(), &raw mut count) })?;
    more.truncate(count);
    nodes.extend(more);
    Ok(())
}

/// The longest time for one launch, in nanoseconds. A kernel cannot be stopped, and a device that also drives a
/// display has a watchdog timer.
pub const LONGEST_SPIN_NS: u64 = 5_000_000_000;

/// The kernel's text, with the terminating zero that the driver needs.
const TEXT: &str = concat!(include_str!("spin.ptx"), "\0");
/// The kernel's name in the text.
const NAME: &CStr = c"spin";

/// The kernel, which the driver compiles for the device and which is unloaded when dropped.
pub(crate) struct Spin {
    context: Arc<Context>,
    module: Handle<CUmod_st>,
    function: Handle<CUfunc_st>,
}

impl Spin {
    /// Loads the kernel, which may wait for running work.
    pub(crate) fn load(context: &Arc<Context>) -> Result<Spin, DriverError> {
        let _entered = context.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: writes one handle through the first pointer and reads the text through the second up to its
        // zero.
        unsafe { call!(context.cuModuleLoadData(&raw mut module, TEXT.as_ptr().cast())) }?;
        let mut spin = Spin { context: Arc::clone(context), module: Handle(module), function: Handle(ptr::null_mut()) };
        let function = &raw mut spin.function.0;
        // SAFETY: writes one handle through the pointer and reads the name up to its zero; the module was
        // loaded above.
        unsafe { call!(context.cuModuleGetFunction(function, module, NAME.as_ptr())) }?;
        Ok(spin)
    }

    /// Queues the kernel on a stream; `None` is the default stream.
    pub(crate) fn launch(&self, duration_ns: u64, stream: Option<&Stream>) -> Result<(), DriverError> {
        if duration_ns > LONGEST_SPIN_NS {
            return Err(DriverError { call: "cuLaunchKernel", code: INVALID_VALUE });
        }
        let mut duration_ns = duration_ns;
        let mut parameters = [(&raw mut duration_ns).cast()];
        let context = &self.context;
        let _entered = context.enter()?;
        let stream = raw(stream);
        // SAFETY: the function and the stream are live. The kernel has one 64-bit parameter, which the driver copies
        // before it returns; the pointer for the other way of passing parameters must then be null. The kernel
        // accesses no memory.
        unsafe {
            call!(context.cuLaunchKernel(self.function.0, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), ptr::null_mut()))
        }
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        let context = &self.context;
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: it is loaded once and unloaded once, and its context is alive. There is no caller to report an error
        // to.
        let _: Result<(), DriverError> = unsafe { call!(context.cuModuleUnload(self.module.0)) };
    }
}
