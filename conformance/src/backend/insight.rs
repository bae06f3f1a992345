//! What a simulated device can tell and do, and a real one cannot.

use std::fmt;

use parkade::units::{Bytes, DeviceAddress, StreamId};

/// The knowledge and the levers of a simulated device.
pub trait Insight {
    /// The races found so far, the first of them in full.
    fn races(&self) -> Vec<Race>;

    /// How many races were found, those beyond [`Insight::races`] included.
    fn race_count(&self) -> u64;

    /// Physical bytes in use by this device's allocations.
    fn used_bytes(&self) -> Bytes;

    /// The device's clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// How much of that went to driver calls and to waiting, in nanoseconds.
    fn driver_and_wait_ns(&self) -> u64;

    /// Completes all work of a stream.
    fn complete(&mut self, stream: StreamId);

    /// Completes the oldest event of a stream.
    fn complete_one(&mut self, stream: StreamId);

    /// Completes all work.
    fn complete_all(&mut self);
}

/// Two uses of the same bytes that nothing orders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Race {
    /// The use that was there first.
    pub first: RaceSide,
    /// The use that came without waiting for it.
    pub second: RaceSide,
    /// Both, in words.
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
    /// How many bytes.
    pub size: Bytes,
    /// The use, in words.
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
    /// Reads it.
    Read,
    /// Writes it.
    Written,
    /// Takes it away from behind its address.
    Unmapped,
    /// Gives it back.
    Freed,
}
