//! `parkade replay`: what people and programs read, exit codes, limits, settings, time; and a few outcomes of real runs.

use crate::common::*;
use parkade_recording::{Action, DeviceRecording, Recording};
use serde_json::Value;

/// Two 60 MiB blocks in place of one 100 MiB block: they share its segment unless it may not be split.
fn program() -> Recording {
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 100 * MIB), entry(Action::Alloc, BASE, 100 * MIB)];
    trace.extend(free(BASE, 100 * MIB));
    let other = BASE + (1 << 30);
    trace.extend([
        entry(Action::Alloc, BASE, 60 * MIB),
        entry(Action::SegmentAlloc, other, 60 * MIB),
        entry(Action::Alloc, other, 60 * MIB),
    ]);
    let first = segment(vec![used(BASE, 60 * MIB), unused(BASE + 60 * MIB, 40 * MIB)]);
    recording(trace, vec![first, segment(vec![used(other, 60 * MIB)])])
}

fn json(arguments: &[&str]) -> (i32, Value) {
    let run = call(&[&["replay", "--json"], arguments].concat());
    (run.code, serde_json::from_str(run.out.trim_end()).unwrap_or_else(|_| panic!("no JSON: {}{}", run.out, run.err)))
}

/// A recording of the repository.
fn shipped(name: &str) -> String {
    format!("{}/../conformance/recordings/{name}.pickle.xz", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn its_own_settings_give_its_own_peaks() {
    let folder = Folder::new("replay-own");
    let run = call(&["replay", &folder.recording("program.pickle", &program())]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(
        lines[..9],
        [
            "at most 160.00 MiB reserved; without --limit or --capacity nothing is refused",
            "program.pickle",
            "  settings        default settings",
            "  fits            -",
            "  oom             0",
            "  peak allocated  120.00 MiB",
            "  peak reserved   160.00 MiB",
            "  retries         0",
            "  driver calls    2",
        ]
    );
    assert!(lines[9].starts_with("  driver time     0."), "{}", run.out);
    assert_eq!(lines[10..], ["recorded: at most 160.00 MiB reserved", "recorded by PyTorch 2.10 to 2.15"]);
}

#[test]
fn other_settings_limits_and_devices_give_other_peaks() {
    let folder = Folder::new("replay-other");
    let file = folder.recording("program.pickle", &program());
    let (code, own) = json(&[&file]);
    assert_eq!((code, &own["fits"], &own["settings"]), (0, &true.into(), &"".into()));
    assert_eq!((&own["ooms"], &own["retries"], &own["driver_calls"]), (&0.into(), &0.into(), &2.into()));
    assert_eq!((&own["fails_at_entry"], &own["recorded"]["peak_reserved_bytes"]), (&Value::Null, &(160 * MIB).into()));
    let (code, expandable) = json(&[&file, "--settings", "expandable_segments:True"]);
    assert_eq!((code, &expandable["peak_reserved_bytes"]), (0, &(120 * MIB).into()));
    assert_eq!(expandable["settings"], "expandable_segments:True");
    for size in ["--limit", "--capacity"] {
        let (code, tight) = json(&[&file, size, "130MiB"]);
        assert_eq!((code, &tight["fits"], &tight["ooms"], &tight["fails_at_entry"]), (1, &false.into(), &1.into(), &6.into()));
        assert_eq!(tight["limit_bytes"], 130 * MIB);
        let (code, _) = json(&[&file, size, "130MiB", "--settings", "expandable_segments:True"]);
        assert_eq!(code, 0);
    }
    let (code, both) = json(&[&file, "--capacity", "1GiB", "--limit", "130MiB"]);
    assert_eq!((code, &both["capacity_bytes"], &both["limit_bytes"]), (1, &(1024 * MIB).into(), &(130 * MIB).into()));
    let (code, part) = json(&[&file, "--capacity", "260MiB", "--settings", "per_process_memory_fraction:0.5"]);
    assert_eq!((code, &part["limit_bytes"]), (1, &(130 * MIB).into()));
    let run = call(&["replay", &file, "--limit", "130MiB"]);
    assert!(run.out.starts_with("it does not fit: it runs out of memory at entry 6\n"), "{}", run.out);
}

/// For a run that survived one error and died of another, the second is the one that ended it.
#[test]
fn a_run_fails_where_it_died() {
    let folder = Folder::new("replay-died-later");
    let mut run = program();
    let trace = &mut run.devices[0].trace;
    let third = BASE + (2 << 30);
    trace.push(entry(Action::Oom, 1 << 40, 70 * MIB));
    trace.extend([entry(Action::SegmentAlloc, third, 46 * MIB), entry(Action::Alloc, third, 46 * MIB)]);
    trace.extend(free(third, 46 * MIB));
    trace.push(entry(Action::Alloc, third, 46 * MIB));
    let death = trace.len();
    trace.push(entry(Action::Oom, 1 << 40, 50 * MIB));
    run.devices[0].segments.push(segment(vec![used(third, 46 * MIB)]));
    let file = folder.recording("run.pickle", &run);
    let (code, object) = json(&[&file, "--limit", "210MiB"]);
    assert_eq!((code, &object["endings"][0], &object["fails_at_entry"]), (1, &"died".into(), &death.into()), "{object}");
    let advised = call(&["advise", "--all", "--json", &file, "--limit", "210MiB", "--settings", "", "--only"]);
    let advised: Value = serde_json::from_str(advised.out.trim_end()).expect("JSON");
    assert_eq!(
        (&advised["options"][0]["fails_at_entry"], &advised["cause"]["entry"]),
        (&death.into(), &death.into()),
        "{advised}"
    );
    // In less memory it fails where the recorded run did not.
    let (_, less) = json(&[&file, "--limit", "130MiB"]);
    let advised = call(&["advise", "--all", "--json", &file, "--limit", "130MiB", "--settings", "", "--only"]);
    let advised: Value = serde_json::from_str(advised.out.trim_end()).expect("JSON");
    let own = &advised["options"][0]["fails_at_entry"];
    assert_eq!((&less["fails_at_entry"], own, &advised["cause"]["entry"]), (&6.into(), &6.into(), &6.into()), "{advised}");
    let reported = call(&["report", &file, "--limit", "210MiB"]);
    let said = reported.out.replace('\n', " ");
    assert!(said.contains(&format!("Out of memory at entry {death}: ")), "{said}");
    assert!(said.contains("1 request failed before, and the run continued."), "{said}");
}

#[test]
fn streams_that_delay_a_free_give_a_range() {
    let folder = Folder::new("replay-timing");
    let other = BASE + (1 << 30);
    let trace = vec![
        entry(Action::SegmentAlloc, BASE, 50 * MIB),
        entry(Action::Alloc, BASE, 50 * MIB),
        entry(Action::FreeRequested, BASE, 50 * MIB),
        entry(Action::SegmentAlloc, other, 50 * MIB),
        entry(Action::Alloc, other, 50 * MIB),
        entry(Action::FreeCompleted, BASE, 50 * MIB),
        entry(Action::Alloc, BASE, 50 * MIB),
    ];
    let segments = vec![segment(vec![used(BASE, 50 * MIB)]), segment(vec![used(other, 50 * MIB)])];
    let file = folder.recording("streams.pickle", &recording(trace, segments));
    let (code, object) = json(&[&file]);
    let keys = ["peak_reserved_bytes_earliest", "peak_reserved_bytes", "peak_reserved_bytes_latest"];
    assert_eq!((code, keys.map(|key| object[key].as_u64().map(|bytes| bytes / MIB))), (0, [Some(100), Some(100), Some(150)]));
    let run = call(&["replay", &file]);
    let words = |run: &Run| run.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "the peak of reserved memory is 100.00 MiB if each completes by the next request, 150.00 MiB if each completes only \
         where";
    assert!(words(&run).contains(said), "{}", run.out);
    assert_eq!((&object["peak_reserved_bytes_are_likely"], &object["timings_fit"]), (&false.into(), &Value::Null));
    // If the first block were complete earlier, the second would be placed in it, and the third would find no
    // room. The answer mentions this.
    let trace = vec![
        entry(Action::SegmentAlloc, BASE, 50 * MIB),
        entry(Action::Alloc, BASE, 50 * MIB),
        entry(Action::FreeRequested, BASE, 50 * MIB),
        entry(Action::SegmentAlloc, other, 30 * MIB),
        entry(Action::Alloc, other, 30 * MIB),
        entry(Action::FreeCompleted, BASE, 50 * MIB),
        entry(Action::Alloc, BASE, 50 * MIB),
    ];
    let segments = vec![segment(vec![used(BASE, 50 * MIB)]), segment(vec![used(other, 30 * MIB)])];
    let file = folder.recording("depends.pickle", &recording(trace, segments));
    let (code, object) = json(&[&file, "--limit", "90MiB"]);
    let (fit, tried) = (object["timings_fit"].as_u64().expect("a number"), object["timings_tried"].as_u64());
    assert_eq!((code, &object["fits"], &object["fits_earliest"], tried), (0, &true.into(), &false.into(), Some(9)), "{object}");
    assert!((1..9).contains(&fit), "{object}");
    let run = call(&["replay", &file, "--limit", "90MiB"]);
    let said = format!("it fits with the recorded timing, but with only {fit} of 9 other timings that were tried");
    assert!(words(&run).contains(&said), "{said}: {}", run.out);
}

#[test]
fn several_devices_are_told_apart() {
    let folder = Folder::new("replay-devices");
    let mut both = program();
    let second = DeviceRecording { device: 3, ..good().devices[0].clone() };
    both.devices.push(second);
    let file = folder.recording("both.pickle", &both);
    let (code, object) = json(&[&file, "--limit", "130MiB"]);
    assert_eq!((code, &object["fits"], &object["fails_at_entry"]), (1, &false.into(), &6.into()));
    assert_eq!((&object["devices"][0]["fits"], &object["devices"][1]["fits"]), (&false.into(), &true.into()));
    assert_eq!((&object["devices"][1]["device"], &object["peak_reserved_bytes"]), (&3.into(), &(120 * MIB).into()));
    let run = call(&["replay", &file, "--limit", "130MiB"]);
    assert!(run.out.contains("\n3       default settings   yes ") && run.out.contains("\ndevice 3\n  recorded: "), "{}", run.out);
    let verdict = "it does not fit: device 0 runs out of memory first, at entry 6\nboth.pickle\ndevice ";
    assert!(run.out.starts_with(verdict) && run.out.contains("\n0 "), "{}", run.out);
}

#[test]
fn what_cannot_be_replayed_is_said_in_one_line() {
    let folder = Folder::new("replay-bad");
    let file = folder.recording("program.pickle", &program());
    let empty = folder.recording("empty.pickle", &Recording::default());
    let nonsense = folder.file("nonsense.pickle", b"nonsense");
    let refused: [(&[&str], &str); 6] = [
        (&[&file, "--settings", "max_split:3"], "Unrecognized key 'max_split' in CUDA allocator config."),
        (&[&file, "--settings", "max_split_size_mb:3"], "max_split_size_mb"),
        (&[&file, "--settings", "per_process_memory_fraction:0.5"], "--capacity gives"),
        (&[&empty], "no trace entries to replay"),
        (&[&nonsense], "nonsense.pickle"),
        (&["missing.pickle"], "cannot be read"),
    ];
    for (arguments, text) in refused {
        let run = call(&[&["replay"], arguments].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
        assert!(run.err.starts_with("parkade: ") && run.err.lines().count() == 1 && run.err.contains(text), "{}", run.err);
        let (code, object) = json(arguments);
        assert!(code == 2 && object["error"].is_string(), "{object}");
    }
    assert_eq!(call(&["replay", &file, "--limit", "many"]).code, 2);
    let help = call(&["replay", "--help"]).out;
    assert!(help.contains("Examples:") && help.contains("Exit code: 0 it fits"), "{help}");
}

/// The state before the first entry is requested before it.
#[test]
fn a_recording_that_lost_its_beginning_is_replayed() {
    let folder = Folder::new("replay-lost");
    let mut cut = program();
    cut.devices[0].trace.drain(..5);
    let (code, object) = json(&[&folder.recording("cut.pickle", &cut)]);
    assert_eq!((code, &object["recorded"]["lost_beginning"]["blocks"]), (0, &1.into()));
    assert_eq!(object["peak_reserved_bytes"], 120 * MIB, "the 100 MiB that made the first segment are not known");
    // What was reserved before is stated if it is more than the file's requests need, and then it counts.
    cut.devices[0].trace.truncate(0);
    cut.devices[0].trace.extend(free(OTHER, 60 * MIB));
    cut.devices[0].segments.pop();
    cut.devices[0].segments.push(segment(vec![unused(OTHER, 60 * MIB)]));
    let file = folder.recording("most-before.pickle", &cut);
    let said = |limit: &str| {
        let run = call(&["replay", &file, "--limit", limit]);
        (run.code, run.out.lines().next().unwrap_or_default().to_owned())
    };
    let before = "judging by what is in the file, it fits, although the run had reserved 160.00 MiB before its first entry";
    assert_eq!(said("200MiB"), (0, before.to_owned()));
    let hidden = "not known: what is in the file fits, but what came before its first entry needed more than is available";
    assert_eq!(said("150MiB"), (3, hidden.to_owned()));
    // What is in the file does not fit in less than it holds, no matter what came before.
    let advised = call(&["advise", "--all", &file, "--limit", "50MiB"]);
    assert_eq!((advised.code, said("50MiB").0), (1, 1), "{}", advised.out);
    assert!(
        advised.out.contains("Capacity: the program holds 120.00 MiB at once, and 50.00 MiB is available"),
        "{}",
        advised.out
    );
    let (_, object) = json(&[&file, "--limit", "150MiB"]);
    assert_eq!(
        (&object["outcome"], &object["recorded"]["lost_beginning"]["reserved_bytes"]),
        (&"unknown".into(), &(160 * MIB).into())
    );
}

/// Two blocks from before the first entry are requested again, each in its own segment, although the run had both in one.
#[test]
fn what_the_recorded_run_did_within_the_limit_stands_against_its_replay() {
    let folder = Folder::new("replay-as-recorded");
    let mut trace = free(BASE, 11 * MIB).to_vec();
    trace.push(entry(Action::Alloc, BASE, 11 * MIB));
    let both = segment(vec![used(BASE, 11 * MIB), used(BASE + 11 * MIB, 11 * MIB)]);
    let file = folder.recording("run.pickle", &recording(trace, vec![both]));
    let (verified, limit) = (verify(&file), ["--limit", "22MiB"]);
    assert_eq!(verified.code, 0, "{}", verified.out);
    let (code, object) = json(&[&[&*file], &limit[..]].concat());
    assert_eq!((code, &object["outcome"], &object["fits"]), (0, &"fits".into(), &true.into()), "{object}");
    assert_eq!(
        (&object["ooms"], &object["fails_at_entry"], &object["retries"]),
        (&0.into(), &Value::Null, &0.into()),
        "{object}"
    );
    assert_eq!(object["peak_reserved_bytes"], 22 * MIB, "{object}");
    let text = call(&[&["replay", &file], &limit[..]].concat()).out;
    assert!(
        text.contains(" yes\n") && text.starts_with("judging by what is in the file, it fits as it is: the recorded run did\n"),
        "{text}"
    );
    let advised = call(&[&["advise", "--all", &file], &limit[..]].concat());
    assert!(advised.code == 0 && advised.out.contains("it fits in 22.00 MiB as it is: the recorded run did"), "{}", advised.out);
    // The recorded run says nothing about other settings or less memory.
    for (settings, limit) in [("max_split_size_mb:21", "22MiB"), ("", "20MiB")] {
        let (code, object) = json(&[&file, "--settings", settings, "--limit", limit]);
        assert_eq!((code, &object["fits"]), (1, &false.into()), "{settings} in {limit}: {object}");
    }
}

/// Outcomes and peaks of runs on a real H200, from the recording of the same program under default settings.
#[test]
fn real_outcomes_are_predicted() {
    let outcomes = [
        ("gpt2_varlen", "max_split_size_mb:128", "15.2062GiB", false, None),
        ("gpt2_varlen", "", "15.7204GiB", false, Some(16_703_815_680_u64)),
        ("gpt2_varlen", "max_split_size_mb:128", "15.7204GiB", true, Some(16_852_713_472)),
        ("gpt2_varlen", "garbage_collection_threshold:0.8,max_split_size_mb:64", "15.2062GiB", false, Some(15_036_579_840)),
        ("gpt2_varlen", "garbage_collection_threshold:0.8,max_split_size_mb:64", "16.4550GiB", true, Some(16_678_649_856)),
        ("gpt2_varlen", "expandable_segments:True", "14.9124GiB", true, Some(15_875_440_640)),
        ("prefetch_streams", "", "4.2985GiB", false, None),
        ("prefetch_streams", "garbage_collection_threshold:0.8,max_split_size_mb:64", "4.2985GiB", true, Some(4_555_014_144)),
        ("prefetch_streams", "expandable_segments:True", "4.5315GiB", true, Some(4_806_672_384)),
    ];
    for (program, settings, limit, fits, peak) in outcomes {
        let (_, object) = json(&[&shipped(&format!("{program}.default")), "--settings", settings, "--limit", limit]);
        assert_eq!(object["fits"], fits, "{program} {settings} {limit}");
        let expected = peak.map_or_else(|| object["peak_reserved_bytes"].clone(), Into::into);
        assert_eq!(object["peak_reserved_bytes"], expected, "{program} {settings} {limit}");
    }
}

#[test]
fn the_newer_version_decides_by_its_own_rules() {
    let folder = Folder::new("replay-profile");
    let file = folder.recording("program.pickle", &program());
    let newer = ["--settings", "throw_on_cudamalloc_oom:True", file.as_str()];
    let run = call(&[&["replay"], &newer[..]].concat());
    assert_eq!(run.code, 2, "2.11 does not have this setting: {}", run.err);
    let (code, object) = json(&[&["--profile", "2.15"], &newer[..]].concat());
    assert_eq!((code, object["profile"].as_str()), (0, Some("2.15")), "{object}");
    // The limit is a fraction of the capacity, which 2.11 rounds down and 2.15 to the nearest.
    let limit = |profile| {
        let arguments = ["--profile", profile, "--settings", "per_process_memory_fraction:0.4", "--capacity", "1073741824"];
        json(&[&arguments[..], &[file.as_str()]].concat()).1["limit_bytes"].clone()
    };
    assert_eq!((limit("2.11"), limit("2.15")), (429_496_729.into(), 429_496_730.into()));
}
