//! The private pools of segments that were freed before the end.
//!
//! Since PyTorch 2.12, entries name their pools. In files from earlier releases, such as 2.11, they do not, so the
//! pools have to be guessed. Those recordings name pools only in the segments that exist at their end. If the program dropped
//! a pool earlier (destroyed a MemPool, reset a graph), its segments look like segments of the default pool, and the replay
//! differs from the recording at the first block that is not the best fit across both pools. In that case, `evidence`
//! searches the trace for signs of pools, and `division` picks the division into pools that agrees with the evidence and has
//! the fewest private segments. If several divisions are possible, it tries variants.
//! A guess is accepted only if a replay under it agrees with the recording up to the last entry and if it explains more than
//! it assumes ([`Guess::is_sound`]).

mod division;
mod evidence;

pub use division::{Guess, GuessedSegment};
pub(crate) use division::{Guesses, MOST_GUESSES, named};
pub(crate) use evidence::{Releases, Unused};
