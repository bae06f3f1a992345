//! Tests the identity of the build that creates rows: the build script's hash of the sources that determine them.

use std::fs;
use std::path::{Path, PathBuf};

use parkade_research::study::sweep::{COMMON_BUILD, build_of};

#[path = "../build.rs"]
#[allow(dead_code, reason = "cargo calls its main")]
mod build;

/// A changed copy of the sources in another folder; deleted at the end.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str, change: impl Fn(&Path, Vec<u8>) -> Vec<u8>) -> Copy {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let copy = Copy(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("build-{name}-{}", std::process::id())));
        let root = |folder: &str| (package.join("..").join(folder), copy.0.join(folder));
        let mut folders = vec![root("src"), root("policies/src"), root("sim/src"), root("research/src")];
        while let Some((from, to)) = folders.pop() {
            fs::create_dir_all(&to).expect("a folder");
            for entry in fs::read_dir(&from).expect("a folder") {
                let path = entry.expect("an entry").path();
                let target = to.join(path.file_name().expect("a name"));
                if path.is_dir() {
                    folders.push((path, target));
                } else {
                    let bytes = change(target.strip_prefix(&copy.0).expect("inside"), fs::read(&path).expect("a file"));
                    fs::write(target, bytes).expect("a file");
                }
            }
        }
        let lock = fs::read(package.join("../Cargo.lock")).expect("a lock file");
        fs::write(copy.0.join("Cargo.lock"), change(Path::new("Cargo.lock"), lock)).expect("a file");
        copy
    }

    fn hashes(&self) -> build::Hashes {
        build::Hashes::of(&self.0.join("research")).expect("sources")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the hashes of the sources as they are.
fn unchanged() -> build::Hashes {
    build::Hashes::of(Path::new(env!("CARGO_MANIFEST_DIR"))).expect("sources")
}

/// Returns the hashes of a copy in which one file has an additional line.
fn with_a_line_in(file: &str) -> build::Hashes {
    let change = |path: &Path, mut bytes: Vec<u8>| {
        if path == Path::new(file) {
            bytes.extend_from_slice(b"// more\n");
        }
        bytes
    };
    assert!(exists(file), "{file}");
    Copy::new(&file.replace('/', "-"), change).hashes()
}

/// Returns the policies whose rows an edit of this file makes invalid; `None` for all.
fn changed_by(file: &str) -> Option<Vec<String>> {
    let (before, after) = (unchanged(), with_a_line_in(file));
    let is_changed = |(name, hash): (&String, &u64)| (after.policies[name] != *hash).then(|| name.clone());
    (before.common == after.common).then(|| before.policies.iter().filter_map(is_changed).collect())
}

#[test]
fn the_same_sources_are_the_same_build_anywhere() {
    let hashes = unchanged();
    assert_eq!(COMMON_BUILD, format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), hashes.common));
    let names: Vec<&str> = hashes.policies.keys().map(String::as_str).collect();
    let mut declared: Vec<&str> = parkade_policies::ENTRIES.iter().map(|entry| entry.name).collect();
    declared.sort_unstable();
    assert_eq!(names, declared, "every policy that is declared has a hash");
    for (name, hash) in &hashes.policies {
        assert_eq!(build_of(name), format!("{COMMON_BUILD}-{hash:016x}"));
    }
    assert_eq!(Copy::new("same", |_, bytes| bytes).hashes(), hashes);
    let with_other_line_ends = |_: &Path, bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\n', "\r\n").into_bytes();
    assert_eq!(Copy::new("lines", with_other_line_ends).hashes(), hashes);
}

/// Returns whether the workspace has this file.
fn exists(file: &str) -> bool {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file).exists()
}

#[test]
fn what_decides_changes_every_build() {
    for file in [
        "src/lib.rs",
        "src/allocator/mod.rs",
        "policies/src/pools.rs",
        "sim/src/lib.rs",
        "research/src/packing/random.rs",
        "research/src/study/capacity.rs",
        "research/src/workload/generators/serving.rs",
    ] {
        assert_eq!(changed_by(file), None, "{file}");
    }
}

#[test]
fn an_edit_of_one_policy_leaves_the_others_valid() {
    let own = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    for (file, policies) in [
        ("policies/src/bfc.rs", own(&["bfc"])),
        ("policies/src/stalloc.rs", own(&["stalloc"])),
        ("policies/src/shared_steps.rs", own(&["bfc", "cuda-async", "rmm-pool"])),
        ("policies/src/sight.rs", own(&["compaction", "pytorch-rescue"])),
        ("policies/src/pytorch.rs", own(&["pytorch", "pytorch-rescue"])),
        ("policies/src/catalogue.rs", own(&[])),
        ("policies/src/lib.rs", own(&[])),
    ] {
        assert_eq!(changed_by(file), policies, "{file}");
    }
    let all = changed_by("policies/src/parameter.rs").map(|names| names.len());
    assert_eq!(all, Some(parkade_policies::ENTRIES.len()), "values reach every policy through it");
}

/// The script finds a module by its name wherever it occurs; this finds the modules by the paths to them.
#[test]
fn no_module_that_a_policy_uses_is_left_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/src");
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        if path.is_dir() || build::LISTS.contains(&name.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        // Names that `lib.rs` exports have no module in their path, so files take them from their modules.
        let paths =
            code.lines().filter(|line| !line.trim_start().starts_with("//")).filter_map(|line| line.split_once("crate::"));
        for (_, path) in paths {
            let first: String = path.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            let is_module = exists(&format!("policies/src/{first}.rs")) || exists(&format!("policies/src/{first}/mod.rs"));
            assert!(is_module, "{name} uses crate::{path}: name its module, so that the build's hash covers it");
        }
        for hidden in ["super::", "include!", "include_str!", "#[path"] {
            assert!(!code.contains(hidden), "{name} uses {hidden}, which the build's hash does not follow");
        }
    }
}

/// Tests may change: rows created before and after the change still belong to the same build.
#[test]
fn tests_inside_a_file_change_nothing() {
    for file in ["research/src/study/capacity.rs", "sim/src/calls.rs", "policies/src/parameter.rs"] {
        let change = |path: &Path, bytes: Vec<u8>| {
            if path != Path::new(file) {
                return bytes;
            }
            let text = String::from_utf8(bytes).expect("text");
            let (code, tests) = text.split_once("mod tests {").unwrap_or_else(|| panic!("{file} has no tests"));
            format!("{code}mod tests {{\n    // more{tests}").into_bytes()
        };
        assert_eq!(Copy::new(&format!("tests-{}", file.replace('/', "-")), change).hashes(), unchanged(), "{file}");
    }
}

/// Returns the hash of what determines every row, of a copy whose lock file has a different version of a package.
fn with_another(package: &str) -> u64 {
    let change = |path: &Path, bytes: Vec<u8>| {
        if path != Path::new("Cargo.lock") {
            return bytes;
        }
        let lock = String::from_utf8(bytes).expect("text");
        let name = format!("name = \"{package}\"\nversion = \"");
        assert!(lock.contains(&name), "{package}");
        lock.replace(&name, &format!("{name}9")).into_bytes()
    };
    Copy::new(package, change).hashes().common
}

#[test]
fn releases_that_generators_draw_from_change_it_and_no_others_do() {
    // statrs computes with num-traits; thiserror only produces its errors.
    for package in ["statrs", "num-traits"] {
        assert_ne!(with_another(package), unchanged().common, "{package}");
    }
    for package in ["thiserror", "serde_json", "rayon", "clap"] {
        assert_eq!(with_another(package), unchanged().common, "{package}");
    }
}

/// Returns the names under `[dependencies]` in a manifest.
fn dependencies(manifest: &Path) -> Vec<String> {
    let text = fs::read_to_string(manifest).expect("a manifest");
    let lines = text.lines().skip_while(|line| *line != "[dependencies]").skip(1).take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn nothing_that_decides_is_left_out() {
    // A recording's workload has its own hash in each row. The other packages do not affect any number in a row: threads,
    // file formats, error messages, a hash table that is never iterated over.
    let others = ["csv", "parkade-recording", "parkade-replay", "rayon", "rustc-hash", "serde", "serde_json", "thiserror"];
    let deciding: Vec<&str> = build::DECIDING.into_iter().chain([build::POLICIES]).collect();
    for root in &deciding {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join(root).join("..");
        for name in dependencies(&package.join("Cargo.toml")) {
            let folder = name.strip_prefix("parkade").map(|rest| rest.trim_start_matches('-'));
            let decides = match folder {
                Some("") => deciding.contains(&"../src"),
                Some(folder) => {
                    [format!("../{folder}/src"), format!("{folder}/src")].iter().any(|at| deciding.contains(&at.as_str()))
                }
                None => build::PACKAGES.contains(&name.as_str()),
            };
            assert!(decides || others.contains(&name.as_str()), "{root} depends on {name}, which is in neither list");
        }
    }
}
