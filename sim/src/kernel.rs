//! What a program puts on the device, as plain data: kernels, what they touch, and why they cannot.

use std::borrow::Cow;
use std::fmt;

use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::memory::ByteRange;

/// Whether work reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AccessKind {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// Bytes that work on the device touches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// Where they begin.
    pub address: DeviceAddress,
    /// How many. None is no access, wherever it is.
    pub size: Bytes,
    /// Whether they are read or written. Who does both says both.
    pub kind: AccessKind,
}

impl Access {
    /// A reading access.
    #[must_use]
    pub fn read(address: DeviceAddress, size: Bytes) -> Self {
        Access { address, size, kind: AccessKind::Read }
    }

    /// A writing access.
    #[must_use]
    pub fn write(address: DeviceAddress, size: Bytes) -> Self {
        Access { address, size, kind: AccessKind::Write }
    }
}

/// Work on the device: how long it takes and what it touches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// The stream at whose end it is put.
    pub stream: StreamId,
    /// How long it runs, in nanoseconds.
    pub duration_ns: u64,
    /// What reports call it.
    pub label: Cow<'static, str>,
    /// What it touches, at any time while it runs.
    pub accesses: Vec<Access>,
}

/// An access and the physical bytes behind it.
pub(crate) struct PhysicalAccess {
    pub(crate) access: Access,
    pub(crate) ranges: Vec<ByteRange>,
}

/// Why a program cannot touch an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// There is no memory behind it.
    NotMapped,
    /// There is, but no cuMemSetAccess said that the device may touch it.
    NoAccess,
    /// The address or the size is not a multiple of 4 bytes, in a call that writes words.
    NotWords,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessError::NotMapped => "no memory is mapped at the address",
            AccessError::NoAccess => "the device has no access to what is mapped at the address",
            AccessError::NotWords => "address and size must be multiples of 4 bytes",
        })
    }
}

impl std::error::Error for AccessError {}
