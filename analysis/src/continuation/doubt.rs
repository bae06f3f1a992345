//! Why it is not sure that a program that died fits, although everything that is estimated of its rest does.

use super::Continuation;

/// Steps that must have come before.
const STEPS: usize = 3;
/// The second largest step must be at least this part of the largest, in hundredths.
const SECOND_PERCENT: u64 = 65;
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
    /// The largest step needs far more than any other, so later ones may need more still.
    Outlier,
    /// An earlier step needed more than the one that failed, so what made it fail was not its size.
    NotLargest,
}

impl Doubt {
    /// What makes the rest of this program doubtful, if anything.
    #[must_use]
    pub fn about(continuation: Option<&Continuation>) -> Option<Doubt> {
        let Some(continuation) = continuation else { return Some(Doubt::NoSteps) };
        let failed = continuation.failed_step_peak;
        let mut peaks = continuation.step_peaks.clone();
        peaks.push(failed);
        let is_larger = |pair: &[u64]| pair[1] > pair[0] + pair[0] / GROWING_PART;
        let latest = &peaks[peaks.len().saturating_sub(GROWING)..];
        let grows = latest.len() >= 3 && latest.windows(2).all(is_larger);
        peaks.sort_unstable_by(|a, b| b.cmp(a));
        let (largest, second) = (peaks[0], peaks.get(1).copied().unwrap_or(0));
        if continuation.steps < STEPS {
            Some(Doubt::FewSteps(continuation.steps))
        } else if !continuation.is_steady {
            Some(Doubt::NotSteady)
        } else if grows {
            Some(Doubt::Growing)
        } else if second < largest / 100 * SECOND_PERCENT {
            Some(Doubt::Outlier)
        } else if failed < largest - largest / 50 {
            Some(Doubt::NotLargest)
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
            Doubt::Outlier => "outlier",
            Doubt::NotLargest => "not_largest",
        }
    }
}

#[cfg(test)]
mod tests {
    use parkade_replay::Requests;

    use super::*;

    fn doubt(step_peaks: &[u64], failed_step_peak: u64) -> Option<Doubt> {
        Doubt::about(Some(&Continuation {
            requests: Requests::default(),
            recorded: 0,
            steps: step_peaks.len(),
            step_peaks: step_peaks.to_vec(),
            failed_step_peak,
            more_steps: 3,
            is_steady: true,
        }))
    }

    #[test]
    fn steps_of_a_known_range_leave_no_doubt() {
        assert_eq!(doubt(&[1000, 700, 900], 1010), None);
        assert_eq!(doubt(&[1000, 1000, 1000], 1000), None, "all alike");
    }

    #[test]
    fn each_doubt_has_its_reason() {
        assert_eq!(Doubt::about(None), Some(Doubt::NoSteps));
        assert_eq!(doubt(&[1000, 900], 1010), Some(Doubt::FewSteps(2)));
        assert_eq!(doubt(&[500, 600, 700], 800), Some(Doubt::Growing));
        assert_eq!(doubt(&[500, 300, 400], 1000), Some(Doubt::Outlier));
        assert_eq!(doubt(&[1000, 900, 800], 700), Some(Doubt::NotLargest));
    }
}
