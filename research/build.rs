//! Sets `PARKADE_SOURCES`, which changes whenever a study's rows might: a hash of the sources, without tests, of the crates
//! that determine a row's numbers, and of the versions in `Cargo.lock` of the packages that generators compute with.
//!
//! The hash depends only on the files, so it is the same on every machine that builds these sources, in any folder, with or
//! without a repository. A package from a registry does not have the other crates beside it; in that case, its version stands
//! for all of them.
#![allow(clippy::print_stdout, reason = "a build script talks to cargo this way")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The sources of the crates that determine a row's numbers, relative to this package: the core, the policies, the simulated
/// device and this crate. The crates that read recordings are not among them: a recording's workload has its own hash in each
/// row.
pub(crate) const DECIDING: [&str; 4] = ["../src", "../policies/src", "../sim/src", "src"];
/// The packages whose results affect a row, along with their dependencies.
pub(crate) const PACKAGES: [&str; 1] = ["statrs"];
/// Dependencies of these packages that compute nothing: error messages and compiler checks.
const TOOLS: [&str; 2] = ["thiserror", "autocfg"];

fn main() -> io::Result<()> {
    let package = PathBuf::from(
        env::var_os("CARGO_MANIFEST_DIR")
            .ok_or_else(|| io::Error::other("CARGO_MANIFEST_DIR is not set: run this script through cargo"))?,
    );
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

/// Returns the hash of everything that determines a row, for a package in this folder.
pub(crate) fn sources_hash(package: &Path) -> io::Result<u64> {
    let mut hash = Fnv::new();
    for (name, path) in deciding_files(package)? {
        hash.text(name.as_bytes());
        hash.text(without_tests(&fs::read_to_string(path)?).as_bytes());
    }
    for release in releases(&fs::read_to_string(package.join("../Cargo.lock"))?)? {
        hash.text(release.as_bytes());
    }
    Ok(hash.0)
}

/// Returns a file's text without its test module and without carriage returns.
fn without_tests(text: &str) -> String {
    let text = text.replace('\r', "");
    let module =
        ["mod tests {", "pub(super) mod tests {", "pub(crate) mod tests {"].map(|line| format!("\n#[cfg(test)]\n{line}\n"));
    let Some(start) = module.iter().find_map(|module| text.find(module)) else { return text };
    let length = text[start..].find("\n}\n").map_or(text.len() - start, |end| end + 2);
    format!("{}{}", &text[..start], &text[start + length..])
}

/// Returns the source files that determine a row, with their names relative to the package, using `/` on every system.
pub(crate) fn deciding_files(package: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for root in DECIDING {
        let mut files = Vec::new();
        collect(&package.join(root), root, &mut files)?;
        // File systems list folders in different orders.
        files.sort_unstable();
        all.append(&mut files);
    }
    Ok(all)
}

/// Collects all Rust files at or below a path.
fn collect(path: &Path, name: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    if !path.is_dir() {
        if name.ends_with(".rs") {
            files.push((name.to_owned(), path.to_owned()));
        }
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let own = entry.file_name().to_string_lossy().into_owned();
        collect(&entry.path(), &format!("{name}/{own}"), files)?;
    }
    Ok(())
}

/// Returns the versions of [`PACKAGES`] and their dependencies from a lock file, one line each.
fn releases(lock: &str) -> io::Result<BTreeSet<String>> {
    let packages: Vec<Package<'_>> = lock.split("[[package]]").skip(1).map(Package::read).collect();
    // A dependency is a name, followed by a version if the lock file has several packages with that name.
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

/// A package in a lock file.
#[derive(Default)]
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    checksum: &'a str,
    dependencies: Vec<&'a str>,
}

impl<'a> Package<'a> {
    /// Reads the text between two `[[package]]` lines: one value or one dependency per line.
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

/// FNV-1a, 64 bits.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    /// Hashes bytes, followed by an end mark that is not UTF-8. Carriage returns are skipped, so that a checkout may change
    /// line endings.
    fn text(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().filter(|byte| **byte != b'\r').chain(&[0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
