//! Replay of recordings on the core: under their own settings, to verify that the core decides as the recorded allocator did.
//!
//! The way of the data: a recorded trace is first walked backwards, from the final segments to the state before its first entry
//! (`start`); then its requests are carried out one by one (`verify`) on a device that answers as the recording says
//! (`device`), and whatever the core does is compared with what the recording says comes next (`compare`).

mod compare;
mod device;
mod error;
mod extents;
mod final_state;
mod peaks;
mod pools;
mod readings;
mod rewind;
mod run;
mod runs;
mod settings;
mod start;
mod statistics;
mod verify;

pub use compare::{Doing, Mismatch};
pub use error::VerifyError;
pub use settings::{ReplaySettings, SettingsOrigin};
pub use statistics::{StatisticDifference, StatisticsCheck, StatisticsFile, StatisticsFileError};
pub use verify::{DeviceVerdict, NotInFile, VerifyOptions, verify_device};
