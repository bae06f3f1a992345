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

/// A double as `strtod` reads it. Hexadecimal ones are expected to be short enough to be exact.
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
        return Ok(sign * hexadecimal(digits));
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

fn hexadecimal(digits: &str) -> f64 {
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
    let power = rest.strip_prefix('p').unwrap_or("");
    let (sign, power) = sign_of(power);
    let power: String = power.chars().take_while(char::is_ascii_digit).collect();
    let power = sign as i32 * power.parse().unwrap_or(0);
    value / scale * 2_f64.powi(power)
}
