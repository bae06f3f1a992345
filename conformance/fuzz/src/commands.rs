//! Does what the commands do with a recording, a script or rows: calls the functions that the binary calls, with the
//! binary's options.
//!
//! For sweep's rows, its largest batches and merge, the code runs as in the binary, including arguments and output.

use std::fs;
use std::sync::OnceLock;

use clap::Parser;
use parkade_analysis::StackNames;
use parkade_analysis::advise::{AdviseOptions, MemoryBudget};
use parkade_analysis::annotations::{phase_at, scopes, steps};
use parkade_analysis::diagnose::DiagnoseOptions;
use parkade_analysis::diff::{Part, Side};
use parkade_analysis::ending::Ending;
use parkade_analysis::fragmentation::{Fragmentation, ReplayOptions, sample_recorded_run, sample_replayed_run};
use parkade_analysis::holders::Holders;
use parkade_analysis::ranks::RankRun;
use parkade_analysis::timeline::{Curve, Levels, Span, TimeSamples, Timeline, WhatIf, holders, what_if};
use parkade_cli::commands::{merge as merges, sweep as sweeps};
use parkade_cli::terminal::runner::{Command, render};
use parkade_policies::CATALOGUE;
use parkade_recording::{DeviceRecording, Recording, Style, read, write};
use parkade_replay::export::ExportOptions;
use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};
use parkade_replay::{AfterFailure, OutlookOptions, Requests, VerifyOptions, learned_addresses, replay_device, verify_device};
use parkade_research::packing::{self, Effort, Instance, Recorded, is_csv, pack_watched, read_csv, write_csv};
use parkade_research::study::sweep::PreparedWorkload;
use parkade_research::study::{RunOptions, curves, run, smallest_capacity};
use parkade_research::workload::recorded::of_requests;

use crate::choices::Choices;
use crate::targets::case::{Case, Reached};
use crate::{recordings, texts};

pub(super) fn recording(choices: &mut Choices<'_>) -> Vec<u8> {
    recordings::plausible(choices)
}

/// A recording that was read, with the settings of its run.
pub(super) struct Opened {
    pub(super) recording: Recording,
    pub(super) own: VerifyOptions,
    pub(super) case: Case,
}

impl Opened {
    pub(super) fn new(bytes: &[u8], case: u8) -> Option<Opened> {
        let (recording, case) = (read(bytes).ok()?, Case::new(case));
        let own = case.own(&recording)?;
        Some(Opened { recording, own, case })
    }

    pub(super) fn traced(&self) -> impl Iterator<Item = &DeviceRecording> {
        self.recording.devices.iter().filter(|device| !device.trace.is_empty())
    }
}

/// Runs `act` on the recording.
fn with(bytes: &[u8], case: u8, act: impl FnOnce(&Opened)) -> Reached {
    let Some(opened) = Opened::new(bytes, case) else { return Reached::Refused };
    act(&opened);
    Reached::Read
}

pub(super) fn verify(bytes: &[u8], case: u8) -> Reached {
    with(bytes, case, |opened| {
        for device in opened.traced() {
            match verify_device(device, &opened.own, &mut |_| ()) {
                Ok(verdict) => {
                    assert!(
                        verdict.mismatches == 0 || verdict.first.is_some(),
                        "the results differ, but the command names no difference"
                    );
                    drop(RankRun::of_verdict(device, &opened.own.settings, &verdict));
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    })
}

pub(super) fn stats(bytes: &[u8], case: u8) -> Reached {
    with(bytes, case, |opened| {
        for device in &opened.recording.devices {
            let _ = Fragmentation::of_recorded(&device.segments).ratio();
        }
        for device in opened.traced() {
            let (last, every) = (device.trace.len() - 1, 1 + opened.case.number());
            let mut at: Vec<usize> = (0..last).step_by(every).take(64).collect();
            at.push(last);
            if let Ok(steps) = steps(&opened.recording.annotations, device, None) {
                at = steps.steps.iter().map(|step| step.last_entry).collect();
            }
            let _ = sample_recorded_run(device, &opened.own, &at);
            let options = ReplayOptions {
                own: opened.own.clone(),
                profile: opened.case.profile(),
                settings: opened.case.settings(),
                limit_bytes: opened.case.limit_bytes(device),
                capacity_bytes: opened.case.capacity_bytes(device),
            };
            let _ = sample_replayed_run(device, &options, &at);
        }
    })
}

pub(super) fn diagnose(bytes: &[u8], case: u8) -> Reached {
    with(bytes, case, |opened| {
        for device in &opened.recording.devices {
            let entry = (opened.case.number() % 4 == 3).then(|| opened.case.number() * device.trace.len() / 64);
            let capacity_bytes = opened.case.capacity_bytes(device);
            let options = DiagnoseOptions { own: opened.own.clone(), capacity_bytes, entry, fences: 20 };
            let _ = parkade_analysis::diagnose::diagnose_device(device, &options, &mut |_| ());
            let _ = RankRun::of_recording(device, &opened.own);
        }
    })
}

pub(super) fn replay(bytes: &[u8], case: u8) -> Reached {
    with(bytes, case, |opened| {
        let outlook = |device: &&DeviceRecording| replay_device(device, &outlook_options(opened, device), &mut |_| ());
        for (device, outlook) in opened.traced().map(|device| (device, outlook(&device))) {
            if let Ok(outlook) = outlook {
                let _ = outlook.fits();
                drop(RankRun::of_outlook(device, &opened.own.settings, &outlook));
            }
        }
    })
}

fn outlook_options(opened: &Opened, device: &DeviceRecording) -> OutlookOptions {
    OutlookOptions {
        own: opened.own.clone(),
        profile: opened.case.profile(),
        settings: opened.case.settings(),
        limit_bytes: opened.case.limit_bytes(device),
        capacity_bytes: opened.case.capacity_bytes(device),
    }
}

/// Checks that an exported recording can be written, and that reading it back yields the same
/// recording.
pub(super) fn export(bytes: &[u8], case: u8) -> Reached {
    with(bytes, case, |opened| {
        let Some(first) = opened.traced().next() else { return };
        let options = ExportOptions {
            own: opened.own.clone(),
            profile: opened.case.profile(),
            settings: opened.case.settings(),
            limit_bytes: opened.case.limit_bytes(first),
            capacity_bytes: opened.case.capacity_bytes(first),
            after_failure: if opened.case.number() % 2 == 0 { AfterFailure::Stop } else { AfterFailure::GoOn },
            device: None,
        };
        let Ok(exported) = parkade_replay::export::export(&opened.recording, &options, &mut |_| ()) else { return };
        let again = read(&write(&exported.recording, Style::Python)).expect("an exported recording can be read");
        for device in &exported.recording.devices {
            let read = again.devices.iter().find(|read| read.device == device.device);
            let counts = read.map(|read| (read.trace.len(), read.segments.len())).unwrap_or_default();
            assert_eq!(counts, (device.trace.len(), device.segments.len()), "device {}", device.device);
        }
    })
}

/// Compares the run with itself under different conditions: the entire run, and one step with
/// another.
pub(super) fn diff(bytes: &[u8], case: u8) -> Reached {
    with(bytes, case, |opened| {
        for device in &opened.recording.devices {
            let side = |part| Side { recording: &opened.recording, device, own: &opened.own, part };
            let _ = parkade_analysis::diff::show(side(Part::Whole));
            let _ = parkade_analysis::diff::diff(side(Part::Whole), side(Part::Whole));
            let _ = parkade_analysis::diff::diff(side(Part::Step(0)), side(Part::Step(opened.case.number() % 5)));
        }
        let sides: Vec<_> = opened.recording.devices.iter().take(2).collect();
        if let [a, b] = sides[..] {
            let side = |device| Side { recording: &opened.recording, device, own: &opened.own, part: Part::Whole };
            let _ = parkade_analysis::diff::diff(side(a), side(b));
        }
    })
}

pub(super) fn report(bytes: &[u8], case: u8) -> Reached {
    with(bytes, case, |opened| {
        let mut runs = Vec::new();
        for device in &opened.recording.devices {
            draw(opened, device);
            runs.extend(RankRun::of_recording(device, &opened.own));
        }
        drop(parkade_analysis::ranks::compare(&runs));
    })
}

/// Draws the content of a report page.
fn draw(opened: &Opened, device: &DeviceRecording) {
    let Recording { annotations, stacks, .. } = &opened.recording;
    let _ = Ending::of(device).death();
    let _ = (scopes(annotations, device), TimeSamples::of(device, 65_536));
    for entry in device.trace.iter().take(20) {
        let _ = entry.time().and_then(|time_us| phase_at(annotations, device.device, time_us));
    }
    let requests = match device.trace.is_empty() {
        true => Requests::default(),
        false => match Requests::of_recording(device, &opened.own, &mut |_| ()) {
            Ok(requests) => requests,
            Err(_) => return,
        },
    };
    let Ok(timeline) = Timeline::of_device(device, &opened.own, &requests) else { return };
    let levels = &timeline.levels;
    for level in [&levels.allocated, &levels.active, &levels.reserved] {
        let _ = Curve::of(level, 4096).peak();
        let moment = u32::try_from(Levels::peak_moment(level)).unwrap_or(u32::MAX);
        let _ = (timeline.log.at(moment), holders(&timeline.log, moment));
        let told = Holders::of(&timeline.log, device, annotations, stacks);
        let _ = (told.at(&timeline.log, moment), told.without_stack(&timeline.log, moment));
        drop(told.folded(&timeline.log, (&StackNames::of(stacks), stacks), moment));
    }
    let packed = timeline.log.pack();
    drop(packed.unpack().expect("what was packed can be unpacked"));
    let learned = learned_addresses(device, &requests);
    let (profile, entries) = (opened.case.profile(), timeline.entries);
    let (limit_bytes, capacity_bytes) = (opened.case.limit_bytes(device), opened.case.capacity_bytes(device));
    let what = WhatIf {
        requests: &requests,
        learned: &learned,
        device: device.device,
        span: Span::recorded(entries),
        profile,
        limit_bytes,
        capacity_bytes,
    };
    drop(what_if(&what, &opened.case.settings(), 1024));
}

pub(super) fn advise(bytes: &[u8], case: u8) -> Reached {
    with(bytes, case, |opened| {
        let traced: Vec<&DeviceRecording> = opened.traced().collect();
        let Some(first) = traced.first() else { return };
        let memory =
            MemoryBudget { capacity_bytes: opened.case.capacity_bytes(first), limit_bytes: opened.case.limit_bytes(first) };
        let options = AdviseOptions {
            own: opened.own.clone(),
            profile: opened.case.profile(),
            memory,
            given: vec![opened.case.settings()],
            only_given: opened.case.number() % 8 == 7,
            devices_seen: traced.len(),
        };
        if let Ok(advice) = parkade_analysis::advise::advise(&traced, &options, &|_| ()) {
            let _ = advice.recommended();
        }
    })
}

pub(super) fn script(choices: &mut Choices<'_>) -> Vec<u8> {
    texts::script(choices).into_bytes()
}

/// Runs a script, and checks that every answer is a JSON object.
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
            assert!(read.is_ok(), "the answer to {line:?} is not JSON: {answer}");
        }
    }
    reached
}

/// Runs on a recording or a table of buffers.
pub(super) fn packable(choices: &mut Choices<'_>) -> Vec<u8> {
    if choices.once_in(2) { texts::buffers(choices).into_bytes() } else { recording(choices) }
}

/// Checks that every packing found is valid.
pub(super) fn pack(bytes: &[u8], case: u8) -> Reached {
    let effort = Effort { steps: 20_000, seed: case.into() };
    if is_csv(bytes) {
        let Ok(listed) = read_csv(&String::from_utf8_lossy(bytes)) else { return Reached::Refused };
        if let Ok(instance) = Instance::new(listed.buffers.clone()) {
            let found = pack_watched(&instance, &effort, &mut |_| ());
            assert_eq!(packing::check(&instance, &found.packing), Ok(()));
            read_csv(&write_csv(&listed, &found.packing)).expect("the written file can be read");
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

/// Runs a recorded program under two policies: in plenty of memory, in the smallest memory, and as curves.
pub(super) fn sweep(bytes: &[u8], case: u8) -> Reached {
    let Some(opened) = Opened::new(bytes, case) else { return Reached::Refused };
    for device in opened.traced() {
        let Ok(requests) = Requests::of_recording(device, &opened.own, &mut |_| ()) else { continue };
        let prepared = PreparedWorkload::new(of_requests("fuzzed", &requests).workload);
        for place in [0, 7] {
            let policy = &CATALOGUE[(opened.case.number() + place) % CATALOGUE.len()];
            let plenty = RunOptions::plenty();
            let make = || policy.make();
            let outcome = run(&prepared.workload, make(), &plenty);
            let smallest = smallest_capacity(&prepared.workload, &make, &plenty, &[prepared.load_bytes]);
            assert_eq!(
                smallest.is_ok(),
                outcome.fits(),
                "{}: the search for the smallest capacity contradicts the run with plenty of memory",
                policy.name
            );
            drop(curves(&prepared.workload, make(), &plenty, 64));
        }
    }
    Reached::Read
}

/// Runs the rows of a small sweep.
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
        fs::read_to_string(file).expect("the rows of the sweep")
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
    drop(render(&command, &finished).expect("the merged rows can be printed"));
    Reached::Read
}

/// Returns arguments of `parkade sweep --largest-batch`, one per line. About half of them are
/// valid.
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
            number(&["pytorch", "bfc:kind=one-region", "gmlake-like", "pytorch-expandable,best-fit-remap", "all"])
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
    drop(render(&command, &found).expect("the findings can be printed"));
    Reached::Read
}
