//! Tests timelines of recordings of real runs: their maxima are the replay's, their last moment is the file's own list of
//! segments, and their runs under other settings match the predictions.

use std::path::Path;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_analysis::annotations::scopes;
use parkade_analysis::timeline::{
    Curve, HeapLog, HolderKey, Levels, MarkerKind, SegmentNow, Span, Timeline, WhatIf, holders, what_if,
};
use parkade_recording::{BlockState, DeviceRecording, Recording, Segment};
use parkade_replay::{OutlookOptions, ReplaySettings, Requests, VerifyOptions, learned_addresses, replay_device, verify_device};

const GIB: u64 = 1 << 30;

struct Run {
    recording: Recording,
    own: VerifyOptions,
    requests: Requests,
    timeline: Timeline,
}

impl Run {
    fn of(name: &str, limit_bytes: Option<u64>) -> Run {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings");
        let recording = parkade_recording::read_file(folder.join(format!("{name}.pickle.xz"))).expect("a recording");
        let settings = ReplaySettings::of_recording(recording.settings.as_ref()).expect("its settings");
        let own = VerifyOptions { settings, limit_bytes, stats_file: None };
        let requests = Requests::of_recording(&recording.devices[0], &own, &mut |_| ()).expect("its requests");
        let timeline = Timeline::of_device(&recording.devices[0], &own, &requests).expect("its timeline");
        Run { recording, own, requests, timeline }
    }

    fn device(&self) -> &DeviceRecording {
        &self.recording.devices[0]
    }
}

/// Segments with their blocks in use, as (address, size, stream, expandable) and (address, size, pending).
type Heap = Vec<((u64, u64, u64, bool), Vec<(u64, u64, bool)>)>;

fn heap_of(log: &HeapLog, moment: u32) -> Heap {
    let blocks =
        |segment: &SegmentNow| segment.blocks.iter().map(|block| (block.address, block.size, block.is_pending)).collect();
    let fields = |s: &SegmentNow| (s.address, s.size, s.stream, s.expandable);
    log.at(moment).iter().map(|segment| (fields(segment), blocks(segment))).collect()
}

fn final_heap(device: &DeviceRecording) -> Heap {
    let blocks = |segment: &Segment| {
        let used = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
        used.map(|block| (block.address, block.size, block.state == BlockState::ActivePendingFree)).collect()
    };
    device.segments.iter().map(|s| ((s.address, s.total_bytes, s.stream, s.expandable), blocks(s))).collect()
}

const RUNS: [(&str, Option<u64>); 6] = [
    ("deep_mlp.default", None),
    ("deep_mlp.expandable", None),
    ("gpt2_varlen.limit12_oom", Some(12 * GIB)),
    ("prefetch_streams.limit6", Some(6 * GIB)),
    ("resnet50_sweep.limit5_oom", Some(5 * GIB)),
    ("gpt2_varlen.frames_tail20k", None),
];

#[test]
fn timelines_agree_with_the_replay_and_the_file() {
    for (name, limit) in RUNS {
        let run = Run::of(name, limit);
        let verdict = verify_device(run.device(), &run.own, &mut |_| ()).expect("a verdict");
        assert_eq!(verdict.mismatches, 0, "{name}");
        let Timeline { levels, log, entries, markers } = &run.timeline;
        for most in [100, 4096] {
            let peak = |level: &[u64]| Curve::of(level, most).peak() as i64;
            assert_eq!(peak(&levels.allocated), verdict.peak_allocated_bytes(), "{name}: allocated");
            assert_eq!(peak(&levels.reserved), verdict.peak_reserved_bytes(), "{name}: reserved");
            let active = verdict.stats.family(parkade::stats::Family::ActiveBytes).all.peak;
            assert_eq!(peak(&levels.active), active, "{name}: active");
        }
        let packed = log.pack();
        let unpacked = packed.unpack().expect("columns");
        assert_eq!(&unpacked, log, "{name}");
        assert_eq!(heap_of(&unpacked, *entries as u32), final_heap(run.device()), "{name}: the heap at the end");
        let count = |kind| markers.iter().filter(|marker| marker.kind == kind).count();
        assert_eq!(count(MarkerKind::OutOfMemory) as u64, verdict.ooms, "{name}");
        assert_eq!(count(MarkerKind::Retry) as i64, verdict.stats.num_alloc_retries, "{name}");
    }
}

/// At every moment, the blocks fill the heap exactly as the levels state, and no two blocks overlap.
#[test]
fn the_heap_at_any_moment_is_whole() {
    let run = Run::of("gpt2_varlen.limit12_oom", Some(12 * GIB));
    let Timeline { levels, log, entries, .. } = &run.timeline;
    for moment in (0..=*entries).step_by(97) {
        let heap = log.at(moment as u32);
        assert_eq!(heap.iter().map(|segment| segment.size).sum::<u64>(), levels.reserved[moment]);
        let blocks = || heap.iter().flat_map(|segment| &segment.blocks);
        assert_eq!(blocks().map(|block| block.size).sum::<u64>(), levels.active[moment]);
        for segment in &heap {
            let mut end = segment.address;
            for block in &segment.blocks {
                assert!(block.address >= end && block.size > 0, "moment {moment}: {block:?} overlaps");
                end = block.address + block.size;
            }
            assert!(end <= segment.address + segment.size, "moment {moment}");
        }
    }
}

#[test]
fn what_if_is_what_a_prediction_says() {
    let run = Run::of("gpt2_varlen.limit12_oom", Some(12 * GIB));
    let learned = learned_addresses(run.device(), &run.requests);
    for (settings, capacity_bytes) in [("", None), ("expandable_segments:True", None), ("", Some(11 * GIB))] {
        let settings = Settings::from_environment(settings).expect("settings");
        let profile = &Profile::PYTORCH_2_11;
        let what = WhatIf {
            requests: &run.requests,
            learned: &learned,
            device: 0,
            span: Span::recorded(run.timeline.entries),
            profile,
            limit_bytes: capacity_bytes,
            capacity_bytes,
        };
        let seen = what_if(&what, &settings, 500);
        let own = run.own.clone();
        let options = OutlookOptions { own, profile, settings, limit_bytes: capacity_bytes, capacity_bytes };
        let outlook = replay_device(run.device(), &options, &mut |_| ()).expect("an outlook");
        assert_eq!(seen.prediction.peak_reserved_bytes(), outlook.prediction.peak_reserved_bytes());
        assert_eq!(seen.prediction.first_failure, outlook.prediction.first_failure);
        assert_eq!(seen.reserved.peak() as i64, outlook.prediction.peak_reserved_bytes());
        assert_eq!((seen.reserved.buckets.len(), seen.reserved.moments), (500, run.timeline.entries + 1));
    }
}

#[test]
fn stacks_and_scopes_are_found_if_the_file_has_them() {
    let run = Run::of("gpt2_varlen.frames_tail20k", None);
    let Timeline { levels, log, .. } = &run.timeline;
    let peak = Levels::peak_moment(&levels.allocated);
    let found = holders(log, peak as u32);
    assert_eq!(found.iter().map(|holder| holder.bytes).sum::<u64>(), levels.allocated[peak]);
    assert!(found.windows(2).all(|pair| pair[0].bytes >= pair[1].bytes));
    assert!(matches!(found[0].key, HolderKey::Stack(_)));
    let scopes = scopes(&run.recording.annotations, run.device());
    let steps = scopes.iter().filter(|scope| scope.name.starts_with("Optimizer.step"));
    // The file has 24 of them, but the trace begins later.
    assert!((3..=24).contains(&steps.clone().count()), "{scopes:?}");
    assert!(steps.clone().all(|scope| scope.from < scope.to && scope.depth == 0));
}
