//! Captured graphs, as the device knows them (spec 3.8): a second implementation, which performs the program's calls that begin,
//! extend and end captures, instead of asking the device.

use std::collections::{BTreeMap, BTreeSet};

/// A stream's part in a capture: the capture's number, and the nodes at which the graph ends on this stream.
pub(super) type Part = (u64, Vec<usize>);

/// The captures on a device, and the nodes of all graphs.
#[derive(Clone, Default, Debug)]
pub struct Graphs {
    begun: u64,
    pub(super) parts: BTreeMap<u64, Part>,
    /// For each node, the nodes that it directly follows.
    follows: Vec<Vec<usize>>,
}

impl Graphs {
    /// Begins a capture on a stream, in place of the one in which the stream takes part.
    pub fn begin(&mut self, stream: u64) {
        self.begun += 1;
        self.parts.insert(stream, (self.begun, Vec::new()));
    }

    /// Ends the capture in which a stream takes part, on all its streams.
    pub fn end(&mut self, stream: u64) {
        if let Some((ended, _)) = self.parts.get(&stream).cloned() {
            self.parts.retain(|_, (capture, _)| *capture != ended);
        }
    }

    /// Submits work to a stream. Returns whether the stream is captured.
    pub fn work(&mut self, stream: u64) -> bool {
        let Some((_, ends)) = self.parts.get_mut(&stream) else { return false };
        self.follows.push(std::mem::take(ends));
        ends.push(self.follows.len() - 1);
        true
    }

    /// Makes a stream wait for another one that is captured; the stream then takes part in the same capture. Returns whether
    /// the device accepts that.
    pub fn wait(&mut self, stream: u64, other: u64) -> bool {
        let Some((capture, ends)) = self.parts.get(&other).cloned() else { return false };
        let (own, waits_for) = self.parts.entry(stream).or_insert((capture, Vec::new()));
        if *own == capture {
            waits_for.extend(ends);
        }
        *own == capture
    }

    /// Returns whether a stream is captured.
    pub fn is_captured(&self, stream: u64) -> bool {
        self.parts.contains_key(&stream)
    }

    /// Returns these nodes and all that come before them.
    pub(super) fn up_to(&self, mut next: Vec<usize>) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        while let Some(node) = next.pop() {
            if found.insert(node) {
                next.extend(&self.follows[node]);
            }
        }
        found
    }
}
