//! What a simulated device can tell and do that a real one cannot.

use std::fmt;

use parkade::units::{Bytes, DeviceAddress, StreamId};

/// What tests can read and control on a simulated device.
pub trait Insight {
    /// The races found so far; only the first ones are kept.
    fn races(&self) -> Vec<Race>;

    /// How many races were found, including those that [`Insight::races`] no longer lists.
    fn race_count(&self) -> u64;

    /// Physical bytes used by this device's allocations.
    fn used_bytes(&self) -> Bytes;

    /// The device's clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// How much of that time went to driver calls and waiting, in nanoseconds.
    fn driver_and_wait_ns(&self) -> u64;

    /// Completes all work of a stream.
    fn complete(&mut self, stream: StreamId);

    /// Completes the oldest event of a stream.
    fn complete_one(&mut self, stream: StreamId);

    /// Completes all work.
    fn complete_all(&mut self);
}

/// Two unordered uses of the same bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Race {
    /// The earlier use.
    pub first: RaceSide,
    /// The later use, which did not wait for the earlier one.
    pub second: RaceSide,
    /// A description of both.
    pub text: String,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One of the two uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaceSide {
    /// What was done.
    pub touch: Touch,
    /// The stream that did it; `None` for the host.
    pub stream: Option<StreamId>,
    /// The first byte.
    pub address: DeviceAddress,
    /// Its length in bytes.
    pub size: Bytes,
    /// A description of the use.
    pub text: String,
}

impl fmt::Display for RaceSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a use does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// Reads the memory.
    Read,
    /// Writes the memory.
    Written,
    /// Unmaps the memory from its address.
    Unmapped,
    /// Frees the memory.
    Freed,
}
