//! Prediction: a recording's requests under other settings, under a different limit, or on a different device.
//!
//! The core makes every decision again on a simulated device. A prediction does not use the decisions of the recorded
//! allocator, only the facts that the allocator could not decide: the requests and their order, the requests at which events
//! were found complete, and the addresses at which the driver placed segments.
//!
//! | file | contents |
//! |---|---|
//! | `outlook` | the entry point: predicts everything about one device's recording in one call; how much the timing matters |
//! | `requests` | the requests of the recorded program, and the slots in which a run keeps their memory |
//! | `predicted_run` | the settings of a prediction; the run, operation by operation; a device that places segments where the recorded driver did, and one on which blocks become free at given times |
//! | `pace` | the operations of the recorded program; how fast the recorded program and its GPU were, from the times of the entries; and the times at which memory becomes free in a run that differs from the recorded one |
//! | `self_check` | whether a prediction under the recorded run's own settings needs what the run needed |

mod outlook;
mod pace;
mod predicted_run;
mod requests;
mod self_check;

pub use outlook::{
    Extreme, LIKELY, Outlook, OutlookOptions, TIMINGS, TimingRange, TimingsThatFit, read_otherwise, replay_device,
    timings_that_fit,
};
pub use pace::{Completion, Operation, Pace, Variation};
pub use predicted_run::{
    AfterFailure, PredictOptions, PredictedRun, Prediction, Timing, device_like, learned_addresses, placed_steps, predict,
};
pub use requests::{Requests, Slots};
pub use self_check::SelfCheck;
