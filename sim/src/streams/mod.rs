//! Streams: queues of declared work with marks in them (recorded events), and which marks are seen as done.
//!
//! Marks are numbered 1, 2, 3, ... in recording order over all streams. The marks of a stream that are done
//! are a prefix that only grows. So a complete event stays complete, and a stream is first in, first out,
//! under every [`EventTiming`]. If a stream waits for a mark of another stream, its later marks are done only
//! after that mark, and completing one of them completes that mark.

mod captures;
mod event;
mod event_timing;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use event_timing::Draws;
use stream::{Mark, Pending, Stream, Waits};

pub(crate) use captures::Captures;
pub use event::SimEvent;
pub use event_timing::EventTiming;

/// Handles of created streams are multiples of this.
const HANDLE_STEP: u64 = 0x1000;

/// All streams of a device. A stream is created when it is first used.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    timing: EventTiming,
    by_handle: BTreeMap<u64, Stream>,
    last_created: u64,
    /// How many marks were ever recorded.
    marks: u64,
}

impl Streams {
    pub(crate) fn new(timing: EventTiming) -> Self {
        Streams { timing, by_handle: BTreeMap::new(), last_created: 0, marks: 0 }
    }

    /// Creates a stream and returns its handle.
    pub(crate) fn create(&mut self) -> u64 {
        loop {
            self.last_created = self.last_created.wrapping_add(HANDLE_STEP);
            if self.last_created != 0 && !self.by_handle.contains_key(&self.last_created) {
                self.stream(self.last_created);
                return self.last_created;
            }
        }
    }

    /// Destroys a stream, once it is idle. Its marks stay valid.
    pub(crate) fn destroy(&mut self, handle: u64, now_ns: u64) {
        if let Some(stream) = self.by_handle.get_mut(&handle) {
            stream.is_destroyed = true;
        }
        self.by_handle.retain(|_, stream| !stream.is_over(now_ns));
    }

    /// Queues work of this duration. Returns when it starts and ends.
    pub(crate) fn launch(&mut self, handle: u64, duration_ns: u64, now_ns: u64) -> (u64, u64) {
        if self.timing == EventTiming::Eager {
            return (now_ns, now_ns); // work takes no time
        }
        let stream = self.stream(handle);
        let start_ns = stream.busy_until_ns.max(now_ns);
        stream.busy_until_ns = start_ns.saturating_add(duration_ns);
        (start_ns, stream.busy_until_ns)
    }

    /// Makes work queued on a stream from now on start only after a mark.
    pub(crate) fn wait(&mut self, handle: u64, mark: Mark) {
        let is_done = self.by_handle.get(&mark.stream).is_none_or(|stream| stream.done >= mark.sequence);
        if is_done || mark.stream == handle {
            return;
        }
        let ready_at_ns = self.ready_at_ns(mark);
        let stream = self.stream(handle);
        stream.busy_until_ns = stream.busy_until_ns.max(ready_at_ns);
        stream.waits.add(mark);
    }

    /// Records a mark at the end of a stream.
    pub(crate) fn record(&mut self, handle: u64, now_ns: u64) -> Mark {
        let eager = self.timing == EventTiming::Eager;
        let sequence = self.marks + 1;
        let stream = self.stream(handle);
        stream.recorded = sequence;
        if eager {
            stream.done = sequence;
        } else {
            let waits = std::mem::take(&mut stream.waits);
            stream.pending.push_back(Pending { sequence, ready_at_ns: stream.busy_until_ns.max(now_ns), waits });
        }
        self.marks = sequence;
        Mark { stream: handle, sequence }
    }

    /// Whether the mark is seen as done. Asking can make completions visible (see [`EventTiming`]).
    pub(crate) fn is_done(&mut self, mark: Mark, now_ns: u64) -> bool {
        let settles = self.settles();
        let Some(stream) = self.by_handle.get_mut(&mark.stream) else { return true };
        if !settles || stream.done >= mark.sequence {
            return stream.done >= mark.sequence;
        }
        let waits = stream.settle(now_ns);
        let is_done = stream.done >= mark.sequence;
        self.complete_waits(waits);
        is_done
    }

    /// When the work before a mark ends; zero if it is done.
    pub(crate) fn ready_at_ns(&self, mark: Mark) -> u64 {
        let pending = self.by_handle.get(&mark.stream).map(|stream| &stream.pending);
        let Some(pending) = pending else { return 0 };
        match pending.binary_search_by_key(&mark.sequence, |pending| pending.sequence) {
            Ok(index) => pending.get(index).map_or(0, |pending| pending.ready_at_ns),
            Err(_) => 0,
        }
    }

    /// Completes a mark and those before it in its stream, because the host has waited for it.
    pub(crate) fn complete_through(&mut self, mark: Mark) {
        self.complete_waits(Waits(vec![mark]));
    }

    /// Completes everything in a stream.
    pub(crate) fn complete(&mut self, handle: u64, now_ns: u64) {
        if let Some(stream) = self.by_handle.get_mut(&handle) {
            let waits = stream.complete_all(now_ns);
            self.complete_waits(waits);
        }
    }

    /// Completes everything in every stream.
    pub(crate) fn complete_all(&mut self, now_ns: u64) {
        for stream in self.by_handle.values_mut() {
            stream.complete_all(now_ns); // all streams, so what they wait for is included
        }
    }

    /// Completes the oldest mark of a stream that is not done. Returns how many it completed: zero or one.
    pub(crate) fn complete_one(&mut self, handle: u64, now_ns: u64) -> u64 {
        let by_time = self.timing == EventTiming::Clock;
        let Some(stream) = self.by_handle.get_mut(&handle) else { return 0 };
        // What the clock has completed is not pending, even if no query has settled it yet.
        let mut waits = if by_time { stream.settle(now_ns) } else { Waits::default() };
        let oldest = stream.pop_oldest();
        let completed = u64::from(oldest.is_some());
        waits.append(oldest.unwrap_or_default());
        self.complete_waits(waits);
        completed
    }

    /// Completes marks, those before them in their streams, and the marks that those had waited for.
    fn complete_waits(&mut self, mut waits: Waits) {
        while let Some(mark) = waits.0.pop() {
            if let Some(stream) = self.by_handle.get_mut(&mark.stream) {
                waits.append(stream.complete_through(mark.sequence));
            }
        }
    }

    /// When a stream is idle.
    pub(crate) fn stream_idle_at_ns(&self, handle: u64) -> u64 {
        self.by_handle.get(&handle).map_or(0, |stream| stream.busy_until_ns)
    }

    /// When the whole device is idle.
    pub(crate) fn idle_at_ns(&self) -> u64 {
        self.by_handle.values().map(|stream| stream.busy_until_ns).max().unwrap_or(0)
    }

    fn settles(&self) -> bool {
        matches!(self.timing, EventTiming::Clock | EventTiming::Seeded(_))
    }

    fn stream(&mut self, handle: u64) -> &mut Stream {
        let (timing, marks) = (self.timing, self.marks);
        let stream = self.by_handle.entry(handle).or_insert_with(|| Stream {
            // Marks of a destroyed stream with the same handle are done.
            recorded: marks,
            done: marks,
            pending: VecDeque::new(),
            busy_until_ns: 0,
            waits: Waits::default(),
            is_destroyed: false,
            draws: match timing {
                EventTiming::Seeded(seed) => Some(Draws::new(seed, handle)),
                _ => None,
            },
        });
        stream.is_destroyed = false;
        stream
    }
}
