//! Target `commands`: what the commands compute from a recording, a script or a table, without their output. The functions
//! and options are the binary's.

use std::collections::BTreeMap;

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
use parkade_cli::terminal::size as sizes;
use parkade_policies::CATALOGUE;
use parkade_recording::{DeviceRecording, Recording, Style, read, write};
use parkade_replay::export::ExportOptions;
use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};
use parkade_replay::{
    AfterFailure, OutlookOptions, Requests, StatsFile, VerifyOptions, learned_addresses, replay_device, verify_device,
};
use parkade_research::packing::{self, Effort, Instance, Recorded, is_csv, pack_watched, read_csv, write_csv};
use parkade_research::study::sweep::PreparedWorkload;
use parkade_research::study::{RunOptions, curves, run as run_policy, smallest_capacity};
use parkade_research::workload::recorded::of_requests;

use crate::case::{Case, Command, run_chosen};
use crate::{recordings, texts};

const COMMANDS: [Command; 14] = [
    Command(recordings::plausible, verify),
    Command(recordings::plausible, stats),
    Command(recordings::plausible, diagnose),
    Command(recordings::plausible, replay),
    Command(recordings::plausible, export),
    Command(recordings::plausible, diff),
    Command(recordings::plausible, report),
    Command(recordings::plausible, pack),
    Command(recordings::plausible, advise),
    Command(recordings::plausible, sweep),
    Command(|choices| texts::script(choices).into_bytes(), ops),
    Command(|choices| texts::buffers(choices).into_bytes(), pack),
    Command(|choices| texts::statistics(choices).into_bytes(), read_statistics),
    Command(|choices| texts::size(choices).into_bytes(), read_size),
];

/// Runs the command and the case that the first two bytes select. The other bytes are its input, or the choices that make
/// it. Returns whether the command accepted the input.
///
/// # Panics
/// If the command panics or breaks a law.
pub fn run(data: &[u8]) -> bool {
    run_chosen(&COMMANDS, data)
}

/// Runs every command that reads recordings on this file.
///
/// # Panics
/// If a command panics or breaks a law.
pub fn run_on_recording(bytes: &[u8], case: u8) {
    for command in &COMMANDS[..10] {
        command.run(bytes, case);
    }
}

/// A recording that was read, with the settings of its run.
struct Opened {
    recording: Recording,
    own: VerifyOptions,
    case: Case,
}

impl Opened {
    fn new(bytes: &[u8], case: u8) -> Option<Opened> {
        let (recording, case) = (read(bytes).ok()?, Case::new(case));
        let own = case.own(&recording)?;
        Some(Opened { recording, own, case })
    }

    fn traced(&self) -> impl Iterator<Item = &DeviceRecording> {
        self.recording.devices.iter().filter(|device| !device.trace.is_empty())
    }
}

/// Runs `act` on the recording.
fn with(bytes: &[u8], case: u8, act: impl FnOnce(&Opened)) -> bool {
    let Some(opened) = Opened::new(bytes, case) else { return false };
    act(&opened);
    true
}

fn verify(bytes: &[u8], case: u8) -> bool {
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

fn stats(bytes: &[u8], case: u8) -> bool {
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

fn diagnose(bytes: &[u8], case: u8) -> bool {
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

fn replay(bytes: &[u8], case: u8) -> bool {
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
fn export(bytes: &[u8], case: u8) -> bool {
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
fn diff(bytes: &[u8], case: u8) -> bool {
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

fn report(bytes: &[u8], case: u8) -> bool {
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

fn advise(bytes: &[u8], case: u8) -> bool {
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

/// Runs a script, and checks that every answer is a JSON object.
fn ops(bytes: &[u8], case: u8) -> bool {
    let case = Case::new(case);
    let settings = ["", "expandable_segments:True", "max_split_size_mb:64", "garbage_collection_threshold:0.5"];
    let options = OpsOptions {
        settings: settings[case.number() % 4].to_owned(),
        capacity_bytes: [1 << 30, 8 << 30, 64 << 20, 80 << 30][case.number() / 4 % 4],
        addresses: if case.number() < 32 { Addresses::Up } else { Addresses::Down },
        profile: case.profile(),
    };
    let mut runner = OpsRunner::new(&options).expect("these settings are valid");
    let mut is_answered = false;
    for line in String::from_utf8_lossy(bytes).lines() {
        if let Some(answer) = runner.run_line(line) {
            if answer.contains("\"ok\":1") {
                is_answered = true;
            }
            let read = serde_json::from_str::<serde_json::Value>(&answer);
            assert!(read.is_ok(), "the answer to {line:?} is not JSON: {answer}");
        }
    }
    is_answered
}

/// Checks that every packing found is valid.
fn pack(bytes: &[u8], case: u8) -> bool {
    let effort = Effort { steps: 20_000, seed: case.into() };
    if is_csv(bytes) {
        let Ok(listed) = read_csv(&String::from_utf8_lossy(bytes)) else { return false };
        if let Ok(instance) = Instance::new(listed.buffers.clone()) {
            let found = pack_watched(&instance, &effort, &mut |_| ());
            assert_eq!(packing::check(&instance, &found.packing), Ok(()));
            read_csv(&write_csv(&listed, &found.packing)).expect("the written file can be read");
        }
        return true;
    }
    let Some(opened) = Opened::new(bytes, case) else { return false };
    for device in opened.traced() {
        let Ok(requests) = Requests::of_recording(device, &opened.own, &mut |_| ()) else { continue };
        if let Ok(instance) = Instance::new(Recorded::of(&requests).buffers) {
            let found = pack_watched(&instance, &effort, &mut |_| ());
            assert_eq!(packing::check(&instance, &found.packing), Ok(()));
        }
    }
    true
}

/// Runs a recorded program under two policies: in plenty of memory, in the smallest memory, and as curves.
fn sweep(bytes: &[u8], case: u8) -> bool {
    let Some(opened) = Opened::new(bytes, case) else { return false };
    for device in opened.traced() {
        let Ok(requests) = Requests::of_recording(device, &opened.own, &mut |_| ()) else { continue };
        let prepared = PreparedWorkload::new(of_requests("fuzzed", &requests).workload);
        for place in [0, 7] {
            let policy = &CATALOGUE[(opened.case.number() + place) % CATALOGUE.len()];
            let plenty = RunOptions::plenty();
            let make = || policy.make();
            let outcome = run_policy(&prepared.workload, make(), &plenty);
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
    true
}

fn read_statistics(bytes: &[u8], _: u8) -> bool {
    serde_json::from_slice::<BTreeMap<String, i64>>(bytes).is_ok_and(|entries| StatsFile::new(entries).is_ok())
}

fn read_size(bytes: &[u8], _: u8) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let _ = sizes::parse_bytes(&text);
    sizes::parse(&text).is_ok_and(|bytes| {
        assert!(!sizes::show_bytes(bytes).is_empty());
        true
    })
}
