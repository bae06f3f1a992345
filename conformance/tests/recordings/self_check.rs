//! Tests the self-check: a replay of every shipped recording under its own settings needs as much memory as the
//! recorded run did.

use std::path::{Path, PathBuf};

use parkade_conformance::shipped::{self, limit_bytes_of};
use parkade_recording::read_file;
use parkade_replay::{FlushReason, ReplaySettings, Requests, SelfCheck, VerifyOptions};

const ENDING: &str = ".pickle.xz";

/// All recordings in a folder and its subfolders.
fn all_in(folder: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found = Vec::new();
    for path in listed.map(|file| file.expect("a file").path()) {
        if path.is_dir() {
            found.extend(all_in(&path));
        } else if path.to_string_lossy().ends_with(ENDING) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn name_of(path: &Path) -> String {
    path.file_name().expect("a name").to_string_lossy().trim_end_matches(ENDING).to_owned()
}

/// The self-check of each device with a trace, and how its flushes were interpreted.
fn checks(path: &Path, limit_bytes: Option<u64>) -> Vec<(Option<SelfCheck>, Vec<FlushReason>)> {
    let recording = read_file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let settings = ReplaySettings::of_recording(recording.settings.as_ref()).expect("settings");
    let own = VerifyOptions { settings, limit_bytes, stats_file: None };
    let check = |device| {
        let requests = Requests::of_recording(device, &own, &mut |_| ()).expect("requests");
        let reasons = requests.flushes.iter().map(|flush| flush.reason).collect();
        (SelfCheck::of(device, &own, &requests), reasons)
    };
    recording.devices.iter().filter(|device| !device.trace.is_empty()).map(check).collect()
}

#[test]
fn with_its_own_settings_every_recording_needs_what_it_needed() {
    let all = all_in(&shipped::folder());
    assert!(all.len() > 50, "{} recordings", all.len());
    for path in all {
        let name = name_of(&path);
        for (check, _) in checks(&path, limit_bytes_of(&name)) {
            // The file lacks what happened before the first entry, or the settings are those of parkade's own policies.
            let has_lost_beginning = name.contains("tail") || name.contains("all_oom");
            let cannot_be_checked = has_lost_beginning || name.contains("compaction");
            assert_eq!(check.is_none(), cannot_be_checked, "{name}");
            assert!(check.is_none_or(|check| check.holds()), "{name}: {check:?}");
        }
    }
}

/// The limit is not stated; retries and failures reveal enough about it.
#[test]
fn a_limit_that_is_not_given_is_read_off_the_retries() {
    for (name, reason) in [
        ("prefetch_streams.limit6", Some(FlushReason::OftenRefused)),
        ("pools/mempool_oom.default.18", Some(FlushReason::OthersFailed)),
        ("resnet50_sweep.limit5_oom", None),
    ] {
        for (check, reasons) in checks(&shipped::folder().join(format!("{name}{ENDING}")), None) {
            assert!(check.expect("a check").holds(), "{name}: {check:?}");
            assert_eq!(reasons.last().copied(), reason, "{name}");
        }
    }
}

/// PyTorch counted no retry in these runs.
#[test]
fn calls_of_empty_cache_before_captures_are_no_retries() {
    for name in ["graph_reset.default.2", "graph_reset.expandable.1", "graph_reset.expandable.2", "mempool_many.pow2.41"] {
        let shipped = super::read_with_pools(name);
        let path = shipped::folder().join("pools").join(format!("{name}{ENDING}"));
        let retries = shipped.verify(shipped.device()).expect("a verdict").stats.num_alloc_retries;
        for (check, reasons) in checks(&path, None) {
            assert!(!reasons.is_empty() && !reasons.iter().any(|reason| reason.is_retry()), "{name}: {reasons:?}");
            assert_eq!((check.expect("a check").holds(), retries), (true, 0), "{name}");
        }
    }
}
