//! What a random program does to an allocator under any policy, and how such programs are drawn.
//!
//! A program touches its memory, and waits where it must: every user of an allocation waits for the one before. So a race, or a
//! word that is not there any more, is the allocator's doing.

use parkade::units::MIB;
use proptest::prelude::*;

use super::pool_step::{PoolStep, pool_step};
use crate::backend::{EventTiming, Places, STREAMS};
use crate::checks::laws::operation::sizes;
use crate::checks::laws::trial::stream_name;

/// One step. Allocations are named by their place among the live ones, wrapping around; streams by their place in [`STREAMS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A request of so many bytes for a stream; what it gets is filled on that stream.
    Allocate(u64, usize),
    /// A live allocation is given back; its users may still run.
    Free(usize),
    /// One is given back, and one of the same size is asked for on the same stream, as loops do.
    Replace(usize),
    /// A stream fills a live allocation anew, behind its last user, and the allocator is told.
    Use(usize, usize),
    /// The host reads a live allocation, after its last user.
    Read(usize),
    /// A stream is busy for so many nanoseconds.
    Launch(usize, u64),
    /// Time passes, in nanoseconds.
    Advance(u64),
    /// The oldest event of a stream is seen done.
    CompleteOne(usize),
    /// All work is done.
    CompleteAll,
    /// The allocator looks at its events.
    ProcessEvents,
    /// `empty_cache`.
    ReleaseCached,
    /// The limit, in hundredths of the device; 100 is none.
    Limit(u8),
    /// Other processes hold so many bytes from now on.
    OthersHold(u64),
    /// `reset_peak_memory_stats`.
    ResetPeaks,
    /// `reset_accumulated_memory_stats`.
    ResetSums,
    /// Something about private pools.
    Pool(PoolStep),
}

/// What a program runs on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Setup {
    /// The device's memory.
    pub(super) capacity: u64,
    /// Who decides when events are seen complete.
    pub(super) timing: EventTiming,
    /// Where segments go.
    pub(super) places: Places,
    /// For policies that are drawn.
    pub(super) policy_seed: u64,
}

impl Step {
    /// The step as a line of a script.
    pub(super) fn line(self) -> String {
        match self {
            Step::Allocate(bytes, place) => format!("alloc {bytes} bytes for stream {}", stream_name(place)),
            Step::Free(which) => format!("free live allocation {which}"),
            Step::Replace(which) => format!("free live allocation {which}, ask for as much again"),
            Step::Use(which, place) => {
                format!("stream {} fills live allocation {which}, behind its last user", stream_name(place))
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
    // Two of three requests are for one stream, so that free blocks are found, and the others' streams have something to give.
    prop_oneof![2 => Just(0_usize), 1 => 0..STREAMS.len()]
}

fn step() -> impl Strategy<Value = Step> {
    let which = || any::<u8>().prop_map(usize::from);
    // Some sizes come again and again, so that blocks are reused.
    let again = prop::sample::select(vec![512, 3 * MIB, 6 * MIB, 8 * MIB, 20 * MIB, 40 * MIB]);
    // Some rules begin at 128 or 512 MiB.
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

/// Programs of so many steps at most. Every other one has private pools: where requests are routed nothing waits, so that much of
/// what the others do is not done there.
pub(super) fn programs(timing: EventTiming, longest: usize) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let with_pools = prop_oneof![5 => step(), 1 => pool_step().prop_map(Step::Pool)].boxed();
    let steps = prop_oneof![prop::collection::vec(step(), 1..longest), prop::collection::vec(with_pools, 1..longest),];
    (setup(timing), steps)
}
