//! The address model that repeats a recording: each cudaMalloc gets the next address of a list.
//!
//! The list can run out or name an address that is taken, because the recording's oldest entries are missing or
//! because the replay has diverged. The range is then placed far above all addresses that a driver returns, and the
//! model counts a fallback. A replay with fallbacks has diverged from its recording.

use std::collections::VecDeque;

use super::AddressModel;
use crate::memory::PAGE_BYTES;
use crate::range_maps::Intervals;
use crate::ranges::SPACING_BYTES;

/// The first fallback address: above the 49-bit addresses of GPUs, and below 2^53, so that JSON readers keep it
/// exact.
pub const FALLBACK_START: u64 = 1 << 52;
/// The first fallback address for reservations. It differs from [`FALLBACK_START`], so that a device's two models
/// never return the same address.
pub const RESERVATION_FALLBACK_START: u64 = FALLBACK_START + (1 << 51);

/// Addresses from a list.
#[derive(Clone, Debug)]
pub struct Scripted {
    next: VecDeque<u64>,
    live: Intervals<()>,
    alignment_bytes: u64,
    fallback_start: u64,
    /// The number of bytes above `fallback_start` that are used up.
    fallback_bytes: u64,
    fallbacks: u64,
}

impl Default for Scripted {
    fn default() -> Self {
        Scripted::new([])
    }
}

impl Scripted {
    /// Creates a model that returns `addresses` in order, for example those in a recording's
    /// `segment_alloc` entries.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = u64>) -> Self {
        Scripted::beginning(addresses, SPACING_BYTES, FALLBACK_START)
    }

    /// Like [`Scripted::new`], but for reservations, which start on page boundaries and fall back
    /// to [`RESERVATION_FALLBACK_START`].
    #[must_use]
    pub fn for_reservations(addresses: impl IntoIterator<Item = u64>) -> Self {
        Scripted::beginning(addresses, PAGE_BYTES, RESERVATION_FALLBACK_START)
    }

    fn beginning(addresses: impl IntoIterator<Item = u64>, alignment_bytes: u64, fallback_start: u64) -> Self {
        Scripted {
            next: addresses.into_iter().collect(),
            live: Intervals::default(),
            alignment_bytes,
            fallback_start,
            fallback_bytes: 0,
            fallbacks: 0,
        }
    }

    /// Appends an address to the list.
    pub fn push(&mut self, address: u64) {
        self.next.push_back(address);
    }

    /// Drops the rest of the list.
    pub fn clear(&mut self) {
        self.next.clear();
    }

    /// Returns how many addresses are left in the list.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.next.len()
    }

    /// Returns how many ranges could not be placed at a listed address, because the address was taken or the list was
    /// empty.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks
    }

    /// Returns the next address in the list if a range of this size can be placed there. Removes the address from the
    /// list in any case.
    fn take_next(&mut self, bytes_reserved: u64) -> Option<u64> {
        let address = self.next.pop_front()?;
        let usable = address > 0 && address.is_multiple_of(self.alignment_bytes);
        (usable && self.live.insert(address, bytes_reserved, ())).then_some(address)
    }

    fn take_fallback(&mut self, bytes_reserved: u64) -> Option<u64> {
        self.fallbacks += 1;
        let mut address = self.fallback_start.checked_add(self.fallback_bytes)?;
        // The list may also contain addresses in this area, so skip those that are taken, in whole pages.
        while let Some(end) = self.live.overlap_end(address, bytes_reserved) {
            address = end.checked_next_multiple_of(PAGE_BYTES)?;
        }
        self.live.insert(address, bytes_reserved, ()).then(|| {
            self.fallback_bytes = address - self.fallback_start + bytes_reserved;
            address
        })
    }
}

impl AddressModel for Scripted {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        self.take_next(bytes_reserved).or_else(|| self.take_fallback(bytes_reserved))
    }

    fn release(&mut self, address: u64, _bytes_reserved: u64) {
        self.live.remove(address);
    }

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn follows_the_list_then_falls_back() {
        let mut model = Scripted::new([0x7f00_0000_0000, 0x7e00_0000_0000]);
        assert_eq!(model.place(10 * PAGE, 0), Some(0x7f00_0000_0000));
        assert_eq!(model.place(PAGE, 0), Some(0x7e00_0000_0000));
        assert_eq!(model.fallbacks(), 0);
        assert_eq!(model.place(PAGE, 0), Some(FALLBACK_START));
        assert_eq!(model.place(PAGE, 0), Some(FALLBACK_START + PAGE));
        model.push(0x7d00_0000_0000);
        assert_eq!(model.place(PAGE, 0), Some(0x7d00_0000_0000));
        assert_eq!((model.fallbacks(), model.remaining()), (2, 0));
    }

    #[test]
    fn a_taken_or_invalid_address_is_used_up_and_counted() {
        let a = 0x7f00_0000_0000;
        let mut model = Scripted::new([a, a + 9 * PAGE, 0, a + 100, u64::MAX - 511, a]);
        assert_eq!(model.place(10 * PAGE, 0), Some(a));
        for (i, why) in ["overlaps", "null", "not aligned", "past the end"].iter().enumerate() {
            assert_eq!(model.place(PAGE, 0), Some(FALLBACK_START + i as u64 * PAGE), "{why}");
        }
        model.release(a, 10 * PAGE);
        assert_eq!(model.place(PAGE, 0), Some(a), "free again");
        assert_eq!(model.fallbacks(), 4);
    }

    #[test]
    fn reservations_start_on_pages_and_have_fallbacks_of_their_own() {
        let mut model = Scripted::for_reservations([7 * PAGE, 9 * PAGE + 512]);
        assert_eq!([(); 2].map(|()| model.place(PAGE, PAGE)), [Some(7 * PAGE), Some(RESERVATION_FALLBACK_START)]);
    }

    #[test]
    fn fallbacks_skip_what_the_list_put_there() {
        let mut model = Scripted::new([FALLBACK_START + PAGE]);
        assert_eq!(model.place(PAGE, 0), Some(FALLBACK_START + PAGE));
        assert_eq!(model.place(2 * PAGE, 0), Some(FALLBACK_START + 2 * PAGE));
        assert_eq!(model.place(u64::MAX - 5, 0), None);
    }
}
