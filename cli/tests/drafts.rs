//! What happens to a file that is being written when the process ends: its draft is removed, and never that of another process.

#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use std::time::{Duration, Instant};

use parkade_recording::Action;

use crate::common::{BASE, Folder, MIB, call, entry, free, good, parkade, recording, segment, unused};

/// A folder with a recording whose trace file takes seconds to write, and with a small one.
fn place(name: &str) -> Folder {
    let folder = Folder::new(name);
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 20 * MIB)];
    for _ in 0..20_000 {
        trace.push(entry(Action::Alloc, BASE, 5 * MIB));
        trace.extend(free(BASE, 5 * MIB));
    }
    folder.recording("large.pickle", &recording(trace, vec![segment(vec![unused(BASE, 20 * MIB)])]));
    folder.recording("small.pickle", &good());
    folder
}

const EXPORT: [&str; 6] = ["export", "large.pickle", "--format", "perfetto", "--output", "trace.json"];

/// A file that is being written to the folder.
struct Writing<'a> {
    folder: &'a Folder,
    child: Child,
}

impl Writing<'_> {
    /// Waits until it has begun.
    fn begun<'a>(folder: &'a Folder, command: &mut Command) -> Writing<'a> {
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let start = Instant::now();
        while !drafts(folder).iter().any(|name| fs::metadata(at(folder, name)).is_ok_and(|data| data.len() > 0)) {
            assert!(
                child.try_wait().expect("a child").is_none() && start.elapsed() < Duration::from_secs(120),
                "it writes nothing"
            );
        }
        Writing { folder, child }
    }

    fn send(&self, signal: &str) {
        let sent = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success(), "{signal}");
    }

    fn end(mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// The draft that it leaves when it is killed.
    fn killed(self) -> String {
        let folder = self.folder;
        self.send("KILL");
        assert_eq!(self.end().signal(), Some(9));
        let [draft] = drafts(folder).try_into().expect("one draft");
        draft
    }
}

fn at(folder: &Folder, name: &str) -> String {
    format!("{}/{name}", folder.path())
}

/// The hidden files of the folder.
fn drafts(folder: &Folder) -> Vec<String> {
    let names = fs::read_dir(folder.path()).expect("the folder");
    let names = names.map(|name| name.expect("a name").file_name().to_str().expect("UTF-8").to_owned());
    names.filter(|name| name.starts_with('.')).collect()
}

fn has(folder: &Folder, name: &str) -> bool {
    fs::exists(at(folder, name)).expect("a folder")
}

/// Writes another file to the folder.
fn write_another(folder: &Folder) {
    let run = call(&["export", &at(folder, "small.pickle"), "--output", &at(folder, "other.pickle"), "--force"]);
    assert_eq!(run.code, 0, "{}", run.err);
}

/// A draft's name with another part in it, counted from the end: its number, the start of its process, its process.
fn renamed(name: &str, part: usize, change: impl Fn(&str) -> String) -> String {
    let mut parts: Vec<String> = name.strip_suffix(".part").expect("a draft").split('-').map(str::to_owned).collect();
    let place = parts.len() - 1 - part;
    parts[place] = change(&parts[place]);
    parts.join("-") + ".part"
}

/// Whether processes begun here ignore the signal: a shell without job control sets this for what it runs in the background,
/// and so does `nohup`.
fn is_ignored(number: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

#[test]
fn every_signal_that_can_be_caught_ends_the_process_and_its_draft() {
    let folder = place("drafts-signals");
    for (signal, number) in
        [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3), ("USR1", 10), ("USR2", 12), ("ALRM", 14), ("XCPU", 24)]
    {
        if is_ignored(number) {
            eprintln!("not tried: SIG{signal}, which this process and so those that it begins ignore");
            continue;
        }
        let writing = Writing::begun(&folder, &mut parkade(&EXPORT));
        writing.send(signal);
        assert_eq!(writing.end().signal(), Some(number), "the death that the signal brings");
        assert!(drafts(&folder).is_empty() && !has(&folder, "trace.json"), "{signal}: {:?}", drafts(&folder));
    }
}

/// As with nohup, or in the background of a script.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let folder = place("drafts-ignored");
    for signal in ["HUP", "INT", "TERM"] {
        let script = format!("trap '' {signal}; exec \"$0\" \"$@\" --force");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_parkade")]).args(EXPORT);
        let writing = Writing::begun(&folder, &mut command);
        writing.send(signal);
        assert!(writing.end().success(), "{signal}");
        assert!(drafts(&folder).is_empty() && has(&folder, "trace.json"), "{signal}");
    }
}

#[test]
fn a_file_that_grows_too_large_is_a_failure() {
    let folder = place("drafts-too-large");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_parkade")]).args(EXPORT);
    let output = command.current_dir(folder.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said} {}", output.status);
    assert!(said.contains("cannot write trace.json: File too large"), "{said}");
    assert!(drafts(&folder).is_empty() && !has(&folder, "trace.json"), "{:?}", drafts(&folder));
}

#[test]
fn the_next_run_removes_what_a_killed_one_left() {
    let folder = place("drafts-killed");
    let draft = Writing::begun(&folder, &mut parkade(&EXPORT)).killed();
    write_another(&folder);
    assert!(drafts(&folder).is_empty(), "{draft}: {:?}", drafts(&folder));
    // A run that writes nothing here removes nothing.
    let draft = Writing::begun(&folder, &mut parkade(&EXPORT)).killed();
    assert_eq!(call(&["verify", &at(&folder, "small.pickle")]).code, 0);
    assert!(has(&folder, &draft));
    // Another process has its id now.
    let running = renamed(&draft, 2, |_| std::process::id().to_string());
    fs::rename(at(&folder, &draft), at(&folder, &running)).expect("a file");
    write_another(&folder);
    assert!(drafts(&folder).is_empty(), "{running}");
}

#[test]
fn the_draft_of_a_live_process_stays() {
    let folder = place("drafts-live");
    let writing = Writing::begun(&folder, &mut parkade(&EXPORT));
    writing.send("STOP");
    let [draft] = drafts(&folder).try_into().expect("one draft");
    // Left by an earlier process with the same id.
    let earlier = renamed(&draft, 1, |start| (start.parse::<u64>().expect("a start time") + 1).to_string());
    fs::write(at(&folder, &earlier), "").expect("a file");
    write_another(&folder);
    assert_eq!(drafts(&folder), [draft]);
    writing.send("CONT");
    assert!(writing.end().success() && has(&folder, "trace.json"));
    assert!(drafts(&folder).is_empty());
}

/// Their processes are not visible here.
#[test]
fn what_another_host_or_program_left_stays() {
    let folder = place("drafts-others");
    let draft = Writing::begun(&folder, &mut parkade(&EXPORT)).killed();
    let [elsewhere, unknown] = ["other.example", "unknown"].map(|host| {
        let mut parts: Vec<&str> = draft.rsplitn(4, '-').collect();
        let host = format!(".parkade-{host}");
        parts[3] = &host;
        parts.reverse();
        parts.join("-")
    });
    let mut others = vec![
        elsewhere,
        unknown,
        renamed(&draft, 0, |_| "x".to_owned()),
        renamed(&draft, 1, |_| "soon".to_owned()),
        draft.replace(".part", ""),
    ];
    others.extend([".parkade-1-0.part", ".parkade-.part", ".parkade---.part", ".part", ".mine-1-2-3.part"].map(str::to_owned));
    for other in &others {
        fs::copy(at(&folder, &draft), at(&folder, other)).expect("a file");
    }
    write_another(&folder);
    others.sort();
    let mut left = drafts(&folder);
    left.sort();
    assert_eq!(left, others, "{draft}");
}

/// A name that is a folder, or is removed in the meantime, is not a failure.
#[test]
fn what_cannot_be_removed_stays() {
    let folder = place("drafts-folder");
    let draft = Writing::begun(&folder, &mut parkade(&EXPORT)).killed();
    fs::remove_file(at(&folder, &draft)).expect("a file");
    fs::create_dir(at(&folder, &draft)).expect("a folder");
    write_another(&folder);
    assert!(Path::new(&at(&folder, &draft)).is_dir());
}
