//! `--policy` of `report`, `stats` and `export`: a simulation of the program under a policy, in place of the recorded run.

use std::fs;

use serde_json::Value;

use crate::common::{Folder, MIB, call, pages::shipped, reuses_a_part};

const WORKLOAD: &str = "mlp:depth=4,batch=8,steps=4";

fn json(arguments: &[&str]) -> Value {
    let run = call(arguments);
    assert_eq!(run.code, 0, "{arguments:?}: {}", run.err);
    serde_json::from_str(run.out.trim_end()).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", run.out))
}

fn refused(arguments: &[&str], words: &[&str]) {
    let run = call(arguments);
    let said = words.iter().all(|word| run.err.contains(word));
    assert!(run.code == 2 && said && run.err.lines().count() == 1, "{arguments:?}: {} {}", run.code, run.err);
}

#[test]
fn every_command_shows_the_run_of_replay() {
    let folder = Folder::new("under-policy");
    for (file, policy) in [
        ("deep_mlp.default", "pytorch"),
        ("deep_mlp.default", "bfc"),
        ("prefetch_streams.limit6", "compaction"),
        ("prefetch_streams.limit6", "best-fit-remap:handle=20MiB"),
        // Its oldest entries are missing.
        ("gpt2_varlen.frames_tail20k", "gmlake-like"),
    ] {
        let file = shipped(file);
        let out = format!("{}/{}.pickle", folder.path(), policy.replace(':', "."));
        let with = |command| [command, "--json", &*file, "--policy", policy];
        let replayed = json(&with("replay"));
        let stats = json(&[&with("stats")[..], &["--bounds", "0"]].concat());
        let report = json(&[&with("report")[..], &["--bounds", "0"]].concat());
        let exported = json(&[&with("export")[..], &["-o", &out, "--force"]].concat());
        for key in ["peak_reserved_bytes", "peak_allocated_bytes", "retries"] {
            let expected = &replayed[key];
            let found = [&stats["runs"][0][key], &report["devices"][0][key], &exported["devices"][0][key]];
            assert_eq!(found, [expected; 3], "{file} {policy} {key}");
        }
        assert_eq!([&stats["policy"], &report["policy"], &exported["policy"]], [policy; 3], "{file}");
        let last = stats["devices"][0]["moments"].as_array().and_then(|moments| moments.last()).expect("the end");
        let curve = report["devices"][0]["curves"]["reserved_bytes"]["last"].as_array().expect("a curve");
        assert_eq!(curve.last(), Some(&last["measures"]["reserved_bytes"]), "{file} {policy}");
        // The exported file has the same segments at its end.
        let written = parkade_recording::read_file(std::path::Path::new(&out)).expect("a recording");
        let reserved: u64 = written.devices[0].segments.iter().map(|segment| segment.total_bytes).sum();
        assert_eq!(Value::from(reserved), last["measures"]["reserved_bytes"], "{file} {policy}");
        assert_eq!(written.simulated.map(|simulated| simulated.policy.to_string()).as_deref(), Some(policy));
    }
}

/// The heap of the page, block by block, adds up to the allocator's own statistics under every policy.
#[test]
fn the_heap_of_a_page_is_that_of_the_allocator_under_every_policy() {
    let names = json(&["sweep", "--list", "--json"]);
    let names: Vec<&str> =
        names["policies"].as_array().expect("policies").iter().filter_map(|policy| policy["name"].as_str()).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let asked = ["-w", WORKLOAD, "--policy", name, "--capacity", "16GiB", "--bounds", "0", "--json"];
        let report = json(&[&["report"][..], &asked].concat());
        let device = &report["devices"][0];
        let most = |curve: &str| {
            device["curves"][curve]["max"].as_array().and_then(|curve| curve.iter().filter_map(Value::as_u64).max())
        };
        assert_eq!(most("reserved_bytes"), device["peak_reserved_bytes"].as_u64(), "{name}");
        let stats = json(&[&["stats"][..], &asked].concat());
        for key in ["peak_reserved_bytes", "peak_allocated_bytes"] {
            assert_eq!(device[key], stats["runs"][0][key], "{name} {key}");
        }
    }
}

#[test]
fn a_simulation_of_pytorch_is_verified_as_a_recording_of_it() {
    let folder = Folder::new("under-pytorch");
    let file = folder.recording("program.pickle", &reuses_a_part());
    for (policy, more) in [("pytorch", &[][..]), ("pytorch", &["--limit", "140MiB"]), ("pytorch-expandable", &[])] {
        let out = format!("{}/{policy}.pickle", folder.path());
        let written = call(&[&["export", &file, "--policy", policy, "-o", &out, "--force"], more].concat());
        assert!(written.code == 0 && written.out.contains("not of the recorded allocator"), "{}{}", written.out, written.err);
        let verified = call(&[&["verify", &out], more].concat());
        assert_eq!(verified.code, 0, "{policy} {more:?}: {}", verified.out);
    }
    let out = format!("{}/bfc.pickle", folder.path());
    assert_eq!(call(&["export", &file, "--policy", "bfc", "-o", &out]).code, 0);
    let verified = call(&["verify", &out]);
    let words = verified.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(verified.code == 1 && words.contains("parkade's simulation of the policy bfc"), "{}", verified.out);
}

/// Whatever reads the file of a simulation shows the same run, or refuses.
#[test]
fn a_file_of_a_simulation_is_shown_under_its_policy_only() {
    let folder = Folder::new("of-simulation");
    let file = format!("{}/bfc.pickle", folder.path());
    for memory in [&[][..], &["--limit", "600MiB"]] {
        let asked = ["-w", WORKLOAD, "--policy", "bfc", "--json"];
        let made = json(&[&["export"], &asked[..], memory, &["-o", &file, "--force"]].concat());
        let peak = &made["devices"][0]["peak_reserved_bytes"];
        let stats = json(&["stats", &file, "--json"]);
        let report = json(&["report", &file, "--json"]);
        // Exit code 1 says that it does not fit in 600 MiB.
        let replayed = call(&["replay", &file, "--json"]);
        assert_eq!(replayed.code, i32::from(!memory.is_empty()), "{}", replayed.err);
        let replayed: Value = serde_json::from_str(replayed.out.trim_end()).expect("JSON");
        let again = json(&["export", &file, "--json", "-o", &format!("{}/again.pickle", folder.path()), "--force"]);
        let found = [
            &stats["runs"][0]["peak_reserved_bytes"],
            &report["devices"][0]["peak_reserved_bytes"],
            &replayed["peak_reserved_bytes"],
            &replayed["recorded"]["peak_reserved_bytes"],
            &again["devices"][0]["peak_reserved_bytes"],
        ];
        assert_eq!(found, [peak; 5], "{memory:?}");
        assert_eq!([&stats["policy"], &report["policy"], &replayed["policy"], &again["policy"]], ["bfc"; 4]);
        assert!(
            fs::read(&file).expect("a file") == fs::read(format!("{}/again.pickle", folder.path())).expect("a file"),
            "{memory:?}: the second export differs"
        );
    }
    for command in ["diagnose", "advise", "diff"] {
        refused(&[command, &file], &["parkade's simulation of the policy bfc", "parkade stats, report, replay and export"]);
    }
    for command in ["stats", "report", "replay"] {
        refused(&[command, &file, "--profile", "2.5"], &["--profile cannot be combined with the policy bfc"]);
    }
    // Settings replace the policy, and other policies show what they say they do.
    let under_settings = call(&["replay", &file, "--settings", "", "--json"]);
    assert!(under_settings.code == 3 && under_settings.out.contains("\"settings\":\"\""), "{}", under_settings.out);
    assert_eq!(json(&["stats", &file, "--policy", "pytorch", "--bounds", "0", "--json"])["policy"], "pytorch");
    // A limit applies on the device of the file.
    let small = format!("{}/small.pickle", folder.path());
    json(&["export", "-w", WORKLOAD, "--policy", "bfc", "--capacity", "600MiB", "--json", "-o", &small]);
    let beyond = call(&["replay", &small, "--limit", "2GiB", "--json"]);
    assert!(beyond.code == 1 && beyond.out.contains("\"capacity_bytes\":629145600"), "{}", beyond.out);
    let mut other = parkade_recording::read_file(std::path::Path::new(&file)).expect("a recording");
    other.simulated.as_mut().expect("a simulation").policy = "of-another-program".into();
    let other = folder.file("other.pickle", &parkade_recording::write(&other, parkade_recording::Style::Python));
    for command in ["stats", "report", "replay"] {
        refused(&[command, &other], &["of-another-program, which this program does not have", "--policy NAME"]);
    }
}

#[test]
fn a_workload_and_its_requests_are_the_same_program() {
    let folder = Folder::new("under-policy-trace");
    let trace = format!("{}/requests.jsonl", folder.path());
    let written = call(&["export", "-w", WORKLOAD, "--format", "requests", "-o", &trace]);
    assert_eq!(written.code, 0, "{}", written.err);
    // The answer accounts for every line.
    let lines = fs::read_to_string(&trace).expect("a trace").lines().count();
    assert!(written.out.contains(&format!("{} events, one a line, and 4 marks of steps", lines - 4)), "{}", written.out);
    let of = |program: &[&str]| json(&[&["stats", "--json", "--policy", "bfc", "--every", "100"], program].concat());
    let (of_trace, of_workload) = (of(&[&trace]), of(&["-w", WORKLOAD]));
    assert_eq!((&of_trace["program"], &of_workload["program"]), (&"trace".into(), &"workload".into()));
    assert_eq!(of_trace["devices"], of_workload["devices"]);
    assert_eq!(of_trace["runs"], of_workload["runs"]);
    let steps = json(&["stats", "--json", "-w", WORKLOAD, "--policy", "pytorch", "--steps", "--bounds", "0"]);
    assert_eq!(steps["devices"][0]["moments"].as_array().map(Vec::len), Some(4), "a state after each step");
}

#[test]
fn the_first_excess_is_where_the_memory_of_the_packing_runs_out() {
    let asked = ["stats", "--json", &shipped("deep_mlp.default"), "--policy"];
    let found = json(&[&asked[..], &["bfc", "--bounds", "2000000"]].concat());
    let packing = &found["runs"][0]["packing"];
    let excess = &packing["first_excess"];
    assert_eq!((&packing["packing_converged"], &packing["packing_bytes"]), (&true.into(), &packing["load_bytes"]));
    // The same run in this memory fails at the same request.
    let device = excess["device_bytes"].as_u64().expect("bytes");
    let failing = json(&[&asked[..], &["bfc", "--bounds", "0", "--capacity", &device.to_string()]].concat());
    assert_eq!(failing["runs"][0]["fails_at"], excess["at"]);
    let (wanted, free) = (excess["block_bytes"].as_u64(), excess["free_here"]["largest_hole_bytes"].as_u64());
    assert!(wanted > free, "{excess}");
    // The blocks in the way, with the free bytes between them, make enough room.
    let blocks = excess["in_the_way"].as_array().expect("blocks");
    let bytes: u64 = blocks.iter().filter_map(|block| block["bytes"].as_u64()).sum();
    assert_eq!(Some(bytes), excess["bytes_in_the_way"].as_u64());
    let room = bytes + excess["free_here"]["free_bytes"].as_u64().expect("bytes");
    assert!(Some(room) >= wanted && !blocks.is_empty(), "{excess}");
    // The segments that these blocks pin have all of them, and are on the free list of the request.
    let pinned = excess["pinned_segments"].as_array().expect("segments");
    let held: u64 = pinned.iter().filter_map(|segment| segment["blocks_in_the_way"].as_u64()).sum();
    assert_eq!((Some(held), pinned.len()), (excess["blocks_in_the_way"].as_u64(), 1), "{excess}");
    for key in ["pool", "collection", "stream"] {
        assert_eq!(pinned[0][key], excess[key], "{key}");
    }
    assert!(pinned[0]["bytes"].as_u64() >= wanted, "{excess}");
    assert!(blocks.iter().all(|block| block["age_requests"].as_u64() <= block["age_events"].as_u64()), "{excess}");
    let folder = Folder::new("first-excess");
    let file = folder.recording("program.pickle", &reuses_a_part());
    let excess = |policy| json(&["stats", "--json", &file, "--policy", policy])["runs"][0]["packing"]["first_excess"].clone();
    assert_eq!(excess("pytorch-rescue:reach=free"), Value::Null, "it moves free memory");
    assert!(excess("pytorch")["blocks_in_the_way"].as_u64() > Some(0), "{}", excess("pytorch"));
    let text = call(&["stats", &shipped("deep_mlp.default"), "--policy", "bfc", "--bounds", "2000000"]).out;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("first needs more at entry") && words.contains("no packing needs less"), "{text}");
    assert!(words.contains("in the large collection of the default pool on stream 0x0") && words.contains("pin"), "{text}");
    let report = call(&["report", &shipped("deep_mlp.default"), "--policy", "bfc", "--bounds", "2000000"]).out;
    let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(report.contains(" of the recording (entry ") && report.contains(" of the run shown)"), "{report}");
    let cut = call(&["stats", "-w", "gpt2", "--policy", "pytorch", "--bounds", "1"]).out;
    assert!(cut.split_whitespace().collect::<Vec<_>>().join(" ").contains("not converged: no packing needs less than"), "{cut}");
}

#[test]
fn where_the_blocks_in_the_way_were_requested_is_known_with_stacks() {
    let file = shipped("stacks/saved_hooks_packing.all_oom");
    let found = json(&["stats", "--json", &file, "--policy", "bfc", "--bounds", "100000"]);
    let blocks = found["runs"][0]["packing"]["first_excess"]["in_the_way"].as_array().expect("an excess").clone();
    assert!(blocks.iter().any(|block| block["requested_in"].as_str().is_some_and(|call| call.contains(":60 "))), "{blocks:?}");
}

#[test]
fn a_page_says_that_it_shows_a_simulation() {
    let folder = Folder::new("under-policy-page");
    let page = format!("{}/page.html", folder.path());
    for program in [&[&*shipped("deep_mlp.default")][..], &["-w", WORKLOAD]] {
        let asked = ["--policy", "bfc", "--bounds", "100000", "-o", &page, "--force"];
        let written = call(&[&["report"], program, &asked].concat());
        assert_eq!(written.code, 0, "{}", written.err);
        let text = fs::read_to_string(&page).expect("a page");
        for words in ["Simulated under the policy bfc.", "a simulation, not the recorded allocator", "<dd>bfc</dd>"] {
            assert!(text.contains(words), "{program:?}: no {words:?}");
        }
    }
    let perfetto = format!("{}/trace.json", folder.path());
    let asked = ["export", "-w", WORKLOAD, "--policy", "bfc", "--format", "perfetto", "-o", &perfetto];
    assert_eq!(call(&asked).code, 0);
    let trace: Value = serde_json::from_slice(&fs::read(&perfetto).expect("a trace")).expect("JSON");
    assert_eq!(trace["otherData"]["simulated_policy"], "bfc");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 100));
}

#[test]
fn wrong_combinations_say_what_to_do() {
    let folder = Folder::new("under-policy-wrong");
    let file = folder.recording("program.pickle", &reuses_a_part());
    let trace = folder.file("requests.csv", b"op,id,bytes\nallocate,1,1000\n");
    let out = format!("{}/out", folder.path());
    for command in ["stats", "report"] {
        refused(&[command, "-w", "gpt2"], &["no recorded run", "--policy NAME"]);
        refused(&[command, &trace], &["no recorded run", "--policy NAME"]);
        refused(&[command, &file, "--policy", "bfx"], &["there is no policy \"bfx\"", "bfc"]);
        refused(
            &[command, &file, "--policy", "bfc", "--settings", ""],
            &["--settings cannot be combined with the policy bfc", "leave it out"],
        );
        refused(
            &[command, &file, "--policy", "bfc", "--profile", "2.11"],
            &["--profile cannot be combined with the policy bfc", "leave it out"],
        );
        refused(&[command, &file, "-w", "gpt2", "--policy", "bfc"], &["two programs", "leave one out"]);
        refused(&[command, "-w", "nothing", "--policy", "bfc"], &["there is no workload", "parkade sweep --list"]);
    }
    refused(&["report", &file, &file, "--policy", "bfc"], &["--policy shows one recording", "parkade replay --policy"]);
    let requests = ["export", &file, "--policy", "bfc", "--format", "requests", "-o", &out];
    refused(&requests, &["the same under every policy", "leave --policy out"]);
    refused(&["export", "-w", "gpt2", "-o", &out], &["no recorded run", "--policy NAME"]);
    refused(&["stats", "-w", WORKLOAD, "--policy", "bfc", "--device", "1"], &["--device 1", "leave it out"]);
    assert!(!fs::exists(&out).expect("a folder"), "nothing is written");
}

#[test]
fn lifetimes_are_those_of_all_buffers() {
    let of = |program: &[&str]| json(&[&["stats", "--json", "--lifetimes"], program].concat());
    let found = of(&["-w", WORKLOAD]);
    let program = &found["lifetimes"][0];
    assert_eq!((&program["steps"], &program["steps_from"]), (&4.into(), &"marks".into()));
    let classes = program["classes"].as_array().expect("classes");
    let phases: Vec<&str> = classes.iter().filter_map(|class| class["phase"].as_str()).collect();
    assert!(phases.contains(&"setup") && phases.contains(&"steps") && !phases.contains(&"unknown"), "{phases:?}");
    let at_peak: u64 = classes.iter().filter_map(|class| class["at_peak_bytes"].as_u64()).sum();
    assert_eq!(Some(at_peak), program["peak_live_bytes"].as_u64());
    let folder = Folder::new("lifetimes");
    let recorded = of(&[&folder.recording("program.pickle", &reuses_a_part())]);
    let classes = recorded["lifetimes"][0]["classes"].as_array().expect("classes").clone();
    let requests: u64 = classes.iter().filter_map(|class| class["requests"].as_u64()).sum();
    let bytes: u64 = classes.iter().filter_map(|class| class["bytes"].as_u64()).sum();
    assert!(requests > 2 && bytes > 120 * MIB, "{recorded}");
    let csv = call(&["stats", "-w", WORKLOAD, "--lifetimes", "--csv"]).out;
    assert_eq!(csv.lines().next(), Some("device,phase,above_bytes,up_to_bytes,lifetime,requests,bytes,at_peak_bytes"));
    let text = call(&["stats", "-w", WORKLOAD, "--lifetimes"]).out;
    assert!(text.contains("4 steps, as marked") && text.contains("never freed"), "{text}");
    assert!(text.contains("exact size") && text.contains("lifetime of the others"), "{text}");
    let sizes = program["sizes"].as_array().expect("sizes");
    let of = |rows: &[Value], key: &str| rows.iter().filter_map(|row| row[key].as_u64()).sum::<u64>();
    let classes = program["classes"].as_array().expect("classes");
    for key in ["requests", "bytes"] {
        assert_eq!(of(sizes, key), of(classes, key), "{key}");
    }
    assert!(sizes.iter().any(|size| size["least_requests"].as_u64() < size["greatest_requests"].as_u64()), "{sizes:?}");
}
