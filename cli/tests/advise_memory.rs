//! The memory size that `advise` assumes for a run: one that was given, one that the file contradicts, or one in a range that
//! follows from an out-of-memory error.

use crate::common::{BASE, Folder, MIB, OTHER, call, entry, free, recording, segment, unused, used, words};
use parkade_recording::{Action, DeviceRecording, Recording};
use serde_json::Value;

/// `crate::common::reuses_a_part` in GiB rather than tenths: 1000 MiB of which 600 are used again, then 600 more.
fn completes() -> Recording {
    let mut trace = start();
    trace.extend([entry(Action::SegmentAlloc, OTHER, 600 * MIB), entry(Action::Alloc, OTHER, 600 * MIB)]);
    recording(trace, vec![first_segment(), segment(vec![used(OTHER, 600 * MIB)])])
}

/// The same, but it dies: the last 600 MiB is refused, so the limit was at least 1000 MiB and less than 1600.
fn died() -> Recording {
    let mut trace = start();
    trace.push(entry(Action::Oom, 100 << 30, 600 * MIB));
    recording(trace, vec![first_segment()])
}

fn start() -> Vec<parkade_recording::Entry> {
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 1000 * MIB), entry(Action::Alloc, BASE, 1000 * MIB)];
    trace.extend(free(BASE, 1000 * MIB));
    trace.push(entry(Action::Alloc, BASE, 600 * MIB));
    trace
}

fn first_segment() -> parkade_recording::Segment {
    segment(vec![used(BASE, 600 * MIB), unused(BASE + 600 * MIB, 400 * MIB)])
}

fn json(arguments: &[&str]) -> Value {
    let run = call(&[arguments, &["--json"]].concat());
    let last = run.out.lines().last().unwrap_or_else(|| panic!("{}", run.err));
    serde_json::from_str(last).expect("an object")
}

#[test]
fn memory_that_the_file_contradicts_is_said_and_makes_the_answer_conditional() {
    let folder = Folder::new("memory-contradicted");
    let file = folder.recording("died.pickle", &died());
    let (code, text) = words(&["advise", "--all", &file, "--limit", "4GiB"]);
    // There is no earlier step, so nothing shows what follows.
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("the run had less than 4.00 GiB: at entry 5, a request was refused"), "{text}");
    assert!(text.contains("if the full 4.00 GiB is available, "), "{text}");
    assert!(!text.contains("keep the settings") && text.contains("export "), "{text}");
    let object = json(&["advise", &file, "--limit", "4GiB"]);
    let contradiction = &object["contradiction"];
    assert_eq!((&contradiction["device"], &contradiction["entry"]), (&0.into(), &5.into()), "{object}");
    assert_eq!(contradiction["refused_bytes"], 1600 * MIB);
    // With the memory that it had, nothing is contradicted.
    assert_eq!(json(&["advise", &file, "--limit", "1300MiB"])["contradiction"], Value::Null);
}

#[test]
fn what_an_assumed_limit_decides_is_not_known() {
    let folder = Folder::new("memory-range");
    let file = folder.recording("died.pickle", &died());
    let (code, text) = words(&["advise", "--all", &file]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains(" undecided: at entry 5") && !text.to_lowercase().contains("no setting helps"), "{text}");
    assert!(
        text.contains("Not known: the program holds 1.17 GiB at once, and the limit was between 1000.00 MiB and 1.56 GiB"),
        "{text}"
    );
    let object = json(&["advise", &file]);
    assert_eq!((&object["outcome"], &object["capacity_bytes"]), (&"unknown".into(), &(1024 * MIB).into()), "{object}");
    assert_eq!(object["verdict"], "undecided");
    // The amount that is said to be enough is enough, and less is not.
    let (enough, settings) = (&object["enough"]["bytes"], &object["enough"]["settings"]);
    let (enough, settings) = (enough.as_u64().expect("bytes"), settings.as_str().expect("settings"));
    let outcome = |bytes: u64| {
        let limit = format!("{bytes}B");
        json(&["advise", &file, "--limit", &limit, "--settings", settings, "--only"])["options"][1]["gets_past"].clone()
    };
    assert_eq!((outcome(enough), outcome(enough - 4 * MIB)), (true.into(), false.into()), "{settings} in {enough}");
    let (_, diagnosed) = words(&["diagnose", &file]);
    assert!(diagnosed.contains("capacity if it was lower"), "{diagnosed}");
    // If every possible limit is too small, the answer is known.
    let (code, text) = words(&["advise", "--all", &file, "--limit", "1100MiB"]);
    assert!(code == 1 && text.contains("no setting helps"), "{text}");
}

#[test]
fn the_memory_of_one_device_is_assumed_for_the_others_unless_they_reserved_more() {
    let folder = Folder::new("memory-devices");
    let mut both = died();
    both.devices.push(DeviceRecording { device: 1, ..completes().devices.remove(0) });
    let file = folder.recording("both.pickle", &both);
    let (code, text) = words(&["advise", "--all", &file]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("device 0 had a limit between 1000.00 MiB and 1.56 GiB"), "{text}");
    assert!(text.contains("device 1 shows no limit; 1.56 GiB, which it reserved, is assumed"), "{text}");
    let object = json(&["advise", &file]);
    assert_eq!((&object["outcome"], &object["capacity_bytes"]), (&"unknown".into(), &(1024 * MIB).into()), "{object}");
    let own = &object["options"][0]["devices"];
    assert_eq!((&own[0]["fits"], &own[1]["fits"]), (&false.into(), &true.into()), "{own}");
}

#[test]
fn a_rank_is_never_judged_by_less_than_it_reserved() {
    let folder = Folder::new("memory-ranks");
    folder.recording("rank0.pickle", &died());
    folder.recording("rank1.pickle", &completes());
    let (code, text) = words(&["advise", "--all", folder.path()]);
    assert_eq!(code, 3, "{text}");
    let found = json(&["advise", folder.path()]);
    let ranks = &found["one_setting"]["ranks"];
    assert_eq!((&ranks[1]["outcome"], &ranks[1]["capacity_bytes"]), (&"fits".into(), &(1600 * MIB).into()), "{ranks}");
    assert_eq!(found["one_setting"]["outcome"], "unknown", "{found}");
}

#[test]
fn memory_is_missing_where_it_fails() {
    let folder = Folder::new("memory-headroom");
    let file = folder.recording("completes.pickle", &completes());
    let object = json(&["advise", &file, "--limit", "1500MiB"]);
    for option in object["options"].as_array().expect("options") {
        let (fits, headroom) = (option["fits"].as_bool(), option["headroom_bytes"].as_i64());
        assert_eq!(fits, headroom.map(|headroom| headroom >= 0), "{option}");
    }
}
