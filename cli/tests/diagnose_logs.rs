//! `parkade diagnose --message` with logs: of any size, in files and on standard input.

use std::fmt::Write as _;

use crate::common::*;
use serde_json::Value;

const MESSAGE: &str = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 24.00 \
                       GiB of which 0.25 GiB is free. Of the allocated memory 22.00 GiB is allocated by PyTorch, and 0.75 GiB is reserved \
                       by PyTorch but unallocated.";

/// This many lines of 4 KiB.
fn lines(count: usize) -> String {
    (["validation-loss-0.25 ".repeat(195), "\n".to_owned()].concat()).repeat(count)
}

fn object(run: &Run) -> Value {
    serde_json::from_str(run.out.trim_end()).unwrap_or_else(|_| panic!("no JSON: {}{}", run.out, run.err))
}

/// Messages are at the end of logs, and logs are long.
#[test]
fn a_message_behind_80_megabytes_is_found() {
    let log = lines(20_000) + MESSAGE;
    assert!(log.len() > 80_000_000);
    let run = call_with(&["diagnose", "--json", "--message", "-"], log.as_bytes());
    let object = object(&run);
    assert_eq!((run.code, &object["rank"], &object["line"]), (0, &3.into(), &20_001.into()), "{object}");
    assert_eq!(object["verdict"], "capacity");
}

#[test]
fn a_log_is_read_from_its_file() {
    let folder = Folder::new("diagnose-logs");
    let log = lines(3) + MESSAGE + "\nstep 7\n";
    let file = folder.file("train.log", log.as_bytes());
    let of_file = call(&["diagnose", "--message", &file]);
    let of_text = call_with(&["diagnose", "--message", "-"], log.as_bytes());
    assert_eq!((of_file.code, &of_file.out), (0, &of_text.out), "{}", of_file.err);
    let as_file = call(&["diagnose", &file]);
    assert_eq!((as_file.code, &as_file.out), (0, &of_text.out), "{}", as_file.err);
    let limited = call(&["diagnose", &file, "--limit", "24GiB"]);
    assert_eq!((limited.code, limited.out.as_str()), (2, ""));
    assert!(limited.err.ends_with("this is a log, and --limit applies only to a snapshot\n"), "{}", limited.err);
    // The other commands say which one reads a log.
    for command in ["advise", "report", "stats", "verify", "diff", "pack", "sweep"] {
        let run = call(&[command, &file]);
        let said = format!("to explain the out-of-memory message in a log, run parkade diagnose {file}\n");
        assert_eq!((run.code, run.out.as_str(), run.err.lines().count()), (2, "", 1), "{command}");
        assert!(run.err.ends_with(&said), "{command}: {}", run.err);
    }
    // A file that cannot be read is not reported as a log without messages.
    let missing = format!("{}/none.log", folder.path());
    let empty = folder.file("empty.log", b"");
    for (name, text) in [
        (missing.as_str(), "there is no such file"),
        (folder.path(), "Is a directory"),
        (&empty, "there is no out-of-memory message"),
    ] {
        let run = call(&["diagnose", "--message", name]);
        assert_eq!((run.code, run.out.as_str()), (2, ""));
        assert!(run.err.contains(text) && run.err.lines().count() == 1, "{}", run.err);
    }
}

/// If there are more messages than are kept, the first are listed and the others counted.
#[test]
fn the_messages_that_are_not_kept_are_counted() {
    let mut log = String::new();
    for number in 0..16_384 + 3 {
        writeln!(log, "CUDA out of memory. Tried to allocate {number}.00 MiB.").expect("a string");
    }
    log += "Root Cause (first observed failure): [0]: time : 2024-05-01_12:00:02 host : a rank : 7 (local_rank: 7)\n";
    let run = call_with(&["diagnose", "--message", "-"], log.as_bytes());
    let words = run.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "the first 16384 different out-of-memory messages, and 3 more after them that are only counted; rank 7 failed first",
        "as torchrun observed, but none of its messages is among the first",
        "the log has 3 more messages after the first 16384 different ones",
    ] {
        assert!(words.contains(text), "{text:?} is not in\n{}", run.out.lines().take(4).collect::<Vec<_>>().join("\n"));
    }
    let run = call_with(&["diagnose", "--json", "--message", "-"], log.as_bytes());
    let object = object(&run);
    assert_eq!(object["messages"].as_array().map(Vec::len), Some(16_384));
    let is_noted = |note: &Value| note.as_str().is_some_and(|note| note.contains("3 more messages"));
    assert!(object["notes"].as_array().is_some_and(|notes| notes.iter().any(is_noted)), "{}", object["notes"]);
}
