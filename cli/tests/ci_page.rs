//! Runs the code that docs/ci.md tells people to copy: the pytest fixture with a stand-in for PyTorch, and the workflow's script.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use common::trials::{Needs, run};
use common::{Folder, Run};

const PAGE: &str = include_str!("../../docs/ci.md");
/// A baseline and a run that reserves less.
const RECORDINGS: [&str; 2] = ["prefetch_streams.default", "prefetch_streams.limit6"];

/// Writes a copy of a recording.
const TORCH: &str = r#"
import shutil, types
started = []
def _record_memory_history(enabled="all", stacks="all"): started.append((enabled, stacks))
def _dump_snapshot(file): shutil.copyfile(RECORDING, file)
memory = types.SimpleNamespace(_record_memory_history=_record_memory_history, _dump_snapshot=_dump_snapshot)
cuda = types.SimpleNamespace(memory=memory, empty_cache=lambda: None)
"#;

const TESTS: &str = r#"
import pytest, torch

def test_recorded_and_within(gpu_memory):
    with gpu_memory.recording():
        pass
    assert torch.started == [("all", "python"), (None, "all")]
    gpu_memory.check(above="12GiB")
    gpu_memory.check(above="2%", before=BASELINE)

def test_above(gpu_memory):
    with gpu_memory.recording():
        pass
    with pytest.raises(pytest.fail.Exception, match="too much"):
        gpu_memory.check(above="5GiB")

def test_not_recorded(gpu_memory):
    with pytest.raises(RuntimeError, match="could not check"):
        gpu_memory.check(above="5GiB")
"#;

fn main() -> ExitCode {
    run(&[
        ("the_fixture_passes_fails_and_says_so", Needs::Pytest, the_fixture),
        ("the_workflow_compares_and_keeps_the_exit_code", Needs::Bash, the_workflow),
    ])
}

/// The block of code that begins with this line.
fn block(first: &str) -> &'static str {
    let start = PAGE.find(first).unwrap_or_else(|| panic!("no {first:?} in docs/ci.md"));
    PAGE[start..].split("\n```\n").next().unwrap_or_default()
}

fn recording(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../conformance/recordings/{name}.pickle.xz"));
    path.to_str().expect("UTF-8").to_owned()
}

fn the_fixture() {
    let folder = Folder::new("ci-pytest");
    let [baseline, snapshot] = RECORDINGS.map(recording);
    folder.file("conftest.py", block("\"\"\"A fixture").as_bytes());
    folder.file("torch.py", format!("{TORCH}\nRECORDING = {snapshot:?}\n").as_bytes());
    folder.file("test_memory.py", format!("{TESTS}\nBASELINE = {baseline:?}\n").as_bytes());
    let mut pytest = Command::new("python3");
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "."]).current_dir(folder.path());
    pytest.env("PARKADE", env!("CARGO_BIN_EXE_parkade")).env("PYTHONDONTWRITEBYTECODE", "1");
    let done: Run = pytest.output().expect("python3 runs").into();
    assert!(done.code == 0 && done.out.contains("3 passed"), "{}{}", done.out, done.err);
}

fn the_workflow() {
    let folder = Folder::new("ci-workflow");
    let script = block("          code=0\n").lines().map(str::trim_start).collect::<Vec<_>>().join("\n");
    let [baseline, snapshot] = RECORDINGS.map(recording);
    let binaries = Path::new(env!("CARGO_BIN_EXE_parkade")).parent().expect("a folder");
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    fs::create_dir_all(format!("{}/tests/memory", folder.path())).expect("a folder");
    for (first, second, code) in [(&baseline, &snapshot, 0), (&snapshot, &baseline, 1)] {
        folder.file("tests/memory/train.pickle.xz", &fs::read(first).expect("a recording"));
        folder.file("snapshot.pickle", &fs::read(second).expect("a recording"));
        let summary = folder.file("summary.md", b"");
        let mut bash = Command::new("bash");
        bash.args(["-e", "-o", "pipefail", "-c", &script]).current_dir(folder.path());
        let done: Run = bash.env("PATH", &path).env("GITHUB_STEP_SUMMARY", &summary).output().expect("bash runs").into();
        assert_eq!(done.code, code, "{}{}", done.out, done.err);
        let summary = fs::read_to_string(&summary).expect("a summary");
        assert!(
            summary.starts_with(if code == 0 { "**holds: " } else { "**too much:** " })
                && summary.contains("\n| memory | A | B | change | % |\n")
                && done.out.contains("--fail-above 14GiB"),
            "{summary}"
        );
    }
}
