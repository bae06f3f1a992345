//! `parkade diff`: what it says about pairs of recordings, and when it fails a check.

use std::path::Path;

use crate::common::*;
use parkade_recording::{Action, Annotation, Block, BlockState, DeviceRecording, Frame, Recording, StackId};
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
        (&[&*died, &survived, "--fail-above", "2%"][..], 3, "not_known", "is above 11.48 GiB (--fail-above 2%), but", "A died"),
        (&[&died, &survived, "--fail-above", "50%"], 0, "holds", "is not above", "--fail-above 50%"),
        (
            &[&died, &survived, "--fail-above", "12GiB"],
            1,
            "exceeded",
            "too much: the peak of reserved memory",
            "is above 12.00 GiB",
        ),
        // B died: without the error it might have exceeded the bound.
        (&[&survived, &died, "--fail-above", "2%"], 3, "not_known", "is not above", "B died"),
        (&[&survived, &died, "--fail-above", "12GiB"], 3, "not_known", "is not above", "B died"),
        (
            &[&survived, &died, "--fail-above", "10GiB"],
            1,
            "exceeded",
            "too much: the peak of reserved memory",
            "is above 10.00 GiB",
        ),
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
    assert!(help.contains("Allocated memory is not checked"), "{help}");
    let checked = call(&["diff", &survived, "--fail-above", "1TiB"]).out;
    assert!(checked.contains("\n--fail-above checks the peak of reserved memory, not of allocated memory.\n"), "{checked}");
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
        (&gpt2, &died, "; A's is outside the compared steps, and --fail-above PERCENT does not count it."),
        (&gpt2, &died, "out of memory: B: 1 request ran out of memory, the first at entry 7268"),
        // Nothing marks its steps.
        (
            &resnet,
            &resnet_died,
            "steps 0 to 4 of both (unmarked; inferred from what the runs repeat): the peak of reserved memory is the same in each step",
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
    assert!(run.out.starts_with("Reserved memory first reaches its peak, 100.00 MiB, at entry "), "{}", run.out);
    assert!(!run.out.contains("driver calls  ") && run.out.contains("--all"), "{}", run.out);
}

/// A program of steps, each of which holds one more block of so many MiB, requested at a line of `train.py`. `from_us` is the time
/// at which it begins, so that two of them are not one run.
fn steps_at_lines(blocks: &[(u64, u32)], from_us: u64, has_stacks: bool) -> Recording {
    let mut made = recording(Vec::new(), Vec::new());
    for (number, &(mebibytes, line)) in (0..).zip(blocks) {
        let frame = made.stacks.intern_frame(Frame { filename: "train.py".into(), line, name: "forward".into() });
        let stack = if has_stacks { made.stacks.intern_stack(&[frame]) } else { StackId::NONE };
        let (address, bytes, time_us) = (BASE + (number << 30), mebibytes * MIB, from_us + 1_000_000 * number);
        for action in [Action::SegmentAlloc, Action::Alloc] {
            let mut taken = entry(action, address, bytes);
            taken.stack = stack;
            taken.set_time(Some(time_us));
            made.devices[0].trace.push(taken);
        }
        let held = Block { address, size: bytes, requested: Some(bytes), state: BlockState::ActiveAllocated, stack };
        made.devices[0].segments.push(segment(vec![held]));
        made.annotations.extend(["START", "END"].map(|stage| Annotation {
            name: "Optimizer.step#SGD.step".into(),
            stage: stage.into(),
            device: Some(0),
            time_us: Some((time_us + 500_000).cast_signed()),
        }));
    }
    made
}

/// Eight steps that both have, and three more.
fn then(last: [(u64, u32); 3]) -> Vec<(u64, u32)> {
    [&[(2, 9); 8][..], &last].concat()
}

fn before() -> Vec<(u64, u32)> {
    then([(40, 11), (40, 12), (40, 12)])
}

fn after() -> Vec<(u64, u32)> {
    then([(42, 11), (140, 12), (60, 12)])
}

#[test]
fn below_the_verdict_is_where_the_change_begins() {
    let folder = Folder::new("diff-begins");
    let before = folder.recording("before.pickle", &steps_at_lines(&before(), 1_000_000, true));
    let after = folder.recording("after.pickle", &steps_at_lines(&after(), 2_000_000_000, true));
    let run = call(&["diff", &before, &after, "--fail-above", "2%"]);
    let lines: Vec<&str> = run.out.lines().take(5).collect();
    let expected = [
        "too much: the peak of reserved memory, 258.00 MiB (+122.00 MiB, +89.7 %), is above 138.72 MiB (--fail-above 2%); exit code 1",
        "why    B has 122.00 MiB more in use at its peak of reserved memory; what is reserved but unused (fragmentation and cache) is the same",
        "blocks +120.00 MiB in forward train.py:12 (2 blocks in A, 2 in B); +2.00 MiB in all others; together +122.00 MiB",
        "begins in step 9 (counted from 0): B reserves up to 198.00 MiB, A up to 96.00 MiB; before, they differ by at most 2.00 MiB",
        "above  B first exceeds A's peak of 136.00 MiB at entry 19 of B (step 9, 9.000 s after the first entry): forward train.py:12 \
         requests 140.00 MiB",
    ];
    assert_eq!((run.code, lines), (1, expected.to_vec()), "{}{}", run.out, run.err);
    // Without a bound, the same lines are below the headline.
    let plain = call(&["diff", &before, &after]).out;
    assert!(plain.starts_with("B reserves 122.00 MiB more than A") && plain.lines().nth(1) == Some(expected[1]), "{plain}");
    let (_, object) = json(&[&before, &after]);
    let begins = &object["devices"][0]["comparison"]["begins"];
    assert_eq!(
        (&begins["step"]["step"], &begins["crossing"]["entry"], &begins["measure"]),
        (&9.into(), &19.into(), &"reserved".into())
    );
    assert_eq!(begins["crossing"]["stack"][0]["line"], 12, "{begins}");
    // What shrank begins in a step too, but nothing exceeds anything.
    let shrunk = call(&["diff", &after, &before, "--fail-above", "2%"]);
    let lines: Vec<&str> = shrunk.out.lines().take(4).collect();
    let holds = "holds: the peak of reserved memory, 136.00 MiB (-122.00 MiB, -47.3 %), is not above";
    assert!(shrunk.code == 0 && lines[0].starts_with(holds) && lines[0].ends_with("; exit code 0"), "{}", shrunk.out);
    let labels = [lines[1], lines[2], lines[3]].map(|line| line.split(' ').next().unwrap_or_default());
    assert_eq!(labels, ["why", "blocks", "begins"], "{lines:?}");
}

#[test]
fn without_stacks_the_sizes_are_named_and_one_file_names_its_peak() {
    let folder = Folder::new("diff-begins-sizes");
    let first = folder.recording("first.pickle", &steps_at_lines(&before(), 1_000_000, false));
    let second = folder.recording("second.pickle", &steps_at_lines(&after(), 2_000_000_000, false));
    let run = call(&["diff", &first, &second, "--fail-above", "150MiB"]);
    assert!(run.out.contains(": 140.00 MiB is requested (no stack is recorded)"), "{}", run.out);
    assert!(run.out.contains("blocks +140.00 MiB in blocks of 128 MiB to 256 MiB (0 in A, 1 in B); "), "{}", run.out);
    let named = folder.recording("named.pickle", &steps_at_lines(&after(), 1_000_000, true));
    let one = call(&["diff", &named, "--fail-above", "150MiB"]);
    let at = "\nat     the peak of reserved memory, in step 10 (counted from 0), forward train.py:12 requests 60.00 MiB\n";
    assert!(one.code == 1 && one.out.contains(at), "{}", one.out);
}

/// The peak of reserved memory grows because of a hole, while the peak of allocated memory stays the same.
#[test]
fn a_change_of_reserved_memory_is_explained_at_its_own_peak() {
    let folder = Folder::new("diff-begins-reserved");
    let reuses = |kept_mib: u64| {
        // What both request, so that they are recordings of one program.
        let common = BASE - (1 << 30);
        let mut trace = vec![entry(Action::SegmentAlloc, common, 20 * MIB)];
        trace.extend((0..8).map(|place| entry(Action::Alloc, common + place * 2 * MIB, 2 * MIB)));
        trace.extend([entry(Action::SegmentAlloc, BASE, 100 * MIB), entry(Action::Alloc, BASE, 100 * MIB)]);
        trace.extend(free(BASE, 100 * MIB));
        trace.push(entry(Action::Alloc, BASE, kept_mib * MIB));
        let mut segments = vec![segment(vec![used(BASE, kept_mib * MIB), unused(BASE + kept_mib * MIB, (100 - kept_mib) * MIB)])];
        if kept_mib > 40 {
            trace.extend([entry(Action::SegmentAlloc, OTHER, 60 * MIB), entry(Action::Alloc, OTHER, 60 * MIB)]);
            segments.push(segment(vec![used(OTHER, 60 * MIB)]));
        } else {
            trace.push(entry(Action::Alloc, BASE + kept_mib * MIB, 60 * MIB));
            segments = vec![segment(vec![used(BASE, kept_mib * MIB), used(BASE + kept_mib * MIB, 60 * MIB)])];
        }
        let blocks = (0..8).map(|place| used(common + place * 2 * MIB, 2 * MIB));
        segments.push(segment(blocks.chain([unused(common + 16 * MIB, 4 * MIB)]).collect()));
        recording(trace, segments)
    };
    let (a, b) = (folder.recording("a.pickle", &reuses(40)), folder.recording("b.pickle", &reuses(41)));
    let run = call(&["diff", &a, &b]);
    for said in [
        "why    B has 59.00 MiB more reserved but unused (fragmentation and cache), and 1.00 MiB more in use, at its peak",
        "above  B first exceeds A's peak of 120.00 MiB at entry 15 of B: 60.00 MiB is requested",
        "held at the peak of reserved memory",
        "+59.00 MiB",
    ] {
        assert!(run.out.contains(said), "{said}: {}{}", run.out, run.err);
    }
}
