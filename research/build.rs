//! Makes `PARKADE_SOURCES`, a number that changes when a study's rows could: a hash of the sources of the crates that decide a row's numbers,
//! without their tests, and of the releases of the packages that generators draw from, as `Cargo.lock` has them.
//!
//! It follows from the files alone, so it is the same on every machine that builds these sources, in whatever folder and with or without a
//! repository around them. A package from a registry has none of the other crates beside it: its version stands for all of them.
#![allow(clippy::print_stdout, reason = "this is how cargo is told")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The crates that decide a row's numbers, from this package's folder: the core, the policies, the simulated device, and this one.
/// Recordings are not among them: their workloads are compared by a hash of their own.
pub(crate) const DECIDING: [&str; 4] = ["../src", "../policies/src", "../sim/src", "src"];
/// The packages whose numbers are in a row, each with what it is built on.
pub(crate) const PACKAGES: [&str; 1] = ["statrs"];
/// What these are built with and that computes nothing: texts of errors, and looking at the compiler.
const TOOLS: [&str; 2] = ["thiserror", "autocfg"];

fn main() -> io::Result<()> {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| io::Error::other("cargo names no folder"))?);
    let is_alone = DECIDING.iter().any(|root| !package.join(root).is_dir());
    let sources = if is_alone {
        "registry".to_owned()
    } else {
        DECIDING.iter().chain(&["../Cargo.lock"]).for_each(|root| println!("cargo:rerun-if-changed={root}"));
        format!("{:016x}", sources_hash(&package)?)
    };
    println!("cargo:rustc-env=PARKADE_SOURCES={sources}");
    Ok(())
}

/// The hash of what decides, beside and below a package's folder.
pub(crate) fn sources_hash(package: &Path) -> io::Result<u64> {
    let mut hash = Fnv::new();
    for (name, path) in deciding_files(package)? {
        hash.text(name.as_bytes());
        hash.text(&fs::read(path)?);
    }
    for release in releases(&fs::read_to_string(package.join("../Cargo.lock"))?)? {
        hash.text(release.as_bytes());
    }
    Ok(hash.0)
}

/// The sources that decide, by their names from the package's folder, with `/` on every system.
pub(crate) fn deciding_files(package: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for root in DECIDING {
        let mut files = Vec::new();
        collect(&package.join(root), root, &mut files)?;
        // A folder's own order differs between file systems.
        files.sort_unstable();
        all.append(&mut files);
    }
    Ok(all)
}

/// All Rust files at or below a path, but those that only tests have.
fn collect(path: &Path, name: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    if !path.is_dir() {
        if name.ends_with(".rs") {
            files.push((name.to_owned(), path.to_owned()));
        }
        return Ok(());
    }
    let tests = tests_of(&path.join("mod.rs")).or_else(|_| tests_of(&path.join("lib.rs"))).unwrap_or_default();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let own = entry.file_name().to_string_lossy().into_owned();
        let module = own.trim_end_matches(".rs");
        if module != "tests" && !tests.contains(module) {
            collect(&entry.path(), &format!("{name}/{own}"), files)?;
        }
    }
    Ok(())
}

/// The modules that a file has for its tests only.
fn tests_of(file: &Path) -> io::Result<BTreeSet<String>> {
    let text = fs::read_to_string(file)?;
    let lines: Vec<&str> = text.lines().collect();
    let module = |pair: &[&str]| {
        let name = pair[1].trim_start_matches("pub(crate) ").strip_prefix("mod ")?.strip_suffix(';')?;
        (pair[0] == "#[cfg(test)]").then(|| name.to_owned())
    };
    Ok(lines.windows(2).filter_map(module).collect())
}

/// The releases of [`PACKAGES`] and of what they are built on, a line each, as a lock file has them.
fn releases(lock: &str) -> io::Result<BTreeSet<String>> {
    let packages: Vec<Package<'_>> = lock.split("[[package]]").skip(1).map(Package::read).collect();
    // A name, and a release where the lock file has several of that name.
    let mut wanted = PACKAGES.map(str::to_owned).to_vec();
    let mut found = BTreeSet::new();
    while let Some(entry) = wanted.pop() {
        let mut words = entry.split(' ');
        let (name, version) = (words.next().unwrap_or_default(), words.next());
        if TOOLS.contains(&name) {
            continue;
        }
        let is_it = |package: &&Package<'_>| package.name == name && version.is_none_or(|version| version == package.version);
        let of_name: Vec<&Package<'_>> = packages.iter().filter(is_it).collect();
        if of_name.is_empty() {
            return Err(io::Error::other(format!("Cargo.lock has no package {entry:?}")));
        }
        for package in of_name {
            if found.insert(format!("{} {} {}", package.name, package.version, package.checksum)) {
                wanted.extend(package.dependencies.iter().map(|&dependency| dependency.to_owned()));
            }
        }
    }
    Ok(found)
}

/// A package of a lock file.
#[derive(Default)]
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    checksum: &'a str,
    dependencies: Vec<&'a str>,
}

impl<'a> Package<'a> {
    /// What stands between two `[[package]]`: a line a value, and a line a dependency.
    fn read(text: &'a str) -> Package<'a> {
        let mut package = Package::default();
        for line in text.lines() {
            let value = |text: &'a str| text.trim_matches(&['"', ','][..]);
            match line.split_once(" = ") {
                Some(("name", name)) => package.name = value(name),
                Some(("version", version)) => package.version = value(version),
                Some(("checksum", checksum)) => package.checksum = value(checksum),
                None if line.starts_with(" \"") => package.dependencies.push(value(line.trim_start())),
                _ => {}
            }
        }
        package
    }
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
