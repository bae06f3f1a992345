//! Sizes of requests that were never made, from those of earlier steps.
//!
//! Steps differ in length: more tokens, larger images. A request that in every earlier step was as large as another one, or in a fixed
//! proportion to it, will be so again. So the sizes of a step that was cut short follow from those that it had already requested.

use rustc_hash::FxHashMap;

/// Smaller requests are in proportion by chance.
const LEAST_BYTES: u64 = 4096;

/// What the requests of earlier steps say about a step of which only the beginning is known.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    /// The size in the new step, by the sizes of the same request in the earlier steps.
    equal: FxHashMap<Vec<u64>, u64>,
    /// The same for sizes in proportion: by the earlier sizes divided by what divides them all, the divisor and the new size.
    proportional: FxHashMap<Vec<u64>, (u64, u64)>,
}

impl Sizes {
    /// Notes a request that was made in the new step too: its sizes in the earlier steps, and in the new one. Later requests count more
    /// than earlier ones, so they are noted last.
    pub(crate) fn note(&mut self, earlier: &[u64], new: u64) {
        let divisor = divisor_of(earlier);
        let is_large = earlier.iter().all(|&size| size >= LEAST_BYTES);
        if is_large && varies(earlier) {
            let known = self.proportional.entry(earlier.iter().map(|size| size / divisor).collect()).or_insert((divisor, new));
            if known.0 <= divisor {
                *known = (divisor, new);
            }
        }
        self.equal.insert(earlier.to_vec(), new);
    }

    /// The size of a request in the new step, given its sizes in the earlier steps. `None` if they say nothing about it.
    pub(crate) fn size(&self, earlier: &[u64]) -> Option<u64> {
        if earlier.len() > 1 && !varies(earlier) {
            return earlier.first().copied();
        }
        if let Some(&size) = self.equal.get(earlier) {
            return Some(size);
        }
        let divisor = divisor_of(earlier);
        if earlier.len() < 2 || earlier.iter().any(|&size| size < LEAST_BYTES) {
            return None;
        }
        let direction: Vec<u64> = earlier.iter().map(|size| size / divisor).collect();
        let &(known, size) = self.proportional.get(&direction)?;
        u64::try_from(u128::from(size) * u128::from(divisor) / u128::from(known)).ok()
    }
}

fn varies(sizes: &[u64]) -> bool {
    sizes.windows(2).any(|pair| pair[0] != pair[1])
}

fn divisor_of(sizes: &[u64]) -> u64 {
    sizes.iter().fold(0, |divisor, &size| greatest_common_divisor(divisor, size))
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_follows_one_that_was_equal_or_in_proportion() {
        let mut sizes = Sizes::default();
        sizes.note(&[30_000, 50_000], 70_000);
        sizes.note(&[4096, 4096], 4096);
        assert_eq!(sizes.size(&[30_000, 50_000]), Some(70_000));
        assert_eq!(sizes.size(&[120_000, 200_000]), Some(280_000), "four times as large in both");
        assert_eq!(sizes.size(&[9000, 15_000]), Some(21_000));
        assert_eq!(sizes.size(&[8192, 8192]), Some(8192), "the same in every step");
        assert_eq!(sizes.size(&[30_000, 60_000]), None);
        assert_eq!(sizes.size(&[3, 5]), None, "a proportion of small numbers says nothing");
    }

    #[test]
    fn one_earlier_step_tells_equal_sizes_only() {
        let mut sizes = Sizes::default();
        sizes.note(&[300], 700);
        assert_eq!((sizes.size(&[300]), sizes.size(&[600])), (Some(700), None));
    }
}
