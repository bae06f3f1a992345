//! The steps of programs: everything that a caller of an allocator can do, and that can happen to its device; and the
//! [`Setup`] in which a program runs.

use std::sync::OnceLock;

use parkade::profile::{Profile, RELEASES, Release};
use parkade::settings::Settings;
use parkade::units::{MIB, PoolId};

use crate::backend::{EventTiming, Hidden, Places};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// One step of a program. Allocations, pools and checkpoints are given as indices that wrap around.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Requests this many bytes for a stream.
    Allocate(u64, usize),
    /// Does the same through `raw_allocate`.
    AllocateRaw(u64, usize),
    /// Requests bytes for a stream at an address in or beside a free block: the block, and the place there ([`Spot`]).
    AllocateAt(u64, usize, usize, Spot),
    Free(usize),
    /// Frees an allocation that a restore has already taken back.
    FreeAgain(usize),
    /// Frees an allocation and requests the same size on the same stream, as loops do.
    Replace(usize),
    /// `record_stream`, without any use.
    Record(usize, usize),
    /// A stream fills an allocation after its last user has finished, and the program records the use with the allocator.
    Use(usize, usize),
    /// A stream copies as much of the first allocation as fits to the start of the second; the program records both uses.
    Copy(usize, usize, usize),
    /// The host reads an allocation after its last user has finished.
    Read(usize),
    /// Hands an allocation to a free-memory callback, which frees it when called.
    Stock(usize, usize),
    /// Gives a free-memory callback its action and the value that it reports.
    Command(usize, Order, bool),
    /// Keeps a stream busy for this many nanoseconds.
    Launch(usize, u64),
    /// Lets this many nanoseconds pass.
    Pause(u64),
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
    /// Sets the memory fraction, in thousandths.
    Fraction(u16),
    /// Sets the limit in bytes, or removes it.
    Limit(Option<u64>),
    /// Applies a settings string, given as an index in [`texts`].
    Apply(usize),
    /// Makes other processes hold this many bytes from now on.
    OthersHold(u64),
    /// `reset_peak_memory_stats`.
    ResetPeaks,
    /// `reset_accumulated_memory_stats`.
    ResetSums,
    /// Creates a private pool, or adds a use of it.
    CreatePool(usize),
    /// Routes requests to a pool: all of them, as `use_mem_pool` does, or those on one stream, as a capture does.
    BeginPool(usize, Option<usize>),
    /// Routes to a pool the requests that choose it.
    BeginChosen(usize),
    /// Chooses the pool of the requests that follow.
    Choose(Option<usize>),
    /// Ends the routing.
    EndPool(usize),
    /// Ends a use of a pool, as when a graph is dropped.
    ReleasePool(usize),
    /// `empty_cache` of a pool.
    ReleaseCachedPool(usize),
    /// Lets a pool serve other requests when memory runs out, or no longer.
    UseOnOom(usize, bool),
    /// Stops splitting a pool's segments.
    NoSplit(usize),
    /// The current stream is captured from now on, or no longer.
    Capturing(bool),
    /// Begins the capture of a graph on a stream. Only simulated devices capture.
    BeginGraph(usize),
    /// Ends the capture in which a stream takes part.
    EndGraph(usize),
    /// Submits work to a captured stream.
    GraphWork(usize),
    /// Makes the first stream wait for the second, which is captured.
    GraphWait(usize, usize),
    /// Makes questions about the capture of a stream fail from now on, or no longer.
    HideGraph(usize, Hidden),
    /// Makes the n-th driver call from now on fail, counted from 1, with this error.
    FailNext(u64, u32),
    /// Saves what a pool has handed out.
    Save(usize),
    /// Restores a checkpoint.
    Restore(usize),
    /// Restores a copy of a checkpoint that differs from it in one place, which is drawn from the second number.
    RestoreChanged(usize, u64),
    /// Asks whether a pool's allocations are exactly those that the program holds, or all but the first.
    LiveAre(usize, bool),
    Snapshot,
    SnapshotPool(usize),
}

/// A place in a free block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Spot {
    /// This many bytes behind the first byte, or before it.
    Start(i64),
    /// The place from which the request reaches exactly to the end of the block, or this many bytes behind it.
    End(i64),
    /// The middle.
    Middle,
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

/// The maximum number of steps of a wild program.
pub(crate) const LONGEST: usize = 140;

/// The failing calls: at every n-th call, this many calls in a row fail with this error.
pub(crate) type Failing = (u64, u64, u32);

/// The driver's code for "out of memory".
pub(crate) const OUT_OF_MEMORY: u32 = 2;

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
pub(crate) const TEXTS: [&str; 29] = [
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
    "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "garbage_collection_threshold:0.3,max_split_size_mb:32",
    "max_split_size_mb:20,roundup_power2_divisions:2,garbage_collection_threshold:0.9",
    "roundup_power2_divisions:[1:4,2:1,4:8,>:2]",
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

/// The allocator and the device with which a program runs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The release whose rules apply.
    #[serde(deserialize_with = "known_release")]
    pub(crate) release: ReleaseName,
    /// The device's memory in bytes.
    pub(crate) capacity: u64,
    /// The rule by which events are reported complete.
    pub(crate) timing: EventTiming,
    /// Where segments are placed.
    pub(crate) places: Places,
    /// Whether freeing a segment waits for the device.
    pub(crate) free_waits: bool,
    /// The settings at the start, as an index in [`texts`].
    pub(crate) settings: usize,
    /// Whether free-memory callbacks are registered.
    pub(crate) has_callbacks: bool,
    /// Determines which segments exist at the start; `None` means none.
    pub(crate) adopted: Option<u64>,
    /// Whether everything is freed before the allocator is dropped.
    pub(crate) is_finished: bool,
    /// The seed of a randomly assembled policy.
    pub(crate) policy_seed: u64,
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

impl Setup {
    /// Returns a setup with 200 MiB and release 2.11, and no other conditions.
    pub(crate) const PLAIN: Setup = Setup {
        release: "2.11",
        capacity: 200 * MIB,
        timing: EventTiming::Eager,
        places: Places::Ascending,
        free_waits: false,
        settings: 0,
        has_callbacks: false,
        adopted: None,
        is_finished: true,
        policy_seed: 0,
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

    /// Returns the same setup with this settings string, which the release must understand.
    pub(crate) fn with_settings(self, text: &str) -> Setup {
        let settings = texts(self.profile()).iter().position(|known| *known == text).expect("a string of the table");
        Setup { settings, ..self }
    }

    /// Applies a string at run time. Earlier strings may make the new one illegal; the part before the error then stays
    /// in effect.
    pub(crate) fn apply(&self, settings: &mut Settings, place: usize) {
        let _ = settings.apply_as(&self.profile().dialect, self.text(place));
    }
}
