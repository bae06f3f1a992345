//! Calls that concern events (create, record, query, wait, destroy), and cudaStreamSynchronize.
//!
//! As in CUDA, an event that has never been recorded counts as complete. An event that has been recorded several times
//! follows its latest recording.

use parkade::device::BackendError;
use parkade::units::StreamId;

use super::SimDevice;
use crate::calls::{CallName, CallSubject, INVALID_HANDLE, NOT_READY, code_of, driver_error};
use crate::streams::SimEvent;

/// The flag with which the allocator creates its events: no time stamps.
const DISABLE_TIMING: u64 = 2;

impl SimDevice {
    /// cudaEventCreate.
    pub(super) fn event_create(&mut self) -> Result<SimEvent, BackendError> {
        let name = CallName::EventCreate;
        self.charge(name, 0);
        let outcome = self.planned_failure(name);
        let ordinal = self.next_event;
        if outcome.is_ok() {
            self.next_event += 1;
            self.live_events.insert(ordinal);
        }
        self.conclude(name, outcome, ordinal, Some(DISABLE_TIMING))?;
        Ok(SimEvent::new(ordinal))
    }

    /// cudaEventRecord.
    pub(super) fn event_record(&mut self, event: &mut SimEvent, stream: u64) -> Result<(), BackendError> {
        let name = CallName::EventRecord;
        self.charge(name, 0);
        let outcome = self.admit(name, event);
        if outcome.is_ok() {
            let order = self.races.as_ref().and_then(|races| races.recorded(stream));
            event.record(self.streams.record(stream, self.clock.now_ns()), order);
        }
        self.conclude(name, outcome, event.ordinal(), Some(stream))
    }

    /// cudaEventQuery.
    pub(super) fn event_query(&mut self, event: &SimEvent) -> Result<bool, BackendError> {
        let name = CallName::EventQuery;
        self.charge(name, 0);
        if let Err(code) = self.admit(name, event) {
            return self.conclude(name, Err(code), event.ordinal(), None).map(|()| false);
        }
        let done = event.mark().is_none_or(|mark| self.streams.is_done(mark, self.clock.now_ns()));
        if done {
            self.note_complete(event);
        }
        let ordinal = event.ordinal();
        self.note(name, if done { 0 } else { NOT_READY }, || CallSubject::Event { ordinal, argument: None });
        Ok(done)
    }

    /// cudaEventSynchronize. Completes the event and everything before it in its stream.
    pub(super) fn event_synchronize(&mut self, event: &SimEvent) -> Result<(), BackendError> {
        let name = CallName::EventSynchronize;
        self.charge(name, 0);
        let outcome = self.admit(name, event);
        if let (Ok(()), Some(mark)) = (outcome, event.mark()) {
            self.clock.wait_until(name, self.streams.ready_at_ns(mark));
            self.streams.complete_through(mark);
            self.note_complete(event);
        }
        self.conclude(name, outcome, event.ordinal(), None)
    }

    /// cudaStreamWaitEvent as a call by the allocator, which is logged, has a price, and can fail.
    pub(super) fn event_hold_back(&mut self, event: &SimEvent, stream: StreamId) -> Result<(), BackendError> {
        let name = CallName::StreamWaitEvent;
        self.charge(name, 0);
        let outcome = self.admit(name, event);
        if outcome.is_ok() {
            SimDevice::stream_wait(self, stream, event);
        }
        self.conclude(name, outcome, event.ordinal(), Some(stream.get()))
    }

    /// cudaStreamSynchronize. Afterwards, everything in the stream is complete, under every event timing.
    pub(super) fn stream_synchronize(&mut self, stream: u64) -> Result<(), BackendError> {
        let name = CallName::StreamSynchronize;
        self.charge(name, 0);
        let outcome = self.planned_failure(name);
        if outcome.is_ok() {
            self.clock.wait_until(name, self.streams.stream_idle_at_ns(stream));
            self.finish_stream(stream);
        }
        self.note(name, code_of(&outcome), || CallSubject::Stream(stream));
        outcome.map_err(|code| driver_error(name, code))
    }

    /// cudaEventDestroy. For an event that has already been destroyed (through a clone), it logs a failure and does
    /// nothing.
    pub(super) fn event_destroy(&mut self, event: &SimEvent) {
        let name = CallName::EventDestroy;
        self.charge(name, 0);
        let code = if self.live_events.remove(&event.ordinal()) { 0 } else { INVALID_HANDLE };
        self.note(name, code, || CallSubject::Event { ordinal: event.ordinal(), argument: None });
    }

    /// Tells the race detector that the host has seen an event complete.
    fn note_complete(&mut self, event: &SimEvent) {
        if let (Some(races), Some(order)) = (&mut self.races, event.order()) {
            races.host_waits(order);
        }
    }

    /// Checks whether a call for this event may proceed.
    ///
    /// # Errors
    /// The code with which it fails.
    fn admit(&mut self, name: CallName, event: &SimEvent) -> Result<(), u32> {
        self.planned_failure(name)?;
        if self.live_events.contains(&event.ordinal()) { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    /// Logs a call about an event and turns its code into the core's error.
    fn conclude(
        &mut self,
        name: CallName,
        outcome: Result<(), u32>,
        ordinal: u64,
        argument: Option<u64>,
    ) -> Result<(), BackendError> {
        self.note(name, outcome.err().unwrap_or(0), || CallSubject::Event { ordinal, argument });
        outcome.map_err(|code| driver_error(name, code))
    }
}
