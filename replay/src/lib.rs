#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod completions;
mod entries;
mod error;
mod exact;
pub mod export;
mod hidden_pools;
mod initial_state;
mod inputs;
mod left_out;
pub mod ops;
mod pools;
mod predict;
pub mod recognition;

pub use entries::Decision;
pub use error::{Missing, VerifyError};
pub use exact::{
    DeviceVerdict, Flush, FlushReason, Mismatch, Moment, NotInFile, StatsCheck, StatsDifference, Trial, try_device,
    verify_device, watch_device,
};
pub use hidden_pools::{Guess, GuessedSegment};
pub use initial_state::LostBeginning;
pub use inputs::{ReplaySettings, SettingsOrigin, StatsFile, StatsFileError, VerifyOptions};
pub use left_out::find_left_out;
pub use predict::{
    AfterFailure, Completion, Extreme, LIKELY, Operation, Outlook, OutlookOptions, Pace, PredictOptions, PredictedRun,
    Prediction, Requests, SelfCheck, Slots, TIMINGS, Timing, TimingRange, TimingsThatFit, Variation, device_like,
    learned_addresses, placed_steps, predict, read_otherwise, replay_device, timings_that_fit,
};
