//! Streams: queues of declared work with event marks in them, and which marks are visibly done.
//!
//! Marks are numbered 1, 2, 3 in the order of recording, over all streams; done is a prefix of a stream's, which only grows. So
//! an event, once complete, stays complete, and a stream is first in first out, whatever the timing does. A stream that waits
//! for a mark of another one carries that on: its later marks are done only after it, and once one of them is done, so is that
//! mark.

mod event;
mod event_timing;
mod stream;
use std::collections::{BTreeMap, VecDeque};

use event_timing::Draws;
use stream::{Mark, Pending, Stream, Waits};

pub use event::SimEvent;
pub use event_timing::EventTiming;

/// Handles of created streams are its multiples.
const HANDLE_STEP: u64 = 0x1000;

/// All streams of a device. A stream comes into being when it is first used.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    timing: EventTiming,
    by_handle: BTreeMap<u64, Stream>,
    last_created: u64,
    /// How many marks there ever were.
    marks: u64,
}

impl Streams {
    pub(crate) fn new(timing: EventTiming) -> Self {
        Streams { timing, by_handle: BTreeMap::new(), last_created: 0, marks: 0 }
    }

    /// Makes a stream; its handle.
    pub(crate) fn create(&mut self) -> u64 {
        loop {
            self.last_created = self.last_created.wrapping_add(HANDLE_STEP);
            if self.last_created != 0 && !self.by_handle.contains_key(&self.last_created) {
                self.stream(self.last_created);
                return self.last_created;
            }
        }
    }

    /// Ends a stream, at once if it is idle and else when it is. Marks on it stay what they are.
    pub(crate) fn destroy(&mut self, handle: u64, now_ns: u64) {
        if let Some(stream) = self.by_handle.get_mut(&handle) {
            stream.is_destroyed = true;
        }
        self.by_handle.retain(|_, stream| !stream.is_over(now_ns));
    }

    /// Puts work of this duration at the end of a stream; when it begins and ends.
    pub(crate) fn launch(&mut self, handle: u64, duration_ns: u64, now_ns: u64) -> (u64, u64) {
        if self.timing == EventTiming::Eager {
            return (now_ns, now_ns); // work takes no time
        }
        let stream = self.stream(handle);
        let start_ns = stream.busy_until_ns.max(now_ns);
        stream.busy_until_ns = start_ns.saturating_add(duration_ns);
        (start_ns, stream.busy_until_ns)
    }

    /// Lets what is put on a stream from now on begin only after a mark.
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

    /// Puts a mark at the end of a stream.
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

    /// Whether everything before the mark is visibly done. Asking can make completions visible (see [`EventTiming`]).
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

    /// When the work before a mark ends; zero if it is visibly done.
    pub(crate) fn ready_at_ns(&self, mark: Mark) -> u64 {
        let pending = self.by_handle.get(&mark.stream).map(|stream| &stream.pending);
        let Some(pending) = pending else { return 0 };
        match pending.binary_search_by_key(&mark.sequence, |pending| pending.sequence) {
            Ok(index) => pending.get(index).map_or(0, |pending| pending.ready_at_ns),
            Err(_) => 0,
        }
    }

    /// Completes a mark and those before it in its stream: somebody has waited for it.
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
            stream.complete_all(now_ns); // what they waited for is among it
        }
    }

    /// Completes the oldest mark of a stream that is not done yet; says how many that were, zero or one.
    pub(crate) fn complete_one(&mut self, handle: u64, now_ns: u64) -> u64 {
        let by_time = self.timing == EventTiming::Clock;
        let Some(stream) = self.by_handle.get_mut(&handle) else { return 0 };
        // What the clock has completed already is not pending, though nobody has asked yet.
        let mut waits = if by_time { stream.settle(now_ns) } else { Waits::default() };
        let oldest = stream.pop_oldest();
        let completed = u64::from(oldest.is_some());
        waits.append(oldest.unwrap_or_default());
        self.complete_waits(waits);
        completed
    }

    /// Completes marks, those before them in their streams, and what those streams had waited for.
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
            // Marks of a stream of this handle that was destroyed are done.
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
