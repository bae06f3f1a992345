//! Makes `PARKADE_SOURCES`, a number that changes when decisions could: a hash of the sources of the core (with the policies), of the
//! simulated device, of the workloads and of the studies, without their tests. It follows from the files alone, so that it is the same on
//! every machine that builds these sources, in whatever folder and with or without a repository around them.
#![allow(clippy::print_stdout, reason = "this is how cargo is told")]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What decides a study's rows, from this package's folder. Recordings are not in it: their workloads are compared by their own hash.
const DECIDING: [&str; 5] = ["../src", "src/device", "src/random.rs", "src/study", "src/workload"];

fn main() -> io::Result<()> {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| io::Error::other("cargo names no folder"))?);
    DECIDING.iter().for_each(|root| println!("cargo:rerun-if-changed={root}"));
    println!("cargo:rustc-env=PARKADE_SOURCES={:016x}", sources_hash(&package)?);
    Ok(())
}

/// The hash of what decides, beside and below a package's folder.
pub(crate) fn sources_hash(package: &Path) -> io::Result<u64> {
    let mut hash = Fnv::new();
    for root in DECIDING {
        let mut files = Vec::new();
        collect(&package.join(root), root, &mut files)?;
        // A folder's own order differs between file systems.
        files.sort_unstable();
        for (name, path) in files {
            hash.text(name.as_bytes());
            hash.text(&fs::read(path)?);
        }
    }
    Ok(hash.0)
}

/// All Rust files at or below a path, by their names with `/` on every system.
fn collect(path: &Path, name: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    if !path.is_dir() {
        if name.ends_with(".rs") && !name.ends_with("/tests.rs") {
            files.push((name.to_owned(), path.to_owned()));
        }
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        collect(&entry.path(), &format!("{name}/{}", entry.file_name().to_string_lossy()), files)?;
    }
    Ok(())
}

/// FNV-1a with 64 bits.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    /// Bytes and an end that no UTF-8 has. Line ends count as they are in the repository, also where a checkout made others.
    fn text(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().filter(|byte| **byte != b'\r').chain(&[0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
