//! Searches for the smallest number that is enough, even if some larger numbers are not.
//!
//! Bisection finds *a* threshold: a number that is enough next to one that is not. Being enough need not be monotone, so
//! there may be other thresholds below it. The search therefore tries further numbers below it, evenly spaced, in ascending
//! order; below the first that is enough, it continues in the same way. The result is the smallest number tried that is
//! enough.

/// The property that is searched for. An implementation tries each number once and remembers the result.
pub(crate) trait Trials {
    /// Whether a number is enough.
    fn is_enough(&mut self, number: u64) -> bool;
    /// The number of numbers that have been tried.
    fn tried(&self) -> usize;
}

/// The smallest number that was found to be enough. `enough` is known to be enough, and 0 is known not to be. After the
/// bisection, at most `further` numbers are tried below the result, not counting the bisections there.
pub(crate) fn smallest(trials: &mut impl Trials, enough: u64, further: usize) -> u64 {
    let mut enough = bisect(trials, 0, enough);
    let last = trials.tried() + further;
    while let Some(less) = scan(trials, enough, last) {
        enough = less;
    }
    enough
}

/// A number that is enough, next to one that is not, between `short` and `enough`.
fn bisect(trials: &mut impl Trials, mut short: u64, mut enough: u64) -> u64 {
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if trials.is_enough(middle) {
            enough = middle;
        } else {
            short = middle;
        }
    }
    enough
}

/// Tries numbers below `enough` in ascending order, until a total of `last` numbers have been tried. Returns a threshold
/// below the first that is enough, if any is.
fn scan(trials: &mut impl Trials, enough: u64, last: usize) -> Option<u64> {
    let left = last.saturating_sub(trials.tried()) as u64;
    let points = left.min(enough - 1);
    let mut short = 0;
    for point in 1..=points {
        let number = enough * point / (points + 1);
        if trials.is_enough(number) {
            return Some(bisect(trials, short, number));
        }
        short = number;
    }
    None
}
