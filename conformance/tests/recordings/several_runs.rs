//! Tests programs on two streams, each of which was run several times on a real H200. The GPU's timing differs from run
//! to run, so a prediction from one run is a range that contains the other runs' peaks.

use parkade::profile::Profile;
use parkade_conformance::shipped;
use parkade_recording::DeviceRecording;
use parkade_replay::{Outlook, OutlookOptions, ReplaySettings, Requests, VerifyOptions, replay_device};

struct Run {
    program: String,
    setting: String,
    recording: DeviceRecording,
    options: VerifyOptions,
}

/// The recordings in `conformance/recordings/timing`, named `PROGRAM.SETTING.RUN`.
fn runs() -> Vec<Run> {
    let folder = shipped::folder().join("timing");
    let names = shipped::names_in(&folder).unwrap_or_else(|error| panic!("{error}"));
    let read = |name: &String| {
        let mut words = name.split('.').map(str::to_owned);
        let (program, setting) = (words.next().expect("a program"), words.next().expect("a setting"));
        let file = parkade_recording::read_file(folder.join(format!("{name}.pickle.xz")));
        let recording = file.unwrap_or_else(|error| panic!("{name}: {error}"));
        let settings = ReplaySettings::of_recording(recording.settings.as_ref()).expect("the settings of a real run");
        let options = VerifyOptions { settings, limit_bytes: None, stats_file: None };
        let device = recording.devices.into_iter().max_by_key(|device| device.trace.len());
        Run { program, setting, recording: device.expect("a device"), options }
    };
    names.iter().map(read).collect()
}

fn outlook(run: &Run, target: &Run) -> Outlook {
    let options = OutlookOptions {
        own: run.options.clone(),
        profile: &Profile::PYTORCH_2_11,
        settings: target.options.settings.settings.clone(),
        limit_bytes: None,
        capacity_bytes: None,
    };
    replay_device(&run.recording, &options, &mut |_| ()).expect("a prediction")
}

#[test]
fn every_run_is_explained_and_needs_what_it_needed() {
    for run in runs() {
        let own = outlook(&run, &run);
        let name = format!("{}.{}", run.program, run.setting);
        assert_eq!(own.requests.mismatches, 0, "{name}");
        assert_eq!(own.prediction.peak_reserved_bytes(), own.requests.recorded_peak_reserved_bytes, "{name}");
    }
}

#[test]
fn other_runs_peaks_are_in_the_likely_range_which_is_at_most_a_fifth_wide() {
    let runs = runs();
    let requests = |run: &Run| Requests::of_recording(&run.recording, &run.options, &mut |_| ()).expect("requests");
    let real: Vec<i64> = runs.iter().map(|run| requests(run).recorded_peak_reserved_bytes).collect();
    for run in &runs {
        let others = runs.iter().zip(&real).filter(|(other, _)| other.program == run.program && other.setting != run.setting);
        let mut count = 0;
        for (other, real) in others {
            let outlook = outlook(run, other);
            let range = outlook.timing.expect("the timing of two streams matters");
            let (least, most) = (range.least_peak_reserved_bytes, range.most_peak_reserved_bytes);
            let name = format!("{}.{} -> {}: {real} should be from {least} to {most}", run.program, run.setting, other.setting);
            assert!(range.is_likely && (least..=most).contains(real), "{name}");
            assert!((most - least) * 5 <= outlook.prediction.peak_reserved_bytes(), "{name}");
            count += 1;
        }
        assert_eq!(count, 2, "two runs under the other setting");
    }
}
