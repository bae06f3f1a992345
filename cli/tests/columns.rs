//! Tests that answers keep to the requested width.

use crate::common::{call, call_at_80_columns, parkade};

/// The words of a text in alphabetical order, because wrapped columns change their order.
fn sorted_words(text: &str) -> Vec<&str> {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.sort_unstable();
    words
}

/// Without a width, or with an invalid one, an answer has 80 columns. Only lines to paste are wider.
#[test]
fn answers_have_80_columns() {
    let shipped = |name: &str| format!("{}/../conformance/recordings/{name}.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let pools = &*shipped("pools/graph_reset.default.2");
    let (died, whole) = (&*shipped("resnet50_sweep.limit5_oom"), &*shipped("resnet50_sweep.default"));
    let cases = [
        &["advise", died][..],
        &["advise", died, "--all"],
        &["diagnose", died],
        &["diagnose", whole],
        &["diff", whole, died],
        &["diff", whole, died, "--all"],
        &["verify", whole, died],
        &["verify", whole, died, "--all"],
        &["stats", died],
        &["stats", died, "--all"],
        &["stats", died, "--every", "2000"],
        &["stats", died, "--entry", "100"],
        &["diff", died],
        &["diff", died, "--all"],
        &["sweep", "--list"],
        &["conform", "--list"],
        &["conform", "--list", "--policy", "all"],
        &["advise", pools],
        &["advise", pools, "--all"],
        &["replay", died],
        &["replay", died, "--policy", "compaction"],
        &["diagnose", "--message", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.88 GiB."],
    ];
    for arguments in cases {
        let run = call_at_80_columns(arguments);
        assert!(run.code != 2 && run.err.is_empty(), "{arguments:?}: {}", run.err);
        let is_pasted =
            |line: &str| line.starts_with("export ") || line.starts_with("parkade advise ") || line.starts_with("law/");
        for line in run.out.lines() {
            assert!(line.chars().count() <= 80 || is_pasted(line), "{arguments:?}: {line:?} in\n{}", run.out);
            assert_eq!(line, line.trim_end(), "{arguments:?}: {}", run.out);
            assert!(!line.contains("\\n"), "an escaped end of a line: {line:?}");
        }
        assert!(!run.out.starts_with('\n') && !run.out.ends_with("\n\n") && !run.out.contains("\n\n\n"), "{}", run.out);
        if arguments[0] == "diagnose" {
            // Wrapping neither adds a word nor loses one.
            assert_eq!(sorted_words(&run.out), sorted_words(&call(arguments).out), "{arguments:?}");
            for columns in ["80", "39", "wide", ""] {
                let other = parkade(arguments).env("COLUMNS", columns).output().expect("the binary runs");
                assert_eq!(String::from_utf8(other.stdout).expect("UTF-8"), run.out, "{columns:?}");
            }
        }
    }
}
