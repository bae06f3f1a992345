//! `parkade sweep` and `parkade merge`: the same bytes however the work is spread, files that are continued, what is put out, and bad input.

mod common;

use std::fs;

use common::{Folder, Run, call, good};

/// Two small programs, two policies, three capacities.
fn sweep(folder: &Folder, more: &[&str]) -> Run {
    let recording = folder.recording("good.pickle", &good());
    let workloads =
        format!("{recording},transformer:layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,batch=8,mixed=on,steps=2");
    let own = ["sweep", "-w", &workloads, "-p", "pytorch,pytorch-expandable", "-c", "1.0,1.1,2GiB", "--seeds", "2"];
    call(&[&own, more].concat())
}

fn at(folder: &Folder, name: &str) -> String {
    format!("{}/{name}", folder.path())
}

fn bytes(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The whole sweep's file of rows.
fn whole(folder: &Folder) -> (String, String) {
    let file = at(folder, "whole.jsonl");
    let run = sweep(folder, &["-o", &file]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    (bytes(&file), run.out)
}

fn refused(run: &Run, said: &str) {
    assert_eq!((run.code, run.err.lines().count(), run.out.as_str()), (2, 1, ""), "{}", run.err);
    assert!(run.err.contains(said), "{} lacks {said:?}", run.err);
}

#[test]
fn rows_are_the_same_bytes_on_any_number_of_threads_and_machines() {
    let folder = Folder::new("sweep-same");
    let (rows, _) = whole(&folder);
    // A recording has one seed; so there are three programs.
    assert_eq!(rows.lines().count(), 1 + 3 * 2 * 5);
    for threads in ["1", "2", "4"] {
        let file = at(&folder, &format!("threads{threads}.jsonl"));
        assert_eq!(sweep(&folder, &["-o", &file, "--threads", threads]).code, 0);
        assert_eq!(bytes(&file), rows, "{threads} threads");
    }
    let parts = ["1/3", "2/3", "3/3"].map(|part| {
        let file = at(&folder, &format!("part{}.jsonl", &part[..1]));
        let run = sweep(&folder, &["-o", &file, "--shard", part, "--threads", "2"]);
        assert!(run.code == 0 && run.out.contains("10 rows in"), "{}{}", run.out, run.err);
        file
    });
    let merged = at(&folder, "merged.jsonl");
    let [one, two, three] = &parts;
    let run = call(&["merge", three, one, two, "-o", &merged]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    // The programs, which bounds need, are not in the parts.
    let shown = sweep(&folder, &["-o", &merged, "--bounds", "0"]).out;
    assert_eq!((bytes(&merged), run.out), (rows, shown));
}

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
        ("notes\n".to_owned(), "is no file of parkade sweep's rows"),
        ("{}\n".to_owned(), "is no file of parkade sweep's rows"),
        ("x".repeat(5 << 20), "a line is longer than"),
        (
            lines[0].to_owned(),
            "its first line is missing or cut, as when a sweep ends at once: remove it, or choose another file",
        ),
        (rows.replacen("\"parkade_sweep\":3", "\"parkade_sweep\":9", 1), "is of form 9"),
        (lines[0].replace("\"1.1\"", "\"1.2\"") + "\n", "has other capacities than asked for"),
        (rows.replacen("\"1/1\"", "\"1/2\"", 1), "is job 1, where job 2 belongs"),
        (rows.replacen("\"seeds\":2", "\"seeds\":0", 1), "no seeds"),
        (replaced(0, lines[0].replace("\"driver\"", "\"ascending\"")), "has another address model"),
        (lines[0].replace("\"pytorch-expandable\"", "\"=1+1,x\"") + "\n", "line 1: there is no policy \"=1+1,x\""),
        (replaced(2, "{}".to_owned()), "line 3 is no row"),
        (replaced(2, "y".repeat(20 << 10)), "line 3: a line is longer than"),
        (swapped, "line 4 is job 3, where job 2 belongs"),
        (replaced(2, lines[2].replace("\"plenty\"", "\"smallest\"")), "line 3 contradicts line 1"),
        (rows.clone() + lines[1] + "\n", "there are more rows than jobs"),
        (rows[..rows.len() / 2].replace("\"program\":\"0.", "\"program\":\"9."), "which may decide otherwise than this 0."),
        (replaced(1, changed(lines[1], "hash", "f")), "job 0 was run on another good (seed 1) than is made now"),
        (replaced(15, changed(lines[15], "load_bytes", "9")), "job 14 was run on another transformer"),
        (replaced(30, changed(lines[30], "events", "9")), "job 29 was run on another transformer"),
    ];
    for (contents, said) in cases {
        let file = folder.file("other.jsonl", contents.as_bytes());
        refused(&sweep(&folder, &["-o", &file]), said);
        assert_eq!(bytes(&file), contents, "{said}");
    }
}

/// A row with something put before one of its values.
fn changed(row: &str, key: &str, first: &str) -> String {
    let key = format!("\"{key}\":");
    let value = row.find(&key).expect("a value") + key.len();
    let value = value + usize::from(row[value..].starts_with('"'));
    format!("{}{first}{}", &row[..value], &row[value..])
}

#[test]
fn rows_of_another_build_are_accepted_by_force_only() {
    let folder = Folder::new("sweep-build");
    let (rows, shown) = whole(&folder);
    let program = format!("\"program\":\"{}\"", parkade_sim::study::sweep::PROGRAM);
    assert_eq!(rows.matches(&program).count(), 30, "each row says which build made it");
    let lines: Vec<String> = rows.lines().map(|line| line.to_owned() + "\n").collect();
    let (old, new) = lines.split_at(11);
    let old = old.concat().replace(&program, "\"program\":\"0.1.0-0123456789abcdef\"");
    let file = folder.file("old.jsonl", old.as_bytes());
    let said = "has rows made by parkade 0.1.0-0123456789abcdef, which may decide otherwise than this ";
    refused(&sweep(&folder, &["-o", &file]), said);
    assert_eq!(bytes(&file), old);
    let run = sweep(&folder, &["-o", &file, "--force", "--json"]);
    assert_eq!((run.code, run.err.as_str(), bytes(&file)), (0, "", old.clone() + &new.concat()), "{}", run.out);
    let object = json(&run);
    let this = parkade_sim::study::sweep::PROGRAM;
    assert_eq!(object["programs"], serde_json::json!({ "0.1.0-0123456789abcdef": 10, this: 20 }));
    assert_eq!((&object["mixed"], &object["overlap"]["jobs"]), (&true.into(), &0.into()));
    assert_eq!(json(&sweep(&folder, &["--json", "--bounds", "0"]))["mixed"], false);

    let merged = at(&folder, "merged.jsonl");
    refused(&call(&["merge", &file, "-o", &merged]), said);
    assert!(!fs::exists(&merged).expect("a folder"));
    // Of two builds that say the same of a job, the first file's row stays.
    let whole_file = at(&folder, "whole.jsonl");
    let run = call(&["merge", &file, &whole_file, "-o", &merged, "--force"]);
    assert_eq!((run.code, bytes(&merged)), (0, bytes(&file)));
    assert!(
        run.out.contains("\n10 jobs were made by different builds in several files, with the same numbers.\n"),
        "{}",
        run.out
    );
    let mixed = format!(
        "Rows of different builds are mixed, which may decide differently: 10 by 0.1.0-0123456789abcdef, 20 by {this} (this one)."
    );
    assert_eq!(sweep(&folder, &["-o", &merged, "--force"]).out, shown + &mixed + "\n");
    assert!(call(&["sweep", "--force"]).err.contains("--output"), "there is nothing to force");

    let page = at(&folder, "page.html");
    let markdown = sweep(&folder, &["-o", &merged, "--force", "--markdown", "--html", &page]).out;
    assert_eq!(markdown.matches(&mixed).count(), markdown.matches("### ").count(), "{markdown}");
    assert_eq!(bytes(&page).matches(&mixed).count(), 1);
    let latex = sweep(&folder, &["-o", &merged, "--force", "--latex"]).out;
    assert_eq!(latex.matches(&mixed).count(), latex.matches("\\caption").count(), "{latex}");

    let all_old = folder.file("all-old.jsonl", rows.replace(&program, "\"program\":\"0.1.0-0123456789abcdef\"").as_bytes());
    let run = sweep(&folder, &["-o", &all_old, "--force"]);
    let foreign = format!(
        "All rows were made by another build than this {this}, which may decide otherwise: 30 by 0.1.0-0123456789abcdef."
    );
    assert!(run.out.ends_with(&format!("\n{foreign}\n")), "{}", run.out);
}

fn json(run: &Run) -> serde_json::Value {
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {}{}", run.out, run.err))
}

#[test]
fn what_builds_say_differently_is_counted() {
    let folder = Folder::new("sweep-differ");
    let (rows, _) = whole(&folder);
    let file = at(&folder, "whole.jsonl");
    let merged = at(&folder, "merged.jsonl");
    let program = parkade_sim::study::sweep::PROGRAM;
    // Two of thirty rows cost something else.
    let another = |name: &str, build: &str| {
        let lines: Vec<String> = rows.lines().map(|line| line.replace(program, build)).collect();
        let line = |(place, line): (usize, &String)| {
            if place == 3 || place == 9 { changed(line, "driver_ns", "7") } else { line.clone() }
        };
        let lines: Vec<String> = lines.iter().enumerate().map(line).collect();
        folder.file(name, (lines.join("\n") + "\n").as_bytes())
    };
    let old = another("old.jsonl", "0.1.0-0123456789abcdef");
    let page = at(&folder, "page.html");
    let run = call(&["merge", &file, &old, "-o", &merged, "--force", "--html", &page]);
    let kept = |file: &str| {
        format!(
            "30 jobs were made by different builds in several files, 2 with different numbers; the rows of the first file were kept: 2 of {file}."
        )
    };
    assert!(run.code == 0 && run.out.ends_with(&format!("\n{}\n", kept(&file))), "{}{}", run.out, run.err);
    assert!(bytes(&page).contains(&kept(&file)));
    assert_eq!(bytes(&merged), rows, "the first file's");
    let object = json(&call(&["merge", &old, &file, "-o", &merged, "--force", "--json"]));
    assert_eq!(object["overlap"], serde_json::json!({ "jobs": 30, "differ": 2, "kept": [{ "file": old, "rows": 2 }] }));
    assert_eq!((bytes(&merged), &object["mixed"]), (bytes(&old), &false.into()));
    // What one build says in two ways is nobody's result.
    let damaged = another("damaged.jsonl", program);
    refused(&call(&["merge", &file, &old, &damaged, "-o", &merged, "--force"]), "contradict each other about job 2");
}

#[test]
fn a_part_says_what_it_is_in_json_too() {
    let folder = Folder::new("sweep-part");
    let file = at(&folder, "part.jsonl");
    let object = json(&sweep(&folder, &["-o", &file, "--shard", "2/3", "--json"]));
    let programs = serde_json::json!({ parkade_sim::study::sweep::PROGRAM: 10 });
    let expected = serde_json::json!({ "part": "2/3", "file": file, "jobs": 10, "programs": programs, "mixed": false });
    assert_eq!(object, expected);
    let old = bytes(&file).replacen(parkade_sim::study::sweep::PROGRAM, "0.1.0-0123456789abcdef", 3);
    folder.file("part.jsonl", old.as_bytes());
    let run = sweep(&folder, &["-o", &file, "--shard", "2/3", "--force"]);
    assert!(
        run.out.contains("\nRows of different builds are mixed, which may decide differently: 3 by 0.1.0-0123"),
        "{}",
        run.out
    );
}

#[test]
fn parts_that_do_not_belong_together_are_not_merged() {
    let folder = Folder::new("sweep-merge");
    let (rows, _) = whole(&folder);
    let merged = at(&folder, "merged.jsonl");
    let part = |number: u32, more: &[&str]| {
        let file = at(&folder, &format!("part{number}{}.jsonl", more.len()));
        assert_eq!(sweep(&folder, &[&["-o", &file, "--shard", &format!("{number}/2")], more].concat()).code, 0);
        file
    };
    let (one, two) = (part(1, &[]), part(2, &[]));
    refused(&call(&["merge", &one, "-o", &merged]), "15 of 30 jobs are missing, the first one in part 2/2");
    refused(&call(&["merge", &one, &part(2, &["--prealloc", "0.5"]), "-o", &merged]), "has another pre-allocation than");
    let whole_file = folder.file("all.jsonl", rows.as_bytes());
    refused(&call(&["merge", &one, &whole_file, "-o", &merged]), "is cut into another number of parts");
    let text = bytes(&two);
    let cost = text.find("\"driver_ns\":").expect("a cost") + "\"driver_ns\":".len();
    let other = folder.file("other.jsonl", format!("{}7{}", &text[..cost], &text[cost..]).as_bytes());
    refused(&call(&["merge", &one, &two, &other, "-o", &merged]), "contradict each other about job 1");
    let hash = text.rfind("\"hash\":\"").expect("a hash") + "\"hash\":\"".len();
    let other = folder.file("program.jsonl", format!("{}f{}", &text[..hash], &text[hash..]).as_bytes());
    refused(&call(&["merge", &one, &other, "-o", &merged]), "disagree about what transformer");
    let cut = folder.file("cut.jsonl", &text.as_bytes()[..text.len() - 9]);
    refused(&call(&["merge", &one, &cut, "-o", &merged]), "1 of 30 jobs are missing");
    refused(&call(&["merge", &one, &two, "-o", &one]), "never overwritten");
    let page = at(&folder, "page.html");
    refused(&call(&["merge", &one, &two, "-o", &merged, "--html", &page, "--curve", "good"]), "--curve needs the programs");
    refused(&call(&["merge", &merged, "-o", &at(&folder, "x")]), "cannot be read");
    assert!(!fs::exists(&merged).expect("a folder"), "nothing was written");
    assert_eq!(call(&["merge", &one, &two, &two, "-o", &merged]).code, 0, "the same part twice");
    assert_eq!(bytes(&merged), rows);
}

#[test]
fn one_program_is_not_evidence_twice() {
    let folder = Folder::new("sweep-twice");
    let one = folder.recording("one.pickle", &good());
    let other = folder.recording("other.pickle", &good());
    let workloads = format!("{one},{other},mlp:depth=3,batch=64,steps=2");
    let run = call(&["sweep", "-w", &workloads, "-p", "pytorch", "-c", "1.0", "--seeds", "3", "--json"]);
    assert_eq!((run.code, run.err.as_str()), (0, "one program under several names, each of which counts: one and other\n"));
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
            refused(&call(&["sweep", "-w", &recording, "-p", "pytorch", "-c", "1.0", option, target]), "never overwritten");
            assert_eq!(fs::read(&recording).expect("a recording"), before, "{option} {target}");
        }
    }
    let (rows, _) = whole(&folder);
    let (part, merged) = (at(&folder, "whole.jsonl"), at(&folder, "merged.jsonl"));
    let part_link = at(&folder, "part-link");
    std::os::unix::fs::symlink(&part, &part_link).expect("a link");
    for target in [&part, &part_link] {
        for option in ["--html", "--csv"] {
            refused(&call(&["merge", &part, "-o", &merged, option, target]), "never overwritten");
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
    // 8 MiB live; one segment of 20 MiB holds them.
    assert_eq!(
        (&first["workload"], &first["load_bytes"], &first["capacity_bytes"]),
        (&"good".into(), &(8 << 20).into(), &(20 << 20).into())
    );
    let policy = &object["policies"][0];
    assert_eq!((&policy["policy"], &policy["workloads"][0]["memory_over_load"]["mean"]), (&"pytorch".into(), &2.5.into()));
    assert_eq!((&object["jobs"], &object["baseline"]), (&30.into(), &"pytorch".into()));
    let table = sweep(&folder, &["-o", rows]).out;
    assert!(table.contains("good") && table.contains("2.500"), "{table}");
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
fn one_policy_is_compared_with_none() {
    let folder = Folder::new("sweep-one");
    let recording = folder.recording("good.pickle", &good());
    let one = |more: &[&str]| call(&[&["sweep", "-w", &recording, "-p", "tlsf", "-c", "1.0", "--bounds", "0"], more].concat());
    let text = one(&[]).out;
    assert!(text.contains("memory/LOAD") && !text.contains("/tlsf") && !text.contains("Holm"), "{text}");
    let markdown = one(&["--markdown"]).out;
    assert!(!markdown.contains("Wilcoxon") && !markdown.contains("| effect |"), "{markdown}");
    assert_eq!(json(&one(&["--json"]))["policies"][0]["versus_baseline"], serde_json::Value::Null);
}

#[test]
fn what_needs_all_rows_is_not_asked_of_a_part() {
    let folder = Folder::new("sweep-part-shown");
    let (rows, page) = (at(&folder, "rows.jsonl"), at(&folder, "page"));
    for option in [&["--html", page.as_str()][..], &["--csv", &page], &["--markdown"], &["--latex"]] {
        let run = sweep(&folder, &[&["-o", &rows, "--shard", "1/2"], option].concat());
        refused(&run, &format!("{} needs the rows of all parts: give it to parkade merge", option[0]));
        assert!(!fs::exists(&rows).expect("a folder") && !fs::exists(&page).expect("a folder"));
    }
}

#[test]
fn the_lists_name_everything() {
    let run = call(&["sweep", "--list"]);
    assert_eq!(run.code, 0);
    for policy in parkade::policy::catalogue::CATALOGUE {
        assert!(run.out.contains(policy.name) && run.out.contains(policy.says), "{}", policy.name);
    }
    for workload in &parkade_sim::workload::CATALOGUE {
        assert!(run.out.contains(workload.name) && run.out.contains(workload.says), "{}", workload.name);
    }
    let models = parkade_sim::study::Addresses::ALL;
    assert!(models.iter().all(|model| run.out.contains(model.name()) && run.out.contains(model.says())), "{}", run.out);
    assert!(run.out.contains("\n  robson ") && run.out.contains(" against, unit_bytes, "), "{}", run.out);
    let run = call(&["sweep", "--list", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    let length = |name: &str| object[name].as_array().map(Vec::len);
    let counts = [parkade_sim::workload::CATALOGUE.len(), parkade::policy::catalogue::CATALOGUE.len(), models.len()];
    assert_eq!(["workloads", "policies", "address_models"].map(length), counts.map(Some));
    assert_eq!(length("generators"), Some(parkade_sim::workload::generators().count()));
    assert_eq!(object["address_models"][0]["name"], "driver");
    assert!(object["generators"][0]["options"].as_array().is_some_and(|options| options.contains(&"checkpointing".into())));
}

#[test]
fn adversaries_are_workloads() {
    let folder = Folder::new("sweep-adversaries");
    let rows = at(&folder, "rows.jsonl");
    let robson = "robson:against=buddy,unit_bytes=2MiB,live_units=64,largest_units=8";
    let workloads = format!("{robson},best-fit-attack:gaps=9,largest_units=8,unit_bytes=2MiB,comb:teeth=4");
    let run = call(&["sweep", "-w", &workloads, "-p", "best-fit,buddy", "-c", "1.5", "--seeds", "2", "-o", &rows]);
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
    // Robson's formula, 64 (1 + log2(8) / 2) - 8 + 1 units of 2 MiB; and what best fit is made to need, (9 + 2) (8 - 2) units.
    assert!(reserved_mib("robson", "buddy") >= 153 * 2, "{}", reserved_mib("robson", "buddy"));
    assert_eq!(reserved_mib("best-fit-attack", "best-fit"), 66 * 2);
}

#[test]
fn bad_arguments_are_answered_in_one_line() {
    let folder = Folder::new("sweep-bad");
    let noise = folder.file("noise.pickle", &[0x80, 2, 0xff, 0, 1]);
    let same = at(&folder, "same");
    for (arguments, said) in [
        (&["-p", "pytorhc"][..], "did you mean pytorch"),
        (&["-w", "gtp2"], "did you mean gpt2"),
        (&["-w", ""], "no workloads"),
        (&["-p", ","], "no policies"),
        (&["--seeds", "0"], "--seeds 0"),
        (&["--seeds", "18446744073709551615"], "more than"),
        (&["-c", ""], "no capacities"),
        (&["-c", "0"], "is no factor"),
        (&["-c", "0GiB"], "has no memory"),
        (&["-c", "80apples"], "is no size"),
        (&["-c", "99999999999GiB"], "more than 64 bits"),
        (&["--addresses", "drivr"], "did you mean driver"),
        (&["--baseline", "none"], "is none of the policies"),
        (&["--shard", "1/2"], "needs a file"),
        (&["-w", "mlp:depth=none"], "depth"),
        (&["-w", "mlp:depth=3,batch=8,depth=3"], "depth is there twice"),
        (&["-w", "robson:against=none"], "against is none; it can be pytorch, "),
        (&["-w", &noise], "noise.pickle"),
        (&["-w", "mlp:batch=8", "--html", &same, "--csv", &same], "two things are to be written"),
        (&["-w", "mlp:batch=8", "--html", &same, "--curve", "gpt2"], "none of the workloads"),
        (&["-w", "mlp:batch=8", "-o", folder.path()], folder.path()),
    ] {
        refused(&call(&[&["sweep"], arguments].concat()), said);
    }
    let run = call(&["sweep", "-w", "", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("one JSON object");
    assert_eq!((run.code, run.err), (2, format!("parkade: {}\n", object["error"].as_str().expect("a line"))));
    for shard in ["0/3", "4/3", "1/0", "3", "a/b", "1/2/3"] {
        let run = call(&["sweep", "--shard", shard]);
        assert!(run.code == 2 && run.err.contains("write 2/3 for the second of three"), "{}", run.err);
    }
    assert_eq!(call(&["sweep", "--prealloc", "-1"]).code, 2);
    assert_eq!(call(&["sweep", "--threads", "0"]).code, 2);
}
