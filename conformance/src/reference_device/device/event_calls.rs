//! The calls about events and streams.

use parkade::device::BackendError;
use parkade_sim::{CallName, CallSubject};

use super::{Event, INVALID_HANDLE, Known, NOT_READY, Outcome, PlainDevice, code, driver};

impl PlainDevice {
    pub(in super::super) fn create_event(&mut self) -> Result<Event, BackendError> {
        let call = CallName::EventCreate;
        self.pay(call, 0);
        let outcome = self.plan.next(call);
        let ordinal = self.events.len() as u64;
        if outcome.is_ok() {
            self.events.push(true);
        }
        self.note_event(call, outcome, ordinal, Some(2))?;
        Ok(Event { ordinal, mark: None, known: Known::new() })
    }

    pub(in super::super) fn record(&mut self, event: &mut Event, stream: u64) -> Result<(), BackendError> {
        let call = CallName::EventRecord;
        let outcome = self.begin(call, event);
        if outcome.is_ok() {
            event.known = self.order.at_mark(stream);
            event.mark = Some(self.streams.record(stream, self.clock.now_ns));
        }
        self.note_event(call, outcome, event.ordinal, Some(stream))
    }

    pub(in super::super) fn query(&mut self, event: &Event) -> Result<bool, BackendError> {
        let call = CallName::EventQuery;
        let outcome = self.begin(call, event);
        if outcome.is_err() {
            return self.note_event(call, outcome, event.ordinal, None).map(|()| false);
        }
        let is_done = event.mark.is_none_or(|mark| self.streams.query(mark, self.clock.now_ns));
        if is_done {
            self.order.host_waits(&event.known);
        }
        let result = if is_done { 0 } else { NOT_READY };
        self.note(call, result, CallSubject::Event { ordinal: event.ordinal, argument: None });
        Ok(is_done)
    }

    pub(in super::super) fn wait(&mut self, event: &Event) -> Result<(), BackendError> {
        let call = CallName::EventSynchronize;
        let outcome = self.begin(call, event);
        if let (Ok(()), Some(mark)) = (outcome, event.mark) {
            self.clock.wait(call, self.streams.ready_ns(mark));
            self.streams.finish(mark);
            self.order.host_waits(&event.known);
        }
        self.note_event(call, outcome, event.ordinal, None)
    }

    /// cudaStreamWaitEvent by the allocator.
    pub(in super::super) fn stream_wait(&mut self, stream: u64, event: &Event) -> Result<(), BackendError> {
        let call = CallName::StreamWaitEvent;
        let outcome = self.begin(call, event);
        if outcome.is_ok() {
            self.hold_back(stream, event);
        }
        self.note_event(call, outcome, event.ordinal, Some(stream))
    }

    /// cudaStreamWaitEvent by the program.
    pub(in super::super) fn hold_back(&mut self, stream: u64, event: &Event) {
        if let Some(mark) = event.mark {
            self.streams.wait(stream, mark);
        }
        self.order.stream_waits(stream, &event.known);
    }

    pub(in super::super) fn destroy_event(&mut self, event: &Event) {
        let call = CallName::EventDestroy;
        self.pay(call, 0);
        let exists = std::mem::take(&mut self.events[event.ordinal as usize]);
        let result = if exists { 0 } else { INVALID_HANDLE };
        self.note(call, result, CallSubject::Event { ordinal: event.ordinal, argument: None });
    }

    /// Records an event and asks for it.
    pub(in super::super) fn is_idle(&mut self, stream: u64) -> Result<bool, BackendError> {
        let mut event = self.create_event()?;
        let is_idle = self.record(&mut event, stream).and_then(|()| self.query(&event));
        self.destroy_event(&event);
        is_idle
    }

    pub(in super::super) fn synchronize_stream(&mut self, stream: u64) -> Result<(), BackendError> {
        let call = CallName::StreamSynchronize;
        self.pay(call, 0);
        let outcome = self.plan.next(call);
        if outcome.is_ok() {
            self.clock.wait(call, self.streams.idle_ns(stream));
            self.has_waited_for(stream);
        }
        self.note(call, code(&outcome), CallSubject::Stream(stream));
        driver(call, outcome)
    }

    /// cudaDeviceSynchronize, which cannot fail.
    pub(in super::super) fn synchronize(&mut self) {
        let call = CallName::DeviceSynchronize;
        self.pay(call, 0);
        self.wait_for_device(call);
        self.note(call, 0, CallSubject::Device);
    }

    pub(super) fn has_waited_for(&mut self, stream: u64) {
        self.streams.complete(stream, self.clock.now_ns);
        self.order.host_waits_for(stream);
    }

    /// Pays for a call about an event. Its error is the code with which the call fails.
    fn begin(&mut self, call: CallName, event: &Event) -> Outcome<()> {
        self.pay(call, 0);
        self.plan.next(call)?;
        if self.events[event.ordinal as usize] { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    fn note_event(
        &mut self,
        call: CallName,
        outcome: Outcome<()>,
        ordinal: u64,
        argument: Option<u64>,
    ) -> Result<(), BackendError> {
        self.note(call, code(&outcome), CallSubject::Event { ordinal, argument });
        driver(call, outcome)
    }
}
