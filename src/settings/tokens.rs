//! Splits a settings string into tokens, and reads the numbers in them like the C library. `strtoull` in base ten and
//! `strtod` take the longest prefix that is a number and ignore the rest (spec 8.2).
//!
//! Tokens have no leading white space. There is one known difference: glibc also reports a range error for a value
//! that is within one part in 2^53 below the smallest normal double and is rounded up to it; here, only results below
//! that double are errors.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::values::{ErrorKind, SettingsError};

/// The tokens of a text: separators, and words without the blanks in them.
pub(super) fn split(text: &str, is_blank: impl Fn(char) -> bool) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for character in text.chars() {
        match character {
            ',' | ':' | '[' | ']' => {
                if !word.is_empty() {
                    tokens.push(core::mem::take(&mut word));
                }
                tokens.push(String::from(character));
            }
            blank if is_blank(blank) => {}
            other => word.push(other),
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

/// The reason why a token cannot be read as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NumberError {
    /// The token does not begin with a number (`std::invalid_argument`).
    NotANumber,
    /// The number is too large, or too small for full precision (`std::out_of_range`).
    OutOfRange,
}

/// Reads an unsigned number. A negative number wraps around, as in C.
pub(super) fn unsigned(text: &str) -> Result<u64, NumberError> {
    let (negative, rest) = split_sign(text);
    let digits = prefix(rest, |byte| byte.is_ascii_digit());
    if digits.is_empty() {
        return Err(NumberError::NotANumber);
    }
    // Parsing can fail only because of an overflow.
    let value: u64 = digits.parse().map_err(|_| NumberError::OutOfRange)?;
    Ok(if negative { value.wrapping_neg() } else { value })
}

/// Reads a 32-bit number and extends its sign: a negative number becomes a large one, as in C.
pub(super) fn int(text: &str) -> Result<u64, NumberError> {
    let (negative, rest) = split_sign(text);
    if rest.starts_with(['+', '-']) {
        return Err(NumberError::NotANumber);
    }
    let magnitude = unsigned(rest)?;
    let value = i64::try_from(magnitude).map_err(|_| NumberError::OutOfRange)?;
    let value = i32::try_from(if negative { -value } else { value }).map_err(|_| NumberError::OutOfRange)?;
    Ok(i64::from(value).cast_unsigned())
}

/// Reads a double: decimal, hexadecimal, `inf`, `infinity` or `nan`, in upper or lower case.
pub(super) fn double(text: &str) -> Result<f64, NumberError> {
    let (negative, rest) = split_sign(text);
    let magnitude = if starts_with_word(rest, "inf") {
        f64::INFINITY
    } else if starts_with_word(rest, "nan") {
        f64::NAN
    } else if let Some(hexadecimal) = hexadecimal_digits(rest) {
        hexadecimal_magnitude(hexadecimal)?
    } else {
        decimal_magnitude(rest)?
    };
    Ok(if negative { -magnitude } else { magnitude })
}

/// Reads the number at the beginning of a text, as C++'s `stod` does: decimal, hexadecimal, infinite or NaN. Ignores
/// the rest. `None` if `stod` would throw: there is no number, or a double cannot hold it with full precision.
#[must_use]
pub fn read_double(text: &str) -> Option<f64> {
    double(text).ok()
}

fn decimal_magnitude(text: &str) -> Result<f64, NumberError> {
    let number = Parts::of(text, |byte| byte.is_ascii_digit());
    if number.whole.is_empty() && number.fraction.is_empty() {
        return Err(NumberError::NotANumber);
    }
    let exponent = exponent(number.rest, 'e').unwrap_or(0);
    // Rebuilt so that Rust's parser only gets input that the C library would accept.
    let clean = format!("0{}.{}e{}", number.whole, number.fraction, exponent);
    let value: f64 = clean.parse().map_err(|_| NumberError::NotANumber)?;
    let is_zero = number.digits().all(|digit| digit == b'0');
    let lost = value < f64::MIN_POSITIVE && !is_zero && !is_exact(value, &number, exponent);
    if value.is_infinite() || lost { Err(NumberError::OutOfRange) } else { Ok(value) }
}

/// Whether the decimal number is exactly `value`, a subnormal double.
fn is_exact(value: f64, number: &Parts<'_>, exponent: i64) -> bool {
    // Every double below 1 has at most 1,074 decimals.
    let full = format!("{value:.1074}");
    let exact = Parts::of(&full, |byte| byte.is_ascii_digit());
    number.point_position(exponent) == exact.point_position(0) && number.significant().eq(exact.significant())
}

/// The digits after `0x`, if there is at least one; `0x` without digits is the number 0.
fn hexadecimal_digits(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    let first = rest.strip_prefix('.').unwrap_or(rest).bytes().next()?;
    first.is_ascii_hexdigit().then_some(rest)
}

fn hexadecimal_magnitude(text: &str) -> Result<f64, NumberError> {
    let number = Parts::of(text, |byte| byte.is_ascii_hexdigit());
    let mut mantissa = 0_u64;
    let mut rest_is_zero = true;
    let whole_digits = i64::try_from(number.whole.len()).unwrap_or(i64::MAX);
    let mut read_digits = 0_i64;
    for digit in number.digits() {
        let digit = u64::from((digit as char).to_digit(16).unwrap_or(0));
        if mantissa >> 60 == 0 {
            mantissa = mantissa << 4 | digit;
            read_digits += 1;
        } else {
            rest_is_zero &= digit == 0;
        }
    }
    if mantissa == 0 {
        return Ok(0.0);
    }
    let scale = whole_digits.saturating_sub(read_digits).saturating_mul(4);
    let exponent = exponent(number.rest, 'p').unwrap_or(0).saturating_add(scale);
    scaled(mantissa, rest_is_zero, exponent)
}

/// `mantissa` times 2^`exponent`, rounded to the nearest double, ties to even. If `rest_is_zero` is false, the exact
/// value is slightly larger.
fn scaled(mantissa: u64, rest_is_zero: bool, exponent: i64) -> Result<f64, NumberError> {
    let shift = mantissa.leading_zeros();
    let mantissa = mantissa << shift;
    // The exponent of the leading bit.
    let exponent = exponent.saturating_add(63 - i64::from(shift));
    if exponent > 1023 {
        return Err(NumberError::OutOfRange);
    }
    // Each halving below the smallest normal double loses a bit.
    let lost_bits = (-1022_i64).saturating_sub(exponent).max(0);
    if lost_bits >= 53 {
        return Err(NumberError::OutOfRange);
    }
    let dropped = 11 + lost_bits;
    let kept = mantissa >> dropped;
    let remainder = mantissa & ((1 << dropped) - 1);
    let half = 1 << (dropped - 1);
    let rounds_up = remainder > half || (remainder == half && (!rest_is_zero || kept & 1 == 1));
    let kept = kept + u64::from(rounds_up);
    let biased = u64::try_from(exponent + 1022).unwrap_or(0);
    // The leading bit of a normal mantissa, or a carry, adds 1 to the exponent.
    let value = if lost_bits == 0 { f64::from_bits((biased << 52) + kept) } else { f64::from_bits(kept) };
    let is_inexact = remainder != 0 || !rest_is_zero;
    let lost = value < f64::MIN_POSITIVE && is_inexact;
    if value.is_infinite() || lost { Err(NumberError::OutOfRange) } else { Ok(value) }
}

/// The digits before and after a point, and the text after them.
struct Parts<'a> {
    whole: &'a str,
    fraction: &'a str,
    rest: &'a str,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str, is_digit: fn(u8) -> bool) -> Parts<'a> {
        let whole = prefix(text, is_digit);
        let after = text.get(whole.len()..).unwrap_or("");
        match after.strip_prefix('.') {
            None => Parts { whole, fraction: "", rest: after },
            Some(after) => {
                let fraction = prefix(after, is_digit);
                Parts { whole, fraction, rest: after.get(fraction.len()..).unwrap_or("") }
            }
        }
    }

    fn digits(&self) -> impl Iterator<Item = u8> {
        self.whole.bytes().chain(self.fraction.bytes())
    }

    /// The digits without leading and trailing zeros.
    fn significant(&self) -> impl Iterator<Item = u8> {
        let last = self.digits().enumerate().filter(|(_, digit)| *digit != b'0').map(|(index, _)| index + 1).last();
        self.digits().take(last.unwrap_or(0)).skip_while(|digit| *digit == b'0')
    }

    /// The position of the decimal point, counted from the first digit that is not zero.
    fn point_position(&self, exponent: i64) -> i64 {
        let zeros = self.digits().take_while(|digit| *digit == b'0').count();
        let signed = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
        exponent.saturating_add(signed(self.whole.len())).saturating_sub(signed(zeros))
    }
}

/// The exponent after `mark`, or `None` if no complete exponent follows.
fn exponent(text: &str, mark: char) -> Option<i64> {
    let rest = text.strip_prefix([mark, mark.to_ascii_uppercase()])?;
    let (negative, rest) = split_sign(rest);
    let digits = prefix(rest, |byte| byte.is_ascii_digit());
    if digits.is_empty() {
        return None;
    }
    // Far beyond the range of doubles, but also far from overflow.
    const LIMIT: i64 = 1 << 40;
    let size = digits.parse().unwrap_or(LIMIT).min(LIMIT);
    Some(if negative { -size } else { size })
}

fn split_sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

fn starts_with_word(text: &str, word: &str) -> bool {
    text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
}

fn prefix(text: &str, accepts: fn(u8) -> bool) -> &str {
    let length = text.bytes().take_while(|byte| accepts(*byte)).count();
    text.get(..length).unwrap_or("")
}

pub(super) fn number_error(error: NumberError, function: &str) -> SettingsError {
    let kind = match error {
        NumberError::NotANumber => ErrorKind::InvalidNumber,
        NumberError::OutOfRange => ErrorKind::NumberOutOfRange,
    };
    SettingsError::new(kind, function)
}
