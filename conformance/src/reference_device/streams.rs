//! Streams, as lists of marks, and graph captures: which streams take part in one, and which nodes wait for which.
//!
//! A mark is a point in a stream's work that an event has recorded; it is identified by its number.

use std::collections::{BTreeMap, BTreeSet};

use parkade_sim::EventTiming;

/// A recorded mark.
#[derive(Clone, Debug)]
struct Mark {
    /// The index of its stream in [`Streams::all`].
    stream: usize,
    /// The time at which the work before it ends.
    ready_ns: u64,
    /// Whether the host can see that it is done.
    is_done: bool,
    /// The marks that are done before it, beyond those of its own stream.
    behind: Vec<usize>,
}

/// A stream. A handle that is used again after its stream has ended is a different stream.
#[derive(Clone, Debug)]
struct Stream {
    handle: u64,
    busy_until_ns: u64,
    /// The marks for which it has waited since its latest mark.
    awaited: Vec<usize>,
    is_destroyed: bool,
    is_gone: bool,
    draws: Draws,
}

/// The draws of a stream under [`EventTiming::Seeded`]: the state of a SplitMix64, and how many of 256 draws succeed.
#[derive(Clone, Debug)]
struct Draws {
    state: u64,
    rate: u64,
}

impl Draws {
    fn new(seed: u64, handle: u64) -> Draws {
        let state = mix(seed ^ mix(handle.wrapping_add(1)));
        Draws { state, rate: 32 + state % 193 }
    }

    fn draw(&mut self) -> bool {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state) % 256 < self.rate
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// All streams of a device.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    timing: EventTiming,
    all: Vec<Stream>,
    marks: Vec<Mark>,
    created: u64,
}

impl Streams {
    pub(super) fn new(timing: EventTiming) -> Streams {
        Streams { timing, all: Vec::new(), marks: Vec::new(), created: 0 }
    }

    /// Returns the index of the stream that has a handle now.
    fn known(&self, handle: u64) -> Option<usize> {
        self.all.iter().position(|stream| stream.handle == handle && !stream.is_gone)
    }

    /// Returns the index of the stream with a handle, which begins if there is none. Using a destroyed stream revives it.
    fn used(&mut self, handle: u64) -> usize {
        let index = self.known(handle).unwrap_or_else(|| {
            let seed = if let EventTiming::Seeded(seed) = self.timing { seed } else { 0 };
            let draws = Draws::new(seed, handle);
            let awaited = Vec::new();
            self.all.push(Stream { handle, busy_until_ns: 0, awaited, is_destroyed: false, is_gone: false, draws });
            self.all.len() - 1
        });
        self.all[index].is_destroyed = false;
        index
    }

    /// Creates a stream: the next multiple of 0x1000 that no stream has.
    pub(super) fn create(&mut self) -> u64 {
        self.created += 1;
        while self.known(self.created * 0x1000).is_some() {
            self.created += 1;
        }
        let handle = self.created * 0x1000;
        self.used(handle);
        handle
    }

    /// Destroys a stream. Whatever is destroyed and has nothing left to do is gone.
    pub(super) fn destroy(&mut self, handle: u64, now_ns: u64) {
        if let Some(index) = self.known(handle) {
            self.all[index].is_destroyed = true;
        }
        for index in 0..self.all.len() {
            let is_idle = self.all[index].busy_until_ns <= now_ns && self.next_of(index).is_none();
            self.all[index].is_gone |= self.all[index].is_destroyed && is_idle;
        }
    }

    /// Queues work. Returns its start and end.
    pub(super) fn launch(&mut self, handle: u64, ns: u64, now_ns: u64) -> (u64, u64) {
        if self.timing == EventTiming::Eager {
            return (now_ns, now_ns);
        }
        let index = self.used(handle);
        let start = self.all[index].busy_until_ns.max(now_ns);
        self.all[index].busy_until_ns = start.saturating_add(ns);
        (start, start.saturating_add(ns))
    }

    /// Records a mark. Returns its number.
    pub(super) fn record(&mut self, handle: u64, now_ns: u64) -> usize {
        let stream = self.used(handle);
        let is_eager = self.timing == EventTiming::Eager;
        let ready_ns = self.all[stream].busy_until_ns.max(now_ns);
        let behind = std::mem::take(&mut self.all[stream].awaited);
        self.marks.push(Mark { stream, ready_ns, is_done: is_eager, behind });
        self.marks.len() - 1
    }

    /// Makes later work on a stream start after a mark.
    pub(super) fn wait(&mut self, handle: u64, mark: usize) {
        let of = self.marks[mark].stream;
        if self.is_over(mark) || self.all[of].handle == handle {
            return;
        }
        let index = self.used(handle);
        self.all[index].busy_until_ns = self.all[index].busy_until_ns.max(self.marks[mark].ready_ns);
        self.all[index].awaited.push(mark);
    }

    /// Whether the host can see that a mark is done.
    fn is_over(&self, mark: usize) -> bool {
        self.marks[mark].is_done || self.all[self.marks[mark].stream].is_gone
    }

    /// Asks whether a mark is done.
    pub(super) fn query(&mut self, mark: usize, now_ns: u64) -> bool {
        if !self.is_over(mark) && matches!(self.timing, EventTiming::Clock | EventTiming::Seeded(_)) {
            self.settle(self.marks[mark].stream, now_ns);
        }
        self.is_over(mark)
    }

    /// Makes the host see the marks of a stream whose work has ended, or those that the draws allow.
    fn settle(&mut self, stream: usize, now_ns: u64) {
        while let Some(mark) = self.next_of(stream).filter(|&mark| self.marks[mark].ready_ns <= now_ns) {
            if matches!(self.timing, EventTiming::Seeded(_)) && !self.all[stream].draws.draw() {
                break;
            }
            self.finish(mark);
        }
    }

    /// Returns the oldest mark of a stream that is not done.
    fn next_of(&self, stream: usize) -> Option<usize> {
        self.marks.iter().position(|mark| mark.stream == stream && !mark.is_done)
    }

    /// Completes a mark, those before it in its stream, and what they waited for.
    pub(super) fn finish(&mut self, mark: usize) {
        let stream = self.marks[mark].stream;
        for earlier in 0..=mark {
            if self.marks[earlier].stream == stream && !self.marks[earlier].is_done {
                self.marks[earlier].is_done = true;
                self.marks[earlier].behind.clone().into_iter().for_each(|behind| self.finish(behind));
            }
        }
    }

    /// Returns when the work before a mark ends; zero if that is known to be over.
    pub(super) fn ready_ns(&self, mark: usize) -> u64 {
        if self.is_over(mark) { 0 } else { self.marks[mark].ready_ns }
    }

    /// Completes everything on a stream.
    pub(super) fn complete(&mut self, handle: u64, now_ns: u64) {
        let Some(index) = self.known(handle) else { return };
        if let Some(last) = self.marks.iter().rposition(|mark| mark.stream == index) {
            self.finish(last);
        }
        std::mem::take(&mut self.all[index].awaited).into_iter().for_each(|mark| self.finish(mark));
        self.all[index].busy_until_ns = self.all[index].busy_until_ns.min(now_ns);
    }

    /// Completes everything on all streams.
    pub(super) fn complete_all(&mut self, now_ns: u64) {
        let handles: Vec<u64> = self.all.iter().filter(|stream| !stream.is_gone).map(|stream| stream.handle).collect();
        handles.into_iter().for_each(|handle| self.complete(handle, now_ns));
    }

    /// Completes the oldest mark of a stream that is not done. Returns how many that were.
    pub(super) fn complete_one(&mut self, handle: u64, now_ns: u64) -> u64 {
        let Some(index) = self.known(handle) else { return 0 };
        if self.timing == EventTiming::Clock {
            self.settle(index, now_ns);
        }
        let next = self.next_of(index);
        next.into_iter().for_each(|mark| self.finish(mark));
        u64::from(next.is_some())
    }

    /// Returns when a stream is idle.
    pub(super) fn idle_ns(&self, handle: u64) -> u64 {
        self.known(handle).map_or(0, |index| self.all[index].busy_until_ns)
    }

    /// Returns when all streams are idle.
    pub(super) fn all_idle_ns(&self) -> u64 {
        self.all.iter().filter(|stream| !stream.is_gone).map(|stream| stream.busy_until_ns).max().unwrap_or(0)
    }
}

/// All captures of a device.
#[derive(Clone, Default, Debug)]
pub(super) struct Captures {
    begun: u64,
    /// For each captured stream, its capture and the nodes for which its next work waits.
    streams: BTreeMap<u64, (u64, Vec<u64>)>,
    /// The nodes for which each node waits. The first node is number 1.
    nodes: Vec<Vec<u64>>,
}

impl Captures {
    /// Begins a capture on a stream, which leaves the capture that it takes part in. Returns its number.
    pub(super) fn begin(&mut self, stream: u64) -> u64 {
        self.begun += 1;
        self.streams.insert(stream, (self.begun, Vec::new()));
        self.begun
    }

    /// Ends the capture that a stream takes part in, on all its streams.
    pub(super) fn end(&mut self, stream: u64) {
        let Some((ended, _)) = self.streams.get(&stream).cloned() else { return };
        self.streams = self.streams.clone().into_iter().filter(|(_, (capture, _))| *capture != ended).collect();
    }

    /// Returns the capture that a stream takes part in, and the nodes for which its next work waits.
    pub(super) fn of(&self, stream: u64) -> Option<(u64, Vec<u64>)> {
        self.streams.get(&stream).cloned()
    }

    /// Adds work to a captured stream. Returns its node.
    pub(super) fn work(&mut self, stream: u64) -> Option<u64> {
        let (_, ends) = self.streams.get_mut(&stream)?;
        let node = self.nodes.len() as u64 + 1;
        self.nodes.push(ends.clone());
        *ends = vec![node];
        Some(node)
    }

    /// Makes a stream wait for a captured one. Returns whether it may: it may not take part in a different capture.
    pub(super) fn wait(&mut self, stream: u64, other: u64) -> bool {
        let Some((capture, awaited)) = self.of(other) else { return false };
        let (own, mut ends) = self.of(stream).unwrap_or((capture, Vec::new()));
        if own != capture {
            return false;
        }
        ends.extend(awaited.into_iter().filter(|node| !ends.contains(node)).collect::<Vec<_>>());
        self.streams.insert(stream, (capture, ends));
        true
    }

    /// Adds the nodes for which a stream's next work waits, directly or not, but nothing behind those that are already there.
    pub(super) fn add_awaited(&self, stream: u64, awaited: &mut BTreeSet<u64>) {
        for node in self.of(stream).map_or(Vec::new(), |(_, ends)| ends) {
            self.add(node, awaited);
        }
    }

    fn add(&self, node: u64, awaited: &mut BTreeSet<u64>) {
        if awaited.insert(node) {
            self.nodes[node as usize - 1].iter().for_each(|&before| self.add(before, awaited));
        }
    }
}
