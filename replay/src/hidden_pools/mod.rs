//! The private pools of segments that were freed before the end.
//!
//! From PyTorch 2.12 on, entries name their pools (`named`). No file of PyTorch 2.11 does, so they are guessed. Such a recording names pools only in the segments that exist at its end. If the program dropped a pool earlier
//! (destroyed a MemPool, reset a graph), its segments look like the default pool's, and the replay differs from
//! the recording at the first block that is not the best fit of both pools together. Then the trace is searched
//! for what shows pools (`evidence`, from the blocks in `layout`), and the division into pools with the fewest
//! private segments that agrees with it is chosen (`choose`). `guesses` tries variants where several are
//! possible. A guess counts only if a replay under it gives the recording to the last entry, and if it explains
//! more than it assumes ([`Guess::is_sound`]).

mod choose;
mod evidence;
mod guesses;
mod layout;
mod named;

pub(crate) use evidence::{Releases, Unused};
pub use guesses::{Guess, GuessedSegment};
pub(crate) use guesses::{Guesses, MOST_GUESSES};
pub(crate) use named::named;
