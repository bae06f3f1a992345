//! The build that creates rows: rows of different builds cannot be compared, because a build may decide differently.
//!
//! `research/build.rs` computes the hashes. Only what affects a policy's rows is in the policy's build, so that an edit of one
//! policy leaves the rows of the others valid.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::OnceLock;

/// The version, and the hash of what determines every row.
pub const COMMON_BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("PARKADE_SOURCES"));

/// The hashes of the catalogue's policies, as `name=hash`.
const POLICIES: &str = env!("PARKADE_POLICIES");

/// Returns the build that creates the rows of the policy with this name, which has no parameters: [`COMMON_BUILD`] and a hash of
/// what else determines the rows. For a policy that the program itself declares, that is the program's file.
#[must_use]
pub fn build_of(policy: &str) -> String {
    let known = POLICIES.split_whitespace().filter_map(|entry| entry.split_once('='));
    match known.into_iter().find(|(name, _)| *name == policy) {
        Some((_, hash)) => format!("{COMMON_BUILD}-{hash}"),
        // A crate from a registry is known by its version.
        None if parkade_policies::ENTRIES.iter().any(|entry| entry.name == policy) => format!("{COMMON_BUILD}-registry"),
        None => format!("{COMMON_BUILD}-{}", program()),
    }
}

/// Returns a hash of all builds: two programs with the same one create the same rows under every policy of the catalogue.
#[must_use]
pub fn entire_build() -> String {
    format!("{COMMON_BUILD}-{:016x}", POLICIES.bytes().fold(OFFSET, mix))
}

/// Returns a hash of the running program's file; a program that cannot be read is known by its process.
fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| hash_of_program().unwrap_or_else(|_| format!("process{}", std::process::id())))
}

fn hash_of_program() -> io::Result<String> {
    let mut file = BufReader::new(File::open(std::env::current_exe()?)?);
    let (mut piece, mut hash) = (vec![0; 1 << 16], OFFSET);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("{hash:016x}")),
            length => hash = piece[..length].iter().copied().fold(hash, mix),
        }
    }
}

/// FNV-1a, 64 bits.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

fn mix(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_its_build_and_one_that_a_program_declares_has_the_program_s() {
        let builds: std::collections::BTreeSet<String> =
            parkade_policies::ENTRIES.iter().map(|entry| build_of(entry.name)).collect();
        assert_eq!(builds.len(), parkade_policies::ENTRIES.len(), "{builds:?}");
        assert!(builds.iter().all(|build| build.starts_with(COMMON_BUILD) && !build.ends_with("registry")), "{builds:?}");
        assert_eq!(build_of("mine"), build_of("yours"));
        assert!(!builds.contains(&build_of("mine")) && !build_of("mine").contains("process"), "{}", build_of("mine"));
    }
}
