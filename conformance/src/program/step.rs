//! Programs for the reference law: everything that a caller can do, and the strategies that draw
//! it.

use std::sync::OnceLock;

use parkade::profile::{Profile, RELEASES, Release};
use parkade::settings::Settings;
use parkade::units::{MIB, PoolId};
use proptest::prelude::*;

use crate::backend::{EventTiming, Places, STREAMS};
use crate::checks::laws_pytorch::operation::sizes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// One step of a program. Allocations, pools and checkpoints are given as indices that wrap around.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Requests this many bytes for a stream.
    Allocate(u64, usize),
    /// Does the same through `raw_allocate`.
    AllocateRaw(u64, usize),
    Free(usize),
    /// Frees an allocation that a restore has already taken back.
    FreeAgain(usize),
    Record(usize, usize),
    /// Hands an allocation to a free-memory callback, which frees it when called.
    Stock(usize, usize),
    /// Gives a free-memory callback its action and the value that it reports.
    Command(usize, Order, bool),
    Launch(usize, u64),
    Pause(u64),
    Complete(usize),
    CompleteOne(usize),
    CompleteAll,
    ProcessEvents,
    ReleaseCached,
    /// Sets the memory fraction, in thousandths.
    Fraction(u16),
    /// Sets the limit in bytes, or removes it.
    Limit(Option<u64>),
    /// Applies a settings string, given as an index in [`texts`].
    Apply(usize),
    OthersHold(u64),
    ResetPeaks,
    ResetSums,
    CreatePool(usize),
    BeginPool(usize, Option<usize>),
    EndPool(usize),
    ReleasePool(usize),
    ReleaseCachedPool(usize),
    UseOnOom(usize, bool),
    NoSplit(usize),
    Capturing(bool),
    Save(usize),
    Restore(usize),
    /// Asks whether a pool's allocations are exactly those that the program holds, or all but the first.
    LiveAre(usize, bool),
    Snapshot,
    SnapshotPool(usize),
}

/// The action of a free-memory callback that does not free a block. Streams and pools are given as numbers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Allocate(u64, usize),
    ReleaseCached,
    Create(usize),
    Begin(usize, Option<usize>),
    End(usize),
    Release(usize),
    ReleaseCachedPool(usize),
    /// Registers one more callback that uses the last stock.
    Register,
}

/// The private pools in programs: those of users and those of graphs.
pub(crate) const POOLS: [PoolId; 3] = [PoolId(0, 1), PoolId(7, 0), PoolId(0, 2)];

/// The index of the default pool in steps that may name it.
pub(crate) const DEFAULT_POOL: usize = POOLS.len();

/// Returns the id of a private pool or of the default pool.
pub(crate) fn pool_id(pool: usize) -> PoolId {
    POOLS.get(pool).copied().unwrap_or(PoolId::DEFAULT)
}

/// The number of free-memory callbacks in programs that have any, including the last one, which is registered only by
/// callbacks.
pub(crate) const CALLBACKS: usize = 4;

/// Settings strings; each release understands some of them ([`texts`]).
const TEXTS: [&str; 25] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:20,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:4,2:1,4:8,16:2,>:1]",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.001",
    "garbage_collection_threshold:0.2,max_split_size_mb:24",
    "large_segment_size_mb:16",
    "large_segment_size_mb:26,max_split_size_mb:26",
    "expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5",
    "expandable_segments:True,large_segment_size_mb:12",
    "expandable_segments:True,large_segment_size_mb:14,roundup_power2_divisions:[1:2,>:8],max_split_size_mb:30",
    "expandable_segments:False",
    "expandable_segments:False,garbage_collection_threshold:0.9,roundup_power2_divisions:1",
    "expandable_segments:True,expandable_segments_reserve:0.25",
    "expandable_segments:True,expandable_segments_reserve:0.05G",
    "expandable_segments:True,expandable_segments_reserve:0.04G,garbage_collection_threshold:0.1",
    "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5",
    "throw_on_cudamalloc_oom:True,expandable_segments:True,per_process_memory_fraction:0.3",
    "throw_on_cudamalloc_oom:False,expandable_segments:True,expandable_segments_reserve:5",
    "graph_capture_record_stream_reuse:True",
    "graph_capture_record_stream_reuse:True,expandable_segments:True",
    "roundup_power2_divisions:1",
];

/// Returns the settings strings that a release understands.
pub(crate) fn texts(profile: &Profile) -> &'static [&'static str] {
    static LEGAL: OnceLock<Vec<(&str, Vec<&str>)>> = OnceLock::new();
    let legal = LEGAL.get_or_init(|| {
        let is_legal = |profile: &Profile, text: &str| Settings::from_environment_as(&profile.dialect, text).is_ok();
        let of = |profile: &Profile| TEXTS.into_iter().filter(|text| is_legal(profile, text)).collect();
        profiles().map(|profile| (profile.name, of(profile))).collect()
    });
    legal.iter().find(|(name, _)| *name == profile.name).map_or(&[], |(_, texts)| texts)
}

/// Returns the rules of each release series.
pub(crate) fn profiles() -> impl Iterator<Item = &'static Profile> {
    let is_first = |(place, release): &(usize, &Release)| *place == 0 || RELEASES[place - 1].profile != release.profile;
    RELEASES.iter().enumerate().filter(is_first).map(|(_, release)| release.profile)
}

/// The conditions under which a program runs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Scene {
    /// The release whose rules apply.
    #[serde(deserialize_with = "known_release")]
    pub(crate) release: ReleaseName,
    pub(crate) capacity: u64,
    pub(crate) timing: EventTiming,
    pub(crate) places: Places,
    pub(crate) free_waits: bool,
    /// The settings at the start, as an index in [`texts`].
    pub(crate) settings: usize,
    pub(crate) has_callbacks: bool,
    /// Determines which segments exist at the start; `None` means none.
    pub(crate) adopted: Option<u64>,
    /// Whether everything is freed before the allocator is dropped.
    pub(crate) is_finished: bool,
}

/// An alias, because serde's derive would treat a field written as `&'static str` as text borrowed from the input,
/// which does not live that long.
type ReleaseName = &'static str;

/// Returns the name of a release as it is in [`profiles`].
fn known_release<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    let name = String::deserialize(deserializer)?;
    let found = profiles().map(|profile| profile.name).find(|known| *known == name);
    found.ok_or_else(|| D::Error::custom(format!("there is no release {name:?}")))
}

impl Scene {
    /// Returns a scene with 200 MiB and release 2.11, and no other conditions.
    pub(crate) const PLAIN: Scene = Scene {
        release: "2.11",
        capacity: 200 * MIB,
        timing: EventTiming::Eager,
        places: Places::Ascending,
        free_waits: false,
        settings: 0,
        has_callbacks: false,
        adopted: None,
        is_finished: true,
    };

    /// Returns the rules that apply.
    pub(crate) fn profile(&self) -> &'static Profile {
        Profile::of(self.release).expect("the release is in the table")
    }

    /// Returns a settings string by its index, which wraps around.
    pub(crate) fn text(&self, place: usize) -> &'static str {
        let known = texts(self.profile());
        known[place % known.len()]
    }

    /// Applies a string at run time. Earlier strings may make the new one illegal; the part before the error then stays
    /// in effect.
    pub(crate) fn apply(&self, settings: &mut Settings, place: usize) {
        let _ = settings.apply_as(&self.profile().dialect, self.text(place));
    }
}

/// Returns a scene with this event timing.
pub(crate) fn scene(timing: EventTiming) -> impl Strategy<Value = Scene> {
    let timing = match timing {
        EventTiming::Seeded(_) => any::<u64>().prop_map(EventTiming::Seeded).boxed(),
        other => Just(other).boxed(),
    };
    let capacity = prop::sample::select(vec![64 * MIB, 130 * MIB, 200 * MIB, 300 * MIB + 2 * MIB]);
    let places = prop::sample::select(vec![Places::Ascending, Places::Descending, Places::Reuse]);
    let flags = (any::<bool>(), prop::bool::weighted(0.3), prop::bool::weighted(0.7));
    let adopted = prop::option::weighted(0.15, any::<u64>());
    let release = prop::sample::select(profiles().map(|profile| profile.name).collect::<Vec<_>>());
    (release, capacity, timing, places, 0..TEXTS.len(), flags, adopted).prop_map(
        |(release, capacity, timing, places, settings, (free_waits, has_callbacks, is_finished), adopted)| Scene {
            release,
            capacity,
            timing,
            places,
            free_waits,
            settings,
            has_callbacks,
            adopted,
            is_finished,
        },
    )
}

fn stream() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0_usize), 1 => 0..STREAMS.len()]
}

/// Sizes that no device can serve.
fn absurd() -> impl Strategy<Value = u64> {
    let exa = 1_u64 << 60;
    prop::sample::select(vec![0, exa - 1, exa, exa + 1, u64::MAX - 511, u64::MAX - 510, u64::MAX, 400 * MIB, 1 << 40])
}

/// Whole MiB, so that different sums of sizes coincide.
fn round_sizes() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1, 2, 10, 12, 16, 20, 22, 24, 26, 30, 32, 34, 40, 44, 48, 56, 64]).prop_map(|mib: u64| mib * MIB)
}

fn order() -> impl Strategy<Value = Order> {
    let pool = || 0..POOLS.len();
    prop_oneof![
        4 => (prop_oneof![sizes(), round_sizes()], stream()).prop_map(|(size, stream)| Order::Allocate(size, stream)),
        3 => Just(Order::ReleaseCached),
        1 => pool().prop_map(Order::Create),
        1 => (pool(), prop::option::of(0..STREAMS.len())).prop_map(|(pool, stream)| Order::Begin(pool, stream)),
        2 => pool().prop_map(Order::End),
        4 => pool().prop_map(Order::Release),
        2 => pool().prop_map(Order::ReleaseCachedPool),
        2 => Just(Order::Register),
    ]
}

fn memory_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        15 => (round_sizes(), stream()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        50 => (sizes(), stream()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        5 => (sizes(), stream()).prop_map(|(size, stream)| Step::AllocateRaw(size, stream)),
        1 => (absurd(), stream()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        1 => (absurd(), stream()).prop_map(|(size, stream)| Step::AllocateRaw(size, stream)),
        46 => any::<usize>().prop_map(Step::Free),
        14 => (any::<usize>(), 0..STREAMS.len()).prop_map(|(which, stream)| Step::Record(which, stream)),
        4 => (any::<usize>(), 0..CALLBACKS).prop_map(|(which, callback)| Step::Stock(which, callback)),
        2 => (0..CALLBACKS, order(), any::<bool>()).prop_map(|(callback, order, says)| Step::Command(callback, order, says)),
        3 => Just(Step::ProcessEvents),
        3 => Just(Step::ReleaseCached),
        3 => any::<usize>().prop_map(Step::FreeAgain),
        2 => Just(Step::Snapshot),
    ]
}

fn other_step() -> impl Strategy<Value = Step> {
    let fractions = vec![0, 100, 333, 400, 501, 600, 750, 900, 999, 1000, 1000, 1000, 1001];
    prop_oneof![
        4 => (0..STREAMS.len(), 1..10_000_u64).prop_map(|(stream, time)| Step::Launch(stream, time)),
        2 => (1..20_000_u64).prop_map(Step::Pause),
        2 => (0..STREAMS.len()).prop_map(Step::Complete),
        3 => (0..STREAMS.len()).prop_map(Step::CompleteOne),
        2 => Just(Step::CompleteAll),
        3 => prop::sample::select(fractions).prop_map(Step::Fraction),
        1 => prop::sample::select(vec![None, Some(0), Some(22 * MIB), Some(40 * MIB), Some(60 * MIB), Some(100 * MIB - 1), Some(120 * MIB)])
            .prop_map(Step::Limit),
        3 => any::<usize>().prop_map(Step::Apply),
        2 => prop::sample::select(vec![0, 0, 20 * MIB, 70 * MIB + 1, 400 * MIB]).prop_map(Step::OthersHold),
        1 => Just(Step::ResetPeaks),
        1 => Just(Step::ResetSums),
    ]
}

fn pool_step() -> impl Strategy<Value = Step> {
    let pool = || 0..POOLS.len();
    prop_oneof![
        2 => pool().prop_map(Step::CreatePool),
        6 => (pool(), prop::option::of(0..STREAMS.len())).prop_map(|(pool, stream)| Step::BeginPool(pool, stream)),
        7 => pool().prop_map(Step::EndPool),
        6 => pool().prop_map(Step::ReleasePool),
        4 => pool().prop_map(Step::ReleaseCachedPool),
        3 => (pool(), prop::bool::weighted(0.8)).prop_map(|(pool, serves)| Step::UseOnOom(pool, serves)),
        // At most one private pool, because with several hardly anything would be split; or the default pool, on which
        // the step has no effect.
        1 => (2..=DEFAULT_POOL).prop_map(Step::NoSplit),
        3 => prop::bool::weighted(0.4).prop_map(Step::Capturing),
        6 => pool().prop_map(Step::Save),
        5 => any::<usize>().prop_map(Step::Restore),
        2 => (pool(), any::<bool>()).prop_map(|(pool, all)| Step::LiveAre(pool, all)),
        2 => any::<usize>().prop_map(Step::FreeAgain),
        1 => pool().prop_map(Step::SnapshotPool),
    ]
}

/// Returns programs with hundreds of blocks in a few sizes. Freeing blocks that are not adjacent creates large numbers
/// of free blocks, which then shrink and grow.
pub(crate) fn crowd() -> impl Strategy<Value = Vec<Step>> {
    let sizes = prop::sample::select(vec![
        vec![512],
        vec![512, 1024],
        vec![512, 1536, 2048, 4096],
        vec![512, 512, 512, 70_000],
        vec![600 * 512],
        vec![MIB],
    ]);
    let taken = prop::collection::vec((any::<usize>(), prop::bool::weighted(0.97)), 100..600);
    let turns = prop::collection::vec((any::<usize>(), 0..4_u8), 40..160);
    (sizes, taken, any::<u8>(), turns).prop_map(|(sizes, taken, order, turns)| {
        let mut steps: Vec<Step> = Vec::new();
        for &(which, is_plain) in &taken {
            steps.push(Step::Allocate(sizes[which % sizes.len()], usize::from(!is_plain)));
        }
        // Frees every second block, starting from the first, from the last, or anywhere. A freed block shortens the
        // list.
        for turn in 0..taken.len() / 2 {
            steps.push(Step::Free(match order % 3 {
                0 => turn,
                1 => taken.len() - 2 * turn - 1,
                _ => taken[turn].0,
            }));
        }
        for (which, kind) in turns {
            steps.push(if kind == 0 { Step::Free(which) } else { Step::Allocate(sizes[which % sizes.len()], 0) });
        }
        steps
    })
}

/// Returns a program with this many steps. Half of the programs use no private pools.
pub(crate) fn program(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let plain = prop_oneof![6 => memory_step(), 1 => other_step()];
    let pooled = prop_oneof![12 => memory_step(), 2 => other_step(), 5 => pool_step()];
    prop_oneof![prop::collection::vec(plain, length.clone()), prop::collection::vec(pooled, length)]
}

/// Returns a program with this many steps in a private pool that is often saved and restored.
pub(crate) fn pool_program(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        16 => memory_step(),
        1 => other_step(),
        3 => pool_step(),
        3 => Just(Step::Save(0)),
        4 => any::<usize>().prop_map(Step::Restore),
    ];
    prop::collection::vec(step, length).prop_map(|steps| std::iter::once(Step::BeginPool(0, None)).chain(steps).collect())
}

/// Returns a program with a few allocations in a private pool that is then saved, further allocations that other
/// streams use, and finally restores.
pub(crate) fn restores() -> impl Strategy<Value = Vec<Step>> {
    let allocate = || (prop_oneof![sizes(), round_sizes()], stream()).prop_map(|(size, stream)| Step::Allocate(size, stream));
    let used = prop_oneof![
        3 => allocate(),
        4 => (any::<usize>(), 0..STREAMS.len()).prop_map(|(which, stream)| Step::Record(which, stream)),
        2 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Save(0)),
    ];
    let end = prop_oneof![
        3 => any::<usize>().prop_map(Step::Restore),
        1 => Just(Step::ProcessEvents),
        1 => allocate(),
        1 => Just(Step::CompleteAll),
        1 => Just(Step::ReleaseCached),
    ];
    let parts = (prop::collection::vec(allocate(), 0..6), prop::collection::vec(used, 1..12), prop::collection::vec(end, 1..6));
    parts.prop_map(|(first, used, end)| {
        let begin = std::iter::once(Step::BeginPool(0, None)).chain(first).chain([Step::Save(0)]);
        begin.chain(used).chain(end).collect()
    })
}
