//! `parkade conform --script`: a sequence that once failed runs again.

use crate::common::{Folder, call, call_with};

fn corpus(name: &str) -> String {
    format!("{}/../conformance/corpus/{name}.txt", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_script_names_its_entry_and_its_sequence() {
    for name in ["law.policy.compaction.seeded.1", "law.endings.virtual.seeded.12"] {
        let run = call(&["conform", "--script", &corpus(name), "--json"]);
        assert_eq!((run.code, run.out.lines().count()), (0, 1), "{name}: {}{}", run.out, run.err);
        let row: serde_json::Value = serde_json::from_str(run.out.trim_end()).expect("JSON");
        assert_eq!((&row["status"], &row["group"]), (&"pass".into(), &"law".into()));
        let steps = row["operations"].as_u64().expect("a number");
        assert!(steps > 0 && steps < 200, "one program: {steps} operations");
    }
    let text = std::fs::read_to_string(corpus("law.policy.compaction.seeded.1")).expect("a file");
    // As the text output shows it, and under policies that are not in the catalogue.
    let indented: String = text.lines().map(|line| format!("    {line}\n")).collect();
    for policy in ["bfc", "best-fit-remap:handle=20MiB"] {
        let run = call_with(&["conform", "--script", "-", "--policy", policy], indented.as_bytes());
        assert!(run.code == 0 && run.out.contains(&format!("policy/{policy}/seeded")), "{}{}", run.out, run.err);
    }
}

#[test]
fn a_report_never_replaces_its_script() {
    let folder = Folder::new("conform-report");
    let text = std::fs::read(corpus("law.policy.compaction.seeded.1")).expect("a file");
    let script = folder.file("script.txt", &text);
    let run = call(&["conform", "--script", &script, "--report", &script, "--force"]);
    assert!(run.code == 2 && run.err.contains(&script), "{}{}", run.out, run.err);
    assert_eq!(std::fs::read(&script).expect("a file"), text);
}

fn listed(policy: &str) -> Vec<String> {
    let run = call(&["conform", "--list", "--policy", policy]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{policy}");
    let titles = run.out.split_whitespace().filter(|word| word.starts_with("law/policy/"));
    let policies = titles.map(|title| title["law/policy/".len()..].rsplit_once('/').expect("a policy and a law").0.to_owned());
    let mut policies: Vec<String> = policies.collect();
    policies.dedup();
    policies
}

/// A mistake may show only under some values.
#[test]
fn a_grid_is_checked_at_each_point_and_a_name_also_at_the_borders() {
    assert_eq!(listed("bfc:waste=1MiB/64MiB"), ["bfc:waste=1MiB", "bfc:waste=64MiB"]);
    assert_eq!(listed("bfc:waste=1MiB"), ["bfc:waste=1MiB"]);
    let borders = ["bfc:kind=one-region", "bfc:kind=xla", "bfc:kind=xla-growth", "bfc:waste=256B", "bfc:waste=16TiB"];
    assert_eq!(listed("bfc"), [&["bfc"], &borders[..]].concat());
    assert_eq!(listed("stalloc"), ["stalloc"]);
    let run = call(&["conform", "--policy", "bfc:waste=1MiB/64MiB", "--filter", "/at-once", "--cases", "10", "--json"]);
    assert_eq!((run.code, run.out.lines().count()), (0, 2), "{}{}", run.out, run.err);
    let run = call(&["conform", "--policy", "bfc:waste=1B/64MiB"]);
    assert!(run.code == 2 && run.err.contains("waste=1B is not possible"), "{}", run.err);
}

/// The borders get a tenth of the sequences.
#[test]
fn a_name_gets_every_sequence_and_its_borders_a_part() {
    let run = call(&["conform", "--policy", "bfc", "--filter", "/at-once", "--cases", "20"]);
    let programs = |policy: &str| {
        let start = format!("  policy/{policy}/at-once ");
        let row = run.out.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{policy}: {}", run.out));
        // Only a terminal cuts a row.
        assert!(row.contains(" loads") && !row.contains("..."), "{row}");
        row.contains("operations in 20 programs").then_some(20).or(row.contains("operations in 2 programs").then_some(2))
    };
    assert_eq!((run.code, programs("bfc"), programs("bfc:waste=256B")), (0, Some(20), Some(2)), "{}", run.out);
}

#[test]
fn a_file_that_is_no_script_is_refused() {
    let folder = Folder::new("conform-script");
    let refused = |text: &str, words: &str| {
        let run = call(&["conform", "--script", &folder.file("script.txt", text.as_bytes())]);
        assert!(run.code == 2 && run.err.contains(words), "{}{}", run.out, run.err);
    };
    refused("alloc a 1\n", "no line `# entry GROUP/NAME`");
    refused("# entry law/policy/bfc/seeded\nalloc a 1\n", "neither a line `# program ...`");
    refused("# entry law/nothing\n# program []\n", "there is no entry law/nothing");
    let elsewhere =
        "there is no policy \"mine\"; parkade sweep --list lists all; if a program of yours declares the policy, run that";
    refused("# entry law/policy/mine/seeded\n# program []\n", elsewhere);
    let grid = call(&["conform", "--script", &corpus("law.policy.compaction.seeded.1"), "--policy", "bfc:waste=1MiB/2MiB"]);
    assert!(grid.code == 2 && grid.err.contains("bfc:waste=1MiB/2MiB is 2: name one of them"), "{}", grid.err);
    let run = call(&["conform", "--script", "/nowhere", "--filter", "law"]);
    assert!(run.code == 2 && run.err.contains("--filter"), "{}", run.err);
    let broken = folder.file("broken.txt", b"# entry law/policy/bfc/seeded\n# program {\"pages\":3}\n");
    let run = call(&["conform", "--script", &broken]);
    assert!(run.code == 1 && run.out.contains("not a program"), "{}{}", run.out, run.err);
}
