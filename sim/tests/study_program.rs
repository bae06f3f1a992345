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
    for file in ["src/policy/bfc.rs", "src/allocator/growth.rs", "sim/src/workload/serving.rs", "sim/src/random.rs"] {
        assert_ne!(with_a_line_in(file), hash, "{file}");
    }
    for file in ["sim/src/diagnose/phase.rs", "sim/src/study/tests.rs"] {
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file).exists(), "{file}");
        assert_eq!(with_a_line_in(file), hash, "{file}");
    }
}
