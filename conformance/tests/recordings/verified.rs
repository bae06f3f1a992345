//! Tests that recordings of real runs are verified without differences, even if their oldest entries are missing, and
//! that forged recordings are not.

use parkade_conformance::shipped::{Shipped, folder};
use parkade_recording::{Action, DeviceRecording, Entry};
use parkade_replay::{DeviceVerdict, NotInFile, ReplaySettings, StatsFile, VerifyError, VerifyOptions, verify_device};

use super::{all_with_pools, names, read};

/// Returns a verdict in one line, for messages.
fn describe(verdict: &Result<DeviceVerdict, VerifyError>) -> String {
    match verdict {
        Ok(verdict) => format!(
            "{} mismatches, first {:?}, {:?}, stats {:?}",
            verdict.mismatches,
            verdict.first,
            verdict.not_in_file,
            verdict.stats_check.as_ref().map(|check| &check.differences)
        ),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_recording_verifies_and_its_statistics_are_equal() {
    assert_eq!(names().len(), 11);
    for name in names() {
        let shipped = read(&name);
        let verdict = shipped.verify(shipped.device());
        let text = describe(&verdict);
        let verdict = verdict.unwrap_or_else(|_| panic!("{name}: {text}"));
        assert_eq!(verdict.mismatches, 0, "{name}: {text}");
        assert!(verdict.decisions >= verdict.entries as u64, "{name}: every entry was compared");
        let statistics = verdict.stats_check.expect("statistics were given");
        assert_eq!(statistics.differences, [], "{name}");
        assert_eq!(statistics.compared + statistics.unknowable, 122, "{name}");
        // Only the recording whose oldest entries are missing has stats that cannot be known.
        assert_eq!(statistics.unknowable > 0, name.contains("tail"), "{name}");
        assert_eq!(verdict.not_in_file.lost_beginning.is_some(), name.contains("tail"), "{name}");
        assert_eq!(verdict.not_in_file.refusals, 0, "{name}: the limit explains every refusal");
    }
}

// ---- forgeries must be detected

/// The recordings from which forgeries are made: small ones that together contain oversize blocks, streams and
/// out-of-memory errors.
const FORGED: [&str; 4] = ["deep_mlp.default", "prefetch_streams.limit6", "gpt2_varlen.limit12_oom", "resnet50_sweep.limit5_oom"];

/// Returns a copy of the recording's device with a changed trace.
fn forged(shipped: &Shipped, forge: impl FnOnce(&mut Vec<Entry>)) -> DeviceRecording {
    let mut device = shipped.device().clone();
    forge(&mut device.trace);
    device
}

/// Returns whether verification detects a forgery: it refuses the recording or counts a mismatch.
fn is_seen(shipped: &Shipped, device: &DeviceRecording) -> bool {
    shipped.verify(device).map_or(true, |verdict| verdict.mismatches > 0)
}

/// Returns the indices of up to about `count` entries with an action, spread over the trace.
fn some(trace: &[Entry], action: Action, count: usize) -> Vec<usize> {
    let places: Vec<usize> = (0..trace.len()).filter(|&at| trace[at].action == action).collect();
    places.iter().step_by((places.len() / count).max(1)).copied().collect()
}

/// Changes the address of an allocation, and of every entry about its block until it is free.
fn move_block(trace: &mut [Entry], alloc: usize, to: u64) {
    let from = trace[alloc].address;
    trace[alloc].address = to;
    for entry in &mut trace[alloc + 1..] {
        if entry.address == from && matches!(entry.action, Action::FreeRequested | Action::FreeCompleted) {
            entry.address = to;
            if entry.action == Action::FreeCompleted {
                break;
            }
        }
    }
}

#[test]
fn an_allocation_at_another_free_place_is_seen() {
    for name in FORGED {
        let shipped = read(name);
        let trace = &shipped.device().trace;
        for alloc in some(trace, Action::Alloc, 20) {
            // Mostly inside the same segment.
            for distance in [512, 4 << 20] {
                let changed = forged(&shipped, |trace| {
                    let to = trace[alloc].address + distance;
                    move_block(trace, alloc, to);
                });
                assert!(is_seen(&shipped, &changed), "{name}: entry {alloc} moved by {distance}");
            }
        }
    }
}

#[test]
fn another_size_is_seen() {
    for name in FORGED {
        let shipped = read(name);
        let trace = &shipped.device().trace;
        for action in [Action::Alloc, Action::SegmentAlloc, Action::FreeCompleted, Action::FreeRequested, Action::Oom] {
            for at in some(trace, action, 8) {
                // A larger request would also fail and leave the same trace, so the test forges a failure with a small
                // request.
                let size = if action == Action::Oom { 512 } else { trace[at].size + (8 << 20) };
                let changed = forged(&shipped, |trace| trace[at].size = size);
                assert!(is_seen(&shipped, &changed), "{name}: entry {at}, {action:?}");
            }
        }
        // Tests forgeries in which two requests swap their sizes.
        let allocs = some(trace, Action::Alloc, 40);
        for pair in allocs.windows(2).filter(|pair| trace[pair[0]].size.abs_diff(trace[pair[1]].size) > 1 << 20) {
            let changed = forged(&shipped, |trace| {
                let size = trace[pair[0]].size;
                trace[pair[0]].size = trace[pair[1]].size;
                trace[pair[1]].size = size;
            });
            assert!(is_seen(&shipped, &changed), "{name}: entries {pair:?} swapped their sizes");
        }
    }
}

#[test]
fn an_entry_that_is_missing_or_there_twice_is_seen() {
    for name in FORGED {
        let shipped = read(name);
        let trace = &shipped.device().trace;
        for action in [Action::SegmentFree, Action::SegmentAlloc, Action::Alloc, Action::FreeRequested, Action::FreeCompleted] {
            // Without its first entry, a recording is merely shorter: the segment existed before.
            for at in some(trace, action, 8).into_iter().filter(|&at| at > 0) {
                let without = forged(&shipped, |trace| {
                    trace.remove(at);
                });
                assert!(is_seen(&shipped, &without), "{name}: entry {at}, {action:?}, left out");
                let twice = forged(&shipped, |trace| trace.insert(at, trace[at]));
                assert!(is_seen(&shipped, &twice), "{name}: entry {at}, {action:?}, twice");
            }
        }
    }
}

#[test]
fn another_stream_is_seen() {
    for name in FORGED {
        let shipped = read(name);
        for at in some(&shipped.device().trace, Action::Alloc, 10) {
            let changed = forged(&shipped, |trace| trace[at].stream ^= 0x7000);
            assert!(is_seen(&shipped, &changed), "{name}: entry {at}");
        }
    }
}

#[test]
fn another_limit_is_seen() {
    for name in names().into_iter().filter(|name| name.contains("limit")) {
        let shipped = read(&name);
        let limit = shipped.options.limit_bytes.expect("a limit");
        for wrong in [limit / 2, limit * 2] {
            let options = VerifyOptions { limit_bytes: Some(wrong), ..shipped.options.clone() };
            let verdict = verify_device(shipped.device(), &options, &mut |_| ()).expect("a verdict");
            assert!(verdict.mismatches > 0, "{name} with a limit of {wrong}");
        }
    }
}

#[test]
fn other_settings_are_seen() {
    // The first recording requests only powers of two, so some settings change nothing.
    for name in &FORGED[1..] {
        let shipped = read(name);
        for text in ["max_split_size_mb:32", "roundup_power2_divisions:2", "large_segment_size_mb:40"] {
            let settings = ReplaySettings::given(text).expect("settings");
            let options = VerifyOptions { settings, ..shipped.options.clone() };
            let seen = verify_device(shipped.device(), &options, &mut |_| ()).map_or(true, |verdict| verdict.mismatches > 0);
            assert!(seen, "{name} under {text}");
        }
    }
}

#[test]
fn every_statistic_that_is_off_by_one_is_seen() {
    let shipped = read("deep_mlp.default");
    let right = shipped.verify(shipped.device()).expect("a verdict").stats.entries();
    // This program resets its peaks, so peaks in the file may be lower than those in the trace; the next test forges
    // peaks. A call to `empty_cache` that frees nothing leaves no entry, so the number of waits may be higher.
    for (key, _) in right.iter().filter(|(key, _)| !key.ends_with(".peak")) {
        for off in [1, -1] {
            if key == "num_sync_all_streams" && off == 1 {
                continue;
            }
            let verdict = with_statistic(&shipped, key, off);
            assert_eq!(verdict, 1, "{key} off by {off}");
        }
    }
}

#[test]
fn peaks_that_no_reset_explains_are_seen() {
    let shipped = read("gpt2_varlen.limit12_oom");
    for key in ["allocated_bytes.all.peak", "reserved_bytes.all.peak", "active.small_pool.peak", "segment.large_pool.peak"] {
        for off in [1, -1] {
            assert!(with_statistic(&shipped, key, off) > 0, "{key} off by {off}");
        }
    }
}

/// Returns the number of mismatches if one entry of the stats file is off.
fn with_statistic(shipped: &Shipped, key: &str, off: i64) -> u64 {
    let path = folder().join(format!("{}.stats.json", shipped.name));
    let text = std::fs::read(path).expect("the statistics");
    let mut entries: std::collections::BTreeMap<String, i64> = serde_json::from_slice(&text).expect("numbers");
    *entries.get_mut(key).expect("a key") += off;
    let stats_file = Some(StatsFile::new(entries).expect("all keys"));
    let options = VerifyOptions { stats_file, ..shipped.options.clone() };
    verify_device(shipped.device(), &options, &mut |_| ()).expect("a verdict").mismatches
}

// ---- recordings whose oldest entries are missing

/// Verifies a recording without its first entries.
fn verify_cut(shipped: &Shipped, lost: usize) -> NotInFile {
    let verdict = shipped.verify(&shipped.without_beginning(lost));
    let text = describe(&verdict);
    let verdict = verdict.unwrap_or_else(|_| panic!("{} from entry {lost}: {text}", shipped.name));
    assert_eq!(verdict.mismatches, 0, "{} from entry {lost}: {text}", shipped.name);
    verdict.not_in_file
}

/// The number of cuts in each recording: `PARKADE_CUTS`, or 16.
fn cuts() -> usize {
    std::env::var("PARKADE_CUTS").ok().and_then(|number| number.parse().ok()).unwrap_or(16)
}

#[test]
fn a_recording_that_lost_its_beginning_verifies() {
    for name in names() {
        let shipped = read(&name);
        let entries = shipped.device().trace.len();
        let step = (entries / cuts()).max(1);
        for lost in (0..entries).step_by(step) {
            verify_cut(&shipped, lost);
        }
    }
}

#[test]
fn small_recordings_verify_from_every_entry() {
    for name in ["deep_mlp.default", "deep_mlp.expandable"] {
        let shipped = read(name);
        for lost in 0..shipped.device().trace.len() {
            verify_cut(&shipped, lost);
        }
    }
}

#[test]
fn a_size_that_shows_only_in_a_request_that_did_not_fit_is_inferred() {
    // A block (allocated at entry 36564, freed at 37704) is 876 KiB larger than its rounded request, and the block
    // after it is free from 37132 on. If the cut is between these entries, only a request that is served elsewhere
    // shows where one block ends and the next begins.
    let shipped = read("gpt2_varlen.default");
    for lost in (37_133..37_705).step_by(13) {
        let not = verify_cut(&shipped, lost);
        let sizes = not.lost_beginning.expect("the beginning is missing");
        assert!(sizes.inferred_sizes > 0 || lost > 37_241, "from entry {lost}: {sizes:?}");
    }
}

#[test]
fn a_collection_among_blocks_of_unknown_ages_is_taken_from_the_recording() {
    let shipped = read("gpt2_varlen.limit16_gc");
    for lost in (13_620..13_647).step_by(3) {
        let not = verify_cut(&shipped, lost);
        assert!(not.unknown_ages && not.assumed_collections > 0, "from entry {lost}: {not:?}");
    }
    assert_eq!(shipped.verify(shipped.device()).expect("a verdict").not_in_file.assumed_collections, 0);
}

#[test]
fn a_collection_that_no_ages_explain_is_seen() {
    let shipped = read("gpt2_varlen.limit16_gc");
    let mut cut = shipped.without_beginning(13_620);
    let released = some(&cut.trace, Action::SegmentFree, usize::MAX)[0];
    let served = released + cut.trace[released..].iter().position(|entry| entry.action == Action::Alloc).expect("a request");
    // The forgery keeps the first released segment until the request is served; without that segment, too little was
    // released.
    cut.trace[released..=served].rotate_left(1);
    assert!(is_seen(&shipped, &cut), "entry {released} after entry {served}");
}

/// Returns the entries right before and inside each run of entries that belong to one operation: a request that climbs
/// the retry ladder, an `empty_cache`, or events that complete.
fn places_inside_operations(trace: &[Entry]) -> Vec<usize> {
    let inner = |action| matches!(action, Action::SegmentAlloc | Action::SegmentFree | Action::FreeCompleted | Action::Oom);
    (1..trace.len()).filter(|&at| inner(trace[at - 1].action) && trace[at - 1].action != Action::FreeCompleted).collect()
}

#[test]
fn a_trace_that_begins_in_the_middle_of_an_operation_verifies() {
    for name in ["deep_mlp.default", "prefetch_streams.limit6", "gpt2_varlen.limit12_oom", "resnet50_sweep.limit5_oom"] {
        let shipped = read(name);
        let places = places_inside_operations(&shipped.device().trace);
        assert!(places.len() > 20, "{name} has requests that climb the retry ladder");
        let step = (places.len() / (2 * cuts())).max(1);
        for &lost in places.iter().step_by(step) {
            verify_cut(&shipped, lost);
        }
    }
}

#[test]
fn the_shortest_traces() {
    for name in names() {
        let shipped = read(&name);
        let entries = shipped.device().trace.len();
        for lost in [entries - 1, entries - 2, entries - 3] {
            verify_cut(&shipped, lost);
        }
        assert!(shipped.verify(&shipped.without_beginning(entries)).is_err(), "{name}: without a trace nothing can be verified");
    }
}

// ---- private pools that no longer existed at the end

#[test]
fn pools_that_were_gone_before_the_end_are_inferred_and_reported() {
    let recordings = all_with_pools();
    assert_eq!(recordings.len(), 12);
    for shipped in recordings {
        let verdict = shipped.verify(shipped.device()).unwrap_or_else(|error| panic!("{}: {error}", shipped.name));
        assert_eq!(verdict.mismatches, 0, "{}: {:?}", shipped.name, verdict.first);
        let statistics = verdict.stats_check.expect("statistics were given");
        assert_eq!((statistics.compared, statistics.differences.len()), (122, 0), "{}", shipped.name);
        let guess = verdict.not_in_file.guess.unwrap_or_else(|| panic!("{}: the guess is not reported", shipped.name));
        assert!(guess.is_sound() && guess.pools > 0 && guess.segments.len() >= guess.pools, "{}", shipped.name);
        assert!(guess.segments.iter().all(|segment| segment.gone_at.is_some()), "{}: the file names all others", shipped.name);
    }
}

#[test]
fn tails_of_recordings_whose_pools_were_gone_before_the_end_verify() {
    let (mut tried, mut failed) = (0, Vec::new());
    for shipped in all_with_pools() {
        let entries = shipped.device().trace.len();
        for lost in (0..entries).step_by((entries / cuts()).max(1)) {
            tried += 1;
            if is_seen(&shipped, &shipped.without_beginning(lost)) {
                failed.push(format!("{} from entry {lost}", shipped.name));
            }
        }
    }
    // docs/fidelity.md lists the cases that remain. Before ranges of expandable memory were distinguished, every third
    // case failed.
    assert!(failed.len() * 50 <= tried, "{} of {tried}: {failed:?}", failed.len());
}

#[test]
fn tails_that_differed_because_of_one_wrong_inference_verify() {
    let tails = [
        ("graph_reset.expandable.1", 792, "a range that began below an older one was mistaken for a part of it"),
        ("graph_reset.expandable.2", 875, "the same"),
        ("mempool_many.split.52", 301, "a free whose first half was lost was mistaken for a part of the release after it"),
        ("mempool_many.split.52", 28, "segments that one pool freed at once were sorted into two pools"),
        ("mempool.default.2", 1690, "the same"),
    ];
    for (name, lost, wrong) in tails {
        let shipped = all_with_pools().into_iter().find(|shipped| shipped.name == name).expect("a recording");
        assert!(!is_seen(&shipped, &shipped.without_beginning(lost)), "{name} from entry {lost}: {wrong}");
    }
}

#[test]
fn a_moved_block_is_not_explained_by_pools() {
    for shipped in all_with_pools() {
        let trace = &shipped.device().trace;
        for alloc in some(trace, Action::Alloc, 40) {
            let changed = forged(&shipped, |trace| {
                let to = trace[alloc].address + 512;
                move_block(trace, alloc, to);
            });
            assert!(is_seen(&shipped, &changed), "{}: entry {alloc} moved", shipped.name);
        }
    }
}

#[test]
fn recordings_whose_pools_are_all_named_need_no_guess() {
    for name in names() {
        let shipped = read(&name);
        let verdict = shipped.verify(shipped.device()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verdict.not_in_file.guess, None, "{name}");
    }
}
