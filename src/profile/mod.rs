//! The differences between PyTorch releases, as data.
//!
//! The allocator consults a [`Profile`] at the few points where releases differ. It never asks for the release itself.
//!
//! Not every rule matters to every program: two releases may differ only in features that a program never uses
//! ([`Profile::decides_like`]).

mod releases;

use crate::settings::Dialect;
use crate::texts::OomWords;
pub use releases::{RELEASES, Release, UnknownRelease};

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

#[cfg(test)]
mod tests {
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
}
