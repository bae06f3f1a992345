//! A run that died and whose oldest entries are missing, as in most long runs: all commands, on one file.

use crate::common::{BASE, Folder, MIB, call, entry, recording, segment, unused, used};
use parkade_recording::{Action, Style, read_file, write};
use serde_json::Value;

/// A shipped recording that dies under a limit, without the first half of its trace and without what followed the error.
fn cut(folder: &Folder, limit: &str) -> String {
    without(folder, limit, 0.5)
}

/// The same without this much of its trace.
fn without(folder: &Folder, limit: &str, part: f64) -> String {
    let source = format!("{}/../conformance/recordings/resnet50_sweep.default.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let died = format!("{}/died.pickle", folder.path());
    let run = call(&["export", &source, "--limit", limit, "--stop-at-oom", "--force", "-o", &died]);
    assert_eq!(run.code, 0, "{}", run.err);
    let mut recording = read_file(&died).expect("a recording");
    let lost = (recording.devices[0].trace.len() as f64 * part) as usize;
    recording.devices[0].trace.drain(..lost);
    folder.file("cut.pickle", &write(&recording, Style::Python))
}

fn object(args: &[&str]) -> (i32, Value) {
    let run = call(&[args, &["--json"]].concat());
    (run.code, serde_json::from_str(run.out.trim()).unwrap_or_else(|_| panic!("{args:?}: {}{}", run.out, run.err)))
}

#[test]
fn every_command_knows_that_it_died_and_what_is_lost() {
    let folder = Folder::new("died-cut");
    let file = cut(&folder, "5GiB");
    let (code, verified) = object(&["verify", &file, "--limit", "5GiB"]);
    assert_eq!((code, &verified["ooms"]), (0, &1.into()), "the cut file is exact: {verified}");
    let settings = ["--settings", "expandable_segments:True", "--only"];
    let (code, advised) = object(&[&["advise", &file, "--limit", "5GiB", "--recorded-limit", "5GiB"], &settings[..]].concat());
    let death = &advised["endings"][0];
    assert_eq!((&death["ending"], &death["served_afterwards"]), (&"died".into(), &0.into()), "{advised}");
    assert!(advised["live"][0]["lost_beginning_blocks"].as_u64().is_some_and(|blocks| blocks > 100), "{advised}");
    // The rest is estimated or unknown: the run's own settings, under which it died, are never kept.
    assert!([1, 3].contains(&code) && advised["outcome"] != "fits", "{code} {advised}");
    assert_eq!((&advised["options"][0]["own"], &advised["options"][0]["gets_past"]), (&true.into(), &false.into()));
    assert_eq!(advised["options"][0]["fails_at_entry"], death["at_entry"]);
    let (_, diagnosed) = object(&["diagnose", &file, "--limit", "5GiB"]);
    assert_eq!((&diagnosed["devices"][0]["ending"], &diagnosed["devices"][0]["entry"]), (&"died".into(), &death["at_entry"]));
    // What the failing request found is what was recorded, not the result of replaying the rest.
    for (advise, diagnose) in [("reserved_bytes", "reserved_bytes"), ("live_bytes", "allocated_bytes")] {
        assert_eq!(advised["cause"][advise], diagnosed["devices"][0]["heap"][diagnose], "{advise}");
    }
    let (code, replayed) = object(&["replay", &file, "--limit", "5GiB"]);
    assert_eq!((code, &replayed["outcome"], &replayed["endings"][0]), (1, &"does_not_fit".into(), &"died".into()));
    let (_, reported) = object(&["report", &file, "--limit", "5GiB"]);
    assert_eq!(reported["devices"][0]["ending"], "died");
    let text = call(&[&["advise", "--all", &file, "--limit", "5GiB"], &settings[..]].concat()).out;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("not in the file: everything before the first entry; the "), "{text}");
    assert!(text.contains("the run died of the out-of-memory error at entry ") && !text.contains("keep the settings"), "{text}");
}

/// A replay of what is left may get past the point where the run died. The table, the words, the JSON object and the exit code
/// all say that it died.
#[test]
fn the_recorded_death_stands_whatever_is_lost() {
    let folder = Folder::new("died-most-lost");
    for part in [0.3, 0.6, 0.9, 0.99] {
        let file = without(&folder, "5GiB", part);
        for limit in [&["--limit", "5GiB"][..], &[]] {
            let (code, replayed) = object(&[&["replay", &file], limit].concat());
            let text = call(&[&["replay", &file], limit].concat()).out;
            let first = text.lines().next().unwrap_or("").to_owned();
            assert_eq!(replayed["fits"], false, "{part} {limit:?}: {replayed}");
            assert!(replayed["ooms"].as_u64() > Some(0) && replayed["fails_at_entry"].is_u64(), "{part} {limit:?}: {replayed}");
            match replayed["outcome"].as_str() {
                Some("does_not_fit") => assert!(code == 1 && first.starts_with("it does not fit: "), "{part} {limit:?}: {text}"),
                Some("unknown") => assert!(code == 3 && first.starts_with("not known: "), "{part} {limit:?}: {text}"),
                outcome => panic!("{part} {limit:?}: {outcome:?} {text}"),
            }
            let fits = if code == 1 { "no" } else { "-" };
            assert!(text.contains(&format!("\n  fits            {fits}\n")), "{part} {limit:?}: {text}");
        }
    }
    // What was in pieces before the first entry is requested again in the replay, and then there is room.
    let other = BASE + (1 << 30);
    let trace = vec![entry(Action::Alloc, BASE + 40 * MIB, 60 * MIB), entry(Action::Oom, 1 << 40, 100 * MIB)];
    let first = segment(vec![used(BASE, 40 * MIB), used(BASE + 40 * MIB, 60 * MIB)]);
    let second = segment(vec![used(other, 40 * MIB), unused(other + 40 * MIB, 60 * MIB)]);
    let file = folder.recording("served.pickle", &recording(trace, vec![first, second]));
    let (code, replayed) = object(&["replay", &file, "--limit", "250MiB"]);
    let expected = (1, &Value::from("does_not_fit"), &Value::from(false), &Value::from(1), &Value::from(1));
    assert_eq!(
        (code, &replayed["outcome"], &replayed["fits"], &replayed["fails_at_entry"], &replayed["ooms"]),
        expected,
        "{replayed}"
    );
    let text = call(&["replay", &file, "--limit", "250MiB"]).out;
    assert!(text.starts_with("it does not fit: the run itself died at entry 1"), "{text}");
    assert!(text.contains("\n  fits            no\n"), "{text}");
}

/// The fixed run gets further and so reserves more: growth beyond the peak of a run that died is not known to be growth (3),
/// but a size is a bound no matter what it is compared with (1).
#[test]
fn a_run_that_died_compared_with_the_fixed_one() {
    let folder = Folder::new("died-diff");
    let died = cut(&folder, "5GiB");
    let fixed = format!("{}/../conformance/recordings/resnet50_sweep.default.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let code = |args: &[&str]| call(&[&["diff"], args].concat()).code;
    assert_eq!(code(&[&died, &fixed]), 0, "nothing is checked");
    assert_eq!(code(&[&died, &fixed, "--fail-above", "2%"]), 3, "its peak is not all that the first run would have reserved");
    assert_eq!(code(&[&died, &fixed, "--fail-above", "6GiB"]), 1, "the fixed run reserves 6.62 GiB");
    assert_eq!(code(&[&died, &fixed, "--fail-above", "7GiB"]), 0);
    assert_eq!(code(&[&fixed, &died, "--fail-above", "2%"]), 3, "what is checked is what came before it died");
    let out = call(&["diff", &died, &fixed]).out;
    assert!(out.contains("out of memory: A: 1 request ran out of memory") && out.contains("the run died"), "{out}");
}
