//! Captured graphs, as the device knows them (spec 3.8): a second implementation, which performs the program's calls that begin,
//! extend and end captures, instead of asking the device.

use std::collections::{BTreeMap, BTreeSet};

use parkade::device::BackendError;

use crate::backend::{HIDDEN, Hidden};

/// A stream's part in a capture: the capture's number, and the nodes at which the graph ends on this stream.
pub(super) type Part = (u64, Vec<usize>);

/// The captures on a device, and the nodes of all graphs.
#[derive(Clone, Default, Debug)]
pub struct Graphs {
    begun: u64,
    parts: BTreeMap<u64, Part>,
    /// For each node, the nodes that it directly follows.
    follows: Vec<Vec<usize>>,
    /// What the device does not answer.
    hidden: BTreeMap<u64, Hidden>,
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

    /// Makes questions about a stream fail, or not.
    pub(crate) fn hide(&mut self, stream: u64, hidden: Hidden) {
        self.hidden.insert(stream, hidden);
    }

    /// Returns the stream's part in a capture, if it is captured.
    pub(super) fn part(&self, stream: u64) -> Result<Option<&Part>, BackendError> {
        if self.hidden.get(&stream) == Some(&Hidden::State) { Err(HIDDEN) } else { Ok(self.parts.get(&stream)) }
    }

    /// Fails if the device does not answer which work the stream waits for.
    pub(super) fn check_order(&self, stream: u64) -> Result<(), BackendError> {
        if self.hidden.get(&stream) == Some(&Hidden::Order) { Err(HIDDEN) } else { Ok(()) }
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
