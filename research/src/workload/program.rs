//! Writing a program down: buffers are numbered, counted and bounded here, so that no generator can number one twice or free it twice.

use super::error::{MAX_BYTES, MAX_EVENTS};
use super::{Event, Workload, WorkloadError};

/// A buffer that lives. Giving it back consumes it, so nothing frees it a second time.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Tensor {
    number: u32,
    bytes: u64,
}

impl Tensor {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A program under construction.
#[derive(Default, Debug)]
pub(super) struct Program {
    events: Vec<Event>,
    buffers: u32,
    live_bytes: u64,
    /// The stream that buffers are allocated for from now on.
    stream: u16,
}

impl Program {
    pub(super) fn push(&mut self, event: Event) -> Result<(), WorkloadError> {
        if self.events.len() >= MAX_EVENTS {
            return Err(WorkloadError::TooManyEvents);
        }
        self.events.push(event);
        Ok(())
    }

    /// Asks for memory on the current stream. An empty tensor asks for none in PyTorch; here it is one byte.
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<Tensor, WorkloadError> {
        let bytes = bytes.max(1);
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        if self.live_bytes > MAX_BYTES {
            return Err(WorkloadError::TooLarge { what: "what lives at once" });
        }
        let tensor = Tensor { number: self.buffers, bytes };
        self.push(Event::Allocate { buffer: tensor.number, bytes, stream: self.stream })?;
        self.buffers += 1;
        Ok(tensor)
    }

    pub(super) fn free(&mut self, tensor: Tensor) -> Result<(), WorkloadError> {
        self.live_bytes -= tensor.bytes;
        self.push(Event::Free { buffer: tensor.number })
    }

    /// Another stream uses the tensor.
    pub(super) fn record(&mut self, tensor: &Tensor, stream: u16) -> Result<(), WorkloadError> {
        self.push(Event::Use { buffer: tensor.number, stream })
    }

    /// Work on the current stream, in microseconds.
    pub(super) fn launch(&mut self, us: u64) -> Result<(), WorkloadError> {
        self.push(Event::Launch { stream: self.stream, us: u32::try_from(us).unwrap_or(u32::MAX).max(1) })
    }

    /// Work on this stream from now on. Returns the stream before.
    pub(super) fn switch(&mut self, stream: u16) -> u16 {
        std::mem::replace(&mut self.stream, stream)
    }

    /// Bytes that live now.
    #[cfg(test)]
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub(super) fn finish(self, name: &str, says: String) -> Workload {
        Workload { name: name.into(), says, events: self.events }
    }
}
