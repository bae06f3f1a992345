//! The capture of a graph that a stream takes part in. With a driver older than CUDA 12.3 no stream takes part in any.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::{ptr, slice};

use cudarc::driver::sys::{CUgraphNode, CUresult, CUstreamCaptureStatus};
use parkade::device::{Capture, GraphNode};

use super::call::check;
use super::context::Context;
use super::stream::{Stream, raw};
use crate::error::DriverError;

const CALL: &str = "cuStreamGetCaptureInfo_v3";

/// The capture that a stream takes part in; `None` if it takes part in none. Without a stream, that of the context's default stream.
///
/// # Errors
/// Any error of the driver, and if the capture is invalid.
pub(crate) fn of_stream(context: &Arc<Context>, stream: Option<&Stream>) -> Result<Option<Capture>, DriverError> {
    let mut capture = Capture { id: 0, ends: Vec::new() };
    let is_captured = look(context, stream, |id, ends| {
        capture.id = id;
        capture.ends.extend(ends.iter().map(|node| GraphNode(node.addr() as u64)));
        Ok(())
    })?;
    Ok(is_captured.then_some(capture))
}

/// Adds the nodes that the stream's next work will wait for. The nodes before one that is there already are not looked at again.
///
/// # Errors
/// As [`of_stream`].
pub(crate) fn add_awaited(
    context: &Arc<Context>,
    stream: Option<&Stream>,
    awaited: &mut BTreeSet<GraphNode>,
) -> Result<(), DriverError> {
    let context = stream.map_or(context, Stream::context);
    look(context, stream, |_, ends| {
        let mut nodes = ends.to_vec();
        while let Some(node) = nodes.pop() {
            if awaited.insert(GraphNode(node.addr() as u64)) {
                // SAFETY: the node is one of the graph that is being captured, or one that such a node waits for, as the driver has just said.
                unsafe { add_dependencies(context, node, &mut nodes) }?;
            }
        }
        Ok(())
    })
    .map(|_| ())
}

/// Asks for the stream's capture and calls `each` with its number and the nodes that its next work will wait for. Returns whether there is one.
fn look(
    context: &Arc<Context>,
    stream: Option<&Stream>,
    each: impl FnOnce(u64, &[CUgraphNode]) -> Result<(), DriverError>,
) -> Result<bool, DriverError> {
    let context = stream.map_or(context, Stream::context);
    let Some(get_capture_info) = context.table.cuStreamGetCaptureInfo_v3 else { return Ok(false) };
    let _entered = context.enter()?;
    // A number, because a newer driver may have more of them.
    let mut status = 0_u32;
    let (mut id, mut nodes, mut count) = (0, ptr::null(), 0);
    context.count_call();
    // SAFETY: the handle is live, and the driver writes to four places, of which the enum's is of its size.
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
    check(CALL, code)?;
    if status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32 {
        return Ok(false);
    }
    if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as u32 {
        let code = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED as u32;
        return Err(DriverError { call: CALL, code });
    }
    let nodes = if count == 0 {
        &[]
    } else {
        // SAFETY: an array of the driver's, which stays until the next call for this stream. Nobody else makes one now, as whoever named the
        // stream has promised (`StreamsAreValid`).
        unsafe { slice::from_raw_parts(nodes, count) }
    };
    each(id, nodes)?;
    Ok(true)
}

/// Adds what a node waits for.
///
/// # Safety
/// It must be a node of a graph that is there.
unsafe fn add_dependencies(context: &Arc<Context>, node: CUgraphNode, nodes: &mut Vec<CUgraphNode>) -> Result<(), DriverError> {
    let call = "cuGraphNodeGetDependencies_v2";
    let Some(get_dependencies) = context.table.cuGraphNodeGetDependencies_v2 else { return Ok(()) };
    let mut count = 0;
    context.count_call();
    // SAFETY: the node is there, as the caller says; only the number is written.
    check(call, unsafe { get_dependencies(node, ptr::null_mut(), ptr::null_mut(), &raw mut count) })?;
    // The driver refuses to list none.
    if count == 0 {
        return Ok(());
    }
    let mut more = vec![ptr::null_mut(); count];
    context.count_call();
    // SAFETY: the same, and there is room for as many handles as the number says.
    check(call, unsafe { get_dependencies(node, more.as_mut_ptr(), ptr::null_mut(), &raw mut count) })?;
    more.truncate(count);
    nodes.extend(more);
    Ok(())
}
