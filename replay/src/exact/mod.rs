//! Exact replay: every decision of the recorded allocator made again and compared.
//!
//! | file | contents |
//! |---|---|
//! | `verify`, `watch` | the entry points: a verdict on a recording; the replayed heap after every operation |
//! | `attempts` | whole replays, repeated where the file leaves several possibilities |
//! | `steps`, `runner`, `readings` | one operation of the program after the other; ambiguous entries |
//! | `restores` | restored checkpoints of private pools, which no entry names |
//! | `replay_core`, `recorded_device`, `recorded_policy`, `position` | a core whose device answers as the recording says |
//! | `comparer`, `final_state`, `stats_check`, `peak_resets`, `tally` | comparing decisions, the final heap and the stats |
//! | `recorded_capacity` | whether the recorded device may have been out of room |

mod attempts;
mod comparer;
mod final_state;
mod own_words;
mod peak_resets;
mod position;
mod readings;
mod recorded_capacity;
mod recorded_device;
mod recorded_policy;
mod replay_core;
mod restores;
mod runner;
mod stats_check;
mod steps;
mod tally;
mod verify;
mod watch;

pub(crate) use attempts::{Replayed, replay_to_end};
pub use stats_check::{StatsCheck, StatsDifference};
pub use tally::Mismatch;
pub(crate) use tally::Release;
pub use verify::{DeviceVerdict, NotInFile, Trial, try_device, verify_device};
pub use watch::{Moment, watch_device};
