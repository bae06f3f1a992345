//! Private pools as `torch.cuda.MemPool` uses them. Where the tests give a pool an allocator of its own, to see when it is called, here
//! the calls of the device are looked at: the segments of a pool come from it and go back to it at the same moments.

use parkade::PoolFilter;
use parkade::snapshot::SegmentInfo;
use parkade::units::{Bytes, MIB, PoolId, StreamId};

use super::{ensure, fill, holds, once, same};
use crate::backend::{Backend, Needs, TestDevice};
use crate::stage::Stage;
use crate::suite::{Entry, Evidence, Trouble, Verdict};

pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    vec![
        once("test_mempool_empty_cache", "a pool that goes leaves the default pool's cache alone", empty_cache),
        once(
            "test_mempool_empty_cache_inactive",
            "memory of a pool that is gone goes back once its last tensor is gone",
            empty_cache_inactive,
        ),
        once(
            "test_mempool_with_allocator",
            "uses of a pool are counted, and it packs small tensors into segments of its own",
            segments,
        ),
        once("test_tensor_delete_after_allocator_delete", "a tensor outlives its pool", tensor_after_pool),
        once(
            "test_mempool_limited_memory_with_allocator",
            "only a pool that was asked to serves a request of the default pool when memory is out",
            limited,
        ),
        once("test_mempool_no_split", "a pool that does not split has a segment for each block", no_split),
        once("test_deleted_mempool_not_used_on_oom", "a pool that is gone serves nobody when memory is out", deleted),
        once(
            "test_mempool_emptycache_multithread",
            "empty_cache does nothing to a pool in use; four users, one after the other",
            in_use,
        ),
        once("test_nested_mempool", "a request goes to the innermost pool", nested),
    ]
}

/// A pool, as long as its object lives in the test.
#[derive(Clone, Copy)]
struct MemPool(PoolId);

impl MemPool {
    fn new<D: TestDevice>(bench: &mut Stage<D>, number: u64) -> Result<MemPool, Trouble> {
        let id = PoolId(0, number);
        done(bench.core().create_pool(id))?;
        Ok(MemPool(id))
    }

    fn enter<D: TestDevice>(self, bench: &mut Stage<D>) -> Result<(), Trouble> {
        done(bench.core().begin_pool(self.0, PoolFilter::All))
    }

    fn leave<D: TestDevice>(self, bench: &mut Stage<D>) -> Result<(), Trouble> {
        done(bench.core().end_pool(self.0))?;
        done(bench.core().release_pool(self.0))
    }

    /// A request while the pool is in use.
    fn alloc<D: TestDevice>(self, bench: &mut Stage<D>, name: &str, bytes: Bytes) -> Result<(), Trouble> {
        self.enter(bench)?;
        let outcome = bench.alloc(name, bytes)?.served();
        self.leave(bench)?;
        outcome
    }

    fn snapshot<D: TestDevice>(self, bench: &mut Stage<D>) -> Vec<SegmentInfo> {
        bench.core().snapshot_pool(self.0)
    }

    /// What the object's destructor does (spec 5.4).
    fn drop<D: TestDevice>(self, bench: &mut Stage<D>) -> Result<(), Trouble> {
        bench.core().set_pool_use_on_oom(self.0, false);
        done(bench.core().release_pool(self.0))?;
        bench.core().release_cached_pool(self.0).map_err(|error| Trouble::fail(error.to_string()))
    }
}

fn done<T, E: std::fmt::Display>(outcome: Result<T, E>) -> Result<T, Trouble> {
    outcome.map_err(|error| Trouble::fail(error.to_string()))
}

/// How many segments came and went since this was last asked.
fn traffic<D: TestDevice>(bench: &mut Stage<D>) -> (usize, usize) {
    let calls = bench.calls();
    let count = |name: &str| calls.iter().filter(|call| call.split(' ').next() == Some(name)).count();
    (count("cudaMalloc"), count("cudaFree"))
}

fn ordinary<B: Backend>(backend: &B, limit: Option<Bytes>) -> Result<Stage<B::Device>, Trouble> {
    Stage::new(backend, &Needs::default(), "", limit)
}

fn empty_cache<B: Backend>(backend: &B) -> Verdict {
    let mut bench = ordinary(backend, None)?;
    let pool = MemPool::new(&mut bench, 1)?;
    bench.alloc("x", Bytes(4 * MIB))?.served()?;
    pool.alloc(&mut bench, "y", Bytes(4 * MIB))?;
    bench.free("y")?;
    bench.free("x")?;
    pool.drop(&mut bench)?;
    let pools: Vec<_> = bench.segments().iter().map(|segment| segment.pool).collect();
    same("pools of the segments that are left", pools, vec![PoolId::DEFAULT])?;
    let text = bench.picture();
    bench.finish()?;
    Ok(Evidence { text, operations: 4, ..Evidence::default() })
}

fn empty_cache_inactive<B: Backend>(backend: &B) -> Verdict {
    let mut bench = ordinary(backend, None)?;
    let pool = MemPool::new(&mut bench, 1)?;
    pool.alloc(&mut bench, "x", Bytes(16 * MIB))?;
    pool.drop(&mut bench)?;
    same("segments that came and went with the pool", traffic(&mut bench), (1, 0))?;
    bench.free("x")?;
    bench.release_cached()?;
    same("segments that came and went after it", traffic(&mut bench), (0, 1))?;
    bench.finish()?;
    Ok(Evidence::operations(3))
}

fn segments<B: Backend>(backend: &B) -> Verdict {
    let mut bench = ordinary(backend, None)?;
    let pool = MemPool::new(&mut bench, 1)?;
    let uses = |bench: &mut Stage<B::Device>| done(bench.core().pool_use_count(pool.0));
    same("uses of a new pool", uses(&mut bench)?, 1)?;
    same("segments that came and went before", traffic(&mut bench), (0, 0))?;
    pool.enter(&mut bench)?;
    bench.alloc("out_0", Bytes(MIB))?.served()?;
    same("uses while requests go to it", uses(&mut bench)?, 2)?;
    pool.leave(&mut bench)?;
    same("uses after that", uses(&mut bench)?, 1)?;
    same("segments that came and went for the first tensor", traffic(&mut bench), (1, 0))?;
    bench.alloc("out_non_pool", Bytes(MIB))?.served()?;
    pool.enter(&mut bench)?;
    same("segments", pool.snapshot(&mut bench).len(), 1)?;
    bench.alloc("out_1", Bytes(MIB))?.served()?;
    same("segments with two tensors", pool.snapshot(&mut bench).len(), 1)?;
    bench.alloc("out_2", Bytes(MIB))?.served()?;
    same("segments with three tensors", pool.snapshot(&mut bench).len(), 2)?;
    pool.leave(&mut bench)?;
    let sizes: Vec<_> = pool.snapshot(&mut bench).iter().map(|segment| segment.total).collect();
    same("sizes of the segments", sizes, vec![Bytes::mib(2); 2])?;
    let text = bench.picture();
    for name in ["out_0", "out_1", "out_2"] {
        bench.free(name)?;
    }
    let _ = traffic(&mut bench);
    pool.drop(&mut bench)?;
    same("segments that came and went with the pool", traffic(&mut bench), (0, 2))?;
    bench.finish()?;
    Ok(Evidence { text, operations: 7, ..Evidence::default() })
}

fn tensor_after_pool<B: Backend>(backend: &B) -> Verdict {
    let mut bench = ordinary(backend, None)?;
    let pool = MemPool::new(&mut bench, 1)?;
    pool.alloc(&mut bench, "data", Bytes(16))?;
    pool.drop(&mut bench)?;
    same("segments that came and went with the pool", traffic(&mut bench), (1, 0))?;
    let address = bench.address("data")?;
    fill(&bench, "data", Bytes(16), 7, StreamId::DEFAULT)?;
    ensure(holds(&bench, address, 16, 7)?, || "the tensor does not hold what was written after its pool".to_owned())?;
    bench.free("data")?;
    bench.release_cached()?;
    same("segments that came and went after the tensor", traffic(&mut bench), (0, 1))?;
    bench.finish()?;
    Ok(Evidence::operations(3))
}

fn limited<B: Backend>(backend: &B) -> Verdict {
    let mut bench = ordinary(backend, Some(Bytes::mib(80)))?;
    let (idle, serving) = (MemPool::new(&mut bench, 1)?, MemPool::new(&mut bench, 2)?);
    bench.core().set_pool_use_on_oom(serving.0, true);
    idle.alloc(&mut bench, "a", Bytes::mib(40))?;
    serving.alloc(&mut bench, "b", Bytes::mib(40))?;
    let b = bench.address("b")?;
    bench.alloc("c", Bytes::mib(40))?.refusal()?;
    bench.free("a")?;
    bench.free("b")?;
    bench.alloc("c", Bytes::mib(30))?.served()?;
    let text = bench.picture();
    same("the address of the request that was helped out", bench.address("c")?, b)?;
    bench.alloc("d", Bytes::mib(30))?.refusal()?;
    bench.free("c")?;
    serving.alloc(&mut bench, "e", Bytes::mib(20))?;
    same("the address of the pool's next request", bench.address("e")?, b)?;
    bench.free("e")?;
    serving.drop(&mut bench)?;
    idle.drop(&mut bench)?;
    bench.finish()?;
    Ok(Evidence { text, operations: 10, ..Evidence::default() })
}

fn no_split<B: Backend>(backend: &B) -> Verdict {
    let mut bench = ordinary(backend, None)?;
    let (splitting, whole) = (MemPool::new(&mut bench, 1)?, MemPool::new(&mut bench, 2)?);
    bench.core().set_pool_no_split(whole.0);
    for (split, kept) in [("a_split", "a_no_split"), ("b_split", "b_no_split")] {
        splitting.alloc(&mut bench, split, Bytes::mib(4))?;
        whole.alloc(&mut bench, kept, Bytes::mib(4))?;
    }
    let (split, kept) = (splitting.snapshot(&mut bench), whole.snapshot(&mut bench));
    let blocks = |segments: &[SegmentInfo]| segments.iter().map(|segment| segment.blocks.len()).collect::<Vec<_>>();
    same("blocks of each segment of the pool that splits", blocks(&split), vec![3])?;
    same("blocks of each segment of the other pool", blocks(&kept), vec![1, 1])?;
    let text = bench.picture();
    for name in bench.names() {
        bench.free(&name)?;
    }
    splitting.drop(&mut bench)?;
    whole.drop(&mut bench)?;
    bench.finish()?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

fn deleted<B: Backend>(backend: &B) -> Verdict {
    let mut bench = ordinary(backend, Some(Bytes::mib(40)))?;
    for number in 1..=10 {
        let pool = MemPool::new(&mut bench, number)?;
        bench.core().set_pool_use_on_oom(pool.0, true);
        pool.alloc(&mut bench, "a", Bytes::mib(40))?;
        bench.free("a")?;
        pool.drop(&mut bench)?;
    }
    let pool = MemPool::new(&mut bench, 11)?;
    bench.core().set_pool_use_on_oom(pool.0, true);
    pool.alloc(&mut bench, "a", Bytes::mib(40))?;
    bench.free("a")?;
    for name in ["b", "c"] {
        bench.alloc(name, Bytes::mib(20))?.served()?;
    }
    let pools: Vec<_> = bench.segments().iter().map(|segment| segment.pool).collect();
    same("pools of the segments", pools, vec![pool.0])?;
    let text = bench.picture();
    bench.free("b")?;
    bench.free("c")?;
    pool.drop(&mut bench)?;
    bench.finish()?;
    Ok(Evidence { text, operations: 26, ..Evidence::default() })
}

fn in_use<B: Backend>(backend: &B) -> Verdict {
    let mut bench = ordinary(backend, None)?;
    let mut pools = Vec::new();
    for number in 1..=4 {
        let pool = MemPool::new(&mut bench, number)?;
        pool.enter(&mut bench)?;
        bench.alloc("x", Bytes(16))?.served()?;
        bench.free("x")?;
        bench.release_cached()?;
        pool.leave(&mut bench)?;
        pools.push(pool);
    }
    for pool in pools {
        same("segments of a pool that was in use", pool.snapshot(&mut bench).len(), 1)?;
        pool.drop(&mut bench)?;
    }
    bench.finish()?;
    Ok(Evidence::operations(12))
}

fn nested<B: Backend>(backend: &B) -> Verdict {
    let mut bench = ordinary(backend, None)?;
    let pools = [MemPool::new(&mut bench, 1)?, MemPool::new(&mut bench, 2)?, MemPool::new(&mut bench, 3)?];
    let mut names = ["a", "b", "c", "d", "e"].into_iter();
    let mut alloc = |bench: &mut Stage<B::Device>| bench.alloc(names.next().unwrap_or("f"), Bytes::mib(20))?.served();
    for pool in pools {
        pool.enter(&mut bench)?;
        alloc(&mut bench)?;
    }
    for pool in pools.into_iter().rev() {
        pool.leave(&mut bench)?;
        if pool.0 != pools[0].0 {
            alloc(&mut bench)?;
        }
    }
    let counts: Vec<_> = pools.iter().map(|pool| pool.snapshot(&mut bench).len()).collect();
    same("segments of the three pools", counts, vec![2, 2, 1])?;
    let text = bench.picture();
    for name in bench.names() {
        bench.free(&name)?;
    }
    pools.into_iter().try_for_each(|pool| pool.drop(&mut bench))?;
    bench.finish()?;
    Ok(Evidence { text, operations: 10, ..Evidence::default() })
}
