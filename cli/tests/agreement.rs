//! No command's answer contradicts another's: all of them run on the same recordings and are compared.
//!
//! For each recording, whole and cut where a tighter limit kills it: peaks, the limit that is assumed, how the run ended, where it failed,
//! whether it fits and with which settings.

use parkade_recording::Action;
use serde_json::Value;

use crate::common::*;

/// The recordings that are compared whole: with and without an error, with several streams. The others take minutes.
const RECORDINGS: [&str; 3] = ["deep_mlp.default", "gpt2_varlen.limit12_oom", "prefetch_streams.limit6"];

/// A recording, and multiples of its live peak under which it is cut.
const CUT: [(&str, &[f64]); 3] =
    [("prefetch_streams.default", &[0.9, 1.15]), ("resnet50_sweep.default", &[0.6]), ("deep_mlp.default", &[0.9])];

fn recording(name: &str) -> String {
    format!("{}/../conformance/recordings/{name}.pickle.xz", env!("CARGO_MANIFEST_DIR"))
}

/// A command's JSON object about a file.
fn answer(command: &str, file: &str, arguments: &[&str]) -> Value {
    let run = call(&[&[command, file, "--json"], arguments].concat());
    serde_json::from_str(run.out.trim()).unwrap_or_else(|_| panic!("{command} {arguments:?} on {file}: {}", run.err))
}

/// The answers about one file under one limit, or under the one that they assume.
struct Answers {
    what: String,
    verify: Value,
    diagnose: Value,
    advise: Value,
    report: Value,
    /// As recorded.
    replay: Value,
}

impl Answers {
    fn of(what: &str, file: &str, limit: Option<u64>, folder: &Folder) -> Answers {
        let limit = limit.map(|limit| limit.to_string() + "B");
        let with_limit: Vec<&str> = limit.iter().flat_map(|limit| ["--limit", limit]).collect();
        let recorded: Vec<&str> = limit.iter().flat_map(|limit| ["--limit", limit, "--recorded-limit", limit]).collect();
        let page = format!("{}/page.html", folder.path());
        Answers {
            what: what.to_owned(),
            verify: answer("verify", file, &with_limit),
            diagnose: answer("diagnose", file, &with_limit),
            advise: answer("advise", file, &recorded),
            replay: answer("replay", file, &recorded),
            // If it writes a page, it searches as advise does.
            report: answer("report", file, &[&with_limit[..], &["-o", &page, "--force"]].concat()),
        }
    }

    fn compare(&self, file: &str) {
        // If a replay differs, its peaks are not the recording's.
        if self.verify["mismatches"] == 0 {
            self.peaks();
        }
        assert_eq!(self.diagnose["devices"][0]["exactness"]["mismatches"], self.verify["mismatches"], "{}: diagnose", self.what);
        self.limit_and_ending();
        self.outcome();
        self.own_run();
        self.replay_agrees(file);
    }

    fn peaks(&self) {
        for kind in ["allocated", "reserved"] {
            let verified = &self.verify[format!("peak_{kind}_bytes")];
            let peak = |answer: &Value, path: &str| answer.pointer(path).cloned().unwrap_or_default();
            assert!(verified.is_u64(), "{}: verify has no peak of {kind} bytes: {verified}", self.what);
            assert_eq!(peak(&self.report, &format!("/devices/0/peak_{kind}_bytes")), *verified, "{}: report", self.what);
            assert_eq!(peak(&self.diagnose, &format!("/devices/0/peaks/{kind}_bytes")), *verified, "{}: diagnose", self.what);
        }
    }

    fn limit_and_ending(&self) {
        let advised = &self.advise["capacity_bytes"];
        let reported =
            if self.report["limit_bytes"].is_null() { &self.report["capacity_bytes"] } else { &self.report["limit_bytes"] };
        assert_eq!(reported, advised, "{}: the limit that report and advise assume", self.what);
        let diagnosed = &self.diagnose["devices"][0]["assumed_limit_bytes"];
        if !diagnosed.is_null() {
            assert_eq!(diagnosed, advised, "{}: the limit that diagnose and advise assume", self.what);
        }
        let ending = &self.advise["endings"][0]["ending"];
        assert_eq!(self.report["devices"][0]["ending"], *ending, "{}: report", self.what);
        assert_eq!(self.diagnose["devices"][0]["ending"], *ending, "{}: diagnose", self.what);
        // The verdicts on why it failed are the same, or neither has one.
        let verdicts = (&self.advise["verdict"], &self.diagnose["devices"][0]["verdict"]);
        assert_eq!(verdicts.0 == "capacity", verdicts.1 == "capacity", "{}: {verdicts:?}", self.what);
        if ending == "died" {
            assert_eq!(self.diagnose["devices"][0]["entry"], self.advise["endings"][0]["at_entry"], "{}: diagnose", self.what);
        }
    }

    /// The page's recommended row has the settings and the outcome of the advice.
    fn outcome(&self) {
        let rows = self.report["devices"][0]["what_if"].as_array().expect("rows");
        let recommended = rows.iter().find(|row| row["recommended"] == true);
        let settings =
            recommended.map(|row| row["settings"].as_str().map(|settings| if settings == "default" { "" } else { settings }));
        let advised = self.advise["recommendation"]["settings"].as_str();
        assert_eq!(settings.flatten(), advised, "{}: the settings that report and advise recommend", self.what);
        if let Some(row) = recommended {
            assert_eq!(row["outcome"], self.advise["outcome"], "{}: report and advise", self.what);
        }
    }

    /// `replay` of the unchanged recorded run agrees with itself, and with what `advise` says about the run's own settings.
    fn own_run(&self) {
        let (replay, own) = (&self.replay, &self.advise["options"][0]);
        assert_eq!(replay["endings"][0], self.advise["endings"][0]["ending"], "{}: replay", self.what);
        if replay["outcome"] != "unknown" {
            assert_eq!(replay["fits"], replay["outcome"] == "fits", "{}: {replay}", self.what);
        }
        let fails = !replay["fails_at_entry"].is_null();
        assert_eq!(fails, replay["ooms"] != 0, "{}: {replay}", self.what);
        assert!(!fails || replay["fits"] == false, "{}: {replay}", self.what);
        if replay["endings"][0] == "died" {
            assert_eq!(replay["limit_bytes"], self.advise["capacity_bytes"], "{}: the limit of replay", self.what);
            assert_eq!(fails, own["gets_past"] == false, "{}: replay {replay}, advise {own}", self.what);
        }
    }

    /// `replay` of the recommended settings under the assumed limit has the same result.
    fn replay_agrees(&self, file: &str) {
        // A replay with one size decides what a range leaves open.
        if let Some(enough) = self.advise["enough"]["bytes"].as_u64() {
            return self.replay_in_range(file, enough);
        }
        let (Some(settings), Some(limit)) =
            (self.advise["recommendation"]["settings"].as_str(), self.advise["capacity_bytes"].as_u64())
        else {
            return;
        };
        let limit = format!("{limit}B");
        let replayed = answer("replay", file, &["--settings", settings, "--limit", &limit]);
        assert_eq!(replayed["outcome"], self.advise["outcome"], "{}: replay", self.what);
        assert_eq!(replayed["endings"][0], self.advise["endings"][0]["ending"], "{}: replay", self.what);
    }

    /// If the limit was in a range: `replay` of the settings gets past every recorded request in the memory that is said to be
    /// enough, and the run's own settings fail just below the lower end of the range.
    fn replay_in_range(&self, file: &str, enough: u64) {
        let settings = self.advise["enough"]["settings"].as_str().expect("settings");
        let outcome = |settings: &[&str], limit: u64| {
            let limit = format!("{limit}B");
            answer("replay", file, &[settings, &["--limit", &limit]].concat())["outcome"].clone()
        };
        let found = outcome(&["--settings", settings], enough);
        assert!(found == "fits" || found == "gets_past", "{}: {settings} in {enough}: {found}", self.what);
        let live = self.advise["live"][0]["peak_bytes"].as_u64().expect("bytes");
        assert_eq!(outcome(&["--settings", settings], live - 1), "does_not_fit", "{}: less than is live", self.what);
        let least = self.advise["capacity_hint"]["least_bytes"].as_u64().expect("bytes");
        assert_eq!(outcome(&[], least), "does_not_fit", "{}: the run's own settings in {least}", self.what);
    }
}

#[test]
fn commands_agree_on_whole_recordings() {
    let folder = Folder::new("agreement_whole");
    for name in RECORDINGS {
        let file = recording(name);
        Answers::of(name, &file, None, &folder).compare(&file);
    }
}

#[test]
#[ignore = "needs a folder of recordings and takes minutes: RECORDINGS=FOLDER cargo test --release -p parkade-cli --test commands agreement:: -- --ignored"]
fn commands_agree_on_every_recording_of_a_folder() {
    let folder = Folder::new("agreement_all");
    let shipped = format!("{}/../conformance/recordings", env!("CARGO_MANIFEST_DIR"));
    let given = std::env::var("RECORDINGS").unwrap_or(shipped);
    let files = std::fs::read_dir(&given).expect("a folder").map(|file| file.expect("a file").path());
    let mut files: Vec<String> = files.filter_map(|path| path.to_str().map(str::to_owned)).collect();
    files.retain(|file| file.ends_with(".pickle.xz"));
    files.sort();
    assert!(!files.is_empty(), "{given} has no .pickle.xz");
    for file in files {
        Answers::of(&file, &file, None, &folder).compare(&file);
    }
}

#[test]
fn commands_agree_on_runs_that_died() {
    let folder = Folder::new("agreement_died");
    for (name, factors) in CUT {
        let peak = answer("verify", &recording(name), &[])["peak_allocated_bytes"].as_u64().expect("a peak");
        for factor in factors {
            let limit = (peak as f64 * factor) as u64;
            let (what, text) = (format!("{name} under {factor} of its peak"), format!("{limit}B"));
            let file = format!("{}/{name}.{factor}.pickle", folder.path());
            let made = call(&["export", &recording(name), "--limit", &text, "--stop-at-oom", "-o", &file]);
            assert!(std::fs::exists(&file).is_ok_and(|is_there| is_there), "{what}: {}", made.err);
            Answers::of(&what, &file, Some(limit), &folder).compare(&file);
            // The smallest of them also without a limit: all assume the same range.
            if name == "deep_mlp.default" {
                Answers::of(&(what + ", not given"), &file, None, &folder).compare(&file);
            }
        }
    }
}

#[test]
fn commands_agree_where_the_limit_was_in_a_range() {
    let folder = Folder::new("agreement_range");
    let file = folder.recording("died.pickle", &died_of_a_hole());
    let answers = Answers::of("a hole", &file, None, &folder);
    assert!(answers.advise["enough"]["bytes"].is_u64(), "{}", answers.advise);
    answers.compare(&file);
}

/// Garbage collection depends on the limit, which the file does not have: every command finds it, and then nothing differs.
#[test]
fn commands_agree_on_the_limit_that_garbage_collection_shows() {
    let file = recording("gpt2_varlen.limit16_gc");
    let limit = Value::from(16_u64 << 30);
    let verified = answer("verify", &file, &[]);
    assert_eq!((&verified["mismatches"], &verified["assumed_limit_bytes"]), (&0.into(), &limit), "verify");
    let replayed = answer("replay", &file, &["--limit", "24GiB"]);
    assert_eq!((&replayed["recorded"]["mismatches"], &replayed["recorded_limit_bytes"]), (&0.into(), &limit), "replay");
    let diagnosed = &answer("diagnose", &file, &[])["devices"][0];
    assert_eq!((&diagnosed["exactness"]["mismatches"], &diagnosed["assumed_limit_bytes"]), (&0.into(), &limit), "diagnose");
    let shown = &answer("stats", &file, &[])["devices"][0];
    assert_eq!((&shown["mismatches"], &shown["assumed_limit_bytes"]), (&0.into(), &limit), "stats");
    let compared = answer("diff", &file, &[&file]);
    assert_eq!(compared["devices"][0]["a"]["mismatches"], 0, "diff");
    let text = call(&["verify", "--all", &file]).out;
    assert!(text.contains("a limit of 16.00 GiB is assumed, which the recording allows (--limit sets it)"), "{text}");
}

/// A run that no setting cures has the same verdict in both commands: the cause, that no setting helps, and what holds the most.
#[test]
fn a_run_that_no_setting_cures_has_one_verdict() {
    let folder = Folder::new("agreement-no-cure");
    // 1000 MiB are held when 420 more are requested of 1100.
    let mut trace = vec![entry(Action::SegmentAlloc, BASE, 1000 * MIB), entry(Action::Alloc, BASE, 1000 * MIB)];
    trace.push(entry(Action::Oom, 100 << 20, 420 * MIB));
    let file = folder.recording("full.pickle", &crate::common::recording(trace, vec![segment(vec![used(BASE, 1000 * MIB)])]));
    let first = |args: &[&str]| call(args).out.lines().next().unwrap_or_default().to_lowercase();
    let advised = first(&["advise", &file, "--limit", "1100MiB"]);
    let diagnosed = first(&["diagnose", &file, "--limit", "1100MiB"]);
    for said in [&advised, &diagnosed] {
        let parts: Vec<&str> = said.split("; ").collect();
        assert!(parts[0].starts_with("capacity: ") && parts.get(1) == Some(&"no setting helps"), "{said}");
    }
}
