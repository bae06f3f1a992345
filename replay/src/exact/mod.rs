//! Exact replay: the core repeats every decision of the recorded allocator, and each decision is compared.
//!
//! | file | contents |
//! |---|---|
//! | `verify` | the entry points: a verdict on a recording; the replayed heap after every operation; complete replays, repeated if the file can be read in several ways |
//! | `runner` | the operations of the program, one by one; ambiguous entries; restored checkpoints of private pools, which no entry names |
//! | `recorded_core` | a core that compares its decisions with the recording, on a device that takes its answers from the recording |
//! | `tally` | counts mismatches; compares the final heap and the stats |
//! | `flushes` | memory released before a request that the device may have refused: a retry, or a call to `empty_cache`; whether the recorded device may have been full |

mod flushes;
mod recorded_core;
mod runner;
mod tally;
mod verify;

pub(crate) use flushes::taken_together;
pub use flushes::{Flush, FlushReason};
pub(crate) use tally::Release;
pub use tally::{Mismatch, StatsCheck, StatsDifference};
pub use verify::{DeviceVerdict, Moment, NotInFile, Trial, try_device, verify_device, watch_device};
pub(crate) use verify::{Replayed, replay_to_end};
