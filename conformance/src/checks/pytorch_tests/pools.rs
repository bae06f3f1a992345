//! Tests private pools as `torch.cuda.MemPool` uses them. PyTorch's tests give a pool its own allocator in order to see
//! when it is called. These tests check the device calls instead: a pool's segments are allocated and freed at the same
//! points.

use parkade::PoolFilter;
use parkade::snapshot::SegmentInfo;
use parkade::units::{Bytes, MIB, PoolId, StreamId};

use super::support::{ensure, fill, holds, once, same};
use crate::backend::{AnyBackend, Needs};
use crate::scripted_allocator::Stage;
use crate::suite::{Entry, Evidence, Trouble, Verdict};

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
            "only a pool with the option set serves a request of the default pool when memory runs out",
            limited,
        ),
        once("test_mempool_no_split", "a pool without splitting has one segment per block", no_split),
        once("test_deleted_mempool_not_used_on_oom", "a dropped pool is not used when memory runs out", deleted),
        once(
            "test_mempool_emptycache_multithread",
            "empty_cache has no effect on a pool in use; four users use a pool in turn",
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
    same("pools of the remaining segments", pools, vec![PoolId::DEFAULT])?;
    let text = stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 4, ..Evidence::default() })
}

fn empty_cache_inactive(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, None)?;
    let pool = MemPool::new(&mut stage, 1)?;
    pool.alloc(&mut stage, "x", Bytes(16 * MIB))?;
    pool.drop(&mut stage)?;
    same("segments allocated and freed with the pool", traffic(&mut stage), (1, 0))?;
    stage.free("x")?;
    stage.release_cached()?;
    same("segments allocated and freed after it", traffic(&mut stage), (0, 1))?;
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
    same("number of uses after that", uses(&mut stage)?, 1)?;
    same("segments allocated and freed for the first tensor", traffic(&mut stage), (1, 0))?;
    stage.alloc("out_non_pool", Bytes(MIB))?.served()?;
    pool.enter(&mut stage)?;
    same("segments", pool.snapshot(&mut stage).len(), 1)?;
    stage.alloc("out_1", Bytes(MIB))?.served()?;
    same("segments with two tensors", pool.snapshot(&mut stage).len(), 1)?;
    stage.alloc("out_2", Bytes(MIB))?.served()?;
    same("segments with three tensors", pool.snapshot(&mut stage).len(), 2)?;
    pool.leave(&mut stage)?;
    let sizes: Vec<_> = pool.snapshot(&mut stage).iter().map(|segment| segment.total).collect();
    same("sizes of the segments", sizes, vec![Bytes::mib(2); 2])?;
    let text = stage.picture();
    for name in ["out_0", "out_1", "out_2"] {
        stage.free(name)?;
    }
    let _ = traffic(&mut stage);
    pool.drop(&mut stage)?;
    same("segments allocated and freed with the pool", traffic(&mut stage), (0, 2))?;
    stage.finish()?;
    Ok(Evidence { text, operations: 7, ..Evidence::default() })
}

fn tensor_after_pool(backend: &AnyBackend) -> Verdict {
    let mut stage = ordinary(backend, None)?;
    let pool = MemPool::new(&mut stage, 1)?;
    pool.alloc(&mut stage, "data", Bytes(16))?;
    pool.drop(&mut stage)?;
    same("segments allocated and freed with the pool", traffic(&mut stage), (1, 0))?;
    let address = stage.address("data")?;
    fill(&stage, "data", Bytes(16), 7, StreamId::DEFAULT)?;
    ensure(holds(&stage, address, 16, 7)?, || "the tensor lost its contents after its pool was dropped".to_owned())?;
    stage.free("data")?;
    stage.release_cached()?;
    same("segments allocated and freed after the tensor", traffic(&mut stage), (0, 1))?;
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
    same("the address of the request that the pool served", stage.address("c")?, b)?;
    stage.alloc("d", Bytes::mib(30))?.refusal()?;
    stage.free("c")?;
    serving.alloc(&mut stage, "e", Bytes::mib(20))?;
    same("the address of the pool's next request", stage.address("e")?, b)?;
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
    same("blocks of each segment of the pool that splits", blocks(&split), vec![3])?;
    same("blocks of each segment of the other pool", blocks(&kept), vec![1, 1])?;
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
    same("pools of the segments", pools, vec![pool.0])?;
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
        same("segments of a pool that was in use", pool.snapshot(&mut stage).len(), 1)?;
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
