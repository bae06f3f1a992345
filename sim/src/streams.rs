//! Streams: queues of declared work that contain marks (recorded events), and the marks that the host sees as done.
//!
//! Marks are numbered 1, 2, 3, ... across all streams, in the order in which they are recorded. The completed marks of
//! a stream are a prefix that only grows. A complete event therefore stays complete, and a stream is first in, first
//! out, under every [`EventTiming`]. If a stream waits for a mark of another stream, its later marks are done only
//! after that mark, and completing one of them completes that mark.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parkade::device::{Capture, GraphNode};

use crate::race::Order;

/// The rule by which the completion of work becomes visible to the host, that is, when an event is
/// seen as complete.
///
/// An allocator polls events at its own pace, and its tests must pass no matter when the events complete. They
/// therefore run the same program under several timings.
///
/// Under every timing, a complete event stays complete until it is recorded again, streams are first in, first out,
/// and waits and the `complete` methods of [`SimDevice`](crate::SimDevice) complete the work that they name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EventTiming {
    /// An event is complete when the simulated clock has reached the end of the work before it.
    #[default]
    Clock,
    /// Work takes no time: every event is complete immediately, as with the fake driver's `FAKE_EVENTS_AUTO=1`.
    Eager,
    /// Nothing completes until the host waits for it or completes it explicitly, as with the fake driver by default.
    Lazy,
    /// Like `Clock`, but a query may miss completions for a while. Each stream has a rate drawn from the seed, and
    /// each query makes none, one or several of the oldest finished events visible.
    Seeded(u64),
}

/// The pseudo-random draws of one stream under [`EventTiming::Seeded`].
#[derive(Clone, Debug)]
struct Draws {
    state: u64,
    /// The probability of success in 256ths, from 32 to 224: streams are slow or fast, but none is
    /// stuck.
    rate: u64,
}

impl Draws {
    /// Creates the draws of one stream. They depend only on the seed and the stream, not on other
    /// streams.
    fn new(seed: u64, stream: u64) -> Self {
        let mut state = seed ^ split_mix(stream.wrapping_add(1));
        state = split_mix(state);
        Draws { state, rate: 32 + state % 193 }
    }

    /// Makes one draw.
    fn succeeds(&mut self) -> bool {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        split_mix(self.state) % 256 < self.rate
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn split_mix(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An event of a [`SimDevice`](crate::SimDevice). Valid only on that device and its clones.
///
/// It contains its own position in its stream, so a cloned device understands clones of its events.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimEvent {
    ordinal: u64,
    mark: Option<Mark>,
    /// For the race detector: the accesses that are done when the event is complete; `None` if the host already knows
    /// that they are.
    order: Option<Arc<Order>>,
}

impl SimEvent {
    /// Creates an event that has not been recorded yet.
    pub(crate) fn new(ordinal: u64) -> Self {
        SimEvent { ordinal, mark: None, order: None }
    }

    /// Sets its latest recording.
    pub(crate) fn record(&mut self, mark: Mark, order: Option<Arc<Order>>) {
        self.mark = Some(mark);
        self.order = order;
    }

    /// Returns its number among the events created on its device, counted from zero as in the log.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Returns its latest recording.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Returns the accesses that are done once it is complete.
    pub(crate) fn order(&self) -> Option<&Order> {
        self.order.as_deref()
    }
}

/// The position of a recorded event in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Mark {
    stream: u64,
    sequence: u64,
}

/// A recorded mark that is not done yet.
#[derive(Clone, Debug)]
struct Pending {
    sequence: u64,
    /// The time at which the work before the mark ends.
    ready_at_ns: u64,
    /// Marks on other streams for which the stream has waited since its previous mark.
    waits: Waits,
}

/// Marks for which a stream waits: only the newest one on each other stream.
#[derive(Clone, Default, Debug)]
struct Waits(pub(super) Vec<Mark>);

impl Waits {
    fn add(&mut self, mark: Mark) {
        match self.0.iter_mut().find(|other| other.stream == mark.stream) {
            Some(other) => other.sequence = other.sequence.max(mark.sequence),
            None => self.0.push(mark),
        }
    }

    fn append(&mut self, other: Waits) {
        if self.0.is_empty() {
            *self = other;
        } else {
            other.0.into_iter().for_each(|mark| self.add(mark));
        }
    }
}

/// One stream: its pending marks in order, and the marks on other streams for which it waits.
#[derive(Clone, Debug)]
struct Stream {
    /// Its newest mark. If it has none yet, this is the mark that was newest across all streams when this stream was
    /// created.
    recorded: u64,
    done: u64,
    pending: VecDeque<Pending>,
    /// The time at which all work queued so far ends. For an idle stream, this is in the past.
    busy_until_ns: u64,
    /// The marks for which it has waited since its newest mark.
    waits: Waits,
    is_destroyed: bool,
    draws: Option<Draws>,
}

impl Stream {
    /// Completes the oldest pending mark. Returns the marks for which the stream had waited before it.
    fn pop_oldest(&mut self) -> Option<Waits> {
        let oldest = self.pending.pop_front()?;
        self.done = oldest.sequence;
        Some(oldest.waits)
    }

    /// Completes all marks up to this number. Returns the marks on other streams that are therefore done.
    fn complete_through(&mut self, sequence: u64) -> Waits {
        let mut waits = Waits::default();
        while self.pending.front().is_some_and(|oldest| oldest.sequence <= sequence) {
            waits.append(self.pop_oldest().unwrap_or_default());
        }
        waits
    }

    /// Completes all marks and ends all work. Returns the marks on other streams that are therefore done.
    fn complete_all(&mut self, now_ns: u64) -> Waits {
        let mut waits = self.complete_through(self.recorded);
        waits.append(std::mem::take(&mut self.waits));
        self.busy_until_ns = self.busy_until_ns.min(now_ns);
        waits
    }

    /// Makes finished marks visible, according to the event timing. Returns the marks on other streams that are
    /// therefore done.
    fn settle(&mut self, now_ns: u64) -> Waits {
        let mut waits = Waits::default();
        while self.pending.front().is_some_and(|oldest| oldest.ready_at_ns <= now_ns) {
            if self.draws.as_mut().is_some_and(|draws| !draws.succeeds()) {
                break;
            }
            waits.append(self.pop_oldest().unwrap_or_default());
        }
        waits
    }

    /// Returns whether it was destroyed and has neither pending marks nor running work.
    fn is_over(&self, now_ns: u64) -> bool {
        self.is_destroyed && self.pending.is_empty() && self.busy_until_ns <= now_ns
    }
}

/// The handles of created streams are multiples of this value.
const HANDLE_STEP: u64 = 0x1000;

/// All streams of a device. A stream is created when it is first used.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    timing: EventTiming,
    by_handle: BTreeMap<u64, Stream>,
    last_created: u64,
    /// The number of marks that have been recorded so far.
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

    /// Destroys a stream when it becomes idle. Its marks stay valid.
    pub(crate) fn destroy(&mut self, handle: u64, now_ns: u64) {
        if let Some(stream) = self.by_handle.get_mut(&handle) {
            stream.is_destroyed = true;
        }
        self.by_handle.retain(|_, stream| !stream.is_over(now_ns));
    }

    /// Queues work with this duration. Returns the times at which it starts and ends.
    pub(crate) fn launch(&mut self, handle: u64, duration_ns: u64, now_ns: u64) -> (u64, u64) {
        if self.timing == EventTiming::Eager {
            return (now_ns, now_ns); // work takes no time
        }
        let stream = self.stream(handle);
        let start_ns = stream.busy_until_ns.max(now_ns);
        stream.busy_until_ns = start_ns.saturating_add(duration_ns);
        (start_ns, stream.busy_until_ns)
    }

    /// Makes work that is queued on a stream from now on start only after a mark.
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

    /// Returns whether the host sees the mark as done. The query can make completions visible (see [`EventTiming`]).
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

    /// Returns the time at which the work before a mark ends; zero if it is done.
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
            stream.complete_all(now_ns); // this loop covers all streams, so it includes the marks for which they wait
        }
    }

    /// Completes the oldest mark of a stream that is not done. Returns how many marks it completed: zero or one.
    pub(crate) fn complete_one(&mut self, handle: u64, now_ns: u64) -> u64 {
        let by_time = self.timing == EventTiming::Clock;
        let Some(stream) = self.by_handle.get_mut(&handle) else { return 0 };
        // Marks that the clock has completed are not pending, even if no query has settled them yet.
        let mut waits = if by_time { stream.settle(now_ns) } else { Waits::default() };
        let oldest = stream.pop_oldest();
        let completed = u64::from(oldest.is_some());
        waits.append(oldest.unwrap_or_default());
        self.complete_waits(waits);
        completed
    }

    /// Completes marks, the marks before them in their streams, and the marks for which those had waited.
    fn complete_waits(&mut self, mut waits: Waits) {
        while let Some(mark) = waits.0.pop() {
            if let Some(stream) = self.by_handle.get_mut(&mark.stream) {
                waits.append(stream.complete_through(mark.sequence));
            }
        }
    }

    /// Returns the time at which a stream is idle.
    pub(crate) fn stream_idle_at_ns(&self, handle: u64) -> u64 {
        self.by_handle.get(&handle).map_or(0, |stream| stream.busy_until_ns)
    }

    /// Returns the time at which the entire device is idle.
    pub(crate) fn idle_at_ns(&self) -> u64 {
        self.by_handle.values().map(|stream| stream.busy_until_ns).max().unwrap_or(0)
    }

    fn settles(&self) -> bool {
        matches!(self.timing, EventTiming::Clock | EventTiming::Seeded(_))
    }

    fn stream(&mut self, handle: u64) -> &mut Stream {
        let (timing, marks) = (self.timing, self.marks);
        let stream = self.by_handle.entry(handle).or_insert_with(|| Stream {
            // Marks on a destroyed stream with the same handle are done.
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

/// All captures of a device, the streams that take part in them, and the nodes of all graphs: each piece of captured
/// work is a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Captures {
    begun: u64,
    by_stream: BTreeMap<u64, Capture>,
    /// The nodes for which each node waits. The first node is number 1.
    nodes: Vec<Vec<GraphNode>>,
}

impl Captures {
    /// Begins a capture on a stream; it replaces any capture in which the stream takes part.
    pub(crate) fn begin(&mut self, stream: u64) -> u64 {
        self.begun += 1;
        self.by_stream.insert(stream, Capture { id: self.begun, ends: Vec::new() });
        self.begun
    }

    /// Ends the stream's capture on all streams that take part in it.
    pub(crate) fn end(&mut self, stream: u64) {
        if let Some(ended) = self.by_stream.get(&stream).map(|capture| capture.id) {
            self.by_stream.retain(|_, capture| capture.id != ended);
        }
    }

    /// Returns the capture in which a stream takes part.
    pub(crate) fn of(&self, stream: u64) -> Option<&Capture> {
        self.by_stream.get(&stream)
    }

    /// Adds a node after all work submitted to the stream so far. Returns `None` if the stream is not captured.
    pub(crate) fn work(&mut self, stream: u64) -> Option<GraphNode> {
        let capture = self.by_stream.get_mut(&stream)?;
        let node = GraphNode(self.nodes.len() as u64 + 1);
        self.nodes.push(std::mem::replace(&mut capture.ends, vec![node]));
        Some(node)
    }

    /// Makes future work on a stream wait for all work submitted to a captured stream so far. Returns false if that
    /// stream is not captured, or if the first one takes part in a different capture.
    pub(crate) fn wait(&mut self, stream: u64, other: u64) -> bool {
        let Some(awaited) = self.by_stream.get(&other).cloned() else { return false };
        let capture = self.by_stream.entry(stream).or_insert_with(|| Capture { id: awaited.id, ends: Vec::new() });
        if capture.id != awaited.id {
            return false;
        }
        for node in awaited.ends {
            if !capture.ends.contains(&node) {
                capture.ends.push(node);
            }
        }
        true
    }

    /// Adds all nodes for which the next work on a stream waits. Does not follow the dependencies of a node that is
    /// already in the set.
    pub(crate) fn add_awaited(&self, stream: u64, awaited: &mut BTreeSet<GraphNode>) {
        let mut nodes = self.of(stream).map_or(Vec::new(), |capture| capture.ends.clone());
        while let Some(node) = nodes.pop() {
            if awaited.insert(node) {
                nodes.extend(&self.nodes[node.0 as usize - 1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_repeat_and_differ_by_seed_and_stream() {
        let draw = |seed, stream| {
            let mut draws = Draws::new(seed, stream);
            (0..64).map(|_| draws.succeeds()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 0x1000));
    }

    #[test]
    fn every_stream_succeeds_and_fails_sometimes() {
        for seed in 0..100 {
            let mut draws = Draws::new(seed, seed * 0x1000);
            let hits = (0..1000).filter(|_| draws.succeeds()).count();
            assert!((50..950).contains(&hits), "seed {seed}: {hits} of 1000");
        }
    }

    #[test]
    fn by_the_clock_a_mark_is_done_when_the_work_before_it_ends() {
        let mut streams = Streams::new(EventTiming::Clock);
        streams.launch(0, 100, 10);
        let first = streams.record(0, 10);
        streams.launch(0, 50, 20);
        let second = streams.record(0, 20);
        let other = streams.record(7, 20);
        assert!(streams.is_done(other, 20), "streams do not wait for each other");
        assert!(!streams.is_done(first, 109));
        assert!(streams.is_done(first, 110));
        assert!(!streams.is_done(second, 159));
        assert_eq!(streams.ready_at_ns(second), 160);
        assert!(streams.is_done(second, 160));
        assert_eq!(streams.ready_at_ns(second), 0);
    }

    #[test]
    fn eager_is_done_at_once_and_lazy_never() {
        let mut eager = Streams::new(EventTiming::Eager);
        eager.launch(0, 100, 0);
        let mark = eager.record(0, 0);
        assert!(eager.is_done(mark, 0));
        assert_eq!(eager.idle_at_ns(), 0);
        let mut lazy = Streams::new(EventTiming::Lazy);
        let mark = lazy.record(0, 0);
        assert!(!lazy.is_done(mark, u64::MAX));
        lazy.complete_through(mark);
        assert!(lazy.is_done(mark, 0));
    }

    #[test]
    fn a_stream_that_waits_begins_after_the_mark() {
        let mut streams = Streams::new(EventTiming::Clock);
        streams.launch(1, 100, 0);
        let first = streams.record(1, 0);
        streams.launch(1, 1000, 0);
        streams.wait(2, first);
        assert_eq!(streams.launch(2, 10, 5), (100, 110), "not after the work queued behind the mark");
        let second = streams.record(2, 5);
        streams.wait(3, second);
        assert_eq!(streams.stream_idle_at_ns(3), 110);
        assert!(!streams.is_done(second, 109) && streams.is_done(second, 110));
        let mut eager = Streams::new(EventTiming::Eager);
        let mark = eager.record(1, 0);
        eager.wait(2, mark);
        assert_eq!(eager.launch(2, 10, 5), (5, 5));
    }

    #[test]
    fn what_is_done_makes_done_what_was_waited_for() {
        for timing in [EventTiming::Clock, EventTiming::Lazy, EventTiming::Seeded(1)] {
            for way in 0..4 {
                let mut streams = Streams::new(timing);
                streams.launch(1, 100, 0);
                let earlier = streams.record(1, 0);
                let first = streams.record(1, 0);
                let later = streams.record(1, 0);
                streams.wait(2, first);
                let second = streams.record(2, 0);
                streams.wait(3, second);
                let third = streams.record(3, 0);
                match way {
                    0 => streams.complete_through(third),
                    1 => streams.complete(3, 0),
                    2 => assert_eq!(streams.complete_one(3, 0), 1),
                    _ => {
                        streams.wait(4, third);
                        streams.complete(4, 0);
                    }
                }
                let done = [earlier, first, second, third, later].map(|mark| streams.is_done(mark, 0));
                assert_eq!(done, [true, true, true, true, false], "{timing:?}, way {way}");
            }
        }
    }

    #[test]
    fn of_two_marks_of_a_stream_the_newer_one_is_waited_for() {
        for swap in [false, true] {
            let mut streams = Streams::new(EventTiming::Lazy);
            let mut marks = [(); 3].map(|()| streams.record(1, 0));
            let first_two = if swap { [marks[1], marks[0]] } else { [marks[0], marks[1]] };
            first_two.into_iter().for_each(|mark| streams.wait(2, mark));
            let second = streams.record(2, 0);
            streams.complete_through(second);
            marks.rotate_left(1);
            assert_eq!(marks.map(|mark| streams.is_done(mark, 0)), [true, false, true], "swapped: {swap}");
        }
    }

    #[test]
    fn handles_are_new_and_a_destroyed_stream_finishes_its_work() {
        let mut streams = Streams::new(EventTiming::Clock);
        streams.launch(0x2000, 10, 0);
        assert_eq!([(); 2].map(|()| streams.create()), [0x1000, 0x3000]);
        streams.launch(0x1000, 50, 0);
        let mark = streams.record(0x1000, 0);
        streams.destroy(0x1000, 0);
        assert!(!streams.is_done(mark, 49), "destroying a stream waits for nothing and completes nothing");
        assert_eq!(streams.idle_at_ns(), 50);
        assert!(streams.is_done(mark, 50));
        streams.destroy(0x3000, 50);
        assert_eq!(streams.by_handle.keys().copied().collect::<Vec<_>>(), [0x2000], "nothing remains of either stream");
        let again = streams.record(0x1000, 50);
        streams.launch(0x1000, 50, 50);
        assert!(streams.is_done(mark, 50) && streams.is_done(again, 50), "an old mark stays done");
        assert_eq!(streams.create(), 0x4000, "no handle is returned a second time");
    }

    #[test]
    fn one_at_a_time_completes_the_oldest_mark() {
        let mut streams = Streams::new(EventTiming::Lazy);
        assert_eq!(streams.complete_one(3, 0), 0);
        let marks = [(); 3].map(|()| streams.record(3, 0));
        assert_eq!(streams.complete_one(3, 0), 1);
        assert_eq!(marks.map(|mark| streams.is_done(mark, 0)), [true, false, false]);
        streams.complete(3, 0);
        assert_eq!(marks.map(|mark| streams.is_done(mark, 0)), [true; 3]);
        assert_eq!(streams.complete_one(3, 0), 0);
    }

    #[test]
    fn seeded_is_never_early_always_ordered_and_comes_in_the_end() {
        for seed in 0..50 {
            let mut streams = Streams::new(EventTiming::Seeded(seed));
            streams.launch(0, 100, 0);
            let marks = [(); 5].map(|()| streams.record(0, 0));
            assert!(!streams.is_done(marks[4], 99));
            let mut seen = [false; 5];
            for _ in 0..1000 {
                streams.is_done(marks[4], 100);
                let now = marks.map(|mark| streams.ready_at_ns(mark) == 0);
                assert!(now.is_sorted_by(|a, b| a >= b), "a prefix");
                assert!(seen.iter().zip(now).all(|(&before, after)| !before || after), "monotone");
                seen = now;
            }
            assert_eq!(seen, [true; 5]);
        }
    }
}
