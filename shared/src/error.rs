//! The reason why a request failed.

use std::fmt;

use parkade::AllocError;
use parkade::device::BackendError;
use parkade::units::{Bytes, DeviceAddress};

/// The reason why a request failed. Each method documents which of these errors it returns.
#[derive(Clone, PartialEq, Debug)]
pub enum Error {
    /// The allocator refused the request.
    Refused(AllocError),
    /// No allocated block has this address. Nothing has changed.
    Address(AddressError),
    /// The block was freed, but an event could not be recorded. The block stays pending, and the next request tries
    /// again.
    Pending(BackendError),
    /// A thread panicked during a request, so the allocator's state may be wrong. All further requests fail.
    Poisoned,
    /// The thread is already inside a request: the call was made from a callback, an observer, a device or
    /// [`Shared::with`](crate::Shared::with), and would wait for itself.
    Reentered,
}

/// The reason why an address is not that of an allocated block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressError {
    /// The address is in no segment of the allocator.
    Foreign {
        /// The address.
        address: DeviceAddress,
    },
    /// The address is inside an allocated block, but not at its first byte.
    Inside {
        /// The address.
        address: DeviceAddress,
        /// The first byte of the block.
        block: DeviceAddress,
        /// The block's size.
        size: Bytes,
    },
    /// The address is in memory that is not currently allocated: it was freed before, or has never been handed out.
    NotAllocated {
        /// The address.
        address: DeviceAddress,
    },
    /// An allocated block begins there, but the program that allocated it holds its handle.
    HeldByHandle {
        /// The address.
        address: DeviceAddress,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(error) => error.fmt(f),
            Error::Address(error) => error.fmt(f),
            Error::Pending(error) => write!(f, "the block stays pending: {error}"),
            Error::Poisoned => f.write_str(
                "a thread panicked during a request, so the allocator's state may be wrong: drop the allocator and create a \
                 new one",
            ),
            Error::Reentered => f.write_str(
                "the thread is already inside a request and would wait for itself: use the allocator that is passed to the \
                 callback or closure",
            ),
        }
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressError::Foreign { address } => {
                write!(f, "{address} is not in this allocator's memory: free it where it was allocated")
            }
            AddressError::Inside { address, block, size } => {
                write!(f, "{address} is inside the block of {size} bytes at {block}: a block is identified by its first byte")
            }
            AddressError::NotAllocated { address } => {
                write!(f, "no allocated block begins at {address}: it was freed before, or has never been handed out")
            }
            AddressError::HeldByHandle { address } => {
                write!(f, "the block at {address} was allocated by handle, and only the handle can free it")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Refused(error) => Some(error),
            Error::Address(error) => Some(error),
            Error::Pending(error) => Some(error),
            Error::Poisoned | Error::Reentered => None,
        }
    }
}

impl std::error::Error for AddressError {}

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Error {
        Error::Refused(error)
    }
}

impl From<AddressError> for Box<Error> {
    fn from(error: AddressError) -> Box<Error> {
        Box::new(error.into())
    }
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Error {
        Error::Address(error)
    }
}
