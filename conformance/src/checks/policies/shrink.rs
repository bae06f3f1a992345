//! What can be left out of a failing program: proptest makes its values smaller and cuts it, within a budget; what it leaves may
//! have steps that the failure does not need.

/// The steps without those that can go: `fails` says whether a program still fails. Nothing more can go one by one. A program
/// that does not fail stays as it is.
pub(super) fn without_needless<S: Copy>(steps: Vec<S>, mut fails: impl FnMut(&[S]) -> bool) -> Vec<S> {
    if !fails(&steps) {
        return steps;
    }
    let mut left = steps;
    // First many together, which takes fewer runs where much can go; the last ones first, which others hardly need.
    let mut together = (left.len() / 2).max(1);
    loop {
        let before = left.len();
        let mut end = left.len();
        while end > 0 {
            let start = end.saturating_sub(together);
            let shorter = [&left[..start], &left[end..]].concat();
            if fails(&shorter) {
                left = shorter;
            }
            end = start;
        }
        match together {
            1 if left.len() == before => return left,
            1 => {}
            _ => together /= 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_together_stays_and_nothing_else() {
        let steps: Vec<u32> = (0..100).collect();
        // Of 40 and 41 the second cannot go before the first.
        let fails = |steps: &[u32]| steps.contains(&7) && steps.contains(&93) && (!steps.contains(&40) || steps.contains(&41));
        assert_eq!(without_needless(steps, fails), [7, 93]);
        assert_eq!(without_needless(vec![1, 2], |_| false), [1, 2]);
        assert_eq!(without_needless(vec![1, 2], |_| true), [0; 0]);
    }

    #[test]
    fn a_step_that_can_go_after_another_goes() {
        // Each step is needed by the one before it: only the last can go at any time, but for the first, which is the failure.
        let fails = |steps: &[u32]| steps.first() == Some(&0) && steps.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert_eq!(without_needless((0..50).collect(), fails), [0]);
        let fails = |steps: &[u32]| steps.last() == Some(&9) && steps.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert_eq!(without_needless((0..10).collect(), fails), [9]);
    }
}
