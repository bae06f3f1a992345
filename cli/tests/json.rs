//! Compares docs/json.md with what the binary prints: every key that appears is documented, and every documented key appears.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::documented::{check_all, documented, is_path_of, keys};
use crate::common::*;
use parkade_recording::Action;
use serde_json::Value;

const SMALL_MODEL: &str = "transformer:mixed=on,steps=2,layers=2,hidden=256,heads=4,vocabulary=1000,sequence=128";

/// The keys that the runs below do not print, by section; first those that are missing in every section.
const RARE: [(&str, &[&str]); 12] = [
    ("", &["made_by.differing[]", "made_by.refuted_limit"]),
    ("advise", &["otherwise[]", "read_otherwise[]", "enough", "options[].devices"]),
    ("diagnose --message", &["other_frameworks[]", "limit", "private_pools"]),
    ("diff", &["a.made_by.differing[]", "a.made_by.refuted_limit", "b.made_by.differing[]", "b.made_by.refuted_limit"]),
    ("pack", &["devices"]),
    ("replay", &["read_otherwise", "devices"]),
    ("report", &["capacity_hint", "devices[].holders_without_stack", "devices[].what_if[].with_rest", "devices[].rest"]),
    ("stats", &["left_out[]", "devices[].end_without_trace"]),
    ("stats --policy", &["devices[].end_without_trace"]),
    (
        "sweep",
        &[
            "overlap.kept[]",
            "plan.workloads[].hash",
            "plan.preallocate",
            "policies[].without_outlier",
            "policies[].workloads[].versus_baseline",
            "bounds[].page_ideal_over_load",
            "bounds[].packing_over_load",
            "policies[].workloads[].first_excess",
            "parameters[]",
            "least_p_of_parameters",
        ],
    ),
    (
        "verify",
        &[
            "tolerated.unknown_top_keys.*",
            "tolerated.unknown_segment_keys.*",
            "tolerated.unknown_block_keys.*",
            "tolerated.unknown_entry_keys.*",
            "tolerated.unknown_actions.*",
            "not_in_file.guessed_pools",
            "devices",
        ],
    ),
    ("sweep --largest-batch", &["points[].next.state_bytes", "points[].next.reason"]),
];

/// Runs the commands and compares what they print with a section.
fn check(heading: &str, commands: &[&[&str]]) {
    let lines = commands.iter().map(|args| {
        let run = call(args);
        assert_ne!(run.code, 2, "{args:?}: {}", run.err);
        run.out
    });
    let rare = RARE.iter().filter(|(of, _)| [heading, ""].contains(of)).flat_map(|(_, rare)| rare.iter().copied());
    check_all(heading, &lines.collect::<String>(), &rare.collect::<Vec<_>>());
}

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../conformance/recordings/{name}"));
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn recordings() {
    let (limited, out_of_memory) = (shipped("prefetch_streams.limit6.pickle.xz"), shipped("resnet50_sweep.limit5_oom.pickle.xz"));
    let (cut, statistics) = (shipped("gpt2_varlen.frames_tail20k.pickle.xz"), shipped("prefetch_streams.limit6.stats.json"));
    let folder = Folder::new("json-verify");
    let diverging = folder.recording("diverging.pickle", &diverging());
    let mut values: Value = serde_json::from_slice(&fs::read(&statistics).expect("statistics")).expect("JSON");
    values["num_device_alloc"] = 77_777.into();
    values["unheard_of"] = 1.into();
    let wrong = folder.file("wrong.json", values.to_string().as_bytes());
    let mut leaves_out = good();
    leaves_out.devices[0].trace.retain(|entry| entry.action != Action::FreeRequested);
    let leaves_out = folder.recording("leaves-out.pickle", &leaves_out);
    check(
        "verify",
        &[
            &["verify", "--json", &limited, &out_of_memory, &cut, &diverging, &leaves_out],
            &["verify", "--json", &limited, "--stats", &statistics],
            &["verify", "--json", &limited, "--stats", &wrong],
        ],
    );
    check(
        "replay",
        &[
            &["replay", "--json", &limited],
            &["replay", "--json", &cut, "--settings", "", "--limit", "1GiB"],
            &["replay", "--json", &cut, "--policy", "compaction", "--limit", "1GiB"],
        ],
    );
    check(
        "diagnose",
        &[
            &["diagnose", "--json", &out_of_memory],
            &["diagnose", "--json", &cut],
            &["diagnose", "--json", &shipped("stacks/saved_hooks_packing.all_oom.pickle.xz")],
            &["diagnose", "--json", &limited, "--entry", "3000", "--limit", "6GiB"],
        ],
    );
    check(
        "diff",
        &[
            &["diff", "--json", &limited, &shipped("prefetch_streams.default.pickle.xz"), "--fail-above", "2%"],
            &["diff", "--json", &cut, "--steps", "19:23"],
            &["diff", "--json", &cut, &shipped("gpt2_varlen.default.pickle.xz")],
            &["diff", "--json", &out_of_memory, "--fail-above", "1GiB"],
        ],
    );
    check("stats", &[&["stats", "--json", &limited, "--steps"], &["stats", "--json", &limited, "--entry", "5"]]);
    check("report", &[&["report", "--json", &limited, "--limit", "6GiB"]]);
    let policy = ["--policy", "bfc", "--bounds", "100000"];
    check(
        "stats --policy",
        &[
            &[&["stats", "--json", &limited, "--steps"], &policy[..]].concat(),
            &[&["stats", "--json", "-w", "mlp"], &policy[..]].concat(),
        ],
    );
    check("stats --lifetimes", &[&["stats", "--json", &limited, "--lifetimes"]]);
    let short = [&["report", "--json", &limited, "--capacity", "4GiB"], &policy[..]].concat();
    check("report --policy", &[&[&["report", "--json", &limited], &policy[..]].concat(), &short]);
    check("pack", &[&["pack", "--json", &out_of_memory, "--budget", "1000"]]);
    let output = format!("{}/exported.pickle", folder.path());
    check("export", &[&["export", "--json", &limited, "-o", &output]]);
    check("export --policy", &[&["export", "--json", &limited, "--policy", "bfc", "-o", &output, "--force"]]);
    let only = ["--settings", "expandable_segments:True", "--only"];
    check(
        "advise",
        &[
            &[&["advise", "--json", &out_of_memory, "--capacity", "1GiB"], &only[..]].concat(),
            &[&["advise", "--json", &limited], &only[..]].concat(),
            // Without a limit, and with one that the recording contradicts.
            &[&["advise", "--json", &out_of_memory], &only[..]].concat(),
            &[&["advise", "--json", &out_of_memory, "--limit", "24GiB", "--policy", "compaction"], &only[..]].concat(),
        ],
    );
    let mut no_trace = good();
    no_trace.devices[0].trace.clear();
    let no_trace = folder.recording("no-trace.pickle", &no_trace);
    check("advise without a trace", &[&["advise", "--json", &no_trace]]);
    check("stats", &[&["stats", "--json", &limited], &["stats", "--json", &no_trace]]);
}

/// What has no separate section below: several devices at once.
#[test]
fn several_devices() {
    let folder = Folder::new("json-devices");
    let mut two = good();
    two.devices.push(good().devices.remove(0));
    two.devices[1].device = 1;
    let two = folder.recording("two.pickle", &two);
    check_devices("verify", &["verify", "--json", &two]);
    check_devices("replay", &["replay", "--json", &two]);
    check_devices("replay", &["replay", "--json", &two, "--policy", "best-fit-remap"]);
    check_devices("pack", &["pack", "--json", &two, "--budget", "1000"]);
}

/// Every key is documented; those for a single device are missing.
fn check_devices(heading: &str, args: &[&str]) {
    let run = call(args);
    let mut found = BTreeSet::new();
    let object: Value = serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{args:?}: {error}: {}", run.err));
    keys(&object, &[], &mut found);
    let rows = documented(heading);
    for path in &found {
        let top = path.strip_prefix(&["devices[]".to_owned()]).unwrap_or(path);
        let is_known = |path: &[String]| rows.iter().any(|row| is_path_of(&row.path, path));
        assert!(is_known(path) || is_known(top), "{heading}: {} is not in docs/json.md", path.join("."));
    }
    assert_eq!(object["devices"].as_array().map(Vec::len), Some(2));
}

#[test]
fn messages() {
    let text = "CUDA out of memory. Tried to allocate 4.88 GiB. GPU 0 has a total capacity of 39.59 GiB of which 1.51 GiB is free. \
                Of the allocated memory 30.00 GiB is allocated by PyTorch, and 6.37 GiB is reserved by PyTorch but unallocated.";
    let log = format!(
        "12:00:02 [rank1]: {text}\n12:00:01 [rank0]: {text}\n12:00:03 [rank2]: {}",
        &text[..text.find("Of the").expect("words")]
    );
    check("diagnose --message", &[&["diagnose", "--json", "--message", text], &["diagnose", "--json", "--message", &log]]);
}

#[test]
fn studies() {
    let sweep = ["sweep", "--json", "-w", "mlp", "-p", "pytorch,best-fit-remap", "-c", "1.05", "--bounds", "1000"];
    let seeded = [
        "sweep",
        "--json",
        "-w",
        "mlp,serving:requests=3,slots=2",
        "-p",
        "pytorch,best-fit-remap",
        "-c",
        "1.05",
        "--seeds",
        "2",
        "--bounds",
        "0",
    ];
    let policies = "bfc,best-fit-remap:fit=best/first";
    let fragments = ["sweep", "--json", "-w", "mlp", "-p", policies, "-c", "1.05", "--bounds", "100000"];
    check("sweep", &[&sweep, &seeded, &fragments]);
    check("sweep --list", &[&["sweep", "--list", "--json"]]);
    let folder = Folder::new("json-shard");
    let (one, two, all) = (format!("{}/1", folder.path()), format!("{}/2", folder.path()), format!("{}/all", folder.path()));
    for (shard, file) in [("1/2", &one), ("2/2", &two)] {
        check("sweep --shard", &[&[&sweep[..], &["--shard", shard, "-o", file]].concat()]);
    }
    check("sweep", &[&["merge", "--json", &one, &two, "-o", &all]]);
    let policies = ["--policies", "pytorch,best-fit-remap", "--most-batch", "64", "--capacities", "1GiB,600MiB"];
    check("sweep --largest-batch", &[&[&["sweep", "--largest-batch", "--json", "-w", SMALL_MODEL], &policies[..]].concat()]);
    check("conform", &[&["conform", "--json", "--filter", "scenario/A5"]]);
}

#[test]
fn failures() {
    for args in
        [&["replay", "--json", "/nowhere"][..], &["sweep", "--json", "-w", "/nowhere"], &["diagnose", "--json", "--message", "x"]]
    {
        let run = call(args);
        assert_eq!(run.code, 2, "{args:?}");
        check_all("Failures", &run.out, &["file"]);
    }
}
