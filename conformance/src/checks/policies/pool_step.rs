//! What a random program does with private pools: making them, routing requests to them as `use_mem_pool` and captures do, saving
//! and loading what they hand out.

use proptest::prelude::*;

use crate::backend::STREAMS;
use crate::checks::laws::operation::POOLS;
use crate::checks::laws::trial::stream_name;

/// One step. Pools have the numbers from 1 to [`POOLS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PoolStep {
    /// The pool is made, or used once more.
    Create(u64),
    /// Requests go to the pool: all of them, as in `use_mem_pool`, or those of a stream that is being captured from now on, by
    /// its place in [`STREAMS`].
    Begin(u64, Option<usize>),
    /// They do not any more. `use_mem_pool` ends its use with it; the graph of a capture keeps its own.
    End(u64),
    /// A use of the pool ends, as when a graph is dropped.
    Release(u64),
    /// The pool serves when memory is out.
    Serve(u64),
    /// The pool's segments are not split.
    KeepWhole(u64),
    /// `empty_cache` of the pool.
    ReleaseCached(u64),
    /// What the pool hands out is saved.
    Save(u64),
    /// It hands out again what it did when it was saved last.
    Load(u64),
}

impl PoolStep {
    /// The step as a line of a script.
    pub(super) fn line(self) -> String {
        match self {
            PoolStep::Create(pool) => format!("pool {pool} is made, or used once more"),
            PoolStep::Begin(pool, None) => format!("all requests go to pool {pool}"),
            PoolStep::Begin(pool, Some(place)) => {
                format!("stream {} is captured, its requests go to pool {pool}", stream_name(place))
            }
            PoolStep::End(pool) => format!("no requests go to pool {pool} any more"),
            PoolStep::Release(pool) => format!("a use of pool {pool} ends"),
            PoolStep::Serve(pool) => format!("pool {pool} serves when memory is out"),
            PoolStep::KeepWhole(pool) => format!("pool {pool} is not split"),
            PoolStep::ReleaseCached(pool) => format!("empty_cache of pool {pool}"),
            PoolStep::Save(pool) => format!("pool {pool} is saved"),
            PoolStep::Load(pool) => format!("pool {pool} is loaded"),
        }
    }
}

/// One of them, drawn.
pub(super) fn pool_step() -> impl Strategy<Value = PoolStep> {
    // Most steps are about one pool, so that they meet.
    let pool = || prop_oneof![2 => Just(1), 1 => 1..=POOLS];
    prop_oneof![
        2 => pool().prop_map(PoolStep::Create),
        6 => (pool(), prop_oneof![2 => Just(None), 3 => (0..STREAMS.len()).prop_map(Some)])
            .prop_map(|(pool, stream)| PoolStep::Begin(pool, stream)),
        // Most of the time nothing is routed: else nothing would ever be waited for.
        8 => pool().prop_map(PoolStep::End),
        2 => pool().prop_map(PoolStep::Release),
        1 => pool().prop_map(PoolStep::Serve),
        // One pool at most, or nothing would be split any more.
        1 => Just(PoolStep::KeepWhole(POOLS)),
        1 => pool().prop_map(PoolStep::ReleaseCached),
        3 => pool().prop_map(PoolStep::Save),
        4 => pool().prop_map(PoolStep::Load),
    ]
}
