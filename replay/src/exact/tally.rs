//! What a replay counts, and the first place where it differs from the recording.

use parkade::units::PoolId;

use crate::decision::Decision;

/// The first place where the core and the recording part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The recording's entry, from 0; `None` in the final state.
    pub entry: Option<usize>,
    /// What the recording has there.
    pub recorded: String,
    /// What the core did.
    pub replayed: String,
    /// The addresses concerned, the recording's and the core's; one if they are the same.
    pub addresses: Vec<u64>,
}

/// What a replay counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) decisions: u64,
    pub(crate) mismatches: u64,
    pub(crate) first: Option<Mismatch>,
    /// What the core did there, and before which entry.
    pub(crate) stray: Option<(usize, Decision)>,
    /// What the core did first that the recording has not, anywhere.
    pub(crate) first_stray: Option<(usize, Decision)>,
    pub(crate) ooms: u64,
    /// Calls that gave cached memory back and show in the trace: the entry before which each was made.
    pub(crate) releases: Vec<(usize, Release)>,
    /// Requests that failed in a private pool, and which: no entry says it, and the reading that agrees supposes it.
    pub(crate) failed_in: Vec<(usize, PoolId)>,
    /// Requests that can be read in several ways.
    pub(crate) ambiguous: Vec<usize>,
    /// Requests that the driver refused, taken from the recording.
    pub(crate) refusals: u64,
}

impl Tally {
    /// How much had to happen that no entry says: of two readings the one with less is likelier.
    pub(crate) fn effort(&self) -> u64 {
        self.releases.len() as u64 + self.refusals
    }
}

/// A call that gives cached memory back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Release {
    /// empty_cache.
    All,
    /// The end of a MemPool: all of this pool, which nobody uses any more (spec 5.4).
    Pool(PoolId),
}
