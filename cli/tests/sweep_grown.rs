//! Files of rows that grow: by policies, workloads and seeds; and rows that are run again because another build made them.

use parkade_research::study::sweep::build_of;

use crate::common::sweeps::{at, bytes, changed, json, refused};
use crate::common::{Folder, Run, call};

const SMALL: &str = "transformer:layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,batch=8,mixed=on,steps=2";
const OTHER: &str = "transformer:layers=1,hidden=64,heads=2,vocabulary=100,sequence=64,batch=4,mixed=on,steps=2";

/// A sweep of these workloads and policies.
fn sweep(file: &str, workloads: &str, policies: &str, seeds: &str, more: &[&str]) -> Run {
    let asked = ["sweep", "-w", workloads, "-p", policies, "--seeds", seeds, "-c", "1.1", "--bounds", "0", "-o", file];
    call(&[&asked, more].concat())
}

fn done(run: &Run) {
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
}

/// The same text with another cost in every row, which shows that the row was not run again.
fn marked(rows: &str) -> String {
    let mark = |line: &str| if line.contains("\"driver_ns\":") { changed(line, "driver_ns", "7") } else { line.to_owned() };
    rows.lines().map(|line| mark(line) + "\n").collect()
}

#[test]
fn a_file_grows_by_policies_workloads_and_seeds_and_keeps_its_rows() {
    let folder = Folder::new("sweep-grown");
    let [small, large] = ["small.jsonl", "large.jsonl"].map(|name| at(&folder, name));
    done(&sweep(&small, SMALL, "pytorch,bfc", "2", &[]));
    let (workloads, policies) = (format!("{OTHER},{SMALL}"), "best-fit-remap,bfc,cuda-async,pytorch");
    let asked = |file: &str, more: &[&str]| sweep(file, &workloads, policies, "3", more);
    let from_nothing = asked(&large, &["--json"]);
    done(&from_nothing);
    let old = marked(&bytes(&small));
    folder.file("small.jsonl", old.as_bytes());
    done(&asked(&small, &[]));
    let (grown, whole) = (bytes(&small), bytes(&large));
    assert_eq!(grown.lines().next(), whole.lines().next(), "the plan is what was requested");
    let cost = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("a row")["driver_ns"].to_string();
    let kept = grown.lines().zip(whole.lines()).skip(1).filter(|(own, other)| {
        let is_kept = cost(own) == format!("7{}", cost(other));
        assert!(is_kept || own == other, "{own}\n{other}");
        is_kept
    });
    assert_eq!(kept.count(), old.lines().count() - 1, "only what was missing was run");
    // Without the marks it is what one sweep writes.
    let plain = folder.file("plain.jsonl", b"");
    done(&sweep(&plain, SMALL, "pytorch,bfc", "2", &[]));
    let shown = asked(&plain, &["--json"]);
    assert_eq!((bytes(&plain), json(&shown)), (whole, json(&from_nothing)));
}

#[test]
fn rows_in_any_order_are_completed_and_put_in_order() {
    let folder = Folder::new("sweep-order");
    let file = at(&folder, "rows.jsonl");
    let asked = || sweep(&file, SMALL, "pytorch,bfc", "2", &[]);
    done(&asked());
    let whole = bytes(&file);
    let lines: Vec<&str> = whole.lines().collect();
    assert_eq!(lines.len(), 1 + 2 * 2 * 3);
    // As after an interruption while the file grew: the later jobs are there, and some of the earlier ones.
    for kept in [&[0, 8, 9, 10, 11, 12, 1, 2][..], &[0, 12], &[0, 2, 1], &[0, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]] {
        let text: String = kept.iter().map(|&line| lines[line].to_owned() + "\n").collect();
        folder.file("rows.jsonl", text.as_bytes());
        done(&asked());
        assert_eq!(bytes(&file), whole, "{kept:?}");
    }
    let twice = format!("{whole}{}\n", lines[3]);
    folder.file("rows.jsonl", twice.as_bytes());
    refused(&asked(), "line 14 is job 2 again");
    assert_eq!(bytes(&file), twice);
}

#[test]
fn what_a_file_has_is_not_left_out_of_the_request() {
    let folder = Folder::new("sweep-smaller");
    let file = at(&folder, "rows.jsonl");
    done(&sweep(&file, &format!("{SMALL},{OTHER}"), "pytorch,bfc,cuda-async", "2", &[]));
    let before = bytes(&file);
    let both = format!("{SMALL},{OTHER}");
    for (workloads, policies, seeds, said) in [
        (both.as_str(), "pytorch,rmm-pool", "2", "also has rows of bfc and cuda-async: request these policies too"),
        (SMALL, "pytorch,bfc,cuda-async", "2", "also has rows of transformer.layers=1"),
        (&both, "pytorch,bfc,cuda-async", "1", "request as many (--seeds 2)"),
    ] {
        refused(&sweep(&file, workloads, policies, seeds, &[]), said);
        assert_eq!(bytes(&file), before, "{said}");
    }
    refused(
        &sweep(&file, &both, "pytorch,bfc,cuda-async,rmm-pool", "2", &["--prealloc", "0.5"]),
        "has a different pre-allocation than requested",
    );
    let part = at(&folder, "part.jsonl");
    done(&sweep(&part, SMALL, "pytorch", "2", &["--shard", "1/2"]));
    let grown = sweep(&part, SMALL, "pytorch,bfc", "2", &["--shard", "1/2"]);
    refused(&grown, "parts do not grow: merge the parts, then add to the merged file");
}

#[test]
fn only_the_rows_of_a_policy_that_has_changed_are_run_again() {
    let folder = Folder::new("sweep-renewed");
    let file = at(&folder, "rows.jsonl");
    let asked = |more: &[&str]| sweep(&file, SMALL, "pytorch,bfc,bfc:waste=1MiB", "2", more);
    done(&asked(&[]));
    let whole = bytes(&file);
    let old = marked(&whole).replace(&build_of("bfc"), "0.1.0-0123456789abcdef-1");
    assert_ne!(old, marked(&whole), "each row names its policy's build");
    folder.file("rows.jsonl", old.as_bytes());
    refused(&asked(&[]), "has rows of bfc made by parkade 0.1.0-0123456789abcdef-1, which may decide differently from this ");
    assert_eq!(bytes(&file), old);
    let run = asked(&["--renew", "--json"]);
    done(&run);
    let lines = bytes(&file);
    for ((line, first), mark) in lines.lines().zip(whole.lines()).zip(old.lines()).skip(1) {
        let expected = if line.contains("\"policy\":\"pytorch\"") { mark } else { first };
        assert_eq!(line, expected, "PyTorch's rows are still valid");
    }
    assert_eq!((&json(&run)["mixed"], json(&run)["programs"].as_object().map(|builds| builds.len())), (&false.into(), Some(2)));
    done(&asked(&["--renew"]));
    assert_eq!(bytes(&file), lines, "nothing is left to renew");
    assert_eq!(call(&["sweep", "-w", SMALL, "--renew"]).code, 2, "there is no file");
}
