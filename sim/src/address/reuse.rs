//! The address model that fills holes: freed ranges coalesce, and the lowest one that is long enough is used
//! first.

use super::linear::ASCENDING_START;
use super::model::AddressModel;
use crate::range_maps::Holes;

/// First fit in freed ranges, then new addresses above all others, like the fake driver's policy `reuse`.
#[derive(Clone, Debug)]
pub struct Reuse {
    holes: Holes,
    next: u64,
}

impl Reuse {
    /// New addresses start at [`ASCENDING_START`].
    #[must_use]
    pub fn new() -> Self {
        Reuse { holes: Holes::default(), next: ASCENDING_START }
    }
}

impl Default for Reuse {
    fn default() -> Self {
        Reuse::new()
    }
}

impl AddressModel for Reuse {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        if let Some(address) = self.holes.take_first_fit(bytes_reserved) {
            return Some(address);
        }
        let address = self.next;
        self.next = address.checked_add(bytes_reserved)?;
        Some(address)
    }

    fn release(&mut self, address: u64, bytes_reserved: u64) {
        self.holes.insert(address, bytes_reserved);
    }

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected addresses were printed by the fake driver with `FAKE_ADDR_POLICY=reuse`.
    #[test]
    fn holes_join_and_the_lowest_is_used_first() {
        const PAGE: u64 = 2 << 20;
        let mut model = Reuse::new();
        let placed: Vec<u64> = [10, 10, 10, 20].map(|pages| model.place(pages * PAGE, 0).unwrap()).to_vec();
        assert_eq!(placed, [17_592_186_044_416, 17_592_207_015_936, 17_592_227_987_456, 17_592_248_958_976]);
        model.release(placed[1], 10 * PAGE);
        model.release(placed[2], 10 * PAGE);
        assert_eq!(model.place(15 * PAGE, 0), Some(17_592_207_015_936));
        assert_eq!(model.place(5 * PAGE, 0), Some(17_592_238_473_216));
        assert_eq!(model.place(10 * PAGE, 0), Some(17_592_290_902_016));
    }
}
