//! A clone takes back what its originals made, however many there are.

use alloc::vec::Vec;

use super::*;

#[test]
fn a_clone_accepts_what_its_originals_made_and_no_other() {
    let mut line: Vec<Identity> = [Identity::new()].into();
    let mut siblings: Vec<Identity> = Vec::new();
    for place in 0..100 {
        siblings.push(line[place].of_clone());
        line.push(line[place].of_clone());
    }
    for (place, identity) in line.iter().enumerate() {
        assert!(line.iter().enumerate().all(|(other, one)| identity.accepts(one.own()) == (other <= place)));
        assert!(!siblings.iter().any(|sibling| identity.accepts(sibling.own())));
    }
}

#[test]
fn the_way_to_an_original_is_short_and_their_end_needs_no_stack() {
    let mut last = Identity::new();
    let first = last.own();
    for _ in 0..100_000 {
        last = last.of_clone();
    }
    assert!(last.accepts(first) && !last.accepts(Maker(usize::MAX)));
    let way = iter::successors(last.original.as_deref(), |one| one.toward(Maker(0)));
    assert!(way.count() < 50);
}
