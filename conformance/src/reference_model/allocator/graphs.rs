//! Captured graphs: what the device knows of them, and how the allocator reuses memory within a capture (spec 3.8).
//!
//! The graphs are a second implementation too: this file performs the program's calls that begin, extend and end captures,
//! instead of asking the device.

use std::collections::{BTreeMap, BTreeSet};

use parkade::units::PoolId;
use parkade::{AllocError, PoolError};

use super::Reference;

/// A stream's part in a capture: the capture's number, and the nodes at which the graph ends on this stream.
type Part = (u64, Vec<usize>);

/// The captures on a device, and the nodes of all graphs.
#[derive(Clone, Default, Debug)]
pub struct Graphs {
    begun: u64,
    parts: BTreeMap<u64, Part>,
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
    fn up_to(&self, mut next: Vec<usize>) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        while let Some(node) = next.pop() {
            if found.insert(node) {
                next.extend(&self.follows[node]);
            }
        }
        found
    }
}

/// What the allocator remembers of a capture: the pool that received its first request, and the nodes that come before each
/// stream's next work.
pub(super) type Visited = (PoolId, BTreeMap<u64, BTreeSet<usize>>);

impl Reference {
    fn reuses_by_graph(&self) -> bool {
        self.rules.reuses_by_graph && self.settings.graph_capture_record_stream_reuse
    }

    /// Returns the nodes at which the graph ends on all streams that use a block; none if any of them is not captured.
    pub(super) fn markers(&self, address: u64) -> Vec<usize> {
        let own = self.segment_at(address).stream;
        let streams = std::iter::once(own).chain(self.block(address).uses.keys());
        let parts: Option<Vec<&Part>> = streams.map(|stream| self.graphs.parts.get(&stream)).collect();
        let is_used = self.reuses_by_graph();
        parts.filter(|_| is_used).unwrap_or_default().into_iter().flat_map(|(_, ends)| ends.clone()).collect()
    }

    /// Frees the deferred blocks of a stream that the graph makes wait for all other users.
    pub(super) fn free_ordered(&mut self, stream: u64) -> Result<(), AllocError> {
        let part = self.graphs.parts.get(&stream).filter(|(_, ends)| !ends.is_empty()).cloned();
        let Some((capture, ends)) = part.filter(|_| self.reuses_by_graph()) else { return Ok(()) };
        let pool = self.pool_for(stream);
        if pool == PoolId::DEFAULT && !self.captures.contains_key(&capture) {
            return Err(AllocError::NotCaptured);
        }
        let reached = self.graphs.up_to(ends);
        let (_, visited) = self.captures.entry(capture).or_insert((pool, BTreeMap::new()));
        let visited = visited.entry(stream).or_default();
        visited.extend(reached);
        let visited = visited.clone();
        for address in self.deferred.clone() {
            let is_own = self.segment_at(address).stream == stream;
            let block = self.block_mut(address);
            if !is_own || block.markers.is_empty() || !block.markers.iter().all(|node| visited.contains(node)) {
                continue;
            }
            block.markers.clear();
            block.captured.clear();
            block.uses = Default::default();
            self.deferred.retain(|&other| other != address);
            self.free_block(address);
        }
        Ok(())
    }

    /// Forgets the newest capture that a pool serves, because the routing ends.
    pub(super) fn forget_capture(&mut self, id: PoolId) -> Result<(), PoolError> {
        let newest = self.captures.iter().rev().find(|(_, (pool, _))| *pool == id);
        let Some((&capture, (_, visited))) = newest.filter(|_| self.reuses_by_graph() && self.has_pool(id)) else {
            return Ok(());
        };
        if visited.keys().any(|&stream| self.graphs.is_captured(stream)) {
            return Err(PoolError::Captured(id));
        }
        self.captures.remove(&capture);
        Ok(())
    }
}
