//! The program that a generator writes: a list of events, with buffers that are numbered, counted and bounded here. No
//! generator can use a number twice or free a buffer twice.

use super::options::{MAX_BYTES, MAX_EVENTS, WorkloadError};
use crate::workload::{Event, Workload};

/// A live buffer. Freeing it consumes it, so it cannot be freed twice.
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

/// A program: the events of a workload so far.
#[derive(Default, Debug)]
pub(super) struct Program {
    events: Vec<Event>,
    steps: Vec<u32>,
    buffers: u32,
    live_bytes: u64,
    /// The stream of the next allocations and of the next work.
    stream: u16,
}

impl Program {
    /// Appends an event.
    pub(super) fn push(&mut self, event: Event) -> Result<(), WorkloadError> {
        if self.events.len() >= MAX_EVENTS {
            return Err(WorkloadError::TooManyEvents);
        }
        self.events.push(event);
        Ok(())
    }

    /// Begins a step with the next event.
    pub(super) fn begin_step(&mut self) {
        let next = u32::try_from(self.events.len()).unwrap_or(u32::MAX);
        if self.steps.last() != Some(&next) {
            self.steps.push(next);
        }
    }

    /// Requests memory on the current stream. PyTorch requests no memory for an empty tensor; here, an empty tensor gets one
    /// byte.
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<Tensor, WorkloadError> {
        let bytes = bytes.max(1);
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        if self.live_bytes > MAX_BYTES {
            return Err(WorkloadError::TooLarge { what: "the live buffers" });
        }
        let tensor = Tensor { number: self.buffers, bytes };
        self.push(Event::Allocate { buffer: tensor.number, bytes, stream: self.stream })?;
        self.buffers += 1;
        Ok(tensor)
    }

    /// Frees a buffer.
    pub(super) fn free(&mut self, tensor: Tensor) -> Result<(), WorkloadError> {
        self.live_bytes -= tensor.bytes;
        self.push(Event::Free { buffer: tensor.number })
    }

    /// Records the use of a buffer on another stream.
    pub(super) fn record(&mut self, tensor: &Tensor, stream: u16) -> Result<(), WorkloadError> {
        self.push(Event::Use { buffer: tensor.number, stream })
    }

    /// Puts work on the current stream; its duration is in microseconds and at least 1.
    pub(super) fn launch(&mut self, us: u64) -> Result<(), WorkloadError> {
        self.push(Event::Launch { stream: self.stream, us: u32::try_from(us).unwrap_or(u32::MAX).max(1) })
    }

    /// Makes another stream the current one. Returns the previous one.
    pub(super) fn switch(&mut self, stream: u16) -> u16 {
        std::mem::replace(&mut self.stream, stream)
    }

    /// The bytes that are currently live.
    #[cfg(test)]
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The workload.
    pub(super) fn finish(self, name: &str, says: String) -> Workload {
        Workload { name: name.into(), says, events: self.events, steps: self.steps }
    }
}
