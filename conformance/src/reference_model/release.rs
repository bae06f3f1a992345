//! A second implementation, based on docs/releases.md, of the rules in which PyTorch releases differ: each rule lists
//! the releases that have it.
//!
//! The core has these rules as a table of profiles. A wrong value in the table or a rule that the core applies wrongly
//! therefore shows up as a difference.

use parkade::profile::{ExpandableHint, Scope, TieBreak};

/// The rules of one series of releases, from 2.1 to 2.15.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReleaseRules {
    /// The second number in the series' name.
    minor: u32,
    /// The rule that decides which of several equal free blocks is used.
    pub tie_break: TieBreak,
    /// Whether sizes with one division between powers of two are multiples of 512 bytes.
    pub rounds_by_one_division: bool,
    /// Whether a fraction's limit is rounded down rather than to nearest.
    pub rounds_limits_down: bool,
    /// Whether a fraction of 1 is a limit.
    pub limits_whole_memory: bool,
    /// Whether setting a fraction queries the device's total memory.
    pub asks_for_total: bool,
    /// Whether waiting is deferred while requests are routed to a pool, rather than while the caller's stream is captured.
    pub defers_while_routing: bool,
    /// Whether the device's free memory is queried after each refusal.
    pub asks_after_refusal: bool,
    /// The hint in the error message if segments are expandable.
    pub expandable_hint: ExpandableHint,
    /// Whether a reserved range that turns out to be too short is released.
    pub gives_short_ranges_back: bool,
    /// Whether statistics count each private pool.
    pub counts_private_pools: bool,
    /// Whether a checkpoint fits an expandable segment that has grown.
    pub restores_grown_segments: bool,
    /// Whether private pools have expandable segments.
    pub expands_private_pools: bool,
    /// Whether a use recorded during a capture is forgotten if the block is freed during it.
    pub forgets_captured_uses: bool,
    /// Whether saving a pool first records the events of deferred blocks.
    pub flushes_before_saving: bool,
    /// Whether, with graph_capture_record_stream_reuse, the end of a routing records these events for its pool.
    pub flushes_at_pool_end: bool,
    /// Whether, with graph_capture_record_stream_reuse, the captured graph shows when a block can be reused.
    pub reuses_by_graph: bool,
    /// Whether pools that serve when memory runs out are tried last.
    pub borrows_last: bool,
    /// Whether these pools serve other requests from expandable segments.
    pub borrows_expandable: bool,
    /// Whether the oldest of several routings decides which pool is used.
    pub oldest_routing_decides: bool,
    /// Whether a failed routing defers waiting forever.
    pub counts_failed_routings: bool,
    /// Whether the "never split" setting ends together with its pool.
    pub forgets_no_split: bool,
    /// Whether emptying the cache is impossible while waiting is deferred.
    pub keeps_cache_in_captures: bool,
    /// Whether a request fails if it would release blocks in expandable segments because they are
    /// oversize.
    pub fails_at_expandable: bool,
    /// Whether, with graph_capture_record_stream_reuse, requests fail while any are routed and the caller's stream is
    /// not captured.
    pub fails_outside_captures: bool,
    /// Whether an invalid fraction causes a failed assert.
    pub asserts_fraction: bool,
}

/// The source lines of the asserts in each series: a pool is unknown, is abandoned, is released too often, was released
/// too often; the cache is kept; an expandable segment would be released; a fraction is invalid; a request in a capture
/// has no pool or, in 2.9, its stream is not captured; a stream of an ended routing is captured. 0 means that the series
/// does not have that line. The first series is 2.1.
const LINES: [[u32; 9]; 15] = [
    [2136, 2103, 2138, 2782, 2939, 2814, 3165, 0, 0],
    [1829, 1796, 1831, 2493, 2650, 2525, 2896, 0, 0],
    [1843, 1804, 1845, 2515, 2679, 2549, 2943, 0, 0],
    [1878, 1839, 1880, 2552, 2716, 2586, 3009, 0, 0],
    [2073, 2034, 2075, 2786, 2967, 0, 3256, 0, 0],
    [2232, 2225, 2128, 2892, 3085, 0, 3421, 0, 0],
    [2233, 2226, 2129, 2896, 3089, 0, 3430, 0, 0],
    [2387, 2379, 2279, 3045, 0, 0, 0, 0, 0],
    [2638, 2630, 2530, 3285, 0, 0, 0, 1716, 0],
    [2739, 2731, 2631, 3394, 0, 0, 0, 1893, 2597],
    [2807, 2799, 2698, 3473, 0, 0, 0, 1926, 2664],
    [3057, 3049, 2948, 3752, 0, 0, 0, 2131, 2871],
    [3340, 3332, 3231, 4090, 0, 0, 0, 2372, 3134],
    [3337, 3329, 3229, 4091, 0, 0, 0, 2371, 3132],
    [3481, 3473, 3373, 4249, 0, 0, 0, 2519, 3279],
];

/// The subject of an internal assert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asserted {
    /// The pool is known.
    Known,
    /// The pool has uses.
    Used,
    /// The pool is not released more often than used.
    Balanced,
    /// The pool was not released more often than used.
    WasBalanced,
    /// Nothing is being captured when the cache is emptied.
    NotCapturing,
    /// No block in an expandable segment is released as a whole segment.
    NotExpandable,
    /// A fraction is between 0 and 1.
    Fraction,
    /// The caller's stream is captured, and its capture has a pool.
    Captured,
    /// The capture has ended.
    Ended,
}

impl ReleaseRules {
    /// Returns the rules of a series by its name, such as `2.11`.
    ///
    /// # Panics
    /// If the series is unknown; these tables cover 2.1 to 2.15.
    #[must_use]
    pub fn of(series: &str) -> ReleaseRules {
        let minor = series.strip_prefix("2.").and_then(|minor| minor.parse().ok());
        let minor: u32 = minor.filter(|minor| (1..=15).contains(minor)).expect("the series is one from 2.1 to 2.15");
        ReleaseRules {
            minor,
            tie_break: match minor {
                12 => TieBreak::BlockAge,
                13.. => TieBreak::SegmentAge,
                _ => TieBreak::Address,
            },
            rounds_by_one_division: minor >= 4,
            rounds_limits_down: minor < 13,
            limits_whole_memory: minor < 10,
            asks_for_total: minor < 10,
            defers_while_routing: minor < 13,
            asks_after_refusal: minor >= 13,
            expandable_hint: match minor {
                14 => ExpandableHint::Nothing,
                15.. => ExpandableHint::Addresses,
                _ => ExpandableHint::Settings,
            },
            gives_short_ranges_back: minor >= 15,
            counts_private_pools: minor >= 13,
            restores_grown_segments: minor >= 11,
            expands_private_pools: minor >= 5,
            forgets_captured_uses: minor >= 4,
            flushes_before_saving: minor >= 4,
            flushes_at_pool_end: minor >= 12,
            reuses_by_graph: minor >= 10,
            borrows_last: minor < 11,
            borrows_expandable: minor < 10,
            oldest_routing_decides: minor < 10,
            counts_failed_routings: minor <= 2,
            forgets_no_split: minor >= 14,
            keeps_cache_in_captures: minor < 8,
            fails_at_expandable: minor < 5,
            fails_outside_captures: minor == 9,
            asserts_fraction: minor < 8,
        }
    }

    /// Returns whether two series make the same decisions for programs that use nothing outside `scope` and make no calls that
    /// fail.
    #[must_use]
    pub fn decide_alike(&self, other: &ReleaseRules, scope: Scope) -> bool {
        let (a, b) = (self, other);
        let expandable = [(a.gives_short_ranges_back, b.gives_short_ranges_back), (a.fails_at_expandable, b.fails_at_expandable)];
        let pools = [
            (a.defers_while_routing, b.defers_while_routing),
            (a.forgets_no_split, b.forgets_no_split),
            (a.expands_private_pools, b.expands_private_pools),
            (a.forgets_captured_uses, b.forgets_captured_uses),
            (a.reuses_by_graph, b.reuses_by_graph),
            (a.flushes_at_pool_end, b.flushes_at_pool_end),
            (a.borrows_last, b.borrows_last),
            (a.borrows_expandable, b.borrows_expandable),
            (a.oldest_routing_decides, b.oldest_routing_decides),
            (a.counts_failed_routings, b.counts_failed_routings),
        ];
        let checkpoints =
            [(a.restores_grown_segments, b.restores_grown_segments), (a.flushes_before_saving, b.flushes_before_saving)];
        let same = |rules: &[(bool, bool)]| rules.iter().all(|(a, b)| a == b);
        a.tie_break == b.tie_break
            && (!scope.expandable_segments || same(&expandable))
            && (!scope.private_pools || same(&pools))
            && (!scope.checkpoints || same(&checkpoints))
            && (!scope.one_division || a.rounds_by_one_division == b.rounds_by_one_division)
    }

    /// Returns the text of a failed internal assert. Some texts continue after it.
    pub(super) fn assertion(&self, asserted: Asserted) -> String {
        let lines = LINES[self.minor as usize - 1];
        let (condition, line) = match asserted {
            Asserted::Known => ("it != graph_pools.end()", lines[0]),
            Asserted::Used => ("it->second->use_count > 0", lines[1]),
            Asserted::Balanced => ("uc >= 0", lines[2]),
            Asserted::WasBalanced => ("it->second->use_count == 0", lines[3]),
            Asserted::NotCapturing if self.minor < 3 => ("captures_underway == 0", lines[4]),
            Asserted::NotCapturing if self.minor == 3 => ("captures_underway.size() == 0", lines[4]),
            Asserted::NotCapturing => ("captures_underway.empty()", lines[4]),
            Asserted::NotExpandable => ("!block->expandable_segment_", lines[5]),
            Asserted::Fraction => ("0 <= fraction && fraction <= 1", lines[6]),
            Asserted::Captured if self.fails_outside_captures => ("status == cudaStreamCaptureStatusActive", lines[7]),
            Asserted::Captured => ("found", lines[7]),
            Asserted::Ended => ("stream_get_capture_info(stream).status == cudaStreamCaptureStatusNone", lines[8]),
        };
        let folder = match self.minor {
            ..6 => "..",
            6..13 => "/pytorch",
            13.. => "/__w/pytorch/pytorch",
        };
        let file = format!("{folder}/c10/cuda/CUDACachingAllocator.cpp");
        format!("{condition} INTERNAL ASSERT FAILED at \"{file}\":{line}, please report a bug to PyTorch. ")
    }

    /// Returns the out-of-memory message's term for the device's memory; in 2.1 it has a typo.
    pub(super) fn capacity(&self) -> &'static str {
        if self.minor == 1 { "capacty" } else { "capacity" }
    }

    /// Returns whether the message contains the device's number as a character.
    pub(super) fn writes_device_as_character(&self) -> bool {
        self.minor == 3
    }

    /// Returns whether the message states the limit.
    pub(super) fn tells_limit(&self) -> bool {
        self.minor >= 5
    }

    /// Returns whether the message states the memory cached by private pools.
    pub(super) fn tells_private_pools(&self) -> bool {
        self.minor >= 4
    }

    /// Returns the message's hint about settings.
    pub(super) fn hint(&self) -> String {
        let start = " If reserved but unallocated memory is large try setting";
        let see = "See documentation for Memory Management";
        if self.minor == 1 {
            return format!("{start} max_split_size_mb to avoid fragmentation.  {see} and PYTORCH_CUDA_ALLOC_CONF");
        }
        let variable = if self.minor == 10 { "PYTORCH_ALLOC_CONF" } else { "PYTORCH_CUDA_ALLOC_CONF" };
        let page = if self.minor < 11 {
            "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
        } else {
            "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
        };
        format!("{start} {variable}=expandable_segments:True to avoid fragmentation.  {see}  ({page})")
    }
}
