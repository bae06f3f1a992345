//! Sweep, merge, pack and ops. Sweep's rows, its largest batches and merge are run as the binary runs them, arguments and output included.

use std::fs;
use std::sync::OnceLock;

use clap::Parser;
use parkade_cli::commands::{merge as merges, sweep as sweeps};
use parkade_cli::terminal::runner::{Command, render};
use parkade_policies::CATALOGUE;
use parkade_replay::Requests;
use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};
use parkade_research::packing::{self, Effort, Instance, Recorded, is_csv, pack_watched, read_csv, write_csv};
use parkade_research::study::sweep::PreparedWorkload;
use parkade_research::study::{RunOptions, curves, run, smallest_capacity};
use parkade_research::workload::recorded::of_requests;

use super::case::Case;
use super::commands::Opened;
use super::{Reached, commands};
use crate::choices::Choices;
use crate::texts;

pub(super) fn script(choices: &mut Choices<'_>) -> Vec<u8> {
    texts::script(choices).into_bytes()
}

/// Runs a script; every answer is an object of JSON.
pub(super) fn ops(bytes: &[u8], case: u8) -> Reached {
    let case = Case::new(case);
    let settings = ["", "expandable_segments:True", "max_split_size_mb:64", "garbage_collection_threshold:0.5"];
    let options = OpsOptions {
        settings: settings[case.number() % 4].to_owned(),
        capacity_bytes: [1 << 30, 8 << 30, 64 << 20, 80 << 30][case.number() / 4 % 4],
        addresses: if case.number() < 32 { Addresses::Up } else { Addresses::Down },
        profile: case.profile(),
    };
    let mut runner = OpsRunner::new(&options).expect("these settings are valid");
    let mut reached = Reached::Refused;
    for line in String::from_utf8_lossy(bytes).lines() {
        if let Some(answer) = runner.run_line(line) {
            if answer.contains("\"ok\":1") {
                reached = Reached::Read;
            }
            let read = serde_json::from_str::<serde_json::Value>(&answer);
            assert!(read.is_ok(), "{line:?} is answered with what is no JSON: {answer}");
        }
    }
    reached
}

/// A recording or a table of buffers.
pub(super) fn packable(choices: &mut Choices<'_>) -> Vec<u8> {
    if choices.once_in(2) { texts::buffers(choices).into_bytes() } else { commands::recording(choices) }
}

/// Every packing found is valid.
pub(super) fn pack(bytes: &[u8], case: u8) -> Reached {
    let effort = Effort { steps: 20_000, seed: case.into() };
    if is_csv(bytes) {
        let Ok(listed) = read_csv(&String::from_utf8_lossy(bytes)) else { return Reached::Refused };
        if let Ok(instance) = Instance::new(listed.buffers.clone()) {
            let found = pack_watched(&instance, &effort, &mut |_| ());
            assert_eq!(packing::check(&instance, &found.packing), Ok(()));
            read_csv(&write_csv(&listed, &found.packing)).expect("what was written can be read");
        }
        return Reached::Read;
    }
    let Some(opened) = Opened::new(bytes, case) else { return Reached::Refused };
    for device in opened.traced() {
        let Ok(requests) = Requests::of_recording(device, &opened.own, &mut |_| ()) else { continue };
        if let Ok(instance) = Instance::new(Recorded::of(&requests).buffers) {
            let found = pack_watched(&instance, &effort, &mut |_| ());
            assert_eq!(packing::check(&instance, &found.packing), Ok(()));
        }
    }
    Reached::Read
}

/// A recorded program under two policies: in plenty of memory, in the smallest, and as curves.
pub(super) fn sweep(bytes: &[u8], case: u8) -> Reached {
    let Some(opened) = Opened::new(bytes, case) else { return Reached::Refused };
    for device in opened.traced() {
        let Ok(requests) = Requests::of_recording(device, &opened.own, &mut |_| ()) else { continue };
        let prepared = PreparedWorkload::new(of_requests("fuzzed", &requests).workload);
        for place in [0, 7] {
            let policy = CATALOGUE[(opened.case.number() + place) % CATALOGUE.len()];
            let plenty = RunOptions::plenty();
            let make = || (policy.make)();
            let outcome = run(&prepared.workload, make(), &plenty);
            let smallest = smallest_capacity(&prepared.workload, &make, &plenty, &[prepared.load_bytes]);
            assert_eq!(smallest.is_ok(), outcome.fits(), "{}: the search contradicts the run in plenty of memory", policy.name);
            drop(curves(&prepared.workload, make(), &plenty, 64));
        }
    }
    Reached::Read
}

/// The rows of a small sweep.
pub(super) fn sound_rows() -> &'static str {
    static ROWS: OnceLock<String> = OnceLock::new();
    ROWS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rows.jsonl");
        let arguments =
            ["sweep", "-w", "mlp:depth=2,steps=1", "-p", "pytorch,best-fit-remap", "-c", "1.0,1.1", "--bounds", "0", "-o"];
        let arguments = arguments.into_iter().map(Into::into).chain([file.clone().into_os_string()]);
        let command = sweeps::Args::try_parse_from(arguments).expect("these arguments are valid");
        command.compute().expect("a sweep");
        fs::read_to_string(file).expect("its rows")
    })
}

pub(super) fn rows(choices: &mut Choices<'_>) -> Vec<u8> {
    texts::rows(sound_rows(), choices).into_bytes()
}

pub(super) fn merge(bytes: &[u8], case: u8) -> Reached {
    let folder = tempfile::tempdir().expect("a folder");
    let (part, merged) = (folder.path().join("part.jsonl"), folder.path().join("merged.jsonl"));
    fs::write(&part, bytes).expect("room for a file");
    let form = ["--json", "--markdown", "--latex"][usize::from(case) % 3];
    let arguments = ["merge".into(), "--force".into(), form.into(), part.into_os_string(), "-o".into(), merged.into_os_string()];
    let command = merges::Args::try_parse_from(arguments).expect("these arguments are valid");
    let Ok(finished) = command.compute() else { return Reached::Refused };
    drop(render(&command, &finished).expect("what was merged can be printed"));
    Reached::Read
}

/// Arguments of `parkade sweep --largest-batch`, a line each. About half of them are valid.
pub(super) fn arguments(choices: &mut Choices<'_>) -> Vec<u8> {
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
            number(&["pytorch", "bfc-one-region", "gmlake-like", "pytorch-expandable,best-fit-remap", "all"])
        ),
    ];
    let others = ["", ",tied=off", ",attention=materialized", ",mlp_ratio=1", ",mixed=on"];
    let mut lines = vec![format!("{workload}{}", choices.pick(&others))];
    lines.extend(sizes);
    lines.push(choices.pick(&["--json", "--latex", "--markdown"]).to_owned());
    lines.join("\n").into_bytes()
}

pub(super) fn largest_batch(bytes: &[u8], _: u8) -> Reached {
    let text = String::from_utf8_lossy(bytes);
    let arguments = ["sweep", "--largest-batch"].into_iter().chain(text.lines());
    let Ok(command) = sweeps::Args::try_parse_from(arguments) else { return Reached::Refused };
    let Ok(found) = command.compute() else { return Reached::Refused };
    drop(render(&command, &found).expect("what was found can be printed"));
    Reached::Read
}
