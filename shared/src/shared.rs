//! One allocator for several threads.

use parkade::Allocator;
use parkade::device::DeviceBackend;
use parkade::policy::Policy;
use parkade::trace::Observer;
use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::by_address::ByAddress;
use crate::error::Error;
use crate::lock::{Lock, Refusal};

/// An allocator that several threads use at the same time. Each block is identified by the address of its first byte.
///
/// Every call takes one lock. The decisions are the same as if a single thread made the calls in the order in which
/// they took the lock, and each call takes effect between its beginning and its end.
///
/// Callbacks, observers, devices and closures given to [`Shared::with`] run under the lock: from there, calls on the
/// same allocator return [`Error::Reentered`].
pub struct Shared<D: DeviceBackend, P: Policy, O: Observer = ()> {
    core: Lock<ByAddress<D, P, O>>,
}

impl<D: DeviceBackend, P: Policy, O: Observer> Shared<D, P, O> {
    /// Wraps an allocator for several threads. Blocks that it has already handed out keep their handles.
    pub fn new(allocator: Allocator<D, P, O>) -> Shared<D, P, O> {
        Shared { core: Lock::new(ByAddress::new(allocator)) }
    }

    /// Like [`Allocator::allocate`]. Returns the address of the block's first byte.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Poisoned`], [`Error::Reentered`].
    #[inline]
    pub fn allocate(&self, requested: Bytes, stream: StreamId) -> Result<DeviceAddress, Error> {
        self.core.hold(|core| core.allocate_boxed(requested, stream))?.map_err(|error| Error::Refused(*error))
    }

    /// Like [`Allocator::raw_allocate`]. Returns the address of the block's first byte.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Poisoned`], [`Error::Reentered`].
    #[inline]
    pub fn raw_allocate(&self, requested: Bytes, stream: StreamId) -> Result<DeviceAddress, Error> {
        self.core.hold(|core| core.raw_allocate_boxed(requested, stream))?.map_err(|error| Error::Refused(*error))
    }

    /// Frees a block with [`Allocator::free`]. Any thread may free it.
    ///
    /// # Errors
    /// [`Error::Address`] if no block that was handed out by address begins there; [`Error::Pending`],
    /// [`Error::Poisoned`], [`Error::Reentered`].
    #[inline]
    pub fn free(&self, address: DeviceAddress) -> Result<(), Error> {
        self.core.hold(|core| core.free_boxed(address))?.map_err(|error| *error)
    }

    /// Records that work on `stream` uses the block: [`Allocator::record_stream`].
    ///
    /// # Errors
    /// [`Error::Address`] if no block that was handed out by address begins there; [`Error::Poisoned`],
    /// [`Error::Reentered`].
    pub fn record_stream(&self, address: DeviceAddress, stream: StreamId) -> Result<(), Error> {
        self.core.hold(|core| core.record_stream(address, stream))?.map_err(Error::Address)
    }

    /// Passes the allocator to `work` under the lock, for statistics, snapshots, settings, or several calls as one.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Reentered`].
    pub fn with<R>(&self, work: impl FnOnce(&mut ByAddress<D, P, O>) -> R) -> Result<R, Error> {
        Ok(self.core.hold(work)?)
    }

    /// Returns the allocator by address, for one thread.
    ///
    /// # Errors
    /// [`Error::Poisoned`]; the allocator is dropped in that case.
    pub fn into_inner(self) -> Result<ByAddress<D, P, O>, Error> {
        Ok(self.core.into_inner()?)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::Poisoned => Error::Poisoned,
            Refusal::Reentered => Error::Reentered,
        }
    }
}
