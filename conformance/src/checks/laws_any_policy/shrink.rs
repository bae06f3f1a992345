//! Removing unneeded steps from a failing program: proptest shrinks its values and length within a budget, and may leave steps
//! that the failure does not need.

/// Removes steps while `fails` says that the program still fails, until no single step can be removed. A program that does not
/// fail is returned unchanged.
pub(super) fn without_needless<S: Copy>(steps: Vec<S>, mut fails: impl FnMut(&[S]) -> bool) -> Vec<S> {
    if !fails(&steps) {
        return steps;
    }
    let mut left = steps;
    // Start with many steps at once, which takes fewer runs, and from the end, because few steps depend on the last ones.
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
        // 41 cannot be removed before 40.
        let fails = |steps: &[u32]| steps.contains(&7) && steps.contains(&93) && (!steps.contains(&40) || steps.contains(&41));
        assert_eq!(without_needless(steps, fails), [7, 93]);
        assert_eq!(without_needless(vec![1, 2], |_| false), [1, 2]);
        assert_eq!(without_needless(vec![1, 2], |_| true), [0; 0]);
    }

    #[test]
    fn a_step_that_can_go_after_another_goes() {
        // Each step needs the next one: only the last can be removed at any time, except the first, which is the failure.
        let fails = |steps: &[u32]| steps.first() == Some(&0) && steps.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert_eq!(without_needless((0..50).collect(), fails), [0]);
        let fails = |steps: &[u32]| steps.last() == Some(&9) && steps.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert_eq!(without_needless((0..10).collect(), fails), [9]);
    }
}
