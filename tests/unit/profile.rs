//! How a memory fraction becomes a limit.

use super::*;

/// What the real releases answer for 0.4 of 1 GiB, read back as fractions (spec 11.0).
#[test]
fn a_limit_is_rounded_as_the_release_rounds_it() {
    assert_eq!(LimitRounding::Down.limit(0.4, 1 << 30), 429_496_729);
    assert_eq!(LimitRounding::Nearest.limit(0.4, 1 << 30), 429_496_730);
    assert_eq!(LimitRounding::Nearest.limit(0.25, 1 << 30), 1 << 28);
}
