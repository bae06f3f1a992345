//! Tests the allocator's part in graph capture: a private pool for the stream under capture, no event calls during the
//! capture, and memory that is kept as long as the graph or one of its outputs exists. Kernels and replays do not
//! concern the allocator and are left out.

use parkade::PoolFilter;
use parkade::snapshot::BlockActivity;
use parkade::stats::Family;
use parkade::units::{Bytes, MIB, PoolClass, PoolId, StreamId};

use super::support::{Mode, ensure, fill, once, same, twice};
use crate::backend::{AnyBackend, Needs, TestDevice};
use crate::scripted_allocator::Stage;
use crate::suite::{Effort, Entry, Evidence, Trouble, Verdict};

const SMALL_SIZE: u64 = MIB;
const SMALL_BUFFER: u64 = 2 * MIB;
const LARGE_BUFFER: u64 = 20 * MIB;
const MIN_LARGE: u64 = 10 * MIB;
const ROUND_LARGE: u64 = 2 * MIB;

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "requests under capture are served from their own pool, and other requests are not";
    entries.extend(twice("test_graph_capture_simple", says, simple));
    let says = "after a reset, the first capture's memory is released, and a second capture works";
    entries.extend(twice("test_graph_capture_reset_recapture", says, recapture));
    let says = "running out of memory under capture is an ordinary error, and the next capture works";
    entries.extend(twice("test_graph_capture_oom", says, out_of_memory));
    let says = "successive captures hold no more memory than one capture";
    entries.extend(twice("test_repeat_graph_capture_cublas_workspace_memory", says, repeated));
    let name = "test_graph_memory_stats_and_use_result_after_destroy_graph";
    let says = "a capture reserves as much memory as its sizes imply; a result keeps only its own segment when the graph is gone";
    entries.push(once(name, says, result_outlives_graph));
    let says = "no event calls are made under capture; blocks used by other streams are free afterwards";
    entries.extend(twice("test_graph_record_stream", says, record_stream));
    let says = "two captures that share a pool reserve one small segment less than two captures with separate pools";
    entries.push(once("test_graph_two_successive", says, two_successive));
    let says = "three captures that share a pool reserve two small segments less than three captures with separate pools";
    entries.push(once("test_graph_three_successive", says, three_successive));
    entries
}

/// A graph: its pool, and the stream it is captured on.
#[derive(Clone, Copy)]
struct Graph {
    pool: PoolId,
    stream: StreamId,
}

impl Graph {
    fn capture_begin(self, stage: &mut Stage) -> Result<(), Trouble> {
        stage.core().set_capturing(true);
        done(stage.core().begin_pool(self.pool, PoolFilter::Stream(self.stream)))
    }

    fn capture_end(self, stage: &mut Stage) -> Result<(), Trouble> {
        done(stage.core().end_pool(self.pool))?;
        stage.core().set_capturing(false);
        Ok(())
    }

    /// Resets or destroys the graph, which then no longer uses its pool.
    fn reset(self, stage: &mut Stage) -> Result<(), Trouble> {
        done(stage.core().release_pool(self.pool))
    }

    fn alloc(self, stage: &mut Stage, name: &str, bytes: Bytes) -> Result<(), Trouble> {
        stage.alloc_on(name, bytes, self.stream)?.served()
    }
}

fn done<T, E: std::fmt::Display>(outcome: Result<T, E>) -> Result<T, Trouble> {
    outcome.map_err(|error| Trouble::fail(error.to_string()))
}

fn setup(backend: &AnyBackend, mode: Mode) -> Result<(Stage, StreamId), Trouble> {
    let stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    let stream = stage.streams()[1];
    Ok((stage, stream))
}

/// Returns the pool of the segment that holds a named allocation.
fn pool_of(stage: &Stage, name: &str) -> Result<PoolId, Trouble> {
    let address = stage.address(name)?.get();
    let holds = |start: u64, bytes: u64| start <= address && address - start < bytes;
    let segments = stage.segments();
    let found = segments.iter().find(|segment| holds(segment.address.get(), segment.total.get())).map(|segment| segment.pool);
    found.ok_or_else(|| Trouble::fail(format!("no segment holds {name}")))
}

fn simple(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let (mut stage, stream) = setup(backend, mode)?;
    let graph = Graph { pool: PoolId(1, 0), stream };
    graph.alloc(&mut stage, "a", Bytes(4000))?;
    graph.capture_begin(&mut stage)?;
    graph.alloc(&mut stage, "b", Bytes(4000))?;
    stage.alloc("elsewhere", Bytes(4000))?.served()?;
    graph.capture_end(&mut stage)?;
    graph.alloc(&mut stage, "after", Bytes(4000))?;
    for (name, pool) in [("a", PoolId::DEFAULT), ("b", graph.pool), ("elsewhere", PoolId::DEFAULT), ("after", PoolId::DEFAULT)] {
        same(name, pool_of(&stage, name)?, pool)?;
    }
    let text = stage.picture();
    graph.reset(&mut stage)?;
    stage.finish()?;
    Ok(Evidence { text, operations: 4, ..Evidence::default() })
}

fn recapture(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let (mut stage, stream) = setup(backend, mode)?;
    for number in 1..=2 {
        let graph = Graph { pool: PoolId(number, 0), stream };
        graph.capture_begin(&mut stage)?;
        graph.alloc(&mut stage, "b", Bytes(4000))?;
        graph.capture_end(&mut stage)?;
        same("the pool", pool_of(&stage, "b")?, graph.pool)?;
        stage.free("b")?;
        stage.release_cached()?;
        ensure(!stage.segments().is_empty(), || "the graph's memory was released while the graph existed".to_owned())?;
        graph.reset(&mut stage)?;
        stage.release_cached()?;
        same("segments after the reset", stage.segments().len(), 0)?;
    }
    stage.finish()?;
    Ok(Evidence::operations(4))
}

fn out_of_memory(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let (mut stage, stream) = setup(backend, mode)?;
    let graph = Graph { pool: PoolId(1, 0), stream };
    graph.capture_begin(&mut stage)?;
    let refusal = stage.alloc_on("all", Bytes(4 << 40), stream)?.refusal()?;
    ensure(refusal.contains("out of memory"), || format!("the message is: {refusal}"))?;
    graph.capture_end(&mut stage)?;
    graph.reset(&mut stage)?;
    let next = Graph { pool: PoolId(2, 0), stream };
    next.capture_begin(&mut stage)?;
    next.alloc(&mut stage, "b", Bytes(4000))?;
    next.capture_end(&mut stage)?;
    let text = stage.picture();
    next.reset(&mut stage)?;
    stage.finish()?;
    Ok(Evidence { text, operations: 2, ..Evidence::default() })
}

/// cuBLAS chooses the workspace's size; it lives as long as the graph.
fn repeated(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    const WORKSPACE: Bytes = Bytes(4096 * 2 * 1024 + 16 * 8 * 1024);
    let (mut stage, stream) = setup(backend, mode)?;
    let mut reserved = None;
    for number in 1..=10 {
        let graph = Graph { pool: PoolId(number, 0), stream };
        graph.capture_begin(&mut stage)?;
        graph.alloc(&mut stage, "workspace", WORKSPACE)?;
        graph.alloc(&mut stage, "product", Bytes(4 * MIB))?;
        stage.free("product")?;
        graph.capture_end(&mut stage)?;
        let now = stage.core().heap().reserved();
        same("reserved bytes with a graph", now, *reserved.get_or_insert(now))?;
        stage.free("workspace")?;
        graph.reset(&mut stage)?;
        stage.release_cached()?;
    }
    let text = stage.figures();
    stage.finish()?;
    Ok(Evidence { text, operations: 40, ..Evidence::default() })
}

/// For each size: the number of segments, their total bytes, and the bytes of the segment that keeps the result.
fn sizes() -> [(u64, i64, u64, u64, PoolClass); 5] {
    let rounded = ROUND_LARGE * (MIN_LARGE + 512).div_ceil(ROUND_LARGE);
    [
        (512, 1, SMALL_BUFFER, SMALL_BUFFER, PoolClass::Small),
        (SMALL_SIZE, 2, 2 * SMALL_BUFFER, SMALL_BUFFER, PoolClass::Small),
        (SMALL_SIZE + 512, 1, LARGE_BUFFER, LARGE_BUFFER, PoolClass::Large),
        (MIN_LARGE - 512, 2, 2 * LARGE_BUFFER, LARGE_BUFFER, PoolClass::Large),
        (MIN_LARGE + 512, 3, 3 * rounded, rounded, PoolClass::Large),
    ]
}

fn result_outlives_graph(backend: &AnyBackend) -> Verdict {
    let mut text = String::new();
    for (number, (size, segments, bytes, bytes_left, class)) in (1..).zip(sizes()) {
        let (mut stage, stream) = setup(backend, Mode::Ordinary)?;
        let graph = Graph { pool: PoolId(number, 0), stream };
        graph.alloc(&mut stage, "a", Bytes(size))?;
        let before = counted(&stage, class);
        graph.capture_begin(&mut stage)?;
        capture_chain(&mut stage, graph, Bytes(size))?;
        graph.capture_end(&mut stage)?;
        let grown = |stage: &Stage| {
            let now = counted(stage, class);
            [0, 1, 2, 3].map(|place| now[place] - before[place])
        };
        let expected = [segments, bytes.cast_signed(), 1, size.cast_signed()];
        same(&format!("segments, their bytes, active blocks and their bytes with {size} captured"), grown(&stage), expected)?;
        graph.reset(&mut stage)?;
        stage.device().steer().settle();
        stage.release_cached()?;
        let expected = [1, bytes_left.cast_signed(), 1, size.cast_signed()];
        same(&format!("the same for {size} after the graph"), grown(&stage), expected)?;
        text += &stage.picture();
        stage.free("a")?;
        stage.free("b5")?;
        stage.release_cached()?;
        same("number of segments at the end", stage.segments().len(), 0)?;
        stage.finish()?;
    }
    Ok(Evidence { text, operations: 5 * 24, ..Evidence::default() })
}

/// `b = a.clone()`, then five times `b = b.clone() + 1`: at most three tensors live at a time, and the last one, `b5`,
/// is left.
fn capture_chain(stage: &mut Stage, graph: Graph, size: Bytes) -> Result<(), Trouble> {
    graph.alloc(stage, "b0", size)?;
    for round in 0..5 {
        graph.alloc(stage, "clone", size)?;
        graph.alloc(stage, &format!("b{}", round + 1), size)?;
        stage.free("clone")?;
        stage.free(&format!("b{round}"))?;
    }
    Ok(())
}

fn counted(stage: &Stage, class: PoolClass) -> [i64; 4] {
    [Family::Segment, Family::ReservedBytes, Family::Active, Family::ActiveBytes].map(|family| {
        let set = stage.stats().family(family);
        if class == PoolClass::Small { set.small.current } else { set.large.current }
    })
}

fn record_stream(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let (mut stage, stream) = setup(backend, mode)?;
    let [_, _, side, third] = stage.streams();
    stage.alloc("problem", Bytes(12))?.served()?;
    stage.record_stream("problem", third)?;
    stage.device().steer().spin(third, 20_000_000)?;
    fill(&stage, "problem", Bytes(12), 1, third)?;
    stage.free("problem")?;
    let _ = stage.calls();
    let graph = Graph { pool: PoolId(1, 0), stream };
    graph.capture_begin(&mut stage)?;
    graph.alloc(&mut stage, "b", Bytes(12))?;
    stage.record_stream("b", side)?;
    stage.free("b")?;
    graph.alloc(&mut stage, "c", Bytes(12))?;
    graph.capture_end(&mut stage)?;
    let asked: Vec<String> = stage.calls().into_iter().filter(|call| call.contains("Event")).collect();
    same("number of event calls under capture", asked, Vec::new())?;
    let mut text = stage.picture();
    stage.device().steer().settle();
    // The first request after the capture records the deferred block's events; the second is certain to find them
    // complete.
    for name in ["dummy", "dummy2"] {
        stage.alloc(name, Bytes(12))?.served()?;
        stage.device().steer().settle();
    }
    let blocks = stage.segments().into_iter().flat_map(|segment| segment.blocks);
    let pending = blocks.filter(|block| block.state == BlockActivity::PendingFree).count();
    same("pending blocks", pending, 0)?;
    text += "\n";
    text += &stage.picture();
    graph.reset(&mut stage)?;
    stage.finish()?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

/// Returns the pool of the n-th of several captures.
fn pool(number: u64, is_shared: bool) -> PoolId {
    if is_shared { PoolId(0, 1) } else { PoolId(number, 0) }
}

/// Makes two captures of sums with temporaries.
fn two_successive(backend: &AnyBackend) -> Verdict {
    successive(backend, 1, |stage, graphs| {
        graphs[0].capture_begin(stage)?;
        graphs[0].alloc(stage, "b0", Bytes(4000))?;
        sums(stage, graphs[0], 0)?;
        graphs[0].capture_end(stage)?;
        graphs[1].capture_begin(stage)?;
        sums(stage, graphs[1], 5)?;
        graphs[1].capture_end(stage)
    })
}

/// Computes five times a sum of two sums, each with a copy as a temporary; `first` is the number of the existing `b`.
fn sums(stage: &mut Stage, graph: Graph, first: u32) -> Result<(), Trouble> {
    let size = Bytes(4000);
    for round in first..first + 5 {
        for name in ["x", "y"] {
            graph.alloc(stage, "clone", size)?;
            graph.alloc(stage, name, size)?;
            stage.free("clone")?;
        }
        graph.alloc(stage, &format!("b{}", round + 1), size)?;
        for name in ["x", "y", &format!("b{round}")] {
            stage.free(name)?;
        }
    }
    Ok(())
}

fn three_successive(backend: &AnyBackend) -> Verdict {
    let size = Bytes(4000);
    successive(backend, 2, |stage, graphs| {
        graphs[0].capture_begin(stage)?;
        for name in ["b", "c", "d"] {
            graphs[0].alloc(stage, name, size)?;
        }
        graphs[0].capture_end(stage)?;
        graphs[1].capture_begin(stage)?;
        graphs[1].alloc(stage, "e", size)?;
        stage.free("c")?;
        graphs[1].capture_end(stage)?;
        graphs[2].capture_begin(stage)?;
        graphs[2].alloc(stage, "f", size)?;
        graphs[2].capture_end(stage)
    })
}

/// Runs the captures with separate pools and with one shared pool: sharing reserves `saved` fewer small segments.
fn successive(backend: &AnyBackend, saved: u64, captures: impl Fn(&mut Stage, [Graph; 3]) -> Result<(), Trouble>) -> Verdict {
    let mut reserved = Vec::new();
    let mut text = String::new();
    for is_shared in [false, true] {
        let (mut stage, stream) = setup(backend, Mode::Ordinary)?;
        let graphs = [1, 2, 3].map(|number| Graph { pool: pool(number, is_shared), stream });
        graphs[0].alloc(&mut stage, "a", Bytes(4000))?;
        captures(&mut stage, graphs)?;
        reserved.push(stage.core().heap().reserved());
        text += &format!("{}\n{}", if is_shared { "one pool" } else { "separate pools" }, stage.picture());
        for name in stage.names() {
            stage.free(&name)?;
        }
        for graph in &graphs[..=saved as usize] {
            graph.reset(&mut stage)?;
        }
        stage.finish()?;
    }
    same("bytes saved by sharing", reserved[0].saturating_sub(reserved[1]), Bytes(saved * SMALL_BUFFER))?;
    Ok(Evidence { text, operations: 20, ..Evidence::default() })
}
