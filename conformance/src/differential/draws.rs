//! Pseudo-random numbers that are the same on every machine, for sequences that are compared between two.

/// A sequence of numbers (SplitMix64, Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// A number below `bound`, which is at least 1, and small enough that the remainder's bias does not matter.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
