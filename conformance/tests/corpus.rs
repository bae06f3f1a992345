//! Sequences that once broke a law, found and shrunk by `.ci/soak`. Each one must pass now.
//!
//! A file of `conformance/corpus` begins with `# entry GROUP/NAME`. Its line `# program ...` is the sequence; the
//! remaining lines describe it in words. If an entry's failures are not single sequences, the file has a line `# seed
//! SEED cases CASES` instead.

use std::path::Path;

use parkade_conformance::backend::AnyBackend;
use parkade_conformance::checks::entries;
use parkade_conformance::checks::laws_any_policy::{self, Share};
use parkade_conformance::suite::{Again, Entry, Row, Silent, Status, run};

/// Runs the entry that a file names.
fn replay(text: &str) -> Result<(), String> {
    let Again { title, effort } = Again::read(text)?;
    // Use all sequences for each policy, as `parkade conform --policy all` does; a run of the entire suite draws fewer.
    let policies = laws_any_policy::entries(&AnyBackend::simulated(), None, Share::Whole);
    let found = policies.into_iter().chain(entries(&AnyBackend::simulated())).find(|entry| entry.title() == title);
    let entry: Entry = found.ok_or_else(|| format!("there is no entry {title}: was it renamed?"))?;
    let rows = run(&AnyBackend::simulated(), &[entry], None, &effort, &Silent);
    match rows.first() {
        Some(Row { status: Status::Pass, .. }) => Ok(()),
        Some(row) => Err(row.reason.clone()),
        None => Err("the entry did not run".to_owned()),
    }
}

#[test]
fn what_once_broke_a_law_breaks_none() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let files = std::fs::read_dir(&folder).expect("conformance/corpus").map(|file| file.expect("a file").path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    files.sort();
    assert!(!files.is_empty(), "conformance/corpus has no sequences");
    let failures: Vec<String> = files
        .iter()
        .filter_map(|path| {
            let text = std::fs::read_to_string(path).expect("text");
            replay(&text).err().map(|reason| format!("{}: {reason}", path.display()))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_file_that_cannot_be_replayed_is_a_failure() {
    let unknown = "# entry law/renamed\n# program []\n";
    assert!(replay(unknown).is_err_and(|reason| reason.contains("renamed")));
    let broken = "# entry law/contents/remapped-by-hand\n# program {\"pages\":3}\n";
    assert!(replay(broken).is_err_and(|reason| reason.contains("not a program")));
    assert!(replay("# entry law/contents/remapped-by-hand\n").is_err());
}
