//! `parkade sweep`: files that are continued, the output, and bad input.

use std::fs;

use crate::common::sweeps::{at, bytes, changed, json, refused, sweep, whole};
use crate::common::{Folder, call, good};

#[test]
fn a_file_is_continued_where_it_ends() {
    let folder = Folder::new("sweep-continued");
    let (rows, shown) = whole(&folder);
    let ends: Vec<usize> = rows.match_indices('\n').map(|(at, _)| at + 1).collect();
    // After the first line, after some rows, in the middle of a row, just before its end, and with nothing left to do.
    for length in [0, ends[0], ends[7], ends[7] + 25, ends[9] - 1, rows.len()] {
        let file = folder.file("cut.jsonl", &rows.as_bytes()[..length]);
        let run = sweep(&folder, &["-o", &file]);
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{length}");
        assert_eq!((&bytes(&file), &run.out), (&rows, &shown), "{length}");
    }
}

#[test]
fn files_that_are_not_of_this_sweep_are_left_alone() {
    let folder = Folder::new("sweep-foreign");
    let (rows, _) = whole(&folder);
    let lines: Vec<&str> = rows.lines().collect();
    let replaced = |line: usize, text: String| {
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        lines[line] = text;
        lines.join("\n") + "\n"
    };
    let swapped = replaced(3, lines[4].to_owned());
    let cases = [
        ("notes\n".to_owned(), "is not a file of rows made by parkade sweep"),
        ("{}\n".to_owned(), "is not a file of rows made by parkade sweep"),
        ("x".repeat(5 << 20), "a line is longer than"),
        (
            lines[0].to_owned(),
            "its first line is missing or cut short, as after an early interruption: remove it, or choose a different file",
        ),
        (rows.replacen("\"parkade_sweep\":4", "\"parkade_sweep\":9", 1), "has format 9"),
        (lines[0].replace("\"1.1\"", "\"1.2\"") + "\n", "has different capacities than requested"),
        (rows.replacen("\"1/1\"", "\"1/2\"", 1), "line 3 is job 1, which is not in part 1/2"),
        (rows.replacen("\"seeds\":2", "\"seeds\":0", 1), "no seeds"),
        (replaced(0, lines[0].replace("\"driver\"", "\"ascending\"")), "has a different address model"),
        (lines[0].replace("\"pytorch-expandable\"", "\"=1+1,x\"") + "\n", "line 1: there is no policy \"=1+1,x\""),
        (
            lines[0].replace("\"pytorch-expandable\"", "\"bfc-xla\"") + "\n",
            "it is called bfc:kind=xla; parkade has changed since",
        ),
        (
            lines[0].replace("\"pytorch-expandable\"", "\"bfc:kind=growth\"") + "\n",
            "the policy \"bfc:kind=growth\" is called bfc;",
        ),
        (replaced(2, "{}".to_owned()), "line 3 is not a row"),
        (replaced(2, "y".repeat(20 << 10)), "line 3: a line is longer than"),
        (swapped, "line 5 is job 3 again"),
        (replaced(2, lines[2].replace("\"plenty\"", "\"smallest\"")), "line 3 contradicts line 1"),
        (rows.clone() + lines[1] + "\n", "line 32 is job 0 again"),
        (rows[..rows.len() / 2].replace("\"program\":\"0.", "\"program\":\"9."), "which may decide differently from this 0."),
        (replaced(1, changed(lines[1], "hash", "f")), "job 0 ran on a different good (seed 1) than the one generated now"),
        (replaced(15, changed(lines[15], "load_bytes", "9")), "job 14 ran on a different transformer"),
        (replaced(30, changed(lines[30], "events", "9")), "job 29 ran on a different transformer"),
    ];
    for (contents, said) in cases {
        let file = folder.file("other.jsonl", contents.as_bytes());
        refused(&sweep(&folder, &["-o", &file]), said);
        assert_eq!(bytes(&file), contents, "{said}");
    }
}

#[test]
fn one_program_is_not_evidence_twice() {
    let folder = Folder::new("sweep-twice");
    let one = folder.recording("one.pickle", &good());
    let other = folder.recording("other.pickle", &good());
    let workloads = format!("{one},{other},mlp:depth=3,batch=64,steps=2");
    let run = call(&["sweep", "--all", "-w", &workloads, "-p", "pytorch", "-c", "1.0", "--seeds", "3", "--json"]);
    assert_eq!((run.code, run.err.as_str()), (0, "the same program under several names, each counted: one and other\n"));
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!(object["jobs"], 3 * 3, "nothing in an MLP is drawn: three programs");
}

#[test]
fn what_is_read_is_never_written() {
    let folder = Folder::new("sweep-sources");
    let recording = folder.recording("good.pickle", &good());
    let before = fs::read(&recording).expect("a recording");
    let link = at(&folder, "link");
    std::os::unix::fs::symlink(&recording, &link).expect("a link");
    for target in [&recording, &link] {
        for option in ["--html", "--csv", "-o"] {
            refused(
                &call(&["sweep", "--all", "-w", &recording, "-p", "pytorch", "-c", "1.0", option, target]),
                "never overwritten",
            );
            assert_eq!(fs::read(&recording).expect("a recording"), before, "{option} {target}");
        }
    }
    let (rows, _) = whole(&folder);
    let (part, merged) = (at(&folder, "whole.jsonl"), at(&folder, "merged.jsonl"));
    let part_link = at(&folder, "part-link");
    std::os::unix::fs::symlink(&part, &part_link).expect("a link");
    for target in [&part, &part_link] {
        for option in ["--html", "--csv"] {
            refused(&call(&["merge", "--all", &part, "-o", &merged, option, target]), "never overwritten");
            assert_eq!((bytes(&part), fs::exists(&merged).expect("a folder")), (rows.clone(), false), "{option} {target}");
        }
    }
}

#[test]
fn what_cannot_be_written_is_found_before_the_work() {
    let folder = Folder::new("sweep-unwritable");
    let rows = at(&folder, "rows.jsonl");
    let nowhere = at(&folder, "none/page");
    for target in [nowhere.as_str(), folder.path()] {
        for option in ["--html", "--csv"] {
            refused(&sweep(&folder, &["-o", &rows, option, target]), "cannot write");
            assert!(!fs::exists(&rows).expect("a folder"), "no row was made for {option} {target}");
        }
    }
    let page = folder.file("page.html", b"as it was");
    refused(&sweep(&folder, &["-o", folder.path(), "--html", &page]), folder.path());
    assert_eq!(bytes(&page), "as it was");
}

#[test]
fn everything_says_the_same() {
    let folder = Folder::new("sweep-shown");
    let files = ["rows.jsonl", "rows.csv", "page.html"].map(|name| at(&folder, name));
    let [rows, csv, html] = &files;
    let json = sweep(&folder, &["-o", rows, "--csv", csv, "--html", html, "--curve", "good", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    let first: serde_json::Value = serde_json::from_str(bytes(rows).lines().nth(1).expect("a row")).expect("a row");
    // 8 MiB live; one 20 MiB segment holds them.
    assert_eq!(
        (&first["workload"], &first["load_bytes"], &first["capacity_bytes"]),
        (&"good".into(), &(8 << 20).into(), &(20 << 20).into())
    );
    let policy = &object["policies"][0];
    assert_eq!((&policy["policy"], &policy["workloads"][0]["memory_over_load"]["mean"]), (&"pytorch".into(), &2.5.into()));
    assert_eq!((&object["jobs"], &object["baseline"]), (&30.into(), &"pytorch".into()));
    let table = sweep(&folder, &["-o", rows, "--all"]).out;
    assert!(table.contains("good") && table.contains("2.500"), "{table}");
    let short = sweep(&folder, &["-o", rows]).out;
    assert!(
        short.contains("2 workloads x 2 policies, 2 seeds; addresses: driver; LOAD is the most bytes live at once; "),
        "{short}"
    );
    let head = ["policy", "memory over LOAD", "against pytorch", "fits in 1.1 LOAD", "driver ms", "in PyTorch"];
    assert!(head.iter().all(|name| short.contains(name)) && short.lines().count() <= 10, "{short}");
    let csv = bytes(csv);
    assert_eq!(csv.lines().count(), 31);
    assert!(csv.lines().nth(1).is_some_and(|line| line.starts_with("0,good,1,pytorch,smallest,8388608,")), "{csv}");
    let page = bytes(html);
    for part in ["Fit frontier", "Reserved over time", "Cost against fit", "2.500", "good: The requests of the recording"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"), "no network, no script");
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    let markdown = sweep(&folder, &["-o", rows, "--markdown"]).out;
    assert!(markdown.contains("| good | 2.500 |"), "{markdown}");
    let latex = sweep(&folder, &["-o", rows, "--latex"]).out;
    assert!(latex.contains("good & 2.500 &") && latex.contains("\\toprule"), "{latex}");
}

#[test]
fn the_drivers_work_is_shown_by_step_and_half_and_waiting_beside_it() {
    let folder = Folder::new("sweep-course");
    let recording = folder.recording("good.pickle", &good());
    let (rows, csv) = (at(&folder, "rows.jsonl"), at(&folder, "rows.csv"));
    // One that keeps what it has, and one that releases it in each round.
    let rounds = "alternate:layers=2,hidden=256,heads=2,vocabulary=1000,sequence=128,batch=64,samples=64,prompt=64,answers=uniform/33/33,empties_cache=on,rounds=4";
    let workloads = format!("mlp:depth=3,batch=64,steps=4,{rounds},{recording}");
    let own = ["sweep", "-w", &workloads, "-p", "pytorch", "-c", "1.5", "--bounds", "0", "-o", &rows];
    let object = json(&call(&[&own[..], &["--csv", &csv, "--json"]].concat()));
    let of_job = |job: usize| -> serde_json::Value {
        serde_json::from_str(bytes(&rows).lines().nth(job + 1).expect("a row")).expect("a row")
    };
    let (kept, emptied, recorded) = (of_job(1), of_job(4), of_job(7));
    assert_eq!((&kept["capacity"], &kept["steps"], &kept["later_steps"]), (&"plenty".into(), &4.into(), &2.into()));
    assert_eq!((&kept["later_driver_calls"], &kept["waiting_calls"]), (&0.into(), &0.into()), "{kept}");
    let number = |row: &serde_json::Value, key: &str| row[key].as_u64().expect("a number");
    assert!(number(&kept, "driver_calls") > 0 && number(&kept, "work_ns") > 0, "{kept}");
    assert!(number(&emptied, "later_driver_calls") > 0 && number(&emptied, "waiting_calls") > 0, "{emptied}");
    assert_eq!((&recorded["steps"], &recorded["work_ns"]), (&0.into(), &0.into()), "it says neither");
    assert!(
        bytes(&csv).lines().next().is_some_and(|line| line.contains(",waited_ns,waiting_calls,later_steps,later_driver_calls,"))
    );
    let driver = |workload: usize| &object["policies"][0]["workloads"][workload]["driver"]["plenty"];
    let calls = |of: &serde_json::Value| of["mean"].as_f64().expect("a mean");
    assert_eq!(calls(&driver(0)["later_share"]), 0.0);
    assert_eq!(calls(&driver(0)["calls_per_step"]), number(&kept, "driver_calls") as f64 / 4.0);
    assert!(calls(&driver(1)["later_share"]) > 0.2, "{}", driver(1));
    assert_eq!((&driver(2)["calls_per_step"], &driver(2)["waited_ns"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    let markdown = call(&[&own[..], &["--markdown"]].concat()).out;
    let table = |title: &str| {
        let start = markdown.find(&format!("### {title}\n")).unwrap_or_else(|| panic!("{title}: {markdown}"));
        markdown[start + 4..].split("\n### ").next().unwrap_or_default().to_owned()
    };
    assert!(table("Waiting, plenty").contains("| good | 0 calls |"), "{markdown}");
    assert!(table("Driver time for each step, plenty").contains(" / 0.00 |\n"), "{markdown}");
    let order = [
        "Smallest memory over LOAD",
        "Driver time, plenty",
        "Waiting, 1.5 LOAD",
        "Memory: means",
        "Driver work over the run: means",
    ];
    let places: Vec<_> = order.iter().map(|title| markdown.find(&format!("### {title}\n"))).collect();
    assert!(places.is_sorted() && places[0].is_some(), "each workload first, means last: {places:?}");
}

#[test]
fn bounds_are_told_from_results_and_construction_from_fragmentation() {
    let graphs = "graphs:layers=2,hidden=64,heads=2,vocabulary=1000,sequence=64,batches=64/128/256,shared=off";
    let sweep =
        ["sweep", "-w", &format!("{graphs},mlp:depth=3,batch=64"), "-p", "pytorch,bfc:kind=xla", "-c", "1.1", "--bounds", "1000"];
    let object = json(&call(&[&sweep[..], &["--json"]].concat()));
    let bound = |place: usize| object["bounds"][place]["load_with_pools_over_load"]["mean"].as_f64().expect("a mean");
    assert!(bound(0) > 1.01 && bound(1) == 1.0, "{}", object["bounds"]);
    let least = object["policies"][0]["workloads"][0]["memory_over_load"]["mean"].as_f64().expect("a mean");
    assert!(least >= bound(0), "{least}");
    let equal_buffers = |place: usize| object["policies"][place]["equal_buffers_over_load"].as_f64().expect("it fits");
    assert!((equal_buffers(1) - 4.0 / 3.0).abs() < 0.005 && (equal_buffers(0) - 1.0).abs() < 1e-9, "{}", equal_buffers(1));
    let markdown = call(&[&sweep[..], &["--markdown"]].concat()).out;
    for said in [
        "| LOAD with pools | ideal remapper | offline packer |",
        "are not bounds but results",
        "bfc:kind=xla takes a share of the device's entire memory",
    ] {
        assert!(markdown.contains(said), "{said}: {markdown}");
    }
    let outlier = object["outlier"].as_str().expect("a name");
    assert!(markdown.contains(&format!(" | without {outlier} | {outlier}'s part | ")), "{markdown}");
}

#[test]
fn policies_are_tested_over_seeds_and_never_over_workloads() {
    let server = "serving:requests=6,slots=2,rate=1000,answers=uniform/2/9";
    let sweep = |seeds: &'static str, form: &'static str| {
        call(&[
            "sweep",
            "-w",
            &format!("{server},mlp:depth=3,batch=64"),
            "-p",
            "pytorch,best-fit-remap",
            "-c",
            "1.1",
            "--bounds",
            "0",
            "--seeds",
            seeds,
            form,
        ])
    };
    let object = json(&sweep("3", "--json"));
    let versus = |workload: usize| &object["policies"][1]["workloads"][workload]["versus_baseline"];
    let counts = ["less", "same", "more"].map(|key| versus(0)[key].as_u64().expect("a count"));
    assert_eq!((counts.iter().sum::<u64>(), versus(1)), (3, &serde_json::Value::Null), "nothing in an MLP is drawn");
    assert!(versus(0)["p_holm"].as_f64().is_some_and(|p| p > 0.05), "three seeds prove nothing: {}", versus(0));
    assert_eq!(object["policies"][1]["versus_baseline"].get("p"), None);
    let tested = sweep("3", "--markdown").out;
    assert!(tested.contains("### Over the seeds, against pytorch\n") && tested.contains(", p "), "{tested}");
    let untested = sweep("1", "--markdown").out;
    assert!(!untested.contains("Wilcoxon") && !untested.contains("bootstrap"), "{untested}");
}

#[test]
fn one_policy_is_compared_with_none() {
    let folder = Folder::new("sweep-one");
    let recording = folder.recording("good.pickle", &good());
    let one = |more: &[&str]| {
        call(&[&["sweep", "--all", "-w", &recording, "-p", "bfc:kind=one-region", "-c", "1.0", "--bounds", "0"], more].concat())
    };
    let text = one(&[]).out;
    assert!(text.contains("memory/LOAD") && !text.contains("ratio to") && !text.contains("Holm"), "{text}");
    let markdown = one(&["--markdown"]).out;
    assert!(!markdown.contains("Wilcoxon") && !markdown.contains("| effect |"), "{markdown}");
    assert_eq!(json(&one(&["--json"]))["policies"][0]["versus_baseline"], serde_json::Value::Null);
}

#[test]
fn a_policy_is_one_however_its_name_is_written() {
    let policies = "bfc,pytorch:release=2.11.0,pytorch:settings=[],pytorch";
    let run = call(&[
        "sweep",
        "-w",
        "comb:teeth=4",
        "-p",
        policies,
        "-c",
        "1.0",
        "--bounds",
        "0",
        "--baseline",
        "pytorch:release=2.11",
        "--json",
    ]);
    assert_eq!(run.code, 0, "{}", run.err);
    let shown = json(&run);
    assert_eq!(shown["plan"]["policies"], serde_json::json!(["bfc", "pytorch"]));
    assert_eq!(shown["baseline"], "pytorch");
}

#[test]
fn handles_have_the_size_that_the_policy_s_name_says() {
    let folder = Folder::new("sweep-handles");
    let (recording, rows) = (folder.recording("good.pickle", &good()), at(&folder, "rows.jsonl"));
    let sizes = ["2MiB", "20MiB", "64MiB"].map(|size| format!("best-fit-remap:handle={size}")).join(",");
    let asked = ["sweep", "-w", &recording, "-p", &sizes, "-c", "1.0", "--bounds", "0", "-o", &rows];
    let run = call(&asked);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    let reserved = |text: &str| -> Vec<(String, u64)> {
        let rows = text.lines().skip(1).map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a row"));
        let plenty = rows.filter(|row| row["capacity"] == "plenty");
        plenty
            .map(|row| (row["policy"].as_str().unwrap_or("").to_owned(), row["peak_reserved_bytes"].as_u64().unwrap_or(0) >> 20))
            .collect()
    };
    let expected = [("best-fit-remap", 8), ("best-fit-remap:handle=20MiB", 20), ("best-fit-remap:handle=64MiB", 64)];
    assert_eq!(reserved(&bytes(&rows)), expected.map(|(name, mib)| (name.to_owned(), mib)));
    assert_eq!(call(&asked).out, run.out, "the file is complete");
    let help = call(&["sweep", "--help"]).out;
    assert!(help.contains("best-fit-remap:fit=first;handle=20MiB") && help.contains("pytorch-rescue:reach=free"), "{help}");
}

/// bfc serves 12 requests in less memory than it fails with.
#[test]
fn a_search_that_fails_with_more_memory_is_marked_in_its_cell() {
    let asked = |policies: &str, form: &str| {
        call(&["sweep", "-w", "serving-reallocate:requests=12", "-p", policies, "-c", "1.1", "--bounds", "0", form]).out
    };
    let markdown = asked("pytorch,bfc", "--markdown");
    let row = markdown.lines().find(|line| line.starts_with("| serving-reallocate")).expect("the first table");
    let marked: Vec<bool> = row.split('|').map(|cell| cell.contains('†')).collect();
    assert_eq!(marked, [false, false, false, true, false, false], "{row}");
    assert!(markdown.contains("which happened in 1 of 2 searches (marked †)."), "{markdown}");
    assert!(asked("pytorch,bfc", "--all").contains('†') && !asked("pytorch", "--all").contains('†'));
}

#[test]
fn a_grid_has_a_table_for_each_parameter_in_every_form() {
    let folder = Folder::new("sweep-grid");
    let (page, rows) = (at(&folder, "page.html"), at(&folder, "rows.jsonl"));
    let asked = |more: &[&str]| {
        let workload = "transformer:layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,batch=8,mixed=on,steps=2";
        let grid = "best-fit-remap:fit=best/first;handle=2MiB/20MiB";
        let asked = ["sweep", "-w", workload, "-p", grid, "-c", "1.0", "--seeds", "3", "--bounds", "0", "-o", &rows];
        let run = call(&[&asked, more].concat());
        assert_eq!((run.code, run.err.as_str()), (0, ""));
        run
    };
    let shown = [asked(&["--html", &page]).out, asked(&["--all"]).out, asked(&["--markdown"]).out, bytes(&page)];
    for text in &shown {
        let tables = ["fit", "handle"].map(|key| text.matches(&format!("The parameter {key} of best-fit-remap")).count());
        assert_eq!(tables, [1, 1], "{text}");
    }
    let unwrapped = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in &shown[..2] {
        let said = "no p value of a parameter can be below 0.5000, so no difference can be significant";
        assert!(unwrapped(text).contains(said), "three seeds and two comparisons: {text}");
    }
    assert!(shown[2].contains("\n| value of handle | memory/LOAD |") && shown[2].contains("\n| 20MiB | "), "{}", shown[2]);
    let object = json(&asked(&["--json"]));
    let need = |place: usize| object["policies"][place]["memory_over_load"]["mean"].as_f64().expect("a mean");
    let handle = &object["parameters"][1];
    assert_eq!((&handle["parameter"], &handle["reference"], &handle["cases"]), (&"handle".into(), &"2MiB".into(), &2.into()));
    for (place, policies) in [[0, 2], [1, 3]].into_iter().enumerate() {
        let mean = handle["values"][place]["memory_over_load"]["mean"].as_f64().expect("a mean");
        assert!((mean - (need(policies[0]) * need(policies[1])).sqrt()).abs() < 1e-9, "{handle}");
    }
    let large = &handle["values"][1];
    assert_eq!((&large["value"], &large["over_seeds"]["p_is_exact"]), (&"20MiB".into(), &true.into()), "{large}");
    assert!(handle["values"][0]["versus_reference"].is_null() && object["least_p_of_parameters"].is_f64(), "{object}");
    let merged = json(&call(&["merge", &rows, "-o", &at(&folder, "merged.jsonl"), "--json"]));
    assert_eq!(merged["parameters"], object["parameters"], "rows are enough");
    let without = json(&sweep(&folder, &["--json", "--bounds", "0"]))["parameters"].clone();
    assert_eq!(without.as_array().map(Vec::len), Some(1), "pytorch's settings vary: {without}");
}

#[test]
fn the_lists_name_everything() {
    let run = call(&["sweep", "--list"]);
    assert_eq!(run.code, 0);
    let policies: Vec<_> = parkade_policies::CATALOGUE.iter().chain(parkade_policies::BESIDE).collect();
    for policy in &policies {
        assert!(run.out.contains(&*policy.name) && run.out.contains(&*policy.says), "{}", policy.name);
    }
    let beside = run.out.split("\npolicies that are not part of `all`\n").nth(1).expect("those beside");
    let serial = "from our own; needs serial work (serial=True of parkade.enable)";
    assert!(
        beside.contains("  pytorch-rescue:reach=free ") && beside.contains("  compaction ") && beside.contains(serial),
        "{beside}"
    );
    let sizes = "  best-fit-remap:handle=     the size of the driver's handles; 2MiB unless given\n                             one of 2MiB, 4MiB, 8MiB, 16MiB, 20MiB, 32MiB, 64MiB, 128MiB, 256MiB, 512MiB, 1GiB\n";
    assert!(run.out.contains(sizes), "{}", run.out);
    let percent = "50 unless given\n                             a whole number from 0 to 100\n";
    assert!(run.out.contains("  rmm-pool:initial_percent=  the percentage") && run.out.contains(percent), "{}", run.out);
    for workload in &parkade_research::workload::CATALOGUE {
        assert!(run.out.contains(workload.name) && run.out.contains(workload.says), "{}", workload.name);
    }
    let models = parkade_research::study::Addresses::ALL;
    assert!(models.iter().all(|model| run.out.contains(model.name()) && run.out.contains(model.says())), "{}", run.out);
    assert!(run.out.contains("\n  robson ") && run.out.contains(" against, unit_bytes, "), "{}", run.out);
    let run = call(&["sweep", "--list", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    let length = |name: &str| object[name].as_array().map(Vec::len);
    let counts = [parkade_research::workload::CATALOGUE.len(), policies.len(), models.len()];
    assert_eq!(["workloads", "policies", "address_models"].map(length), counts.map(Some));
    for (shown, policy) in object["policies"].as_array().expect("policies").iter().zip(&policies) {
        let is_among_all = parkade_policies::CATALOGUE.iter().any(|known| known.name == policy.name);
        let is_serial = parkade_policies::needs_serial_work(&policy.name);
        assert_eq!((&shown["name"], &shown["is_among_all"]), (&(*policy.name).into(), &is_among_all.into()));
        assert_eq!(shown["needs_serial_work"], is_serial, "{shown}");
        for parameter in shown["parameters"].as_array().expect("parameters") {
            let key = parameter["key"].as_str().expect("a key");
            assert!(parameter["accepts"].as_str().is_some_and(|accepts| !accepts.is_empty()), "{parameter}");
            for value in parameter["values"].as_array().expect("values") {
                let name = format!("{}:{key}={}", policy.name, value.as_str().expect("a value"));
                assert!(parkade_policies::named(&name).is_ok(), "{name}");
            }
        }
    }
    assert_eq!(length("generators"), Some(parkade_research::workload::generator_names().count()));
    assert_eq!(object["address_models"][0]["name"], "driver");
    assert!(object["generators"][0]["options"].as_array().is_some_and(|options| options.contains(&"checkpointing".into())));
}

#[test]
fn adversaries_are_workloads() {
    let folder = Folder::new("sweep-adversaries");
    let rows = at(&folder, "rows.jsonl");
    let robson = "robson:against=best-fit-remap:fit=first,unit_bytes=2MiB,live_units=64,largest_units=8";
    let workloads = format!("{robson},comb:teeth=4,fence:cycles=9");
    let run = call(&[
        "sweep",
        "-w",
        &workloads,
        "-p",
        "best-fit-remap,best-fit-remap:fit=first",
        "-c",
        "1.5",
        "--seeds",
        "2",
        "-o",
        &rows,
    ]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    let rows: Vec<serde_json::Value> =
        bytes(&rows).lines().skip(1).map(|line| serde_json::from_str(line).expect("a row")).collect();
    assert_eq!(rows.len(), 3 * 2 * 3, "nothing in them is drawn");
    let reserved_mib = |workload: &str, policy: &str| {
        let is_wanted = |row: &&serde_json::Value| {
            row["policy"] == policy
                && row["capacity"] == "plenty"
                && row["workload"].as_str().is_some_and(|name| name.starts_with(workload))
        };
        rows.iter().find(is_wanted).and_then(|row| row["peak_reserved_bytes"].as_u64()).expect("a row") >> 20
    };
    // Robson's formula, 64 (1 + log2(8) / 2) - 8 + 1 units of 2 MiB; and four teeth of 20 MiB, four gaps and one request as large as these.
    assert!(
        reserved_mib("robson", "best-fit-remap:fit=first") >= 153 * 2,
        "{}",
        reserved_mib("robson", "best-fit-remap:fit=first")
    );
    assert_eq!(reserved_mib("comb", "best-fit-remap"), 3 * 4 * 20);
}

#[test]
fn bad_arguments_are_answered_in_one_line() {
    let folder = Folder::new("sweep-bad");
    let noise = folder.file("noise.pickle", &[0x80, 2, 0xff, 0, 1]);
    let same = at(&folder, "same");
    for (arguments, said) in [
        (&["-p", "pytorhc"][..], "did you mean pytorch"),
        (&["-p", "best-fit-remap:fit=first;handle=3MiB"], "handle=3MiB is not possible; handle is one of 2MiB, 4MiB, "),
        (&["-p", "bfc:handle=4MiB"], "bfc has no parameter \"handle\"; it has kind"),
        (&["-p", "buddy"], "there is no policy \"buddy\": it was removed; use best-fit-remap"),
        (&["-p", "tlsf-remap:handle=4MiB"], "it was removed; use best-fit-remap"),
        (&["-p", "first-fit:handle=4MiB"], "it is called best-fit-remap:fit=first;handle=4MiB"),
        (&["-w", "gtp2"], "did you mean gpt2"),
        (&["-w", ""], "no workloads"),
        (&["-p", ","], "no policies"),
        (&["--seeds", "0"], "--seeds 0"),
        (&["--seeds", "18446744073709551615"], "more than"),
        (&["-c", ""], "no capacities"),
        (&["-c", "0"], "is not a factor"),
        (&["-c", "0GiB"], "leaves no memory to allocate"),
        (&["-c", "80apples"], "is not a size"),
        (&["-c", "99999999999GiB"], "more than 64 bits"),
        (&["--addresses", "drivr"], "did you mean driver"),
        (&["--baseline", "none"], "is not one of the policies"),
        (&["--shard", "1/2"], "needs a file"),
        (&["-w", "mlp:depth=none"], "depth"),
        (&["-w", "mlp:depth=3,batch=8,depth=3"], "depth is given twice"),
        (&["-w", "robson:against=none"], "against is none; allowed: pytorch, "),
        (&["-w", "robson:against=first-fit"], "against is first-fit; allowed: a policy (it is called best-fit-remap:fit=first)"),
        (&["-w", &noise], "noise.pickle"),
        (&["-w", "mlp:batch=8", "--html", &same, "--csv", &same], "--csv and --html would both be written to"),
        (&["-w", "mlp:batch=8", "--html", &same, "--curve", "mlp:batch=8"], "is not one of the workloads: mlp.batch=8"),
        (&["-w", "mlp:batch=8", "-o", folder.path()], folder.path()),
    ] {
        refused(&call(&[&["sweep"], arguments].concat()), said);
    }
    let run = call(&["sweep", "--all", "-w", "", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("one JSON object");
    assert_eq!((run.code, run.err), (2, format!("parkade: {}\n", object["error"].as_str().expect("a line"))));
    for shard in ["0/3", "4/3", "1/0", "3", "a/b", "1/2/3"] {
        let run = call(&["sweep", "--shard", shard]);
        assert!(run.code == 2 && run.err.contains("write 2/3 for the second of three"), "{}", run.err);
    }
    assert_eq!(call(&["sweep", "--prealloc", "-1"]).code, 2);
    assert_eq!(call(&["sweep", "--threads", "0"]).code, 2);
}

/// What a reader who wants the best policy for one recording types and reads.
#[test]
fn one_recording_is_answered_in_bytes_with_the_line_to_paste() {
    let folder = Folder::new("sweep-one");
    let file = folder.recording("run.pickle", &crate::common::reuses_a_part());
    let policies = ["-p", "pytorch,pytorch-expandable,stalloc,bfc", "-c", "1.1", "--bounds", "0"];
    let run = call(&[&["sweep", &file], &policies[..]].concat());
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    let as_option = call(&[&["sweep", "-w", &file], &policies[..]].concat());
    assert_eq!(run.out, as_option.out, "a synonym");
    let both = call(&[&["sweep", &file, "-w", "mlp:depth=3,batch=64,steps=2"], &policies[..]].concat());
    assert!(both.code == 0 && both.out.contains("2 workloads x 4 policies") && both.out.contains(" times LOAD"), "{}", both.out);
    let first = run.out.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("With PyTorch alone, pytorch-expandable needs the least memory: ") && first.contains(" MiB."),
        "{first}"
    );
    let alone = run.out.lines().nth(1).unwrap_or_default();
    assert!(alone.starts_with("alone  pytorch-expandable: ") && alone.contains(" less memory than pytorch"), "{alone}");
    let row = |policy: &str| run.out.lines().rfind(|line| line.starts_with(&format!("{policy} "))).unwrap_or_default();
    assert!(row("pytorch").contains("160.00 MiB") && row("pytorch").ends_with(" default"), "{}", run.out);
    assert!(row("pytorch-expandable").ends_with(" setting") && row("stalloc").ends_with(" no"), "{}", run.out);
    assert!(
        row("bfc").ends_with(" enable") && run.out.contains("\nin PyTorch: default and setting need only PyTorch"),
        "{}",
        run.out
    );
    let narrow = crate::common::call_at_80_columns(&["sweep", &file, "-c", "1.1", "--bounds", "0"]).out;
    assert!(
        narrow.lines().all(|line| line.chars().count() <= 80) && narrow.matches("\npolicy ").count() == 1,
        "one table: {narrow}"
    );
    // Each line to paste has its condition above it, and PyTorch's own settings come last.
    let lines: Vec<&str> = run.out.lines().collect();
    let pasted = lines.iter().position(|line| line.starts_with("parkade.enable("));
    assert!(pasted.is_none_or(|place| lines[place - 1].starts_with("enable: with the Python package parkade")), "{}", run.out);
    let end = ["alone: with nothing but PyTorch, set this:", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"];
    assert_eq!(lines[lines.len() - 2..], end, "{}", run.out);
    let object = json(&call(&[&["sweep", &file, "--json"], &policies[..]].concat()));
    let of = |place: usize| (&object["policies"][place]["under_pytorch"], object["policies"][place]["line"].is_string());
    assert_eq!(
        [of(0), of(1), of(2), of(3)].map(|(word, is_line)| (word.as_str().unwrap_or_default().to_owned(), is_line)),
        [
            ("default".to_owned(), false),
            ("setting".to_owned(), true),
            ("simulator".to_owned(), false),
            ("enable".to_owned(), true),
        ]
    );
    // A folder stands for its recordings.
    folder.recording("other.pickle", &good());
    let all = call(&[&["sweep", folder.path()], &policies[..]].concat());
    assert!(all.code == 0 && all.out.contains("2 workloads x 4 policies"), "{}{}", all.out, all.err);
}
