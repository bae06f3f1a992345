//! `parkade export` and `parkade stats`.

use std::fs;

use crate::common::{BASE, Folder, MIB, call, diverging, entry, good, recording, refused, segment, unused, verify};
use parkade_recording::{Action, Annotation, DeviceRecording, Recording, read_file};
use serde_json::Value;

fn json(arguments: &[&str]) -> (i32, Value) {
    let run = call(arguments);
    (run.code, serde_json::from_str(run.out.trim_end()).unwrap_or_else(|error| panic!("{error}: {}{}", run.out, run.err)))
}

fn timed() -> Recording {
    let mut recording = good();
    for (time, entry) in (10..).zip(&mut recording.devices[0].trace) {
        entry.set_time(Some(time));
    }
    let annotation =
        |name: &str, time_us| Annotation { name: name.into(), stage: "END".into(), device: None, time_us: Some(time_us) };
    recording.annotations = vec![annotation("Optimizer.step#SGD.step", 11), annotation("Optimizer.step#SGD.step", 99)];
    recording
}

#[test]
fn an_exported_file_is_written_verifies_and_says_its_settings() {
    let folder = Folder::new("export-written");
    let file = folder.recording("run.pickle", &timed());
    let out = format!("{}/out.pickle", folder.path());
    let run = call(&["export", &file, "--settings", "expandable_segments:True", "-o", &out]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(lines[..2], [&*format!("written to {out}"), "5 entries, at most 20.00 MiB reserved"]);
    assert!(lines[2].starts_with("recorded by PyTorch "), "{}", run.out);
    assert_eq!(verify(&out).code, 0);
    let exported = read_file(&out).expect("a recording");
    assert_eq!(exported.annotations, timed().annotations);
    assert!(exported.devices[0].segments[0].expandable);
    let (code, object) = json(&["export", &file, "-o", &out, "--force", "--limit", "19MiB", "--stop-at-oom", "--json"]);
    assert_eq!((code, &object["devices"][0]["fails_at_entry"], &object["devices"][0]["entries"]), (0, &0.into(), &1.into()));
    let run = call(&["export", &file, "-o", &out, "--force", "--limit", "19MiB"]);
    assert!(run.out.contains("out of memory twice, first at entry 0 of the file"), "{}", run.out);
    let run = call(&["export", &file, "-o", &out, "--force", "--limit", "19MiB", "--stop-at-oom"]);
    assert!(run.out.contains("out of memory once, first at entry 0 of the file"), "{}", run.out);
}

#[test]
fn a_file_that_is_there_is_replaced_only_by_force_and_the_recording_never() {
    let folder = Folder::new("export-replaces");
    let file = folder.recording("run.pickle", &timed());
    let bytes = fs::read(&file).expect("the recording");
    let other = folder.file("notes.txt", b"mine");
    let run = call(&["export", &file, "-o", &other]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.contains("notes.txt already exists") && run.err.contains("--force overwrites it"), "{}", run.err);
    assert_eq!(fs::read(&other).expect("the file"), b"mine");
    assert_eq!(call(&["export", &file, "-o", &other, "--force"]).code, 0);
    assert_eq!(verify(&other).code, 0);
    let linked = format!("{}/linked.pickle", folder.path());
    fs::hard_link(&file, &linked).expect("a hard link");
    for target in [&linked, &file] {
        let run = call(&["export", &file, "-o", target, "--force"]);
        assert_eq!(run.code, 2);
        assert!(run.err.contains("the output is the input file"), "{}", run.err);
    }
    assert_eq!(fs::read(&file).expect("the recording"), bytes);
    let mut names: Vec<_> = fs::read_dir(folder.path()).expect("the folder").map(|f| f.expect("a file").file_name()).collect();
    names.sort();
    assert_eq!(names, ["linked.pickle", "notes.txt", "run.pickle"], "no temporary file is left");
}

/// A request that was refused in the recording, and nothing in the file says why.
#[test]
fn an_export_says_which_failures_of_the_recording_it_has_not() {
    let folder = Folder::new("export-failures");
    let trace =
        vec![entry(Action::SegmentAlloc, BASE, 20 * MIB), entry(Action::Alloc, BASE, 15 * MIB), entry(Action::Oom, 0, 32 * MIB)];
    let blocks = vec![crate::common::used(BASE, 15 * MIB), unused(BASE + 15 * MIB, 5 * MIB)];
    let file = folder.recording("oom.pickle", &recording(trace, vec![segment(blocks)]));
    let out = format!("{}/out.pickle", folder.path());
    let run = call(&["export", &file, "-o", &out]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(
        run.out.contains("the recorded run ran out of memory once, this one never") && run.out.contains("--limit"),
        "{}",
        run.out
    );
    let run = call(&["export", &file, "-o", &out, "--limit", "24MiB", "--force"]);
    assert!(run.out.contains("out of memory once") && !run.out.contains("the recorded run"), "{}", run.out);
}

#[test]
fn what_cannot_be_exported_is_said_in_one_line() {
    let folder = Folder::new("export-bad");
    let file = folder.recording("run.pickle", &timed());
    let mut traceless = timed();
    traceless.devices[0].trace.clear();
    let traceless = folder.recording("traceless.pickle", &traceless);
    let nonsense = folder.file("nonsense.pickle", b"nonsense");
    let out = format!("{}/out.pickle", folder.path());
    let nowhere = format!("{}/no/folder/out.pickle", folder.path());
    let cases: [(&[&str], &str); 8] = [
        (&[&file, "-o", &file], "the output is the input file"),
        (&[&file, "-o", &nowhere], "cannot write"),
        (&[&file, "-o", &out, "--settings", "max_split:3"], "Unrecognized key 'max_split' in CUDA allocator config."),
        (&[&file, "-o", &out, "--settings", "per_process_memory_fraction:0.5"], "--capacity gives"),
        (&[&file, "-o", &out, "--device", "7"], "nothing about device 7; it has device 0"),
        (&[&traceless, "-o", &out], "no trace entries to replay"),
        (&[&nonsense, "-o", &out], "nonsense.pickle"),
        (&["missing.pickle", "-o", &out], "cannot be read"),
    ];
    for (arguments, text) in cases {
        let run = call(&[&["export"], arguments].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
        assert!(run.err.starts_with("parkade: ") && run.err.lines().count() == 1 && run.err.contains(text), "{}", run.err);
        let (code, object) = json(&[&["export", "--json"], arguments].concat());
        assert!(code == 2 && object["error"].is_string(), "{object}");
    }
    assert!(read_file(&file).is_ok(), "the recording is as it was");
    refused(&out, "cannot be read");
}

#[test]
fn statistics_are_shown_at_the_end_at_an_entry_and_in_rows() {
    let folder = Folder::new("stats-shown");
    let file = folder.recording("run.pickle", &timed());
    let run = call(&["stats", &file]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let fullest = "Device 0 at its peak, entry 2 of 5: 20.00 MiB reserved, 8.00 MiB allocated\n";
    assert!(
        run.out.starts_with(fullest)
            && run.out.contains("\nat the end: 20.00 MiB reserved, 3.00 MiB allocated\n")
            && !run.out.contains("memory summary"),
        "{}",
        run.out
    );
    let all = call(&["stats", &file, "--all"]);
    assert!(all.out.starts_with(fullest) && all.out.contains("PyTorch CUDA memory summary, device ID 0"), "{}", all.out);
    let run = call(&["stats", &file, "--entry", "4"]);
    assert!(run.out.contains("PyTorch CUDA memory summary, device ID 0"), "{}", run.out);
    let first = "Device 0 after entry 4 of 5: 20.00 MiB reserved, 3.00 MiB allocated\n  fragmentation     85.0 %, a risk by the 30 % rule";
    assert!(run.out.starts_with(first), "{}", run.out);
    assert!(run.out.contains("largest hole      12.00 MiB") && run.out.contains("partial segments  17.00 MiB"), "{}", run.out);
    let keys = call(&["stats", &file, "--entry", "1", "--keys"]).out;
    assert!(keys.contains(&format!("\nallocated_bytes.all.current {}\n", 5 * MIB)) && keys.lines().count() > 122, "{keys}");
    let (code, object) = json(&["stats", &file, "--every", "2", "--json"]);
    let entries: Vec<_> =
        object["devices"][0]["moments"].as_array().expect("moments").iter().map(|m| m["entry"].clone()).collect();
    assert_eq!((code, entries), (0, vec![1.into(), 3.into(), 4.into()]));
    let (_, steps) = json(&["stats", &file, "--steps", "--json"]);
    let moments = &steps["devices"][0]["moments"];
    let allocated = |at: usize| moments[at]["memory_stats"]["allocated_bytes.all.current"].clone();
    assert_eq!((&moments[0]["step"], &moments[0]["entry"], allocated(0)), (&0.into(), &1.into(), (5 * MIB).into()));
    assert_eq!((&moments[1]["step"], &moments[1]["entry"], allocated(1)), (&1.into(), &4.into(), (3 * MIB).into()));
    let rows = call(&["stats", &file, "--steps=Optimizer"]).out;
    let first =
        "Device 0: reserved memory peaks at 20.00 MiB, allocated memory at 8.00 MiB\nsteps end with Optimizer\nstep  entry";
    assert!(rows.starts_with(first), "{rows}");
    let csv = call(&["stats", &file, "--every", "2", "--csv"]).out;
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [134; 4], "{csv}");
}

#[test]
fn statistics_under_other_settings_are_those_of_the_replay() {
    let folder = Folder::new("stats-settings");
    let file = folder.recording("run.pickle", &timed());
    let segments = |arguments: &[&str]| {
        let (code, object) = json(&[&["stats", &file, "--json"], arguments].concat());
        (code, object["devices"][0]["moments"][0]["memory_stats"]["segment.all.current"].clone())
    };
    assert_eq!(segments(&[]), (0, 1.into()));
    assert_eq!(segments(&["--settings", "expandable_segments:True"]), (0, 0.into()), "pages are no segments");
}

#[test]
fn figures_that_are_not_the_recordings_are_said_to_be_so() {
    let folder = Folder::new("stats-differ");
    let file = folder.recording("diverging.pickle", &diverging());
    let run = call(&["stats", &file]);
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.out.contains("recorded decisions differ") && run.out.contains("--limit"), "{}", run.out);
    let (code, object) = json(&["stats", &file, "--json"]);
    assert!(code == 1 && object["mismatches"].as_u64() > Some(0), "{object}");
    assert_eq!(object["mismatches"], object["devices"][0]["mismatches"]);
    let run = call(&["stats", &file, "--csv"]);
    assert!(run.code == 1 && run.err.contains("recorded decisions differ") && run.err.lines().count() == 1, "{}", run.err);
    let sound = folder.recording("good.pickle", &good());
    assert_eq!(json(&["stats", &sound, "--json"]).1["mismatches"], 0);
}

/// Garbage collection depends on the limit, which the file does not have; the out-of-memory point leaves few whole gibibytes for it.
#[test]
fn the_limit_that_garbage_collection_needs_is_found() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/gpt2_varlen.limit16_gc.pickle.xz");
    let (code, found) = json(&["stats", file, "--json"]);
    let (_, given) = json(&["stats", file, "--limit", "16GiB", "--json"]);
    assert_eq!((code, &found["devices"][0]["assumed_limit_bytes"]), (0, &(16_u64 << 30).into()));
    assert_eq!(found["devices"][0]["moments"], given["devices"][0]["moments"]);
    assert!(call(&["stats", file]).out.contains("a limit of 16.00 GiB is assumed"));
    let wrong = call(&["stats", file, "--limit", "15GiB"]);
    assert!(wrong.code == 1 && wrong.out.contains("recorded decisions differ"), "{}", wrong.out);
}

#[test]
fn devices_without_such_a_moment_are_left_out() {
    let folder = Folder::new("stats-devices");
    let mut several = timed();
    let device = several.devices[0].clone();
    several.devices.push(DeviceRecording { device: 1, trace: Vec::new(), ..device.clone() });
    let mut short = device;
    short.device = 2;
    short.trace.drain(..3);
    several.devices.push(short);
    let file = folder.recording("several.pickle", &several);
    let run = call(&["stats", &file, "--entry", "4"]);
    assert!(run.out.starts_with("Device 0 after entry 4 of 5: 20.00 MiB reserved, "), "{}{}", run.out, run.err);
    assert!(run.out.contains("left out: device 1 has no trace entries"), "{}", run.out);
    assert!(run.out.contains("left out: there is no entry 4: the trace of device 2 has 2"), "{}", run.out);
    let (_, object) = json(&["stats", &file, "--entry", "4", "--json"]);
    assert_eq!((&object["left_out"][0]["device"], &object["left_out"][1]["device"]), (&1.into(), &2.into()));
    assert_eq!(object["devices"].as_array().map(Vec::len), Some(1));
    for arguments in [&["--entry", "4", "--device", "1"], &["--entry", "4", "--device", "2"]] {
        assert_eq!(call(&[&["stats", &file], arguments.as_slice()].concat()).code, 2);
    }
    let none = call(&["stats", &file, "--entry", "5"]);
    assert!(none.code == 2 && none.err.contains("there is no entry 5: the trace of device 0 has 5"), "{}", none.err);
}

#[test]
fn what_has_no_statistics_is_said_in_one_line() {
    let folder = Folder::new("stats-bad");
    let file = folder.recording("run.pickle", &timed());
    let unmarked = folder.recording("unmarked.pickle", &good());
    let mut traceless = timed();
    traceless.devices.push(DeviceRecording { device: 1, trace: Vec::new(), ..traceless.devices[0].clone() });
    let traceless = folder.recording("traceless.pickle", &traceless);
    let cases: [(&[&str], &str); 6] = [
        (&[&file, "--entry", "5"], "there is no entry 5: the trace of device 0 has 5, counted from 0"),
        (&[&unmarked, "--steps"], "the file has no step annotations"),
        (&[&file, "--device", "3"], "nothing about device 3"),
        (&[&file, "--settings", "max_split_size_mb:3"], "max_split_size_mb"),
        (&[&traceless, "--every", "2", "--device", "1"], "device 1 has no trace entries"),
        (&["missing.pickle"], "cannot be read"),
    ];
    for (arguments, text) in cases {
        let run = call(&[&["stats"], arguments].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
        assert!(run.err.starts_with("parkade: ") && run.err.lines().count() == 1 && run.err.contains(text), "{}", run.err);
        assert!(json(&[&["stats", "--json"], arguments].concat()).1["error"].is_string());
    }
    let end = call(&["stats", &traceless]).out;
    assert!(end.contains("\nDevice 1 at the end, because the file has no trace: 20.00 MiB reserved, 3.00 MiB allocated\n  fragmentation     85.0 %"), "{end}");
    assert_eq!(call(&["stats", &file, "--every", "0"]).code, 2);
    assert_eq!(call(&["stats", &file, "--every", "1", "--entry", "1"]).code, 2);
}
