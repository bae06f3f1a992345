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
fn a_file_that_is_no_script_is_refused() {
    let folder = Folder::new("conform-script");
    let refused = |text: &str, words: &str| {
        let run = call(&["conform", "--script", &folder.file("script.txt", text.as_bytes())]);
        assert!(run.code == 2 && run.err.contains(words), "{}{}", run.out, run.err);
    };
    refused("alloc a 1\n", "no line `# entry GROUP/NAME`");
    refused("# entry law/policy/bfc/seeded\nalloc a 1\n", "neither a line `# program ...`");
    refused("# entry law/nothing\n# program []\n", "there is no entry law/nothing");
    let run = call(&["conform", "--script", "/nowhere", "--filter", "law"]);
    assert!(run.code == 2 && run.err.contains("--filter"), "{}", run.err);
    let broken = folder.file("broken.txt", b"# entry law/policy/bfc/seeded\n# program {\"pages\":3}\n");
    let run = call(&["conform", "--script", &broken]);
    assert!(run.code == 1 && run.out.contains("not a program"), "{}{}", run.out, run.err);
}
