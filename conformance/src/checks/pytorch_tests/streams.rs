//! Memory used by several streams.

use parkade::device::DeviceBackend as _;
use parkade::snapshot::BlockActivity;
use parkade::units::{Bytes, MIB, StreamId};

use super::support::{Mode, ensure, fill, holds, twice, with_capacity};
use crate::backend::{AnyBackend, Needs, TestDevice};
use crate::scripted_allocator::Stage;
use crate::suite::{Effort, Entry, Evidence, Trouble, Verdict};

const MILLISECOND: u64 = 1_000_000;
/// Four elements of four bytes.
const TENSOR: Bytes = Bytes(16);

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "a block that another stream uses is reused only once that stream's work is done";
    entries.extend(twice("test_record_stream", says, record_stream));
    let says = "work on part of a block keeps the whole block from being reused";
    entries.extend(twice("test_record_stream_on_shifted_view", says, shifted_view));
    let says = "the allocator waits for pending blocks before a request runs out of memory";
    entries.extend(twice("test_caching_allocator_record_stream_oom", says, out_of_memory));
    entries
}

/// Lets a stream wait for the work queued on another one so far.
fn wait_stream(stage: &Stage, waits: StreamId, other: StreamId) -> Result<(), Trouble> {
    let mut device = stage.device().steer();
    let mut event = device.create_event()?;
    device.record_event(&mut event, other)?;
    device.stream_wait(waits, &event)?;
    device.destroy_event(event);
    Ok(())
}

fn record_stream(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    let [_, side, current, _] = stage.streams();
    stage.alloc_on("result", TENSOR, current)?.served()?;
    stage.alloc_on("tmp", TENSOR, side)?.served()?;
    fill(&stage, "tmp", TENSOR, 0x1234, side)?;
    let tmp = stage.address("tmp")?;
    wait_stream(&stage, current, side)?;
    stage.record_stream("tmp", current)?;
    let result = stage.address("result")?;
    stage.device().steer().spin(current, 50 * MILLISECOND)?;
    stage.device().steer().copy(tmp, result, TENSOR, current)?;
    stage.free("tmp")?;
    stage.alloc_on("tmp2", TENSOR, side)?.served()?;
    fill(&stage, "tmp2", TENSOR, 0, side)?;
    ensure(stage.address("tmp2")? != tmp, || "the block was reused too soon".to_owned())?;
    let mut text = stage.picture();
    ensure(holds(&stage, result, 16, 0x1234)?, || "the copy was overwritten".to_owned())?;
    stage.alloc_on("tmp3", TENSOR, side)?.served()?;
    ensure(stage.address("tmp3")? == tmp, || "the block was not reused after the stream's work".to_owned())?;
    text += "\n";
    text += &stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 6, ..Evidence::default() })
}

/// A view is not an allocation: whichever part of a block work uses, the block is recorded.
fn shifted_view(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    let [_, alloc, record, _] = stage.streams();
    stage.alloc_on("base", Bytes(8), alloc)?.served()?;
    let base = stage.address("base")?;
    wait_stream(&stage, record, alloc)?;
    stage.device().steer().spin(record, 50 * MILLISECOND)?;
    stage.device().steer().fill(base.offset(Bytes(4)), Bytes(4), 10, record)?;
    stage.record_stream("base", record)?;
    stage.free("base")?;
    stage.alloc_on("retry", Bytes(8), alloc)?.served()?;
    ensure(stage.address("retry")? != base, || "the block was reused while its second half was written".to_owned())?;
    let text = stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 3, ..Evidence::default() })
}

fn out_of_memory(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    const ROUNDS: u64 = 100;
    let mut stage = Stage::new(backend, &with_capacity(Bytes::mib(1024)), mode.settings(), None)?;
    let [_, side, current, _] = stage.streams();
    let size = Bytes(160 * MIB);
    stage.alloc_on("y", size, side)?.served()?;
    let y = stage.address("y")?;
    for _ in 0..ROUNDS {
        stage.alloc_on("x", size, current)?.served()?;
        let x = stage.address("x")?;
        stage.device().steer().spin(side, 2 * MILLISECOND)?;
        stage.device().steer().copy(x, y, size, side)?;
        stage.record_stream("x", side)?;
        stage.free("x")?;
    }
    let waits = stage.stats().num_sync_all_streams;
    ensure(waits > 0, || "the allocator never waited: memory was never short".to_owned())?;
    ensure(stage.stats().num_ooms == 0, || "a request was out of memory".to_owned())?;
    stage.device().steer().settle();
    stage.release_cached()?;
    let blocks = stage.segments().into_iter().flat_map(|segment| segment.blocks);
    let pending = blocks.filter(|block| block.state == BlockActivity::PendingFree).count();
    ensure(pending == 0, || format!("{pending} blocks are still pending after all work is done"))?;
    let text = stage.picture();
    stage.finish()?;
    Ok(Evidence { text, measured: format!("{waits} waits for all streams"), operations: 3 * ROUNDS })
}
