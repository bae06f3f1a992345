//! Which rules matter for a program: two releases may differ only in what it never meets.

use super::Profile;

/// What a program uses of which releases have different rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope {
    /// Expandable segments.
    pub expandable_segments: bool,
    /// Private pools: graphs, captures and MemPools.
    pub private_pools: bool,
    /// Checkpoints of private pools. A replay of a trace has none: there a restored block is an entry like any other.
    pub checkpoints: bool,
    /// Requests rounded to one division between powers of two.
    pub one_division: bool,
}

impl Scope {
    /// All of it.
    pub const EVERYTHING: Scope = Scope { expandable_segments: true, private_pools: true, checkpoints: true, one_division: true };
}

impl Profile {
    /// Whether a program that uses no more than `scope` gets the same blocks at the same addresses from both, with the same entries in
    /// the trace, under settings and a limit in bytes that both understand alike.
    ///
    /// Messages, the settings string, statistics and calls of the driver that decide nothing may differ. A rule that is not mentioned here
    /// matters always.
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
            same.settles_at_pool_end = other.settles_at_pool_end;
            same.borrows_last = other.borrows_last;
            same.oldest_routing_decides = other.oldest_routing_decides;
            same.counts_failed_routings = other.counts_failed_routings;
        }
        if !scope.checkpoints {
            same.restores_grown_segments = other.restores_grown_segments;
            same.settles_before_saving = other.settles_before_saving;
        }
        if !scope.one_division {
            same.rounds_by_one_division = other.rounds_by_one_division;
        }
        same == *other
    }
}

#[cfg(test)]
mod tests {
    use super::super::TieBreak;
    use super::*;

    #[test]
    fn rules_of_what_a_program_does_not_use_do_not_matter() {
        let (old, new) = (Profile::PYTORCH_2_11, Profile::PYTORCH_2_15);
        let plain = Scope { expandable_segments: false, private_pools: false, checkpoints: false, one_division: false };
        assert!(!old.decides_like(&new, plain), "another of equal blocks");
        let with_ties_as_old = Profile { tie_break: TieBreak::Address, ..new };
        assert!(old.decides_like(&with_ties_as_old, plain));
        assert!(!old.decides_like(&with_ties_as_old, Scope { private_pools: true, ..plain }));
        assert!(!old.decides_like(&with_ties_as_old, Scope { expandable_segments: true, ..plain }));
        assert!(new.decides_like(&new, Scope::EVERYTHING));
    }
}
