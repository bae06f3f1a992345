//! Tests what every command does if the reader of its output has gone, or if the disk is full.

#![cfg(unix)]

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Read;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::LazyLock;

use crate::common::usual::{USUAL, folder, usual};
use crate::common::{call, listed, parkade};

/// A pipe that nobody reads.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").expect("it is there").into()
}

/// How a run ended, and what it printed on standard error: conform prints how long it took.
fn ending(output: &Output) -> (Option<i32>, String) {
    let said = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said.chars().filter(|c| !c.is_ascii_digit()).collect())
}

/// Every usual invocation, and its outcome if everything is read.
fn undisturbed() -> impl Iterator<Item = (&'static str, &'static Output)> {
    static MADE: LazyLock<Vec<Output>> = LazyLock::new(|| {
        let folder = folder("streams-read");
        USUAL.iter().map(|line| usual(&folder, line).output().expect("the binary runs")).collect()
    });
    USUAL.iter().copied().zip(&*MADE)
}

/// A command that is missing from the list would not be tried.
#[test]
fn every_command_is_tried_with_every_exit_code() {
    let help = call(&["--help"]).out;
    let commands: BTreeSet<&str> = listed(&help).into_iter().collect();
    let tried = |name: &&str| USUAL.iter().any(|line| line.split(' ').next() == Some(name));
    let missing: Vec<&str> = commands.iter().copied().filter(|name| !tried(name)).collect();
    assert!(commands.len() > 15 && missing.is_empty(), "{missing:?} of {commands:?}");
    let codes: BTreeSet<Option<i32>> = undisturbed().map(|(_, good)| good.status.code()).collect();
    assert_eq!(codes, BTreeSet::from([0, 1, 2, 3].map(Some)));
}

#[test]
fn output_that_nobody_reads_changes_no_exit_code_and_says_nothing() {
    let folder = folder("streams-unread");
    for (line, good) in undisturbed() {
        let run = usual(&folder, line).stdout(unread()).output().expect("the binary runs");
        assert_eq!(ending(&run), ending(good), "{line}");
        let run = usual(&folder, line).stderr(unread()).output().expect("the binary runs");
        assert_eq!(run.status, good.status, "{line}, unread stderr");
        assert_eq!(run.stdout.is_empty(), good.stdout.is_empty(), "{line}, unread stderr");
        let run = usual(&folder, line).stdout(unread()).stderr(unread()).status().expect("the binary runs");
        assert_eq!(run, good.status, "{line}, both unread");
    }
}

#[test]
fn a_pipe_that_is_closed_after_a_byte_changes_no_exit_code() {
    let folder = folder("streams-a-byte");
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings/deep_mlp.default.pickle.xz");
    let recording = recording.to_str().expect("UTF-8");
    // More than a pipe holds, as text for people, for programs and as JSON.
    let large = [
        &["stats", recording, "--every", "1", "--csv"][..],
        &["stats", recording, "--every", "1", "--json"],
        &["stats", recording, "--every", "1"],
        &["stats", recording, "--every", "1", "--csv", "odd.pickle"],
        &["export", recording, "--output", "-"],
        &["export", recording, "--format", "perfetto", "--output", "/dev/stdout"],
        &["report", recording, "--svg", "-"],
    ];
    let start =
        |line: &str, stdout: Stdio| usual(&folder, line).stdout(stdout).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let ends_so = |line: &str, good: &Output| {
        let mut child = start(line, Stdio::piped());
        let mut stdout = child.stdout.take().expect("a pipe");
        let _ = stdout.read(&mut [0]).expect("it can be read");
        drop(stdout);
        assert_eq!(ending(&child.wait_with_output().expect("it ends")), ending(good), "{line}");
    };
    for args in large {
        let line = args.join(" ");
        ends_so(&line, &start(&line, Stdio::null()).wait_with_output().expect("it ends"));
    }
    undisturbed().for_each(|(line, good)| ends_so(line, good));
}

/// What goes to a separate file is written completely even if nobody reads the other output.
#[test]
fn files_are_written_where_nobody_reads() {
    let folder = folder("streams-files");
    for line in USUAL.iter().filter(|line| line.contains(" NEW")) {
        assert!(usual(&folder, line).stdout(unread()).stderr(unread()).status().expect("the binary runs").success(), "{line}");
        let new = format!("{}/new", folder.path());
        assert!(std::fs::metadata(&new).is_ok_and(|data| data.len() > 0), "{line}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure_that_is_said_once() {
    let folder = folder("streams-full");
    for (line, good) in undisturbed() {
        let run = usual(&folder, line).stdout(full()).output().expect("the binary runs");
        let said = String::from_utf8(run.stderr).expect("UTF-8");
        if good.stdout.is_empty() {
            assert_eq!(run.status, good.status, "{line}: {said}");
            continue;
        }
        assert_eq!(run.status.code(), Some(2), "{line}: {said}");
        let sentence = "cannot write standard output: No space left on device (os error 28)";
        let times = said.lines().filter(|line| line.starts_with("parkade: ") && line.ends_with(sentence)).count();
        // The report of what could not be run, and why, is printed anyway.
        let is_failure = good.status.code() == Some(2);
        assert!(times == 1 || is_failure && times == 0 && !said.is_empty(), "{line}: {said}");
    }
    // A full standard error cannot report that, and only an answer on it is lost.
    for (line, good) in undisturbed() {
        let run = usual(&folder, line).stderr(full()).output().expect("the binary runs");
        let is_answer = line.ends_with(" -");
        assert!(run.status == good.status || is_answer && run.status.code() == Some(2), "{line}: {}", run.status);
    }
}

/// The file of an option, through any path that leads to standard output.
#[test]
fn an_unread_device_is_no_failure() {
    let folder = folder("streams-device");
    for target in ["/dev/stdout", "/dev/fd/1", "-"] {
        for line in ["export good.pickle --output", "export odd.pickle --format perfetto --output", "report good.pickle --svg"] {
            let run = usual(&folder, &format!("{line} {target}")).stdout(unread()).output().expect("the binary runs");
            assert_eq!(run.status.code(), Some(0), "{line} {target}: {}", String::from_utf8_lossy(&run.stderr));
        }
    }
    assert_eq!(parkade(&["--help"]).stdout(unread()).status().expect("the binary runs").code(), Some(0));
}
