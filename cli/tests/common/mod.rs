//! Runs the binary, and makes small recordings for it.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod documented;
pub(crate) mod pages;
pub(crate) mod sweeps;
pub(crate) mod trials;
pub(crate) mod usual;
pub(crate) mod writers;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use parkade_recording::{
    Action, Block, BlockState, DeviceRecording, Entry, RecordedSettings, Recording, Segment, StackId, Style, write,
};

/// A mebibyte.
pub(crate) const MIB: u64 = 1 << 20;
/// Where the recordings' memory begins.
pub(crate) const BASE: u64 = 0x7f00_0000_0000;
/// Where more of it begins.
pub(crate) const OTHER: u64 = BASE + (1 << 30);

/// The result of a run of the binary.
pub(crate) struct Run {
    /// The exit code; a panic's is 101.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Run { code: output.status.code().expect("no signal"), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// The binary, not yet started.
pub(crate) fn parkade(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_parkade"));
    // Sentences stay in one line.
    command.args(args).env("COLUMNS", "400").stdin(Stdio::null());
    command
}

/// The commands that `--help` lists, without `help` itself.
pub(crate) fn listed(help: &str) -> Vec<&str> {
    let lists = help.split("Options:\n").next().unwrap_or_default().lines().skip_while(|line| !line.starts_with("Usage:"));
    let names = lists.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// Runs the binary.
pub(crate) fn call(args: &[&str]) -> Run {
    parkade(args).output().expect("the binary runs").into()
}

/// The exit code of a run without complaints, and what it printed as one line.
pub(crate) fn words(args: &[&str]) -> (i32, String) {
    let run = call(args);
    assert_eq!(run.err, "");
    (run.code, run.out.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Runs the binary without `COLUMNS`, so that its output is 80 columns wide.
pub(crate) fn call_at_80_columns(args: &[&str]) -> Run {
    parkade(args).env_remove("COLUMNS").output().expect("the binary runs").into()
}

/// Runs the binary with this on its standard input.
pub(crate) fn call_with(args: &[&str], input: &[u8]) -> Run {
    let mut command = parkade(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    // The binary may answer before it has read everything, and may stop reading.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("it ends");
    feeder.join().expect("the feeder ends");
    output.into()
}

/// A test's own folder, empty at first and removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// The folder of the test called `name`.
    pub(crate) fn new(name: &str) -> Folder {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    /// Writes a file; returns its path.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Writes a recording; returns its path.
    pub(crate) fn recording(&self, name: &str, recording: &Recording) -> String {
        self.file(name, &write(recording, Style::Python))
    }

    /// The folder itself.
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An entry on the default stream.
pub(crate) fn entry(action: Action, address: u64, size: u64) -> Entry {
    Entry::new(action, address, size, 0)
}

/// The two entries of a block that is freed.
pub(crate) fn free(address: u64, size: u64) -> [Entry; 2] {
    [entry(Action::FreeRequested, address, size), entry(Action::FreeCompleted, address, size)]
}

/// A block that is entirely in use.
pub(crate) fn used(address: u64, size: u64) -> Block {
    Block { address, size, requested: Some(size), state: BlockState::ActiveAllocated, stack: StackId::NONE }
}

/// A free block.
pub(crate) fn unused(address: u64, size: u64) -> Block {
    Block { address, size, requested: Some(0), state: BlockState::Inactive, stack: StackId::NONE }
}

/// A segment of the default pool.
pub(crate) fn segment(blocks: Vec<Block>) -> Segment {
    Segment::new(blocks)
}

/// The settings of a run that set none.
pub(crate) fn default_settings() -> RecordedSettings {
    RecordedSettings {
        text: Some(String::new()),
        max_split_size: Some(-1),
        garbage_collection_threshold: Some(0.0),
        expandable_segments: Some(false),
        roundup_power2_divisions: Some([0; 16]),
        ..RecordedSettings::default()
    }
}

/// A recording of device 0.
pub(crate) fn recording(trace: Vec<Entry>, segments: Vec<Segment>) -> Recording {
    let devices = vec![DeviceRecording { segments, trace, ..DeviceRecording::default() }];
    Recording { devices, settings: Some(default_settings()), ..Recording::default() }
}

/// A run that PyTorch could have made: two blocks in one segment, the first of which is freed.
pub(crate) fn good() -> Recording {
    let mut trace = vec![
        entry(Action::SegmentAlloc, BASE, 20 * MIB),
        entry(Action::Alloc, BASE, 5 * MIB),
        entry(Action::Alloc, BASE + 5 * MIB, 3 * MIB),
    ];
    trace.extend(free(BASE, 5 * MIB));
    let blocks = vec![unused(BASE, 5 * MIB), used(BASE + 5 * MIB, 3 * MIB), unused(BASE + 8 * MIB, 12 * MIB)];
    recording(trace, vec![segment(blocks)])
}

/// 100 MiB, of which 60 are used again, so that the next 60 need their own segment. Under 140 MiB that is too much, unless the
/// 100 MiB is rounded up to 128 MiB, from which both can be cut.
pub(crate) fn reuses_a_part() -> Recording {
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 100 * MIB), entry(Action::Alloc, BASE, 100 * MIB)];
    trace.extend(free(BASE, 100 * MIB));
    trace.extend([
        entry(Action::Alloc, BASE, 60 * MIB),
        entry(Action::SegmentAlloc, OTHER, 60 * MIB),
        entry(Action::Alloc, OTHER, 60 * MIB),
    ]);
    let rest = unused(BASE + 60 * MIB, 40 * MIB);
    recording(trace, vec![segment(vec![used(BASE, 60 * MIB), rest]), segment(vec![used(OTHER, 60 * MIB)])])
}

/// A run that died: only 400 of 1000 MiB, in the middle, are free when 420 are requested. The limit was at least 1000 MiB and
/// less than 1420; 1 GiB is assumed, and would be enough without the hole.
pub(crate) fn died_of_a_hole() -> Recording {
    let at = |mib: u64| BASE + mib * MIB;
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 1000 * MIB), entry(Action::Alloc, BASE, 1000 * MIB)];
    trace.extend(free(BASE, 1000 * MIB));
    trace.extend([(0, 300), (300, 400), (700, 300)].map(|(from, mib)| entry(Action::Alloc, at(from), mib * MIB)));
    trace.extend(free(at(300), 400 * MIB));
    trace.push(entry(Action::Oom, 100 << 30, 420 * MIB));
    let blocks = vec![used(BASE, 300 * MIB), unused(at(300), 400 * MIB), used(at(700), 300 * MIB)];
    recording(trace, vec![segment(blocks)])
}

/// A run that PyTorch could not have made: the second block is not at the lowest free address.
pub(crate) fn diverging() -> Recording {
    let trace = vec![
        entry(Action::SegmentAlloc, BASE, 20 * MIB),
        entry(Action::Alloc, BASE, 5 * MIB),
        entry(Action::Alloc, BASE + 6 * MIB, 3 * MIB),
    ];
    let blocks =
        vec![used(BASE, 5 * MIB), unused(BASE + 5 * MIB, MIB), used(BASE + 6 * MIB, 3 * MIB), unused(BASE + 9 * MIB, 11 * MIB)];
    recording(trace, vec![segment(blocks)])
}

/// Verifies one file; whatever its contents, the answer has the right form, also with `--json`.
pub(crate) fn verify(file: &str) -> Run {
    let run = call(&["verify", "--all", file]);
    let json = call(&["verify", "--all", "--json", file]);
    assert_eq!(run.code, json.code, "{}{}", run.err, json.err);
    let object: serde_json::Value = serde_json::from_str(json.out.trim_end()).expect("one JSON object");
    match run.code {
        0 => assert_eq!((run.err.as_str(), &object["mismatches"]), ("", &0.into())),
        1 => assert!(run.err.is_empty() && object["first_mismatch"].is_object(), "{}", json.out),
        2 => {
            assert!(run.out.is_empty(), "{}", run.out);
            let line = run.err.strip_suffix('\n').expect("a line");
            assert!(line.starts_with("parkade: ") && !line.contains(char::is_control) && line.len() < 900, "{line}");
            assert!(object["error"].is_string());
        }
        code => panic!("exit code {code}: {}", run.err),
    }
    run
}

pub(crate) fn refused(file: &str, text: &str) {
    let run = verify(file);
    assert_eq!(run.code, 2, "{}", run.out);
    assert!(run.err.contains(text), "{} lacks {text:?}", run.err);
}
