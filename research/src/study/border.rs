//! The least number that suffices, where a larger one may not.
//!
//! A bisection finds *a* border: a number that suffices beside one that does not. Where sufficing need not be monotone there may be others
//! below, so that further numbers are tried there, evenly spread and upward, and below the first that suffices it goes on in the same
//! way. What is found is the least of the numbers tried that suffices.

/// What is searched. Each number should be looked at once, and remembered.
pub(crate) trait Border {
    /// Whether a number suffices.
    fn suffices(&mut self, number: u64) -> bool;
    /// How many numbers have been looked at.
    fn tried(&self) -> usize;
}

/// The least number that was found to suffice: `enough` does, and 0 does not. After the bisection at most `further` numbers begin a look
/// below, and those of a bisection there.
pub(crate) fn least(border: &mut impl Border, enough: u64, further: usize) -> u64 {
    let mut enough = bisect(border, 0, enough);
    let last = border.tried() + further;
    while let Some(less) = scan(border, enough, last) {
        enough = less;
    }
    enough
}

/// A border between a number that does not suffice and one that does: the latter.
fn bisect(border: &mut impl Border, mut short: u64, mut enough: u64) -> u64 {
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if border.suffices(middle) {
            enough = middle;
        } else {
            short = middle;
        }
    }
    enough
}

/// Tries numbers below, upward, until so many have been tried: a border below the first that suffices, if any does.
fn scan(border: &mut impl Border, enough: u64, last: usize) -> Option<u64> {
    let left = last.saturating_sub(border.tried()) as u64;
    let points = left.min(enough - 1);
    let mut short = 0;
    for point in 1..=points {
        let number = enough * point / (points + 1);
        if border.suffices(number) {
            return Some(bisect(border, short, number));
        }
        short = number;
    }
    None
}
