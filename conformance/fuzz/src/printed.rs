//! Target `printed`: the commands as they run in the binary, with their arguments and files: text, JSON, tables, pages and
//! pictures.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use clap::Parser;
use parkade_cli::commands::{merge as merges, sweep as sweeps};
use parkade_cli::terminal::runner::{Command as _, render};

use crate::case::{Case, Command, run_chosen};
use crate::choices::Choices;
use crate::{recordings, texts};

const COMMANDS: [Command; 12] = [
    Command(recordings::plausible, verify),
    Command(recordings::plausible, stats),
    Command(recordings::plausible, diagnose),
    Command(recordings::plausible, replay),
    Command(recordings::plausible, export),
    Command(recordings::plausible, diff),
    Command(recordings::plausible, report),
    Command(recordings::plausible, pack),
    Command(recordings::plausible, advise),
    Command(|choices| texts::buffers(choices).into_bytes(), pack),
    Command(|choices| texts::rows(sound_rows(), choices).into_bytes(), merge),
    Command(arguments, largest_batch),
];

/// Runs the command and the case that the first two bytes select. The other bytes are its file, or the choices that make
/// it. Returns whether the command accepted the file.
///
/// # Panics
/// If the command panics, or prints something that is not in the requested form.
pub fn run(data: &[u8]) -> bool {
    run_chosen(&COMMANDS, data)
}

/// Runs every command that reads recordings on this file.
///
/// # Panics
/// If a command panics, or prints something that is not in the requested form.
pub fn run_on_recording(bytes: &[u8], case: u8) {
    for command in &COMMANDS[..9] {
        command.run(bytes, case);
    }
}

/// The output of `memory_stats()` from another run.
const STATS: &str = include_str!("../../recordings/pools/graph_reset.default.2.stats.json");

/// Arguments in which `{}` stands for the folder with the files that are read and written.
type Arguments = &'static [&'static str];

/// Runs the command on the recording with one of the argument lists, which the case selects.
fn answer(bytes: &[u8], case: u8, command: &str, lists: &[Arguments]) -> bool {
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
            false
        }
        Ok(printed) => {
            let printed = String::from_utf8(printed).expect("text");
            if chosen.contains(&"--json") {
                let read = printed.lines().take(1).all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
                assert!(read, "the first line is not JSON: {printed:.200}");
            }
            true
        }
    }
}

fn filled(argument: &str, folder: &Path) -> OsString {
    match argument.strip_prefix("{}/") {
        Some(name) => folder.join(name).into_os_string(),
        None => argument.into(),
    }
}

fn verify(bytes: &[u8], case: u8) -> bool {
    let lists: [Arguments; 5] =
        [&[], &["--json"], &["--stats", "{}/stats.json"], &["--stats", "{}/stats.json", "--json"], &["--limit", "1GiB"]];
    answer(bytes, case, "verify", &lists)
}

fn stats(bytes: &[u8], case: u8) -> bool {
    let lists: [Arguments; 7] = [
        &[],
        &["--json"],
        &["--keys"],
        &["--csv", "--every", "7"],
        &["--steps"],
        &["--steps", "--json"],
        &["--settings", "expandable_segments:True", "--capacity", "1GiB", "--every", "50"],
    ];
    answer(bytes, case, "stats", &lists)
}

fn diagnose(bytes: &[u8], case: u8) -> bool {
    let lists: [Arguments; 5] = [&[], &["--json"], &["--entry", "1"], &["--capacity", "1GiB", "--json"], &["--limit", "512MiB"]];
    answer(bytes, case, "diagnose", &lists)
}

fn replay(bytes: &[u8], case: u8) -> bool {
    let lists: [Arguments; 4] = [
        &["--settings", ""],
        &["--settings", "expandable_segments:True", "--json"],
        &["--settings", "max_split_size_mb:21", "--capacity", "200MiB"],
        &["--settings", "garbage_collection_threshold:0.4", "--limit", "1GiB", "--json"],
    ];
    answer(bytes, case, "replay", &lists)
}

fn export(bytes: &[u8], case: u8) -> bool {
    let lists: [Arguments; 4] = [
        &["-o", "{}/written"],
        &["-o", "{}/written", "--format", "perfetto"],
        &["-o", "{}/written", "--format", "perfetto", "--blocks", "3", "--settings", "expandable_segments:True"],
        &["-o", "{}/written", "--settings", "max_split_size_mb:64", "--limit", "300MiB", "--stop-at-oom"],
    ];
    answer(bytes, case, "export", &lists)
}

fn diff(bytes: &[u8], case: u8) -> bool {
    let lists: [Arguments; 6] = [
        &[],
        &["--json"],
        &["{}/recording.pickle", "--all"],
        &["{}/recording.pickle", "--json"],
        &["--steps", "0:1", "--fail-above", "5%"],
        &["--fail-above", "1GiB"],
    ];
    answer(bytes, case, "diff", &lists)
}

fn report(bytes: &[u8], case: u8) -> bool {
    let lists: [Arguments; 6] = [
        &["-o", "{}/page.html"],
        &["-o", "{}/page.html", "--page-size", "1KiB", "--settings", "expandable_segments:True"],
        &["--svg", "{}/picture.svg", "--flamegraph", "{}/flames.svg"],
        &["--svg", "{}/heap.svg", "--entry", "2", "--folded", "{}/stacks.txt"],
        &["--json"],
        &[],
    ];
    answer(bytes, case, "report", &lists)
}

fn advise(bytes: &[u8], case: u8) -> bool {
    let lists: [Arguments; 4] = [
        &[],
        &["--json", "--capacity", "300MiB"],
        &["--all", "--settings", "max_split_size_mb:40"],
        &["--only", "--settings", "expandable_segments:True", "--limit", "1GiB"],
    ];
    answer(bytes, case, "advise", &lists)
}

fn pack(bytes: &[u8], case: u8) -> bool {
    let lists: [Arguments; 3] =
        [&["--budget", "20000"], &["--budget", "20000", "--json"], &["--budget", "20000", "-o", "{}/packed.csv"]];
    answer(bytes, case, "pack", &lists)
}

/// Runs the rows of a small sweep.
fn sound_rows() -> &'static str {
    static ROWS: OnceLock<String> = OnceLock::new();
    ROWS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rows.jsonl");
        let arguments =
            ["sweep", "-w", "mlp:depth=2,steps=1", "-p", "pytorch,best-fit-remap", "-c", "1.0,1.1", "--bounds", "0", "-o"];
        let arguments = arguments.into_iter().map(Into::into).chain([file.clone().into_os_string()]);
        let command = sweeps::Args::try_parse_from(arguments).expect("these arguments are valid");
        command.compute().expect("a sweep");
        fs::read_to_string(file).expect("the rows of the sweep")
    })
}

fn merge(bytes: &[u8], case: u8) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let (part, merged) = (folder.path().join("part.jsonl"), folder.path().join("merged.jsonl"));
    fs::write(&part, bytes).expect("room for a file");
    let form = ["--json", "--markdown", "--latex"][usize::from(case) % 3];
    let arguments = ["merge".into(), "--force".into(), form.into(), part.into_os_string(), "-o".into(), merged.into_os_string()];
    let command = merges::Args::try_parse_from(arguments).expect("these arguments are valid");
    let Ok(finished) = command.compute() else { return false };
    drop(render(&command, &finished).expect("the merged rows can be printed"));
    true
}

/// Returns arguments of `parkade sweep --largest-batch`, one per line. About half of them are
/// valid.
fn arguments(choices: &mut Choices<'_>) -> Vec<u8> {
    const WRONG: [&str; 7] = ["0", "18446744073709551615", "", "x", "-1", "4294967296", "63"];
    let mut number = |sound: &[&'static str]| if choices.once_in(28) { choices.pick(&WRONG) } else { choices.pick(sound) };
    let (precision, master_copy) = (number(&["bf16", "fp16", "fp32"]), number(&["on", "off"]));
    let workload = format!(
        "--workloads=transformer:layers={},hidden={},heads={},vocabulary={},sequence={},steps={},accumulation={},checkpointing={},precision={precision},master_copy={master_copy}",
        number(&["1", "2", "3"]),
        number(&["64", "128", "192"]),
        number(&["1", "2", "4"]),
        number(&["100", "1", "50257"]),
        number(&["16", "1", "64"]),
        number(&["1", "2"]),
        number(&["1", "1", "2"]),
        number(&["none", "layer", "other", "sqrt", "2"]),
    );
    let sizes = [
        format!("--most-batch={}", number(&["1", "2", "8"])),
        format!("--capacities={}", number(&["1GiB", "600MiB", "24GB", "A100-40GB", "20MiB"])),
        format!("--context={}", number(&["1", "1MiB", "10MiB"])),
        format!(
            "--policies={}",
            number(&["pytorch", "bfc:kind=one-region", "gmlake-like", "pytorch-expandable,best-fit-remap", "all"])
        ),
    ];
    let others = ["", ",tied=off", ",attention=materialized", ",mlp_ratio=1", ",mixed=on"];
    let mut lines = vec![format!("{workload}{}", choices.pick(&others))];
    lines.extend(sizes);
    lines.push(choices.pick(&["--json", "--latex", "--markdown"]).to_owned());
    lines.join("\n").into_bytes()
}

fn largest_batch(bytes: &[u8], _: u8) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let arguments = ["sweep", "--largest-batch"].into_iter().chain(text.lines());
    let Ok(command) = sweeps::Args::try_parse_from(arguments) else { return false };
    let Ok(found) = command.compute() else { return false };
    drop(render(&command, &found).expect("the findings can be printed"));
    true
}
