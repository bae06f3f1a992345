//! A device call of the allocator: what it asked for, and what the device answered.

use parkade::device::BackendError;
use parkade_sim::CallName;

/// A device call made by the allocator. What a call does not have is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadeCall {
    /// Which call.
    pub name: CallName,
    /// The bytes that it is about.
    pub bytes: u64,
    /// The address that it names.
    pub address: u64,
    /// The stream that it names.
    pub stream: u64,
    /// The event's number, in the order in which events were made.
    pub event: u64,
    /// Whether it succeeded.
    pub done: bool,
    /// The address, the new event's number, 1 for a complete event, or the free bytes.
    pub answer: u64,
    /// Why it failed.
    pub error: Option<BackendError>,
}

impl MadeCall {
    /// A call that has not been made yet.
    pub const fn to(name: CallName) -> MadeCall {
        MadeCall { name, bytes: 0, address: 0, stream: 0, event: 0, done: false, answer: 0, error: None }
    }

    /// The same call, about this many bytes.
    #[must_use]
    pub const fn of(self, bytes: u64) -> MadeCall {
        MadeCall { bytes, ..self }
    }

    /// The same call, at this address.
    #[must_use]
    pub const fn at(self, address: u64) -> MadeCall {
        MadeCall { address, ..self }
    }

    /// The same call, on this stream.
    #[must_use]
    pub const fn on(self, stream: u64) -> MadeCall {
        MadeCall { stream, ..self }
    }

    /// The same call, with this event.
    #[must_use]
    pub const fn with(self, event: u64) -> MadeCall {
        MadeCall { event, ..self }
    }

    /// The same call before it was made: what the allocator asked for.
    pub const fn asked(self) -> MadeCall {
        MadeCall { done: false, answer: 0, error: None, ..self }
    }

    /// The call's name in CUDA's documentation.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name.as_str()
    }

    /// Its size in bytes, or 0 if it has none.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the call succeeded.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done
    }
}
