//! `parkade run` starts the first Python that has the package; and the memory limit that it records in a file is read.

use crate::common::*;
use parkade_recording::{LimitSource, Recording, RunLimit};
use serde_json::Value;

#[cfg(unix)]
mod python {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use crate::common::*;

    fn script(path: &Path, text: &str) {
        fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a program");
    }

    fn on_path(folders: &[&Path], args: &[&str]) -> Run {
        let path = std::env::join_paths(folders).expect("a path");
        parkade(args).env("PATH", path).output().expect("the binary runs").into()
    }

    #[test]
    fn the_first_python_that_has_the_package_runs_the_program() {
        let folder = Folder::new("run-program");
        let [without, with] = ["without", "with"].map(|name| Path::new(folder.path()).join(name));
        for folder in [&without, &with] {
            fs::create_dir_all(folder).expect("a folder");
        }
        script(&without.join("python3"), "exit 1");
        // It is checked for the package, and then gets the program with all its arguments.
        script(&with.join("python"), "[ \"$1\" = -c ] && exit 0\necho \"$@\"\nexit 42");
        let run = on_path(&[&without, &with], &["run", "--limit", "14GiB", "train.py", "--help", "-m", "--", "a b"]);
        assert_eq!(
            (run.code, run.out.as_str(), run.err.as_str()),
            (42, "-m parkade run --limit 14GiB -- train.py --help -m -- a b\n", "")
        );
        let module = on_path(&[&with], &["run", "--always", "-m", "package.train", "--limit", "3", "-m", "--", "--serial"]);
        assert_eq!(
            (module.code, module.out.as_str()),
            (42, "-m parkade run --always -m package.train --limit 3 -m -- --serial\n")
        );
        let alone = on_path(&[&with], &["run", "--policy=bfc", "--serial"]);
        assert_eq!(
            (alone.code, alone.out.as_str()),
            (42, "-m parkade run --policy bfc --serial\n"),
            "Python says what is missing"
        );
    }

    #[test]
    fn without_such_a_python_it_says_how_to_install_the_package() {
        let folder = Folder::new("run-program-nowhere");
        script(&Path::new(folder.path()).join("python3"), "exit 1");
        let run = on_path(&[Path::new(folder.path())], &["run", "train.py"]);
        assert_eq!((run.code, run.out.as_str(), run.err.lines().count()), (2, "", 1), "{}", run.err);
        assert!(run.err.starts_with("parkade: ") && run.err.contains("`pip install .`"), "{}", run.err);
        let wrong = on_path(&[Path::new(folder.path())], &["run", "--limti", "14GiB", "train.py"]);
        assert!(wrong.code == 2 && wrong.err.contains("--limti") && wrong.err.contains("'--limit'"), "{}", wrong.err);
        let help = call(&["run", "--help"]);
        assert!(help.code == 0 && help.out.contains("the program's own; 2 if it could not be started"), "{}", help.out);
    }
}

/// A run that died, with this limit in its file.
fn died(run_limit: Option<RunLimit>) -> Recording {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/resnet50_sweep.limit5_oom.pickle.xz");
    Recording { run_limit, ..parkade_recording::read_file(path).expect("a recording") }
}

#[test]
fn the_limit_in_a_file_is_the_memory_where_none_is_given() {
    let folder = Folder::new("run-limit");
    let bytes = 6 << 30;
    let of = |run_limit| folder.recording("died.pickle", &died(run_limit));
    let asked = |args: &[&str]| serde_json::from_str::<Value>(&call(args).out).expect("JSON");
    for source in [LimitSource::Fraction, LimitSource::Device, LimitSource::Given] {
        let file = of(Some(RunLimit { bytes, source }));
        let advice = asked(&["advise", "--json", "--settings", "", "--only", &file]);
        assert_eq!(advice["capacity_bytes"], bytes, "{source:?}");
        let recorded = (source == LimitSource::Fraction).then_some(bytes);
        assert_eq!(advice["recorded_limit_bytes"].as_u64(), recorded, "{source:?}");
        let diagnosis = asked(&["diagnose", "--json", &file]);
        assert_eq!(diagnosis["limit_bytes"].as_u64(), (source != LimitSource::Device).then_some(bytes), "{source:?}");
        assert_eq!(diagnosis["devices"][0]["limit"]["known"], "given", "{source:?}");
        let other = asked(&["advise", "--json", "--settings", "", "--only", &file, "--limit", "7GiB"]);
        assert_eq!(other["capacity_bytes"], 7_u64 << 30, "what is given comes first");
        assert_eq!(asked(&["verify", "--json", &file])["mismatches"], 0);
    }
    let (without, less) = (of(None), RunLimit { bytes: 1 << 30, source: LimitSource::Given });
    let assumed = asked(&["advise", "--json", "--settings", "", "--only", &without])["capacity_bytes"].clone();
    let file = of(Some(less));
    let advice = asked(&["advise", "--json", "--settings", "", "--only", &file]);
    assert_eq!(advice["capacity_bytes"], assumed, "the run reserved more than that");
}
