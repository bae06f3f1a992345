//! A recording of several devices: each figure that `advise` gives belongs to one device, which it names.

use crate::common::documented::check_text;
use crate::common::{BASE, Folder, MIB, call, entry, free, recording, segment, unused, used, words};
use parkade_recording::{Action, DeviceRecording, Recording};
use serde_json::Value;

/// A device that holds this much from beginning to end.
fn holds(device: u32, mib: u64) -> DeviceRecording {
    let trace = vec![entry(Action::SegmentAlloc, BASE, mib * MIB), entry(Action::Alloc, BASE, mib * MIB)];
    DeviceRecording { device, ..recording(trace, vec![segment(vec![used(BASE, mib * MIB)])]).devices.remove(0) }
}

/// A device whose program died: 600 of 1000 MiB are used again, then 600 more are refused while the device has this much free.
fn died(device: u32, free_bytes: u64) -> DeviceRecording {
    died_of(device, 1000, free_bytes)
}

/// The same with other sizes: six tenths of `mib` are used again.
fn died_of(device: u32, mib: u64, free_bytes: u64) -> DeviceRecording {
    let part = mib * 6 / 10;
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, mib * MIB), entry(Action::Alloc, BASE, mib * MIB)];
    trace.extend(free(BASE, mib * MIB));
    trace.extend([entry(Action::Alloc, BASE, part * MIB), entry(Action::Oom, free_bytes, part * MIB)]);
    let blocks = vec![used(BASE, part * MIB), unused(BASE + part * MIB, (mib - part) * MIB)];
    DeviceRecording { device, ..recording(trace, vec![segment(blocks)]).devices.remove(0) }
}

/// So much memory is free that a limit must have refused the request: it was at least 1000 MiB and less than 1600.
const PLENTY: u64 = 100 << 30;

fn file(folder: &Folder, devices: Vec<DeviceRecording>) -> String {
    folder.recording("devices.pickle", &Recording { devices, ..recording(Vec::new(), Vec::new()) })
}

fn json(arguments: &[&str]) -> Value {
    let run = call(&[arguments, &["--json"]].concat());
    serde_json::from_str(run.out.trim_end()).unwrap_or_else(|error| panic!("{error}: {}{}", run.out, run.err))
}

#[test]
fn a_full_device_that_nothing_serves_decides_whatever_the_others_hold() {
    let folder = Folder::new("devices-full");
    // It was full at 1100 MiB, so its memory is known, and 1200 MiB is live.
    let file = file(&folder, vec![holds(0, 300), died(1, 100 * MIB), holds(2, 5000)]);
    let (code, text) = words(&["advise", "--all", &file]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("the smallest memory that works: 1.17 GiB on device 1 with "), "{text}");
    let said = "Capacity: on device 1 the program holds 1.17 GiB at once, and 1.07 GiB is available, 100.00 MiB too little; no setting helps";
    assert!(text.contains(said), "{text}");
    assert!(text.contains("; on device 1 at most 1.17 GiB live with minimal rounding, 1.07 GiB of memory;"), "{text}");
    assert!(text.contains("capacity: on device 1 at entry 5, "), "{text}");
    let object = json(&["advise", &file]);
    assert_eq!((&object["outcome"], &object["enough"]), (&"does_not_fit".into(), &Value::Null), "{object}");
}

#[test]
fn what_is_enough_is_that_of_the_device_whose_limit_is_not_known() {
    let folder = Folder::new("devices-range");
    let alone = json(&[
        "advise",
        &folder.recording("alone.pickle", &Recording { devices: vec![died(0, PLENTY)], ..recording(Vec::new(), Vec::new()) }),
    ]);
    let file = file(&folder, vec![holds(0, 5000), died(1, PLENTY), holds(2, 300)]);
    let (code, text) = words(&["advise", "--all", &file]);
    assert_eq!(code, 3, "{text}");
    let said = "Not known: on device 1 the program holds 1.17 GiB at once, and the limit was between 1000.00 MiB and 1.56 GiB; \
                with at least 1.17 GiB, it gets past entry 5 with ";
    assert!(text.contains(said), "{text}");
    assert!(text.contains("the smallest memory that works: 1.17 GiB on device 1 with "), "{text}");
    let object = json(&["advise", &file]);
    check_text("advise", &object.to_string());
    let enough = &object["enough"];
    assert_eq!((&enough["device"], &enough["bytes"]), (&1.into(), &alone["enough"]["bytes"]), "{enough}");
    let each = enough["devices"].as_array().expect("the devices that matter");
    let range = |of: &Value| [&of["least_bytes"], &of["below_bytes"]].map(|bytes| bytes.as_u64().map(|bytes| bytes / MIB));
    assert_eq!((each.len(), range(&each[0])), (1, [Some(1000), Some(1600)]), "{enough}");
    assert_eq!((&alone["enough"]["device"], &alone["enough"]["devices"]), (&0.into(), &Value::Null), "{alone}");
}

#[test]
fn two_devices_that_lack_memory_have_a_bound_each() {
    let folder = Folder::new("devices-two");
    let file = file(&folder, vec![died(0, PLENTY), holds(1, 300), died_of(2, 2000, PLENTY)]);
    let (code, text) = words(&["advise", "--all", &file]);
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("on device 0 the program holds 1.17 GiB at once, and the limit was between 1000.00 MiB and 1.56 GiB"),
        "{text}"
    );
    assert!(
        text.contains("on device 2 the program holds 2.34 GiB at once, and the limit was between 1.95 GiB and 3.12 GiB"),
        "{text}"
    );
    let each = json(&["advise", &file])["enough"]["devices"].clone();
    let devices: Vec<Option<u64>> = each.as_array().expect("both").iter().map(|of| of["device"].as_u64()).collect();
    assert_eq!(devices, [Some(2), Some(0)], "the one that lacks most comes first");
}

#[test]
fn what_is_enough_of_given_memory_is_that_of_the_device_that_needs_most() {
    let folder = Folder::new("devices-given");
    let file = file(&folder, vec![holds(0, 300), holds(1, 700), holds(2, 500)]);
    let (code, text) = words(&["advise", "--all", &file, "--limit", "2GiB"]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("It fits in 2.00 GiB as it is: it needs at least 700.00 MiB on device 1, which needs the most"),
        "{text}"
    );
    let (code, text) = words(&["advise", "--all", &file, "--limit", "600MiB"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("Capacity: on device 1 the program holds 700.00 MiB at once, and 600.00 MiB is available"), "{text}");
}

#[test]
fn the_request_of_which_one_device_died_is_told_with_its_device() {
    let folder = Folder::new("devices-past");
    let file = file(&folder, vec![holds(0, 300), died(1, PLENTY)]);
    let (code, text) = words(&["advise", "--all", &file, "--limit", "1500MiB"]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("on device 1 it gets past entry 5, where the run died; the rest is not in the file, and "), "{text}");
    let (_, text) = words(&["advise", "--all", &file, "--limit", "4GiB"]);
    assert!(text.contains("on device 1 the run had less than 4.00 GiB: at entry 5, a request was refused that"), "{text}");
}

#[test]
fn what_is_said_of_one_device_is_said_once() {
    let folder = Folder::new("devices-once");
    let file = file(&folder, vec![holds(0, 300), died(1, PLENTY), holds(2, 200)]);
    let (_, text) = words(&["advise", "--all", &file]);
    assert!(text.contains("device 1: the run died of the out-of-memory error at entry 5"), "{text}");
    assert_eq!(text.matches("the run died of").count(), 1, "{text}");
}
