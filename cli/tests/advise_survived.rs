//! A run that survives its out-of-memory errors: what `advise` and `replay` say about it, and that they agree.

use crate::common::{Folder, call};
use serde_json::Value;

const ONLY: [&str; 3] = ["--settings", "expandable_segments:True", "--only"];

/// A recording that ships, as it would have run under a limit, continuing after each error.
fn surviving(folder: &Folder, limit: &str) -> String {
    let source = format!("{}/../conformance/recordings/prefetch_streams.default.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let file = format!("{}/survived.{limit}.pickle", folder.path());
    let run = call(&["export", &source, "--limit", limit, "-o", &file]);
    assert!(run.out.contains("out of memory") && std::fs::exists(&file).is_ok_and(|is_there| is_there), "{}{}", run.out, run.err);
    file
}

#[test]
fn what_fails_is_cured_and_without_the_cure_the_run_goes_on() {
    let folder = Folder::new("survived-cured");
    let file = surviving(&folder, "4GiB");
    let run = call(&[&["advise", "--all", &file, "--limit", "4GiB"], &ONLY[..]].concat());
    let out = run.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(run.code, 0, "{out}");
    let said = "with the default settings it fails at entry 1024; the program survives such errors: it continued after 41 out-of-memory errors in the recording";
    assert!(out.contains(said), "{out}");
    let own = call(&["replay", &file, "--limit", "4GiB"]);
    let said = "it does not fit: it runs out of memory at entry 1024; the program survives such errors: it continued after 41";
    assert!(own.code == 1 && own.out.split_whitespace().collect::<Vec<_>>().join(" ").contains(said), "{}", own.out);
}

#[test]
fn where_nothing_helps_it_meets_the_errors_again_and_goes_on() {
    let folder = Folder::new("survived-short");
    let file = surviving(&folder, "2GiB");
    let run = call(&[&["advise", "--all", &file, "--limit", "2GiB"], &ONLY[..]].concat());
    let out = run.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(run.code == 1 && out.contains("Fragmentation: the program holds") && out.contains("; no setting helps"), "{out}");
    assert!(out.contains("; the program survives such errors: it continued after "), "{out}");
    let object = |command: &[&str]| -> Value { serde_json::from_str(&call(command).out).expect("an object") };
    let advised = object(&[&["advise", "--json", &file, "--limit", "2GiB"], &ONLY[..]].concat());
    let replayed = object(&["replay", "--json", &file, "--limit", "2GiB"]);
    assert_eq!((&advised["outcome"], &replayed["outcome"]), (&"does_not_fit".into(), &"does_not_fit".into()));
    assert_eq!((&advised["survives_oom"], &replayed["endings"][0]), (&true.into(), &"survived".into()));
}
