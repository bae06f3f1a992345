//! `parkade advise` of several ranks: each on its own, and one setting for all of them.

use crate::common::documented::check_text;
use crate::common::{BASE, Folder, MIB, OTHER, call, died_of_a_hole, entry, recording, reuses_a_part, segment, unused, used};
use parkade_recording::{Action, Recording};
use serde_json::Value;

const ROUNDED: [&str; 3] = ["--settings", "roundup_power2_divisions:2", "--only"];

/// 98 and 30 MiB: rounded up they are 128 and 32, which is more than 140.
fn wants_none() -> Recording {
    let both = [(BASE, 98 * MIB), (OTHER, 30 * MIB)];
    let trace = both.iter().flat_map(|&(at, size)| [entry(Action::SegmentAlloc, at, size), entry(Action::Alloc, at, size)]);
    recording(trace.collect(), both.iter().map(|&(at, size)| segment(vec![used(at, size)])).collect())
}

fn job(name: &str, ranks: &[Recording]) -> Folder {
    let folder = Folder::new(name);
    for (number, rank) in ranks.iter().enumerate() {
        folder.recording(&format!("rank{number}.pickle"), rank);
    }
    folder
}

/// The exit code and the object of the ranks.
fn json(folder: &Folder, more: &[&str]) -> (i32, Value) {
    let run = call(&[&["advise", "--json", folder.path()], more].concat());
    let last = run.out.lines().last().unwrap_or_else(|| panic!("{}", run.err));
    (run.code, serde_json::from_str(last).expect("an object"))
}

#[test]
fn ranks_that_want_different_settings_get_one_that_serves_both() {
    let folder = job("advise-job", &[reuses_a_part(), wants_none()]);
    let (code, object) = json(&folder, &["--limit", "140MiB"]);
    let found = &object["one_setting"];
    assert_eq!((code, &found["outcome"], &found["own"]), (0, &"fits".into(), &false.into()), "{found}");
    // On its own, rank 1 would keep its settings.
    assert_eq!((&found["ranks"][1]["best_settings"], &found["ranks"][1]["outcome"]), (&"".into(), &"fits".into()));
    let settings = found["settings"].as_str().expect("settings");
    for number in 0..2 {
        let file = format!("{}/rank{number}.pickle", folder.path());
        let replayed = call(&["replay", &file, "--settings", settings, "--limit", "140MiB"]);
        assert_eq!(replayed.code, 0, "{settings} on rank {number}: {}", replayed.out);
    }
    assert_eq!((&found["tightest_rank"], &found["ranks"][0]["capacity_bytes"]), (&1.into(), &(140 * MIB).into()));
    let text = call(&["advise", folder.path(), "--limit", "140MiB"]).out;
    assert_eq!(text.lines().last(), found["line"].as_str(), "{text}");
    assert!(text.contains("Both ranks fit with expandable_segments:True; rank 1 is the tightest"), "{text}");
    check_text("Ranks", &object.to_string());
}

#[test]
fn where_each_rank_needs_another_setting_that_is_said() {
    let folder = job("advise-job-none", &[reuses_a_part(), wants_none()]);
    let arguments = [&["--limit", "140MiB"], &ROUNDED[..]].concat();
    // Each alone fits.
    for number in 0..2 {
        let file = format!("{}/rank{number}.pickle", folder.path());
        let run = call(&[&["advise", &file], &arguments[..]].concat());
        assert_eq!(run.code, 0, "rank {number}: {}", run.out);
    }
    let (code, object) = json(&folder, &arguments);
    let found = &object["one_setting"];
    assert_eq!((code, &found["settings"], &found["outcome"]), (1, &Value::Null, &"does_not_fit".into()), "{found}");
    assert_eq!((&found["enough_bytes"], &found["enough_settings"]), (&(160 * MIB).into(), &"".into()));
    let text = call(&[&["advise", folder.path()], &arguments[..]].concat()).out;
    assert!(text.contains("every rank has a setting that serves it, but they need different ones"), "{text}");
    assert!(text.lines().last().is_some_and(|last| !last.starts_with("export")), "{text}");
}

#[test]
fn a_rank_that_nothing_serves_is_named() {
    let folder = job("advise-job-short", &[reuses_a_part(), wants_none()]);
    let run = call(&["advise", folder.path(), "--limit", "125MiB"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.out.contains("No setting serves both ranks: no setting that was tried serves rank 1;"), "{}", run.out);
    assert_eq!(run.out.matches("No setting serves").count(), 1, "{}", run.out);
    assert!(run.out.contains(" for each is enough with "), "{}", run.out);
}

#[test]
fn a_rank_that_cannot_be_read_is_named_at_the_end() {
    let folder = job("advise-job-unread", &[reuses_a_part(), wants_none()]);
    let broken = folder.file("rank2.pickle", b"no pickle");
    for command in ["advise", "replay"] {
        let run = call(&[command, folder.path(), "--limit", "1GiB"]);
        let last = run.err.lines().last().unwrap_or_default();
        assert_eq!(
            (run.code, last.contains("only 2 of 3 ranks could be read"), last.ends_with(&broken)),
            (2, true, true),
            "{}",
            run.err
        );
    }
    let said = call(&["advise", folder.path(), "--limit", "1GiB"]).out;
    assert!(said.contains("All 2 ranks that could be read (of 3) fit with the default settings"), "{said}");
}

#[test]
fn ranks_that_fit_as_they_are_stay() {
    let folder = job("advise-job-stay", &[reuses_a_part(), wants_none()]);
    let run = call(&["advise", folder.path(), "--limit", "1GiB"]);
    assert_eq!((run.code, run.out.lines().last()), (0, Some("keep the settings as they are (default settings)")), "{}", run.out);
    // Without a memory size, the need of the rank that needs the most.
    let run = call(&["advise", folder.path()]);
    assert!(run.code == 0 && run.out.contains("rank 1 needs the most"), "{}", run.out);
}

#[test]
fn the_memory_that_one_rank_shows_is_assumed_for_the_others() {
    let mut died = wants_none();
    died.devices[0].trace.push(entry(Action::Oom, 40 * MIB, 64 * MIB));
    let folder = job("advise-job-assumed", &[died, wants_none()]);
    let (_, object) = json(&folder, &[]);
    let found = &object["one_setting"];
    let limit = &found["ranks"][0]["capacity_bytes"];
    assert!(limit.is_u64(), "{found}");
    assert_eq!((&found["assumed_limit_bytes"], &found["ranks"][1]["capacity_bytes"]), (limit, limit), "{found}");
}

/// One setting is judged on each rank in the same way as that rank's own best: if the limit was in a range, by its lower end.
#[test]
fn settings_that_are_best_for_no_rank_are_judged_by_its_range_too() {
    let folder = job("advise-job-range", &[died_of_a_hole(), died_of_a_hole()]);
    let (code, object) = json(&folder, &[]);
    let found = &object["one_setting"];
    assert_eq!((code, &found["outcome"]), (3, &"unknown".into()), "{found}");
    for rank in found["ranks"].as_array().expect("ranks") {
        assert_eq!((&rank["best_outcome"], &rank["outcome"]), (&"unknown".into(), &"unknown".into()), "{found}");
    }
    let text = call(&["advise", folder.path()]).out;
    assert!(text.contains("Not known whether") && !text.contains("is served; rank"), "{text}");
}

/// What is left on the tightest device of a rank counts, whatever the others have and need.
#[test]
fn the_devices_of_a_rank_have_memories_of_their_own() {
    let mut two = died_of_a_hole();
    // It shows no limit and reserved more than the other one had.
    let mut second = reuses_a_part().devices.remove(0);
    second.device = 1;
    for entry in &mut second.trace {
        entry.size *= 16;
        entry.address = BASE + (entry.address - BASE) * 16;
    }
    let first = vec![used(BASE, 960 * MIB), unused(BASE + 960 * MIB, 640 * MIB)];
    second.segments = vec![segment(first), segment(vec![used(BASE + (16 << 30), 960 * MIB)])];
    two.devices.push(second);
    let folder = job("advise-job-devices", &[two.clone(), two]);
    let (_, object) = json(&folder, &[]);
    let ranks = &object["one_setting"]["ranks"];
    // Device 0 has 1 GiB, of which 4 MiB or less are left; device 1 has the 2560 MiB that it reserved.
    let (capacity, margin) = (&ranks[0]["capacity_bytes"], ranks[0]["margin_bytes"].as_i64().expect("a margin"));
    assert_eq!(capacity, 1024 * MIB, "{object}");
    assert!((0..=4 * MIB as i64).contains(&margin), "{object}");
}
