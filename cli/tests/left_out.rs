//! Recordings with `skip_actions`: what is missing is inferred, or named; and no command refuses them all.

use crate::common::*;
use parkade_recording::{Action, Recording};
use serde_json::Value;

/// Two segments, one of which is released, and three blocks, one of which is left at the end.
fn whole() -> Recording {
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 20 * MIB), entry(Action::Alloc, BASE, 5 * MIB)];
    trace.extend(free(BASE, 5 * MIB));
    trace.extend([entry(Action::SegmentAlloc, OTHER, 30 * MIB), entry(Action::Alloc, OTHER, 30 * MIB)]);
    trace.extend(free(OTHER, 30 * MIB));
    trace.extend([entry(Action::SegmentFree, BASE, 20 * MIB), entry(Action::SegmentFree, OTHER, 30 * MIB)]);
    trace.extend([entry(Action::SegmentAlloc, BASE, 20 * MIB), entry(Action::Alloc, BASE, 4 * MIB)]);
    recording(trace, vec![segment(vec![used(BASE, 4 * MIB), unused(BASE + 4 * MIB, 16 * MIB)])])
}

fn without(kinds: &[Action]) -> Recording {
    let mut recording = whole();
    recording.devices[0].trace.retain(|entry| !kinds.contains(&entry.action));
    recording
}

fn object(args: &[&str]) -> (i32, Value) {
    let run = call(args);
    (run.code, serde_json::from_str(run.out.trim_end()).unwrap_or_else(|_| panic!("no JSON: {}{}", run.out, run.err)))
}

#[test]
fn a_half_of_each_free_is_inferred() {
    let folder = Folder::new("left-out-halves");
    let (_, expected) = object(&["verify", "--json", &folder.recording("whole.pickle", &whole())]);
    assert_eq!((&expected["mismatches"], &expected["left_out"]), (&0.into(), &serde_json::json!([])), "{expected}");
    for kind in [Action::FreeRequested, Action::FreeCompleted] {
        let name = kind.name();
        let file = folder.recording(&format!("{name}.pickle"), &without(&[kind]));
        let (code, found) = object(&["verify", "--json", &file]);
        let left_out = serde_json::json!([{"device": 0, "actions": [name], "recorded_entries": 10, "inferred_entries": 2}]);
        assert_eq!((code, &found["left_out"]), (0, &left_out), "{found}");
        for key in ["entries", "decisions", "mismatches", "peak_allocated_bytes", "peak_reserved_bytes", "not_in_file"] {
            assert_eq!(found[key], expected[key], "{name}: {key}");
        }
        let note = format!("not in the file: {name} entries, which the recording leaves out (skip_actions); 2 entries inferred");
        for command in [&["verify", "--all"][..], &["diagnose"], &["advise", "--all"], &["report"]] {
            let run = call(&[command, &[&file]].concat());
            let out = run.out.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(run.code == 0 && out.contains(&note), "{command:?}: {}{}", run.out, run.err);
        }
    }
}

#[test]
fn of_what_does_not_follow_the_state_at_the_end_remains() {
    use Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc, SegmentFree};
    let folder = Folder::new("left-out-kinds");
    let cases: [(&[Action], &str); 4] = [
        (&[FreeRequested, FreeCompleted], "free_requested and free_completed"),
        (&[SegmentAlloc, SegmentFree], "segment_alloc and segment_free"),
        (&[SegmentFree], "segment_free"),
        (&[Alloc], "alloc"),
    ];
    for (kinds, names) in cases {
        let file = folder.recording("some.pickle", &without(kinds));
        let run = call(&["verify", "--all", &file]);
        assert_eq!((run.code, run.err.as_str()), (3, ""), "{}", run.out);
        let claim = format!("not checked: the recording leaves out {names} entries (skip_actions)\n");
        assert!(run.out.starts_with(&claim) && !run.out.contains("no release"), "{}", run.out);
        let (code, found) = object(&["verify", "--json", &file]);
        assert_eq!((code, &found["left_out"][0]["inferred_entries"]), (3, &Value::Null), "{found}");
        for command in ["diagnose", "advise", "report"] {
            let run = call(&[command, &file]);
            let out = run.out.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(run.code, if command == "advise" { 3 } else { 0 }, "{command}: {}", run.err);
            assert!(out.contains(&format!("the recording leaves out {names} entries (skip_actions)")), "{command}: {out}");
            for claim in ["exact: ", "every decision", "no failure is recorded", "no release"] {
                assert!(!out.contains(claim), "{command} says {claim:?}: {out}");
            }
        }
        assert_eq!(call(&["stats", &file]).code, 0, "{names}");
        for command in ["replay", "pack"] {
            let run = call(&[command, &file]);
            assert_eq!(run.code, 2, "{command}");
            assert!(run.err.contains(&format!("leaves out {names} entries (skip_actions)")), "{command}: {}", run.err);
        }
    }
    // Next to one that can be checked.
    let (good, some) = (folder.recording("good.pickle", &whole()), folder.recording("some.pickle", &without(&[SegmentFree])));
    let run = call(&["verify", "--all", &good, &some]);
    assert_eq!(run.code, 3, "{}", run.err);
    let claim = "in 1 recording, as PyTorch 2.10 to 2.15 made them; 1 not checked, because they leave out kinds of entries \
                 (skip_actions)";
    assert!(run.out.lines().next().is_some_and(|verdict| verdict.ends_with(claim)), "{}", run.out);
}
