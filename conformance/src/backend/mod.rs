//! The suite's interface to a backend: it opens devices that a test can drive.
//!
//! Every check is written and compiled once, for [`AnyBackend`] and [`AnyDevice`], and runs on anything that implements
//! [`Backend`] and [`TestDevice`]. Differences between vendors are values in [`DeviceFacts`]. [`Simulated`] is
//! parkade's simulated device; the feature `cuda` adds [`Cuda`]. docs/writing-a-backend.md shows how to build a backend
//! from scratch.

mod any;
#[cfg(feature = "cuda")]
mod cuda;
mod interface;
mod simulated;
mod witness;

pub(crate) use any::forward;
pub use any::{AnyBackend, AnyDevice, AnyEvent, AnyPhysical};
#[cfg(feature = "cuda")]
pub use cuda::{Cuda, Rig};
pub(crate) use interface::first_other_word;
pub use interface::{
    Backend, Codes, DeviceFacts, EventTiming, Holdings, Insight, Needs, Places, Race, RaceSide, Sharing, Simulation, TestDevice,
    Touch, Unable, Waits,
};
pub use simulated::{STREAMS, Simulated};
pub(crate) use witness::{BrokenHandle, HIDDEN, Hidden};
pub use witness::{Core, MadeCall, Witness, WitnessedDevice, WitnessedEvent};
