//! Sequences of operations, and how to draw them.
//!
//! Sizes gather around the thresholds of the rules. Devices are small, so that every rung of the ladder is climbed.

use std::ops::Range;

use parkade::units::MIB;
use proptest::prelude::*;

use crate::backend::{EventTiming, Places, STREAMS};
use crate::model::{Rules, SETTINGS};

/// Sizes at which a rule changes, and pairs of sizes whose difference is one.
pub const THRESHOLDS: [u64; 14] =
    [512, 1024, MIB / 2, MIB, 2 * MIB, 9 * MIB, 10 * MIB, 18 * MIB, 19 * MIB, 20 * MIB, 21 * MIB, 32 * MIB, 52 * MIB, 64 * MIB];

/// One thing that happens to an allocator or to its device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Operation {
    /// A request of so many bytes for a stream, named by its place in [`STREAMS`].
    Allocate(u64, usize),
    /// One of the live allocations is given back; numbers wrap around.
    Free(usize),
    /// Work of a stream uses one of the live allocations.
    RecordStream(usize, usize),
    /// A stream is given work that takes so many nanoseconds.
    Launch(usize, u64),
    /// Time passes, in nanoseconds.
    Advance(u64),
    /// All work of a stream is done.
    Complete(usize),
    /// The oldest event of a stream is done.
    CompleteOne(usize),
    /// All work is done.
    CompleteAll,
    /// The allocator is told to look at its events.
    ProcessEvents,
    /// `empty_cache`.
    ReleaseCached,
    /// The memory limit, in hundredths of the device.
    SetFraction(u8),
    /// Other settings, by their place in [`SETTINGS`].
    ChangeSettings(usize),
    /// Other processes hold so many bytes from now on.
    OthersHold(u64),
    /// `reset_peak_memory_stats`.
    ResetPeaks,
    /// `reset_accumulated_memory_stats`.
    ResetSums,
    /// New segments are expandable from now on, or not.
    Expandable(bool),
    /// Requests of a stream, or of all, go to a private pool from now on.
    BeginPool(u64, Option<usize>),
    /// Requests no longer go to a private pool.
    EndPool(u64),
    /// A use of a private pool ends.
    ReleasePool(u64),
    /// `empty_cache` of a private pool.
    ReleaseCachedPool(u64),
    /// A private pool serves when memory is out.
    UseOnOom(u64),
    /// A private pool's segments are not split.
    NoSplit(u64),
}

/// The private pools that sequences use have the numbers from 1 to this.
pub const POOLS: u64 = 3;

/// What a sequence runs on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setup {
    /// The device's memory.
    pub capacity: u64,
    /// Who decides when events are seen complete.
    pub timing: EventTiming,
    /// Settings at the start, by their place in [`SETTINGS`].
    pub settings: usize,
    /// Where segments go.
    pub places: Places,
    /// Whether giving a segment back waits for the device.
    pub free_waits: bool,
    /// Whether expandable segments and private pools take part; settings are then those of [`VIRTUAL_SETTINGS`].
    pub is_virtual: bool,
}

/// The settings that expandable segments and private pools are checked under, at the start.
pub const VIRTUAL_SETTINGS: [&str; 4] = [
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5",
    "expandable_segments:True,large_segment_size_mb:12",
    "",
];

impl Setup {
    /// The settings string at the start.
    #[must_use]
    pub fn settings_text(&self) -> &'static str {
        if self.is_virtual { VIRTUAL_SETTINGS[self.settings] } else { SETTINGS[self.settings].text }
    }

    /// The rules that these settings come to.
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

/// Sizes of requests: at and around every threshold, and any number of bytes up to 48 MiB, small ones more often.
pub fn sizes() -> impl Strategy<Value = u64> {
    let offsets = vec![-513_i64, -512, -511, -1, 0, 0, 1, 511, 512, 513];
    let at_thresholds = (prop::sample::select(THRESHOLDS.to_vec()), prop::sample::select(offsets))
        .prop_map(|(size, offset)| size.saturating_add_signed(offset).max(1));
    let any =
        (0_u32..=25, any::<u64>()).prop_map(|(bits, low)| (1 << bits) + low % (1 << bits)).prop_map(|size: u64| size * 3 / 4 + 1);
    prop_oneof![2 => at_thresholds, 3 => any]
}

fn stream() -> impl Strategy<Value = usize> {
    // Most requests are for one stream, as in real programs, so that free blocks are found.
    prop_oneof![4 => Just(0_usize), 1 => 0..STREAMS.len()]
}

/// One operation.
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

/// One operation where expandable segments and private pools take part.
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
        // One pool at most, or nothing would be split any more.
        1 => Just(Operation::NoSplit(POOLS)),
    ]
}

/// A sequence of so many operations for a setup.
pub fn operations_for(setup: &Setup, count: Range<usize>) -> BoxedStrategy<Vec<Operation>> {
    if setup.is_virtual { prop::collection::vec(virtual_operation(), count).boxed() } else { operations(count).boxed() }
}

/// A sequence of so many operations.
pub fn operations(count: Range<usize>) -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), count)
}

/// A small device, under any timing and settings.
pub fn setup() -> impl Strategy<Value = Setup> {
    let timing = prop_oneof![
        Just(EventTiming::Eager),
        Just(EventTiming::Lazy),
        Just(EventTiming::Clock),
        any::<u64>().prop_map(EventTiming::Seeded)
    ];
    timing.prop_flat_map(setup_under)
}

/// A small device with ordinary segments, under this timing and any settings.
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

/// A small device on which expandable segments and private pools take part.
pub fn virtual_setup_under(timing: EventTiming) -> impl Strategy<Value = Setup> {
    let settings = 0..VIRTUAL_SETTINGS.len();
    (setup_under(timing), settings).prop_map(|(setup, settings)| Setup { settings, is_virtual: true, ..setup })
}
