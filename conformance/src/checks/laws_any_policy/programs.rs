//! Programs for an allocator under any policy: their steps, how random ones are drawn, and the fixed ones.
//!
//! A program accesses its memory and waits wherever it must: every user of an allocation waits for the previous one. A
//! race or a lost word is therefore the allocator's fault.
//!
//! Programs with private pools create the pools, route requests to them as `use_mem_pool` and graph captures do, and
//! save and load what they have handed out. Fixed programs reach cases that random ones rarely reach; driver calls are
//! made to fail in the fixed programs.

use parkade::units::MIB;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::backend::{EventTiming, Places, STREAMS};
use crate::checks::laws_pytorch::operation::{POOLS, sizes};
use crate::checks::laws_pytorch::trial::stream_name;

/// One step. An allocation is given as an index into the live ones, which wraps around; a stream as its index in
/// [`STREAMS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// Requests this many bytes for a stream, and fills them on that stream.
    Allocate(u64, usize),
    /// Frees a live allocation; its users may still run.
    Free(usize),
    /// Frees one and requests the same size on the same stream, as loops do.
    Replace(usize),
    /// A stream fills a live allocation again, after the allocation's last user, and the program records the use with
    /// the allocator.
    Use(usize, usize),
    /// The host reads a live allocation after its last user.
    Read(usize),
    /// Keeps a stream busy for this many nanoseconds.
    Launch(usize, u64),
    /// Lets this many nanoseconds pass.
    Advance(u64),
    /// Completes the oldest event of a stream.
    CompleteOne(usize),
    /// Completes all work.
    CompleteAll,
    /// Makes the allocator query its events.
    ProcessEvents,
    /// `empty_cache`.
    ReleaseCached,
    /// Sets the limit, in hundredths of the device; 100 removes it.
    Limit(u8),
    /// Makes other processes hold this many bytes from now on.
    OthersHold(u64),
    /// `reset_peak_memory_stats`.
    ResetPeaks,
    /// `reset_accumulated_memory_stats`.
    ResetSums,
    /// A step on a private pool.
    Pool(PoolStep),
}

/// The device and policy that a program runs with.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// The device's memory in bytes.
    pub(super) capacity: u64,
    /// The rule by which events are reported complete.
    pub(super) timing: EventTiming,
    /// Where segments are placed.
    pub(super) places: Places,
    /// The seed of randomly assembled policies.
    pub(super) policy_seed: u64,
}

impl Step {
    /// Returns the step as a line of a script.
    pub(super) fn line(self) -> String {
        match self {
            Step::Allocate(bytes, place) => format!("alloc {bytes} bytes for stream {}", stream_name(place)),
            Step::Free(which) => format!("free live allocation {which}"),
            Step::Replace(which) => format!("free live allocation {which}, request the same size again"),
            Step::Use(which, place) => {
                format!("stream {} fills live allocation {which} after its last user", stream_name(place))
            }
            Step::Read(which) => format!("the host reads live allocation {which}"),
            Step::Launch(place, duration) => format!("work of {duration} ns on stream {}", stream_name(place)),
            Step::Advance(duration) => format!("{duration} ns pass"),
            Step::CompleteOne(place) => format!("the oldest event of stream {} is done", stream_name(place)),
            Step::CompleteAll => "all work is done".to_owned(),
            Step::ProcessEvents => "process_events".to_owned(),
            Step::ReleaseCached => "empty_cache".to_owned(),
            Step::Limit(hundredths) => format!("the limit is {hundredths} % of the device"),
            Step::OthersHold(bytes) => format!("other processes hold {bytes} bytes"),
            Step::ResetPeaks => "reset peaks".to_owned(),
            Step::ResetSums => "reset accumulated statistics".to_owned(),
            Step::Pool(step) => step.line(),
        }
    }
}

fn stream() -> impl Strategy<Value = usize> {
    // Two of every three requests are for the same stream, so that they find free blocks and other streams also have
    // blocks that can be taken.
    prop_oneof![2 => Just(0_usize), 1 => 0..STREAMS.len()]
}

fn step() -> impl Strategy<Value = Step> {
    let which = || any::<u8>().prop_map(usize::from);
    // Some sizes repeat, so that blocks are reused.
    let again = prop::sample::select(vec![512, 3 * MIB, 6 * MIB, 8 * MIB, 20 * MIB, 40 * MIB]);
    // Some rules apply from 128 or 512 MiB upwards.
    let huge = (150..350_u64).prop_map(|pages| 2 * MIB * pages);
    let size = prop_oneof![16 => again, 23 => sizes(), 1 => huge];
    prop_oneof![
        30 => (size, stream()).prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
        20 => which().prop_map(Step::Free),
        6 => which().prop_map(Step::Replace),
        10 => (which(), 0..STREAMS.len()).prop_map(|(which, stream)| Step::Use(which, stream)),
        2 => which().prop_map(Step::Read),
        4 => (0..STREAMS.len(), 1..10_000_u64).prop_map(|(stream, time)| Step::Launch(stream, time)),
        2 => (1..20_000_u64).prop_map(Step::Advance),
        2 => (0..STREAMS.len()).prop_map(Step::CompleteOne),
        1 => Just(Step::CompleteAll),
        1 => Just(Step::ProcessEvents),
        1 => Just(Step::ReleaseCached),
        1 => prop::sample::select(vec![10, 40, 60, 75, 90, 100, 100]).prop_map(Step::Limit),
        1 => prop::sample::select(vec![0, 0, 20 * MIB, 70 * MIB + 1, 400 * MIB]).prop_map(Step::OthersHold),
        1 => Just(Step::ResetPeaks),
        1 => Just(Step::ResetSums),
    ]
}

fn setup(timing: EventTiming) -> impl Strategy<Value = Setup> {
    let timing = match timing {
        EventTiming::Seeded(_) => any::<u64>().prop_map(EventTiming::Seeded).boxed(),
        other => Just(other).boxed(),
    };
    let capacity = prop::sample::select(vec![64 * MIB, 130 * MIB, 200 * MIB, 300 * MIB, 1024 * MIB, 3072 * MIB]);
    let places = prop::sample::select(vec![Places::Ascending, Places::Descending, Places::Reuse]);
    (capacity, timing, places, any::<u64>()).prop_map(|(capacity, timing, places, policy_seed)| Setup {
        capacity,
        timing,
        places,
        policy_seed,
    })
}

/// Returns programs of at most this many steps. Half of them have private pools; nothing waits while requests are
/// routed, so those programs exercise the other rules less.
pub(super) fn programs(timing: EventTiming, longest: usize) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let with_pools = prop_oneof![5 => step(), 1 => pool_step().prop_map(Step::Pool)].boxed();
    let steps = prop_oneof![prop::collection::vec(step(), 1..longest), prop::collection::vec(with_pools, 1..longest),];
    (setup(timing), steps)
}

/// A step on a private pool. Pools are numbered from 1 to [`POOLS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum PoolStep {
    /// Creates the pool, or adds a use to it.
    Create(u64),
    /// Routes requests to the pool: all of them, as in `use_mem_pool`, or those on a stream (an index in [`STREAMS`])
    /// that is captured from now on.
    Begin(u64, Option<usize>),
    /// Ends the routing. `use_mem_pool` then also ends its use of the pool; a capture's graph keeps its use.
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
    /// Returns the step as a line of a script.
    fn line(self) -> String {
        match self {
            PoolStep::Create(pool) => format!("create pool {pool} or add a use of it"),
            PoolStep::Begin(pool, None) => format!("route all requests to pool {pool}"),
            PoolStep::Begin(pool, Some(place)) => {
                format!("capture stream {}, route its requests to pool {pool}", stream_name(place))
            }
            PoolStep::End(pool) => format!("stop routing requests to pool {pool}"),
            PoolStep::Release(pool) => format!("end a use of pool {pool}"),
            PoolStep::Serve(pool) => format!("let pool {pool} serve requests when memory runs out"),
            PoolStep::KeepWhole(pool) => format!("stop splitting pool {pool}"),
            PoolStep::ReleaseCached(pool) => format!("empty_cache of pool {pool}"),
            PoolStep::Save(pool) => format!("save pool {pool}"),
            PoolStep::Load(pool) => format!("load pool {pool}"),
        }
    }
}

/// Returns a random step.
fn pool_step() -> impl Strategy<Value = PoolStep> {
    // Most steps use the same pool, so that they interact.
    let pool = || prop_oneof![2 => Just(1), 1 => 1..=POOLS];
    prop_oneof![
        2 => pool().prop_map(PoolStep::Create),
        6 => (pool(), prop_oneof![2 => Just(None), 3 => (0..STREAMS.len()).prop_map(Some)])
            .prop_map(|(pool, stream)| PoolStep::Begin(pool, stream)),
        // Most of the time nothing is routed, because nothing waits during a routing.
        8 => pool().prop_map(PoolStep::End),
        2 => pool().prop_map(PoolStep::Release),
        1 => pool().prop_map(PoolStep::Serve),
        // At most one pool, because with several pools nothing would ever be split.
        1 => Just(PoolStep::KeepWhole(POOLS)),
        1 => pool().prop_map(PoolStep::ReleaseCached),
        3 => pool().prop_map(PoolStep::Save),
        4 => pool().prop_map(PoolStep::Load),
    ]
}

/// Returns a program with a bit of everything: free blocks on three streams, running work, two requests for more memory
/// than the device has, and fragmented device memory.
pub(super) fn every_rung() -> (Setup, Vec<Step>) {
    use Step::{Allocate, Free, Launch, Limit, ProcessEvents, ReleaseCached, Replace, Use};
    let fill = [Allocate(16 * MIB, 0), Allocate(12 * MIB, 1), Allocate(16 * MIB, 2), Launch(1, 4_000_000), Use(1, 2), Use(0, 1)];
    let pieces = (0..4).map(|_| Allocate(2 * MIB, 0)).chain((0..2).map(Free));
    let rest = [
        Free(0),
        Allocate(700, 3),
        Free(0),
        Allocate(14 * MIB, 3),
        Launch(3, 4_000_000),
        Free(1),
        Allocate(11 * MIB, 0),
        Use(2, 3),
        Free(2),
        Allocate(24 * MIB, 1),
        ProcessEvents,
        Limit(60),
        Allocate(40 * MIB, 2),
        Replace(0),
        Free(0),
        Free(0),
        Allocate(28 * MIB, 1),
        Limit(100),
        Allocate(100 * MIB, 0),
        ReleaseCached,
        Allocate(5 * MIB, 0),
    ];
    let setup = Setup { capacity: 64 * MIB, timing: EventTiming::Lazy, places: Places::Ascending, policy_seed: 0 };
    (setup, fill.into_iter().chain(pieces).chain(rest).collect())
}

/// Returns a program whose last request can be served only by remapping the pages of two separate blocks and is larger
/// than the requests of other programs.
pub(super) fn stitching() -> (Setup, Vec<Step>) {
    use Step::{Allocate, Free};
    let fill = [400, 2, 300, 2].map(|mib| Allocate(mib * MIB, 0));
    // Free the 400 MiB first; the last allocation then takes its index, so the 300 MiB are still at index 2.
    let steps = fill.into_iter().chain([Free(0), Free(2), Allocate(600 * MIB, 0)]).collect();
    let setup = Setup { capacity: 1024 * MIB, timing: EventTiming::Lazy, places: Places::Ascending, policy_seed: 0 };
    (setup, steps)
}

/// Returns a program with private pools: requests are routed to one pool while blocks are pending, that pool runs out
/// of memory, another serves requests when memory runs out, a checkpoint is loaded twice, and a pool is no longer used.
pub(super) fn captures() -> (Setup, Vec<Step>) {
    use PoolStep::{Begin, Create, End, Load, Release, ReleaseCached, Save, Serve};
    use Step::{Allocate, CompleteAll, Free, Launch, Pool, ProcessEvents, Use};
    let steps = vec![
        Allocate(6 * MIB, 0),
        Launch(1, 4_000_000),
        Use(0, 1),
        Allocate(3 * MIB, 0),
        Use(1, 1),
        Pool(Create(1)),
        Free(1),
        Pool(Begin(1, Some(0))),
        // Another stream used the block earlier: its events are recorded once the capture has
        // ended.
        Free(0),
        Allocate(4 * MIB, 0),
        Allocate(700, 0),
        Allocate(2 * MIB, 1),
        Use(2, 2),
        ProcessEvents,
        Free(0),
        // This is more than the device has, and no wait is allowed during the capture.
        Allocate(60 * MIB, 0),
        Step::ReleaseCached,
        Allocate(3 * MIB, 0),
        Pool(End(1)),
        Pool(Save(1)),
        Allocate(8 * MIB, 0),
        Pool(Begin(1, None)),
        Allocate(5 * MIB, 0),
        Pool(End(1)),
        CompleteAll,
        Free(1),
        Pool(Load(1)),
        Pool(Serve(1)),
        Allocate(48 * MIB, 1),
        Allocate(600, 0),
        Free(0),
        Pool(Release(1)),
        Free(0),
        Free(0),
        Free(0),
        Pool(ReleaseCached(1)),
        Pool(Begin(2, Some(1))),
        Allocate(20 * MIB, 1),
        Free(0),
        Pool(Release(2)),
        Pool(End(2)),
        Allocate(30 * MIB, 0),
    ];
    let setup = Setup { capacity: 64 * MIB, timing: EventTiming::Lazy, places: Places::Ascending, policy_seed: 0 };
    (setup, steps)
}
