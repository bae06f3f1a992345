//! Exact replay: every decision of the recorded allocator made again, and compared.

mod attempts;
mod comparer;
mod final_state;
mod peak_resets;
mod position;
mod readings;
mod recorded_capacity;
mod recorded_device;
mod recorded_policy;
mod replay_core;
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
pub use verify::{DeviceVerdict, NotInFile, verify_device};
pub use watch::{Moment, watch_device};
