//! Streams: queues of declared work with event marks in them, and which marks are visibly done.
//!
//! Marks are numbered 1, 2, 3 in the order of recording, over all streams; done is a prefix of a stream's, which only grows. So an event,
//! once complete, stays complete, and a stream is first in first out, whatever the adversary does. A stream that waits for a mark
//! of another one carries that on: its later marks are done only after it, and once one of them is done, so is that mark.

use std::collections::{BTreeMap, VecDeque};

use super::adversary::{Adversary, Draws};

/// Handles of created streams are its multiples.
const HANDLE_STEP: u64 = 0x1000;

/// A recorded event's place in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Mark {
    stream: u64,
    sequence: u64,
}

#[derive(Clone, Debug)]
struct Pending {
    sequence: u64,
    /// When the work before the mark ends.
    ready_at_ns: u64,
    /// Marks of other streams that the stream waited for since its mark before.
    waits: Waits,
}

/// Marks that are waited for: the newest one of each stream.
#[derive(Clone, Default, Debug)]
struct Waits(Vec<Mark>);

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

#[derive(Clone, Debug)]
struct Stream {
    /// Its newest mark; before there is one, the newest of any stream when this one began.
    recorded: u64,
    done: u64,
    pending: VecDeque<Pending>,
    /// When the work declared so far ends; in the past for an idle stream.
    busy_until_ns: u64,
    /// What it waited for since its newest mark.
    waits: Waits,
    is_destroyed: bool,
    draws: Option<Draws>,
}

impl Stream {
    /// Completes the oldest pending mark; what the stream had waited for before it.
    fn pop_oldest(&mut self) -> Option<Waits> {
        let oldest = self.pending.pop_front()?;
        self.done = oldest.sequence;
        Some(oldest.waits)
    }

    /// The methods that complete marks return what is thereby done in other streams.
    fn complete_through(&mut self, sequence: u64) -> Waits {
        let mut waits = Waits::default();
        while self.pending.front().is_some_and(|oldest| oldest.sequence <= sequence) {
            waits.append(self.pop_oldest().unwrap_or_default());
        }
        waits
    }

    fn complete_all(&mut self, now_ns: u64) -> Waits {
        let mut waits = self.complete_through(self.recorded);
        waits.append(std::mem::take(&mut self.waits));
        self.busy_until_ns = self.busy_until_ns.min(now_ns);
        waits
    }

    /// Lets finished marks become visible as the adversary likes.
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

    /// Whether it was destroyed and nothing is left of it that anybody could ask for.
    fn is_over(&self, now_ns: u64) -> bool {
        self.is_destroyed && self.pending.is_empty() && self.busy_until_ns <= now_ns
    }
}

/// All streams of a device. A stream comes into being when it is first used.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    adversary: Adversary,
    by_handle: BTreeMap<u64, Stream>,
    last_created: u64,
    /// How many marks there ever were.
    marks: u64,
}

impl Streams {
    pub(super) fn new(adversary: Adversary) -> Self {
        Streams { adversary, by_handle: BTreeMap::new(), last_created: 0, marks: 0 }
    }

    /// Makes a stream; its handle.
    pub(super) fn create(&mut self) -> u64 {
        loop {
            self.last_created = self.last_created.wrapping_add(HANDLE_STEP);
            if self.last_created != 0 && !self.by_handle.contains_key(&self.last_created) {
                self.stream(self.last_created);
                return self.last_created;
            }
        }
    }

    /// Ends a stream, at once if it is idle and else when it is. Marks on it stay what they are.
    pub(super) fn destroy(&mut self, handle: u64, now_ns: u64) {
        if let Some(stream) = self.by_handle.get_mut(&handle) {
            stream.is_destroyed = true;
        }
        self.by_handle.retain(|_, stream| !stream.is_over(now_ns));
    }

    /// Puts work of this duration at the end of a stream; when it begins and ends.
    pub(super) fn launch(&mut self, handle: u64, duration_ns: u64, now_ns: u64) -> (u64, u64) {
        if self.adversary == Adversary::Eager {
            return (now_ns, now_ns); // work takes no time
        }
        let stream = self.stream(handle);
        let start_ns = stream.busy_until_ns.max(now_ns);
        stream.busy_until_ns = start_ns.saturating_add(duration_ns);
        (start_ns, stream.busy_until_ns)
    }

    /// Lets what is put on a stream from now on begin only after a mark.
    pub(super) fn wait(&mut self, handle: u64, mark: Mark) {
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
    pub(super) fn record(&mut self, handle: u64, now_ns: u64) -> Mark {
        let eager = self.adversary == Adversary::Eager;
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

    /// Whether everything before the mark is visibly done. Asking can make completions visible (see [`Adversary`]).
    pub(super) fn is_done(&mut self, mark: Mark, now_ns: u64) -> bool {
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
    pub(super) fn ready_at_ns(&self, mark: Mark) -> u64 {
        let pending = self.by_handle.get(&mark.stream).map(|stream| &stream.pending);
        let Some(pending) = pending else { return 0 };
        match pending.binary_search_by_key(&mark.sequence, |pending| pending.sequence) {
            Ok(index) => pending.get(index).map_or(0, |pending| pending.ready_at_ns),
            Err(_) => 0,
        }
    }

    /// Completes a mark and those before it in its stream: somebody has waited for it.
    pub(super) fn complete_through(&mut self, mark: Mark) {
        self.complete_waits(Waits(vec![mark]));
    }

    /// Completes everything in a stream.
    pub(super) fn complete(&mut self, handle: u64, now_ns: u64) {
        if let Some(stream) = self.by_handle.get_mut(&handle) {
            let waits = stream.complete_all(now_ns);
            self.complete_waits(waits);
        }
    }

    /// Completes everything in every stream.
    pub(super) fn complete_all(&mut self, now_ns: u64) {
        for stream in self.by_handle.values_mut() {
            stream.complete_all(now_ns); // what they waited for is among it
        }
    }

    /// Completes the oldest mark of a stream that is not done yet; says how many that were, zero or one.
    pub(super) fn complete_one(&mut self, handle: u64, now_ns: u64) -> u64 {
        let by_time = self.adversary == Adversary::Clock;
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
    pub(super) fn stream_idle_at_ns(&self, handle: u64) -> u64 {
        self.by_handle.get(&handle).map_or(0, |stream| stream.busy_until_ns)
    }

    /// When the whole device is idle.
    pub(super) fn idle_at_ns(&self) -> u64 {
        self.by_handle.values().map(|stream| stream.busy_until_ns).max().unwrap_or(0)
    }

    fn settles(&self) -> bool {
        matches!(self.adversary, Adversary::Clock | Adversary::Seeded(_))
    }

    fn stream(&mut self, handle: u64) -> &mut Stream {
        let (adversary, marks) = (self.adversary, self.marks);
        let stream = self.by_handle.entry(handle).or_insert_with(|| Stream {
            // Marks of a stream of this handle that was destroyed are done.
            recorded: marks,
            done: marks,
            pending: VecDeque::new(),
            busy_until_ns: 0,
            waits: Waits::default(),
            is_destroyed: false,
            draws: match adversary {
                Adversary::Seeded(seed) => Some(Draws::new(seed, handle)),
                _ => None,
            },
        });
        stream.is_destroyed = false;
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_the_clock_a_mark_is_done_when_the_work_before_it_ends() {
        let mut streams = Streams::new(Adversary::Clock);
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
        let mut eager = Streams::new(Adversary::Eager);
        eager.launch(0, 100, 0);
        let mark = eager.record(0, 0);
        assert!(eager.is_done(mark, 0));
        assert_eq!(eager.idle_at_ns(), 0);
        let mut lazy = Streams::new(Adversary::Lazy);
        let mark = lazy.record(0, 0);
        assert!(!lazy.is_done(mark, u64::MAX));
        lazy.complete_through(mark);
        assert!(lazy.is_done(mark, 0));
    }

    #[test]
    fn a_stream_that_waits_begins_after_the_mark() {
        let mut streams = Streams::new(Adversary::Clock);
        streams.launch(1, 100, 0);
        let first = streams.record(1, 0);
        streams.launch(1, 1000, 0);
        streams.wait(2, first);
        assert_eq!(streams.launch(2, 10, 5), (100, 110), "not behind what came after the mark");
        let second = streams.record(2, 5);
        streams.wait(3, second);
        assert_eq!(streams.stream_idle_at_ns(3), 110);
        assert!(!streams.is_done(second, 109) && streams.is_done(second, 110));
        let mut eager = Streams::new(Adversary::Eager);
        let mark = eager.record(1, 0);
        eager.wait(2, mark);
        assert_eq!(eager.launch(2, 10, 5), (5, 5));
    }

    #[test]
    fn what_is_done_makes_done_what_was_waited_for() {
        for adversary in [Adversary::Clock, Adversary::Lazy, Adversary::Seeded(1)] {
            for way in 0..4 {
                let mut streams = Streams::new(adversary);
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
                assert_eq!(done, [true, true, true, true, false], "{adversary:?}, way {way}");
            }
        }
    }

    #[test]
    fn handles_are_new_and_a_destroyed_stream_finishes_its_work() {
        let mut streams = Streams::new(Adversary::Clock);
        streams.launch(0x2000, 10, 0);
        assert_eq!([(); 2].map(|()| streams.create()), [0x1000, 0x3000]);
        streams.launch(0x1000, 50, 0);
        let mark = streams.record(0x1000, 0);
        streams.destroy(0x1000, 0);
        assert!(!streams.is_done(mark, 49), "destroying waits for nothing and completes nothing");
        assert_eq!(streams.idle_at_ns(), 50);
        assert!(streams.is_done(mark, 50));
        streams.destroy(0x3000, 50);
        assert_eq!(streams.by_handle.keys().copied().collect::<Vec<_>>(), [0x2000], "nothing is left of both");
        let again = streams.record(0x1000, 50);
        streams.launch(0x1000, 50, 50);
        assert!(streams.is_done(mark, 50) && streams.is_done(again, 50), "an old mark stays done");
        assert_eq!(streams.create(), 0x4000, "none twice");
    }

    #[test]
    fn one_at_a_time_completes_the_oldest_mark() {
        let mut streams = Streams::new(Adversary::Lazy);
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
            let mut streams = Streams::new(Adversary::Seeded(seed));
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
