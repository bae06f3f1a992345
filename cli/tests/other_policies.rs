//! Snapshots of programs that ran on parkade under a policy of its own: their requests are read, and what PyTorch did not decide is not
//! taken for PyTorch's. The two files are from an H100; their stacks were taken out.

use crate::common::{Folder, call, pages::shipped};

const POLICY: &str = "it maps memory although expandable_segments is off: the settings changed, or another allocator decided, as a policy of \
                      parkade does";

fn files() -> [String; 2] {
    ["streams", "compile_reduce_overhead"].map(|name| shipped(&format!("policies/{name}.breaking-handles")))
}

/// Memory that is mapped at once is of two streams later, or of a private pool in part; the trace does not tell.
#[test]
fn every_command_reads_memory_that_changed_hands() {
    let folder = Folder::new("memory-that-changed-hands");
    for file in files() {
        // The figures of stats would be PyTorch's: it says so, and ends with 1.
        for (command, code) in [("stats", 1), ("diagnose", 0), ("advise", 0)] {
            let run = call(&[command, &file]);
            assert_eq!(run.code, code, "{command} {file}: {}{}", run.out, run.err);
        }
        let run = call(&["report", &file, "-o", &format!("{}/page.html", folder.path()), "--force"]);
        assert_eq!(run.code, 0, "report {file}: {}{}", run.out, run.err);
    }
}

#[test]
fn another_allocator_is_named_as_a_cause() {
    for file in files() {
        let run = call(&["verify", &file]);
        assert_eq!(run.code, 1, "{file}: {}{}", run.out, run.err);
        let text = format!("{}{}", run.out, run.err).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(POLICY), "{file}: {text}");
    }
}
