//! The input of an execution, which follows from the seed, the target and the execution's number alone.

use crate::choices::Choices;
use crate::targets::{CASES, Target};

/// What a target is run on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    /// The choices from which the bytes were made.
    pub choices: Vec<u8>,
    /// The bytes that the target reads.
    pub bytes: Vec<u8>,
    /// The options of a command.
    pub case: u8,
}

/// The input of this number.
#[must_use]
pub fn input(target: &Target, seed: u64, number: u64) -> Input {
    let name =
        target.name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut random = fastrand::Rng::with_seed(name ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.rotate_left(32));
    // Short ones are simple and fast; few are long.
    let longest = if random.u8(..8) == 0 { 4096 } else { 512 };
    let mut choices = vec![0; random.usize(16..longest)];
    random.fill(&mut choices);
    let case = random.u8(..CASES);
    let bytes = (target.make)(&mut Choices::new(&choices));
    Input { choices, bytes, case }
}
