//! What differs from device to device: sizes, result codes, and which calls wait.
//!
//! The contract asserts the facts that a backend states; an entry that requires something the device lacks is skipped.
//! What holds for every device is in the contract itself and in [`parkade::device`].

use parkade::device::BackendError;
use parkade::units::{Bytes, MIB};

/// What a backend states about its devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// The unit of memory: a power of two, at least 4 KiB. A range that shares no page takes whole pages and starts at a multiple
    /// of the page. Virtual memory is reserved, created and mapped in whole pages.
    pub page: Bytes,
    /// Which small ranges share a page; `None` if every range has its own pages.
    pub sharing: Option<Sharing>,
    /// The result codes of refused calls.
    pub codes: Codes,
    /// Whether addresses can be reserved and memory mapped at them. If so, the calls of [`parkade::device::DeviceBackend`] for it
    /// are implemented.
    pub has_virtual_memory: bool,
    /// Whether any free pages can serve any range, so that a request is refused only if too few pages are free. False if a range
    /// needs contiguous memory: free memory can then be too fragmented for it.
    pub remaps_pages: bool,
    /// Which calls wait for all of the device's work.
    pub waits: Waits,
    /// Where these facts come from.
    pub source: &'static str,
}

/// How small ranges share a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// The largest range that shares a page; at most half a page.
    pub largest: Bytes,
    /// Ranges in a page are packed at multiples of this: a power of two, at least 512 bytes.
    pub spacing: Bytes,
}

/// The result codes of refused calls, as [`BackendError::Driver`] carries them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codes {
    /// An invalid argument: an address that is not the caller's, a size of zero, a range that is already mapped.
    pub invalid_value: u32,
    /// Out of memory. Devices report it as [`BackendError::OutOfMemory`]; texts show this code for it.
    pub out_of_memory: u32,
    /// A stream that does not belong to the device.
    pub invalid_handle: u32,
    /// Mapping only a part of created memory, or more than it has.
    pub not_supported: u32,
}

impl Codes {
    /// The code of an outcome; 0 if the call succeeded.
    #[must_use]
    pub fn of<T>(&self, outcome: &Result<T, BackendError>) -> u32 {
        match outcome {
            Ok(_) => 0,
            Err(BackendError::OutOfMemory { .. }) => self.out_of_memory,
            Err(BackendError::Driver { code, .. }) => *code,
        }
    }
}

/// Which calls return only once all work on the device is done, other streams included.
///
/// If `free` is not among them, it must still wait for the work that uses the range: the allocator frees a segment while its
/// own stream may still be running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one answer for each call")]
pub struct Waits {
    /// `malloc`.
    pub malloc: bool,
    /// `free`.
    pub free: bool,
    /// `create`.
    pub create: bool,
    /// `map`.
    pub map: bool,
    /// `set_access`.
    pub set_access: bool,
    /// `unmap`.
    pub unmap: bool,
    /// `release`.
    pub release: bool,
}

impl Waits {
    /// CUDA's behaviour: only `free` waits (facts: Waiting for the device).
    pub const CUDA: Waits =
        Waits { malloc: false, free: true, create: false, map: false, set_access: false, unmap: false, release: false };
}

impl DeviceFacts {
    /// An NVIDIA H200 under CUDA, which the simulated device imitates (facts: Sizes and addresses, Virtual memory calls,
    /// Waiting for the device).
    pub const H200: DeviceFacts = DeviceFacts {
        page: Bytes(2 * MIB),
        sharing: Some(Sharing { largest: Bytes(MIB), spacing: Bytes(512) }),
        codes: Codes { invalid_value: 1, out_of_memory: 2, invalid_handle: 400, not_supported: 801 },
        has_virtual_memory: true,
        remaps_pages: true,
        waits: Waits::CUDA,
        source: "measured on an NVIDIA H200 (docs/driver-facts.md)",
    };

    /// Whether both facts describe the same behaviour, ignoring their source. What such devices show can be compared.
    #[must_use]
    pub fn behaves_as(&self, other: &DeviceFacts) -> bool {
        DeviceFacts { source: other.source, ..*self } == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_makes_no_difference_and_everything_else_does() {
        let facts = DeviceFacts { source: "elsewhere", ..DeviceFacts::H200 };
        assert!(facts.behaves_as(&DeviceFacts::H200));
        assert!(!DeviceFacts { page: Bytes(4096), ..facts }.behaves_as(&DeviceFacts::H200));
    }
}
