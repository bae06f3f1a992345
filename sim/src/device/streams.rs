//! Streams: queues of declared work with event marks in them, and which marks are visibly done.
//!
//! Marks of a stream are numbered 1, 2, 3 in the order of recording; done is a prefix of them, which only grows. So an event,
//! once complete, stays complete, and a stream is first in first out, whatever the adversary does.

use std::collections::{BTreeMap, VecDeque};

use super::adversary::{Adversary, Draws};

/// A recorded event's place in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Mark {
    stream: u64,
    sequence: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    sequence: u64,
    /// When the work before the mark ends.
    ready_at_ns: u64,
}

#[derive(Clone, Debug)]
struct Stream {
    recorded: u64,
    done: u64,
    pending: VecDeque<Pending>,
    /// When the work declared so far ends; in the past for an idle stream.
    busy_until_ns: u64,
    draws: Option<Draws>,
}

impl Stream {
    fn pop_oldest(&mut self) -> Option<Pending> {
        let oldest = self.pending.pop_front()?;
        self.done = oldest.sequence;
        Some(oldest)
    }

    fn complete_through(&mut self, sequence: u64) {
        while self.pending.front().is_some_and(|oldest| oldest.sequence <= sequence) {
            self.pop_oldest();
        }
    }

    fn complete_all(&mut self, now_ns: u64) {
        self.complete_through(self.recorded);
        self.busy_until_ns = self.busy_until_ns.min(now_ns);
    }

    /// Lets finished marks become visible as the adversary likes.
    fn settle(&mut self, now_ns: u64) {
        while self.pending.front().is_some_and(|oldest| oldest.ready_at_ns <= now_ns) {
            if self.draws.as_mut().is_some_and(|draws| !draws.succeeds()) {
                break;
            }
            self.pop_oldest();
        }
    }
}

/// All streams of a device. A stream comes into being when it is first used.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    adversary: Adversary,
    by_handle: BTreeMap<u64, Stream>,
}

impl Streams {
    pub(super) fn new(adversary: Adversary) -> Self {
        Streams { adversary, by_handle: BTreeMap::new() }
    }

    /// Puts work of this duration at the end of a stream.
    pub(super) fn launch(&mut self, handle: u64, duration_ns: u64, now_ns: u64) {
        if self.adversary == Adversary::Eager {
            return; // work takes no time
        }
        let stream = self.stream(handle);
        stream.busy_until_ns = stream.busy_until_ns.max(now_ns).saturating_add(duration_ns);
    }

    /// Puts a mark at the end of a stream.
    pub(super) fn record(&mut self, handle: u64, now_ns: u64) -> Mark {
        let eager = self.adversary == Adversary::Eager;
        let stream = self.stream(handle);
        stream.recorded += 1;
        let sequence = stream.recorded;
        if eager {
            stream.done = sequence;
        } else {
            stream.pending.push_back(Pending { sequence, ready_at_ns: stream.busy_until_ns.max(now_ns) });
        }
        Mark { stream: handle, sequence }
    }

    /// Whether everything before the mark is visibly done. Asking can make completions visible (see [`Adversary`]).
    pub(super) fn is_done(&mut self, mark: Mark, now_ns: u64) -> bool {
        let settles = self.settles();
        let Some(stream) = self.by_handle.get_mut(&mark.stream) else { return true };
        if settles && stream.done < mark.sequence {
            stream.settle(now_ns);
        }
        stream.done >= mark.sequence
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
        if let Some(stream) = self.by_handle.get_mut(&mark.stream) {
            stream.complete_through(mark.sequence);
        }
    }

    /// Completes everything in a stream.
    pub(super) fn complete(&mut self, handle: u64, now_ns: u64) {
        if let Some(stream) = self.by_handle.get_mut(&handle) {
            stream.complete_all(now_ns);
        }
    }

    /// Completes everything in every stream.
    pub(super) fn complete_all(&mut self, now_ns: u64) {
        self.by_handle.values_mut().for_each(|stream| stream.complete_all(now_ns));
    }

    /// Completes the oldest mark of a stream that is not done yet; says how many that were, zero or one.
    pub(super) fn complete_one(&mut self, handle: u64, now_ns: u64) -> u64 {
        let by_time = self.adversary == Adversary::Clock;
        let Some(stream) = self.by_handle.get_mut(&handle) else { return 0 };
        if by_time {
            // What the clock has completed already is not pending, though nobody has asked yet.
            stream.settle(now_ns);
        }
        u64::from(stream.pop_oldest().is_some())
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
        let adversary = self.adversary;
        self.by_handle.entry(handle).or_insert_with(|| Stream {
            recorded: 0,
            done: 0,
            pending: VecDeque::new(),
            busy_until_ns: 0,
            draws: match adversary {
                Adversary::Seeded(seed) => Some(Draws::new(seed, handle)),
                _ => None,
            },
        })
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
