//! Typed access to single values. Every failure names the key.

use super::error::FormatProblem;
use super::names;
use crate::pickle::{Loaded, Tag, Value};

type Found<T> = Result<T, FormatProblem>;

/// `None` for an absent value or Python's None; anything else is read by `read`.
#[inline]
pub(crate) fn optional<T>(value: Value, read: impl FnOnce(Value) -> Found<T>) -> Found<Option<T>> {
    match value.tag() {
        Tag::Absent | Tag::None => Ok(None),
        _ => read(value).map(Some),
    }
}

#[cold]
pub(crate) fn wrong_type(loaded: &Loaded, value: Value, key: &'static str, expected: &'static str) -> FormatProblem {
    if value == Value::ABSENT {
        return FormatProblem::Missing { key };
    }
    FormatProblem::WrongType { key, expected, found: loaded.type_name(value) }
}

fn integer(loaded: &Loaded, value: Value, key: &'static str, range: &'static str) -> Found<i128> {
    match loaded.objects.as_int(value) {
        Some(number) => Ok(number),
        None if value.tag() == Tag::HugeInt => {
            Err(FormatProblem::OutOfRange { key, value: "an integer of more than 128 bits".to_owned(), range })
        }
        None => Err(wrong_type(loaded, value, key, "int")),
    }
}

/// An address, a size or a time: 0 to 2^64 - 1.
#[inline]
pub(crate) fn unsigned(loaded: &Loaded, value: Value, key: &'static str) -> Found<u64> {
    if value.tag() == Tag::Int && value.as_small_int() >= 0 {
        return Ok(value.as_small_int() as u64);
    }
    unsigned_slow(loaded, value, key)
}

#[cold]
fn unsigned_slow(loaded: &Loaded, value: Value, key: &'static str) -> Found<u64> {
    const RANGE: &str = "a whole number from 0 to 2^64 - 1";
    let number = integer(loaded, value, key, RANGE)?;
    u64::try_from(number).map_err(|_| FormatProblem::OutOfRange { key, value: number.to_string(), range: RANGE })
}

/// A size of at least 1.
#[inline]
pub(crate) fn positive(loaded: &Loaded, value: Value, key: &'static str) -> Found<u64> {
    match unsigned(loaded, value, key)? {
        0 => Err(FormatProblem::OutOfRange { key, value: "0".to_owned(), range: "a whole number from 1 to 2^64 - 1" }),
        size => Ok(size),
    }
}

/// A signed number, -2^63 to 2^63 - 1.
pub(crate) fn signed(loaded: &Loaded, value: Value, key: &'static str) -> Found<i64> {
    const RANGE: &str = "a whole number from -2^63 to 2^63 - 1";
    let number = integer(loaded, value, key, RANGE)?;
    i64::try_from(number).map_err(|_| FormatProblem::OutOfRange { key, value: number.to_string(), range: RANGE })
}

/// A number of 64 bits, signed or not, such as a stream's handle. A negative one keeps its bits.
#[inline]
pub(crate) fn bits(loaded: &Loaded, value: Value, key: &'static str) -> Found<u64> {
    if value.tag() == Tag::Int {
        return Ok(value.as_small_int() as u64);
    }
    const RANGE: &str = "a whole number from -2^63 to 2^64 - 1";
    let number = integer(loaded, value, key, RANGE)?;
    let bits = u64::try_from(number).ok().or_else(|| i64::try_from(number).ok().map(|negative| negative as u64));
    bits.ok_or_else(|| FormatProblem::OutOfRange { key, value: number.to_string(), range: RANGE })
}

/// A device number, at most 127: `c10::DeviceIndex` is a signed byte.
pub(crate) fn device(loaded: &Loaded, value: Value, key: &'static str) -> Found<u32> {
    const RANGE: &str = "a whole number from 0 to 127";
    let number = integer(loaded, value, key, RANGE)?;
    match u32::try_from(number) {
        Ok(device @ 0..=127) => Ok(device),
        _ => Err(FormatProblem::OutOfRange { key, value: number.to_string(), range: RANGE }),
    }
}

/// A boolean, or 0 or 1.
pub(crate) fn boolean(loaded: &Loaded, value: Value, key: &'static str) -> Found<bool> {
    match (value.tag(), loaded.objects.as_int(value)) {
        (Tag::Bool, _) => Ok(value == Value::boolean(true)),
        (_, Some(number @ (0 | 1))) => Ok(number == 1),
        _ => Err(wrong_type(loaded, value, key, "bool")),
    }
}

/// A number that may be a float.
pub(crate) fn float(loaded: &Loaded, value: Value, key: &'static str) -> Found<f64> {
    loaded.objects.as_float(value).ok_or_else(|| wrong_type(loaded, value, key, "float"))
}

/// A text's bytes.
#[inline]
pub(crate) fn text<'l>(loaded: &'l Loaded, value: Value, key: &'static str) -> Found<&'l [u8]> {
    loaded.texts.get(value).ok_or_else(|| wrong_type(loaded, value, key, "str"))
}

/// The items of a list or a tuple.
pub(crate) fn items<'l>(loaded: &'l Loaded, value: Value, key: &'static str) -> Found<&'l [Value]> {
    loaded.objects.as_items(value).ok_or_else(|| wrong_type(loaded, value, key, "list"))
}

/// A pool id: a pair of numbers.
pub(crate) fn pool(loaded: &Loaded, value: Value, key: &'static str) -> Found<(u64, u64)> {
    match loaded.objects.as_items(value) {
        Some(&[first, second]) => Ok((unsigned(loaded, first, key)?, unsigned(loaded, second, key)?)),
        _ => Err(wrong_type(loaded, value, key, "tuple of two ints")),
    }
}

/// The end of memory, which must be within 64 bits.
#[inline]
pub(crate) fn check_end(address: u64, size: u64) -> Found<u64> {
    address.checked_add(size).ok_or(FormatProblem::EndsBeyond { address, size })
}

/// The problem of a name that is not one of the known ones.
#[cold]
pub(crate) fn unknown_name(key: &'static str, value: &[u8], known: &'static str) -> FormatProblem {
    FormatProblem::UnknownName { key, value: names::shown(value), known }
}
