//! Freeing blocks, and the events that freed blocks wait for (spec 3.3 to 3.8).

use std::collections::VecDeque;

use parkade::device::BackendError;
use parkade::stats::Family;
use parkade::trace::TraceAction;
use parkade::units::PoolId;
use parkade_sim::CallName;

use super::accounts::add;
use super::{Reference, State};
use crate::backend::MadeCall;

impl Reference {
    /// Records that another stream uses an allocated block.
    pub fn record_stream(&mut self, address: u64, stream: u64) {
        if self.segment_at(address).stream == stream {
            return;
        }
        let is_forgotten = self.is_deferring() && self.rules.forgets_captured_uses;
        let hash = self.hash_of_stream(stream);
        let block = self.block_mut(address);
        block.uses.insert(hash, stream);
        if is_forgotten {
            block.captured.insert(stream);
        }
    }

    /// Frees an allocated block (spec 3.3).
    pub fn free(&mut self, address: u64) -> Result<(), BackendError> {
        let segment = self.segment_at(address);
        let (class, stream, pool) = (segment.class, segment.stream, segment.pool);
        let block = self.block_mut(address);
        block.state = State::Pending;
        let (size, requested, is_used) = (block.size, block.requested, !block.uses.is_empty());
        self.accounts.change(Family::Allocation, class, -1);
        self.accounts.change(Family::AllocatedBytes, class, -(size as i64));
        self.tell(TraceAction::FreeRequested, address, requested, stream, pool);
        if self.is_oversize(size) {
            add(&mut self.accounts.oversize_allocations, -1);
        }
        if !is_used {
            self.free_block(address);
            return Ok(());
        }
        if self.is_deferring() {
            self.deferred.push_back(address);
            return Ok(());
        }
        self.block_mut(address).captured.clear();
        self.record_events(address).inspect_err(|_| self.deferred.push_back(address))
    }

    /// Makes a block free (spec 3.4).
    fn free_block(&mut self, address: u64) {
        let segment = self.segment_at(address);
        let (class, stream, pool, is_expandable) = (segment.class, segment.stream, segment.pool, segment.is_expandable());
        let (size, requested) = (self.block(address).size, self.block(address).requested);
        self.tell(TraceAction::FreeCompleted, address, requested, stream, pool);
        let (start, absorbed) = self.put_back(address);
        if !is_expandable {
            let (segment, whole) = (self.segment_at(start), self.block(start).size as i64);
            let (more, bytes) = if segment.blocks.len() > 1 { (1, whole) } else { (0, 0) };
            self.accounts.change(Family::InactiveSplit, class, more - absorbed.blocks);
            self.accounts.change(Family::InactiveSplitBytes, class, bytes - absorbed.bytes);
        }
        self.accounts.change(Family::Active, class, -1);
        self.accounts.change(Family::ActiveBytes, class, -(size as i64));
        self.accounts.change(Family::RequestedBytes, class, -(requested as i64));
    }

    /// Returns a stream's hash: the device type (CUDA) and the device, followed by the last 48 bits
    /// of the stream's handle.
    fn hash_of_stream(&self, stream: u64) -> u64 {
        (256 + u64::from(self.device)) * (1 << 48) + stream % (1 << 48)
    }

    /// Records an event on each stream that uses the block (spec 3.5).
    fn record_events(&mut self, address: u64) -> Result<(), BackendError> {
        while let Some(stream) = self.block(address).uses.first() {
            let event = match self.spare_events.pop() {
                Some(event) => event,
                None => self.call(MadeCall::to(CallName::EventCreate))?,
            };
            if let Err(error) = self.call(MadeCall::to(CallName::EventRecord).on(stream).with(event)) {
                self.spare_events.push(event);
                return Err(error);
            }
            self.block_mut(address).uses.remove(stream);
            self.waited_for.insert(self.hash_of_stream(stream), stream);
            self.queues.entry(stream).or_default().push_back((event, address));
        }
        Ok(())
    }

    /// Records the deferred events. Uses recorded during the capture are forgotten (spec 3.8).
    pub(super) fn flush_deferred(&mut self) -> Result<(), BackendError> {
        while let Some(&address) = self.deferred.front() {
            self.settle(address)?;
            self.deferred.pop_front();
            self.free_if_settled(address);
        }
        Ok(())
    }

    /// Does the same for the blocks of one pool, even if some fail: the failed ones are deferred to the next time,
    /// after the others.
    pub(super) fn flush_deferred_of(&mut self, pool: PoolId) {
        let (own, others): (Vec<u64>, Vec<u64>) =
            self.deferred.iter().partition(|&&address| self.segment_at(address).pool == pool);
        self.deferred = others.into();
        for address in own {
            match self.settle(address) {
                Ok(()) => self.free_if_settled(address),
                Err(_) => self.deferred.push_back(address),
            }
        }
    }

    /// Records the events of a deferred block, except those of forgotten uses.
    fn settle(&mut self, address: u64) -> Result<(), BackendError> {
        let captured = std::mem::take(&mut self.block_mut(address).captured);
        if !captured.is_empty() {
            let uses = std::mem::take(&mut self.block_mut(address).uses);
            for stream in uses.keys().into_iter().filter(|stream| !captured.contains(stream)) {
                let hash = self.hash_of_stream(stream);
                self.block_mut(address).uses.insert(hash, stream);
            }
        }
        self.record_events(address)
    }

    fn free_if_settled(&mut self, address: u64) {
        if !self.is_waiting(address) {
            self.free_block(address);
        }
    }

    /// Returns whether a block is waiting for an event.
    pub(super) fn is_waiting(&self, address: u64) -> bool {
        self.queues.values().flatten().any(|&(_, block)| block == address)
    }

    /// Removes an event from its queue; its block becomes free if it is not waiting for another
    /// event.
    fn complete(&mut self, stream: u64, place: usize) {
        let Some((event, address)) = self.queues.get_mut(&stream).and_then(|queue| queue.remove(place)) else { return };
        if self.queues.get(&stream).is_some_and(VecDeque::is_empty) {
            self.queues.remove(&stream);
            self.waited_for.remove(stream);
        }
        self.spare_events.push(event);
        if !self.is_waiting(address) && self.block(address).uses.is_empty() {
            self.free_block(address);
        }
    }

    /// Frees blocks whose events are complete, without waiting (spec 3.6).
    pub fn process_events(&mut self) -> Result<(), BackendError> {
        if self.is_deferring() {
            return Ok(());
        }
        self.flush_deferred()?;
        for stream in self.waited_for.keys() {
            while let Some(&(event, _)) = self.queues.get(&stream).and_then(|queue| queue.front()) {
                if self.call(MadeCall::to(CallName::EventQuery).with(event))? == 0 {
                    break;
                }
                self.complete(stream, 0);
            }
        }
        Ok(())
    }

    /// Waits for all events (spec 3.7).
    pub(super) fn synchronize(&mut self) -> Result<(), BackendError> {
        self.accounts.waits += 1;
        self.flush_deferred()?;
        while let Some(stream) = self.waited_for.first() {
            let event = self.queues[&stream][0].0;
            self.call(MadeCall::to(CallName::EventSynchronize).with(event))?;
            self.complete(stream, 0);
        }
        Ok(())
    }

    /// Waits for the events of one pool's blocks.
    pub(super) fn synchronize_pool(&mut self, pool: PoolId) -> Result<(), BackendError> {
        self.accounts.waits += 1;
        self.flush_deferred()?;
        loop {
            let of_pool = |&&(_, block): &&(u64, u64)| self.segment_at(block).pool == pool;
            let first = self.waited_for.keys().into_iter().find_map(|stream| {
                let queue = &self.queues[&stream];
                let place = queue.iter().position(|entry| of_pool(&entry))?;
                Some((stream, place, queue[place].0))
            });
            let Some((stream, place, event)) = first else { return Ok(()) };
            self.call(MadeCall::to(CallName::EventSynchronize).with(event))?;
            self.complete(stream, place);
        }
    }
}
