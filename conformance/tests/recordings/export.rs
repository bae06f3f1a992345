//! Tests that exported snapshots are verified without differences, and that they equal the recording under the
//! recording's own settings. Also tests a run's stats after each step.

use parkade::profile::Profile;
use parkade::stats::Family;
use parkade_analysis::annotations::steps;
use parkade_analysis::fragmentation::{Fragmentation, sample_recorded_run};
use parkade_conformance::shipped::Shipped;
use parkade_recording::{Action, BlockState, DeviceRecording, Entry, Recording, Style, write};
use parkade_replay::export::{ExportOptions, Exported, export};
use parkade_replay::{AfterFailure, ReplaySettings, VerifyOptions, verify_device};

use super::{all_with_pools, names, read, read_with_pools};

fn options(shipped: &Shipped) -> ExportOptions {
    // The stats file is needed because no entry shows whether the limit refused a request.
    let own = shipped.options.clone();
    ExportOptions {
        profile: &Profile::PYTORCH_2_11,
        settings: own.settings.settings.clone(),
        limit_bytes: own.limit_bytes,
        capacity_bytes: None,
        after_failure: AfterFailure::GoOn,
        device: None,
        own,
    }
}

fn under(shipped: &Shipped, settings: &str, limit_bytes: Option<u64>) -> ExportOptions {
    let settings = ReplaySettings::given(settings).expect("settings").settings;
    ExportOptions { settings, limit_bytes, ..options(shipped) }
}

/// Exports a recording, writes and reads the file, and verifies it.
fn check(recording: &Recording, options: &ExportOptions, name: &str) -> (Exported, Recording) {
    let exported = export(recording, options, &mut |_| ()).expect("an export");
    let back = parkade_recording::read(&write(&exported.recording, Style::Python)).expect("the written file can be read");
    let settings = ReplaySettings::of_recording(back.settings.as_ref()).expect("settings");
    let own = VerifyOptions { settings, limit_bytes: options.limit_bytes, stats_file: None };
    for device in &back.devices {
        let verdict = verify_device(device, &own, &mut |_| ()).expect("a verdict");
        assert_eq!((verdict.mismatches, &verdict.first), (0, &None), "{name}");
    }
    (exported, back)
}

/// Returns the contents of an entry except its address.
fn without_address(recording: &Recording, entry: &Entry) -> (Action, u64, u64, Option<u64>, Vec<u32>) {
    let lines = recording.stacks.frames(entry.stack).map(|frame| frame.line).collect();
    (entry.action, entry.size, entry.stream, entry.time(), lines)
}

fn has_whole_trace(name: &str) -> bool {
    !name.contains("tail")
}

/// The larger recordings would take half a minute in a debug build.
fn is_small(shipped: &Shipped) -> bool {
    shipped.device().trace.len() < 10_000
}

#[test]
fn under_its_own_settings_a_recording_is_exported_as_it_is() {
    let plain = names().into_iter().filter(|name| has_whole_trace(name)).map(|name| read(&name)).filter(is_small);
    for shipped in plain.chain(all_with_pools()) {
        let (_, back) = check(&shipped.recording, &options(&shipped), &shipped.name);
        let (own, exported) = (&shipped.recording, &back);
        let (recorded, replayed) = (&own.devices[0].trace, &back.devices[0].trace);
        for (number, (recorded, replayed)) in recorded.iter().zip(replayed).enumerate() {
            assert_eq!(without_address(own, recorded), without_address(exported, replayed), "{} entry {number}", shipped.name);
        }
        assert_eq!(recorded.len(), replayed.len(), "{}", shipped.name);
        assert_eq!(own.annotations, back.annotations, "{}", shipped.name);
    }
}

#[test]
fn under_other_settings_the_file_verifies_and_has_the_programs_requests() {
    let settings =
        ["", "expandable_segments:True", "max_split_size_mb:64,garbage_collection_threshold:0.6", "roundup_power2_divisions:4"];
    let graphs = read_with_pools("graph_shared.default.2");
    // A file from 2.11 shows too little about private pools that no longer exist at the end to distinguish them under
    // every setting.
    let shipped =
        [(read("prefetch_streams.limit6"), &settings[..]), (read("deep_mlp.default"), &settings), (graphs, &settings[..2])];
    for (shipped, settings) in shipped {
        for &settings in settings {
            let name = format!("{} {settings}", shipped.name);
            let (_, back) = check(&shipped.recording, &under(&shipped, settings, None), &name);
            assert_eq!(back.settings.as_ref().and_then(|settings| settings.text.as_deref()), Some(settings), "{name}");
            let (recorded, replayed) = (&shipped.recording.devices[0].trace, &back.devices[0].trace);
            let requests = |trace: &[Entry]| -> Vec<(u64, u64, Option<u64>)> {
                let allocs = trace.iter().filter(|entry| entry.action == Action::Alloc);
                allocs.map(|entry| (entry.size, entry.stream, entry.time())).collect()
            };
            assert_eq!(requests(recorded), requests(replayed), "{name}");
            let times: Vec<_> = replayed.iter().map(Entry::time).collect();
            assert!(times.is_sorted(), "{name}");
        }
    }
}

/// Every request keeps its stack, and so does every block in use at the end, including blocks from before the first entry.
#[test]
fn blocks_of_a_lost_beginning_are_requested_first_and_stacks_are_kept() {
    let shipped = read("gpt2_varlen.frames_tail20k");
    let (exported, back) = check(&shipped.recording, &under(&shipped, "expandable_segments:True", None), &shipped.name);
    let early = exported.devices[0].early_blocks.expect("the beginning is missing");
    let (recorded, replayed) = (&shipped.recording.devices[0], &back.devices[0]);
    let with_stack = |recording: &Recording, device: &DeviceRecording| {
        let blocks = device.segments.iter().flat_map(|segment| &segment.blocks);
        let used = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
        let mut used: Vec<_> = used.map(|block| (block.requested, recording.stacks.frames(block.stack).len())).collect();
        used.sort_unstable();
        used
    };
    assert_eq!(with_stack(&shipped.recording, recorded), with_stack(&back, replayed));
    assert!(with_stack(&back, replayed).iter().any(|&(_, calls)| calls > 0));
    let allocs = |device: &DeviceRecording| device.trace.iter().filter(|entry| entry.action == Action::Alloc).count();
    assert_eq!(allocs(replayed), allocs(recorded) + early);
}

#[test]
fn a_run_that_is_out_of_memory_has_its_point_in_the_trace() {
    let shipped = read("deep_mlp.default");
    let limit = 2_400 << 20;
    let going_on = under(&shipped, "", Some(limit));
    let (exported, back) = check(&shipped.recording, &going_on, &shipped.name);
    let first = exported.devices[0].first_failure.expect("an out-of-memory point");
    assert_eq!(back.devices[0].trace[first].action, Action::Oom);
    let ends = ExportOptions { after_failure: AfterFailure::Stop, ..going_on };
    let (stopped, back) = check(&shipped.recording, &ends, &shipped.name);
    assert_eq!((stopped.devices[0].first_failure, back.devices[0].trace.len()), (Some(first), first + 1));
}

/// The recording shows the device's memory: the reserved plus the free bytes.
#[test]
fn the_simulated_device_has_as_much_memory_as_at_the_recorded_failure() {
    let shipped = read("gpt2_varlen.limit12_oom");
    let (_, back) = check(&shipped.recording, &options(&shipped), &shipped.name);
    let free = |recording: &Recording| {
        let mut points = recording.devices[0].trace.iter().filter(|entry| entry.action == Action::Oom);
        points.next().map(|entry| entry.address)
    };
    assert_eq!(free(&back), free(&shipped.recording));
}

#[test]
fn every_device_is_replayed_and_one_without_a_trace_kept() {
    let shipped = read("deep_mlp.expandable");
    let mut recording = shipped.recording.clone();
    let first = recording.devices[0].clone();
    recording.devices.push(DeviceRecording { device: 2, trace: Vec::new(), ..first.clone() });
    recording.devices.push(DeviceRecording { device: 5, ..first });
    let all = options(&shipped);
    let exported = export(&recording, &all, &mut |_| ()).expect("an export");
    assert_eq!(exported.kept_devices, [2]);
    assert_eq!(exported.recording.devices[1], recording.devices[1]);
    let traces = exported.recording.devices.iter().map(|device| (device.device, device.trace.len()));
    let entries = recording.devices[0].trace.len();
    assert_eq!(traces.collect::<Vec<_>>(), [(0, entries), (2, 0), (5, entries)]);
    let one = export(&recording, &ExportOptions { device: Some(5), ..all.clone() }, &mut |_| ()).expect("an export");
    assert_eq!(one.recording.devices.len(), 1);
    let missing = export(&recording, &ExportOptions { device: Some(1), ..all }, &mut |_| ()).expect_err("no such device");
    assert_eq!(missing.to_string(), "the file contains nothing about device 1; it has device 0, 2, 5");
}

/// `memory_stats()` after each training step of the real run, which ran out of memory in its third step.
#[test]
fn stats_after_each_step_are_those_of_the_real_run() {
    let truth: [(i64, i64, i64, i64, i64); 2] =
        [(1501, 1_568_827_392, 5_939_134_464, 530_421_760, 143), (2459, 1_568_806_400, 5_943_328_768, 532_539_904, 145)];
    let shipped = read("gpt2_varlen.limit12_oom");
    let found = steps(&shipped.recording.annotations, shipped.device(), None).expect("steps");
    assert_eq!((found.mark.as_str(), found.steps.len(), found.lost), ("Optimizer.step#AdamW.step", 2, 0));
    let at: Vec<usize> = found.steps.iter().map(|step| step.last_entry).collect();
    let samples = sample_recorded_run(shipped.device(), &shipped.options, &at).expect("samples").samples;
    let figures = samples.iter().map(|sample| {
        let all = |family| sample.stats.family(family).all;
        (
            all(Family::Allocation).allocated,
            all(Family::AllocatedBytes).current,
            all(Family::ReservedBytes).current,
            all(Family::InactiveSplitBytes).current,
            sample.stats.num_device_alloc,
        )
    });
    assert_eq!(figures.collect::<Vec<_>>(), truth);
    // Each sample has the peak since the previous step; the largest is the peak of the entire run.
    let most = samples.iter().map(|sample| sample.peak_allocated_bytes).max();
    assert_eq!(most, samples.last().map(|sample| sample.stats.family(Family::AllocatedBytes).all.peak));
}

/// The final heap is the one that the file lists.
#[test]
fn fragmentation_at_the_end_are_those_of_the_files_segments() {
    for name in ["prefetch_streams.default", "deep_mlp.expandable"] {
        let shipped = read(name);
        let last = shipped.device().trace.len() - 1;
        let samples = sample_recorded_run(shipped.device(), &shipped.options, &[0, last]).expect("samples").samples;
        assert_eq!(samples[1].fragmentation, Fragmentation::of_recorded(&shipped.device().segments), "{name}");
        assert_eq!((samples[0].entry, samples[1].entry), (0, last));
    }
}
