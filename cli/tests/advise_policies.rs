//! `parkade advise --policy`: what one of parkade's policies would need, next to the needs of settings.

use crate::common::documented::check_text;
use crate::common::{Folder, Run, call, good, pages::shipped, reuses_a_part};
use parkade_recording::DeviceRecording;
use serde_json::Value;

const EXPANDABLE: [&str; 3] = ["--settings", "expandable_segments:True", "--only"];

fn text(arguments: &[&str]) -> (i32, String) {
    let Run { code, out, err } = call(&[&["advise"], arguments].concat());
    (code, format!("{out}{err}").split_whitespace().collect::<Vec<_>>().join(" "))
}

fn json(arguments: &[&str]) -> (i32, Value) {
    let run = call(&[&["advise", "--json"], arguments].concat());
    let last = run.out.lines().last().unwrap_or_default();
    (run.code, serde_json::from_str(last).unwrap_or_else(|_| panic!("a JSON object: {}{}", run.out, run.err)))
}

/// The program holds 11.59 GiB including the request that ended it, and no policy can serve it in less.
#[test]
fn of_a_run_that_died_the_request_that_ended_it_is_asked_for_too() {
    let file = shipped("gpt2_varlen.limit12_oom");
    let asked = [&[&file[..], "--limit", "11GiB", "--policy", "compaction"], &EXPANDABLE[..]].concat();
    let (code, object) = json(&asked);
    let needs = &object["policies"][0];
    assert_eq!((code, &needs["fits"], &needs["gets_past"]), (1, &false.into(), &false.into()), "{needs}");
    assert_eq!((&needs["outcome"], &needs["fails_at_entry"]), (&"does_not_fit".into(), &7268.into()), "{needs}");
    let live = object["live"][0]["peak_bytes"].as_u64().expect("bytes");
    assert!(needs["smallest_capacity_bytes"].as_u64() >= Some(live), "{needs}");
    let (_, said) = text(&asked);
    assert!(
        said.contains("instead of settings: it does not get past entry 7268, where the run died; it needs at least 1"),
        "{said}"
    );
    assert!(!said.contains("instead of settings: it fits"), "{said}");
}

/// Settings and policies receive the same requests: those in the file, and the estimated rest.
#[test]
fn what_gets_past_the_failure_is_no_plain_fit() {
    let file = shipped("gpt2_varlen.limit12_oom");
    let asked = [&[&file[..], "--limit", "12GiB", "--policy", "compaction"], &EXPANDABLE[..]].concat();
    let (_, object) = json(&asked);
    let needs = &object["policies"][0];
    assert_eq!((&needs["fits"], &needs["gets_past"]), (&false.into(), &true.into()), "{needs}");
    assert_eq!((&needs["outcome"], &needs["fails_at_entry"]), (&"gets_past".into(), &Value::Null), "{needs}");
    let (_, said) = text(&asked);
    let past =
        "instead of settings: it gets past entry 7268, where the run died; the rest is not in the file and is estimated to need ";
    assert!(said.contains(past), "{said}");
}

#[test]
fn a_policy_that_does_not_serve_the_requests_leaves_the_advice_as_it_is() {
    let file = shipped("pools/mempool.default.2");
    let asked = [&file[..], "--policy", "bfc:kind=one-region", "--policy", "compaction", "--settings", "", "--only"];
    let (code, object) = json(&asked);
    assert_eq!((code, &object["outcome"]), (0, &"unknown".into()), "as without policies: {object}");
    let needs = &object["policies"][0];
    assert_eq!((&needs["fits"], &needs["outcome"]), (&false.into(), &"does_not_fit".into()), "{needs}");
    assert_eq!((&needs["smallest_capacity_bytes"], &needs["driver_us"]), (&Value::Null, &Value::Null), "{needs}");
    assert!(needs["not_served"].as_str().is_some_and(|why| why.starts_with("it runs out of memory at entry ")), "{needs}");
    assert!(object["policies"][1]["smallest_capacity_bytes"].is_u64(), "{object}");
    let (code, said) = text(&asked);
    let line = "with parkade.enable(policy=\"bfc:kind=one-region\") instead of settings: it cannot serve these requests, however much memory there is: it runs out of memory at entry ";
    assert!(code == 0 && said.contains(line) && said.contains("keep the settings as they are"), "{code}: {said}");
    assert!(!said.contains("OutOfMemory"), "{said}");
}

/// The simulated device has 4 TiB if no memory size is given.
#[test]
fn the_simulated_device_is_no_result_of_a_policy_that_takes_all_memory() {
    let file = shipped("deep_mlp.default");
    let asked = [&file[..], "--settings", "", "--only", "--policy", "bfc:kind=one-region", "--policy", "pytorch"];
    let (_, object) = json(&asked);
    for needs in object["policies"].as_array().expect("policies") {
        assert!(needs["peak_reserved_bytes"].as_u64().is_some_and(|bytes| bytes < 3 << 30), "{needs}");
    }
    let (_, said) = text(&asked);
    assert!(
        said.contains("; it takes a share of the device's entire memory, and with that much it reserves at most 2.6"),
        "{said}"
    );
    assert_eq!(said.matches("it takes a share").count(), 1, "{said}");
}

#[test]
fn more_memory_than_any_device_has_is_enough() {
    let file = shipped("deep_mlp.default");
    let limit = u64::MAX.to_string();
    let (_, object) = json(&[&file[..], "--limit", &limit, "--settings", "", "--only", "--policy", "compaction"]);
    assert_eq!(object["policies"][0]["fits"], true, "{object}");
}

/// Frees that wait for other streams are the only thing in which the two differ; the end of a MemPool is the same.
#[test]
fn policies_are_compared_with_settings_by_one_measure() {
    let asked = |file: &str| json(&[&[&shipped(file)[..], "--policy", "pytorch-expandable"], &EXPANDABLE[..]].concat()).1;
    let mempool = asked("pools/mempool.default.2");
    let replayed =
        mempool["options"].as_array().expect("options").iter().find(|option| option["given"] == true).expect("it was tried");
    let needs = &mempool["policies"][0];
    assert_eq!(needs["smallest_capacity_bytes"], replayed["smallest_capacity_bytes"], "{needs}");
    assert_eq!(needs["smallest_capacity_bytes"], needs["expandable_smallest_capacity_bytes"], "{needs}");
    let streams = shipped("prefetch_streams.default");
    let (_, said) = text(&[&[&streams[..], "--policy", "compaction"], &EXPANDABLE[..]].concat());
    let measure = "a policy that runs short of memory does not wait for it; measured this way, expandable_segments:True needs \
                   4.60 GiB";
    assert!(said.contains(measure), "{said}");
}

#[test]
fn without_a_trace_it_is_said_that_no_policy_is_tried() {
    let folder = Folder::new("policies-no-trace");
    let mut segments = good();
    segments.devices[0].trace.clear();
    let file = folder.recording("segments.pickle", &segments);
    let note = "--policy is not tried: without a trace, their requests are unknown";
    let (code, said) = text(&[&file, "--policy", "best-fit-remap"]);
    assert!(code == 3 && said.contains(note), "{code}: {said}");
    let (_, object) = json(&[&file, "--policy", "best-fit-remap"]);
    assert_eq!((&object["policies"], &object["notes"][0]), (&Value::Array(Vec::new()), &note.into()));
    let (_, said) = text(&[&file, "--policy", "best-fit-remap", "--settings", ""]);
    assert!(said.contains("--settings and --policy are not tried: "), "{said}");
    assert!(!text(&[&file]).1.contains("not tried"), "nothing is named");
}

#[test]
fn what_is_named_is_tried_once_and_a_name_that_is_unknown_is_refused_before_any_file_is_read() {
    let folder = Folder::new("policies-named");
    let file = folder.recording("program.pickle", &reuses_a_part());
    let (code, object) = json(&[&file, "--only", "--policy", "best-fit-remap", "--policy", "best-fit-remap"]);
    assert_eq!((code, object["policies"].as_array().map(Vec::len)), (0, Some(1)), "{object}");
    assert_eq!(object["options"].as_array().map(Vec::len), Some(1), "only the recording's own settings: {object}");
    assert_eq!(call(&["advise", &file, "--only"]).code, 2, "nothing is named");
    let unknown = call(&["advise", "missing.pickle", "--policy", "zzz"]);
    assert!(unknown.code == 2 && !unknown.err.contains("missing.pickle"), "{}", unknown.err);
    assert!(
        unknown.err.contains("'--policy <NAME>': there is no policy \"zzz\"; parkade sweep --list lists all"),
        "{}",
        unknown.err
    );
}

#[test]
fn of_several_ranks_each_policy_is_told_for_all() {
    let folder = Folder::new("policies-ranks");
    for (number, rank) in [reuses_a_part(), good()].iter().enumerate() {
        folder.recording(&format!("rank{number}.pickle"), rank);
    }
    // One holds 120 MiB, the other 20 MiB.
    let asked = |limit| [folder.path(), "--only", "--policy", "best-fit-remap", "--policy", "compaction", "--limit", limit];
    let (_, object) = json(&asked("140MiB"));
    let breaking = &object["one_setting"]["policies"][1];
    assert_eq!((&breaking["policy"], &breaking["outcome"]), (&"compaction".into(), &"fits".into()), "{object}");
    assert_eq!(
        (&breaking["needs_most_rank"], breaking["worst_ranks"].as_array().map(Vec::len)),
        (&0.into(), Some(2)),
        "{object}"
    );
    check_text("Ranks", &object.to_string());
    let (_, said) = text(&asked("140MiB"));
    assert!(said.contains("instead of one setting: all 2 ranks fit; rank 0 needs the most, 12"), "{said}");
    let (_, said) = text(&asked("100MiB"));
    assert!(said.contains("instead of one setting: rank 0 fails; rank 0 needs the most, 12"), "{said}");
}

#[test]
fn of_several_devices_the_one_on_which_it_fares_worst_is_named() {
    let folder = Folder::new("policies-devices");
    let mut both = reuses_a_part();
    both.devices.insert(0, DeviceRecording { device: 3, ..good().devices[0].clone() });
    let file = folder.recording("both.pickle", &both);
    let asked = [&file[..], "--only", "--policy", "compaction", "--capacity", "100MiB"];
    let (_, said) = text(&asked);
    assert!(said.contains("instead of settings: on device 0 it does not fit, needs at least 12"), "{said}");
    let (_, object) = json(&asked);
    let needs = &object["policies"][0];
    assert_eq!((&needs["fits"], &needs["outcome"]), (&false.into(), &"does_not_fit".into()), "{needs}");
}

/// The run continues without them, so the policy need not serve them.
#[test]
fn requests_that_a_run_did_without_are_left_out() {
    let folder = Folder::new("policies-survived");
    let (source, file) = (shipped("prefetch_streams.default"), format!("{}/survived.pickle", folder.path()));
    let run = call(&["export", &source, "--limit", "4GiB", "-o", &file]);
    assert!(run.out.contains("out of memory"), "{}{}", run.out, run.err);
    let asked = [&[&file[..], "--limit", "8GiB", "--policy", "compaction"], &EXPANDABLE[..]].concat();
    let (_, object) = json(&asked);
    let needs = &object["policies"][0];
    assert_eq!((&needs["outcome"], &needs["failed_requests"]), (&"fits".into(), &41.into()), "{needs}");
    let (_, said) = text(&asked);
    assert!(said.contains("; 41 requests whose failure the recorded run survived are left out"), "{said}");
}
