//! What a device holds.

use parkade::units::Bytes;

/// How much a device holds. All fields are zero at the end of a program without leaks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Holdings {
    /// Ranges of [`malloc`](parkade::device::DeviceBackend::malloc).
    pub ranges: usize,
    /// Reserved address ranges.
    pub reservations: usize,
    /// Total size of the reserved address ranges.
    pub reserved_bytes: Bytes,
    /// Pieces of memory that were created and not released, mapped or not. Without those of the host's memory that the device keeps
    /// for [`break_handle`](parkade::device::DeviceBackend::break_handle).
    pub handles: usize,
    /// Mappings; memory mapped twice counts twice. Released memory lives as long as its mappings.
    pub mappings: usize,
    /// Events that were created and not destroyed.
    pub events: usize,
    /// Streams that were created and not destroyed, without the default stream.
    pub streams: usize,
}
