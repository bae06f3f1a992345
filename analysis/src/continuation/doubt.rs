//! Why it is not sure that a program that died fits, although everything that is estimated of its rest does.
//!
//! What later steps need is told from how many steps were seen, how much they differ, and how much is left free. Either the largest size
//! has come back, as it does where sizes are fixed, few or cut off at a longest one. Or so much is left free that even a larger size than
//! any seen fits: if sizes are spread over a range and `n` of them were seen, the range ends `x` times further above their common floor
//! than the largest with a chance of at most `x` to the power of `-n`, however many steps follow.

use super::Continuation;

/// Steps that must have come before.
const STEPS: usize = 4;
/// Two steps need the same if they differ by at most one part in this many of what the largest adds to what all of them find.
const SAME_PART: u64 = 50;
/// The largest size has come back if this many steps needed it ...
const RECURS: usize = 2;
/// ... or one more if more than this many were seen: then two are within a fiftieth by chance.
const FEW: usize = 10;
/// Sizes that come back still need this part of the largest free, because the estimate of the rest is not exact.
const LEAST_FREE_PART: u64 = 100;
/// The number of steps times the free part is to be this: then a larger size is seen with a chance of one in twenty (e to the power
/// of -3).
const SURE: u128 = 3;
/// Steps grow if each of so many is larger than the one before ...
const GROWING: usize = 4;
/// ... by more than one part in this many.
const GROWING_PART: u64 = 100;

/// Why the rest of a program cannot be told from its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// The program was never before where it failed.
    NoSteps,
    /// Too few steps came before: so many.
    FewSteps(usize),
    /// The steps leave more or less memory in use than they found.
    NotSteady,
    /// Each step needs more than the one before.
    Growing,
    /// The largest size was seen once, and too little is left free for a larger one.
    Margin,
}

impl Doubt {
    /// What makes the rest of this program doubtful, if anything. `free_bytes` is what would be left at its peak.
    #[must_use]
    pub fn about(continuation: Option<&Continuation>, free_bytes: u64) -> Option<Doubt> {
        let Some(continuation) = continuation else { return Some(Doubt::NoSteps) };
        let peaks: Vec<u64> = continuation.step_peaks.iter().copied().chain([continuation.failed_step_peak]).collect();
        // As many steps again would leave as much behind again.
        let left_bytes = continuation.left_by_step_bytes.saturating_mul(continuation.steps as u64);
        if continuation.steps < STEPS {
            Some(Doubt::FewSteps(continuation.steps))
        } else if !continuation.is_steady || left_bytes > free_bytes {
            Some(Doubt::NotSteady)
        } else if grow(&peaks) {
            Some(Doubt::Growing)
        } else if !largest_recurs(continuation, free_bytes) && !is_wide(&peaks, continuation.floor_bytes, free_bytes) {
            Some(Doubt::Margin)
        } else {
            None
        }
    }

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Doubt::NoSteps => "no_steps",
            Doubt::FewSteps(_) => "few_steps",
            Doubt::NotSteady => "not_steady",
            Doubt::Growing => "growing",
            Doubt::Margin => "margin",
        }
    }
}

/// Whether each of the latest steps needed more than the one before.
fn grow(peaks: &[u64]) -> bool {
    let is_larger = |pair: &[u64]| pair[1] > pair[0] + pair[0] / GROWING_PART;
    let latest = &peaks[peaks.len().saturating_sub(GROWING)..];
    latest.len() >= 3 && latest.windows(2).all(is_larger)
}

/// Whether several steps are known to have needed the largest size, and what the estimate may be wrong by is free.
fn largest_recurs(continuation: &Continuation, free_bytes: u64) -> bool {
    let certain = || continuation.step_peaks.iter().copied().chain([continuation.failed_step_certain_peak]);
    let largest = certain().max().unwrap_or(0).max(continuation.failed_step_peak);
    let same = largest - largest.saturating_sub(continuation.floor_bytes) / SAME_PART;
    let seen = certain().filter(|&peak| peak >= same).count();
    seen >= RECURS + usize::from(certain().count() > FEW) && free_bytes >= largest / LEAST_FREE_PART
}

/// Whether enough is left free for a size larger than any that was seen.
fn is_wide(peaks: &[u64], floor_bytes: u64, free_bytes: u64) -> bool {
    let largest = peaks.iter().copied().max().unwrap_or(0);
    u128::from(free_bytes) * peaks.len() as u128 >= SURE * u128::from(largest.saturating_sub(floor_bytes))
}

#[cfg(test)]
mod tests {
    use parkade_replay::Requests;

    use super::*;

    fn seen(step_peaks: &[u64], failed_step_peak: u64) -> Continuation {
        Continuation {
            requests: Requests::default(),
            recorded: 0,
            steps: step_peaks.len(),
            step_peaks: step_peaks.to_vec(),
            failed_step_peak,
            failed_step_certain_peak: failed_step_peak,
            floor_bytes: 200,
            left_by_step_bytes: 0,
            more_steps: 3,
            is_steady: true,
        }
    }

    fn doubt(step_peaks: &[u64], failed_step_peak: u64, free_bytes: u64) -> Option<Doubt> {
        Doubt::about(Some(&seen(step_peaks, failed_step_peak)), free_bytes)
    }

    #[test]
    fn a_largest_size_that_comes_back_leaves_no_doubt() {
        assert_eq!(doubt(&[1000; 4], 1000, 10), None, "all alike");
        assert_eq!(doubt(&[1000; 4], 1000, 9), Some(Doubt::Margin), "less than a hundredth is free");
        assert_eq!(doubt(&[1000, 700, 900, 800], 990, 10), None, "the failed step needed what the first did");
        let guessed = Continuation { failed_step_certain_peak: 600, ..seen(&[1000, 700, 900, 800], 1000) };
        assert_eq!(Doubt::about(Some(&guessed), 10), Some(Doubt::Margin), "an estimate is no second time");
        assert_eq!(doubt(&[1000, 700, 900, 800], 980, 10), Some(Doubt::Margin), "they differ by a fortieth");
        let many = [1000, 750, 700, 650, 600, 550, 500, 450, 400, 350, 300];
        assert_eq!(doubt(&many, 1000, 10), Some(Doubt::Margin), "two of twelve are alike by chance");
        assert_eq!(doubt(&[&many[..], &[995, 250]].concat(), 1000, 10), None);
    }

    #[test]
    fn sizes_of_a_range_need_room_for_larger_ones() {
        // Five steps, the largest 800 above the floor: 480 free bytes are three fifths.
        assert_eq!(doubt(&[600, 900, 700, 800], 1000, 479), Some(Doubt::Margin));
        assert_eq!(doubt(&[600, 900, 700, 800], 1000, 480), None);
        // With thirty of them, a tenth is enough.
        let many: Vec<u64> = (0..29).map(|step| 900 - 170 * step % 500).collect();
        assert_eq!((doubt(&many, 1000, 79), doubt(&many, 1000, 80)), (Some(Doubt::Margin), None));
    }

    #[test]
    fn each_doubt_has_its_reason() {
        assert_eq!(Doubt::about(None, 1000), Some(Doubt::NoSteps));
        assert_eq!(doubt(&[1000, 900], 1010, 1000), Some(Doubt::FewSteps(2)));
        assert_eq!(doubt(&[400, 500, 600, 700], 800, 1000), Some(Doubt::Growing));
        let leaking = Continuation { left_by_step_bytes: 30, ..seen(&[1000; 4], 1000) };
        assert_eq!(Doubt::about(Some(&leaking), 119), Some(Doubt::NotSteady), "four more steps leave 120 bytes");
        assert_eq!(Doubt::about(Some(&leaking), 120), None);
    }
}
