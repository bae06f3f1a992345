//! The answers of `parkade report` do not contradict each other: one limit, one recommendation, in every part of a page.

use std::fs;

use crate::common::pages::{page, pieces, shipped};
use crate::common::*;
use parkade_recording::DeviceRecording;
use serde_json::Value;

/// The report as one JSON object.
fn object(file: &str, more: &[&str]) -> Value {
    let run = call(&[&["report", "--json", file], more].concat());
    serde_json::from_str(run.out.trim_end()).expect("JSON")
}

/// Without a limit and a capacity there is as much memory as is needed, so the absence of failures says nothing.
#[test]
fn whether_it_fits_is_said_only_of_a_known_capacity() {
    let file = shipped("prefetch_streams.limit6");
    let own = |more: &[&str]| {
        let run = call(&[&["report", &file], more].concat());
        let row = run.out.lines().find(|line| line.ends_with("(the run's own)")).expect("a row").to_owned();
        let fits = object(&file, more)["devices"][0]["what_if"][0]["fits"].clone();
        (row.get(15..20).expect("a column").trim().to_owned(), fits)
    };
    assert_eq!(own(&[]), ("-".to_owned(), Value::Null));
    assert_eq!(own(&["--limit", "6GiB"]), ("yes".to_owned(), true.into()));
    assert_eq!(own(&["--capacity", "4GiB"]), ("no".to_owned(), false.into()));
}

/// A peak is named by the entry that led to it, counted from 0 as in `diagnose`.
#[test]
fn peaks_are_at_the_entries_that_diagnose_names() {
    for name in ["resnet50_sweep.default", "gpt2_varlen.limit12_oom", "deep_mlp.default"] {
        let file = shipped(name);
        let run = call(&["diagnose", "--json", &file]);
        let diagnosed: Value = serde_json::from_str(run.out.trim_end()).expect("JSON");
        let (peaks, device) = (&diagnosed["devices"][0]["peaks"], &object(&file, &[])["devices"][0]);
        assert!(peaks["allocated_entry"].is_u64(), "{name}: {peaks}");
        assert_eq!(device["peak_allocated_entry"], peaks["allocated_entry"], "{name}");
        assert_eq!(device["peak_reserved_entry"], peaks["allocated_at_reserved_entry"], "{name}");
    }
    let folder = Folder::new("report-peaks");
    let file = folder.recording("good.pickle", &good());
    let entry = object(&file, &[])["devices"][0]["peak_allocated_entry"].as_u64().expect("an entry");
    let text = call(&["report", &file]).out;
    assert!(text.contains(&format!("at the peak of allocated memory (after entry {entry})")), "{text}");
    assert!(page(&folder, &file, &[]).contains(&format!("bytes, entry {entry}<")), "{entry}");
}

/// An out-of-memory error shows the limit. Everything in the report then assumes it, and says so.
#[test]
fn an_assumed_limit_is_that_of_the_whole_report() {
    let folder = Folder::new("report-assumed");
    for (name, gib) in [("gpt2_varlen.limit12_oom", 12_u64), ("resnet50_sweep.limit5_oom", 5)] {
        let file = shipped(name);
        let (mut assumed, mut given) = (object(&file, &[]), object(&file, &["--limit", &format!("{gib}GiB")]));
        // What the limit decides is known only if the limit is given; what is known for every possible limit also holds for the
        // given one.
        let outcomes = |report: &mut Value| -> Vec<Value> {
            report["devices"][0]["what_if"].as_array_mut().expect("rows").iter_mut().map(|row| row["outcome"].take()).collect()
        };
        let pairs: Vec<_> = outcomes(&mut assumed).into_iter().zip(outcomes(&mut given)).collect();
        assert!(pairs.iter().all(|(assumed, given)| assumed == "unknown" || assumed == given), "{name}: {pairs:?}");
        assert!(pairs.iter().all(|(_, given)| given != "unknown"), "{name}: {pairs:?}");
        assert_eq!((&assumed["limit_bytes"], &assumed["capacity_bytes"]), (&Value::Null, &(gib << 30).into()));
        assert!(assumed["capacity_hint"]["least_bytes"].as_u64() <= Some(gib << 30), "{name}");
        assert_eq!(given["capacity_hint"], Value::Null);
        for key in ["what_if", "mismatches", "markers", "holders_at_peak"] {
            assert_eq!(assumed["devices"][0][key], given["devices"][0][key], "{name}: {key}");
        }
        let note = format!("A limit of {gib}.00 GiB is assumed: the out-of-memory error at entry ");
        assert!(assumed["devices"][0]["notes"][0].as_str().is_some_and(|said| said.starts_with(&note)), "{name}");
        let page = page(&folder, &file, &[]);
        assert!(page.contains(&note) && page.contains("<dt>limit, assumed</dt>"), "{name}");
        assert!(page.contains(&format!("on a simulated device with {gib}.00 GiB (assumed, see above)")), "{name}");
        let data = &pieces(&page)[0].0;
        assert_eq!((&data["tried_bytes"], &data["limit_bytes"]), (&(gib << 30).into(), &(gib << 30).into()));
    }
}

/// Without a limit each device of a file has its own, in the table, the JSON object, the page and the box alike.
#[test]
fn each_device_has_one_limit_everywhere() {
    let folder = Folder::new("report-limits");
    let mut both = died_of_a_hole();
    let more = DeviceRecording { device: 1, ..reuses_a_part().devices.remove(0) };
    both.devices.push(more);
    let file = folder.recording("both.pickle", &both);
    let report = object(&file, &[]);
    let of_device = |key: &str| [0, 1].map(|place| report["devices"][place][key].clone());
    assert_eq!(of_device("capacity_bytes"), [Value::from(1024 * MIB), Value::from(1024 * MIB)], "{report}");
    let advice: Value = serde_json::from_str(call(&["advise", "--json", &file]).out.trim_end()).expect("JSON");
    assert_eq!(report["capacity_bytes"], advice["capacity_bytes"]);
    assert_eq!((&report["capacity_hint"]["entry"], &report["limit_bytes"]), (&advice["capacity_hint"]["entry"], &Value::Null));
    let note = "Device 1 shows no limit; 1.00 GiB is assumed (--limit sets it).";
    assert!(of_device("notes")[1].as_array().is_some_and(|notes| notes.contains(&note.into())), "{report}");
    let text = call(&["report", &file]).out;
    assert_eq!(text.matches("with other settings, in 1.00 GiB (assumed)").count(), 2, "{text}");
    let page = page(&folder, &file, &[]);
    for (data, _) in pieces(&page) {
        assert_eq!((&data["tried_bytes"], &data["limit_is_assumed"]), (&(1024 * MIB).into(), &true.into()));
    }
    assert_eq!(page.matches("<dt>limit, assumed</dt>").count(), 2);
    // A given value applies to both.
    let given = object(&file, &["--limit", "2GiB"]);
    assert_eq!((&given["limit_bytes"], &given["devices"][1]["capacity_bytes"]), (&(2048 * MIB).into(), &(2048 * MIB).into()));
}

/// If the limit is known only as a range, what only part of the range allows is unknown, whichever settings are recommended.
#[test]
fn every_row_is_judged_by_the_whole_range() {
    let folder = Folder::new("report-range");
    let file = folder.recording("died.pickle", &died_of_a_hole());
    let target = format!("{}/page.html", folder.path());
    let other = "expandable_segments:True,roundup_power2_divisions:[256:1,>:1]";
    let report = object(&file, &["--settings", other, "-o", &target]);
    let rows = report["devices"][0]["what_if"].as_array().expect("rows");
    let served: Vec<&Value> = rows.iter().filter(|row| row["fails_at_entry"].is_null()).collect();
    assert!(served.len() >= 2 && served.iter().any(|row| row["recommended"] == true), "{rows:?}");
    assert!(rows.iter().all(|row| row["outcome"] == "unknown"), "{:?}", served);
}

/// What `advise` says about settings.
fn option<'a>(advice: &'a Value, settings: &str) -> Option<&'a Value> {
    advice["options"].as_array().expect("options").iter().find(|option| option["settings"] == settings)
}

/// A page shows the run that `advise` judges: up to the error that ended it, and the estimated rest.
#[test]
fn the_rest_of_a_run_that_died_is_that_of_advise() {
    let folder = Folder::new("report-rest");
    let target = format!("{}/rest.html", folder.path());
    for (name, died_at) in [("gpt2_varlen.limit12_oom", 7268), ("resnet50_sweep.limit5_oom", 12_604)] {
        let file = shipped(name);
        let advice: Value = serde_json::from_str(call(&["advise", "--json", &file]).out.trim_end()).expect("JSON");
        let device = object(&file, &["-o", &target, "--force"])["devices"][0].clone();
        assert_eq!(device["rest"]["after_entry"], advice["endings"][0]["at_entry"], "{name}");
        assert_eq!(device["rest"]["after_entry"], died_at, "{name}");
        let mut compared = 0;
        for row in device["what_if"].as_array().expect("rows") {
            let settings = row["settings"].as_str().filter(|settings| *settings != "default").unwrap_or("");
            let Some(option) = option(&advice, settings) else { continue };
            for key in ["peak_reserved_bytes", "retries", "driver_us"] {
                assert_eq!(row["with_rest"][key], option[key], "{name}: {key} with {settings:?}");
            }
            compared += 1;
        }
        assert!(compared >= 3, "{name}");
        let page = fs::read_to_string(&target).expect("a page");
        let data = &pieces(&page)[0].0;
        assert_eq!(data["rest"]["died_at"], died_at, "{name}");
        let entries = data["rest"]["entries"].as_u64().expect("a number");
        assert_eq!(entries, died_at + 1 + device["rest"]["entries"].as_u64().expect("a number"), "{name}");
        assert!(page.contains("and the estimated ones after it, under each setting"), "{name}");
        assert!(page.contains(", including the estimated rest</p>"), "{name}: what the settings cost");
    }
    let whole = object(&shipped("deep_mlp.default"), &[])["devices"][0].clone();
    assert!(whole["rest"].is_null() && whole["what_if"][0]["with_rest"].is_null());
}

/// The box, the table and the graph of a page are about the same settings in the same memory, and `advise` says the same.
#[test]
fn the_recommended_settings_are_in_the_table_and_the_graph() {
    let folder = Folder::new("report-recommended");
    for name in ["gpt2_varlen.limit12_oom", "resnet50_sweep.limit5_oom", "deep_mlp.default"] {
        let file = shipped(name);
        let advice: Value = serde_json::from_str(call(&["advise", "--json", &file]).out.trim_end()).expect("JSON");
        let page = page(&folder, &file, &[]);
        let data = &pieces(&page)[0].0;
        assert_eq!(data["tried_bytes"], advice["capacity_bytes"], "{name}");
        let tried = data["tried"].as_array().expect("settings");
        let recommended: Vec<&Value> = tried.iter().filter(|one| one["is_recommended"] == true).collect();
        let Some(settings) = advice["recommendation"]["settings"].as_str() else {
            assert!(recommended.is_empty(), "{name}");
            continue;
        };
        assert_eq!(recommended.len(), 1, "{name}: {tried:?}");
        assert_eq!(recommended[0]["label"], if settings.is_empty() { "default settings" } else { settings }, "{name}");
        let rows = page.split("<tr data-tried=").skip(1).map(|rest| rest.split_once("</tr>").expect("an end").0);
        let row = rows.filter(|row| row.contains("recommended</em>")).collect::<Vec<_>>();
        // With the estimated rest of a run that died.
        let peak = option(&advice, settings).expect("the recommended option")["peak_reserved_bytes"].to_string();
        let digits: String = row[0]
            .split_once("title=\"")
            .expect("bytes")
            .1
            .chars()
            .take_while(|c| *c != ' ')
            .filter(char::is_ascii_digit)
            .collect();
        assert_eq!((row.len(), digits), (1, peak), "{name}: {row:?}");
        let said = match advice["outcome"].as_str() {
            Some("fits") => ">yes<",
            Some("gets_past") => ">past it, entry ",
            _ => ">–<",
        };
        assert!(row[0].contains(said), "{name}: {row:?}");
        let died = object(&file, &[])["devices"][0]["ending"] == "died";
        assert_eq!(page.contains("The run died of the out-of-memory error"), died, "{name}");
    }
}
