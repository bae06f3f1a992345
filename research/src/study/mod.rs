//! Studies: run a workload under a policy on a simulated device and find how much memory it needs there.
//!
//! [`run`] carries out a [`Workload`](crate::workload::Workload) and reports the outcome; [`smallest_capacity`] searches for
//! the smallest memory in which it fits; [`curves`] shows the reserved memory over its course; and [`sweep`] does many of
//! these and compares policies. Each run has a new simulated device: the same arguments produce the same answers on every
//! machine.

mod capacity;
mod excess;
mod free_list;
pub mod largest_batch;
mod record;
mod run;
mod series;
pub mod statistics;
pub mod sweep;

pub use capacity::{LOAD_UNIT_BYTES, Smallest, smallest_capacity};
pub use excess::{Excess, InTheWay, Pinned, Room, SameSize, first_excess};
pub use free_list::FreeList;
pub use record::{RecordedEvent, RecordedRun, record};
pub use run::{
    Addresses, Curves, DriverCost, Ending, Moment, Outcome, PLENTY_BYTES, RunOptions, curves, first_step, live_curve, make_for,
    run, stream_number, watch,
};
pub use series::{Point, Series, Share, series};
