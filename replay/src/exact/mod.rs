//! Exact replay: every decision of the recorded allocator made again and compared.
//!
//! | file | contents |
//! |---|---|
//! | `verify` | the entry points: a verdict on a recording; the replayed heap after every operation |
//! | `attempts` | whole replays, repeated where the file leaves several possibilities |
//! | `runner` | one operation of the program after the other; ambiguous entries; restored checkpoints of private pools, which no entry names |
//! | `recorded_core` | a core whose device answers as the recording says, and which compares its decisions |
//! | `tally` | counting; comparing the final heap and the stats |
//! | `flushes` | memory given back before a request that may have been refused: a retry, or a call of empty_cache |
//! | `recorded_capacity` | whether the recorded device may have been out of room |

mod attempts;
mod flushes;
mod recorded_capacity;
mod recorded_core;
mod runner;
mod tally;
mod verify;

pub(crate) use attempts::{Replayed, replay_to_end};
pub(crate) use flushes::taken_together;
pub use flushes::{Flush, FlushReason};
pub(crate) use tally::Release;
pub use tally::{Mismatch, StatsCheck, StatsDifference};
pub use verify::{DeviceVerdict, Moment, NotInFile, Trial, try_device, verify_device, watch_device};
