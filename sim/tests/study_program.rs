//! What names the build that made a row: a hash of the sources that decide it, made by the build script.

use std::fs;
use std::path::{Path, PathBuf};

use parkade_sim::study::sweep::PROGRAM;

#[path = "../build.rs"]
#[allow(dead_code, reason = "its main is cargo's to call")]
mod build;

/// A copy of the sources somewhere else, changed; removed at the end.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str, change: impl Fn(&Path, Vec<u8>) -> Vec<u8>) -> Copy {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let copy = Copy(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("program-{name}-{}", std::process::id())));
        let mut folders = vec![(package.join("src"), copy.0.join("sim/src")), (package.join("../src"), copy.0.join("src"))];
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
        format!("{:016x}", build::sources_hash(&self.0.join("sim")).expect("sources"))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The hash of a copy in which one file has a line more.
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
fn the_same_sources_are_the_same_program_anywhere() {
    let (version, hash) = PROGRAM.rsplit_once('-').expect("a version and a hash");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    assert_eq!(Copy::new("same", |_, bytes| bytes).hash(), hash);
    let with_other_line_ends = |_: &Path, bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\n', "\r\n").into_bytes();
    assert_eq!(Copy::new("lines", with_other_line_ends).hash(), hash);
}

#[test]
fn what_decides_changes_it_and_nothing_else_does() {
    let hash = PROGRAM.rsplit_once('-').expect("a hash").1;
    let deciding = [
        "src/policy/bfc.rs",
        "src/allocator/growth.rs",
        "sim/src/device/mod.rs",
        "sim/src/random.rs",
        "sim/src/study/capacity.rs",
        "sim/src/study/sweep/row.rs",
        "sim/src/workload/serving.rs",
    ];
    for file in deciding {
        assert_ne!(with_a_line_in(file), hash, "{file}");
    }
    // What reads rows, draws, bounds or tests.
    let others = [
        "sim/src/diagnose/phase.rs",
        "sim/src/study/tests.rs",
        "sim/src/study/curve.rs",
        "sim/src/study/statistics/interval.rs",
        "sim/src/study/sweep/summary.rs",
        "sim/src/study/sweep/beside.rs",
        "sim/src/packing/mod.rs",
        "sim/src/workload/packed.rs",
    ];
    for file in others {
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file).exists(), "{file}");
        assert_eq!(with_a_line_in(file), hash, "{file}");
    }
}

/// The hash of a copy whose lock file has another release of a package.
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
    let hash = PROGRAM.rsplit_once('-').expect("a hash").1;
    // statrs computes with num-traits; thiserror makes its errors.
    for package in ["statrs", "num-traits"] {
        assert_ne!(with_another(package), hash, "{package}");
    }
    for package in ["thiserror", "serde_json", "rayon", "clap"] {
        assert_eq!(with_another(package), hash, "{package}");
    }
}

#[test]
fn nothing_that_decides_is_left_out() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = build::deciding_files(package).expect("sources");
    let decides = |path: &str| build::DECIDING.iter().any(|root| root.trim_end_matches(".rs") == format!("src/{path}"));
    for (name, path) in files.iter().filter(|(name, _)| name.starts_with("src/")) {
        let text = fs::read_to_string(path).expect("text");
        let text = text.split("#[cfg(test)]\nmod tests {").next().expect("a beginning");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            for used in line.split("crate::").skip(1) {
                let mut words = used.split(|c: char| !(c.is_alphanumeric() || c == '_'));
                let (room, module) = (words.next().expect("a word"), words.nth(1).unwrap_or_default());
                // A recording's requests are told apart by their own hash, which each row has.
                let is_known = decides(room) || room == "replay" && name == "src/workload/recorded.rs";
                // Of the studies a few modules decide; their parents' names lead to the same.
                let is_known = is_known || room == "study" && (decides(&format!("study/{module}")) || module == "Addresses");
                assert!(is_known, "{name}: {line}");
            }
            // Packages that no number of a row comes from: threads, forms of files, texts of errors.
            let others = ["rayon", "serde", "serde_json", "thiserror"];
            for dependency in ["flate2", "lzma_rust2", "ruzstd", "rustc_hash", "statrs"].into_iter().chain(others) {
                let is_used = line.contains(&format!("{dependency}::"));
                assert!(!is_used || build::PACKAGES.contains(&dependency) || others.contains(&dependency), "{name}: {line}");
            }
        }
    }
}
