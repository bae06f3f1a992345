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

mod completions;
mod decision;
mod entries;
mod error;
mod exact;
pub mod export;
mod hidden_pools;
mod inputs;
mod pools;
mod predict;
mod start;

pub use decision::Decision;
pub use error::VerifyError;
pub use exact::{DeviceVerdict, Mismatch, Moment, NotInFile, StatsCheck, StatsDifference, verify_device, watch_device};
pub use hidden_pools::{Guess, GuessedSegment};
pub use inputs::{ReleaseEvidence, ReplaySettings, SettingsOrigin, StatsFile, StatsFileError, VerifyOptions, newer_release};
pub use predict::{
    AfterFailure, Completion, Extreme, Operation, Outlook, OutlookOptions, PredictOptions, PredictedRun, Prediction, Requests,
    TIMINGS, Timing, TimingRange, device_like, learned_addresses, placed_steps, predict, replay_device,
};
pub use start::LostBeginning;
