//! What a random program does with private pools: creating them, routing requests to them like `use_mem_pool` and graph
//! captures, saving and loading what they have handed out.

use proptest::prelude::*;

use crate::backend::STREAMS;
use crate::checks::laws_pytorch::operation::POOLS;
use crate::checks::laws_pytorch::trial::stream_name;
use serde::{Deserialize, Serialize};

/// One step. Pools are numbered from 1 to [`POOLS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum PoolStep {
    /// Creates the pool, or adds a use to it.
    Create(u64),
    /// Routes requests to the pool: all of them, as in `use_mem_pool`, or those of a stream that is captured from now on, given
    /// by its index in [`STREAMS`].
    Begin(u64, Option<usize>),
    /// Ends the routing. `use_mem_pool` then ends its use of the pool; the graph of a capture keeps its own.
    End(u64),
    /// Ends a use of the pool, as when a graph is dropped.
    Release(u64),
    /// Lets the pool serve other requests when memory runs out.
    Serve(u64),
    /// Stops splitting the pool's segments.
    KeepWhole(u64),
    /// `empty_cache` of the pool.
    ReleaseCached(u64),
    /// Saves what the pool has handed out.
    Save(u64),
    /// Restores what the pool had handed out when it was last saved.
    Load(u64),
}

impl PoolStep {
    /// The step as a line of a script.
    pub(super) fn line(self) -> String {
        match self {
            PoolStep::Create(pool) => format!("create pool {pool}, or add a use"),
            PoolStep::Begin(pool, None) => format!("route all requests to pool {pool}"),
            PoolStep::Begin(pool, Some(place)) => {
                format!("capture stream {}, route its requests to pool {pool}", stream_name(place))
            }
            PoolStep::End(pool) => format!("stop routing requests to pool {pool}"),
            PoolStep::Release(pool) => format!("end a use of pool {pool}"),
            PoolStep::Serve(pool) => format!("let pool {pool} serve when memory runs out"),
            PoolStep::KeepWhole(pool) => format!("stop splitting pool {pool}"),
            PoolStep::ReleaseCached(pool) => format!("empty_cache of pool {pool}"),
            PoolStep::Save(pool) => format!("save pool {pool}"),
            PoolStep::Load(pool) => format!("load pool {pool}"),
        }
    }
}

/// A random step.
pub(super) fn pool_step() -> impl Strategy<Value = PoolStep> {
    // Most steps use the same pool, so that they interact.
    let pool = || prop_oneof![2 => Just(1), 1 => 1..=POOLS];
    prop_oneof![
        2 => pool().prop_map(PoolStep::Create),
        6 => (pool(), prop_oneof![2 => Just(None), 3 => (0..STREAMS.len()).prop_map(Some)])
            .prop_map(|(pool, stream)| PoolStep::Begin(pool, stream)),
        // Most of the time nothing is routed, or nothing would ever be waited for.
        8 => pool().prop_map(PoolStep::End),
        2 => pool().prop_map(PoolStep::Release),
        1 => pool().prop_map(PoolStep::Serve),
        // At most one pool, or nothing would ever be split.
        1 => Just(PoolStep::KeepWhole(POOLS)),
        1 => pool().prop_map(PoolStep::ReleaseCached),
        3 => pool().prop_map(PoolStep::Save),
        4 => pool().prop_map(PoolStep::Load),
    ]
}
