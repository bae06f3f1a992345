//! Sequences of operations, and how to draw them.
//!
//! Sizes cluster around the rules' thresholds. Devices are so small that every rung of the ladder is reached.

use std::ops::Range;

use parkade::units::MIB;
use proptest::prelude::*;

use crate::backend::{EventTiming, Places, STREAMS};
use crate::reference_model::{Rules, SETTINGS};
use serde::{Deserialize, Serialize};

/// Sizes at which a rule changes, and sizes that differ by one of those sizes.
pub const THRESHOLDS: [u64; 14] =
    [512, 1024, MIB / 2, MIB, 2 * MIB, 9 * MIB, 10 * MIB, 18 * MIB, 19 * MIB, 20 * MIB, 21 * MIB, 32 * MIB, 52 * MIB, 64 * MIB];

/// An operation on an allocator or on its device.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Operation {
    /// Requests this many bytes for a stream, given by its index in [`STREAMS`].
    Allocate(u64, usize),
    /// Frees one of the live allocations; the index wraps around.
    Free(usize),
    /// Records that a stream uses one of the live allocations.
    RecordStream(usize, usize),
    /// Queues work that takes this many nanoseconds on a stream.
    Launch(usize, u64),
    /// Lets this many nanoseconds pass.
    Advance(u64),
    /// Completes all work of a stream.
    Complete(usize),
    /// Completes the oldest event of a stream.
    CompleteOne(usize),
    /// Completes all work.
    CompleteAll,
    /// Makes the allocator query its events.
    ProcessEvents,
    /// `empty_cache`.
    ReleaseCached,
    /// Sets the memory limit, in hundredths of the device.
    SetFraction(u8),
    /// Changes the settings, given by their index in [`SETTINGS`].
    ChangeSettings(usize),
    /// Makes other processes hold this many bytes from now on.
    OthersHold(u64),
    /// `reset_peak_memory_stats`.
    ResetPeaks,
    /// `reset_accumulated_memory_stats`.
    ResetSums,
    /// Makes new segments expandable or ordinary from now on.
    Expandable(bool),
    /// Routes the requests of one stream, or of all, to a private pool.
    BeginPool(u64, Option<usize>),
    /// Stops routing requests to a private pool.
    EndPool(u64),
    /// Ends one use of a private pool.
    ReleasePool(u64),
    /// `empty_cache` of a private pool.
    ReleaseCachedPool(u64),
    /// Lets a private pool serve other requests when memory runs out.
    UseOnOom(u64),
    /// Stops splitting a private pool's segments.
    NoSplit(u64),
}

/// Sequences use private pools 1 to this number.
pub const POOLS: u64 = 3;

/// The device and settings that a sequence runs with.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The device's memory in bytes.
    pub capacity: u64,
    /// The rule by which events are reported complete.
    pub timing: EventTiming,
    /// The initial settings, as an index in [`SETTINGS`].
    pub settings: usize,
    /// Where segments are placed.
    pub places: Places,
    /// Whether freeing a segment waits for the device.
    pub free_waits: bool,
    /// Whether the sequence may use expandable segments and private pools; `settings` is then an index in
    /// [`VIRTUAL_SETTINGS`].
    pub is_virtual: bool,
}

/// The initial settings under which expandable segments and private pools are checked.
pub const VIRTUAL_SETTINGS: [&str; 4] = [
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5",
    "expandable_segments:True,large_segment_size_mb:12",
    "",
];

impl Setup {
    /// Returns the initial settings string.
    #[must_use]
    pub fn settings_text(&self) -> &'static str {
        if self.is_virtual { VIRTUAL_SETTINGS[self.settings] } else { SETTINGS[self.settings].text }
    }

    /// Returns the rules that follow from these settings.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let plain = Rules::default();
        match self.settings {
            place if !self.is_virtual => SETTINGS[place].applied_to(plain),
            1 => Rules { max_split: Some(32 * MIB), collection_hundredths: 50, ..plain },
            2 => Rules { large_segment: 12 * MIB, non_split_rounding: 12 * MIB, ..plain },
            _ => plain,
        }
    }
}

/// Returns request sizes: at and around every threshold, and any size up to 48 MiB, small ones more often.
pub fn sizes() -> impl Strategy<Value = u64> {
    let offsets = vec![-513_i64, -512, -511, -1, 0, 0, 1, 511, 512, 513];
    let at_thresholds = (prop::sample::select(THRESHOLDS.to_vec()), prop::sample::select(offsets))
        .prop_map(|(size, offset)| size.saturating_add_signed(offset).max(1));
    let any =
        (0_u32..=25, any::<u64>()).prop_map(|(bits, low)| (1 << bits) + low % (1 << bits)).prop_map(|size: u64| size * 3 / 4 + 1);
    prop_oneof![2 => at_thresholds, 3 => any]
}

fn stream() -> impl Strategy<Value = usize> {
    // As in real programs, most requests are for one stream, so that they find free blocks.
    prop_oneof![4 => Just(0_usize), 1 => 0..STREAMS.len()]
}

/// Returns one operation.
pub fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        30 => (sizes(), stream()).prop_map(|(size, stream)| Operation::Allocate(size, stream)),
        22 => any::<usize>().prop_map(Operation::Free),
        8 => (any::<usize>(), 0..STREAMS.len()).prop_map(|(which, stream)| Operation::RecordStream(which, stream)),
        4 => (0..STREAMS.len(), 1..10_000_u64).prop_map(|(stream, time)| Operation::Launch(stream, time)),
        2 => (1..20_000_u64).prop_map(Operation::Advance),
        1 => (0..STREAMS.len()).prop_map(Operation::Complete),
        2 => (0..STREAMS.len()).prop_map(Operation::CompleteOne),
        1 => Just(Operation::CompleteAll),
        1 => Just(Operation::ProcessEvents),
        1 => Just(Operation::ReleaseCached),
        1 => prop::sample::select(vec![0, 10, 40, 60, 75, 90, 100, 100]).prop_map(Operation::SetFraction),
        1 => (0..SETTINGS.len()).prop_map(Operation::ChangeSettings),
        1 => prop::sample::select(vec![0, 0, 20 * MIB, 70 * MIB + 1, 400 * MIB]).prop_map(Operation::OthersHold),
        1 => Just(Operation::ResetPeaks),
        1 => Just(Operation::ResetSums),
    ]
}

/// Returns one operation with expandable segments and private pools.
pub fn virtual_operation() -> impl Strategy<Value = Operation> {
    let pool = || 1..=POOLS;
    prop_oneof![
        40 => operation().prop_filter("one set of rules", |operation| !matches!(operation, Operation::ChangeSettings(_))),
        2 => any::<bool>().prop_map(Operation::Expandable),
        3 => (pool(), prop::option::of(0..STREAMS.len())).prop_map(|(pool, stream)| Operation::BeginPool(pool, stream)),
        3 => pool().prop_map(Operation::EndPool),
        3 => pool().prop_map(Operation::ReleasePool),
        2 => pool().prop_map(Operation::ReleaseCachedPool),
        1 => pool().prop_map(Operation::UseOnOom),
        // At most one pool, because with several pools nothing would ever be split.
        1 => Just(Operation::NoSplit(POOLS)),
    ]
}

/// Returns a sequence of operations for a setup, of this length.
pub fn operations_for(setup: &Setup, count: Range<usize>) -> BoxedStrategy<Vec<Operation>> {
    if setup.is_virtual { prop::collection::vec(virtual_operation(), count).boxed() } else { operations(count).boxed() }
}

/// Returns a sequence of operations of this length.
pub fn operations(count: Range<usize>) -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), count)
}

/// Returns a small device with any event timing and settings.
pub fn setup() -> impl Strategy<Value = Setup> {
    let timing = prop_oneof![
        Just(EventTiming::Eager),
        Just(EventTiming::Lazy),
        Just(EventTiming::Clock),
        any::<u64>().prop_map(EventTiming::Seeded)
    ];
    timing.prop_flat_map(setup_under)
}

/// Returns a small device with ordinary segments, this event timing and any settings.
pub fn setup_under(timing: EventTiming) -> impl Strategy<Value = Setup> {
    let capacity = prop::sample::select(vec![64 * MIB, 130 * MIB, 200 * MIB, 300 * MIB]);
    let places = prop::sample::select(vec![Places::Ascending, Places::Descending, Places::Reuse]);
    (capacity, 0..SETTINGS.len(), places, any::<bool>()).prop_map(move |(capacity, settings, places, free_waits)| Setup {
        capacity,
        timing,
        settings,
        places,
        free_waits,
        is_virtual: false,
    })
}

/// Returns a small device with expandable segments and private pools, and this event timing.
pub fn virtual_setup_under(timing: EventTiming) -> impl Strategy<Value = Setup> {
    let settings = 0..VIRTUAL_SETTINGS.len();
    (setup_under(timing), settings).prop_map(|(setup, settings)| Setup { settings, is_virtual: true, ..setup })
}
