//! What the capture of a graph asks of the allocator: a private pool for the stream under capture, no call for an event meanwhile, and
//! memory that stays while the graph or one of its outputs lives. Kernels and replays are the graph's own business and left out.

use parkade::PoolFilter;
use parkade::snapshot::BlockActivity;
use parkade::stats::Family;
use parkade::units::{Bytes, MIB, PoolClass, PoolId, StreamId};

use super::{Mode, ensure, fill, once, same, twice};
use crate::backend::{Backend, Needs, TestDevice};
use crate::stage::Stage;
use crate::suite::{Effort, Entry, Evidence, Trouble, Verdict};

const SMALL_SIZE: u64 = MIB;
const SMALL_BUFFER: u64 = 2 * MIB;
const LARGE_BUFFER: u64 = 20 * MIB;
const MIN_LARGE: u64 = 10 * MIB;
const ROUND_LARGE: u64 = 2 * MIB;

pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    let mut entries = Vec::new();
    let says = "what is requested under capture has a pool of its own, and what is requested elsewhere does not";
    entries.extend(twice("test_graph_capture_simple", says, simple));
    let says = "after a reset the first capture's memory goes back, and a second capture works";
    entries.extend(twice("test_graph_capture_reset_recapture", says, recapture));
    let says = "out of memory under capture is an error like any other, and the next capture works";
    entries.extend(twice("test_graph_capture_oom", says, out_of_memory));
    let says = "captures one after the other hold no more memory than one";
    entries.extend(twice("test_repeat_graph_capture_cublas_workspace_memory", says, repeated));
    let name = "test_graph_memory_stats_and_use_result_after_destroy_graph";
    let says =
        "a capture counts as much memory as its sizes say; a result keeps its segment when the graph is gone, and only that";
    entries.push(once(name, says, result_outlives_graph));
    let says = "no event is asked for under capture; blocks used by other streams are free afterwards";
    entries.extend(twice("test_graph_record_stream", says, record_stream));
    let says = "two captures in one pool reserve a small segment less than in two";
    entries.push(once("test_graph_two_successive", says, two_successive));
    let says = "three captures in one pool reserve two small segments less than in three";
    entries.push(once("test_graph_three_successive", says, three_successive));
    entries
}

/// A graph: its pool, and the stream that it is captured on.
#[derive(Clone, Copy)]
struct Graph {
    pool: PoolId,
    stream: StreamId,
}

impl Graph {
    fn capture_begin<D: TestDevice>(self, bench: &mut Stage<D>) -> Result<(), Trouble> {
        bench.core().set_capturing(true);
        done(bench.core().begin_pool(self.pool, PoolFilter::Stream(self.stream)))
    }

    fn capture_end<D: TestDevice>(self, bench: &mut Stage<D>) -> Result<(), Trouble> {
        done(bench.core().end_pool(self.pool))?;
        bench.core().set_capturing(false);
        Ok(())
    }

    /// A graph that is reset or destroyed uses its pool no more.
    fn reset<D: TestDevice>(self, bench: &mut Stage<D>) -> Result<(), Trouble> {
        done(bench.core().release_pool(self.pool))
    }

    fn alloc<D: TestDevice>(self, bench: &mut Stage<D>, name: &str, bytes: Bytes) -> Result<(), Trouble> {
        bench.alloc_on(name, bytes, self.stream)?.served()
    }
}

fn done<T, E: std::fmt::Display>(outcome: Result<T, E>) -> Result<T, Trouble> {
    outcome.map_err(|error| Trouble::fail(error.to_string()))
}

fn setup<B: Backend>(backend: &B, mode: Mode) -> Result<(Stage<B::Device>, StreamId), Trouble> {
    let bench = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    let stream = bench.streams()[1];
    Ok((bench, stream))
}

/// The pool of the segment that holds a named allocation.
fn pool_of<D: TestDevice>(bench: &Stage<D>, name: &str) -> Result<PoolId, Trouble> {
    let address = bench.address(name)?.get();
    let holds = |start: u64, bytes: u64| start <= address && address - start < bytes;
    let segments = bench.segments();
    let found = segments.iter().find(|segment| holds(segment.address.get(), segment.total.get())).map(|segment| segment.pool);
    found.ok_or_else(|| Trouble::fail(format!("no segment holds {name}")))
}

fn simple<B: Backend>(backend: &B, mode: Mode, _: &Effort) -> Verdict {
    let (mut bench, stream) = setup(backend, mode)?;
    let graph = Graph { pool: PoolId(1, 0), stream };
    graph.alloc(&mut bench, "a", Bytes(4000))?;
    graph.capture_begin(&mut bench)?;
    graph.alloc(&mut bench, "b", Bytes(4000))?;
    bench.alloc("elsewhere", Bytes(4000))?.served()?;
    graph.capture_end(&mut bench)?;
    graph.alloc(&mut bench, "after", Bytes(4000))?;
    for (name, pool) in [("a", PoolId::DEFAULT), ("b", graph.pool), ("elsewhere", PoolId::DEFAULT), ("after", PoolId::DEFAULT)] {
        same(name, pool_of(&bench, name)?, pool)?;
    }
    let text = bench.picture();
    graph.reset(&mut bench)?;
    bench.finish()?;
    Ok(Evidence { text, operations: 4, ..Evidence::default() })
}

fn recapture<B: Backend>(backend: &B, mode: Mode, _: &Effort) -> Verdict {
    let (mut bench, stream) = setup(backend, mode)?;
    for number in 1..=2 {
        let graph = Graph { pool: PoolId(number, 0), stream };
        graph.capture_begin(&mut bench)?;
        graph.alloc(&mut bench, "b", Bytes(4000))?;
        graph.capture_end(&mut bench)?;
        same("the pool", pool_of(&bench, "b")?, graph.pool)?;
        bench.free("b")?;
        bench.release_cached()?;
        ensure(!bench.segments().is_empty(), || "the graph's memory went while the graph was there".to_owned())?;
        graph.reset(&mut bench)?;
        bench.release_cached()?;
        same("segments after the reset", bench.segments().len(), 0)?;
    }
    bench.finish()?;
    Ok(Evidence::operations(4))
}

fn out_of_memory<B: Backend>(backend: &B, mode: Mode, _: &Effort) -> Verdict {
    let (mut bench, stream) = setup(backend, mode)?;
    let graph = Graph { pool: PoolId(1, 0), stream };
    graph.capture_begin(&mut bench)?;
    let refusal = bench.alloc_on("all", Bytes(4 << 40), stream)?.refusal()?;
    ensure(refusal.contains("out of memory"), || format!("the message is: {refusal}"))?;
    graph.capture_end(&mut bench)?;
    graph.reset(&mut bench)?;
    let next = Graph { pool: PoolId(2, 0), stream };
    next.capture_begin(&mut bench)?;
    next.alloc(&mut bench, "b", Bytes(4000))?;
    next.capture_end(&mut bench)?;
    let text = bench.picture();
    next.reset(&mut bench)?;
    bench.finish()?;
    Ok(Evidence { text, operations: 2, ..Evidence::default() })
}

/// The workspace is cuBLAS's own choice of size; it lives as long as the graph.
fn repeated<B: Backend>(backend: &B, mode: Mode, _: &Effort) -> Verdict {
    const WORKSPACE: Bytes = Bytes(4096 * 2 * 1024 + 16 * 8 * 1024);
    let (mut bench, stream) = setup(backend, mode)?;
    let mut reserved = None;
    for number in 1..=10 {
        let graph = Graph { pool: PoolId(number, 0), stream };
        graph.capture_begin(&mut bench)?;
        graph.alloc(&mut bench, "workspace", WORKSPACE)?;
        graph.alloc(&mut bench, "product", Bytes(4 * MIB))?;
        bench.free("product")?;
        graph.capture_end(&mut bench)?;
        let now = bench.core().heap().reserved();
        same("reserved bytes with a graph", now, *reserved.get_or_insert(now))?;
        bench.free("workspace")?;
        graph.reset(&mut bench)?;
        bench.release_cached()?;
    }
    let text = bench.figures();
    bench.finish()?;
    Ok(Evidence { text, operations: 40, ..Evidence::default() })
}

/// For each size: segments, their bytes together, and those of the one that the result stays in.
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

fn result_outlives_graph<B: Backend>(backend: &B) -> Verdict {
    let mut text = String::new();
    for (number, (size, segments, bytes, bytes_left, class)) in (1..).zip(sizes()) {
        let (mut bench, stream) = setup(backend, Mode::Ordinary)?;
        let graph = Graph { pool: PoolId(number, 0), stream };
        graph.alloc(&mut bench, "a", Bytes(size))?;
        let before = counted(&bench, class);
        graph.capture_begin(&mut bench)?;
        capture_chain(&mut bench, graph, Bytes(size))?;
        graph.capture_end(&mut bench)?;
        let grown = |bench: &Stage<B::Device>| {
            let now = counted(bench, class);
            [0, 1, 2, 3].map(|place| now[place] - before[place])
        };
        let expected = [segments, bytes.cast_signed(), 1, size.cast_signed()];
        same(&format!("segments, their bytes, active blocks and bytes of {size} captured"), grown(&bench), expected)?;
        graph.reset(&mut bench)?;
        bench.device().steer().settle();
        bench.release_cached()?;
        let expected = [1, bytes_left.cast_signed(), 1, size.cast_signed()];
        same(&format!("the same of {size} after the graph"), grown(&bench), expected)?;
        text += &bench.picture();
        bench.free("a")?;
        bench.free("b5")?;
        bench.release_cached()?;
        same("segments at the end", bench.segments().len(), 0)?;
        bench.finish()?;
    }
    Ok(Evidence { text, operations: 5 * 24, ..Evidence::default() })
}

/// `b = a.clone()`, then five times `b = b.clone() + 1`: at most three tensors live at a time, and the last `b`, `b5`,
/// is left.
fn capture_chain<D: TestDevice>(bench: &mut Stage<D>, graph: Graph, size: Bytes) -> Result<(), Trouble> {
    graph.alloc(bench, "b0", size)?;
    for round in 0..5 {
        graph.alloc(bench, "clone", size)?;
        graph.alloc(bench, &format!("b{}", round + 1), size)?;
        bench.free("clone")?;
        bench.free(&format!("b{round}"))?;
    }
    Ok(())
}

fn counted<D: TestDevice>(bench: &Stage<D>, class: PoolClass) -> [i64; 4] {
    [Family::Segment, Family::ReservedBytes, Family::Active, Family::ActiveBytes].map(|family| {
        let set = bench.stats().family(family);
        if class == PoolClass::Small { set.small.current } else { set.large.current }
    })
}

fn record_stream<B: Backend>(backend: &B, mode: Mode, _: &Effort) -> Verdict {
    let (mut bench, stream) = setup(backend, mode)?;
    let [_, _, side, third] = bench.streams();
    bench.alloc("problem", Bytes(12))?.served()?;
    bench.record_stream("problem", third)?;
    bench.device().steer().spin(third, 20_000_000)?;
    fill(&bench, "problem", Bytes(12), 1, third)?;
    bench.free("problem")?;
    let _ = bench.calls();
    let graph = Graph { pool: PoolId(1, 0), stream };
    graph.capture_begin(&mut bench)?;
    graph.alloc(&mut bench, "b", Bytes(12))?;
    bench.record_stream("b", side)?;
    bench.free("b")?;
    graph.alloc(&mut bench, "c", Bytes(12))?;
    graph.capture_end(&mut bench)?;
    let asked: Vec<String> = bench.calls().into_iter().filter(|call| call.contains("Event")).collect();
    same("calls for events under capture", asked, Vec::new())?;
    let mut text = bench.picture();
    bench.device().steer().settle();
    // The first request after the capture gives the deferred block its events, the second one surely sees them done.
    for name in ["dummy", "dummy2"] {
        bench.alloc(name, Bytes(12))?.served()?;
        bench.device().steer().settle();
    }
    let blocks = bench.segments().into_iter().flat_map(|segment| segment.blocks);
    let pending = blocks.filter(|block| block.state == BlockActivity::PendingFree).count();
    same("blocks that wait", pending, 0)?;
    text += "\n";
    text += &bench.picture();
    graph.reset(&mut bench)?;
    bench.finish()?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

/// The pool of the n-th of several captures.
fn pool(number: u64, is_shared: bool) -> PoolId {
    if is_shared { PoolId(0, 1) } else { PoolId(number, 0) }
}

/// Two captures of sums with temporaries.
fn two_successive<B: Backend>(backend: &B) -> Verdict {
    successive(backend, 1, |bench, graphs| {
        graphs[0].capture_begin(bench)?;
        graphs[0].alloc(bench, "b0", Bytes(4000))?;
        sums(bench, graphs[0], 0)?;
        graphs[0].capture_end(bench)?;
        graphs[1].capture_begin(bench)?;
        sums(bench, graphs[1], 5)?;
        graphs[1].capture_end(bench)
    })
}

/// Five times a sum of two sums, each with a copy as a temporary; `first` is the number of the `b` that there is.
fn sums<D: TestDevice>(bench: &mut Stage<D>, graph: Graph, first: u32) -> Result<(), Trouble> {
    let size = Bytes(4000);
    for round in first..first + 5 {
        for name in ["x", "y"] {
            graph.alloc(bench, "clone", size)?;
            graph.alloc(bench, name, size)?;
            bench.free("clone")?;
        }
        graph.alloc(bench, &format!("b{}", round + 1), size)?;
        for name in ["x", "y", &format!("b{round}")] {
            bench.free(name)?;
        }
    }
    Ok(())
}

fn three_successive<B: Backend>(backend: &B) -> Verdict {
    let size = Bytes(4000);
    successive(backend, 2, |bench, graphs| {
        graphs[0].capture_begin(bench)?;
        for name in ["b", "c", "d"] {
            graphs[0].alloc(bench, name, size)?;
        }
        graphs[0].capture_end(bench)?;
        graphs[1].capture_begin(bench)?;
        graphs[1].alloc(bench, "e", size)?;
        bench.free("c")?;
        graphs[1].capture_end(bench)?;
        graphs[2].capture_begin(bench)?;
        graphs[2].alloc(bench, "f", size)?;
        graphs[2].capture_end(bench)
    })
}

/// The captures with a pool for each and with one pool for all: the latter reserve so many small segments less.
fn successive<B: Backend>(
    backend: &B,
    saved: u64,
    captures: impl Fn(&mut Stage<B::Device>, [Graph; 3]) -> Result<(), Trouble>,
) -> Verdict {
    let mut reserved = Vec::new();
    let mut text = String::new();
    for is_shared in [false, true] {
        let (mut bench, stream) = setup(backend, Mode::Ordinary)?;
        let graphs = [1, 2, 3].map(|number| Graph { pool: pool(number, is_shared), stream });
        graphs[0].alloc(&mut bench, "a", Bytes(4000))?;
        captures(&mut bench, graphs)?;
        reserved.push(bench.core().heap().reserved());
        text += &format!("{}\n{}", if is_shared { "one pool" } else { "a pool each" }, bench.picture());
        for name in bench.names() {
            bench.free(&name)?;
        }
        for graph in &graphs[..=saved as usize] {
            graph.reset(&mut bench)?;
        }
        bench.finish()?;
    }
    same("bytes saved by sharing", reserved[0].saturating_sub(reserved[1]), Bytes(saved * SMALL_BUFFER))?;
    Ok(Evidence { text, operations: 20, ..Evidence::default() })
}
