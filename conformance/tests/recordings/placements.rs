//! Tests that the suite's copy of real placements, which `parkade conform` reads without the recordings, is theirs.

use parkade_replay::placed_steps;

use super::read;

const TEXT: &str = include_str!("../../src/reference_device/placements.txt");

#[test]
fn the_copy_of_real_placements_is_that_of_the_recordings() {
    let mut copies: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in TEXT.lines() {
        match line.split_once(" explained ") {
            Some((name, _)) => copies.push((name, Vec::new())),
            None => copies.last_mut().expect("a name first").1.extend(line.split(' ')),
        }
    }
    assert_eq!(copies.len(), 5);
    for (name, words) in copies {
        let steps = placed_steps(read(name).device());
        let sign = |taken| if taken { '+' } else { '-' };
        let word =
            |moment, taken, address: u64, bytes: u64| format!("{moment}{}{:x},{}", sign(taken), address >> 21, bytes >> 21);
        let expected: Vec<String> = steps.iter().map(|step| word(step.moment, step.taken, step.address, step.bytes)).collect();
        assert_eq!(words, expected, "{name}");
    }
}
