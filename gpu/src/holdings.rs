//! What a device holds that was not given back.

use parkade::units::Bytes;

/// What was taken from a device and not given back. All zero at the end of a program that leaks nothing.
///
/// Plain numbers with public fields, so that one can be made for any device and compared.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Holdings {
    /// Ranges of [`malloc`](parkade::device::DeviceBackend::malloc).
    pub ranges: usize,
    /// Reserved ranges of addresses.
    pub reservations: usize,
    /// Their bytes.
    pub reserved_bytes: Bytes,
    /// Memory that was created and not released, mapped or not.
    pub handles: usize,
    /// Mappings; one handle mapped twice counts twice. A released handle's memory lives as long as its mappings.
    pub mappings: usize,
    /// Events that were created and not destroyed.
    pub events: usize,
    /// Streams that were created and not destroyed; the default stream is not among them.
    pub streams: usize,
}
