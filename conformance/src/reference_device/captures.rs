//! Graph captures: who takes part, and which nodes wait for which.

use std::collections::{BTreeMap, BTreeSet};

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
