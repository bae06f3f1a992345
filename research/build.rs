//! Sets `PARKADE_SOURCES` and `PARKADE_POLICIES`, which change whenever a study's rows might. The first is a hash of what
//! determines every row: the sources, without tests, of the core, the simulated device and this crate, and the versions in
//! `Cargo.lock` of the packages that generators compute with. The second has a hash for each policy: that of the file that
//! declares the policy and of all files of the crate of policies that this file uses. An edit of one policy therefore leaves
//! the rows of the others valid.
//!
//! The hashes depend only on the files, so they are the same on every machine that builds these sources, in any folder, with
//! or without a repository. A package from a registry does not have the other crates beside it; in that case, its version
//! stands for all of them.
#![allow(clippy::print_stdout, reason = "a build script talks to cargo this way")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The sources of the crates that determine every row's numbers, relative to this package: the core, the simulated device
/// and this crate. The crates that read recordings are not among them: a recording's workload has its own hash in each row.
pub(crate) const DECIDING: [&str; 3] = ["../src", "../sim/src", "src"];
/// The sources of the policies, each of which determines the rows of the policies that use it.
pub(crate) const POLICIES: &str = "../policies/src";
/// The files of the policies' crate that determine no number: its list of modules, and the list of policies with the search
/// by name. A row states the policy's name.
pub(crate) const LISTS: [&str; 2] = ["lib", "catalogue"];
/// The packages whose results affect a row, along with their dependencies.
pub(crate) const PACKAGES: [&str; 1] = ["statrs"];
/// Dependencies of these packages that compute nothing: error messages and compiler checks.
const TOOLS: [&str; 2] = ["thiserror", "autocfg"];

fn main() -> io::Result<()> {
    let package = PathBuf::from(
        env::var_os("CARGO_MANIFEST_DIR")
            .ok_or_else(|| io::Error::other("CARGO_MANIFEST_DIR is not set: run this script through cargo"))?,
    );
    let is_alone = DECIDING.iter().chain(&[POLICIES]).any(|root| !package.join(root).is_dir());
    let (sources, policies) = if is_alone {
        ("registry".to_owned(), String::new())
    } else {
        DECIDING.iter().chain(&[POLICIES, "../Cargo.lock"]).for_each(|root| println!("cargo:rerun-if-changed={root}"));
        let hashes = Hashes::of(&package)?;
        let policies = hashes.policies.iter().map(|(name, hash)| format!("{name}={hash:016x} "));
        (format!("{:016x}", hashes.common), policies.collect())
    };
    println!("cargo:rustc-env=PARKADE_SOURCES={sources}");
    println!("cargo:rustc-env=PARKADE_POLICIES={policies}");
    Ok(())
}

/// The hashes of everything that determines a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hashes {
    /// The hash of what determines every row.
    pub(crate) common: u64,
    /// The hash of what else determines each policy's rows, by the policy's name without parameters.
    pub(crate) policies: BTreeMap<String, u64>,
}

impl Hashes {
    /// Computes the hashes for a package in this folder.
    pub(crate) fn of(package: &Path) -> io::Result<Hashes> {
        let modules = modules(package)?;
        let used: BTreeMap<&str, BTreeSet<&str>> = modules
            .iter()
            .filter(|(_, module)| module.policy.is_some())
            .map(|(name, _)| (name.as_str(), closure(&modules, name)))
            .collect();
        let mut common = Fnv::new();
        for (name, path) in deciding_files(package)? {
            common.file(&name, &fs::read_to_string(path)?);
        }
        // What no policy uses, studies may use.
        let is_common = |name: &&String| !LISTS.contains(&name.as_str()) && used.values().all(|of| !of.contains(name.as_str()));
        modules.keys().filter(is_common).for_each(|name| modules[name].add_to(&mut common));
        for release in releases(&fs::read_to_string(package.join("../Cargo.lock"))?)? {
            common.text(release.as_bytes());
        }
        let mut policies = BTreeMap::new();
        for (name, used) in used {
            let mut hash = Fnv::new();
            used.iter().for_each(|name| modules[*name].add_to(&mut hash));
            policies.insert(modules[name].policy.clone().unwrap_or_default(), hash.0);
        }
        Ok(Hashes { common: common.0, policies })
    }
}

/// A module of the policies' crate: a file, or a folder with all its files.
struct Module {
    /// The files with their texts, without tests.
    files: Vec<(String, String)>,
    /// The policy that it declares.
    policy: Option<String>,
    /// The modules that it names.
    uses: BTreeSet<String>,
}

impl Module {
    fn add_to(&self, hash: &mut Fnv) {
        self.files.iter().for_each(|(name, text)| hash.file(name, text));
    }
}

/// Returns the modules of the policies' crate by name.
fn modules(package: &Path) -> io::Result<BTreeMap<String, Module>> {
    let mut files = Vec::new();
    collect(&package.join(POLICIES), POLICIES, &mut files)?;
    files.sort_unstable();
    let mut modules: BTreeMap<String, Module> = BTreeMap::new();
    for (name, path) in files {
        let text = without_tests(&fs::read_to_string(path)?);
        let module = name[POLICIES.len() + 1..].split(['/', '.']).next().unwrap_or_default().to_owned();
        let module = modules.entry(module).or_insert_with(|| Module { files: Vec::new(), policy: None, uses: BTreeSet::new() });
        module.policy = module.policy.take().or_else(|| declared(&text));
        module.files.push((name, text));
    }
    let names: BTreeSet<String> = modules.keys().cloned().collect();
    for (own, module) in &mut modules {
        let words = module.files.iter().flat_map(|(_, text)| words_of_paths(text));
        module.uses = words.filter(|word| names.contains(word) && word != own && !LISTS.contains(&word.as_str())).collect();
    }
    Ok(modules)
}

/// Returns the name of the policy that a file declares.
fn declared(text: &str) -> Option<String> {
    let (_, declaration) = text.split_once("const ENTRY: Entry =")?;
    declaration.split_once("Entry::new(")?.1.trim_start().strip_prefix('"')?.split('"').next().map(str::to_owned)
}

/// Returns the words between each `crate::` and the end of its statement, without comments. Some of them are not modules of the
/// path: a hash that changes too often does no harm.
fn words_of_paths(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.fold(String::new(), |code, line| code + line + "\n");
    let statements = code.split("crate::").skip(1).filter_map(|rest| rest.split(';').next());
    let words = statements.flat_map(|path| path.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
    words.map(str::to_owned).collect()
}

/// Returns a module and all that it uses, directly or through others.
fn closure<'a>(modules: &'a BTreeMap<String, Module>, module: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![module]);
    while let Some(module) = open.pop() {
        if found.insert(module) {
            open.extend(modules[module].uses.iter().map(String::as_str));
        }
    }
    found
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

/// Returns the source files that determine every row, with their names relative to the package, using `/` on every system.
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

    /// Hashes a source file's name and its text without tests.
    fn file(&mut self, name: &str, text: &str) {
        self.text(name.as_bytes());
        self.text(without_tests(text).as_bytes());
    }

    /// Hashes bytes, followed by an end mark that is not UTF-8. Carriage returns are skipped, so that a checkout may change
    /// line endings.
    fn text(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().filter(|byte| **byte != b'\r').chain(&[0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
