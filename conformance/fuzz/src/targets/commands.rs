//! What the commands do with a recording: the functions that the binary calls, with its options.

use parkade_analysis::advise::{AdviseOptions, MemoryBudget};
use parkade_analysis::annotations::{phase_at, scopes, steps};
use parkade_analysis::diagnose::DiagnoseOptions;
use parkade_analysis::diff::{Part, Side};
use parkade_analysis::ending::Ending;
use parkade_analysis::fragmentation::{Fragmentation, ReplayOptions, sample_recorded_run, sample_replayed_run};
use parkade_analysis::holders::Holders;
use parkade_analysis::ranks::RankRun;
use parkade_analysis::timeline::{Curve, Levels, Span, TimeSamples, Timeline, WhatIf, holders, what_if};
use parkade_recording::{DeviceRecording, Recording, Style, read, write};
use parkade_replay::export::ExportOptions;
use parkade_replay::{AfterFailure, OutlookOptions, Requests, VerifyOptions, learned_addresses, replay_device, verify_device};

use super::Reached;
use super::case::Case;
use crate::choices::Choices;
use crate::recordings;

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

/// Runs `act` on what was read.
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
                    assert!(verdict.mismatches == 0 || verdict.first.is_some(), "something differs, and nothing is named");
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

/// What is exported can be written and read again, and is the same.
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
        let again = read(&write(&exported.recording, Style::Python)).expect("what is exported can be read");
        for device in &exported.recording.devices {
            let read = again.devices.iter().find(|read| read.device == device.device);
            let counts = read.map(|read| (read.trace.len(), read.segments.len())).unwrap_or_default();
            assert_eq!(counts, (device.trace.len(), device.segments.len()), "device {}", device.device);
        }
    })
}

/// The run against itself under other conditions: the whole of it, and a step of it with another.
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

/// What a page of the report draws.
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
        drop(told.folded(&timeline.log, stacks, moment));
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
        };
        if let Ok(advice) = parkade_analysis::advise::advise(&traced, &options, &|_| ()) {
            let _ = advice.recommended();
        }
    })
}
