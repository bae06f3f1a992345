//! Captures of graphs: which streams take part in which, and the node that each piece of captured work is.

use std::collections::{BTreeMap, BTreeSet};

use parkade::device::{Capture, GraphNode};

/// All captures of a device, and the nodes of all graphs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Captures {
    begun: u64,
    by_stream: BTreeMap<u64, Capture>,
    /// What each node waits for. The first node is 1.
    nodes: Vec<Vec<GraphNode>>,
}

impl Captures {
    /// Begins a capture on a stream, in place of one that it takes part in.
    pub(crate) fn begin(&mut self, stream: u64) -> u64 {
        self.begun += 1;
        self.by_stream.insert(stream, Capture { id: self.begun, ends: Vec::new() });
        self.begun
    }

    /// Ends the stream's capture on all its streams.
    pub(crate) fn end(&mut self, stream: u64) {
        if let Some(ended) = self.by_stream.get(&stream).map(|capture| capture.id) {
            self.by_stream.retain(|_, capture| capture.id != ended);
        }
    }

    /// The capture that a stream takes part in.
    pub(crate) fn of(&self, stream: u64) -> Option<&Capture> {
        self.by_stream.get(&stream)
    }

    /// Adds a node after all that the stream was given so far. `None` if it is not captured.
    pub(crate) fn work(&mut self, stream: u64) -> Option<GraphNode> {
        let capture = self.by_stream.get_mut(&stream)?;
        let node = GraphNode(self.nodes.len() as u64 + 1);
        self.nodes.push(std::mem::replace(&mut capture.ends, vec![node]));
        Some(node)
    }

    /// Makes later work of a stream wait for all that a captured one was given so far. Returns false if that one is not captured, or the
    /// stream takes part in another capture.
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

    /// Adds all nodes that the next work of a stream waits for. The nodes before one that is there already are not looked at again.
    pub(crate) fn add_awaited(&self, stream: u64, awaited: &mut BTreeSet<GraphNode>) {
        let mut nodes = self.of(stream).map_or(Vec::new(), |capture| capture.ends.clone());
        while let Some(node) = nodes.pop() {
            if awaited.insert(node) {
                nodes.extend(&self.nodes[node.0 as usize - 1]);
            }
        }
    }
}
