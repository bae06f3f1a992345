//! The allocator as C programs use it: a block is identified by the address of its first byte.
//!
//! The core identifies blocks by handles that cannot be copied, so that no block is freed twice. This module keeps the
//! handles in a table by address. A free and each recorded stream need one lookup.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parkade::checkpoint::{CheckpointError, PoolCheckpoint};
use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::snapshot::{BlockActivity, PlacedBlock};
use parkade::trace::Observer;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{AllocError, Allocation, Allocator, FreeError};

use crate::error::{AddressError, Error};

/// An allocator whose blocks are identified by their addresses.
pub struct ByAddress<D: DeviceBackend, P: Policy, O: Observer = ()> {
    allocator: Allocator<D, P, O>,
    table: Table,
    /// Holds the table while a request is served, so that callbacks can free memory; `None` if there are no
    /// callbacks.
    lent: Option<Arc<Mutex<Table>>>,
}

/// The blocks that were handed out by address.
#[derive(Default)]
pub(crate) struct Table {
    /// The block that was handed out last, while it is allocated, because many blocks are freed before the next
    /// allocation.
    newest: Option<Allocation>,
    others: HashTable<Allocation>,
}

/// The outcome of a restore, by address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RestoredPool {
    /// The pool's blocks that the restore took back, in order.
    pub freed: Vec<DeviceAddress>,
    /// The blocks that were allocated when the checkpoint was made, segment by segment, by address within each
    /// segment.
    pub allocated: Vec<DeviceAddress>,
}

/// Spreads addresses over the table. The low bits of an address are 0, and therefore those of the product are too; the
/// upper bits of the product depend on all bits of the address. The table takes a position from the low bits of the
/// hash and a tag from the highest seven.
#[inline]
fn hash(address: DeviceAddress) -> u64 {
    address.get().wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26)
}

impl<D: DeviceBackend, P: Policy, O: Observer> ByAddress<D, P, O> {
    /// Wraps an allocator. Blocks that it has already handed out keep their handles.
    pub fn new(allocator: Allocator<D, P, O>) -> ByAddress<D, P, O> {
        ByAddress { allocator, table: Table::default(), lent: None }
    }

    /// Registers a callback that may free blocks when no free block serves a request, as
    /// [`Allocator::register_free_memory_callback`] does. The callback frees blocks by address.
    pub fn register_free_memory_callback(&mut self, mut callback: impl FnMut(&mut Inside<'_, D, P, O>) -> bool + Send + 'static) {
        let lent = Arc::clone(self.lent.get_or_insert_default());
        self.allocator.register_free_memory_callback(Box::new(move |allocator| {
            let mut table = lent.lock().unwrap_or_else(PoisonError::into_inner);
            callback(&mut Inside { allocator, table: &mut table })
        }));
    }

    /// Like [`Allocator::allocate`]. Returns the address of the block's first byte.
    ///
    /// # Errors
    /// See [`AllocError`].
    #[inline]
    pub fn allocate(&mut self, requested: Bytes, stream: StreamId) -> Result<DeviceAddress, AllocError> {
        self.allocate_boxed(requested, stream).map_err(|error| *error)
    }

    /// Like [`ByAddress::allocate`], but the result fits in registers, so a lock can return it without storing it in
    /// memory.
    #[inline]
    pub(crate) fn allocate_boxed(&mut self, requested: Bytes, stream: StreamId) -> Result<DeviceAddress, Box<AllocError>> {
        self.allocate_by(Allocator::allocate, requested, stream)
    }

    /// Like [`Allocator::raw_allocate`]. Returns the address of the block's first byte.
    ///
    /// # Errors
    /// See [`AllocError`].
    #[inline]
    pub fn raw_allocate(&mut self, requested: Bytes, stream: StreamId) -> Result<DeviceAddress, AllocError> {
        self.raw_allocate_boxed(requested, stream).map_err(|error| *error)
    }

    /// See [`ByAddress::allocate_boxed`].
    #[inline]
    pub(crate) fn raw_allocate_boxed(&mut self, requested: Bytes, stream: StreamId) -> Result<DeviceAddress, Box<AllocError>> {
        self.allocate_by(Allocator::raw_allocate, requested, stream)
    }

    /// Like [`Allocator::allocate_at`]. Returns the address if a free block has room there.
    ///
    /// # Errors
    /// See [`AllocError`].
    pub fn allocate_at(
        &mut self,
        requested: Bytes,
        stream: StreamId,
        address: DeviceAddress,
    ) -> Result<Option<DeviceAddress>, AllocError> {
        Ok(self.allocator.allocate_at(requested, stream, address)?.map(|allocation| self.hold(allocation)))
    }

    /// Allocates, and holds the block by its address. Meanwhile, callbacks have the table.
    #[inline(always)]
    fn allocate_by(
        &mut self,
        allocate: impl FnOnce(&mut Allocator<D, P, O>, Bytes, StreamId) -> Result<Allocation, AllocError>,
        requested: Bytes,
        stream: StreamId,
    ) -> Result<DeviceAddress, Box<AllocError>> {
        if self.lent.is_some() {
            self.lend_table();
        }
        let outcome = allocate(&mut self.allocator, requested, stream);
        if self.lent.is_some() {
            self.lend_table();
        }
        Ok(self.hold(outcome?))
    }

    /// Exchanges the table with the one that callbacks see.
    #[cold]
    #[inline(never)]
    fn lend_table(&mut self) {
        if let Some(lent) = &self.lent {
            std::mem::swap(&mut self.table, &mut lent.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Frees a block with [`Allocator::free`].
    ///
    /// # Errors
    /// [`Error::Address`] if no block that was handed out by address begins there; [`Error::Pending`].
    #[inline]
    pub fn free(&mut self, address: DeviceAddress) -> Result<(), Error> {
        self.free_boxed(address).map_err(|error| *error)
    }

    /// See [`ByAddress::allocate_boxed`].
    #[inline]
    pub(crate) fn free_boxed(&mut self, address: DeviceAddress) -> Result<(), Box<Error>> {
        let Some(allocation) = self.table.take(address) else { return Err(self.problem(address).into()) };
        match self.allocator.free(allocation) {
            Ok(()) => Ok(()),
            Err(FreeError::NotAllocated) => Err(self.problem(address).into()),
            Err(FreeError::Device(error)) => Err(Box::new(Error::Pending(error))),
        }
    }

    /// Records that work on `stream` uses the block: [`Allocator::record_stream`].
    ///
    /// # Errors
    /// No block that was handed out by address begins there.
    pub fn record_stream(&mut self, address: DeviceAddress, stream: StreamId) -> Result<(), AddressError> {
        match self.table.find(address).filter(|held| self.allocator.is_allocated(held)) {
            Some(held) => {
                self.allocator.record_stream(held, stream);
                Ok(())
            }
            None => Err(self.problem(address)),
        }
    }

    /// Returns the block that was handed out by address and begins there, from
    /// [`Allocator::block_of`].
    ///
    /// # Errors
    /// No block that was handed out by address begins there.
    pub fn block(&self, address: DeviceAddress) -> Result<PlacedBlock, AddressError> {
        let block = self.table.find(address).and_then(|held| self.allocator.block_of(held));
        block.ok_or_else(|| self.problem(address))
    }

    /// Identifies the block by its address from now on, and returns the address.
    #[inline]
    pub fn hold(&mut self, allocation: Allocation) -> DeviceAddress {
        let address = allocation.address();
        if let Some(older) = self.table.newest.replace(allocation) {
            let at = older.address();
            match self.table.others.entry(hash(at), |held| held.address() == at, |held| hash(held.address())) {
                // One of the two blocks became invalid when a pool was restored, or belongs to a different allocator.
                Entry::Occupied(mut entry) => {
                    if !self.allocator.is_allocated(entry.get()) {
                        *entry.get_mut() = older;
                    }
                }
                Entry::Vacant(entry) => {
                    entry.insert(older);
                }
            }
        }
        address
    }

    /// Identifies the block by its handle from now on, and returns the handle.
    ///
    /// # Errors
    /// No block that was handed out by address begins there.
    #[inline]
    pub fn release(&mut self, address: DeviceAddress) -> Result<Allocation, AddressError> {
        self.table.take(address).ok_or_else(|| self.problem(address))
    }

    /// Restores a private pool: [`Allocator::restore_pool`]. The restored blocks are identified by their addresses.
    ///
    /// # Errors
    /// Those of [`Allocator::restore_pool`].
    pub fn restore_pool(&mut self, checkpoint: &PoolCheckpoint) -> Result<RestoredPool, CheckpointError> {
        let restored = self.allocator.restore_pool(checkpoint)?;
        for &address in &restored.freed {
            // The table does not contain blocks that were allocated by handle.
            let _: Option<Allocation> = self.table.take(address);
        }
        let allocated = restored.allocations.into_iter().map(|allocation| self.hold(allocation)).collect();
        Ok(RestoredPool { freed: restored.freed, allocated })
    }

    /// Returns the allocator.
    #[must_use]
    pub fn allocator(&self) -> &Allocator<D, P, O> {
        &self.allocator
    }

    /// Returns the allocator for calls that do not identify a block by its address. A block that is allocated through
    /// it has a handle until it is passed to [`ByAddress::hold`].
    #[must_use]
    pub fn allocator_mut(&mut self) -> &mut Allocator<D, P, O> {
        &mut self.allocator
    }
}

impl Table {
    /// Returns the handle of the block that begins there. The handle is invalid after a restore that failed or was not
    /// made through this type.
    fn find(&self, address: DeviceAddress) -> Option<&Allocation> {
        let newest = self.newest.as_ref().filter(|newest| newest.address() == address);
        newest.or_else(|| self.others.find(hash(address), |held| held.address() == address))
    }

    /// Takes a handle out of the table.
    #[inline]
    fn take(&mut self, address: DeviceAddress) -> Option<Allocation> {
        if let Some(newest) = self.newest.take_if(|newest| newest.address() == address) {
            return Some(newest);
        }
        let entry = self.others.find_entry(hash(address), |held| held.address() == address).ok()?;
        Some(entry.remove().0)
    }
}

/// The allocator as a callback sees it while a request waits for memory.
pub struct Inside<'a, D: DeviceBackend, P: Policy, O: Observer> {
    allocator: &'a mut Allocator<D, P, O>,
    table: &'a mut Table,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Inside<'_, D, P, O> {
    /// Frees a block, like [`ByAddress::free`].
    ///
    /// # Errors
    /// [`Error::Address`] if no block that was handed out by address begins there; [`Error::Pending`].
    pub fn free(&mut self, address: DeviceAddress) -> Result<(), Error> {
        let unknown = Error::Address(AddressError::NotAllocated { address });
        let Some(allocation) = self.table.take(address) else { return Err(unknown) };
        match self.allocator.free(allocation) {
            Ok(()) => Ok(()),
            Err(FreeError::NotAllocated) => Err(unknown),
            Err(FreeError::Device(error)) => Err(Error::Pending(error)),
        }
    }

    /// Returns the allocator.
    pub fn allocator_mut(&mut self) -> &mut Allocator<D, P, O> {
        self.allocator
    }
}

impl<D: DeviceBackend, P: Policy, O: Observer> ByAddress<D, P, O> {
    /// Returns what is wrong with an address that is not in the table.
    #[cold]
    #[inline(never)]
    fn problem(&self, address: DeviceAddress) -> AddressError {
        let holds = |start: DeviceAddress, size: Bytes| address.get().checked_sub(start.get()).is_some_and(|at| at < size.get());
        let segments = self.allocator.segments();
        let Some(segment) = segments.iter().find(|segment| holds(segment.address, segment.total)) else {
            return AddressError::Foreign { address };
        };
        match segment.blocks.iter().find(|block| holds(block.address, block.size)) {
            Some(block) if block.state != BlockActivity::Allocated => AddressError::NotAllocated { address },
            Some(block) if block.address != address => AddressError::Inside { address, block: block.address, size: block.size },
            Some(_) => AddressError::HeldByHandle { address },
            None => AddressError::Foreign { address },
        }
    }
}
