//! The allocator as C programs use it: a block is identified by the address of its first byte.
//!
//! The core identifies blocks by handles that cannot be copied, so that no block is freed twice. This module keeps the
//! handles in a table by address. A free and each recorded stream need one lookup.

use std::sync::{Arc, PoisonError};

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
use crate::sync::Mutex;

/// An allocator whose blocks are identified by their addresses.
pub struct ByAddress<D: DeviceBackend, P: Policy, O: Observer = ()> {
    allocator: Allocator<D, P, O>,
    blocks: Blocks,
}

/// The table, wherever it is.
#[derive(Default)]
struct Blocks {
    /// The table while there are no callbacks; afterwards it stays empty.
    own: Table,
    /// The table if there are callbacks. They belong to the allocator and can run in any of its requests, so each has
    /// a reference to the table. Whoever holds the lock calls nothing that could run a callback.
    shared: Option<Arc<Mutex<Table>>>,
}

/// The blocks that were handed out by address.
#[derive(Default)]
struct Table {
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
        ByAddress { allocator, blocks: Blocks::default() }
    }

    /// Registers a callback that may free blocks when no free block serves a request, as
    /// [`Allocator::register_free_memory_callback`] does. The callback frees blocks by address, also if the request is
    /// made through [`ByAddress::allocator_mut`].
    pub fn register_free_memory_callback(&mut self, mut callback: impl FnMut(&mut Inside<'_, D, P, O>) -> bool + Send + 'static) {
        let table = self.blocks.share();
        self.allocator
            .register_free_memory_callback(Box::new(move |allocator| callback(&mut Inside { allocator, table: &table })));
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

    /// Allocates, and holds the block by its address.
    #[inline(always)]
    fn allocate_by(
        &mut self,
        allocate: impl FnOnce(&mut Allocator<D, P, O>, Bytes, StreamId) -> Result<Allocation, AllocError>,
        requested: Bytes,
        stream: StreamId,
    ) -> Result<DeviceAddress, Box<AllocError>> {
        let allocation = allocate(&mut self.allocator, requested, stream)?;
        Ok(self.hold(allocation))
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
        // The test is here, not only in `take`, so that without callbacks the handle stays in registers.
        if self.blocks.shared.is_some() {
            return self.free_shared(address);
        }
        let taken = self.blocks.own.take(address);
        self.free_taken(taken, address)
    }

    #[cold]
    #[inline(never)]
    fn free_shared(&mut self, address: DeviceAddress) -> Result<(), Box<Error>> {
        let taken = self.blocks.take(address);
        self.free_taken(taken, address)
    }

    /// Frees the block whose handle was taken out of the table.
    #[inline(always)]
    fn free_taken(&mut self, taken: Option<Allocation>, address: DeviceAddress) -> Result<(), Box<Error>> {
        let Some(allocation) = taken else { return Err(self.problem(address).into()) };
        match self.allocator.free(allocation) {
            Ok(()) => Ok(()),
            Err(FreeError::NotAllocated(_)) => Err(self.problem(address).into()),
            Err(FreeError::Device(error)) => Err(Box::new(Error::Pending(error))),
        }
    }

    /// Records that work on `stream` uses the block: [`Allocator::record_stream`].
    ///
    /// # Errors
    /// No block that was handed out by address begins there.
    pub fn record_stream(&mut self, address: DeviceAddress, stream: StreamId) -> Result<(), AddressError> {
        let allocator = &mut self.allocator;
        let recorded = self.blocks.find(address, |held| {
            let is_allocated = allocator.is_allocated(held);
            if is_allocated {
                allocator.record_stream(held, stream);
            }
            is_allocated
        });
        if recorded == Some(true) { Ok(()) } else { Err(self.problem(address)) }
    }

    /// Returns the block that was handed out by address and begins there, from
    /// [`Allocator::block_of`].
    ///
    /// # Errors
    /// No block that was handed out by address begins there.
    pub fn block(&self, address: DeviceAddress) -> Result<PlacedBlock, AddressError> {
        let block = self.blocks.find(address, |held| self.allocator.block_of(held)).flatten();
        block.ok_or_else(|| self.problem(address))
    }

    /// Identifies the block by its address from now on, and returns the address.
    #[inline]
    pub fn hold(&mut self, allocation: Allocation) -> DeviceAddress {
        let address = allocation.address();
        let allocator = &self.allocator;
        self.blocks.insert(allocation, |held| allocator.is_allocated(held));
        address
    }

    /// Identifies the block by its handle from now on, and returns the handle.
    ///
    /// # Errors
    /// No block that was handed out by address begins there.
    #[inline]
    pub fn release(&mut self, address: DeviceAddress) -> Result<Allocation, AddressError> {
        self.blocks.take(address).ok_or_else(|| self.problem(address))
    }

    /// Restores a private pool: [`Allocator::restore_pool`]. The restored blocks are identified by their addresses.
    ///
    /// # Errors
    /// Those of [`Allocator::restore_pool`].
    pub fn restore_pool(&mut self, checkpoint: &PoolCheckpoint) -> Result<RestoredPool, CheckpointError> {
        let restored = self.allocator.restore_pool(checkpoint)?;
        for &address in &restored.freed {
            // The table does not contain blocks that were allocated by handle.
            let _: Option<Allocation> = self.blocks.take(address);
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

impl Blocks {
    /// Returns the table for a callback.
    fn share(&mut self) -> Arc<Mutex<Table>> {
        let own = &mut self.own;
        Arc::clone(self.shared.get_or_insert_with(|| Arc::new(Mutex::new(std::mem::take(own)))))
    }

    /// See [`Table::find`].
    fn find<R>(&self, address: DeviceAddress, read: impl FnOnce(&Allocation) -> R) -> Option<R> {
        match &self.shared {
            None => self.own.find(address).map(read),
            Some(shared) => in_shared(shared, |table| table.find(address).map(read)),
        }
    }

    /// See [`Table::insert`].
    #[inline(always)]
    fn insert(&mut self, allocation: Allocation, is_allocated: impl Fn(&Allocation) -> bool) {
        match &self.shared {
            None => self.own.insert(allocation, is_allocated),
            Some(shared) => in_shared(shared, |table| table.insert(allocation, is_allocated)),
        }
    }

    /// See [`Table::take`].
    #[inline(always)]
    fn take(&mut self, address: DeviceAddress) -> Option<Allocation> {
        match &self.shared {
            None => self.own.take(address),
            Some(shared) => in_shared(shared, |table| table.take(address)),
        }
    }
}

/// Works on the table that callbacks have too. A panic of the program leaves the table whole, because the table's user
/// calls no code of the program meanwhile. It is a separate function so that requests without callbacks cost no more.
#[cold]
#[inline(never)]
fn in_shared<R>(shared: &Mutex<Table>, work: impl FnOnce(&mut Table) -> R) -> R {
    work(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Table {
    /// Returns the handle of the block that begins there. The handle is invalid after a restore that failed or was not
    /// made through this type.
    fn find(&self, address: DeviceAddress) -> Option<&Allocation> {
        let newest = self.newest.as_ref().filter(|newest| newest.address() == address);
        newest.or_else(|| self.others.find(hash(address), |held| held.address() == address))
    }

    /// Puts a handle into the table.
    #[inline(always)]
    fn insert(&mut self, allocation: Allocation, is_allocated: impl Fn(&Allocation) -> bool) {
        if let Some(older) = self.newest.replace(allocation) {
            let at = older.address();
            match self.others.entry(hash(at), |held| held.address() == at, |held| hash(held.address())) {
                // One of the two blocks became invalid when a pool was restored, or belongs to a different allocator.
                Entry::Occupied(mut entry) => {
                    if !is_allocated(entry.get()) {
                        *entry.get_mut() = older;
                    }
                }
                Entry::Vacant(entry) => {
                    entry.insert(older);
                }
            }
        }
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
    table: &'a Mutex<Table>,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Inside<'_, D, P, O> {
    /// Frees a block, like [`ByAddress::free`].
    ///
    /// # Errors
    /// [`Error::Address`] if no block that was handed out by address begins there; [`Error::Pending`].
    pub fn free(&mut self, address: DeviceAddress) -> Result<(), Error> {
        let unknown = Error::Address(AddressError::NotAllocated { address });
        let Some(allocation) = in_shared(self.table, |table| table.take(address)) else { return Err(unknown) };
        match self.allocator.free(allocation) {
            Ok(()) => Ok(()),
            Err(FreeError::NotAllocated(_)) => Err(unknown),
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
