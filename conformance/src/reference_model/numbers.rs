//! Doubles of settings strings, read a second time (spec 8.2).

use parkade::settings::ErrorKind;

/// The sign of a number, and what follows it.
pub(super) fn sign_of(text: &str) -> (f64, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (-1.0, &text[1..]),
        Some(b'+') => (1.0, &text[1..]),
        _ => (1.0, text),
    }
}

/// A double as `strtod` reads it. Hexadecimal ones are expected to have at most 53 significant bits.
///
/// # Errors
/// As of `stod`: the text does not begin with a number, or a double cannot hold it.
pub fn double(text: &str) -> Result<f64, ErrorKind> {
    let (sign, rest) = sign_of(text);
    let lower = rest.to_ascii_lowercase();
    if lower.starts_with("inf") {
        return Ok(sign * f64::INFINITY);
    }
    if lower.starts_with("nan") {
        return Ok(f64::NAN);
    }
    if let Some(digits) = lower.strip_prefix("0x") {
        return hexadecimal(digits).map(|value| sign * value);
    }
    // The longest beginning that is a number.
    let numbers = (1..=lower.len())
        .rev()
        .filter_map(|end| lower.get(..end))
        .filter(|text| !text.contains(['i', 'n', '+', '-']) || text.contains('e'));
    let mut numbers = numbers.filter(|text| text.starts_with(|first: char| first.is_ascii_digit() || first == '.'));
    let Some((found, value)) = numbers.find_map(|text| Some((text, text.parse::<f64>().ok()?))) else {
        return Err(ErrorKind::InvalidNumber);
    };
    let is_zero = !found.split('e').next().unwrap_or("").contains(|digit: char| ('1'..='9').contains(&digit));
    if value.is_infinite() || (value < f64::MIN_POSITIVE && !is_zero) {
        return Err(ErrorKind::NumberOutOfRange);
    }
    Ok(sign * value)
}

fn hexadecimal(digits: &str) -> Result<f64, ErrorKind> {
    let (mut value, mut scale, mut is_fraction, mut rest) = (0.0, 1.0, false, "");
    for (place, letter) in digits.char_indices() {
        match letter.to_digit(16) {
            Some(digit) => {
                value = value * 16.0 + f64::from(digit);
                scale *= if is_fraction { 16.0 } else { 1.0 };
            }
            None if letter == '.' && !is_fraction => is_fraction = true,
            None => {
                rest = &digits[place..];
                break;
            }
        }
    }
    let (sign, power) = sign_of(rest.strip_prefix('p').unwrap_or(""));
    let power: String = power.chars().take_while(char::is_ascii_digit).collect();
    // Beyond these powers any digits are out of range.
    let power = if power.is_empty() { 0 } else { sign as i32 * power.parse().unwrap_or(5000).min(5000) };
    scaled(value / scale, power)
}

/// A number times a power of two. Below the normal numbers it is out of range unless it is exact.
fn scaled(value: f64, power: i32) -> Result<f64, ErrorKind> {
    if value == 0.0 {
        return Ok(0.0);
    }
    // In two steps, as the power alone may be out of range.
    let halves = [power / 2, power - power / 2].map(|half| 2_f64.powi(half));
    let result = value * halves[0] * halves[1];
    let is_exact = result / halves[1] / halves[0] == value;
    if result.is_infinite() || (result < f64::MIN_POSITIVE && !is_exact) {
        return Err(ErrorKind::NumberOutOfRange);
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What PyTorch 2.11's parser answered (`settings_probe`).
    #[test]
    fn hexadecimal_numbers_have_a_range() {
        for text in ["+0x000.AAP1055", "0x1p-1080", "0x1p1024", "0x1p99999999999"] {
            assert_eq!(double(text), Err(ErrorKind::NumberOutOfRange), "{text}");
        }
        assert_eq!(double("0x0p5000"), Ok(0.0));
        assert_eq!(double("0x.8p-1021"), Ok(f64::MIN_POSITIVE));
        assert_eq!(double("0x1p-1060"), Ok(f64::from_bits(1 << 14)));
        assert_eq!(double("-0x1p1023"), Ok(-2_f64.powi(1023)));
    }
}
