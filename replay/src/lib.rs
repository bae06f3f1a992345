//! Replay of recordings on the core: under their own settings, to verify that the core decides as the recorded allocator did.
//!
//! The way of the data: a recorded trace is first walked backwards, from the final segments to the state before its first entry
//! (`start`); then its requests are carried out one by one (`verify`) on a device that answers as the recording says
//! (`device`), and whatever the core does is compared with what the recording says comes next (`compare`).
//!
//! And under other settings, to predict what the program would have needed: the requests alone (`requests`), carried out on a
//! simulated device (`predict`) that places segments as the recorded process's driver did, as far as that shows (`placements`);
//! `outlook` is all of it in one call. `moments` shows the recorded run's heap on its way.

#![forbid(unsafe_code)]

mod capacity;
mod collections;
mod compare;
mod consistency;
mod device;
mod error;
pub mod export;
mod extents;
mod final_state;
mod hidden;
mod inference;
mod moments;
mod outlook;
mod peaks;
mod placements;
mod pools;
mod predict;
mod profile;
mod readings;
mod requests;
mod rewind;
mod run;
mod runs;
mod settings;
mod start;
mod statistics;
mod timed;
mod verify;

pub use compare::{Doing, Mismatch};
pub use error::VerifyError;
pub use hidden::{Guess, GuessedSegment};
pub use moments::{Moment, watch_device};
pub use outlook::{Extreme, Outlook, OutlookOptions, TIMINGS, TimingRange, device_like, learned_addresses, replay_device};
pub use placements::placed_steps;
pub use predict::{AfterFailure, PredictOptions, PredictedRun, Prediction, Timing, predict};
pub use profile::{ProfileEvidence, newer_profile};
pub use requests::{Completion, Operation, Requests};
pub use settings::{ReplaySettings, SettingsOrigin};
pub use statistics::{StatisticDifference, StatisticsCheck, StatisticsFile, StatisticsFileError};
pub use verify::{DeviceVerdict, NotInFile, VerifyOptions, verify_device};
