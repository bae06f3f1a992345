//! The differences between PyTorch releases, as data, and the releases with their rules.
//!
//! The allocator consults a [`Profile`] at the few points where releases differ. It never asks for the release itself.
//!
//! Not every rule matters to every program: two releases may differ only in features that a program never uses
//! ([`Profile::decides_like`]). A release is defined by a neighbouring release and the differences from it.

use alloc::string::String;
use core::fmt;

use crate::settings::Dialect;
use crate::texts::OomWords;

/// The rules of a PyTorch release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The release that has these rules, as users write it: `2.11`. Other releases may have the same rules
    /// ([`RELEASES`]).
    pub name: &'static str,
    /// The release's dialect of the settings string.
    pub dialect: Dialect,
    /// How the release chooses among free blocks of equal size.
    pub tie_break: TieBreak,
    /// Whether sizes are rounded up to multiples of 512 bytes if the settings ask for one division between powers of
    /// two. If false, the release does not round them in that case.
    pub rounds_by_one_division: bool,
    /// How a memory fraction becomes a limit in bytes.
    pub limit_rounding: LimitRounding,
    /// Whether a memory fraction of 1 also sets a limit.
    pub limits_whole_memory: bool,
    /// Whether the release asks the device for its total memory when a fraction is set or read, rather than once at
    /// the start.
    pub asks_for_total: bool,
    /// When the release postpones waiting for events.
    pub deferral: Deferral,
    /// Whether the release asks the device for its free memory after each refusal.
    pub asks_after_refusal: bool,
    /// The wording of the release's out-of-memory message.
    pub oom_words: &'static OomWords,
    /// The suggestion in the out-of-memory message if segments are already expandable.
    pub expandable_hint: ExpandableHint,
    /// Whether the release frees a reserved range that is too short for the request, and treats that as out of memory.
    pub gives_short_ranges_back: bool,
    /// The kind of memory handles that expandable segments use.
    pub handle_types: HandleTypes,
    /// Whether statistics count the bytes that each private pool has reserved.
    pub counts_private_pools: bool,
    /// Whether statistics count requests rejected before the device is asked.
    pub counts_rejections: bool,
    /// Whether a checkpoint of a pool can be restored after one of its expandable segments has grown.
    pub restores_grown_segments: bool,
    /// Whether private pools have expandable segments.
    pub expands_private_pools: bool,
    /// Whether the release forgets uses that were recorded during a capture if the block is freed during the same
    /// capture.
    pub forgets_captured_uses: bool,
    /// Whether saving a pool first records the events of blocks that were freed during a capture.
    pub flushes_before_saving: bool,
    /// Whether, with the setting graph_capture_record_stream_reuse, ending the routing to a pool records these events
    /// for the pool's blocks.
    pub flushes_at_pool_end: bool,
    /// Whether, with the setting graph_capture_record_stream_reuse, the release reuses blocks during a capture when
    /// the graph makes their stream wait for the other streams (spec 3.8).
    pub reuses_by_graph: bool,
    /// Whether emptying the entire cache fails while a graph is captured. If not, it spares the default pool (spec 2.10).
    /// In every release, emptying the cache of one private pool fails then.
    pub keeps_cache_in_captures: bool,
    /// Whether the release tries the pools that may serve requests when the device is out of memory only after
    /// releasing the cache, and not before.
    pub borrows_last: bool,
    /// Whether these pools may lend blocks of expandable segments, if the settings ask for expandable segments.
    pub borrows_expandable: bool,
    /// Whether the oldest routing that accepts a request decides its pool, rather than the newest.
    pub oldest_routing_decides: bool,
    /// Whether a failed routing counts as one that never ends.
    pub counts_failed_routings: bool,
    /// Whether "never split" ends with its pool. If false, it stays with the pool's id.
    pub forgets_no_split: bool,
    /// The parts of its state that the release shows.
    pub shows: Shows,
    /// The source lines that the release's messages mention.
    pub(crate) asserts: Asserts,
}

/// The choice among free blocks of equal size (spec 2.3, 11.0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TieBreak {
    /// The block with the lowest address.
    Address,
    /// The block in the oldest segment; within a segment, the one with the lowest address.
    SegmentAge,
    /// The block that was created first. When a block is split, the part that is handed out counts as new; a block
    /// that absorbs others keeps its age.
    BlockAge,
}

/// The suggestion in the out-of-memory message if segments are already expandable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpandableHint {
    /// To use expandable segments, as in the other messages.
    Settings,
    /// Nothing.
    Nothing,
    /// To change the addresses that segments reserve.
    Addresses,
}

/// The kind of memory handles that expandable segments use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandleTypes {
    /// Handles that no other process can open.
    Unshared,
    /// File descriptors.
    Files,
    /// Fabric handles if one can be created, otherwise file descriptors.
    Tried,
    /// Fabric handles if the device reports that it supports them, otherwise file descriptors.
    Asked,
}

/// The parts of its state that a release shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shows {
    /// Trace entries name their private pool.
    pub entry_pools: bool,
    /// Snapshots contain the settings.
    pub settings: bool,
    /// Statistics count waits for all streams, and memory taken from the device and returned to it.
    pub device_counters: bool,
}

/// How a memory fraction becomes a limit in bytes (spec 2.15, 11.0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitRounding {
    /// Rounded down.
    Down,
    /// Rounded to the nearest.
    Nearest,
}

/// When a release postpones waiting (spec 3.8): it polls no events, blocks used by other streams wait until their
/// events are recorded, and the default pool releases nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deferral {
    /// While requests are routed to any private pool.
    WhileRouting,
    /// While the caller's current stream is being captured.
    WhileCapturing,
}

impl LimitRounding {
    /// The limit in bytes for a fraction from 0 to 1 of `total` bytes.
    #[must_use]
    pub fn limit(self, fraction: f64, total: u64) -> u64 {
        let exact = fraction * total as f64;
        let down = exact as u64;
        match self {
            LimitRounding::Nearest if exact - down as f64 >= 0.5 => down + 1,
            _ => down,
        }
    }
}

/// The lines of PyTorch's source code that messages mention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asserts {
    pub(crate) file: &'static str,
    /// The pool is unknown.
    pub(crate) unknown: u32,
    /// The pool has no uses.
    pub(crate) abandoned: u32,
    /// The pool is released more often than used.
    pub(crate) not_in_use: u32,
    /// The pool was released more often than used, which is detected when its memory is released.
    pub(crate) overreleased: u32,
    /// The program empties the cache during a capture, or that of a private pool without uses: the asserted condition and
    /// its line.
    pub(crate) capture: (&'static str, u32),
    /// With the setting graph_capture_record_stream_reuse, in releases with these asserts: a request for a stream that
    /// is not captured or is captured outside any routing; and a routing that ends during its capture.
    pub(crate) stream: Option<(u32, u32)>,
    /// An oversize request would release a free block of an expandable segment, in releases with an assert against
    /// this.
    pub(crate) expandable: Option<u32>,
    /// A memory fraction is outside 0 to 1, in releases with an assert against this.
    pub(crate) fraction: Option<u32>,
}

/// The features used by a program for which releases have different rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope {
    /// Expandable segments.
    pub expandable_segments: bool,
    /// Private pools: graphs, captures and MemPools.
    pub private_pools: bool,
    /// Checkpoints of private pools. A replay of a trace has none: in a trace, a restored block is an entry like any
    /// other.
    pub checkpoints: bool,
    /// Requests rounded to one division between powers of two.
    pub one_division: bool,
}

impl Scope {
    /// All features.
    pub const EVERYTHING: Scope = Scope { expandable_segments: true, private_pools: true, checkpoints: true, one_division: true };
}

impl Profile {
    /// Whether a request fails if a free block of an expandable segment would be released for it (spec 2.9).
    pub(crate) const fn fails_to_release_expandable(&self) -> bool {
        self.asserts.expandable.is_some()
    }

    /// Whether a request during a capture fails if its stream is not captured, with the setting
    /// graph_capture_record_stream_reuse.
    pub(crate) const fn fails_outside_captures(&self) -> bool {
        self.asserts.stream.is_some() && !self.reuses_by_graph
    }

    /// Whether a program that only uses the features in `scope` gets the same blocks at the same addresses and the
    /// same trace entries from both profiles, under settings and a limit in bytes that have the same meaning for both.
    ///
    /// Messages, the settings string, statistics, and driver calls that affect no decision may differ. A rule that is
    /// not mentioned here always counts.
    #[must_use]
    pub fn decides_like(&self, other: &Profile, scope: Scope) -> bool {
        if scope.expandable_segments && self.fails_to_release_expandable() != other.fails_to_release_expandable() {
            return false;
        }
        let mut same = *self;
        same.name = other.name;
        same.dialect = other.dialect;
        same.limit_rounding = other.limit_rounding;
        same.asks_after_refusal = other.asks_after_refusal;
        same.limits_whole_memory = other.limits_whole_memory;
        same.asks_for_total = other.asks_for_total;
        same.expandable_hint = other.expandable_hint;
        same.handle_types = other.handle_types;
        same.shows = other.shows;
        same.asserts = other.asserts;
        // A replay does not repeat calls that fail.
        same.keeps_cache_in_captures = other.keeps_cache_in_captures;
        same.counts_private_pools = other.counts_private_pools;
        same.counts_rejections = other.counts_rejections;
        same.oom_words = other.oom_words;
        if !scope.expandable_segments {
            same.gives_short_ranges_back = other.gives_short_ranges_back;
        }
        if !scope.private_pools {
            same.deferral = other.deferral;
            same.forgets_no_split = other.forgets_no_split;
            same.expands_private_pools = other.expands_private_pools;
            same.forgets_captured_uses = other.forgets_captured_uses;
            same.reuses_by_graph = other.reuses_by_graph;
            same.flushes_at_pool_end = other.flushes_at_pool_end;
            same.borrows_last = other.borrows_last;
            same.borrows_expandable = other.borrows_expandable;
            same.oldest_routing_decides = other.oldest_routing_decides;
            same.counts_failed_routings = other.counts_failed_routings;
        }
        if !scope.checkpoints {
            same.restores_grown_segments = other.restores_grown_segments;
            same.flushes_before_saving = other.flushes_before_saving;
        }
        if !scope.one_division {
            same.rounds_by_one_division = other.rounds_by_one_division;
        }
        same == *other
    }
}

/// A PyTorch release and its rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// The release's full name: `2.11.0`.
    pub name: &'static str,
    /// The release's rules. Releases that behave the same share them.
    pub profile: &'static Profile,
}

/// Every release for which a comparison of the rules with its binary showed no difference, oldest first.
pub const RELEASES: &[Release] = &[
    Release { name: "2.1.0", profile: &Profile::PYTORCH_2_1 },
    Release { name: "2.1.1", profile: &Profile::PYTORCH_2_1 },
    Release { name: "2.1.2", profile: &Profile::PYTORCH_2_1 },
    Release { name: "2.2.0", profile: &Profile::PYTORCH_2_2 },
    Release { name: "2.2.1", profile: &Profile::PYTORCH_2_2 },
    Release { name: "2.2.2", profile: &Profile::PYTORCH_2_2 },
    Release { name: "2.3.0", profile: &Profile::PYTORCH_2_3 },
    Release { name: "2.3.1", profile: &Profile::PYTORCH_2_3 },
    Release { name: "2.4.0", profile: &Profile::PYTORCH_2_4 },
    Release { name: "2.4.1", profile: &Profile::PYTORCH_2_4 },
    Release { name: "2.5.0", profile: &Profile::PYTORCH_2_5 },
    Release { name: "2.5.1", profile: &Profile::PYTORCH_2_5 },
    Release { name: "2.6.0", profile: &Profile::PYTORCH_2_6 },
    Release { name: "2.7.0", profile: &Profile::PYTORCH_2_7 },
    Release { name: "2.7.1", profile: &Profile::PYTORCH_2_7 },
    Release { name: "2.8.0", profile: &Profile::PYTORCH_2_8 },
    Release { name: "2.9.0", profile: &Profile::PYTORCH_2_9 },
    Release { name: "2.9.1", profile: &Profile::PYTORCH_2_9 },
    Release { name: "2.10.0", profile: &Profile::PYTORCH_2_10 },
    Release { name: "2.11.0", profile: &Profile::PYTORCH_2_11 },
    Release { name: "2.12.0", profile: &Profile::PYTORCH_2_12 },
    Release { name: "2.12.1", profile: &Profile::PYTORCH_2_12 },
    Release { name: "2.13.0", profile: &Profile::PYTORCH_2_13 },
    Release { name: "2.14.0", profile: &Profile::PYTORCH_2_14 },
    Release { name: "2.14.1", profile: &Profile::PYTORCH_2_14 },
    Release { name: "2.15.0", profile: &Profile::PYTORCH_2_15 },
];

/// There are no rules for a release with this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownRelease {
    /// The name.
    pub name: String,
}

impl fmt::Display for UnknownRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rules of PyTorch {:?} are not known; the known releases are", self.name)?;
        for (place, release) in RELEASES.iter().enumerate() {
            f.write_str(if place == 0 { " " } else { ", " })?;
            f.write_str(release.name)?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownRelease {}

impl Profile {
    /// The rules of a release such as `2.11.0`, with or without a build suffix (`2.11.0+cu130`). `2.11` means the last
    /// release of that series.
    ///
    /// # Errors
    /// [`RELEASES`] does not contain a release with this name.
    pub fn of(name: &str) -> Result<&'static Profile, UnknownRelease> {
        let public = name.split_once('+').map_or(name, |(public, _)| public);
        let is_meant = |release: &&Release| release.name == public || series(release.name) == public;
        let found = RELEASES.iter().rev().find(is_meant);
        found.map(|release| release.profile).ok_or_else(|| UnknownRelease { name: String::from(name) })
    }

    /// The releases that have these rules, oldest first.
    pub fn releases(&self) -> impl DoubleEndedIterator<Item = &'static Release> + '_ {
        RELEASES.iter().filter(move |release| release.profile == self)
    }
}

/// A release's name without the last number.
fn series(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(series, _)| series)
}

/// The path of the allocator's source when PyTorch 2.6 to 2.12 were built.
const SOURCE: &str = "/pytorch/c10/cuda/CUDACachingAllocator.cpp";
/// The path for releases up to 2.5.
const OLDER_SOURCE: &str = "../c10/cuda/CUDACachingAllocator.cpp";
/// The path for releases after 2.12.
const NEWER_SOURCE: &str = "/__w/pytorch/pytorch/c10/cuda/CUDACachingAllocator.cpp";

impl Profile {
    /// PyTorch 2.1.
    pub const PYTORCH_2_1: Profile = Profile {
        name: "2.1",
        dialect: Dialect::PYTORCH_2_1,
        oom_words: &OomWords::PYTORCH_2_1,
        asserts: Asserts {
            file: OLDER_SOURCE,
            unknown: 2136,
            abandoned: 2103,
            not_in_use: 2138,
            overreleased: 2782,
            capture: ("captures_underway == 0", 2939),
            stream: None,
            expandable: Some(2814),
            fraction: Some(3165),
        },
        ..Profile::PYTORCH_2_2
    };

    /// PyTorch 2.2.
    pub const PYTORCH_2_2: Profile = Profile {
        name: "2.2",
        dialect: Dialect::PYTORCH_2_2,
        oom_words: &OomWords::PYTORCH_2_2,
        shows: Shows { settings: false, device_counters: false, ..Profile::PYTORCH_2_3.shows },
        counts_failed_routings: true,
        asserts: Asserts {
            file: OLDER_SOURCE,
            unknown: 1829,
            abandoned: 1796,
            not_in_use: 1831,
            overreleased: 2493,
            capture: ("captures_underway == 0", 2650),
            stream: None,
            expandable: Some(2525),
            fraction: Some(2896),
        },
        ..Profile::PYTORCH_2_3
    };

    /// PyTorch 2.3.
    pub const PYTORCH_2_3: Profile = Profile {
        name: "2.3",
        dialect: Dialect::PYTORCH_2_3,
        oom_words: &OomWords::PYTORCH_2_3,
        rounds_by_one_division: false,
        forgets_captured_uses: false,
        flushes_before_saving: false,
        asserts: Asserts {
            file: OLDER_SOURCE,
            unknown: 1843,
            abandoned: 1804,
            not_in_use: 1845,
            overreleased: 2515,
            capture: ("captures_underway.size() == 0", 2679),
            stream: None,
            expandable: Some(2549),
            fraction: Some(2943),
        },
        ..Profile::PYTORCH_2_4
    };

    /// PyTorch 2.4.
    pub const PYTORCH_2_4: Profile = Profile {
        name: "2.4",
        dialect: Dialect::PYTORCH_2_4,
        oom_words: &OomWords::PYTORCH_2_4,
        handle_types: HandleTypes::Unshared,
        expands_private_pools: false,
        asserts: Asserts {
            file: OLDER_SOURCE,
            unknown: 1878,
            abandoned: 1839,
            not_in_use: 1880,
            overreleased: 2552,
            capture: ("captures_underway.empty()", 2716),
            stream: None,
            expandable: Some(2586),
            fraction: Some(3009),
        },
        ..Profile::PYTORCH_2_5
    };

    /// PyTorch 2.5.
    pub const PYTORCH_2_5: Profile = Profile {
        name: "2.5",
        dialect: Dialect::PYTORCH_2_5,
        asserts: Asserts {
            file: OLDER_SOURCE,
            unknown: 2073,
            abandoned: 2034,
            not_in_use: 2075,
            overreleased: 2786,
            capture: ("captures_underway.empty()", 2967),
            stream: None,
            expandable: None,
            fraction: Some(3256),
        },
        ..Profile::PYTORCH_2_6
    };

    /// PyTorch 2.6.
    pub const PYTORCH_2_6: Profile = Profile {
        name: "2.6",
        dialect: Dialect::PYTORCH_2_6,
        asserts: Asserts {
            file: SOURCE,
            unknown: 2232,
            abandoned: 2225,
            not_in_use: 2128,
            overreleased: 2892,
            capture: ("captures_underway.empty()", 3085),
            stream: None,
            expandable: None,
            fraction: Some(3421),
        },
        ..Profile::PYTORCH_2_7
    };

    /// PyTorch 2.7.
    pub const PYTORCH_2_7: Profile = Profile {
        name: "2.7",
        dialect: Dialect::PYTORCH_2_7,
        handle_types: HandleTypes::Files,
        shows: Shows { entry_pools: false, ..Profile::PYTORCH_2_8.shows },
        asserts: Asserts {
            file: SOURCE,
            unknown: 2233,
            abandoned: 2226,
            not_in_use: 2129,
            overreleased: 2896,
            capture: ("captures_underway.empty()", 3089),
            stream: None,
            expandable: None,
            fraction: Some(3430),
        },
        keeps_cache_in_captures: true,
        ..Profile::PYTORCH_2_8
    };

    /// PyTorch 2.8.
    pub const PYTORCH_2_8: Profile = Profile {
        name: "2.8",
        dialect: Dialect::PYTORCH_2_8,
        asserts: Asserts {
            file: SOURCE,
            unknown: 2387,
            abandoned: 2379,
            not_in_use: 2279,
            overreleased: 3045,
            capture: ("captures_underway.empty()", 3235),
            stream: None,
            expandable: None,
            fraction: None,
        },
        ..Profile::PYTORCH_2_9
    };

    /// PyTorch 2.9.
    pub const PYTORCH_2_9: Profile = Profile {
        name: "2.9",
        dialect: Dialect::PYTORCH_2_9,
        limits_whole_memory: true,
        asks_for_total: true,
        oom_words: &OomWords::PYTORCH_2_5,
        reuses_by_graph: false,
        borrows_expandable: true,
        oldest_routing_decides: true,
        asserts: Asserts {
            file: SOURCE,
            unknown: 2638,
            abandoned: 2630,
            not_in_use: 2530,
            overreleased: 3285,
            capture: ("captures_underway.empty()", 3475),
            stream: Some((1716, 0)),
            expandable: None,
            fraction: None,
        },
        ..Profile::PYTORCH_2_10
    };

    /// PyTorch 2.10.
    pub const PYTORCH_2_10: Profile = Profile {
        name: "2.10",
        dialect: Dialect::PYTORCH_2_10,
        oom_words: &OomWords::PYTORCH_2_10,
        restores_grown_segments: false,
        borrows_last: true,
        asserts: Asserts {
            unknown: 2739,
            abandoned: 2731,
            not_in_use: 2631,
            overreleased: 3394,
            stream: Some((1893, 2597)),
            capture: ("captures_underway.empty()", 3583),
            ..Profile::PYTORCH_2_11.asserts
        },
        ..Profile::PYTORCH_2_11
    };

    /// PyTorch 2.11.
    pub const PYTORCH_2_11: Profile = Profile {
        name: "2.11",
        dialect: Dialect::PYTORCH_2_11,
        tie_break: TieBreak::Address,
        limit_rounding: LimitRounding::Down,
        rounds_by_one_division: true,
        limits_whole_memory: false,
        asks_for_total: false,
        deferral: Deferral::WhileRouting,
        asks_after_refusal: false,
        oom_words: &OomWords::PYTORCH_2_11,
        expandable_hint: ExpandableHint::Settings,
        gives_short_ranges_back: false,
        handle_types: HandleTypes::Tried,
        counts_private_pools: false,
        counts_rejections: false,
        restores_grown_segments: true,
        expands_private_pools: true,
        keeps_cache_in_captures: false,
        forgets_captured_uses: true,
        flushes_before_saving: true,
        flushes_at_pool_end: false,
        reuses_by_graph: true,
        borrows_last: false,
        borrows_expandable: false,
        oldest_routing_decides: false,
        counts_failed_routings: false,
        forgets_no_split: false,
        shows: Shows { entry_pools: true, settings: true, device_counters: true },
        asserts: Asserts {
            file: SOURCE,
            unknown: 2807,
            abandoned: 2799,
            not_in_use: 2698,
            overreleased: 3473,
            capture: ("captures_underway.empty()", 3662),
            stream: Some((1926, 2664)),
            expandable: None,
            fraction: None,
        },
    };

    /// PyTorch 2.12.
    pub const PYTORCH_2_12: Profile = Profile {
        name: "2.12",
        dialect: Dialect::PYTORCH_2_12,
        tie_break: TieBreak::BlockAge,
        counts_rejections: true,
        flushes_at_pool_end: true,
        asserts: Asserts {
            unknown: 3057,
            abandoned: 3049,
            not_in_use: 2948,
            overreleased: 3752,
            stream: Some((2131, 2871)),
            capture: ("captures_underway.empty()", 3941),
            ..Profile::PYTORCH_2_11.asserts
        },
        ..Profile::PYTORCH_2_11
    };

    /// PyTorch 2.13.
    pub const PYTORCH_2_13: Profile = Profile {
        name: "2.13",
        dialect: Dialect::PYTORCH_2_13,
        expandable_hint: ExpandableHint::Settings,
        forgets_no_split: false,
        asserts: Asserts {
            file: NEWER_SOURCE,
            unknown: 3340,
            abandoned: 3332,
            not_in_use: 3231,
            overreleased: 4090,
            capture: ("!is_capture_context()", 4291),
            stream: Some((2372, 3134)),
            expandable: None,
            fraction: None,
        },
        ..Profile::PYTORCH_2_14
    };

    /// PyTorch 2.14.
    pub const PYTORCH_2_14: Profile = Profile {
        name: "2.14",
        dialect: Dialect::PYTORCH_2_14,
        expandable_hint: ExpandableHint::Nothing,
        gives_short_ranges_back: false,
        asserts: Asserts {
            file: NEWER_SOURCE,
            unknown: 3337,
            abandoned: 3329,
            not_in_use: 3229,
            overreleased: 4091,
            capture: ("!is_capture_context()", 4290),
            stream: Some((2371, 3132)),
            expandable: None,
            fraction: None,
        },
        ..Profile::PYTORCH_2_15
    };

    /// PyTorch 2.15.
    pub const PYTORCH_2_15: Profile = Profile {
        name: "2.15",
        dialect: Dialect::PYTORCH_2_15,
        tie_break: TieBreak::SegmentAge,
        limit_rounding: LimitRounding::Nearest,
        rounds_by_one_division: true,
        limits_whole_memory: false,
        asks_for_total: false,
        deferral: Deferral::WhileCapturing,
        asks_after_refusal: true,
        oom_words: &OomWords::PYTORCH_2_11,
        expandable_hint: ExpandableHint::Addresses,
        gives_short_ranges_back: true,
        handle_types: HandleTypes::Asked,
        counts_private_pools: true,
        counts_rejections: true,
        restores_grown_segments: true,
        expands_private_pools: true,
        keeps_cache_in_captures: false,
        forgets_captured_uses: true,
        flushes_before_saving: true,
        flushes_at_pool_end: true,
        reuses_by_graph: true,
        borrows_last: false,
        borrows_expandable: false,
        oldest_routing_decides: false,
        counts_failed_routings: false,
        forgets_no_split: true,
        shows: Profile::PYTORCH_2_11.shows,
        asserts: Asserts {
            file: NEWER_SOURCE,
            unknown: 3481,
            abandoned: 3473,
            not_in_use: 3373,
            overreleased: 4249,
            capture: ("!is_capture_context()", 4448),
            stream: Some((2519, 3279)),
            expandable: None,
            fraction: None,
        },
    };
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    /// Compares with what the real releases report for a fraction of 0.4 of 1 GiB, read back as a fraction (spec
    /// 11.0).
    #[test]
    fn a_limit_is_rounded_as_the_release_rounds_it() {
        assert_eq!(LimitRounding::Down.limit(0.4, 1 << 30), 429_496_729);
        assert_eq!(LimitRounding::Nearest.limit(0.4, 1 << 30), 429_496_730);
        assert_eq!(LimitRounding::Nearest.limit(0.25, 1 << 30), 1 << 28);
    }

    #[test]
    fn rules_of_what_a_program_does_not_use_do_not_matter() {
        let (old, new) = (Profile::PYTORCH_2_11, Profile::PYTORCH_2_15);
        let plain = Scope { expandable_segments: false, private_pools: false, checkpoints: false, one_division: false };
        assert!(!old.decides_like(&new, plain), "they choose different blocks of equal size");
        let with_ties_as_old = Profile { tie_break: TieBreak::Address, ..new };
        assert!(old.decides_like(&with_ties_as_old, plain));
        assert!(!old.decides_like(&with_ties_as_old, Scope { private_pools: true, ..plain }));
        assert!(!old.decides_like(&with_ties_as_old, Scope { expandable_segments: true, ..plain }));
        assert!(new.decides_like(&new, Scope::EVERYTHING));
    }

    #[test]
    fn a_release_is_found_by_its_name_and_by_its_series() {
        for name in ["2.11", "2.11.0", "2.11.0+cu130"] {
            assert_eq!(Profile::of(name), Ok(&Profile::PYTORCH_2_11), "{name}");
        }
        assert_eq!(Profile::of("2.15"), Ok(&Profile::PYTORCH_2_15));
        assert_eq!(
            [Profile::of("2.1"), Profile::of("2.1.2"), Profile::of("2.10")].map(|found| found.unwrap().name),
            ["2.1", "2.1", "2.10"]
        );
        for name in ["", "2", "2.1100", "2.11.", "2.11.9", "v2.11", "2.0", "2.16"] {
            assert_eq!(Profile::of(name), Err(UnknownRelease { name: name.to_string() }), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let said = Profile::of("9.9").unwrap_err().to_string();
        assert!(said.starts_with("the rules of PyTorch \"9.9\" are not known; the known releases are 2."), "{said}");
        assert!(RELEASES.iter().all(|release| said.contains(release.name)), "{said}");
    }

    #[test]
    fn the_table_is_in_order_and_names_each_release_once() {
        let number = |release: &Release| release.name.split('.').map(|part| part.parse().unwrap()).collect::<Vec<u32>>();
        assert!(RELEASES.windows(2).all(|pair| number(&pair[0]) < number(&pair[1])));
        for release in RELEASES {
            assert!(release.profile.releases().any(|other| other == release));
            assert!(release.profile.releases().any(|other| series(other.name) == release.profile.name), "{}", release.name);
        }
    }
}
