//! Tests private pools, as `torch.cuda.MemPool` and graph capture use them.
//!
//! PyTorch's tests give a pool its own allocator in order to see when it is called. These tests check the device calls
//! instead: a pool's segments are allocated and freed at the same points.
//!
//! The allocator's part in graph capture is a private pool for the stream under capture, no event calls during the
//! capture, and memory that is kept as long as the graph or one of its outputs exists. Kernels and replays do not
//! concern the allocator and are left out.

use parkade::PoolFilter;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::Family;
use parkade::units::{Bytes, MIB, PoolClass, PoolId, StreamId};

use super::support::{Mode, ensure, fill, holds, once, same, twice};
use crate::backend::{AnyBackend, Needs, TestDevice};
use crate::scripted_allocator::Stage;
use crate::suite::{Effort, Entry, Evidence, Trouble, Verdict};

pub(super) fn entries() -> Vec<Entry> {
    vec![
        once("test_mempool_empty_cache", "dropping a pool leaves the default pool's cache untouched", empty_cache),
        once(
            "test_mempool_empty_cache_inactive",
            "a dropped pool's memory is released once its last tensor is freed",
            empty_cache_inactive,
        ),
        once(
            "test_mempool_with_allocator",
            "a pool's uses are counted, and the pool packs small tensors into its own segments",
            segments,
        ),
        once("test_tensor_delete_after_allocator_delete", "a tensor outlives its pool", tensor_after_pool),
        once(
            "test_mempool_limited_memory_with_allocator",
            "only a pool with the option use_on_oom serves the default pool's requests when memory runs out",
            limited,
        ),
        once("test_mempool_no_split", "a pool that does not split has one segment per block", no_split),
        once("test_deleted_mempool_not_used_on_oom", "a dropped pool serves no requests when memory runs out", deleted),
        once(
            "test_mempool_emptycache_multithread",
            "empty_cache has no effect on a pool in use, and four users can take turns using one pool",
            in_use,
        ),
        once("test_nested_mempool", "a request is served by the innermost pool", nested),
    ]
}

/// A pool that exists as long as its object lives in the test.
#[derive(Clone, Copy)]
struct MemPool(PoolId);

impl MemPool {
    fn new(stage: &mut Stage, number: u64) -> Result<MemPool, Trouble> {
        let id = PoolId(0, number);
        done(stage.core().create_pool(id))?;
        Ok(MemPool(id))
    }

    fn enter(self, stage: &mut Stage) -> Result<(), Trouble> {
        done(stage.core().begin_pool(self.0, PoolFilter::All))
    }

    fn leave(self, stage: &mut Stage) -> Result<(), Trouble> {
        done(stage.core().end_pool(self.0))?;
        done(stage.core().release_pool(self.0))
    }

    /// Makes a request while the pool is in use.
    fn alloc(self, stage: &mut Stage, name: &str, bytes: Bytes) -> Result<(), Trouble> {
        self.enter(stage)?;
        let outcome = stage.alloc(name, bytes)?.served();
        self.leave(stage)?;
        outcome
    }

    fn snapshot(self, stage: &mut Stage) -> Vec<SegmentInfo> {
        stage.core().snapshot_pool(self.0)
    }

    /// Does what the object's destructor does (spec 5.4).
    fn drop(self, stage: &mut Stage) -> Result<(), Trouble> {
        stage.core().set_pool_use_on_oom(self.0, false);
        done(stage.core().release_pool(self.0))?;
        stage.core().release_cached_pool(self.0).map_err(|error| Trouble::fail(error.to_string()))
    }
}

fn done<T, E: std::fmt::Display>(outcome: Result<T, E>) -> Result<T, Trouble> {
    outcome.map_err(|error| Trouble::fail(error.to_string()))
}

/// Returns the numbers of segments allocated and freed since the last call.
fn traffic(stage: &mut Stage) -> (usize, usize) {
    let calls = stage.calls();
    let count = |name: &str| calls.iter().filter(|call| call.split(' ').next() == Some(name)).count();
    (count("cudaMalloc"), count("cudaFree"))
}

fn ordinary(backend: &AnyBackend, limit: Option<Bytes>) -> Result<Stage, Trouble> {
    Stage::new(backend, &Needs::default(), "", limit)
}

fn empty_cache(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, None)?;
    let pool = MemPool::new(&mut stage, 1)?;
    stage.alloc("x", Bytes(4 * MIB))?.served()?;
    pool.alloc(&mut stage, "y", Bytes(4 * MIB))?;
    stage.free("y")?;
    stage.free("x")?;
    pool.drop(&mut stage)?;
    let pools: Vec<_> = stage.segments().iter().map(|segment| segment.pool).collect();
    same("pools to which the remaining segments belong", pools, vec![PoolId::DEFAULT])?;
    let text = stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 4, ..Evidence::default() })
}

fn empty_cache_inactive(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, None)?;
    let pool = MemPool::new(&mut stage, 1)?;
    pool.alloc(&mut stage, "x", Bytes(16 * MIB))?;
    pool.drop(&mut stage)?;
    same("segments allocated and freed by the time the pool is dropped", traffic(&mut stage), (1, 0))?;
    stage.free("x")?;
    stage.release_cached()?;
    same("segments allocated and freed after the tensor is freed", traffic(&mut stage), (0, 1))?;
    stage.finish()?;
    Ok(Evidence::operations(3))
}

fn segments(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, None)?;
    let pool = MemPool::new(&mut stage, 1)?;
    let uses = |stage: &mut Stage| done(stage.core().pool_use_count(pool.0));
    same("number of uses of a new pool", uses(&mut stage)?, 1)?;
    same("segments allocated and freed before", traffic(&mut stage), (0, 0))?;
    pool.enter(&mut stage)?;
    stage.alloc("out_0", Bytes(MIB))?.served()?;
    same("number of uses while requests are routed to it", uses(&mut stage)?, 2)?;
    pool.leave(&mut stage)?;
    same("number of uses after routing has ended", uses(&mut stage)?, 1)?;
    same("segments allocated and freed for the first tensor", traffic(&mut stage), (1, 0))?;
    stage.alloc("out_non_pool", Bytes(MIB))?.served()?;
    pool.enter(&mut stage)?;
    same("segments", pool.snapshot(&mut stage).len(), 1)?;
    stage.alloc("out_1", Bytes(MIB))?.served()?;
    same("number of segments when two tensors are live", pool.snapshot(&mut stage).len(), 1)?;
    stage.alloc("out_2", Bytes(MIB))?.served()?;
    same("number of segments when three tensors are live", pool.snapshot(&mut stage).len(), 2)?;
    pool.leave(&mut stage)?;
    let sizes: Vec<_> = pool.snapshot(&mut stage).iter().map(|segment| segment.total).collect();
    same("sizes of the segments", sizes, vec![Bytes::mib(2); 2])?;
    let text = stage.picture();
    for name in ["out_0", "out_1", "out_2"] {
        stage.free(name)?;
    }
    let _ = traffic(&mut stage);
    pool.drop(&mut stage)?;
    same("segments allocated and freed when the pool is dropped", traffic(&mut stage), (0, 2))?;
    stage.finish()?;
    Ok(Evidence { text, operations: 7, ..Evidence::default() })
}

fn tensor_after_pool(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, None)?;
    let pool = MemPool::new(&mut stage, 1)?;
    pool.alloc(&mut stage, "data", Bytes(16))?;
    pool.drop(&mut stage)?;
    same("segments allocated and freed by the time the pool is dropped", traffic(&mut stage), (1, 0))?;
    let address = stage.address("data")?;
    fill(&stage, "data", Bytes(16), 7, StreamId::DEFAULT)?;
    ensure(holds(&stage, address, 16, 7)?, || "the tensor lost its contents after its pool was dropped".to_owned())?;
    stage.free("data")?;
    stage.release_cached()?;
    same("segments allocated and freed after the tensor is freed", traffic(&mut stage), (0, 1))?;
    stage.finish()?;
    Ok(Evidence::operations(3))
}

fn limited(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, Some(Bytes::mib(80)))?;
    let (idle, serving) = (MemPool::new(&mut stage, 1)?, MemPool::new(&mut stage, 2)?);
    stage.core().set_pool_use_on_oom(serving.0, true);
    idle.alloc(&mut stage, "a", Bytes::mib(40))?;
    serving.alloc(&mut stage, "b", Bytes::mib(40))?;
    let b = stage.address("b")?;
    stage.alloc("c", Bytes::mib(40))?.refusal()?;
    stage.free("a")?;
    stage.free("b")?;
    stage.alloc("c", Bytes::mib(30))?.served()?;
    let text = stage.picture();
    same("the address that the pool returned for the request", stage.address("c")?, b)?;
    stage.alloc("d", Bytes::mib(30))?.refusal()?;
    stage.free("c")?;
    serving.alloc(&mut stage, "e", Bytes::mib(20))?;
    same("the address that the pool returned for the next request", stage.address("e")?, b)?;
    stage.free("e")?;
    serving.drop(&mut stage)?;
    idle.drop(&mut stage)?;
    stage.finish()?;
    Ok(Evidence { text, operations: 10, ..Evidence::default() })
}

fn no_split(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, None)?;
    let (splitting, whole) = (MemPool::new(&mut stage, 1)?, MemPool::new(&mut stage, 2)?);
    stage.core().set_pool_no_split(whole.0);
    for (split, kept) in [("a_split", "a_no_split"), ("b_split", "b_no_split")] {
        splitting.alloc(&mut stage, split, Bytes::mib(4))?;
        whole.alloc(&mut stage, kept, Bytes::mib(4))?;
    }
    let (split, kept) = (splitting.snapshot(&mut stage), whole.snapshot(&mut stage));
    let blocks = |segments: &[SegmentInfo]| segments.iter().map(|segment| segment.blocks.len()).collect::<Vec<_>>();
    same("blocks in each segment of the pool that splits", blocks(&split), vec![3])?;
    same("blocks in each segment of the other pool", blocks(&kept), vec![1, 1])?;
    let text = stage.picture();
    for name in stage.names() {
        stage.free(&name)?;
    }
    splitting.drop(&mut stage)?;
    whole.drop(&mut stage)?;
    stage.finish()?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

fn deleted(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, Some(Bytes::mib(40)))?;
    for number in 1..=10 {
        let pool = MemPool::new(&mut stage, number)?;
        stage.core().set_pool_use_on_oom(pool.0, true);
        pool.alloc(&mut stage, "a", Bytes::mib(40))?;
        stage.free("a")?;
        pool.drop(&mut stage)?;
    }
    let pool = MemPool::new(&mut stage, 11)?;
    stage.core().set_pool_use_on_oom(pool.0, true);
    pool.alloc(&mut stage, "a", Bytes::mib(40))?;
    stage.free("a")?;
    for name in ["b", "c"] {
        stage.alloc(name, Bytes::mib(20))?.served()?;
    }
    let pools: Vec<_> = stage.segments().iter().map(|segment| segment.pool).collect();
    same("pools to which the segments belong", pools, vec![pool.0])?;
    let text = stage.picture();
    stage.free("b")?;
    stage.free("c")?;
    pool.drop(&mut stage)?;
    stage.finish()?;
    Ok(Evidence { text, operations: 26, ..Evidence::default() })
}

fn in_use(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, None)?;
    let mut pools = Vec::new();
    for number in 1..=4 {
        let pool = MemPool::new(&mut stage, number)?;
        pool.enter(&mut stage)?;
        stage.alloc("x", Bytes(16))?.served()?;
        stage.free("x")?;
        stage.release_cached()?;
        pool.leave(&mut stage)?;
        pools.push(pool);
    }
    for pool in pools {
        same("segments of a pool while it is in use", pool.snapshot(&mut stage).len(), 1)?;
        pool.drop(&mut stage)?;
    }
    stage.finish()?;
    Ok(Evidence::operations(12))
}

fn nested(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, None)?;
    let pools = [MemPool::new(&mut stage, 1)?, MemPool::new(&mut stage, 2)?, MemPool::new(&mut stage, 3)?];
    let mut names = ["a", "b", "c", "d", "e"].into_iter();
    let mut alloc = |stage: &mut Stage| stage.alloc(names.next().unwrap_or("f"), Bytes::mib(20))?.served();
    for pool in pools {
        pool.enter(&mut stage)?;
        alloc(&mut stage)?;
    }
    for pool in pools.into_iter().rev() {
        pool.leave(&mut stage)?;
        if pool.0 != pools[0].0 {
            alloc(&mut stage)?;
        }
    }
    let counts: Vec<_> = pools.iter().map(|pool| pool.snapshot(&mut stage).len()).collect();
    same("segments of the three pools", counts, vec![2, 2, 1])?;
    let text = stage.picture();
    for name in stage.names() {
        stage.free(&name)?;
    }
    pools.into_iter().try_for_each(|pool| pool.drop(&mut stage))?;
    stage.finish()?;
    Ok(Evidence { text, operations: 10, ..Evidence::default() })
}

const SMALL_SIZE: u64 = MIB;
const SMALL_BUFFER: u64 = 2 * MIB;
const LARGE_BUFFER: u64 = 20 * MIB;
const MIN_LARGE: u64 = 10 * MIB;
const ROUND_LARGE: u64 = 2 * MIB;

pub(super) fn graph_entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "requests during capture are served from the capture's own pool, and other requests are not";
    entries.extend(twice("test_graph_capture_simple", says, simple));
    let says = "after a reset, the first capture's memory is released, and a second capture works";
    entries.extend(twice("test_graph_capture_reset_recapture", says, recapture));
    let says = "running out of memory during capture is an ordinary error, and the next capture works";
    entries.extend(twice("test_graph_capture_oom", says, out_of_memory));
    let says = "successive captures hold no more memory than one capture";
    entries.extend(twice("test_repeat_graph_capture_cublas_workspace_memory", says, repeated));
    let name = "test_graph_memory_stats_and_use_result_after_destroy_graph";
    let says =
        "a capture reserves the memory that its requests need; after the graph is reset, a result keeps only its own segment";
    entries.push(once(name, says, result_outlives_graph));
    let says = "the allocator makes no event calls during capture, and blocks used by other streams are free afterwards";
    entries.extend(twice("test_graph_record_stream", says, record_stream));
    let says = "two captures that share a pool reserve one fewer small segment than two captures with separate pools";
    entries.push(once("test_graph_two_successive", says, two_successive));
    let says = "three captures that share a pool reserve two fewer small segments than three captures with separate pools";
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
        same("reserved bytes while a graph exists", now, *reserved.get_or_insert(now))?;
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
        same(
            &format!("segments, their bytes, active blocks and their bytes with {size} after the graph's reset"),
            grown(&stage),
            expected,
        )?;
        text += &stage.picture();
        stage.free("a")?;
        stage.free("b5")?;
        stage.release_cached()?;
        same("number of segments at the end of the test", stage.segments().len(), 0)?;
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
    same("number of event calls during capture", asked, Vec::new())?;
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
    same("number of bytes saved by sharing the pool", reserved[0].saturating_sub(reserved[1]), Bytes(saved * SMALL_BUFFER))?;
    Ok(Evidence { text, operations: 20, ..Evidence::default() })
}
