//! Whether options and sizes are within bounds.

use super::error::{MAX_BYTES, WorkloadError};

/// The product of sizes, as the bytes of `what`.
pub(super) fn bytes_of(what: &'static str, factors: &[u64]) -> Result<u64, WorkloadError> {
    let product = factors.iter().try_fold(1_u64, |product, &factor| product.checked_mul(factor));
    product.filter(|&bytes| bytes <= MAX_BYTES).ok_or(WorkloadError::TooLarge { what })
}

/// Checks that an option is between two bounds, inclusive.
pub(super) fn within(option: &'static str, value: u64, least: u64, most: u64) -> Result<(), WorkloadError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(WorkloadError::Option { option, value: value.to_string(), allowed: format!("{least} to {most}") })
}

/// [`within`] for real numbers.
pub(super) fn within_real(option: &'static str, value: f64, least: f64, most: f64) -> Result<(), WorkloadError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(WorkloadError::Option { option, value: value.to_string(), allowed: format!("{least} to {most}") })
}

/// Divides `whole` into `parts` of nearly equal size: the number of parts of each size, the larger size first.
pub(super) fn shares(whole: u64, parts: u64) -> Vec<(u64, u64)> {
    let (small, larger) = (whole / parts, whole % parts);
    [(larger, small + 1), (parts - larger, small)].into_iter().filter(|&(count, size)| count > 0 && size > 0).collect()
}
