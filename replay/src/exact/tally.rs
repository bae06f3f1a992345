//! What a replay counts, and the first mismatch.

use parkade::units::PoolId;

use crate::entries::Decision;

/// A place where the core and the recording differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The recording's entry, from 0; `None` for a difference in the final state or in stats.
    pub entry: Option<usize>,
    /// What the recording has there.
    pub recorded: String,
    /// What the replay has instead.
    pub replayed: String,
    /// The addresses involved: the recording's and the core's, or one if they are equal.
    pub addresses: Vec<u64>,
}

/// The counts of a replay.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Decisions compared.
    pub(crate) decisions: u64,
    /// How many of them differ.
    pub(crate) mismatches: u64,
    /// The first mismatch.
    pub(crate) first: Option<Mismatch>,
    /// The core's decision there that the recording does not have, and the entry that it stands before.
    pub(crate) stray: Option<(usize, Decision)>,
    /// The core's first such decision in the whole replay.
    pub(crate) first_stray: Option<(usize, Decision)>,
    /// Requests that were out of memory.
    pub(crate) ooms: u64,
    /// Calls that gave cached memory back, each with the entry before which it was made.
    pub(crate) releases: Vec<(usize, Release)>,
    /// Requests that failed, with their private pool: no entry names it; it is assumed by the reading that agrees.
    pub(crate) failed_in: Vec<(usize, PoolId)>,
    /// Requests whose entries can be read in several ways.
    pub(crate) ambiguous: Vec<usize>,
    /// Restored checkpoints of private pools.
    pub(crate) restores: u64,
    /// Requests that the driver refused, taken from the recording.
    pub(crate) refusals: u64,
}

impl Tally {
    /// How many events were needed that no entry shows. Of two readings, the one with fewer is likelier.
    pub(crate) fn effort(&self) -> u64 {
        self.releases.len() as u64 + self.refusals + self.restores
    }

    /// The present state, to return to.
    pub(crate) fn mark(&self) -> Mark {
        let lengths = [self.releases.len(), self.failed_in.len(), self.ambiguous.len()];
        let (first, releases) = (self.first.clone(), Vec::new());
        Mark { counts: Tally { first, releases, failed_in: Vec::new(), ambiguous: Vec::new(), ..*self }, lengths }
    }

    /// Returns to a state that the replay has gone on from.
    pub(crate) fn return_to(&mut self, mark: &Mark) {
        let [releases, failed_in, ambiguous] = mark.lengths;
        self.releases.truncate(releases);
        self.failed_in.truncate(failed_in);
        self.ambiguous.truncate(ambiguous);
        let first = mark.counts.first.clone();
        let now = std::mem::take(self);
        *self = Tally { first, releases: now.releases, failed_in: now.failed_in, ambiguous: now.ambiguous, ..mark.counts };
    }
}

/// A state of a tally. As its lists only grow, their lengths are enough: a copy of each would make every reading cost as much as all
/// calls before it.
pub(crate) struct Mark {
    /// Everything but the lists.
    counts: Tally,
    lengths: [usize; 3],
}

/// A call that gives cached memory back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Release {
    /// `empty_cache`.
    All,
    /// The end of a MemPool: everything in this pool, which nothing uses any more (spec 5.4).
    Pool(PoolId),
}
