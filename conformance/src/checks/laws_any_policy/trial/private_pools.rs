//! Private pools and their checkpoints under any policy. A checkpoint contains what was handed out, a restore brings
//! back what was saved, and a refusal is justified and changes nothing.

use parkade::checkpoint::{CheckpointError, SavedState};
use parkade::device::BackendError;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{Allocation, FreeError, PoolCheckpoint};

use super::{Live, Outcome, Trial};
use crate::backend::Witness;
use crate::checks::laws_any_policy::programs::PoolStep;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::id;

/// The address, size and stream of each allocation in a checkpoint, in the checkpoint's order.
fn saved_allocations(checkpoint: &PoolCheckpoint) -> Vec<(DeviceAddress, Bytes, StreamId)> {
    let mut found = Vec::new();
    for segment in &checkpoint.segments {
        let mut address = segment.address;
        for block in &segment.blocks {
            if block.state == SavedState::Allocated {
                found.push((address, block.size, segment.stream));
            }
            address = address.offset(block.size);
        }
    }
    found
}

fn failed(error: CheckpointError) -> Option<BackendError> {
    if let CheckpointError::Device(error) = error { Some(error) } else { None }
}

impl Trial {
    pub(super) fn pool(&mut self, step: PoolStep) -> Result<Outcome, Broken> {
        let Trial { routing, core, .. } = self;
        match step {
            PoolStep::Create(pool) => routing.create(core, pool)?,
            PoolStep::Begin(pool, stream) => routing.begin(core, pool, stream.map(|place| self.streams[place]))?,
            PoolStep::End(pool) => {
                let was_routed = routing.routed(pool);
                routing.end(core, pool)?;
                if was_routed == Some(None) {
                    routing.release(core, pool)?;
                }
            }
            PoolStep::Release(pool) => routing.release(core, pool)?,
            PoolStep::Serve(pool) => routing.serve_when_out(core, pool),
            // Not set for a pool that does not exist yet: some versions drop the setting together with the pool, others
            // never drop it.
            PoolStep::KeepWhole(pool) if core.pool_use_count(id(pool)).is_ok() => routing.keep_whole(core, pool),
            PoolStep::KeepWhole(_) => {}
            PoolStep::ReleaseCached(pool) => {
                // This waits for the pool's events even while a graph is captured; PyTorch forbids that with an assertion.
                if !core.heap().is_deferring() {
                    let answer = core.release_cached_pool(id(pool));
                    return self.outcome(answer);
                }
            }
            PoolStep::Save(pool) => return self.save(pool),
            PoolStep::Load(pool) => return self.load(pool),
        }
        self.core.set_capturing(self.routing.is_capturing());
        Ok(Outcome::Done)
    }

    /// Saves a pool. The checkpoint's allocations must be exactly those that the program holds.
    fn save(&mut self, pool: u64) -> Result<Outcome, Broken> {
        match self.core.checkpoint_pool(id(pool)) {
            Ok(checkpoint) => {
                let segments = self.core.segments();
                let ordinary = |address: DeviceAddress| {
                    let holds = |segment: &&SegmentInfo| segment.blocks.iter().any(|block| block.address == address);
                    segments.iter().find(holds).is_some_and(|segment| !segment.expandable)
                };
                // An expandable segment whose start is not mapped is left out (spec 5.7).
                let mut saved: Vec<DeviceAddress> =
                    saved_allocations(&checkpoint).into_iter().map(|(address, ..)| address).collect();
                saved.retain(|&address| ordinary(address));
                let mut held = self.addresses_of(pool);
                let is_live = self.core.pool_live_allocations_are(id(pool), &held) == Ok(true);
                ensure(Law::Pools, is_live, || format!("pool {pool} does not report {held:x?} as handed out"))?;
                held.retain(|&address| ordinary(address));
                saved.sort_unstable();
                ensure(Law::Pools, saved == held, || {
                    format!("pool {pool} was saved with {saved:x?}, but had handed out {held:x?}")
                })?;
                self.saved.insert(pool, checkpoint);
                Ok(Outcome::Done)
            }
            Err(CheckpointError::Device(error)) => Ok(Outcome::Failed(error)),
            Err(error) => {
                let is_legal = match error {
                    CheckpointError::UnknownPool(_) => self.core.pool_use_count(id(pool)).is_err(),
                    CheckpointError::EventsPending(address) => self.pending_addresses(pool).contains(&address),
                    _ => false,
                };
                ensure(Law::Pools, is_legal, || format!("pool {pool} cannot be saved: {error}"))?;
                Ok(Outcome::Refused)
            }
        }
    }

    /// Loads a pool's checkpoint.
    fn load(&mut self, pool: u64) -> Result<Outcome, Broken> {
        let Some(checkpoint) = self.saved.get(&pool).cloned() else { return Ok(Outcome::Done) };
        // The pool takes back everything it has handed out, so the program does not free it.
        let is_deferring = self.core.heap().is_deferring();
        if is_deferring && self.book.of_pool(pool).any(|which| self.book.live[which].is_captured) {
            return Ok(Outcome::Done);
        }
        let (before, stats) = (self.core.segments(), self.core.stats().clone());
        // Loading frees the allocations that the pool has handed out and records events for them, so use the witness
        // from before the load.
        let witness = self.device.witness();
        match self.core.restore_pool(&checkpoint) {
            Ok(restored) => {
                let mut freed = restored.freed;
                freed.sort_unstable();
                let held = self.addresses_of(pool);
                ensure(Law::Pools, freed == held, || format!("pool {pool} took back {freed:x?}, but had handed out {held:x?}"))?;
                self.forget_handed_out(pool, &witness)?;
                self.hold_restored(pool, &checkpoint, restored.allocations)?;
                self.core.policy_mut().used_pool(false, true);
                Ok(Outcome::Done)
            }
            Err(error) => {
                if let Some(error) = failed(error) {
                    // Everything was freed before the failure.
                    self.forget_handed_out(pool, &witness)?;
                    return Ok(Outcome::Failed(error));
                }
                let is_same = self.core.segments() == before && *self.core.stats() == stats;
                ensure(Law::Pools, is_same, || format!("loading pool {pool} failed with {error}, but the heap changed"))?;
                let policy = self.core.policy();
                let is_legal = match error {
                    CheckpointError::Parted => policy.has_transferred(),
                    CheckpointError::LostPool(_) => self.core.pool_use_count(id(pool)).is_err(),
                    CheckpointError::Abandoned(_) => self.routing.uses(pool) == 0,
                    _ => !self.fits(&before, &checkpoint),
                };
                ensure(Law::Pools, is_legal, || {
                    format!("pool {pool} cannot be loaded: {error}; the checkpoint is {checkpoint:x?}")
                })?;
                Ok(Outcome::Refused)
            }
        }
    }

    /// Whether every saved segment still exists, is ordinary, and will be free once its pool takes back its allocations.
    fn fits(&self, segments: &[SegmentInfo], checkpoint: &PoolCheckpoint) -> bool {
        checkpoint.segments.iter().all(|saved| {
            let bytes: u64 = saved.blocks.iter().map(|block| block.size.get()).sum();
            let is_same = |segment: &&SegmentInfo| {
                let same = (segment.address, segment.stream, segment.pool) == (saved.address, saved.stream, checkpoint.pool);
                same && segment.total.get() == bytes && !segment.expandable
            };
            segments.iter().find(is_same).is_some_and(|segment| {
                segment.blocks.iter().all(|block| match block.state {
                    BlockActivity::Inactive => true,
                    BlockActivity::Allocated => {
                        let live = self.book.live.iter().find(|live| live.address() == block.address);
                        live.is_some_and(|live| live.told.is_empty())
                    }
                    BlockActivity::PendingFree => false,
                })
            })
        })
    }

    /// Drops the allocations that a pool itself had taken back at the time of `witness`.
    fn forget_handed_out(&mut self, pool: u64, witness: &Witness) -> Result<(), Broken> {
        // Go from last to first, because removing one moves only those after it.
        let own: Vec<usize> = self.book.of_pool(pool).collect();
        for which in own.into_iter().rev() {
            let live = self.book.give_back(which, witness);
            let answer = self.core.free(live.allocation);
            ensure(Law::Pools, answer == Err(FreeError::NotAllocated), || {
                format!("freeing an allocation that the pool took back returned {answer:?}")
            })?;
        }
        Ok(())
    }

    /// Checks that a restored pool hands out what was saved, and that nothing else uses that
    /// memory.
    fn hold_restored(&mut self, pool: u64, checkpoint: &PoolCheckpoint, allocations: Vec<Allocation>) -> Result<(), Broken> {
        let expected = saved_allocations(checkpoint);
        let addresses: Vec<DeviceAddress> = allocations.iter().map(Allocation::address).collect();
        let same = addresses.iter().eq(expected.iter().map(|(address, ..)| address));
        ensure(Law::Pools, same, || format!("pool {pool} has handed out {addresses:x?}, but the checkpoint has {expected:x?}"))?;
        for (allocation, (_, size, stream)) in allocations.into_iter().zip(expected) {
            let live = Live::new(allocation, size.get(), stream, pool);
            self.book.add(live, size.get(), 1, &self.device.witness())?;
            self.fill(self.book.live.len() - 1, stream)?;
        }
        Ok(())
    }

    /// Returns the addresses that a pool has handed out, in order.
    fn addresses_of(&self, pool: u64) -> Vec<DeviceAddress> {
        let mut addresses: Vec<DeviceAddress> = self.book.of_pool(pool).map(|which| self.book.live[which].address()).collect();
        addresses.sort_unstable();
        addresses
    }

    fn pending_addresses(&self, pool: u64) -> Vec<DeviceAddress> {
        let segments = self.core.segments();
        let blocks = segments.iter().filter(|segment| segment.pool == id(pool)).flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == BlockActivity::PendingFree).map(|block| block.address).collect()
    }
}
