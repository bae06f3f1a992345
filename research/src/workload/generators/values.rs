//! Reads the values of options from text.

use super::error::WorkloadError;
use super::generator::Key;

/// The error for a value that is not allowed.
pub(super) fn refused<T>(option: Key, value: &str, allowed: impl Into<String>) -> Result<T, WorkloadError> {
    Err(WorkloadError::Option { option, value: value.into(), allowed: allowed.into() })
}

/// A whole number.
pub(super) fn number(option: Key, value: &str) -> Result<u64, WorkloadError> {
    value.parse().or_else(|_| refused(option, value, "a whole number"))
}

/// A whole number that is of no use: the seed of a generator that draws no random numbers.
pub(super) fn unused_seed(option: Key, value: &str) -> Result<(), WorkloadError> {
    number(option, value).map(drop)
}

/// A finite real number.
pub(super) fn real(option: Key, value: &str) -> Result<f64, WorkloadError> {
    let finite = value.parse().ok().filter(|number: &f64| number.is_finite());
    finite.map_or_else(|| refused(option, value, "a number"), Ok)
}

/// A number of bytes, with or without the unit `KiB`, `MiB` or `GiB`.
pub(super) fn bytes(option: Key, value: &str) -> Result<u64, WorkloadError> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let (digits, shift) = units.iter().find_map(|&(unit, shift)| Some((value.strip_suffix(unit)?, shift))).unwrap_or((value, 0));
    let parsed = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    parsed.map_or_else(|| refused(option, value, "bytes, such as 512, 64KiB, 20MiB or 3GiB"), Ok)
}

/// `on` or `off`.
pub(super) fn switch(option: Key, value: &str) -> Result<bool, WorkloadError> {
    one_of(option, value, &[("on", true), ("off", false)])
}

/// A fixed number of whole numbers, separated by `/`.
pub(super) fn numbers<const N: usize>(option: Key, value: &str) -> Result<[u64; N], WorkloadError> {
    let numbers = list(option, value)?;
    numbers.try_into().or_else(|_| refused(option, value, format!("{N} whole numbers separated by /")))
}

/// One or more whole numbers, separated by `/`.
pub(super) fn list(option: Key, value: &str) -> Result<Vec<u64>, WorkloadError> {
    let numbers: Result<Vec<u64>, _> = value.split('/').map(str::parse).collect();
    numbers.or_else(|_| refused(option, value, "whole numbers separated by /"))
}

/// One of some words.
pub(super) fn one_of<T: Copy>(option: Key, value: &str, choices: &[(&str, T)]) -> Result<T, WorkloadError> {
    let found = choices.iter().find(|choice| choice.0 == value);
    let names = || choices.iter().map(|choice| choice.0).collect::<Vec<_>>().join(", ");
    found.map_or_else(|| refused(option, value, names()), |choice| Ok(choice.1))
}
