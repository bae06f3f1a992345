//! Strings from a file never reach the terminal unescaped: escape sequences, C1 controls, direction marks.

use std::sync::Arc;

use crate::common::*;
use parkade_recording::{Action, Annotation, Frame, RecordedSettings, Recording};

/// Colours, a bell, a title, C1's own escape, a fake line, text that runs backwards, delete.
const HOSTILE: &str = "a\u{1b}[31m\u{7}\u{1b}]0;t\u{9c}\u{9b}32m\u{85}\u{2028}\u{202e}\u{7f}\r\nz";

/// A run whose every name is hostile; it dies of an out-of-memory error.
fn hostile(died: bool) -> Recording {
    let mut recording = good();
    let frames: Vec<_> = (1..3)
        .map(|line| recording.stacks.intern_frame(Frame { filename: HOSTILE.into(), line, name: HOSTILE.into() }))
        .collect();
    let stack = recording.stacks.intern_stack(&frames);
    if died {
        recording.devices[0].trace.push(entry(Action::Oom, 4 * MIB, 30 * MIB));
    }
    for entry in &mut recording.devices[0].trace {
        entry.stack = stack;
        entry.set_time(Some(1000));
    }
    for segment in &mut recording.devices[0].segments {
        segment.stack = stack;
        segment.blocks.iter_mut().for_each(|block| block.stack = stack);
    }
    let note = |stage: &str| Annotation {
        name: Arc::from(HOSTILE),
        stage: stage.into(),
        device: Some(0),
        time_us: Some(if stage == "START" { 0 } else { 2000 }),
    };
    recording.annotations = vec![note("START"), note("END")];
    recording.settings = Some(RecordedSettings { text: Some(HOSTILE.to_owned()), ..default_settings() });
    recording
}

/// What a terminal would obey, and what changes the order of what it shows.
fn is_obeyed(c: char) -> bool {
    c.is_control() && c != '\n' || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn check(run: &Run, what: &[&str]) {
    assert!(run.code <= 3, "{what:?}: {}", run.err);
    for text in [&run.out, &run.err] {
        let line = text.lines().find(|line| line.contains(is_obeyed));
        assert!(line.is_none(), "{what:?}: {line:?}");
    }
}

/// As text, as Markdown where the command has it, and as JSON that contains the strings unchanged.
fn check_both(arguments: &[&str]) {
    let run = call(arguments);
    check(&run, arguments);
    let run = call(&[arguments, &["--markdown"]].concat());
    check(&run, arguments);
    let run = call(&[arguments, &["--json"]].concat());
    check(&run, arguments);
    for line in run.out.lines() {
        let object: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {line}"));
        assert!(object.is_object(), "{arguments:?}");
    }
}

#[test]
fn names_in_recordings_are_written_out() {
    let folder = Folder::new("escapes-recordings");
    let name = format!("run0{}", HOSTILE.replace('/', ""));
    let (run, died) = (folder.recording(&name, &hostile(false)), folder.recording("run1 \u{9b}.pickle", &hostile(true)));
    let damaged = folder.file("\u{1b}[31m\u{9b}damaged", b"nothing");
    let missing = format!("{}/\u{1b}[31m\u{9b}missing", folder.path());
    let out = format!("{}/out\u{1b}[31m\u{9b}", folder.path());
    for file in [&run, &died, &damaged, &missing] {
        for command in ["verify", "replay", "advise", "diagnose", "stats", "report", "pack"] {
            check_both(&[command, file]);
        }
        check_both(&["diff", file, &died]);
        check_both(&["diff", &died, file]);
        check_both(&["diagnose", file, "--entry", "3"]);
        check_both(&["stats", file, "--steps"]);
        check_both(&["verify", &run, "--stats", file]);
        check_both(&["verify", &run, "--settings", HOSTILE]);
        check_both(&["export", file, "--force", "-o", &out]);
        check_both(&["export", file, "--force", "--settings", "", "-o", &out]);
        check_both(&["export", file, "--force", "--format", "perfetto", "-o", &out]);
        check_both(&["sweep", "-w", file, "-p", "pytorch", "-c", "1.0", "--bounds", "0"]);
        check(&call(&["report", file, "--force", "-o", &out]), &["report -o"]);
        check(&call(&["report", file, "--folded", "-"]), &["report --folded"]);
        check(&call(&["report", file, "--flamegraph", "-"]), &["report --flamegraph"]);
        check(&call(&["report", file, "--svg", "-"]), &["report --svg"]);
        check(&call(&["export", file, "--format", "perfetto", "-o", "-"]), &["export"]);
        check(&call(&["sweep", "-w", file, "-p", "pytorch", "-c", "1.0", "--bounds", "0", "-o", "-"]), &["sweep -o -"]);
        check(&call(&["sweep", "-w", file, "-p", "pytorch", "-c", "1.0", "--bounds", "0", "--markdown"]), &["sweep --markdown"]);
    }
    for command in ["verify", "replay", "advise", "diagnose", "stats", "report"] {
        check_both(&[command, folder.path()]);
    }
}

#[test]
fn a_json_string_is_the_one_of_the_file() {
    let folder = Folder::new("escapes-json");
    let file = folder.recording(&HOSTILE.replace('/', ""), &hostile(true));
    let run = call(&["verify", "--json", &file]);
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!(object["file"], file);
    assert!(run.out.contains("\\u009b32m") && run.out.contains("\\u001b[31m"), "{}", run.out);
}

#[test]
fn messages_scripts_and_tables_are_written_out() {
    let folder = Folder::new("escapes-others");
    let message = format!(
        "{HOSTILE} [rank0]: CUDA out of memory. Tried to allocate 4.88 GiB. GPU 0 has a total capacity of 39.59 GiB of which 1.51 GiB is \
         free. Of the allocated memory 30.00 GiB is allocated by PyTorch, and 6.37 GiB is reserved by PyTorch but unallocated. {HOSTILE}"
    );
    check_both(&["diagnose", "--message", &message]);
    check_both(&["diagnose", "--message", HOSTILE]);
    let csv = folder.file("t.csv", format!("id,lower,upper,size\n\"{HOSTILE}\",0,2,4\n\"{HOSTILE}\",0,2,4\n").as_bytes());
    check_both(&["pack", &csv]);
    let stats = folder.file("stats.json", format!("{{{:?}: 1, \"num_ooms\": \"{}\"}}", "a\u{9b}", "\u{9b}\u{202e}").as_bytes());
    check_both(&["verify", &folder.recording("run.pickle", &good()), "--stats", &stats]);
    let script =
        format!("alloc {0} 1000\nfree {0}\nconf {0}:1\n{0}\nsnapshot\nuser_metadata {0}\n", HOSTILE.replace(['\n', ' '], ""));
    let run = call_with(&["ops", "-"], script.as_bytes());
    check(&run, &["ops"]);
    assert!(run.out.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{}", run.out);
    check(&call(&["ops", "-", "--settings", HOSTILE]), &["ops --settings"]);
    check(&call(&["enable", HOSTILE]), &["enable"]);
    check_both(&["sweep", "-w", HOSTILE]);
    check_both(&["merge", &stats, "-o", "x"]);
    check_both(&["sweep", "--largest-batch", "-w", HOSTILE]);
    check(&call(&["conform", "--filter", HOSTILE]), &["conform"]);
    for arguments in [&["verify", "x", "--limit", HOSTILE][..], &["verify", HOSTILE, "--nosuch", HOSTILE], &[HOSTILE]] {
        check(&call(arguments), arguments);
        check(&call(&[arguments, &["--json"]].concat()), arguments);
    }
}
