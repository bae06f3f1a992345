//! What differs between releases of PyTorch, as data.
//!
//! The flow asks a [`Profile`] at the few places where releases differ. It never asks which release it is.

mod alike;
mod pytorch;
mod releases;

use crate::settings::Dialect;
use crate::texts::OomWords;

pub use alike::Scope;
pub use releases::{RELEASES, Release, UnknownRelease};

/// The rules of one release of PyTorch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The release whose rules these are, as users write it: `2.11`. Others may have the same ones ([`RELEASES`]).
    pub name: &'static str,
    /// The settings string that it understands.
    pub dialect: Dialect,
    /// Which of several free blocks of one size is used.
    pub tie_break: TieBreak,
    /// Whether sizes are multiples of 512 bytes where the settings say one division between powers of two; otherwise
    /// they are not rounded there.
    pub rounds_by_one_division: bool,
    /// How a memory fraction becomes a limit in bytes.
    pub limit_rounding: LimitRounding,
    /// Whether a memory fraction of 1 is a limit as well, rather than none.
    pub limits_whole_memory: bool,
    /// Whether it asks the device for its memory when a fraction is set or read, rather than once at the start.
    pub asks_for_total: bool,
    /// When waiting for events is put off.
    pub deferral: Deferral,
    /// Whether it asks the device for its free memory after each refusal.
    pub asks_after_refusal: bool,
    /// The words of its out-of-memory message.
    pub oom_words: &'static OomWords,
    /// What the out-of-memory message hints at where segments are expandable already.
    pub expandable_hint: ExpandableHint,
    /// Whether a reserved range that is too short for the request is given back and counts as out of memory.
    pub gives_short_ranges_back: bool,
    /// Which kind of memory handles expandable segments have.
    pub handle_types: HandleTypes,
    /// Whether statistics count what each private pool has reserved.
    pub counts_private_pools: bool,
    /// Whether statistics count requests rejected before the device is asked.
    pub counts_rejections: bool,
    /// Whether a checkpoint of a pool can be restored after an expandable segment of it has grown.
    pub restores_grown_segments: bool,
    /// Whether private pools have expandable segments.
    pub expands_private_pools: bool,
    /// Whether uses that were recorded during a capture are forgotten if the block is given back during it.
    pub forgets_captured_uses: bool,
    /// Whether saving a pool first records the events of blocks that were given back during a capture.
    pub settles_before_saving: bool,
    /// Whether the end of a routing does so for blocks of its pool, with the setting graph_capture_record_stream_reuse.
    pub settles_at_pool_end: bool,
    /// Whether, with that setting, blocks are reused during a capture once the graph makes their stream wait for the others (spec 3.8).
    pub reuses_by_graph: bool,
    /// Whether pools that serve when the device is out of memory are asked only after the cache has been released, not
    /// before.
    pub borrows_last: bool,
    /// Whether such a pool may lend blocks of expandable segments, where the setting asks for these.
    pub borrows_expandable: bool,
    /// Whether the oldest routing that accepts a request decides its pool, not the newest.
    pub oldest_routing_decides: bool,
    /// Whether a routing that fails counts as one that never ends.
    pub counts_failed_routings: bool,
    /// Whether "never split" ends with its pool; otherwise it stays with the pool's id.
    pub forgets_no_split: bool,
    /// What of its state it shows.
    pub shows: Shows,
    /// Lines of its sources that messages mention.
    pub(crate) asserts: Asserts,
}

/// Which of several free blocks of one size is used (spec 2.3, 11.0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TieBreak {
    /// The one with the lowest address.
    Address,
    /// The one whose segment is the oldest, then the one with the lowest address.
    SegmentAge,
    /// The one that came into being first. Of a block that is split, the part handed out is new; a block that absorbs
    /// others keeps its age.
    BlockAge,
}

/// What the out-of-memory message hints at where segments are expandable already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpandableHint {
    /// At expandable segments, as elsewhere.
    Settings,
    /// Nothing.
    Nothing,
    /// The addresses that segments reserve.
    Addresses,
}

/// Which kind of memory handles expandable segments have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandleTypes {
    /// Handles that no other process can open.
    Unshared,
    /// File descriptors.
    Files,
    /// Fabric handles if creating one succeeds, else file descriptors.
    Tried,
    /// Fabric handles if the device says that it supports them, else file descriptors.
    Asked,
}

/// What of its state a release shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shows {
    /// Trace entries name their private pool.
    pub entry_pools: bool,
    /// Snapshots have the settings.
    pub settings: bool,
    /// Statistics count waits for all streams, and memory taken from the device and given back.
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

/// When waiting is put off (spec 3.8): no events are polled, blocks used by other streams wait for their
/// events to be recorded, and the default pool releases nothing.
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

/// Lines of PyTorch's sources that messages mention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asserts {
    pub(crate) file: &'static str,
    /// An unknown pool.
    pub(crate) unknown: u32,
    /// A pool without uses.
    pub(crate) abandoned: u32,
    /// A pool that is released more often than used.
    pub(crate) not_in_use: u32,
    /// The same, found when memory is given back.
    pub(crate) overreleased: u32,
    /// Emptying the cache during a capture, where that is an assert: what it asserts, and its line.
    pub(crate) capture: Option<(&'static str, u32)>,
    /// With the setting graph_capture_record_stream_reuse, where these are asserts: a request for a stream that is not captured, or is
    /// captured outside of any routing, and the end of a routing during its capture.
    pub(crate) stream: Option<(u32, u32)>,
    /// A free block of an expandable segment that would be released for an oversize request, where that is an assert.
    pub(crate) expandable: Option<u32>,
    /// A memory fraction outside 0 to 1, where that is an assert.
    pub(crate) fraction: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the real releases answer for 0.4 of 1 GiB, read back as fractions (spec 11.0).
    #[test]
    fn a_limit_is_rounded_as_the_release_rounds_it() {
        assert_eq!(LimitRounding::Down.limit(0.4, 1 << 30), 429_496_729);
        assert_eq!(LimitRounding::Nearest.limit(0.4, 1 << 30), 429_496_730);
        assert_eq!(LimitRounding::Nearest.limit(0.25, 1 << 30), 1 << 28);
    }
}
