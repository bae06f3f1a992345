//! `parkade verify` on good and diverging recordings: what people read, exit codes, options, time.

use std::process::Stdio;

use crate::common::*;
use parkade_recording::{Action, DeviceRecording, RecordedSettings, Recording, Style, write};

#[test]
fn a_good_recording_gives_a_short_table() {
    let folder = Folder::new("verify-good");
    let file = folder.recording("good.pickle", &good());
    let run = call(&["verify", "--all", &file]);
    assert_eq!(run.code, 0, "{}", run.err);
    let lines: Vec<&str> = run.out.lines().collect();
    let verdict = "every decision is the same: all 9, as PyTorch 2.10 to 2.15 made them";
    assert_eq!(lines[..2], [verdict, ""]);
    assert_eq!(lines[2], "recording    entries  decisions  mismatches  oom  peak allocated  peak reserved  seconds");
    assert!(lines[3].starts_with("good.pickle        5          9           0    0        8.00 MiB      20.00 MiB     0."));
    assert_eq!(lines[4..], ["", "good.pickle", "  recorded by PyTorch 2.10 to 2.15"]);
    // Nobody asked for more.
    assert_eq!(call(&["verify", &file]).out, format!("{verdict}\n"));
    let mut last = good();
    last.devices[0].trace.drain(..4);
    let beside = call(&["verify", &file, &folder.recording("last.pickle", &last)]);
    let said =
        "every decision is the same: all 9 in 1 recording, as PyTorch 2.10 to 2.15 made them; 1 file has no history to verify\n";
    assert_eq!((beside.code, beside.out.as_str()), (3, said));
    let both = call(&["verify", &file, &folder.recording("other.pickle", &good())]).out;
    assert_eq!(both, "every decision is the same: all 18 in 2 recordings, as PyTorch 2.10 to 2.15 made them\n");
}

/// The last of many entries is the state at the end, and nothing that led to it.
#[test]
fn of_a_file_without_a_history_nothing_is_claimed() {
    let folder = Folder::new("verify-one-entry");
    let mut last = good();
    last.devices[0].trace.drain(..4);
    let claim = "nothing to verify: the history is not in this file; record it with torch.cuda.memory._record_memory_history()\n";
    let mut none = good();
    none.devices[0].trace.clear();
    for (name, entries, recording) in [("last.pickle", 1, &last), ("none.pickle", 0, &none)] {
        let file = folder.recording(name, recording);
        let run = call(&["verify", "--all", &file]);
        assert_eq!((run.code, run.err.as_str()), (3, ""), "{}", run.out);
        assert!(run.out.starts_with(claim) && !run.out.contains("every decision"), "{}", run.out);
        let json = call(&["verify", "--all", "--json", &file]);
        let object: serde_json::Value = serde_json::from_str(json.out.trim_end()).expect("JSON");
        assert_eq!((json.code, &object["entries"]), (3, &entries.into()));
        for command in ["diagnose", "advise", "report"] {
            let run = call(&[command, &file]);
            assert!(run.code == 0 || (command, run.code) == ("advise", 3), "{command}: {}", run.err);
            assert!(run.out.to_lowercase().contains("the file has no history"), "{command}: {}", run.out);
            for claim in ["exact: ", "every decision", "no failure is recorded", "othing failed", "nothing was refused"] {
                assert!(!run.out.contains(claim), "{command} says {claim:?}: {}", run.out);
            }
        }
    }
    // An out-of-memory error says what failed, but there is no decision to verify.
    last.devices[0].trace[0] = entry(Action::Oom, MIB, 64 * MIB);
    let file = folder.recording("oom.pickle", &last);
    for command in ["diagnose", "advise", "report"] {
        let run = call(&[command, &file]);
        assert!(run.code != 2 && !run.out.contains("every decision") && !run.out.contains("exact: "), "{command}: {}", run.out);
    }
}

#[test]
fn a_divergence_is_shown_with_its_history() {
    let folder = Folder::new("verify-diverging");
    let run = verify(&folder.recording("other.pickle", &diverging()));
    assert_eq!(run.code, 1, "{}", run.err);
    let expected = "  first difference, entry 2:
    recorded  alloc at 0x7f0000600000 of 3145728 bytes on stream 0x0
    replayed  alloc at 0x7f0000500000 of 3145728 bytes on stream 0x0
    before that, on both sides, at 0x7f0000600000: nothing
    before that, on both sides, at 0x7f0000500000: nothing
";
    assert!(run.out.starts_with("the recording differs\n\n") && run.out.ends_with(expected), "{}", run.out);
}

#[test]
fn differences_without_an_address_show_no_made_up_one() {
    let folder = Folder::new("verify-oom");
    let mut oom = good();
    oom.devices[0].trace.push(entry(Action::Oom, 123_456, 2 * MIB));
    let run = verify(&folder.recording("oom.pickle", &oom));
    assert_eq!(run.code, 1);
    assert!(run.out.contains("    recorded  oom of 2097152 bytes on stream 0x0\n"), "{}", run.out);
    assert!(!run.out.contains("0x1e240"), "{}", run.out);
    let trace = vec![entry(Action::SegmentAlloc, BASE, 24 * MIB), entry(Action::Alloc, BASE, 5 * MIB)];
    let size = recording(trace, vec![segment(vec![used(BASE, 5 * MIB), unused(BASE + 5 * MIB, 19 * MIB)])]);
    let run = verify(&folder.recording("size.pickle", &size));
    let text = "    replayed  segment_alloc of 20971520 bytes on stream 0x0, at a separate address\n";
    assert!(run.code == 1 && run.out.contains(text), "{}", run.out);
}

#[test]
fn several_files_and_devices_are_told_apart() {
    let folder = Folder::new("verify-several");
    let good_file = folder.recording("good.pickle", &good());
    let bad_file = folder.file("bad.pickle", b"nonsense");
    let other = folder.recording("other.pickle", &diverging());
    let run = call(&["verify", "--all", &bad_file, &good_file, &other]);
    assert_eq!(run.code, 2);
    assert!(run.out.starts_with("1 of 2 recordings differs; 1 could not be verified\n"), "{}", run.out);
    assert_eq!(run.err.lines().count(), 1);
    let json = call(&["verify", "--all", "--json", &bad_file, &good_file]);
    assert_eq!((json.code, json.out.lines().count()), (2, 2));
    let mut two = good();
    two.devices.push(DeviceRecording { device: 1, ..two.devices[0].clone() });
    let run = verify(&folder.recording("two.pickle", &two));
    assert!(run.code == 0 && run.out.contains("\ntwo.pickle device 1 "), "{}", run.out);
    two.devices[1].trace.remove(1);
    refused(&folder.recording("two.pickle", &two), "device 1: entry 2: free_requested");
    let run = call(&["verify", "--all", &good_file, &format!("{}/./good.pickle", folder.path())]);
    assert!(run.out.lines().filter(|line| line.contains("/good.pickle  ")).count() == 2, "{}{}", run.out, run.err);
}

#[test]
fn settings_come_from_the_file_or_the_caller() {
    let folder = Folder::new("verify-settings");
    let with = |settings: Option<RecordedSettings>| Recording { settings, ..good() };
    let only = |text: &str| with(Some(RecordedSettings { text: Some(text.to_owned()), ..RecordedSettings::default() }));
    refused(&folder.recording("bogus", &only("bogus:1")), "settings string \"bogus:1\": Unrecognized key 'bogus'");
    refused(&folder.recording("long", &only(&"x".repeat(100_000))), "...\": ");
    refused(&folder.recording("lines", &only("a\nb\x1b[31m")), "PyTorch rejects the recording's settings string");
    let refused_string = RecordedSettings { text: Some("bogus:1".to_owned()), ..default_settings() };
    let run = verify(&folder.recording("values", &with(Some(refused_string))));
    assert!(run.code == 0 && run.out.contains("string \"bogus:1\" is refused ("), "{}", run.out);
    let run = verify(&folder.recording("none", &with(None)));
    assert!(run.out.contains("not in the file: the settings; the default settings are assumed"), "{}", run.out);
    let collecting = RecordedSettings { garbage_collection_threshold: Some(0.9), ..default_settings() };
    let collecting = folder.recording("gc", &with(Some(collecting)));
    let run = verify(&collecting);
    assert!(run.out.contains("not in the file: the memory limit, without which garbage_collection_threshold"), "{}", run.out);
    assert!(!call(&["verify", "--all", &collecting, "--limit", "1GiB"]).out.contains("not in the file: the memory limit"));
    let fraction = RecordedSettings { text: Some("per_process_memory_fraction:0.5".to_owned()), ..default_settings() };
    let fraction = folder.recording("fraction", &with(Some(fraction)));
    let run = verify(&fraction);
    assert!(run.code == 0 && run.out.contains("of which per_process_memory_fraction allows 0.5;"), "{}", run.out);
    assert!(call(&["verify", "--all", "--json", &fraction]).out.contains("\"fraction_of_unknown_memory\":0.5"));
    let limited = call(&["verify", "--all", "--json", &fraction, "--limit", "1GiB"]);
    assert!(limited.out.contains("\"fraction_of_unknown_memory\":null"), "{}", limited.out);
    let given = call(&["verify", "--all", &collecting, "--settings", "bogus:1"]);
    assert_eq!(given.code, 2);
    assert!(given.err.contains("the settings \"bogus:1\" are refused: Unrecognized key 'bogus'"), "{}", given.err);
}

#[test]
fn statistics_files_may_be_wrong() {
    let folder = Folder::new("verify-statistics");
    let file = folder.recording("good.pickle", &good());
    let with = |bytes: &[u8]| call(&["verify", "--all", &file, "--stats", &folder.file("stats.json", bytes)]);
    for (bytes, text) in [
        (&b"nonsense"[..], "expected ident at line 1"),
        (b"[1]", "it is not a JSON object"),
        (b"{}", "the key \"active.all.allocated\" is missing"),
        (b"{\"a\": 18446744073709551616}", "\"a\" is not a 64-bit integer"),
        (b"{\"a\\nb\": {\"c\": 1.5}}", "\"a\\nb.c\" is not a 64-bit integer"),
        (&b"[".repeat(100_000), "recursion limit exceeded"),
    ] {
        let run = with(bytes);
        assert!(run.code == 2 && run.err.contains(text) && run.err.lines().count() == 1, "{}", run.err);
    }
    let missing = call(&["verify", "--all", &file, "--stats", folder.path()]);
    assert!(missing.code == 2 && missing.err.contains("Is a directory"), "{}", missing.err);
    let two = call(&["verify", "--all", &file, &file, "--stats", folder.path()]);
    assert!(two.code == 2 && two.err.contains("--stats applies to one recording"), "{}", two.err);
}

#[test]
fn sizes_that_are_none_are_refused() {
    for size in ["nonsense", "-1", "", "1e9", "99999999999GiB"] {
        let run = call(&["verify", "--all", "x", "--limit", size]);
        assert!(run.code == 2 && run.err.starts_with("error: invalid value"), "{}", run.err);
    }
}

#[test]
fn a_reader_that_goes_away_changes_no_exit_code() {
    let folder = Folder::new("verify-pipe");
    let file = folder.recording("other.pickle", &diverging());
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let end = writer.try_clone().expect("a second end");
    let status = parkade(&["verify", &file, "nowhere"]).stdout(writer).stderr(end).status().expect("it runs");
    assert_eq!(status.code(), Some(2), "no panic where both outputs are closed");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = parkade(&["verify", &file]).stdout(writer).stderr(Stdio::null()).status().expect("it runs");
    assert_eq!(status.code(), Some(1));
}

#[cfg(target_os = "linux")]
#[test]
fn names_may_be_anything() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new("verify-names");
    let name = std::ffi::OsStr::from_bytes(b"\xff\n\x1b[31m.pickle");
    for (bytes, code) in [(write(&good(), Style::Cpp), 0), (b"nonsense".to_vec(), 2)] {
        let path = std::path::Path::new(folder.path()).join(name);
        std::fs::write(&path, bytes).expect("a file");
        let run: Run = parkade(&["verify"]).arg(&path).output().expect("it runs").into();
        assert_eq!(run.code, code);
        assert!(!(run.out + &run.err).contains('\x1b'));
        assert!(run.err.lines().count() <= 1);
        let json: Run = parkade(&["verify", "--json"]).arg(&path).output().expect("it runs").into();
        assert!(serde_json::from_str::<serde_json::Value>(&json.out).is_ok(), "{}", json.out);
    }
}

/// 20,000 blocks that wait for other streams, one of which becomes free before each of as many requests.
#[test]
fn many_pending_blocks_take_no_quadratic_time() {
    let folder = Folder::new("verify-pending");
    const BLOCKS: u64 = 20_000;
    const IN_SEGMENT: u64 = 2 * MIB / 512;
    let address = |n: u64| BASE + n / IN_SEGMENT * 2 * MIB + n % IN_SEGMENT * 512;
    let other = BASE + (1 << 40);
    let mut trace = Vec::new();
    for n in 0..BLOCKS {
        if n % IN_SEGMENT == 0 {
            trace.push(entry(Action::SegmentAlloc, address(n), 2 * MIB));
        }
        trace.push(entry(Action::Alloc, address(n), 512));
    }
    trace.extend((0..BLOCKS).map(|n| entry(Action::FreeRequested, address(n), 512)));
    trace.extend([entry(Action::SegmentAlloc, other, 30 * MIB), entry(Action::Alloc, other, 30 * MIB)]);
    trace.extend(free(other, 30 * MIB));
    for n in 0..BLOCKS / 2 {
        trace.extend([entry(Action::FreeCompleted, address(n), 512), entry(Action::Alloc, other, 30 * MIB)]);
        trace.extend(free(other, 30 * MIB));
    }
    // And the other half at once, before an impossible segment: every interpretation fails.
    trace.extend((BLOCKS / 2..BLOCKS).map(|n| entry(Action::FreeCompleted, address(n), 512)));
    trace.extend([entry(Action::SegmentAlloc, other << 1, 98 * MIB), entry(Action::Oom, 0, 96 * MIB)]);
    let segments = (0..BLOCKS.div_ceil(IN_SEGMENT)).map(|n| segment(vec![unused(BASE + n * 2 * MIB, 2 * MIB)]));
    let last = [segment(vec![unused(other, 30 * MIB)]), segment(vec![unused(other << 1, 98 * MIB)])];
    let recording = recording(trace, segments.chain(last).collect());
    let start = std::time::Instant::now();
    // As a single release, because each one that the file allows takes that long.
    assert_eq!(call(&["verify", "--all", &folder.recording("pending.pickle", &recording), "--profile", "2.11"]).code, 1);
    assert!(start.elapsed().as_secs() < 8, "{:?}", start.elapsed());
}
