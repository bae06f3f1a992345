//! The two address models that never reuse an address: each range goes directly above, or directly below,
//! the previous one.

use super::model::AddressModel;

/// Where the fake driver's ascending addresses start.
pub const ASCENDING_START: u64 = 0x1000_0000_0000;
/// Where the fake driver's descending addresses end.
pub const DESCENDING_END: u64 = 0x1f00_0000_0000;

/// Addresses that only go up, like the fake driver's policy `up`.
#[derive(Clone, Debug)]
pub struct Ascending {
    next: u64,
    gap_bytes: u64,
}

impl Ascending {
    /// Starts at [`ASCENDING_START`], without gaps.
    #[must_use]
    pub fn new() -> Self {
        Ascending::starting_at(ASCENDING_START, 0)
    }

    /// Starts at `start` and leaves `gap_bytes` free above every range. Both must be multiples of 2 MiB if
    /// addresses are to lie on page boundaries.
    #[must_use]
    pub fn starting_at(start: u64, gap_bytes: u64) -> Self {
        Ascending { next: start, gap_bytes }
    }
}

impl Default for Ascending {
    fn default() -> Self {
        Ascending::new()
    }
}

impl AddressModel for Ascending {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        let address = self.next;
        self.next = address.checked_add(bytes_reserved)?.checked_add(self.gap_bytes)?;
        Some(address)
    }

    fn release(&mut self, _address: u64, _bytes_reserved: u64) {}

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

/// Addresses that only go down, like the fake driver's policy `down`.
#[derive(Clone, Debug)]
pub struct Descending {
    next_end: u64,
    gap_bytes: u64,
}

impl Descending {
    /// Starts below [`DESCENDING_END`], without gaps.
    #[must_use]
    pub fn new() -> Self {
        Descending::ending_at(DESCENDING_END, 0)
    }

    /// Starts below `end` and leaves `gap_bytes` free above every range. Both must be multiples of 2 MiB if
    /// addresses are to lie on page boundaries.
    #[must_use]
    pub fn ending_at(end: u64, gap_bytes: u64) -> Self {
        Descending { next_end: end, gap_bytes }
    }
}

impl Default for Descending {
    fn default() -> Self {
        Descending::new()
    }
}

impl AddressModel for Descending {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        let needed = bytes_reserved.checked_add(self.gap_bytes)?;
        // Zero is the null pointer.
        self.next_end = self.next_end.checked_sub(needed).filter(|&address| address > 0)?;
        Some(self.next_end)
    }

    fn release(&mut self, _address: u64, _bytes_reserved: u64) {}

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn starts_and_steps_are_the_fake_drivers() {
        let mut up = Ascending::new();
        assert_eq!(up.place(10 * PAGE, 1), Some(17_592_186_044_416));
        assert_eq!(up.place(PAGE, 1), Some(17_592_207_015_936));
        let mut down = Descending::new();
        assert_eq!(down.place(10 * PAGE, 1), Some(34_084_839_489_536));
        assert_eq!(down.place(10 * PAGE, 1), Some(34_084_818_518_016));
    }

    #[test]
    fn gaps_lie_above_a_range() {
        let mut up = Ascending::starting_at(PAGE, PAGE);
        assert_eq!((up.place(PAGE, 1), up.place(PAGE, 1)), (Some(PAGE), Some(3 * PAGE)));
        let mut down = Descending::ending_at(10 * PAGE, PAGE);
        assert_eq!((down.place(PAGE, 1), down.place(PAGE, 1)), (Some(8 * PAGE), Some(6 * PAGE)));
    }

    #[test]
    fn an_exhausted_address_space_is_reported_and_nothing_moves() {
        let mut up = Ascending::starting_at(u64::MAX - 3 * PAGE, 0);
        assert_eq!(up.place(4 * PAGE, 1), None);
        assert_eq!(up.place(PAGE, 1), Some(u64::MAX - 3 * PAGE));
        let mut down = Descending::ending_at(2 * PAGE, 0);
        assert_eq!(down.place(2 * PAGE, 1), None);
        assert_eq!(down.place(PAGE, 1), Some(PAGE));
    }
}
