//! Sweeps spread over threads, machines and builds: the same bytes however the work is spread, and how `parkade merge` joins
//! the parts.

use std::fs;

use parkade_research::study::sweep::build_of;

use crate::common::sweeps::{at, bytes, changed, json, refused, sweep, whole};
use crate::common::{Folder, call, good};

#[test]
fn rows_are_the_same_bytes_on_any_number_of_threads_and_machines() {
    let folder = Folder::new("sweep-same");
    let (rows, _) = whole(&folder);
    // A recording has one seed, so there are three programs.
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
fn rows_of_another_build_are_accepted_by_force_only() {
    let folder = Folder::new("sweep-build");
    let (rows, shown) = whole(&folder);
    let program = format!("\"program\":\"{}\"", build_of("pytorch"));
    assert_eq!(rows.matches(&program).count(), 30, "each row says which build made it");
    let lines: Vec<String> = rows.lines().map(|line| line.to_owned() + "\n").collect();
    let (old, new) = lines.split_at(11);
    let old = old.concat().replace(&program, "\"program\":\"0.1.0-0123456789abcdef\"");
    let file = folder.file("old.jsonl", old.as_bytes());
    let said = "has rows of pytorch made by parkade 0.1.0-0123456789abcdef, which may decide differently from this ";
    refused(&sweep(&folder, &["-o", &file]), said);
    assert_eq!(bytes(&file), old);
    let run = sweep(&folder, &["-o", &file, "--force", "--json"]);
    assert_eq!((run.code, run.err.as_str(), bytes(&file)), (0, "", old.clone() + &new.concat()), "{}", run.out);
    let object = json(&run);
    let this = build_of("pytorch");
    assert_eq!(object["programs"], serde_json::json!({ "0.1.0-0123456789abcdef": 10, this: 20 }));
    assert_eq!((&object["mixed"], &object["overlap"]["jobs"]), (&true.into(), &0.into()));
    assert_eq!(json(&sweep(&folder, &["--json", "--bounds", "0"]))["mixed"], false);

    let merged = at(&folder, "merged.jsonl");
    refused(&call(&["merge", "--all", &file, "-o", &merged]), said);
    assert!(!fs::exists(&merged).expect("a folder"));
    // If two builds agree on a job, the first file's row is kept.
    let whole_file = at(&folder, "whole.jsonl");
    let run = call(&["merge", "--all", &file, &whole_file, "-o", &merged, "--force"]);
    assert_eq!((run.code, bytes(&merged)), (0, bytes(&file)));
    assert!(
        run.out.contains("\n10 jobs were made by different builds in several files, with the same numbers.\n"),
        "{}",
        run.out
    );
    let mixed = "Some rows were made by builds other than this one, which may decide differently: 5 of pytorch by 0.1.0-0123456789abcdef, \
                 5 of pytorch-expandable by 0.1.0-0123456789abcdef.";
    assert_eq!(sweep(&folder, &["-o", &merged, "--force"]).out, shown + mixed + "\n");
    assert!(call(&["sweep", "--force"]).err.contains("--output"), "there is nothing to force");

    let page = at(&folder, "page.html");
    let markdown = sweep(&folder, &["-o", &merged, "--force", "--markdown", "--html", &page]).out;
    assert_eq!(markdown.matches(mixed).count(), markdown.matches("### ").count(), "{markdown}");
    assert_eq!(bytes(&page).matches(mixed).count(), 1);
    let latex = sweep(&folder, &["-o", &merged, "--force", "--latex"]).out;
    assert_eq!(latex.matches(mixed).count(), latex.matches("\\caption").count(), "{latex}");

    let all_old = folder.file("all-old.jsonl", rows.replace(&program, "\"program\":\"0.1.0-0123456789abcdef\"").as_bytes());
    let run = sweep(&folder, &["-o", &all_old, "--force"]);
    let foreign = "All rows were made by builds other than this one, which may decide differently: 15 of pytorch by \
                   0.1.0-0123456789abcdef, 15 of pytorch-expandable by 0.1.0-0123456789abcdef.";
    assert!(run.out.ends_with(&format!("\n{foreign}\n")), "{}", run.out);
}

#[test]
fn what_builds_say_differently_is_counted() {
    let folder = Folder::new("sweep-differ");
    let (rows, _) = whole(&folder);
    let file = at(&folder, "whole.jsonl");
    let merged = at(&folder, "merged.jsonl");
    let program = build_of("pytorch");
    // Two of thirty rows have different costs.
    let another = |name: &str, build: &str| {
        let lines: Vec<String> = rows.lines().map(|line| line.replace(&program, build)).collect();
        let line = |(place, line): (usize, &String)| {
            if place == 3 || place == 9 { changed(line, "driver_ns", "7") } else { line.clone() }
        };
        let lines: Vec<String> = lines.iter().enumerate().map(line).collect();
        folder.file(name, (lines.join("\n") + "\n").as_bytes())
    };
    let old = another("old.jsonl", "0.1.0-0123456789abcdef");
    let page = at(&folder, "page.html");
    let run = call(&["merge", "--all", &file, &old, "-o", &merged, "--force", "--html", &page]);
    let kept = |file: &str| {
        format!(
            "30 jobs were made by different builds in several files, 2 with different numbers; the rows of the first file were kept: 2 of {file}."
        )
    };
    assert!(run.code == 0 && run.out.ends_with(&format!("\n{}\n", kept(&file))), "{}{}", run.out, run.err);
    assert!(bytes(&page).contains(&kept(&file)));
    assert_eq!(bytes(&merged), rows, "the first file's");
    let object = json(&call(&["merge", "--all", &old, &file, "-o", &merged, "--force", "--json"]));
    assert_eq!(object["overlap"], serde_json::json!({ "jobs": 30, "differ": 2, "kept": [{ "file": old, "rows": 2 }] }));
    assert_eq!((bytes(&merged), &object["mixed"]), (bytes(&old), &false.into()));
    // If one build gives two different results for a job, neither is used.
    let damaged = another("damaged.jsonl", &program);
    refused(&call(&["merge", "--all", &file, &old, &damaged, "-o", &merged, "--force"]), "contradict each other about job 2");
}

#[test]
fn a_part_says_what_it_is_in_json_too() {
    let folder = Folder::new("sweep-part");
    let file = at(&folder, "part.jsonl");
    let object = json(&sweep(&folder, &["-o", &file, "--shard", "2/3", "--json"]));
    let programs = serde_json::json!({ build_of("pytorch"): 10 });
    let expected = serde_json::json!({ "part": "2/3", "file": file, "jobs": 10, "programs": programs, "mixed": false });
    assert_eq!(object, expected);
    let old = bytes(&file).replacen(&build_of("pytorch"), "0.1.0-0123456789abcdef", 3);
    folder.file("part.jsonl", old.as_bytes());
    let run = sweep(&folder, &["-o", &file, "--shard", "2/3", "--force"]);
    assert!(
        run.out.contains(
            "\nSome rows were made by builds other than this one, which may decide differently: 2 of pytorch by 0.1.0-0123"
        ),
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
    refused(&call(&["merge", "--all", &one, "-o", &merged]), "15 of 30 jobs are missing, the first one in part 2/2");
    refused(
        &call(&["merge", "--all", &one, &part(2, &["--prealloc", "0.5"]), "-o", &merged]),
        "has a different pre-allocation than",
    );
    let whole_file = folder.file("all.jsonl", rows.as_bytes());
    refused(&call(&["merge", "--all", &one, &whole_file, "-o", &merged]), "is divided into a different number of parts");
    let text = bytes(&two);
    let cost = text.find("\"driver_ns\":").expect("a cost") + "\"driver_ns\":".len();
    let other = folder.file("other.jsonl", format!("{}7{}", &text[..cost], &text[cost..]).as_bytes());
    refused(&call(&["merge", "--all", &one, &two, &other, "-o", &merged]), "contradict each other about job 1");
    let hash = text.rfind("\"hash\":\"").expect("a hash") + "\"hash\":\"".len();
    let other = folder.file("program.jsonl", format!("{}f{}", &text[..hash], &text[hash..]).as_bytes());
    refused(&call(&["merge", "--all", &one, &other, "-o", &merged]), "disagree on what transformer");
    let cut = folder.file("cut.jsonl", &text.as_bytes()[..text.len() - 9]);
    refused(&call(&["merge", "--all", &one, &cut, "-o", &merged]), "1 of 30 jobs are missing");
    refused(&call(&["merge", "--all", &one, &two, "-o", &one]), "never overwritten");
    let page = at(&folder, "page.html");
    refused(
        &call(&["merge", "--all", &one, &two, "-o", &merged, "--html", &page, "--curve", "good"]),
        "--curve needs the programs",
    );
    refused(&call(&["merge", "--all", &merged, "-o", &at(&folder, "x")]), "cannot be read");
    assert!(!fs::exists(&merged).expect("a folder"), "nothing was written");
    assert_eq!(call(&["merge", "--all", &one, &two, &two, "-o", &merged]).code, 0, "the same part twice");
    assert_eq!(bytes(&merged), rows);
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

/// Names that other commands also accept: with commas, blanks and colons, the same name in two folders, and names that are not
/// text.
#[test]
fn any_name_of_a_file_is_a_workload() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let folder = Folder::new("sweep-names");
    let mut other = good();
    other.devices[0].trace.truncate(3);
    other.devices[0].segments[0].blocks[0] = crate::common::used(crate::common::BASE, 5 * crate::common::MIB);
    for name in ["one", "two"] {
        fs::create_dir(at(&folder, name)).expect("a folder");
    }
    let names = ["one/run.pickle", "two/run.pickle", "a,b.pickle", " blank ", "mlp:depth", "x=1", "gpt2"];
    for (place, name) in names.iter().enumerate() {
        folder.recording(name, &if place == 0 { other.clone() } else { good() });
    }
    let sweep = |lists: &[OsString]| -> crate::common::Run {
        let mut command = crate::common::parkade(&["sweep", "-p", "pytorch", "-c", "1.0", "--bounds", "0", "--json"]);
        for list in lists {
            command.arg("-w").arg(list);
        }
        command.current_dir(folder.path()).output().expect("the binary runs").into()
    };
    let workloads = |lists: &[OsString]| -> Vec<String> {
        let run = sweep(lists);
        assert_eq!(run.code, 0, "{lists:?}: {}", run.err);
        let rows = json(&run)["policies"][0]["workloads"].as_array().expect("workloads").clone();
        rows.iter().map(|row| row["workload"].as_str().expect("a name").to_owned()).collect()
    };
    let one = |list: &str| workloads(&[list.into()]);
    assert_eq!(one("one/run.pickle,two/run.pickle"), ["one.run", "two.run"]);
    assert_eq!(one("one/run.pickle,a,b.pickle,mlp:batch=8"), ["run", "a_b", "mlp.batch=8"]);
    assert_eq!(one(" blank ,one/run.pickle").len(), 2);
    assert_eq!(one("mlp:batch=8,x=1"), ["mlp.batch=8", "x=1"]);
    assert_eq!((one("mlp:depth").len(), one("./gpt2"), one("a,b.pickle")), (1, vec!["gpt2".to_owned()], vec!["a_b".to_owned()]));
    let bytes = OsString::from_vec(b"no\xfftext,.pickle".to_vec());
    fs::copy(at(&folder, "x=1"), std::path::Path::new(folder.path()).join(&bytes)).expect("a copy");
    assert_eq!(workloads(&[bytes, "one/run.pickle".into()]).len(), 2);
    refused_json(&sweep(&[OsString::from_vec(b"none\xff".to_vec())]), "needs its own --workloads option");
}

fn refused_json(run: &crate::common::Run, said: &str) {
    assert_eq!((run.code, run.err.lines().count()), (2, 1), "{}", run.err);
    assert!(run.err.contains(said), "{}", run.err);
}
