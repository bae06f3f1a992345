//! Several recordings and folders of them: which are read, in which order, what happens to bad ones, and how ranks compare.

use std::fs;
use std::path::Path;

use crate::common::documented::check_all;
use crate::common::*;
use parkade_recording::{Action, Recording, Style, write};
use serde_json::Value;

/// The commands that answer about each recording, with options that make them fast.
const COMMANDS: [&[&str]; 6] = [
    &["verify", "--all"],
    &["replay", "--all"],
    &["stats", "--all"],
    &["diagnose", "--all"],
    &["report"],
    &["advise", "--all", "--settings", "expandable_segments:True", "--only"],
];

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../conformance/recordings/{name}"));
    path.to_str().expect("UTF-8").to_owned()
}

/// Like `good`, but a recording of its own: with different times, and a last block of this many MiB.
fn rank(number: u64, last_mib: u64) -> Recording {
    let mut rank = good();
    let device = &mut rank.devices[0];
    for (place, entry) in device.trace.iter_mut().enumerate() {
        entry.set_time(Some(1_700_000_000_000_000 + 1000 * place as u64 + number));
    }
    device.trace[2].size = last_mib * MIB;
    let blocks = vec![
        unused(BASE, 5 * MIB),
        used(BASE + 5 * MIB, last_mib * MIB),
        unused(BASE + (5 + last_mib) * MIB, (15 - last_mib) * MIB),
    ];
    device.segments = vec![segment(blocks)];
    rank
}

/// A rank that ends out of memory, this many microseconds after the others began.
fn failing(after_us: u64) -> Recording {
    let mut rank = rank(77, 3);
    let mut oom = entry(Action::Oom, 1, 64 * MIB);
    oom.set_time(Some(1_700_000_000_000_000 + after_us));
    rank.devices[0].trace.push(oom);
    rank
}

fn lines(run: &Run) -> Vec<Value> {
    run.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn with<'a>(command: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [command, more].concat()
}

/// The names of the files in the lines of JSON, in their order.
fn names(lines: &[Value]) -> Vec<String> {
    let file = |line: &Value| Some(line["file"].as_str()?.rsplit('/').next()?.to_owned());
    lines.iter().filter_map(file).collect()
}

#[test]
fn a_folder_means_its_snapshots_in_natural_order() {
    let folder = Folder::new("ranks-folder");
    for number in [10, 2, 1] {
        folder.recording(&format!("rank{number}.pickle"), &rank(number, 3));
    }
    // Found by its contents, not by its name; and other files.
    folder.recording("rank3.dump", &rank(3, 3));
    fs::copy(shipped("deep_mlp.default.pickle.xz"), format!("{}/rank4.xz", folder.path())).expect("a copy");
    folder.file("notes.txt", b"rank 7 again");
    folder.file(".rank5.pickle", b"left by an editor");
    fs::create_dir(format!("{}/older", folder.path())).expect("a folder");
    for command in COMMANDS {
        let run = call(&with(command, &["--json", folder.path()]));
        assert!(run.code < 2, "{command:?}: {}", run.err);
        let order = ["rank1.pickle", "rank2.pickle", "rank3.dump", "rank4.xz", "rank10.pickle"];
        assert_eq!(names(&lines(&run)), order, "{command:?}");
        let said = format!("parkade: {}: skipped 2 other files (.rank5.pickle, notes.txt) and 1 folder (older)\n", folder.path());
        assert_eq!(run.err, said, "{command:?}");
        let ranks = &lines(&run)[5];
        let numbers: Vec<u64> =
            ranks["ranks"].as_array().expect("ranks").iter().filter_map(|rank| rank["rank"].as_u64()).collect();
        assert_eq!((numbers, &ranks["ranks_from"]), (vec![1, 2, 3, 4, 10], &"names".into()), "{command:?}");
        check_all("Ranks", &format!("{ranks}\n{}", comparison_with_everything()), &["one_setting"]);
    }
}

/// A comparison in which nothing is missing.
fn comparison_with_everything() -> Value {
    let folder = Folder::new(&format!("ranks-everything-{:?}", std::thread::current().id()).replace(['(', ')'], ""));
    for number in 0..4 {
        folder.recording(&format!("rank{number}.pickle"), &rank(number, 3));
    }
    folder.recording("rank4.pickle", &rank(4, 12));
    folder.recording("rank5.pickle", &failing(900_000));
    folder.recording("rank6.pickle", &failing(800_000));
    folder.recording("rank7.pickle", &failing(800_000));
    lines(&call(&["verify", "--all", "--json", folder.path()])).pop().expect("a line")
}

#[test]
fn who_fails_first_and_who_is_odd() {
    let found = comparison_with_everything();
    let first = &found["fails_first"];
    assert_eq!((&first["rank"], &first["by"], &first["failed"]), (&6.into(), &"time".into(), &3.into()), "{first}");
    let odd = &found["odd_one_out"];
    let expected = (&Value::from(4), &Value::from("peak_allocated_bytes"), &Value::from(17 * MIB), &Value::from(8 * MIB));
    assert_eq!((&odd["rank"], &odd["measure"], &odd["value"], &odd["median_of_others"]), expected, "{odd}");
    let copies = found["differences"].as_array().expect("a list").iter().find(|one| one["of"] == "copies").expect("copies");
    assert_eq!(copies["variants"][0]["ranks"][1]["rank"], 7, "{copies}");

    let folder = Folder::new("ranks-first");
    for (number, after_us) in [(0, 900_000), (1, 650_000)] {
        folder.recording(&format!("rank{number}.pickle"), &failing(after_us));
    }
    folder.recording("rank2.pickle", &rank(2, 3));
    let run = call(&["verify", "--all", folder.path()]);
    assert!(
        run.out.contains("Of 3 ranks, 2 ran out of memory, rank 1 first, at entry 5, 0.250 s before rank 0.\n"),
        "{}",
        run.out
    );
}

#[test]
fn a_real_rank_that_fails_earlier_is_found() {
    let folder = Folder::new("ranks-real");
    let at = |name: &str| format!("{}/{name}", folder.path());
    let source = shipped("resnet50_sweep.default.pickle.xz");
    for (number, limit) in [(0, "6500MiB"), (1, "5GiB"), (2, "6300MiB"), (3, "6GiB")] {
        let output = at(&format!("rank_{number}.pickle"));
        let run = call(&["export", &source, "--limit", limit, "--stop-at-oom", "-o", &output]);
        assert_eq!(run.code, 0, "{}", run.err);
    }
    for command in COMMANDS {
        let run = call(&with(command, &["--json", folder.path()]));
        let ranks = lines(&run).pop().expect("a line");
        assert_eq!(ranks["fails_first"]["rank"], 1, "{command:?}: {ranks}");
        assert_eq!((&ranks["odd_one_out"]["rank"], &ranks["differences"]), (&1.into(), &Value::Array(vec![])), "{command:?}");
    }
    let limited = call(&["replay", "--limit", "5GiB", folder.path()]);
    assert_eq!(limited.code, 1, "{}", limited.err);
}

#[test]
fn a_bad_file_does_not_hide_the_others() {
    let folder = Folder::new("ranks-bad");
    let (good_one, other) = (folder.recording("rank0.pickle", &rank(0, 3)), folder.recording("rank2.pickle", &rank(2, 3)));
    let bad = folder.file("rank1.pickle", b"nonsense");
    let empty = Folder::new("ranks-none");
    for command in COMMANDS {
        let json = call(&with(command, &["--json", &good_one, &bad, empty.path(), &other]));
        assert_eq!((json.code, names(&lines(&json)).len()), (2, 4), "{command:?}: {}", json.err);
        assert_eq!(names(&lines(&json))[..2], ["rank0.pickle", "rank1.pickle"], "{command:?}");
        assert!(lines(&json)[1]["error"].is_string() && lines(&json)[2]["error"].is_string(), "{command:?}");
        let said: Vec<&str> = json.err.lines().collect();
        assert!(said.len() == 2 && said[0].starts_with(&format!("parkade: {bad}: ")), "{command:?}: {said:?}");
        assert!(said[1].starts_with(&format!("parkade: {}: this folder contains no snapshots: ", empty.path())), "{said:?}");
        assert!(said[1].ends_with("; it is empty"), "{said:?}");
        let text = call(&with(command, &[&good_one, &bad, &other]));
        assert!(text.code == 2 && text.out.contains("rank2.pickle"), "{command:?}: {}", text.out);
    }
}

#[test]
fn the_worst_outcome_counts() {
    let folder = Folder::new("ranks-worst");
    let (good_one, diverging) = (folder.recording("a.pickle", &good()), folder.recording("b.pickle", &diverging()));
    for command in ["verify", "stats"] {
        assert_eq!(call(&[command, &good_one, &diverging, &good_one]).code, 1, "{command}");
        assert_eq!(call(&[command, &good_one, &good_one]).code, 0, "{command}");
        assert_eq!(call(&[command, &diverging, "/nowhere", &good_one]).code, 2, "{command}");
    }
}

#[test]
fn one_file_is_answered_as_ever() {
    let folder = Folder::new("ranks-one");
    let file = folder.recording("rank3.pickle", &rank(3, 3));
    for command in COMMANDS {
        // The time is made the same, because only it differs from run to run.
        let untimed = |run: Run| {
            let mut answer = lines(&run);
            answer.iter_mut().for_each(|line| drop(line.as_object_mut().expect("an object").remove("seconds")));
            answer
        };
        let of_file = untimed(call(&with(command, &["--json", &file])));
        assert_eq!(of_file.len(), 1, "{command:?}");
        assert_eq!(untimed(call(&with(command, &["--json", folder.path()]))), of_file, "{command:?}");
    }
}

#[test]
fn files_that_nothing_calls_ranks_are_not_compared() {
    let folder = Folder::new("ranks-unnumbered");
    let files = ["before.pickle", "after.pickle"].map(|name| folder.recording(name, &good()));
    for command in COMMANDS {
        let run = call(&with(command, &["--json", &files[0], &files[1]]));
        assert_eq!(names(&lines(&run)), ["before.pickle", "after.pickle"], "{command:?}: as given");
        assert_eq!(lines(&run).len(), 2, "{command:?}");
    }
    // In a folder their positions are their ranks.
    let ranks = lines(&call(&["verify", "--all", "--json", folder.path()])).pop().expect("a line");
    assert_eq!((&ranks["ranks_from"], &ranks["ranks"][0]["rank"]), (&"positions".into(), &0.into()));
}

#[test]
fn what_is_no_job_is_said() {
    let folder = Folder::new("ranks-differ");
    folder.recording("rank0.pickle", &rank(0, 3));
    folder.recording("rank1.pickle", &rank(1, 3));
    let mut newer = rank(2, 3);
    newer.settings.as_mut().expect("settings").has_newer_keys = true;
    folder.recording("rank2.pickle", &newer);
    let mut set = rank(3, 3);
    set.settings.as_mut().expect("settings").text = Some("max_split_size_mb:200".to_owned());
    set.settings.as_mut().expect("settings").max_split_size = Some(200 * MIB as i64);
    folder.recording("rank3.pickle", &set);
    fs::copy(shipped("deep_mlp.default.pickle.xz"), format!("{}/rank4.pickle.xz", folder.path())).expect("a copy");
    folder.recording("rank5.pickle", &rank(0, 3));
    let run = call(&["verify", "--all", folder.path()]);
    for said in [
        "The versions of PyTorch differ: 2.10 and 2.11 in ranks 0, 1, 3-5; 2.13 to 2.15 in rank 2",
        "The settings differ: default settings in ranks 0-2, 4, 5; max_split_size_mb:200 in rank 3",
        "Rank 4 ran a different program than the others, or a different part of it",
        "Identical recordings, which count as one in the search for the odd one out: ranks 0, 5",
    ] {
        assert!(run.out.contains(said), "{} lacks {said:?}", run.out);
    }
    let programs = Folder::new("ranks-programs");
    for (number, name) in ["deep_mlp.default", "prefetch_streams.default"].into_iter().enumerate() {
        let target = format!("{}/rank{number}.pickle.xz", programs.path());
        fs::copy(shipped(&format!("{name}.pickle.xz")), target).expect("a copy");
    }
    let run = call(&["verify", "--all", programs.path()]);
    assert!(run.out.contains("hese recordings are from different programs"), "{}", run.out);
}

#[test]
fn several_devices_of_a_file_have_a_row_each() {
    let folder = Folder::new("ranks-devices");
    for number in 0..2 {
        let mut two = rank(number, 3);
        two.devices.push(rank(number + 10, 3).devices.remove(0));
        two.devices[1].device = 1;
        folder.recording(&format!("node{number}.pickle"), &two);
    }
    for command in COMMANDS {
        let ranks = lines(&call(&with(command, &["--json", folder.path()]))).pop().expect("a line");
        let of: Vec<_> = ranks["ranks"].as_array().expect("ranks").iter().map(|one| (&one["rank"], &one["device"])).collect();
        let value = Value::from;
        let (zero, one) = (value(0), value(1));
        assert_eq!(of, [(&zero, &zero), (&zero, &one), (&one, &zero), (&one, &one)], "{command:?}");
    }
    let run = call(&["verify", "--all", folder.path()]);
    assert!(run.out.contains("\n0 device 1 "), "{}", run.out);
}

#[test]
fn rows_for_programs_have_one_heading_and_name_their_file() {
    let folder = Folder::new("ranks-csv");
    let bad = folder.file("rank0.pickle", b"nonsense");
    let files = [1, 2].map(|number| folder.recording(&format!("rank{number}.pickle"), &rank(number, 3)));
    let run = call(&["stats", "--csv", "--every", "2", &bad, &files[0], &files[1]]);
    let rows: Vec<&str> = run.out.lines().collect();
    assert_eq!((run.code, rows.len()), (2, 7), "{}", run.out);
    assert!(rows[0].starts_with("file,device,step,") && rows[3].starts_with(&format!("{},0,,4,", files[0])), "{}", run.out);
    assert!(rows[4..].iter().all(|row| row.starts_with(&files[1])), "{}", run.out);
    // The rows of one file are unchanged.
    assert!(call(&["stats", "--csv", &files[0]]).out.starts_with("device,step,"));
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let folder = Folder::new("ranks-pipe");
    for number in 0..30 {
        folder.file(&format!("rank{number}.pickle"), &write(&rank(number, 3), Style::Python));
    }
    let mut child = parkade(&["stats", folder.path()]).stdout(std::process::Stdio::piped()).spawn().expect("the binary runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// Of ranks that died, each has only the beginning of the run, so a low peak means nothing; and every command names the first
/// that failed.
#[test]
fn every_command_names_the_ranks_that_died() {
    let folder = Folder::new("ranks-died");
    for number in 0..7 {
        folder.recording(&format!("rank{number}.pickle"), &rank(number, 12));
    }
    folder.recording("rank7.pickle", &failing(900_000));
    folder.recording("rank8.pickle", &failing(800_000));
    for command in COMMANDS {
        let run = call(&with(command, &["--json", folder.path()]));
        let ranks = lines(&run).pop().expect("a line");
        assert_eq!(
            (&ranks["fails_first"]["rank"], &ranks["fails_first"]["failed"]),
            (&8.into(), &2.into()),
            "{command:?} {ranks}"
        );
        let odd: Vec<_> = ranks["stand_out"].as_array().expect("a list").iter().map(|odd| odd["measure"].clone()).collect();
        let is_of_beginning = |measure: &Value| measure == "peak_allocated_bytes" || measure == "peak_reserved_bytes";
        assert!(!odd.iter().any(is_of_beginning), "{command:?} {ranks}");
        let text = call(&with(command, &[folder.path()])).out;
        let said = "Of 9 ranks, 2 ran out of memory, rank 8 first, at entry 5, 0.100 s before rank 7";
        assert!(command == ["report"] || text.contains(said), "{command:?} {text}");
    }
}

/// The verdict on all ranks comes first, with the rank that is unlike the others.
#[test]
fn the_verdict_on_all_ranks_comes_first() {
    let folder = Folder::new("ranks-verdict");
    for number in 0..4 {
        folder.recording(&format!("rank{number}.pickle"), &rank(number, if number == 3 { 12 } else { 3 }));
    }
    for all in [&[][..], &["--all"]] {
        let said = "None of 4 ranks ran out of memory; rank 3 is the odd one out: its peak allocated memory is 17.00 MiB, ";
        let run = call(&[&["diagnose", folder.path()], all].concat());
        assert!(run.out.starts_with(said), "{}", run.out);
        let run = call(&[&["advise", folder.path()], all].concat());
        let mut lines = run.out.lines();
        let verdict = lines.next().unwrap_or_default();
        assert!(verdict.contains("4 ranks") && verdict.contains("default settings"), "{}", run.out);
        assert!(lines.next().is_some_and(|line| line.starts_with("Rank 3 is the odd one out: ")), "{}", run.out);
    }
}

/// The comparison of ranks has no use for an entry, so one is refused instead of ignored.
#[test]
fn an_entry_that_the_comparison_would_ignore_is_refused() {
    let folder = Folder::new("ranks-entry");
    for number in 0..2 {
        folder.recording(&format!("rank{number}.pickle"), &rank(number, 3));
    }
    let run = call(&["diagnose", folder.path(), "--entry", "1"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
    assert!(run.err.contains("--entry 1 chooses an entry of one trace") && run.err.contains("--all"), "{}", run.err);
    let run = call(&["diagnose", folder.path(), "--entry", "1", "--all"]);
    assert!(run.code == 0 && run.out.matches("entry 1 of ").count() == 2, "{}{}", run.out, run.err);
}
