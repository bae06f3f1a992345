//! Reading the values of options.

use super::chain::Keeping;
use super::graphs::Order;
use super::serving::Growth;
use super::transformer::{Attention, Checkpointing, Precision};
use super::{Lengths, Optimizer, WorkloadError};

type Key = &'static str;

fn refused<T>(option: Key, value: &str, allowed: impl Into<String>) -> Result<T, WorkloadError> {
    Err(WorkloadError::Option { option, value: value.into(), allowed: allowed.into() })
}

pub(super) fn number(option: Key, value: &str) -> Result<u64, WorkloadError> {
    value.parse().or_else(|_| refused(option, value, "a whole number"))
}

pub(super) fn real(option: Key, value: &str) -> Result<f64, WorkloadError> {
    let finite = value.parse().ok().filter(|number: &f64| number.is_finite());
    finite.map_or_else(|| refused(option, value, "a number"), Ok)
}

/// A number of bytes, with `KiB`, `MiB` or `GiB` behind it or without.
pub(super) fn bytes(option: Key, value: &str) -> Result<u64, WorkloadError> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let (digits, shift) = units.iter().find_map(|&(unit, shift)| Some((value.strip_suffix(unit)?, shift))).unwrap_or((value, 0));
    let parsed = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    parsed.map_or_else(|| refused(option, value, "bytes, as 512, 64KiB, 20MiB or 3GiB"), Ok)
}

pub(super) fn switch(option: Key, value: &str) -> Result<bool, WorkloadError> {
    one_of(option, value, &[("on", true), ("off", false)])
}

/// Whole numbers with `/` between them.
pub(super) fn numbers<const N: usize>(option: Key, value: &str) -> Result<[u64; N], WorkloadError> {
    let numbers = list(option, value)?;
    numbers.try_into().or_else(|_| refused(option, value, format!("{N} whole numbers with / between them")))
}

/// Whole numbers with `/` between them, at least one.
pub(super) fn list(option: Key, value: &str) -> Result<Vec<u64>, WorkloadError> {
    let numbers: Result<Vec<u64>, _> = value.split('/').map(str::parse).collect();
    numbers.or_else(|_| refused(option, value, "whole numbers with / between them"))
}

fn one_of<T: Copy>(option: Key, value: &str, choices: &[(&str, T)]) -> Result<T, WorkloadError> {
    let found = choices.iter().find(|choice| choice.0 == value);
    let names = || choices.iter().map(|choice| choice.0).collect::<Vec<_>>().join(", ");
    found.map_or_else(|| refused(option, value, names()), |choice| Ok(choice.1))
}

pub(super) fn precision(option: Key, value: &str) -> Result<Precision, WorkloadError> {
    one_of(option, value, &[("fp32", Precision::Fp32), ("bf16", Precision::Half), ("fp16", Precision::Half)])
}

pub(super) fn attention(option: Key, value: &str) -> Result<Attention, WorkloadError> {
    one_of(option, value, &[("fused", Attention::Fused), ("materialized", Attention::Materialized)])
}

pub(super) fn optimizer(option: Key, value: &str) -> Result<Optimizer, WorkloadError> {
    one_of(option, value, &[("sgd", Optimizer::Sgd), ("momentum", Optimizer::Momentum), ("adam", Optimizer::Adam)])
}

pub(super) fn order(option: Key, value: &str) -> Result<Order, WorkloadError> {
    let orders = [("ascending", Order::Ascending), ("descending", Order::Descending), ("shuffled", Order::Shuffled)];
    one_of(option, value, &orders)
}

pub(super) fn checkpointing(option: Key, value: &str) -> Result<Checkpointing, WorkloadError> {
    match value {
        "none" => Ok(Checkpointing::None),
        "layer" => Ok(Checkpointing::EveryLayer),
        "sqrt" => Ok(Checkpointing::Sqrt),
        "other" => Ok(Checkpointing::EveryOther),
        _ => match value.parse() {
            Ok(layers) => Ok(Checkpointing::Every(layers)),
            Err(_) => refused(option, value, "none, layer, sqrt, other, or a number of layers"),
        },
    }
}

/// `None` is the root of the layers, whose number may not be known yet.
pub(super) fn keeping(option: Key, value: &str) -> Result<Option<Keeping>, WorkloadError> {
    match (value.split_once('/'), value) {
        (None, "all") => Ok(Some(Keeping::All)),
        (None, "nothing") => Ok(Some(Keeping::Nothing)),
        (None, "sqrt") => Ok(None),
        (Some(("groups", count)), _) => Ok(Some(Keeping::Groups(number(option, count)?))),
        (Some(("pieces", count)), _) => Ok(Some(Keeping::Pieces(number(option, count)?))),
        _ => refused(option, value, "all, nothing, sqrt, groups/LAYERS or pieces/PIECES"),
    }
}

pub(super) fn growth(option: Key, value: &str) -> Result<Growth, WorkloadError> {
    match (value.split_once('/'), value) {
        (None, "double") => Ok(Growth::Double),
        (Some(("blocks", tokens)), _) => Ok(Growth::Blocks(number(option, tokens)?)),
        (Some(("reallocate", tokens)), _) => Ok(Growth::Reallocate(number(option, tokens)?)),
        _ => refused(option, value, "double, blocks/TOKENS or reallocate/TOKENS"),
    }
}

pub(super) fn lengths(option: Key, value: &str) -> Result<Lengths, WorkloadError> {
    let parts: Vec<&str> = value.split('/').collect();
    match parts[..] {
        ["fixed", length] => Ok(Lengths::Fixed(number(option, length)?)),
        ["uniform", least, most] => Ok(Lengths::Uniform { least: number(option, least)?, most: number(option, most)? }),
        ["lognormal", median, sigma] => Ok(Lengths::LogNormal { median: real(option, median)?, sigma: real(option, sigma)? }),
        ["exponential", mean] => Ok(Lengths::Exponential { mean: real(option, mean)? }),
        _ => refused(option, value, "fixed/LENGTH, uniform/LEAST/MOST, lognormal/MEDIAN/SIGMA or exponential/MEAN"),
    }
}
