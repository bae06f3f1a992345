//! What the tests of `parkade sweep` and `parkade merge` share.

use std::fs;

use super::{Folder, Run, call, good};

/// Two small programs, two policies, three capacities.
pub(crate) fn sweep(folder: &Folder, more: &[&str]) -> Run {
    let recording = folder.recording("good.pickle", &good());
    let workloads =
        format!("{recording},transformer:layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,batch=8,mixed=on,steps=2");
    let own = ["sweep", "-w", &workloads, "-p", "pytorch,pytorch-expandable", "-c", "1.0,1.1,2GiB", "--seeds", "2"];
    call(&[&own, more].concat())
}

/// The name of a file in a folder.
pub(crate) fn at(folder: &Folder, name: &str) -> String {
    format!("{}/{name}", folder.path())
}

/// What a file holds.
pub(crate) fn bytes(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The file of rows of the entire sweep.
pub(crate) fn whole(folder: &Folder) -> (String, String) {
    let file = at(folder, "whole.jsonl");
    let run = sweep(folder, &["-o", &file]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    (bytes(&file), run.out)
}

/// Prints one line and does nothing.
pub(crate) fn refused(run: &Run, said: &str) {
    assert_eq!((run.code, run.err.lines().count(), run.out.as_str()), (2, 1, ""), "{}", run.err);
    assert!(run.err.contains(said), "{} lacks {said:?}", run.err);
}

/// A row with a text inserted before one of its values.
pub(crate) fn changed(row: &str, key: &str, first: &str) -> String {
    let key = format!("\"{key}\":");
    let value = row.find(&key).expect("a value") + key.len();
    let value = value + usize::from(row[value..].starts_with('"'));
    format!("{}{first}{}", &row[..value], &row[value..])
}

/// What was printed, which is one JSON object.
pub(crate) fn json(run: &Run) -> serde_json::Value {
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {}{}", run.out, run.err))
}
