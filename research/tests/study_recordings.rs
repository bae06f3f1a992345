//! Tests a recording as a workload: its run reserves what the replay of the recording predicts.

use std::path::Path;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_policies::named;
use parkade_recording::read_file;
use parkade_replay::{Completion, Operation, OutlookOptions, ReplaySettings, Requests, VerifyOptions, replay_device};
use parkade_research::study::{Addresses, RunOptions, run};
use parkade_research::workload::{Event, Workload};

/// Returns the workload of a recording without private pools or late frees.
fn workload(requests: &Requests) -> Workload {
    let mut buffers = Vec::new();
    let mut streams = Vec::new();
    let (mut next, mut events) = (0, Vec::new());
    for (_, operation) in &requests.operations {
        match *operation {
            Operation::Allocate { bytes, stream, failed, .. } => {
                assert!(!failed, "no request of the recording failed");
                let place = streams.iter().position(|&known| known == stream).unwrap_or_else(|| {
                    streams.push(stream);
                    streams.len() - 1
                });
                buffers.push(next);
                events.push(Event::Allocate { buffer: next, bytes, stream: u16::try_from(place).expect("few streams") });
                next += 1;
            }
            Operation::Free { id, completion } => {
                assert_eq!(completion, Completion::AtOnce);
                events.push(Event::Free { buffer: buffers[id] });
            }
            Operation::EmptyCache => events.push(Event::EmptyCache),
            other => panic!("{other:?} concerns a private pool"),
        }
    }
    Workload { name: "recording".into(), says: "a recorded program".into(), events, ..Workload::default() }
}

#[test]
fn a_recorded_workload_reserves_what_the_replay_predicts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings");
    // The replay places segments where the recorded process's driver did, among that process's other memory; a study has no
    // other memory. This can decide between equal blocks, which happens here only in the third recording.
    for (name, is_exact) in [("deep_mlp.default", true), ("gpt2_varlen.default", true), ("resnet50_sweep.default", false)] {
        let recording = read_file(folder.join(format!("{name}.pickle.xz"))).expect("a recording");
        let settings = ReplaySettings::of_recording_as(&Profile::PYTORCH_2_11, recording.settings.as_ref()).expect("settings");
        let options = OutlookOptions {
            own: VerifyOptions { settings, limit_bytes: None, stats_file: None },
            profile: &Profile::PYTORCH_2_11,
            settings: Settings::default(),
            limit_bytes: None,
            capacity_bytes: None,
        };
        let outlook = replay_device(&recording.devices[0], &options, &mut |_| ()).expect("a replay");
        let workload = workload(&outlook.requests);
        let peak = |addresses| {
            let policy = named("pytorch").expect("a policy").make();
            let outcome = run(&workload, policy, &RunOptions { addresses, ..RunOptions::plenty() });
            assert!(outcome.fits(), "{name}: {outcome:?}");
            outcome.peak_reserved_bytes
        };
        let predicted = outlook.prediction.peak_reserved_bytes().cast_unsigned();
        if is_exact {
            assert_eq!(peak(Addresses::default()), predicted, "{name}");
        }
        for addresses in Addresses::ALL {
            let difference = peak(addresses).abs_diff(predicted) as f64 / predicted as f64;
            assert!(difference < 0.002, "{name}: {} with {}", peak(addresses), addresses.name());
        }
    }
}
