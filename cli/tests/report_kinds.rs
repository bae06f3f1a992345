//! Who holds the memory, as `parkade report` shows it: by kind, as a flamegraph, as folded stacks.

use std::fs;

use crate::common::pages::{page, pieces_with};
use crate::common::{Folder, call, good};
use parkade_recording::Frame;
use serde_json::Value;

fn shipped(name: &str) -> String {
    format!("{}/../conformance/recordings/{name}.pickle.xz", env!("CARGO_MANIFEST_DIR"))
}

/// Writes the flamegraph and the folded stacks; returns both.
fn flame(folder: &Folder, file: &str) -> (String, String) {
    let (picture, folded) = (format!("{}/peak.svg", folder.path()), format!("{}/peak.txt", folder.path()));
    let run = call(&["report", file, "--flamegraph", &picture, "--folded", &folded]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(run.out.lines().count() == 2 && run.out.contains("peak.svg") && run.out.contains("peak.txt"), "{}", run.out);
    (fs::read_to_string(&picture).expect("a picture"), fs::read_to_string(&folded).expect("folded stacks"))
}

/// The bytes of folded stacks.
fn bytes(folded: &str) -> u64 {
    folded.lines().map(|line| line.rsplit_once(' ').expect("a number").1.parse::<u64>().expect("bytes")).sum()
}

#[test]
fn kinds_add_up_to_the_peak_and_say_how_they_were_told() {
    let run = call(&["report", "--json", &shipped("gpt2_varlen.frames_tail20k")]);
    let object: Value = serde_json::from_str(&run.out).expect("one object");
    let device = &object["devices"][0];
    let kinds = device["holders_by_kind"].as_array().expect("kinds");
    let sum = |list: &[Value]| list.iter().map(|held| held["bytes"].as_u64().expect("bytes")).sum::<u64>();
    assert_eq!(device["peak_allocated_bytes"], sum(kinds));
    for kind in kinds {
        assert_eq!(kind["bytes"], sum(kind["told_by"].as_array().expect("how")), "{kind}");
        assert_eq!(kind["kind"] == "unknown", kind["told_by"][0]["how"] == "not_told", "{kind}");
    }
    assert_eq!((&device["passes"], &kinds[0]["kind"]), (&6.into(), &"activations".into()));
    assert_eq!(device["holders_without_stack"]["early_blocks"], 445);
    let text = call(&["report", &shipped("gpt2_varlen.frames_tail20k")]).out;
    assert!(text.contains("what kinds of blocks these are (6 forward passes with their backward passes were found)"), "{text}");
    assert!(text.contains("296 x  optimizer states  by size"), "{text}");
    assert!(text.contains("without a stack: 1.43 GiB in 445 blocks from before the first entry"), "{text}");
}

/// If steps are known, from marks or from repetition, kinds say whether they live across them.
#[test]
fn kinds_are_told_against_the_steps() {
    let device = |name: &str| -> Value {
        let object: Value = serde_json::from_str(&call(&["report", "--json", &shipped(name)]).out).expect("one object");
        object["devices"][0].clone()
    };
    for (name, told_by, count) in [("gpt2_varlen.limit16_gc", "annotation", 4), ("resnet50_sweep.default", "repetition", 6)] {
        let device = device(name);
        assert_eq!((&device["steps"]["told_by"], &device["steps"]["count"]), (&told_by.into(), &count.into()), "{name}");
        for used in device["holders_by_kind"].as_array().expect("kinds") {
            let (across, within) = (&used["across_steps_bytes"], &used["within_step_bytes"]);
            match used["kind"].as_str().expect("a kind") {
                "parameters" | "optimizer_states" => assert_eq!(across, &used["bytes"], "{name}: {used}"),
                "temporaries" => assert_eq!(within, &used["bytes"], "{name}: {used}"),
                // A loss that the program names is carried.
                "activations" => {
                    assert!(within.as_u64() > used["bytes"].as_u64().map(|bytes| bytes / 100 * 99), "{name}: {used}");
                }
                _ => {}
            }
        }
        let text = call(&["report", &shipped(name)]).out;
        assert!(text.contains(&format!("\n{count} steps, ")) && text.contains("within one step"), "{text}");
    }
    let none = device("deep_mlp.default");
    assert!(none["steps"].is_null(), "two steps are too few to be told by repetition");
    let lives = |used: &Value| [used["across_steps_bytes"].clone(), used["within_step_bytes"].clone()];
    assert!(none["holders_by_kind"].as_array().expect("kinds").iter().all(|used| lives(used) == [0, 0]));
}

/// The page has the kinds of all its blocks, in its table and for its script, even if it shows only some points in time.
#[test]
fn a_page_has_the_kinds_of_its_blocks() {
    let folder = Folder::new("kinds-page");
    let file = shipped("resnet50_sweep.default");
    let object: Value = serde_json::from_str(&call(&["report", "--json", &file]).out).expect("one object");
    let (device, unknown) = (&object["devices"][0], Value::from(8));
    for more in [&[][..], &["--page-size", "164KiB"]] {
        let page = page(&folder, &file, more);
        let (data, log, told) = pieces_with(&page, "block_told").swap_remove(0);
        assert_eq!(told.len(), log.blocks.len());
        let peak = data["peak_allocated"].as_u64().expect("a moment") as u32;
        for used in device["holders_by_kind"].as_array().expect("kinds") {
            let kinds = data["palette"]["kinds"].as_array().expect("kinds");
            let place = kinds.iter().position(|kind| kind[0] == used["kind"]).expect("a kind");
            let live = log.blocks.iter().zip(&told).filter(|(block, _)| block.born <= peak && peak < block.freed);
            let of_kind = live.filter(|(_, told)| data["told"][**told as usize][0] == place);
            assert_eq!(of_kind.map(|(block, _)| block.size).sum::<u64>(), used["bytes"], "{used}");
        }
        assert!(data["told"].as_array().expect("kinds").iter().any(|told| told[0] != unknown));
        assert!(
            page.contains(
                "<td class=\"what\">activations<span class=\"called\">by the order of frees, lifetime; within one step"
            )
        );
        assert!(page.contains(
            "By kind: 7 forward passes with their backward passes were found; 6 steps, inferred from what the run repeats."
        ));
    }
}

#[test]
fn a_flamegraph_has_all_of_the_peak() {
    let folder = Folder::new("flame-stacks");
    let (picture, folded) = flame(&folder, &shipped("gpt2_varlen.frames_tail20k"));
    assert_eq!(bytes(&folded), 10_744_181_248);
    assert!(folded.lines().any(|line| line.starts_with("<module> (train.py:158);gpt2_varlen (train.py:48);")), "{folded}");
    assert!(picture.contains("made by parkade report") && picture.contains("10,744,181,248 bytes, 100.00 %"));
    assert!(picture.contains("data-name=\"gpt2_varlen (train.py:48)\"") && !picture.contains("has no stacks"));
    let number = |frame: &str, name: &str| -> f64 {
        let rest = frame.split_once(&format!("data-{name}=\"")).expect("an attribute").1;
        rest.split('"').next().and_then(|text| text.parse().ok()).expect("a number")
    };
    let frames: Vec<(f64, f64)> =
        picture.split("<g class=\"frame\"").skip(1).map(|frame| (number(frame, "x"), number(frame, "w"))).collect();
    assert!(frames.len() > 40, "{frames:?}");
    let (left, width) = frames[0];
    assert!(frames.iter().all(|&(x, w)| x >= left && x + w <= left + width + 0.1), "{frames:?}");
}

#[test]
fn a_flamegraph_of_the_default_stacks_has_no_machinery() {
    let folder = Folder::new("flame-native");
    let (picture, folded) = flame(&folder, &shipped("stacks/saved_hooks_packing.all_oom"));
    assert!(folded.lines().any(|line| line.starts_with("backward pass;autograd LogsumexpBackward0;aten::exp ")), "{folded}");
    assert!(folded.contains(";aten::mm;<lambda> (<string>:60);aten::to;aten::_to_copy "), "{folded}");
    for machinery in ["gather_with_cpp", "CachingAllocator", "_call_impl", "_PyEval", "redispatch", "__libc"] {
        assert!(!folded.contains(machinery) && !picture.contains(machinery), "{machinery}: {folded}");
    }
}

#[test]
fn without_stacks_kinds_and_sizes_stand_for_calls() {
    let folder = Folder::new("flame-kinds");
    let (picture, folded) = flame(&folder, &shipped("deep_mlp.default"));
    assert_eq!(bytes(&folded), 2_756_314_112);
    assert!(folded.contains("[gradients];[blocks of 64 to 128 MiB] 1342177280\n"), "{folded}");
    assert!(picture.contains("the file has no stacks, so kinds and sizes of blocks take the place of calls"));
}

#[test]
fn names_of_frames_stay_text() {
    let folder = Folder::new("flame-names");
    let mut hostile = good();
    let name = "</title><script>alert(1)</script>\";x\n]]>";
    let frame = hostile.stacks.intern_frame(Frame { filename: name.into(), line: 1, name: name.into() });
    let stack = hostile.stacks.intern_stack(&[frame]);
    hostile.devices[0].trace.iter_mut().for_each(|entry| entry.stack = stack);
    let file = folder.recording("hostile.pickle", &hostile);
    let (picture, folded) = flame(&folder, &file);
    assert_eq!(picture.matches("<script>").count(), 1, "the picture's own");
    assert_eq!(picture.matches("]]>").count(), 1);
    assert_eq!((folded.lines().count(), folded.matches(';').count()), (1, 0), "{folded}");
}

#[test]
fn targets_are_told_apart_and_not_overwritten() {
    let folder = Folder::new("flame-targets");
    let file = folder.recording("run.pickle", &good());
    let target = format!("{}/out", folder.path());
    let run = call(&["report", &file, "--flamegraph", &target, "--folded", &target]);
    assert!(run.code == 2 && run.err.contains("--flamegraph and --folded would both be written to"), "{}", run.err);
    let run = call(&["report", &file, "--flamegraph", &file, "--force"]);
    assert!(run.code == 2 && run.err.contains("the output is the input file"), "{}", run.err);
    let precious = folder.file("precious.txt", b"mine");
    let run = call(&["report", &file, "--folded", &precious]);
    assert!(run.code == 2 && run.err.contains("--force overwrites it"), "{}", run.err);
    assert_eq!(fs::read(&precious).expect("a file"), b"mine");
}
