//! The steps of random programs for an allocator under any policy, and how programs are drawn.
//!
//! A program accesses its memory and waits where it must: every user of an allocation waits for the previous one. So a race or a
//! lost word is the allocator's fault.

use parkade::units::MIB;
use proptest::prelude::*;

use super::pool_step::{PoolStep, pool_step};
use crate::backend::{EventTiming, Places, STREAMS};
use crate::checks::laws_pytorch::operation::sizes;
use crate::checks::laws_pytorch::trial::stream_name;
use serde::{Deserialize, Serialize};

/// One step. Allocations are given by their index among the live ones, wrapping around; streams by their index in [`STREAMS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// Requests this many bytes for a stream, and fills them on that stream.
    Allocate(u64, usize),
    /// Frees a live allocation; its users may still run.
    Free(usize),
    /// Frees one and requests the same size on the same stream, as loops do.
    Replace(usize),
    /// A stream fills a live allocation again, after its last user, and the allocator is told.
    Use(usize, usize),
    /// The host reads a live allocation, after its last user.
    Read(usize),
    /// Keeps a stream busy for this many nanoseconds.
    Launch(usize, u64),
    /// Lets this many nanoseconds pass.
    Advance(u64),
    /// Completes the oldest event of a stream.
    CompleteOne(usize),
    /// Completes all work.
    CompleteAll,
    /// The allocator queries its events.
    ProcessEvents,
    /// `empty_cache`.
    ReleaseCached,
    /// Sets the limit, in hundredths of the device; 100 removes it.
    Limit(u8),
    /// Other processes hold this many bytes from now on.
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
    /// When events are reported complete.
    pub(super) timing: EventTiming,
    /// Where segments go.
    pub(super) places: Places,
    /// The seed of randomly assembled policies.
    pub(super) policy_seed: u64,
}

impl Step {
    /// The step as a line of a script.
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
            Step::Limit(hundredths) => format!("the limit is {hundredths} hundredths of the device"),
            Step::OthersHold(bytes) => format!("others hold {bytes} bytes"),
            Step::ResetPeaks => "reset peaks".to_owned(),
            Step::ResetSums => "reset sums".to_owned(),
            Step::Pool(step) => step.line(),
        }
    }
}

fn stream() -> impl Strategy<Value = usize> {
    // Two of three requests are for one stream, so that they find free blocks, and other streams have blocks to give.
    prop_oneof![2 => Just(0_usize), 1 => 0..STREAMS.len()]
}

fn step() -> impl Strategy<Value = Step> {
    let which = || any::<u8>().prop_map(usize::from);
    // Some sizes repeat, so that blocks are reused.
    let again = prop::sample::select(vec![512, 3 * MIB, 6 * MIB, 8 * MIB, 20 * MIB, 40 * MIB]);
    // Some rules apply from 128 or 512 MiB.
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

/// Programs of at most this many steps. Half of them have private pools: while requests are routed nothing waits, so those
/// programs exercise less of the rest.
pub(super) fn programs(timing: EventTiming, longest: usize) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let with_pools = prop_oneof![5 => step(), 1 => pool_step().prop_map(Step::Pool)].boxed();
    let steps = prop_oneof![prop::collection::vec(step(), 1..longest), prop::collection::vec(with_pools, 1..longest),];
    (setup(timing), steps)
}
