//! Which private pool each request went to, and sending a request to one.
//!
//! PyTorch 2.11 does not record the pool of a request. But a segment belongs to one pool for as long as it
//! exists, and the recording names the pools of the segments that exist at its end. So the pool of an
//! entry is that of the segment that contains its address at that time. Nothing names the pool of a
//! segment that was freed before the end: it counts as the default pool's, unless that does not explain
//! the trace ([`crate::hidden_pools`]).

mod recorded;
mod request;
mod tracker;

pub(crate) use recorded::{AssumedPools, RecordedPools, pool_of};
pub(crate) use request::request_from;
pub(crate) use tracker::PoolTracker;
