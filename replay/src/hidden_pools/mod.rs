//! The private pools of segments that went back before the end, which no file of PyTorch 2.11 names.
//!
//! A recording names pools only in the segments that it lists at its end. Where the program dropped a pool before (a MemPool destroyed, a
//! graph reset), its segments look like the default pool's, and the replay departs from the recording at the first block that is not the
//! best fit of both pools together. Then the trace is read once more for what it shows of pools ([`evidence`], on the blocks of
//! [`layout`]), and the reading with the fewest private segments that agrees with it is chosen ([`choose`]). It counts only if replaying
//! under it gives the recording to the last entry, and if it is [`Guess::is_sound`].

mod choose;
mod evidence;
mod guess;
mod guesses;
mod layout;

pub use guess::{Guess, GuessedSegment};
pub(crate) use guesses::{Guesses, MOST_GUESSES};
