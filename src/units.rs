//! Quantities that must not be confused with each other: bytes, device addresses, streams and pools.
//!
//! Each type is a thin wrapper around unsigned 64-bit numbers, with only the operations that make sense. Device
//! quantities are `u64`, never `usize`, so that a recording from a large GPU can be replayed on any host.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};

/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;

/// A number of bytes of device memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);
    /// The largest number of bytes; PyTorch's "unlimited".
    pub const MAX: Bytes = Bytes(u64::MAX);

    /// `n` mebibytes.
    ///
    /// # Panics
    /// At compile time or in debug builds, if `n` mebibytes exceed 64 bits.
    #[must_use]
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n * MIB)
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The smallest multiple of `unit` that is at least `self`. `None` if it exceeds 64 bits or `unit` is zero.
    #[must_use]
    pub const fn checked_round_up(self, unit: Bytes) -> Option<Bytes> {
        match self.0.checked_next_multiple_of(unit.0) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }

    /// The sum, or `None` if it exceeds 64 bits.
    #[must_use]
    pub const fn checked_add(self, other: Bytes) -> Option<Bytes> {
        match self.0.checked_add(other.0) {
            Some(n) => Some(Bytes(n)),
            None => None,
        }
    }

    /// The difference, or zero if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}
impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}
impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}
impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        self.0 -= other.0;
    }
}
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// An address in a device's address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The raw address.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address `offset` bytes further.
    #[must_use]
    pub const fn offset(self, offset: Bytes) -> DeviceAddress {
        DeviceAddress(self.0 + offset.0)
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A stream, identified by its raw handle. Free blocks are ordered by the handle (spec 2.3), and events of several
/// streams by a hash of the handle (spec 13.1), so handles are never renumbered. The default stream is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The default stream.
    pub const DEFAULT: StreamId = StreamId(0);

    /// For a stream of another device, the id contains that device's index plus one, starting at this bit. The bit is
    /// above all addresses of a process.
    const INDEX_SHIFT: u32 = 56;

    /// The raw handle.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The id of a stream of the device with this index, whose work uses memory of this device
    /// ([`Allocator::record_stream`](crate::Allocator::record_stream)). `None` if the index or the handle is too
    /// large.
    #[must_use]
    pub const fn elsewhere(device: u32, handle: u64) -> Option<StreamId> {
        let index = device as u64 + 1;
        let fits = index >> (u64::BITS - StreamId::INDEX_SHIFT) == 0 && handle >> StreamId::INDEX_SHIFT == 0;
        if fits { Some(StreamId(index << StreamId::INDEX_SHIFT | handle)) } else { None }
    }

    /// The index of the stream's device; `None` for a stream of the allocator's own device.
    #[must_use]
    pub const fn device_elsewhere(self) -> Option<u32> {
        ((self.0 >> StreamId::INDEX_SHIFT) as u32).checked_sub(1)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The id of a memory pool, in PyTorch's form: `(0, 0)` is the default pool, `(0, k)` is a user's pool, and `(k, 0)`
/// is a graph's pool (spec 5.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The default pool.
    pub const DEFAULT: PoolId = PoolId(0, 0);
}

/// The collection of a pool to which a block belongs (spec 1.5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PoolClass {
    /// Blocks of small requests.
    Small = 0,
    /// Blocks of large requests.
    Large = 1,
}

impl PoolClass {
    /// PyTorch's name: `small` or `large`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            PoolClass::Small => "small",
            PoolClass::Large => "large",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_add_and_subtract() {
        let mut bytes = Bytes(700);
        bytes += Bytes(30);
        assert_eq!(bytes, Bytes(730));
        bytes -= Bytes(31);
        assert_eq!(bytes, Bytes(699));
        assert_eq!((Bytes(3) + Bytes(4), Bytes(9) - Bytes(4)), (Bytes(7), Bytes(5)));
        assert_eq!((Bytes(9).saturating_sub(Bytes(4)), Bytes(4).saturating_sub(Bytes(9))), (Bytes(5), Bytes::ZERO));
        assert_eq!((Bytes(3).checked_add(Bytes(4)), Bytes::MAX.checked_add(Bytes(1))), (Some(Bytes(7)), None));
        let rounded = [0, 1, 512, 513].map(|bytes| Bytes(bytes).checked_round_up(Bytes(512)).map(Bytes::get));
        assert_eq!(rounded, [Some(0), Some(512), Some(512), Some(1024)]);
        assert_eq!((Bytes(1).checked_round_up(Bytes::ZERO), Bytes::MAX.checked_round_up(Bytes(512))), (None, None));
        assert_eq!((Bytes::mib(3), Bytes(7).get()), (Bytes(3 << 20), 7));
    }

    #[test]
    fn what_is_shown() {
        use alloc::string::ToString;
        assert_eq!((Bytes(1234).to_string(), DeviceAddress(0xab00).to_string()), ("1234".into(), "0xab00".into()));
        assert_eq!((StreamId(0x3000).to_string(), StreamId(7).get()), ("0x3000".into(), 7));
        assert_eq!((DeviceAddress(5).get(), DeviceAddress(5).offset(Bytes(6))), (5, DeviceAddress(11)));
        assert_eq!([PoolClass::Small, PoolClass::Large].map(PoolClass::name), ["small", "large"]);
    }

    #[test]
    fn a_stream_of_another_device_is_told_from_all_others() {
        let ids =
            [(0, 0), (0, 0x1000), (1, 0), (254, 0xff_ffff_ffff_ffff)].map(|(device, handle)| StreamId::elsewhere(device, handle));
        let devices = ids.map(|id| id.unwrap().device_elsewhere());
        assert_eq!(devices, [Some(0), Some(0), Some(1), Some(254)]);
        assert_eq!([StreamId::DEFAULT, StreamId(0xff_ffff_ffff_ffff)].map(StreamId::device_elsewhere), [None, None]);
        assert_eq!([StreamId::elsewhere(255, 0), StreamId::elsewhere(0, 1 << 56), StreamId::elsewhere(u32::MAX, 0)], [None; 3]);
    }
}
