//! The value of `--fail-above`: a percentage or a size.

use parkade_analysis::diff::Bound;

use crate::terminal::size;

/// Digits of a percentage behind the point that count.
const DIGITS: usize = 6;

/// A bound as it was given.
#[derive(Clone)]
pub(super) struct Above {
    pub(super) text: String,
    pub(super) bound: Bound,
}

impl Above {
    /// Reads `2%`, `0.5 %` or a size.
    ///
    /// # Errors
    /// A line that names the text and what is accepted.
    pub(super) fn parse(text: &str) -> Result<Above, String> {
        let bound = match text.trim().strip_suffix('%') {
            Some(percent) => {
                let micro_percent = micro_percent(percent.trim());
                let refused = || format!("{text:?} is not a percentage: write 2% or 0.5%");
                Bound::Growth { micro_percent: micro_percent.ok_or_else(refused)? }
            }
            None => {
                let refused = |error: String| match error.strip_suffix('?') {
                    Some(question) => format!("{question}, or a percentage (2%)?"),
                    None => format!("{error}, or a percentage (2%)"),
                };
                Bound::Peak { bytes: size::parse(text).map_err(refused)? }
            }
        };
        Ok(Above { text: text.trim().to_owned(), bound })
    }

    /// Whether it compares two runs.
    pub(super) fn needs_two(&self) -> bool {
        matches!(self.bound, Bound::Growth { .. })
    }
}

/// A decimal number of percent in millionths; further digits are cut off.
fn micro_percent(number: &str) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() + fraction.len() == 0 || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(DIGITS).collect();
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    whole.checked_mul(1_000_000)?.checked_add(fraction.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_and_sizes() {
        let read = |text| Above::parse(text).map(|above| above.bound).ok();
        let growth = |micro_percent| Some(Bound::Growth { micro_percent });
        assert_eq!(read("2%"), growth(2_000_000));
        assert_eq!(read(" 0.5 % "), growth(500_000));
        assert_eq!(read(".1234567%"), growth(123_456));
        assert_eq!(read("0%"), growth(0));
        assert_eq!(read("14GiB"), Some(Bound::Peak { bytes: 14 << 30 }));
        for text in ["%", "-2%", "two%", "1.2.3%", "1e3%", ".%", "99999999999999999999%", "", "x"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
