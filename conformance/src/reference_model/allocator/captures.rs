//! How the allocator reuses memory within a capture, by the captured graph (spec 3.8).

use std::collections::BTreeMap;

use parkade::units::PoolId;
use parkade::{AllocError, PoolError};

use super::super::graphs::Part;
use super::Reference;

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
