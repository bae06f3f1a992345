//! What is true of one maker's device and not of every device: sizes, result codes, and which calls wait.
//!
//! The contract asserts the facts that a backend states, and an entry that needs what the device does not have is skipped.
//! What holds for every device is in the contract itself and in [`parkade::device`].

use parkade::device::BackendError;
use parkade::units::{Bytes, MIB};

/// What a backend states about its devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// The unit of memory: a power of two, at least 4 KiB. A range that shares no page takes whole pages and begins at a multiple of one. Virtual
    /// memory is reserved, created and mapped in whole pages.
    pub page: Bytes,
    /// The small ranges that share a page; `None` if every range takes pages of its own.
    pub sharing: Option<Sharing>,
    /// The result codes of refused calls.
    pub codes: Codes,
    /// Whether addresses can be reserved and memory be mapped behind them. The calls of [`parkade::device::DeviceBackend`] that do so are
    /// then implemented.
    pub has_virtual_memory: bool,
    /// Whether any free pages can serve any range, so that a request is refused only if fewer pages are free than it takes. False for a
    /// device on which a range needs contiguous memory: there free memory can be too scattered.
    pub remaps_pages: bool,
    /// Which calls wait for all work of the device.
    pub waits: Waits,
    /// Where these facts come from, in words.
    pub source: &'static str,
}

/// Small ranges that share a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// The largest range that shares a page; at most half a page.
    pub largest: Bytes,
    /// Ranges in a page begin at multiples of this, side by side: a power of two, at least 512 bytes.
    pub spacing: Bytes,
}

/// The result codes of refused calls, as [`BackendError::Driver`] carries them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codes {
    /// An argument is wrong: an address that is not the caller's, a size of zero, a range that is mapped already.
    pub invalid_value: u32,
    /// There is no room. Devices say so with [`BackendError::OutOfMemory`]; the code is what texts show for it.
    pub out_of_memory: u32,
    /// A stream that is not the device's.
    pub invalid_handle: u32,
    /// A part of created memory is mapped, or more than all of it.
    pub not_supported: u32,
}

impl Codes {
    /// The code of an outcome; 0 if the call was done.
    #[must_use]
    pub fn of<T>(&self, outcome: &Result<T, BackendError>) -> u32 {
        match outcome {
            Ok(_) => 0,
            Err(BackendError::OutOfMemory { .. }) => self.out_of_memory,
            Err(BackendError::Driver { code, .. }) => *code,
        }
    }
}

/// Which calls return only when all work of the device is done, that of other streams included.
///
/// Where `free` does not, it still has to wait for the work that uses the range: the allocator gives a block back while its own stream may
/// be running.
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
    /// As CUDA's calls do: only `free` waits (facts: Waiting for the device).
    pub const CUDA: Waits =
        Waits { malloc: false, free: true, create: false, map: false, set_access: false, unmap: false, release: false };
}

impl DeviceFacts {
    /// An NVIDIA H200 under CUDA, which is also what the simulated device does (facts: Sizes and addresses, Virtual memory calls, Waiting for
    /// the device).
    pub const H200: DeviceFacts = DeviceFacts {
        page: Bytes(2 * MIB),
        sharing: Some(Sharing { largest: Bytes(MIB), spacing: Bytes(512) }),
        codes: Codes { invalid_value: 1, out_of_memory: 2, invalid_handle: 400, not_supported: 801 },
        has_virtual_memory: true,
        remaps_pages: true,
        waits: Waits::CUDA,
        source: "measured on an NVIDIA H200 (docs/driver-facts.md)",
    };

    /// Whether devices with these facts behave as devices with those, wherever either come from. What they show can then be compared.
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
