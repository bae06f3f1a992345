//! Predicting a run: the requests of a recording under other settings, another limit, or on another device.
//!
//! The core makes every decision anew on a simulated device. What the recorded allocator decided is not used; what it could not
//! decide is: the order of the requests, and at which of them an event was seen complete.

mod outlook;
mod placements;
mod predicted_run;
mod prediction;
mod requests;
mod timed_device;

pub use outlook::{Extreme, Outlook, OutlookOptions, TIMINGS, TimingRange, device_like, learned_addresses, replay_device};
pub use placements::placed_steps;
pub use predicted_run::{PredictedRun, predict};
pub use prediction::{AfterFailure, PredictOptions, Prediction, Timing};
pub use requests::{Completion, Operation, Requests};
