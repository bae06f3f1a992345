//! Releases decide differently: each file is read by the rules of the release that made it, `--profile` selects a different
//! one, and if several may have made a file, the answer says what each of them would advise.

use crate::common::{
    BASE, Folder, MIB, OTHER, call, call_with, default_settings, diverging, entry, free, good, listed, recording, segment,
    unused, used,
};
use parkade_recording::{Action, Block, RecordedSettings, Recording};
use serde_json::Value;

/// Sizes that are 5 MiB under these settings.
const ALIKE: &str = "roundup_power2_divisions:4";

fn at(kib: u64) -> u64 {
    BASE + kib * 1024
}

/// Of four neighbours in a segment, the outer ones are freed, and one is requested again. Then the second is freed, and the
/// next request fits only into the first and second together. No two free blocks here are equal, so all releases decide alike.
fn without_ties() -> Recording {
    let sizes = [4864, 5120, 5120, 5120].map(|kib| kib * 1024);
    let places = [0, 4864, 9984, 15104].map(at);
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 20 * MIB)];
    trace.extend((0..4).map(|part| entry(Action::Alloc, places[part], sizes[part])));
    trace.extend(free(places[0], sizes[0]));
    trace.extend(free(places[3], sizes[3]));
    trace.push(entry(Action::Alloc, places[0], 4736 * 1024));
    trace.extend(free(places[1], sizes[1]));
    trace.extend([entry(Action::SegmentAlloc, OTHER, 20 * MIB), entry(Action::Alloc, OTHER, 8 * MIB)]);
    let reused = Block { requested: Some(4736 * 1024), ..used(BASE, sizes[0]) };
    let blocks = vec![reused, unused(places[1], sizes[1]), used(places[2], sizes[2]), unused(places[3], 5376 * 1024)];
    recording(trace, vec![segment(blocks), segment(vec![used(OTHER, 8 * MIB), unused(OTHER + 8 * MIB, 12 * MIB)])])
}

/// The same requests where all four are alike. 2.12 takes the block that was created first, which is the last one: it is what
/// was left of the segment. So the last request fits.
fn made_by_2_12() -> Recording {
    let (requested, size) = ([4864, 5120, 5120, 5120].map(|kib| kib * 1024), 5 * MIB);
    let places = [0, 5, 10, 15].map(|mib| BASE + mib * MIB);
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 20 * MIB)];
    trace.extend((0..4).map(|part| entry(Action::Alloc, places[part], requested[part])));
    trace.extend(free(places[0], requested[0]));
    trace.extend(free(places[3], requested[3]));
    trace.push(entry(Action::Alloc, places[3], 4736 * 1024));
    trace.extend(free(places[1], requested[1]));
    trace.push(entry(Action::Alloc, BASE, 8 * MIB));
    let reused = Block { requested: Some(4736 * 1024), ..used(places[3], size) };
    let blocks = vec![used(BASE, 8 * MIB), unused(BASE + 8 * MIB, 2 * MIB), used(places[2], size), reused];
    let settings =
        RecordedSettings { text: Some(ALIKE.to_owned()), roundup_power2_divisions: Some([4; 16]), ..default_settings() };
    Recording { settings: Some(settings), ..recording(trace, vec![segment(blocks)]) }
}

/// The exit code and the one JSON object that a command prints.
fn json(args: &[&str]) -> (i32, Value) {
    let run = call(&[args, &["--json"]].concat());
    let object = serde_json::from_str(run.out.trim_end()).unwrap_or_else(|error| panic!("{error}: {}{}", run.out, run.err));
    (run.code, object)
}

/// 2.11's rules need a second segment, 2.12's do not.
#[test]
fn advice_of_releases_that_differ_is_said_by_both() {
    let folder = Folder::new("releases-otherwise");
    let file = folder.recording("either.pickle", &without_ties());
    let asked = ["advise", &file, "--limit", "20MiB", "--settings", ALIKE, "--only"];
    let (code, object) = json(&asked);
    assert_eq!((code, &object["outcome"], &object["profile"]), (1, &"does_not_fit".into(), &"2.11".into()), "{object}");
    let named = object["made_by"]["releases"].as_array().expect("releases");
    assert!(["2.11.0", "2.12.0", "2.15.0"].iter().all(|release| named.contains(&(*release).into())), "{named:?}");
    let [other] = object["otherwise"].as_array().expect("a list").as_slice() else { panic!("{}", object["otherwise"]) };
    assert_eq!((&other["releases"], &other["outcome"]), (&serde_json::json!(["2.12.0", "2.12.1"]), &"fits".into()), "{other}");
    assert!(other["line"].as_str().is_some_and(|line| line.contains(ALIKE)), "{other}");
    let said = "he run may also be from PyTorch 2.12; for that release, parkade recommends ";
    let text = call(&[&asked[..], &["--all"]].concat());
    assert!(text.code == 1 && text.out.replace("\n  ", " ").contains(said), "{}", text.out);
    // A release that is named is the only one used.
    for (profile, code) in [("2.12", 0), ("2.11", 1)] {
        let (seen, object) = json(&[&asked[..], &["--profile", profile]].concat());
        assert_eq!((seen, object["otherwise"].as_array().map(Vec::len)), (code, Some(0)), "{profile}: {object}");
    }
}

/// If all releases that explain the file give the same answer, it is printed only once.
#[test]
fn advice_that_is_the_same_is_said_once() {
    let folder = Folder::new("releases-alike");
    let file = folder.recording("either.pickle", &without_ties());
    let (code, object) = json(&["advise", &file, "--limit", "100MiB", "--settings", ALIKE, "--only"]);
    assert_eq!((code, object["otherwise"].as_array().map(Vec::len)), (0, Some(0)), "{object}");
}

/// Only the file itself shows that it is from 2.12: under the rules of other releases, a decision differs.
#[test]
fn commands_read_a_file_by_the_release_that_made_it() {
    let folder = Folder::new("releases-recognised");
    let file = folder.recording("2.12.pickle", &made_by_2_12());
    let (code, verified) = json(&["verify", &file]);
    assert_eq!((code, &verified["profile"]), (0, &"2.12".into()), "{verified}");
    assert_eq!(verified["made_by"]["releases"], serde_json::json!(["2.12.0", "2.12.1"]));

    let (code, replayed) = json(&["replay", &file, "--limit", "20MiB"]);
    assert_eq!((code, &replayed["profile"], &replayed["fits"]), (0, &"2.12".into(), &true.into()), "{replayed}");
    let (code, replayed) = json(&["replay", &file, "--limit", "20MiB", "--profile", "2.11"]);
    assert_eq!((code, &replayed["profile"], &replayed["fits"]), (1, &"2.11".into(), &false.into()), "{replayed}");
    assert_eq!(replayed["recorded"]["mismatches"], 0, "the file is still read as 2.12's");

    let mismatches = |object: &Value| object["devices"][0]["exactness"]["mismatches"].as_u64();
    let (_, diagnosed) = json(&["diagnose", &file]);
    assert_eq!((&diagnosed["profile"], mismatches(&diagnosed)), (&"2.12".into(), Some(0)), "{diagnosed}");
    let (_, wrongly) = json(&["diagnose", &file, "--profile", "2.11"]);
    assert!(mismatches(&wrongly).is_some_and(|count| count > 0), "{wrongly}");

    let (_, advised) = json(&["advise", &file, "--limit", "20MiB", "--settings", ALIKE, "--only"]);
    assert_eq!((&advised["profile"], &advised["outcome"]), (&"2.12".into(), &"fits".into()), "{advised}");
}

/// 2.11 takes the first of the four, and the last request fails. That the run died says nothing about a release that would not have done
/// the same.
#[test]
fn what_a_run_did_is_not_what_another_release_does() {
    let Recording { settings, devices, .. } = made_by_2_12();
    let mut trace = devices[0].trace.clone();
    trace.truncate(10);
    trace[9] = entry(Action::Alloc, BASE, 4736 * 1024);
    trace.extend(free(BASE + 5 * MIB, 5 * MIB));
    trace.push(entry(Action::Oom, 100 << 30, 8 * MIB));
    let reused = Block { requested: Some(4736 * 1024), ..used(BASE, 5 * MIB) };
    let (free, kept) = (|mib: u64| unused(BASE + mib * MIB, 5 * MIB), used(BASE + 10 * MIB, 5 * MIB));
    let died = Recording { settings, ..recording(trace, vec![segment(vec![reused, free(5), kept, free(15)])]) };
    let folder = Folder::new("releases-died");
    let file = folder.recording("2.11.pickle", &died);
    for command in ["replay", "advise"] {
        let asked = |profile: &str| json(&[command, &file, "--limit", "20MiB", "--settings", ALIKE, "--profile", profile]).1;
        assert_eq!(
            (&asked("2.11")["outcome"], &asked("2.12")["outcome"]),
            (&"does_not_fit".into(), &"gets_past".into()),
            "{command}"
        );
    }
}

/// Files that the real allocators made. The answer about each file follows a release that may have made it.
#[test]
fn the_real_files_of_each_release_are_read_by_its_rules() {
    for (name, series) in [("2.4.0", "2.4"), ("2.8.0", "2.8"), ("2.12.0", "2.12"), ("2.15.0", "2.15")] {
        let file = format!("{}/../conformance/oracle/snapshots/{name}.pickle.xz", env!("CARGO_MANIFEST_DIR"));
        for command in ["verify", "replay", "diagnose"] {
            let (code, object) = json(&[command, &file]);
            assert_eq!((code, object["profile"].as_str()), (0, Some(series)), "{command} {name}");
            let named = object["made_by"]["releases"].as_array().expect("releases");
            assert!(named.contains(&name.into()), "{command} {name}: {named:?}");
        }
    }
}

/// A call of each command with `--profile`, and whether the object of `--json` has the release as `profile`. The object of a
/// page has the release whose rules are used to read the file.
fn calls<'a>(file: &'a str, page: &'a str, copy: &'a str) -> [(Vec<&'a str>, bool); 9] {
    [
        (vec!["advise", file, "--settings", "", "--only"], true),
        (vec!["diagnose", file], true),
        (vec!["report", file, "-o", page, "--force"], false),
        (vec!["verify", file], true),
        (vec!["replay", file], true),
        (vec!["stats", file], false),
        (vec!["export", file, "-o", copy, "--force"], true),
        (vec!["ops", "-"], false),
        (vec!["enable", "max_split_size_mb:128"], false),
    ]
}

#[test]
fn every_command_knows_releases_by_every_name() {
    let folder = Folder::new("releases-named");
    let file = folder.recording("good.pickle", &good());
    let (page, copy) = (format!("{}/page.html", folder.path()), format!("{}/copy.pickle", folder.path()));
    for (args, prints) in calls(&file, &page, &copy) {
        for (name, series) in [("2.7.1", "2.7"), ("2.7", "2.7"), ("2.7.1+cu118", "2.7"), ("2.1", "2.1"), ("2.12.1", "2.12")] {
            let named = [&args[..], &["--profile", name]].concat();
            let run = call_with(&named, b"alloc a 1000\n");
            assert_eq!(run.code, 0, "{named:?}: {}", run.err);
            if prints {
                let object = json(&named).1;
                assert_eq!(object["profile"].as_str(), Some(series), "{named:?}: {object}");
            }
        }
        for name in ["2.7.9", "2.16", "2.0.1", "2", "v2.7.1", "newest", ""] {
            let named = [&args[..], &["--profile", name]].concat();
            let run = call_with(&named, b"alloc a 1000\n");
            assert_eq!((run.code, run.out.as_str()), (2, ""), "{named:?}");
            let says = format!("the rules of PyTorch {name:?} are not known; the known releases are 2.1.0, ");
            let line = run.err.replace('\n', " ");
            assert!(line.contains(&says) && line.contains("2.7.1") && line.contains("2.15.0"), "{named:?}: {line}");
        }
    }
}

/// No command with the option is left out above.
#[test]
fn the_commands_with_the_option_are_these() {
    let help = call(&["--help"]).out;
    let mut with: Vec<&str> =
        listed(&help).into_iter().filter(|command| call(&[command, "--help"]).out.contains("--profile <")).collect();
    let mut known: Vec<&str> = calls("", "", "").map(|(args, _)| args[0]).to_vec();
    with.sort_unstable();
    known.sort_unstable();
    assert_eq!(with, known);
}

/// Every command finds the same release in a file, and says it in the same words.
#[test]
fn every_command_says_the_same_of_a_file() {
    let folder = Folder::new("releases-said");
    let copy = format!("{}/copy.pickle", folder.path());
    let files = [("good", good()), ("either", without_ties()), ("2.12", made_by_2_12()), ("wrong", diverging())];
    for (name, recording) in files {
        let file = folder.recording(&format!("{name}.pickle"), &recording);
        let made_by = |args: &[&str]| json(args).1["made_by"].clone();
        let verified = made_by(&["verify", &file]);
        let basis = if name == "wrong" { "nearest" } else { "replay" };
        assert_eq!(verified["basis"], basis, "{name}: {verified}");
        let others: [&[&str]; 6] = [
            &["replay", &file],
            &["advise", &file, "--settings", "", "--only"],
            &["diagnose", &file],
            &["stats", &file],
            &["report", &file],
            &["export", &file, "-o", &copy, "--force"],
        ];
        for args in others {
            assert_eq!(made_by(args), verified, "{name}: {args:?}");
        }
    }
}

/// The release that `--profile` names is in the answer, beside the one that made the recording.
#[test]
fn a_release_that_is_to_decide_is_named() {
    let folder = Folder::new("releases-forced");
    let file = folder.recording("2.12.pickle", &made_by_2_12());
    let (copy, page) = (format!("{}/copy.pickle", folder.path()), format!("{}/page.html", folder.path()));
    let commands: [&[&str]; 4] = [
        &["replay", &file],
        &["advise", &file, "--settings", "", "--only", "--all"],
        &["export", &file, "-o", &copy, "--force"],
        &["report", &file],
    ];
    for args in commands {
        let forced = [args, &["--profile", "2.11"]].concat();
        assert_eq!(json(args).1["made_by"]["replayed_as"], Value::Null, "{args:?}");
        assert_eq!(json(&forced).1["made_by"]["replayed_as"], "2.11", "{args:?}");
        let says = |args: &[&str]| {
            let words = call(args).out.split_whitespace().collect::<Vec<_>>().join(" ");
            words.contains("recorded by PyTorch 2.12") && words.contains("; replayed under the rules of PyTorch 2.11, as given")
        };
        assert!(!says(args) && says(&forced), "{args:?}: {}", call(&forced).out);
    }
    let run = call(&["report", &file, "-o", &page, "--profile", "2.11"]);
    let html = std::fs::read_to_string(&page).expect(&run.err);
    assert!(html.contains("replayed under the rules of PyTorch 2.11, as given"));
    // A wrong one is the first thing to doubt.
    let notes = json(&["diagnose", &file, "--profile", "2.11"]).1["devices"][0]["notes"].to_string();
    assert!(notes.contains("without --profile, each release is tried") && !notes.contains("own --limit"), "{notes}");
}

/// A limit that the run exceeded says nothing about the release, and is itself the cause.
#[test]
fn a_limit_that_the_run_exceeded_is_blamed_and_not_the_release() {
    let file = format!("{}/../conformance/recordings/prefetch_streams.default.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let without = json(&["verify", &file]).1["made_by"].clone();
    let asked: [&[&str]; 3] = [
        &["verify", &file, "--limit", "6GiB"],
        &["diagnose", &file, "--limit", "6GiB"],
        &["replay", &file, "--recorded-limit", "6GiB"],
    ];
    for args in asked {
        let (code, object) = json(args);
        let made_by = &object["made_by"];
        assert_eq!((&made_by["releases"], &made_by["basis"]), (&without["releases"], &without["basis"]), "{args:?}: {made_by}");
        let reserved = made_by["refuted_limit"]["reserved_bytes"].as_u64();
        assert!(
            reserved.is_some_and(|bytes| bytes > 6 << 30) && made_by["refuted_limit"]["limit_bytes"] == 6_u64 << 30,
            "{made_by}"
        );
        let words = made_by["words"].as_str().expect("words");
        assert!(words.ends_with("more than the given limit of 6.00 GiB, so that was not its limit"), "{words}");
        assert_eq!(code, i32::from(args[0] == "verify"), "{args:?}");
    }
    assert_eq!(without["refuted_limit"], Value::Null);
    assert_eq!(json(&["verify", &file, "--limit", "64GiB"]).1["made_by"], without);
}
