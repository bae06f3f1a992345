//! When two releases decide alike.

use super::super::TieBreak;
use super::*;

#[test]
fn rules_of_what_a_program_does_not_use_do_not_matter() {
    let (old, new) = (Profile::PYTORCH_2_11, Profile::PYTORCH_2_15);
    let plain = Scope { expandable_segments: false, private_pools: false, checkpoints: false, one_division: false };
    assert!(!old.decides_like(&new, plain), "another of equal blocks");
    let with_ties_as_old = Profile { tie_break: TieBreak::Address, ..new };
    assert!(old.decides_like(&with_ties_as_old, plain));
    assert!(!old.decides_like(&with_ties_as_old, Scope { private_pools: true, ..plain }));
    assert!(!old.decides_like(&with_ties_as_old, Scope { expandable_segments: true, ..plain }));
    assert!(new.decides_like(&new, Scope::EVERYTHING));
}
