//! `parkade diff`: what it says about pairs of recordings, and when it fails a check.

use std::path::Path;

use crate::common::*;
use parkade_recording::{Action, DeviceRecording, Recording};
use serde_json::Value;

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../conformance/recordings/{name}.pickle.xz"));
    path.to_str().expect("UTF-8").to_owned()
}

/// A run that holds this many MiB in one segment.
fn holding(mebibytes: u64) -> Recording {
    let bytes = mebibytes * MIB;
    let trace = vec![entry(Action::SegmentAlloc, BASE, bytes), entry(Action::Alloc, BASE, bytes)];
    recording(trace, vec![segment(vec![used(BASE, bytes)])])
}

fn json(args: &[&str]) -> (i32, Value) {
    let run = call(&[&["diff", "--json"], args].concat());
    (run.code, serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{args:?}: {error}: {}{}", run.out, run.err)))
}

#[test]
fn growth_above_the_bound_fails() {
    let folder = Folder::new("diff-growth");
    let (a, b) = (folder.recording("a.pickle", &holding(100)), folder.recording("b.pickle", &holding(102)));
    for (bound, code) in [("2%", 0), ("1.99%", 1), ("0%", 1), ("102MiB", 0), ("101MiB", 1)] {
        let run = call(&["diff", &a, &b, "--fail-above", bound]);
        assert_eq!(run.code, code, "{bound}: {}{}", run.out, run.err);
        assert_eq!(run.out.contains("too much:"), code == 1, "{bound}: {}", run.out);
    }
    assert_eq!(call(&["diff", &b, &a, "--fail-above", "0%"]).code, 0, "it shrank");
    assert_eq!(call(&["diff", &a, "--fail-above", "99MiB"]).code, 1);
    assert_eq!(call(&["diff", &a, "--fail-above", "100MiB"]).code, 0);
    let (code, object) = json(&[&a, &b, "--fail-above", "2%", "--fail-above", "101MiB"]);
    assert_eq!((code, &object["exceeded"]), (1, &true.into()));
    assert_eq!(object["checks"][0]["allowed_bytes"], 102 * MIB);
    assert_eq!((&object["checks"][0]["exceeded"], &object["checks"][1]["exceeded"]), (&false.into(), &true.into()));
    assert_eq!(object["devices"][0]["comparison"]["peak_reserved_change_bytes"], 2 * MIB);
}

/// The peak of a run that died is that of what came before: it shows neither that it stays within a bound nor that another run
/// grew.
#[test]
fn a_bound_and_a_run_that_died() {
    let (died, survived) = (shipped("gpt2_varlen.limit12_oom"), shipped("gpt2_varlen.default"));
    let cases = [
        // A died, so the higher peak of B is not known to be growth.
        (&[&*died, &survived, "--fail-above", "2%"][..], 3, "not_known", "is above 11.48 GiB (--fail-above 2%;", "A died"),
        (&[&died, &survived, "--fail-above", "50%"], 0, "holds", "is not above", "--fail-above 50%"),
        (&[&died, &survived, "--fail-above", "12GiB"], 1, "exceeded", "too much: peak reserved", "is above 12.00 GiB"),
        // B died: without the error it might have exceeded the bound.
        (&[&survived, &died, "--fail-above", "2%"], 3, "not_known", "is not above", "B died"),
        (&[&survived, &died, "--fail-above", "12GiB"], 3, "not_known", "is not above", "B died"),
        (&[&survived, &died, "--fail-above", "10GiB"], 1, "exceeded", "too much: peak reserved", "is above 10.00 GiB"),
        (&[&died, "--fail-above", "12GiB"], 3, "not_known", "is not above", "the run died"),
    ];
    for (args, code, check, said, why) in cases {
        let run = call(&[&["diff"], args].concat());
        let text = run.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(run.code, code, "{args:?}: {}{}", run.out, run.err);
        assert_eq!((text.contains("too much:"), text.contains("not known:")), (code == 1, code == 3), "{args:?}: {text}");
        assert!(text.contains(said) && text.contains(why), "{args:?}: {text}");
        assert_eq!(json(args).1["checks"][0]["check"], check, "{args:?}");
    }
    let help = call(&["diff", "--help"]).out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("3 not known") && help.contains("depends on the peak of a run that died"), "{help}");
}

#[test]
fn a_check_that_cannot_be_made_does_not_pass() {
    let folder = Folder::new("diff-unknown");
    let a = folder.recording("a.pickle", &holding(100));
    let mut bare = holding(100);
    bare.devices[0].trace.clear();
    let bare = folder.recording("bare.pickle", &bare);
    for args in [&[&*a, "--fail-above", "2%"][..], &[&bare, "--fail-above", "200MiB"], &[&a, &bare, "--fail-above", "2%"]] {
        let run = call(&[&["diff"], args].concat());
        assert_eq!((run.code, run.err.lines().count(), run.out.as_str()), (2, 1, ""), "{args:?}: {}", run.err);
    }
    // What it still holds at the end is already more.
    assert_eq!(call(&["diff", &bare, "--fail-above", "99MiB"]).code, 1);
    for bound in ["2%%", "-1%", "lots", "%"] {
        let run = call(&["diff", &a, &a, "--fail-above", bound]);
        assert_eq!(run.code, 2, "{bound}");
    }
    assert_eq!(call(&["diff", &a, "/nowhere"]).code, 2);
    assert!(call(&["diff", &a, "/nowhere"]).err.contains("/nowhere"));
}

#[test]
fn every_kind_of_pair_is_told_in_a_sentence() {
    let folder = Folder::new("diff-pairs");
    let mut bare = holding(120);
    bare.devices[0].trace.clear();
    let (bare, held) = (folder.recording("bare.pickle", &bare), folder.recording("held.pickle", &holding(100)));
    let of = |release: &str| shipped(&format!("../oracle/snapshots/{release}"));
    let (mlp, resnet) = (shipped("deep_mlp.default"), shipped("resnet50_sweep.default"));
    let (gpt2, died) = (shipped("gpt2_varlen.default"), shipped("gpt2_varlen.limit12_oom"));
    let resnet_died = shipped("resnet50_sweep.limit5_oom");
    let pairs = [
        (&mlp, &mlp, "A and B are the same recording, so nothing differs."),
        // 2.12 takes the other of two free blocks of the same size, and needs the same memory.
        (
            &of("2.11.0"),
            &of("2.12.0"),
            "decisions diverge at entry 234; they differ in the release (A is from PyTorch 2.10 and 2.11, B",
        ),
        (&mlp, &shipped("deep_mlp.expandable"), "Both make the same requests, so the allocator makes the difference"),
        (&gpt2, &resnet, "The recordings have little in common: "),
        (
            &gpt2,
            &died,
            "Not all steps are in both files: steps 0 to 2 are compared, the last of which the run that died did not finish.",
        ),
        (&gpt2, &died, "out of memory: B: 1 request ran out of memory, the first at entry 7268"),
        // Nothing marks its steps.
        (
            &resnet,
            &resnet_died,
            "steps 0 to 4 of both (unmarked; inferred from what the runs repeat): the peak of reserved memory is the same",
        ),
        (&held, &bare, "A file without a trace has only the state at its end, so both are compared at their ends."),
        (&held, &bare, "B reserves 20.00 MiB more than A at the end: 120.00 MiB instead of 100.00 MiB (+20.0 %)."),
    ];
    for (a, b, said) in pairs {
        for all in [&[][..], &["--all"]] {
            let run = call(&[&["diff", a, b], all].concat());
            assert_eq!((run.code, run.err.as_str()), (0, ""), "{a} {b}");
            assert!(run.out.contains(said) || (all.is_empty() && said.starts_with("steps ")), "{said}\n{}", run.out);
            for more in ["\n1 - allocated / reserved ", "\ndriver calls "] {
                let is_known = more != "\ndriver calls " || *a != held;
                assert_eq!(run.out.contains(more), is_known && !all.is_empty(), "{more:?}: {}", run.out);
            }
            let hint = "\n--all also shows how memory is used at the peaks, the driver calls, phases and steps\n";
            assert_eq!(run.out.ends_with(hint), all.is_empty(), "{}", run.out);
        }
    }
}

#[test]
fn devices_are_paired_by_number_else_in_order() {
    let folder = Folder::new("diff-devices");
    let on = |numbers: &[u32]| {
        let of_number = |&device: &u32| DeviceRecording { device, ..holding(100).devices.remove(0) };
        folder.recording(
            &format!("{numbers:?}.pickle"),
            &Recording { devices: numbers.iter().map(of_number).collect(), ..holding(100) },
        )
    };
    let (both, second, third) = (on(&[0, 1]), on(&[1]), on(&[2]));
    let (code, object) = json(&[&both, &second]);
    assert_eq!((code, object["devices"].as_array().map(Vec::len)), (0, Some(1)));
    assert_eq!(object["notes"][0], "Only A has device 0, so nothing is compared there.");
    let (_, object) = json(&[&second, &third]);
    assert_eq!((&object["devices"][0]["a"]["device"], &object["devices"][0]["b"]["device"]), (&1.into(), &2.into()));
    assert!(object["notes"][0].as_str().is_some_and(|note| note.contains("1 with 2")), "{object}");
    assert!(call(&["diff", &both, &both]).out.contains("device 1"));
    assert_eq!(call(&["diff", &both, &third, "--device", "0"]).code, 2);
}

#[test]
fn two_steps_of_one_file() {
    let file = shipped("gpt2_varlen.frames_tail20k");
    let (code, object) = json(&[&file, "--steps", "19:23", "--fail-above", "1%"]);
    let comparison = &object["devices"][0]["comparison"];
    assert_eq!((code, &comparison["grouped_by"], &object["b"]), (0, &"stack".into(), &Value::Null));
    let stack = &comparison["held_at_peak"][0]["stack_b"][0]["filename"];
    assert!(stack.as_str().is_some_and(|file| file.ends_with("activations.py")), "{stack}");
    let run = call(&["diff", &file, "--steps", "19:99"]);
    assert!(run.code == 2 && run.err.contains("complete steps 18 to 23"), "{}", run.err);
    assert_eq!(call(&["diff", &file, "--steps", "19"]).code, 2);
}

#[test]
fn the_verdict_names_its_device_and_one_file_has_a_short_answer() {
    let folder = Folder::new("diff-verdict");
    let two = |mib| {
        let mut two = holding(mib);
        two.devices.push(DeviceRecording { device: 3, ..holding(100).devices.remove(0) });
        two
    };
    let (a, b) = (folder.recording("a.pickle", &two(100)), folder.recording("b.pickle", &two(120)));
    let run = call(&["diff", &a, &b]);
    assert!(run.out.starts_with("Device 0: B reserves 20.00 MiB more than A"), "{}", run.out);
    assert!(run.out.contains("\nDevice 3: B reserves as much as A"), "{}", run.out);
    let run = call(&["diff", &folder.recording("one.pickle", &holding(100))]);
    assert!(run.out.starts_with("Reserved memory peaks at 100.00 MiB at entry "), "{}", run.out);
    assert!(!run.out.contains("driver calls  ") && run.out.contains("--all"), "{}", run.out);
}
