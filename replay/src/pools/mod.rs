//! Which private pool each request went to, and how one is sent there.
//!
//! PyTorch 2.11 does not record it. But a segment belongs to one pool as long as it lives, and the recording names the pools of
//! the segments that it lists at its end: so the pool of an entry is that of the segment in which it lies, at that time. Of a
//! segment that went back to the device before the end nothing names the pool; it is taken to be the default one, unless that does not
//! explain the trace ([`crate::hidden_pools`]).

mod recorded;
mod request;
mod tracker;

pub(crate) use recorded::{AssumedPools, RecordedPools, pool_of};
pub(crate) use request::request_from;
pub(crate) use tracker::PoolTracker;
