//! Tests the contents of memory: when several streams use it, and through ten thousand requests, frees and cache
//! releases in random order.

use std::collections::BTreeMap;

use parkade::Allocation;
use parkade::device::DeviceBackend as _;
use parkade::snapshot::BlockActivity;
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};

use super::support::{Mode, ensure, fill, holds, twice, with_capacity};
use crate::backend::{AnyBackend, Needs, TestDevice, first_other_word};
use crate::program::search::Draws;
use crate::scripted_allocator::Stage;
use crate::suite::{Effort, Entry, Evidence, Requirement, Trouble, Verdict};

const MILLISECOND: u64 = 1_000_000;
/// Four elements of four bytes.
const TENSOR: Bytes = Bytes(16);

pub(super) fn stream_entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "a block that another stream uses is reused only once that stream's work is done";
    entries.extend(twice("test_record_stream", says, record_stream).map(|entry| entry.requires(Requirement::PendingWork)));
    let says = "work on part of a block keeps the entire block from being reused";
    entries.extend(
        twice("test_record_stream_on_shifted_view", says, shifted_view).map(|entry| entry.requires(Requirement::PendingWork)),
    );
    let says = "the allocator waits for pending blocks before a request runs out of memory";
    entries.extend(
        twice("test_caching_allocator_record_stream_oom", says, out_of_memory)
            .map(|entry| entry.requires(Requirement::PendingWork)),
    );
    entries
}

/// Makes a stream wait for the work queued so far on another one.
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
    ensure(holds(&stage, result, 16, 0x1234)?, || "the copy of the tensor was overwritten".to_owned())?;
    stage.alloc_on("tmp3", TENSOR, side)?.served()?;
    ensure(stage.address("tmp3")? == tmp, || "the block was not reused after the stream's work".to_owned())?;
    text += "\n";
    text += &stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 6, ..Evidence::default() })
}

/// A view is not an allocation: no matter which part of a block is used, the use is recorded for
/// the entire block.
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
    ensure(stage.address("retry")? != base, || "the block was reused while its second half was still being written".to_owned())?;
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
    ensure(waits > 0, || "the allocator never waited, because memory never ran short".to_owned())?;
    ensure(stage.stats().num_ooms == 0, || "a request ran out of memory".to_owned())?;
    stage.device().steer().settle();
    stage.release_cached()?;
    let blocks = stage.segments().into_iter().flat_map(|segment| segment.blocks);
    let pending = blocks.filter(|block| block.state == BlockActivity::PendingFree).count();
    ensure(pending == 0, || format!("{pending} blocks are still pending after all work is done"))?;
    let text = stage.picture();
    stage.finish()?;
    Ok(Evidence { text, measured: format!("the allocator waited {waits} times for all streams"), operations: 3 * ROUNDS })
}

const OPERATIONS: u64 = 10_000;
/// Above this many live bytes, the test frees tensors before it does anything else.
const MOST: u64 = (1 << 30) / 10;
/// Number of bytes read at a tensor's start, middle and end; the tensors' addresses show that no two overlap in
/// between.
const SAMPLE: usize = 4096;

pub(super) fn fuzz_entries() -> Vec<Entry> {
    let says = "each tensor keeps its contents through 10,000 random requests, frees and cache releases";
    twice("test_allocator_fuzz", says, fuzz).into()
}

struct Tensor {
    allocation: Allocation,
    bytes: Bytes,
    word: u32,
}

fn fuzz(backend: &AnyBackend, mode: Mode, effort: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    let mut draws = Draws::new(effort.seed.wrapping_add(123));
    let (mut tensors, mut total, mut word) = (Vec::<Tensor>::new(), 0, 0);
    let mut places = BTreeMap::<u64, u64>::new();
    for _ in 0..OPERATIONS {
        while total >= MOST {
            total -= free(&mut stage, &mut tensors, &mut places, &mut draws)?;
        }
        // In the ratio 10 : 10 : 1, as in the test; if there is nothing to free, the test frees
        // nothing.
        match draws.below(21) {
            0..10 => {
                word += 1;
                let bytes = Bytes((2 * MIB + draws.below(18 * MIB)) / 4 * 4);
                tensors.push(request(&mut stage, &mut places, bytes, word)?);
                total += bytes.get();
            }
            10..20 if !tensors.is_empty() => total -= free(&mut stage, &mut tensors, &mut places, &mut draws)?,
            10..20 => {}
            _ => stage.release_cached()?,
        }
    }
    while !tensors.is_empty() {
        free(&mut stage, &mut tensors, &mut places, &mut draws)?;
    }
    stage.finish()?;
    Ok(Evidence { operations: OPERATIONS, measured: format!("{word} tensors"), text: String::new() })
}

fn request(stage: &mut Stage, places: &mut BTreeMap<u64, u64>, bytes: Bytes, word: u32) -> Result<Tensor, Trouble> {
    let allocation = stage.core().allocate(bytes, StreamId::DEFAULT).map_err(|error| Trouble::fail(error.to_string()))?;
    let (start, end) = (allocation.address().get(), allocation.address().get() + bytes.get());
    let below = places.range(..end).next_back().filter(|(_, other)| **other > start);
    ensure(below.is_none(), || format!("tensor {word} shares bytes with another tensor"))?;
    places.insert(start, end);
    stage.device().steer().fill(allocation.address(), bytes, word, StreamId::DEFAULT)?;
    Ok(Tensor { allocation, bytes, word })
}

fn free(
    stage: &mut Stage,
    tensors: &mut Vec<Tensor>,
    places: &mut BTreeMap<u64, u64>,
    draws: &mut Draws,
) -> Result<u64, Trouble> {
    let Tensor { allocation, bytes, word } = tensors.swap_remove(draws.below(tensors.len() as u64) as usize);
    let last = bytes.get() - SAMPLE as u64;
    for offset in [0, last / 8 * 4, last] {
        check(stage, allocation.address().offset(Bytes(offset)), word)?;
    }
    places.remove(&allocation.address().get());
    stage.core().free(allocation).map_err(|error| Trouble::fail(error.to_string()))?;
    Ok(bytes.get())
}

fn check(stage: &Stage, address: DeviceAddress, word: u32) -> Result<(), Trouble> {
    let mut found = [0; SAMPLE];
    stage.device().steer().read(address, &mut found)?;
    ensure(first_other_word(&found, word).is_none(), || format!("tensor {word} does not contain the data that was written to it"))
}
