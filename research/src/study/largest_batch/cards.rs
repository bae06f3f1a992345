//! The memory of cards by name: the total that a CUDA program sees, which is not what the name says.
//!
//! A card sold with 80 GB has neither 80 x 10^9 bytes nor 80 GiB for a program. What is deducted (error
//! correction, the driver) differs between drivers by up to half a percent.

/// A card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Card {
    /// Its name, with the memory that it is sold with.
    pub name: &'static str,
    /// The total that `cudaMemGetInfo` and `cudaGetDeviceProperties` report, in bytes.
    pub total_bytes: u64,
    /// The source of the number.
    pub source: &'static str,
}

/// The cards of 40, 80 and 141 GB.
pub static CARDS: [Card; 3] = [
    Card {
        name: "A100-40GB",
        total_bytes: 42_298_834_944,
        source: "deviceQuery's output in bottlerocket#3873; other drivers' up to 40,536 MiB",
    },
    Card { name: "H100-80GB", total_bytes: 81_082 << 20, source: "PyTorch's device properties in reports, 81,082 to 81,090 MiB" },
    Card { name: "H200-141GB", total_bytes: 150_109_880_320, source: "measured" },
];

/// The card of this name, in upper or lower case.
#[must_use]
pub fn card(name: &str) -> Option<&'static Card> {
    CARDS.iter().find(|card| card.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_about_what_its_name_says() {
        for known in &CARDS {
            assert_eq!(card(&known.name.to_lowercase()), Some(known));
            let (_, sold) = known.name.split_once('-').expect("a size");
            let sold: f64 = sold.trim_end_matches("GB").parse().expect("a number");
            let ratio = known.total_bytes as f64 / (sold * 1e9);
            assert!((0.98..1.08).contains(&ratio), "{}: {ratio}", known.name);
        }
        assert_eq!(card("V100"), None);
    }
}
