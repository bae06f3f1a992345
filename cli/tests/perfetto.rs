//! `parkade export --format perfetto`: valid JSON whose counters are those of `parkade stats`.

use std::collections::BTreeMap;
use std::fs;

use crate::common::{BASE, Folder, MIB, call, entry, free, good, recording, segment, unused};
use parkade_recording::{Action, Annotation, Frame, Recording};
use serde_json::Value;

fn shipped(name: &str) -> String {
    format!("{}/../conformance/recordings/{name}.pickle.xz", env!("CARGO_MANIFEST_DIR"))
}

/// Exports; returns the answer and the trace file.
fn exported(folder: &Folder, file: &str, more: &[&str]) -> (Value, Value) {
    let target = format!("{}/trace.json", folder.path());
    let run = call(&[&["export", file, "--format", "perfetto", "-o", &target, "--force", "--json"], more].concat());
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    let answer = serde_json::from_str(&run.out).expect("one object");
    (answer, serde_json::from_slice(&fs::read(&target).expect("a file")).expect("JSON"))
}

fn events(trace: &Value) -> &[Value] {
    trace["traceEvents"].as_array().expect("events")
}

/// The events of a kind, in their order.
fn of_phase<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
    events(trace).iter().filter(|event| event["ph"] == phase).collect()
}

/// A counter's highest and last values.
fn counter(trace: &Value, name: &str) -> (u64, u64) {
    let values: Vec<u64> = of_phase(trace, "C")
        .into_iter()
        .filter(|event| event["name"] == name)
        .map(|event| event["args"]["bytes"].as_u64().expect("bytes"))
        .collect();
    (values.iter().copied().max().unwrap_or(0), values.last().copied().unwrap_or(0))
}

fn stats(file: &str, more: &[&str]) -> Value {
    let run = call(&[&["stats", "--json", file], more].concat());
    let object: Value = serde_json::from_str(&run.out).expect("one object");
    object["devices"][0]["moments"][0]["memory_stats"].clone()
}

#[test]
fn counters_are_those_of_stats() {
    let folder = Folder::new("perfetto-counters");
    let runs: [(&str, &[&str], &[&str]); 4] = [
        ("deep_mlp.default", &[], &[]),
        ("prefetch_streams.limit6", &["--recorded-limit", "6GiB"], &["--limit", "6GiB"]),
        ("gpt2_varlen.limit12_oom", &["--recorded-limit", "12GiB"], &["--limit", "12GiB"]),
        ("gpt2_varlen.frames_tail20k", &[], &[]),
    ];
    for (name, more, of_stats) in runs {
        let file = shipped(name);
        let (answer, trace) = exported(&folder, &file, more);
        let stats = stats(&file, of_stats);
        for (counter_name, family) in
            [("allocated", "allocated_bytes"), ("active", "active_bytes"), ("reserved", "reserved_bytes")]
        {
            let (peak, last) = counter(&trace, counter_name);
            assert_eq!(stats[format!("{family}.all.peak")], peak, "{name} {family}");
            assert_eq!(stats[format!("{family}.all.current")], last, "{name} {family}");
        }
        let failures = of_phase(&trace, "i").iter().filter(|event| event["name"] == "out of memory").count();
        assert_eq!(stats["num_ooms"], failures, "{name}");
        assert_eq!(answer["devices"][0]["recorded_ooms"], failures, "{name}");
        assert_eq!(answer["left_out_slices"], 0, "{name}");
    }
}

#[test]
fn blocks_begin_and_end_in_order() {
    let folder = Folder::new("perfetto-blocks");
    let (answer, trace) = exported(&folder, &shipped("deep_mlp.default"), &[]);
    let mut open: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut bytes, mut most, mut last) = (0, 0, 0);
    for event in events(&trace).iter().filter(|event| event["cat"] == "block") {
        let (id, ts) = (event["id"].as_str().expect("an address"), event["ts"].as_u64().expect("a time"));
        assert!(ts >= last, "{event}");
        last = ts;
        if event["ph"] == "b" {
            let size = event["args"]["bytes"].as_u64().expect("a size");
            assert_eq!(open.insert(id, size), None, "two blocks at once at {id}");
            bytes += size;
        } else {
            bytes -= open.remove(id).expect("a block that began");
        }
        most = most.max(bytes);
    }
    assert_eq!(counter(&trace, "allocated"), (most, bytes));
    let kinds: Vec<&Value> = of_phase(&trace, "b").into_iter().map(|event| &event["name"]).collect();
    assert_eq!(answer["slices"], kinds.len());
    assert_eq!(kinds.iter().filter(|kind| **kind == "gradients").count(), 82);
}

/// Names in a file may contain anything.
fn hostile() -> Recording {
    let name = "a\"b\\c\n</script>\u{2028}\u{1}";
    let mut recording = good();
    let stack = {
        let frame = recording.stacks.intern_frame(Frame { filename: name.into(), line: 1, name: name.into() });
        recording.stacks.intern_stack(&[frame])
    };
    for (time, entry) in (1_700_000_000_000_010..).zip(&mut recording.devices[0].trace) {
        entry.set_time(Some(time));
        entry.stack = stack;
    }
    let annotation =
        |stage: &str, time_us| Annotation { name: name.into(), stage: stage.into(), device: None, time_us: Some(time_us) };
    recording.annotations = vec![annotation("START", 1_700_000_000_000_011), annotation("END", 1_700_000_000_000_013)];
    recording
}

#[test]
fn names_are_escaped_and_times_are_the_files() {
    let folder = Folder::new("perfetto-names");
    let file = folder.recording("hostile.pickle", &hostile());
    let (_, trace) = exported(&folder, &file, &[]);
    let name = "a\"b\\c\n</script>\u{2028}\u{1}";
    let scopes = of_phase(&trace, "X");
    assert_eq!((scopes.len(), &scopes[0]["name"], &scopes[0]["ts"], &scopes[0]["dur"]), (1, &name.into(), &1.into(), &1.into()));
    assert_eq!(of_phase(&trace, "b")[0]["args"]["stack"], format!("{name} ({name}:1)"));
    assert_eq!(trace["otherData"]["first_time_us"], 1_700_000_000_000_010_u64);
    let instants = of_phase(&trace, "i");
    assert_eq!(
        (&instants[0]["name"], &instants[0]["ts"], &instants[0]["args"]["bytes"]),
        (&"segment_alloc".into(), &0.into(), &(20 * MIB).into())
    );
}

#[test]
fn without_times_the_entries_count_and_it_is_said() {
    let folder = Folder::new("perfetto-no-times");
    let file = folder.recording("run.pickle", &good());
    let (_, trace) = exported(&folder, &file, &[]);
    assert_eq!(trace["otherData"]["first_time_us"], Value::Null);
    assert!(trace["otherData"]["timestamps"].as_str().is_some_and(|text| text.contains("number of an entry")), "{trace}");
    let times: Vec<u64> = of_phase(&trace, "b").iter().map(|event| event["ts"].as_u64().expect("a time")).collect();
    assert_eq!(times, [1, 2]);
}

#[test]
fn a_bound_keeps_the_largest_blocks_and_all_of_the_counters() {
    let folder = Folder::new("perfetto-bound");
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 20 * MIB)];
    for size in [2, 7, 3, 5] {
        trace.push(entry(Action::Alloc, BASE, size * MIB));
        trace.extend(free(BASE, size * MIB));
    }
    let file = folder.recording("run.pickle", &recording(trace, vec![segment(vec![unused(BASE, 20 * MIB)])]));
    let (answer, trace) = exported(&folder, &file, &["--blocks", "2"]);
    let sizes: Vec<u64> =
        of_phase(&trace, "b").iter().map(|event| event["args"]["bytes"].as_u64().expect("bytes") / MIB).collect();
    assert_eq!((sizes, &answer["slices"], &answer["left_out_slices"]), (vec![7, 5], &2.into(), &2.into()));
    assert_eq!(trace["otherData"]["smaller_blocks_left_out"], 2);
    assert_eq!(of_phase(&trace, "C").iter().filter(|event| event["name"] == "allocated").count(), 9);
    let target = format!("{}/again.json", folder.path());
    let run = call(&["export", &file, "--format", "perfetto", "--blocks", "2", "-o", &target]);
    assert!(run.out.contains("the 2 largest blocks are slices; 2 smaller ones are left out"), "{}", run.out);
}

/// With `--settings`, the export shows the run as it would have been under those settings.
#[test]
fn a_run_under_other_settings_can_be_exported() {
    let folder = Folder::new("perfetto-settings");
    let file = shipped("gpt2_varlen.limit12_oom");
    let options = ["--settings", "expandable_segments:True", "--recorded-limit", "12GiB"];
    let (answer, trace) = exported(&folder, &file, &options);
    assert_eq!(counter(&trace, "reserved").0, answer["devices"][0]["peak_reserved_bytes"].as_u64().expect("a peak"));
    assert!(of_phase(&trace, "i").iter().all(|event| event["name"] != "out of memory"));
    assert!(of_phase(&trace, "i").iter().any(|event| event["name"] == "segment_map"));
    assert_eq!(trace["otherData"]["settings"], "expandable_segments:True");
}

#[test]
fn several_devices_are_several_processes() {
    let folder = Folder::new("perfetto-devices");
    let mut two = good();
    two.devices.push(good().devices.remove(0));
    two.devices[1].device = 1;
    let file = folder.recording("two.pickle", &two);
    let (_, trace) = exported(&folder, &file, &[]);
    let names: Vec<&Value> = of_phase(&trace, "M")
        .into_iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| &event["args"]["name"])
        .collect();
    assert_eq!(names, ["GPU 0: memory", "GPU 1: memory"]);
    assert_eq!(of_phase(&exported(&folder, &file, &["--device", "1"]).1, "b").len(), 2);
    let run = call(&["export", &file, "--format", "perfetto", "--device", "7", "-o", "/dev/null"]);
    assert!(run.code == 2 && run.err.contains("nothing about device 7"), "{}", run.err);
}
