//! Kernels as plain data: how long they take, what they touch, and why an access may be illegal.

use std::borrow::Cow;
use std::fmt;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::memory::ByteRange;

/// Whether an access reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AccessKind {
    /// The access reads.
    Read,
    /// The access writes.
    Write,
}

/// Bytes that work on the device reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The address of the first byte.
    pub address: DeviceAddress,
    /// The number of bytes. An access of zero bytes is legal at any address and touches nothing.
    pub size: Bytes,
    /// Whether the bytes are read or written. Work that does both declares two accesses.
    pub kind: AccessKind,
}

impl Access {
    /// Creates a read.
    #[must_use]
    pub fn read(address: DeviceAddress, size: Bytes) -> Self {
        Access { address, size, kind: AccessKind::Read }
    }

    /// Creates a write.
    #[must_use]
    pub fn write(address: DeviceAddress, size: Bytes) -> Self {
        Access { address, size, kind: AccessKind::Write }
    }
}

/// Work on the device: how long it takes and what it touches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// The stream on which it is queued.
    pub stream: StreamId,
    /// How long it runs, in nanoseconds.
    pub duration_ns: u64,
    /// Its name in race reports.
    pub label: Cow<'static, str>,
    /// The bytes that it touches while it runs.
    pub accesses: Vec<Access>,
}

/// An access and the physical bytes behind it.
pub(crate) struct PhysicalAccess {
    pub(crate) access: Access,
    pub(crate) ranges: Vec<ByteRange>,
}

/// The reason why work on the device cannot touch an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// No memory is mapped there.
    NotMapped,
    /// Memory is mapped there, but cuMemSetAccess has not granted the device access.
    NoAccess,
    /// The address or size is not a multiple of 4 bytes in a call that writes 32-bit words.
    NotWords,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessError::NotMapped => "no memory is mapped at the address",
            AccessError::NoAccess => "the device has no access to what is mapped at the address",
            AccessError::NotWords => "the address and the size must be multiples of 4 bytes",
        })
    }
}

impl std::error::Error for AccessError {}
