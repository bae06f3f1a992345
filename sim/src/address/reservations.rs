//! The address model of the fake driver's reservations: ascending, on multiples of 1 GiB, at least 1 GiB apart.

use super::model::AddressModel;

/// Where the fake driver's reservations start.
pub const RESERVATION_START: u64 = 0x2000_0000_0000;

/// The least distance between two reservations, and the alignment of each, in bytes.
const SPACING_BYTES: u64 = 1 << 30;

/// Addresses that only go up: each time by the size rounded up to 1 GiB, plus 1 GiB.
#[derive(Clone, Debug)]
pub struct AscendingReservations {
    next: u64,
}

impl AscendingReservations {
    /// Starts at [`RESERVATION_START`].
    #[must_use]
    pub fn new() -> Self {
        AscendingReservations { next: RESERVATION_START }
    }
}

impl Default for AscendingReservations {
    fn default() -> Self {
        AscendingReservations::new()
    }
}

impl AddressModel for AscendingReservations {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        let address = self.next;
        let step = bytes_reserved.checked_next_multiple_of(SPACING_BYTES)?.checked_add(SPACING_BYTES)?;
        self.next = address.checked_add(step)?;
        Some(address)
    }

    fn release(&mut self, _address: u64, _bytes_reserved: u64) {}

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_the_fake_drivers() {
        const GIB: u64 = 1 << 30;
        let mut model = AscendingReservations::new();
        let sizes = [1_207_959_552, GIB, 2 << 20];
        assert_eq!(sizes.map(|bytes| model.place(bytes, bytes).unwrap() - RESERVATION_START), [0, 3 * GIB, 5 * GIB]);
        assert_eq!(model.place(u64::MAX, 0), None);
        assert_eq!(model.place(1 << 63, 0), Some(RESERVATION_START + 7 * GIB), "a refusal moves nothing");
    }
}
