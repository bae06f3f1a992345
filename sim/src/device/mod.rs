//! The simulated device and everything that can be called on it.

mod access;
mod backend;
mod breaking;
mod capture_calls;
mod control;
mod event_calls;
mod malloc_calls;
mod mapping_calls;
mod options;
mod page_runs;
mod state;
mod work;

pub use options::SimOptions;
pub use state::SimDevice;
