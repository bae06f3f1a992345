//! Prediction: the requests of a recording under other settings, another limit or on another device.
//!
//! The core makes every decision anew on a simulated device. The decisions of the recorded allocator are not
//! used, only what it could not decide: the requests with their order, at which of them events were seen
//! complete, and where the driver placed segments.
//!
//! | file | contents |
//! |---|---|
//! | `outlook` | the entry point: everything about one device's recording in one call |
//! | `requests` | what the recorded program asked for |
//! | `prediction`, `predicted_run` | what a prediction is made for; the run, operation by operation |
//! | `slots` | where a run keeps the memory of requests |
//! | `pace` | how fast the recorded program and its GPU went, from the times of the entries |
//! | `completion_model` | when memory becomes free in time, in a run that differs from the recorded one |
//! | `timed_device` | a simulated device on which blocks become free at given moments |
//! | `timing_range` | how much the timing matters: the range of the peaks |
//! | `placements` | where the recorded driver placed segments |

mod completion_model;
mod outlook;
mod pace;
mod placements;
mod predicted_run;
mod prediction;
mod requests;
mod slots;
mod timed_device;
mod timing_range;

pub use completion_model::Variation;
pub use outlook::{Outlook, OutlookOptions, device_like, learned_addresses, replay_device};
pub use pace::Pace;
pub use placements::placed_steps;
pub use predicted_run::{PredictedRun, predict};
pub use prediction::{AfterFailure, PredictOptions, Prediction, Timing};
pub use requests::{Completion, Operation, Requests};
pub use slots::Slots;
pub use timing_range::{Extreme, LIKELY, TIMINGS, TimingRange};
