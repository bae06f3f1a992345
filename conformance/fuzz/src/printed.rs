//! Runs the commands with their output: text, JSON, tables, pages, pictures and statistics for comparison.
//!
//! The commands run as they do in the binary, including arguments, on a file in a separate folder.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::case::{Case, Reached};

/// The output of `memory_stats()` from another run.
const STATS: &str = include_str!("../../../recordings/pools/graph_reset.default.2.stats.json");

/// Arguments in which `{}` stands for the folder with the files that are read and written.
type Arguments = &'static [&'static str];

/// Runs the command on the recording with one of the argument lists, which the case selects.
fn run(bytes: &[u8], case: u8, command: &str, lists: &[Arguments]) -> Reached {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("recording.pickle"), bytes).expect("room for a file");
    fs::write(folder.path().join("stats.json"), STATS).expect("room for a file");
    let chosen = lists[Case::new(case).number() % lists.len()];
    let given = ["parkade", command, "{}/recording.pickle"];
    let arguments = given.iter().chain(chosen).map(|argument| filled(argument, folder.path()));
    match parkade_cli::answer(arguments) {
        Err(error) => {
            assert!(error.downcast_ref::<clap::Error>().is_none(), "these arguments are valid: {error}");
            assert!(!format!("{error:#}").is_empty(), "an error without a message");
            Reached::Refused
        }
        Ok(printed) => {
            let printed = String::from_utf8(printed).expect("text");
            if chosen.contains(&"--json") {
                let read = printed.lines().take(1).all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
                assert!(read, "the first line is not JSON: {printed:.200}");
            }
            Reached::Read
        }
    }
}

fn filled(argument: &str, folder: &Path) -> OsString {
    match argument.strip_prefix("{}/") {
        Some(name) => folder.join(name).into_os_string(),
        None => argument.into(),
    }
}

pub(super) fn verify(bytes: &[u8], case: u8) -> Reached {
    let lists: [Arguments; 5] =
        [&[], &["--json"], &["--stats", "{}/stats.json"], &["--stats", "{}/stats.json", "--json"], &["--limit", "1GiB"]];
    run(bytes, case, "verify", &lists)
}

pub(super) fn stats(bytes: &[u8], case: u8) -> Reached {
    let lists: [Arguments; 7] = [
        &[],
        &["--json"],
        &["--keys"],
        &["--csv", "--every", "7"],
        &["--steps"],
        &["--steps", "--json"],
        &["--settings", "expandable_segments:True", "--capacity", "1GiB", "--every", "50"],
    ];
    run(bytes, case, "stats", &lists)
}

pub(super) fn diagnose(bytes: &[u8], case: u8) -> Reached {
    let lists: [Arguments; 5] = [&[], &["--json"], &["--entry", "1"], &["--capacity", "1GiB", "--json"], &["--limit", "512MiB"]];
    run(bytes, case, "diagnose", &lists)
}

pub(super) fn replay(bytes: &[u8], case: u8) -> Reached {
    let lists: [Arguments; 4] = [
        &["--settings", ""],
        &["--settings", "expandable_segments:True", "--json"],
        &["--settings", "max_split_size_mb:21", "--capacity", "200MiB"],
        &["--settings", "garbage_collection_threshold:0.4", "--limit", "1GiB", "--json"],
    ];
    run(bytes, case, "replay", &lists)
}

pub(super) fn export(bytes: &[u8], case: u8) -> Reached {
    let lists: [Arguments; 4] = [
        &["-o", "{}/written"],
        &["-o", "{}/written", "--format", "perfetto"],
        &["-o", "{}/written", "--format", "perfetto", "--blocks", "3", "--settings", "expandable_segments:True"],
        &["-o", "{}/written", "--settings", "max_split_size_mb:64", "--limit", "300MiB", "--stop-at-oom"],
    ];
    run(bytes, case, "export", &lists)
}

pub(super) fn diff(bytes: &[u8], case: u8) -> Reached {
    let lists: [Arguments; 6] = [
        &[],
        &["--json"],
        &["{}/recording.pickle", "--all"],
        &["{}/recording.pickle", "--json"],
        &["--steps", "0:1", "--fail-above", "5%"],
        &["--fail-above", "1GiB"],
    ];
    run(bytes, case, "diff", &lists)
}

pub(super) fn report(bytes: &[u8], case: u8) -> Reached {
    let lists: [Arguments; 6] = [
        &["-o", "{}/page.html"],
        &["-o", "{}/page.html", "--page-size", "1KiB", "--settings", "expandable_segments:True"],
        &["--svg", "{}/picture.svg", "--flamegraph", "{}/flames.svg"],
        &["--svg", "{}/heap.svg", "--entry", "2", "--folded", "{}/stacks.txt"],
        &["--json"],
        &[],
    ];
    run(bytes, case, "report", &lists)
}

pub(super) fn advise(bytes: &[u8], case: u8) -> Reached {
    let lists: [Arguments; 4] = [
        &[],
        &["--json", "--capacity", "300MiB"],
        &["--all", "--settings", "max_split_size_mb:40"],
        &["--only", "--settings", "expandable_segments:True", "--limit", "1GiB"],
    ];
    run(bytes, case, "advise", &lists)
}

pub(super) fn pack(bytes: &[u8], case: u8) -> Reached {
    let lists: [Arguments; 3] =
        [&["--budget", "20000"], &["--budget", "20000", "--json"], &["--budget", "20000", "-o", "{}/packed.csv"]];
    run(bytes, case, "pack", &lists)
}
