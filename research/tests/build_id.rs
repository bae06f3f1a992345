//! Tests the identity of the build that creates rows: the build script's hash of the sources that determine them.

use std::fs;
use std::path::{Path, PathBuf};

use parkade_research::study::sweep::BUILD;

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

    fn hash(&self) -> String {
        format!("{:016x}", build::sources_hash(&self.0.join("research")).expect("sources"))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the hash of a copy in which one file has an additional line.
fn with_a_line_in(file: &str) -> String {
    let change = |path: &Path, mut bytes: Vec<u8>| {
        if path == Path::new(file) {
            bytes.extend_from_slice(b"// more\n");
        }
        bytes
    };
    Copy::new(&file.replace('/', "-"), change).hash()
}

#[test]
fn the_same_sources_are_the_same_build_anywhere() {
    let (version, hash) = BUILD.rsplit_once('-').expect("a version and a hash");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    assert_eq!(Copy::new("same", |_, bytes| bytes).hash(), hash);
    let with_other_line_ends = |_: &Path, bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\n', "\r\n").into_bytes();
    assert_eq!(Copy::new("lines", with_other_line_ends).hash(), hash);
}

/// Returns whether the workspace has this file.
fn exists(file: &str) -> bool {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file).exists()
}

#[test]
fn what_decides_changes_it_and_nothing_else_does() {
    let hash = BUILD.rsplit_once('-').expect("a hash").1;
    let deciding = [
        "src/lib.rs",
        "src/allocator/mod.rs",
        "policies/src/lib.rs",
        "sim/src/lib.rs",
        "research/src/packing/random.rs",
        "research/src/study/capacity.rs",
        "research/src/workload/generators/serving.rs",
    ];
    for file in deciding {
        assert!(exists(file), "{file}");
        assert_ne!(with_a_line_in(file), hash, "{file}");
    }
}

/// Tests may change: rows created before and after the change still belong to the same build.
#[test]
fn tests_inside_a_file_change_nothing() {
    let hash = BUILD.rsplit_once('-').expect("a hash").1;
    for file in ["research/src/study/capacity.rs", "sim/src/calls.rs", "policies/src/catalogue.rs"] {
        let change = |path: &Path, bytes: Vec<u8>| {
            if path != Path::new(file) {
                return bytes;
            }
            let text = String::from_utf8(bytes).expect("text");
            let (code, tests) = text.split_once("mod tests {").unwrap_or_else(|| panic!("{file} has no tests"));
            format!("{code}mod tests {{\n    // more{tests}").into_bytes()
        };
        assert_eq!(Copy::new(&file.replace('/', "-"), change).hash(), hash, "{file}");
    }
}

/// Returns the hash of a copy whose lock file has a different version of a package.
fn with_another(package: &str) -> String {
    let change = |path: &Path, bytes: Vec<u8>| {
        if path != Path::new("Cargo.lock") {
            return bytes;
        }
        let lock = String::from_utf8(bytes).expect("text");
        let name = format!("name = \"{package}\"\nversion = \"");
        assert!(lock.contains(&name), "{package}");
        lock.replace(&name, &format!("{name}9")).into_bytes()
    };
    Copy::new(package, change).hash()
}

#[test]
fn releases_that_generators_draw_from_change_it_and_no_others_do() {
    let hash = BUILD.rsplit_once('-').expect("a hash").1;
    // statrs computes with num-traits; thiserror only produces its errors.
    for package in ["statrs", "num-traits"] {
        assert_ne!(with_another(package), hash, "{package}");
    }
    for package in ["thiserror", "serde_json", "rayon", "clap"] {
        assert_eq!(with_another(package), hash, "{package}");
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
    for root in build::DECIDING {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join(root).join("..");
        for name in dependencies(&package.join("Cargo.toml")) {
            let folder = name.strip_prefix("parkade").map(|rest| rest.trim_start_matches('-'));
            let decides = match folder {
                Some("") => build::DECIDING.contains(&"../src"),
                Some(folder) => {
                    [format!("../{folder}/src"), format!("{folder}/src")].iter().any(|at| build::DECIDING.contains(&at.as_str()))
                }
                None => build::PACKAGES.contains(&name.as_str()),
            };
            assert!(decides || others.contains(&name.as_str()), "{root} depends on {name}, which is in neither list");
        }
    }
}
