//! Tests answers as Markdown, for example for a comment on a pull request: they say what the text says, without terminal styles.

use crate::common::*;
use parkade_recording::{DeviceRecording, Recording};

/// A recording of the repository.
fn shipped(name: &str) -> String {
    format!("{}/../conformance/recordings/{name}.pickle.xz", env!("CARGO_MANIFEST_DIR"))
}

/// The lines that are not code.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    let lines = lines.collect();
    assert!(!is_code, "a block of code has no end: {text}");
    lines
}

/// The cells of a row; a bar with a backslash before it divides nothing.
fn cells(row: &str) -> Vec<String> {
    let inside = row.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")).expect("bars at both ends");
    inside.replace("\\|", "\u{1}").split(" | ").map(str::to_owned).collect()
}

/// The tables: each begins below a blank line, has a rule below its heads, and as many cells in each row. Returns how many there are.
fn check_tables(text: &str) -> usize {
    let lines = prose(text);
    let is_row = |place: usize| lines.get(place).is_some_and(|line| line.starts_with('|'));
    let begins = |place: &usize| is_row(*place) && (*place == 0 || !is_row(place - 1));
    let mut tables = 0;
    for begin in (0..lines.len()).filter(begins) {
        assert!(begin > 0 && lines[begin - 1].is_empty(), "no blank line above {:?}: {text}", lines[begin]);
        let rule = lines[begin + 1].strip_prefix('|').and_then(|rule| rule.strip_suffix('|')).expect("a rule");
        let columns: Vec<&str> = rule.split('|').collect();
        assert!(columns.iter().all(|column| ["---", "--:"].contains(column)), "{rule}: {text}");
        let mut row = begin;
        while is_row(row) {
            assert!(row == begin + 1 || cells(lines[row]).len() == columns.len(), "{:?}: {text}", lines[row]);
            row += 1;
        }
        assert!(row > begin + 2, "a table without rows: {text}");
        tables += 1;
    }
    tables
}

/// The text that a reader of Markdown sees.
fn read(marked: &str) -> String {
    let mut read = String::new();
    let mut characters = marked.chars();
    while let Some(c) = characters.next() {
        read.extend(if c == '\\' { characters.next() } else { Some(c) });
    }
    read
}

/// The answer, and how many tables it has. Whatever was asked, it is Markdown.
fn markdown(arguments: &[&str]) -> (String, usize) {
    let run = call(&[arguments, &["--markdown"]].concat());
    assert!(run.code != 2 && run.err.is_empty(), "{arguments:?}: {}", run.err);
    assert!(!run.out.contains(|c: char| c.is_control() && c != '\n'), "{arguments:?}: {}", run.out);
    let is_loose = |line: &str| line.ends_with(' ') || line.starts_with("    ");
    assert!(!prose(&run.out).into_iter().any(is_loose) && !run.out.contains("\n\n\n"), "{arguments:?}: {}", run.out);
    assert!(!run.out.contains("\\n"), "an escaped end of a line: {}", run.out);
    assert!(!run.out.contains("--all has every") && !run.out.contains("--all also shows"), "for a terminal: {}", run.out);
    let tables = check_tables(&run.out);
    // Nothing is fitted to the columns of a terminal.
    let mut narrow = parkade(&[arguments, &["--markdown"]].concat());
    let narrow = Run::from(narrow.env("COLUMNS", "40").output().expect("the binary runs"));
    if arguments[0] != "verify" {
        assert_eq!((narrow.code, &narrow.out), (run.code, &run.out));
    }
    (run.out, tables)
}

/// The verdict of the text comes first, in bold, or a red word of it.
fn begins_with_the_verdict(arguments: &[&str]) -> (String, usize) {
    let (marked, tables) = markdown(arguments);
    let text = call(arguments).out;
    let verdict = marked.lines().next().filter(|line| line.starts_with("**"));
    assert_eq!(verdict.map(|line| read(&line.replace("**", ""))).as_deref(), text.lines().next(), "{arguments:?}: {marked}");
    (marked, tables)
}

#[test]
fn a_verdict_in_bold_comes_first() {
    let (file, other) = (&*shipped("resnet50_sweep.limit5_oom"), &*shipped("resnet50_sweep.default"));
    let cases = [
        (&["advise", file][..], 0),
        (&["diagnose", file], 4),
        (&["diff", file], 0),
        (&["diff", file, "--all"], 3),
        (&["diff", other, file], 2),
        (&["diff", other, file, "--all"], 7),
        (&["diff", other, file, "--fail-above", "2GiB"], 2),
        (&["verify", file], 0),
        (&["verify", file, "--all"], 1),
        (&["verify", file, other, "--all"], 1),
        (&["stats", file], 1),
        (&["stats", file, "--all"], 1),
        (&["replay", file], 1),
        (&["replay", file, "--limit", "4GiB"], 1),
        (&["replay", file, "--policy", "compaction"], 1),
    ];
    for (arguments, tables) in cases {
        let found = begins_with_the_verdict(arguments);
        assert_eq!(found.1, tables, "{arguments:?}: {}", found.0);
    }
    let (all, _) = markdown(&["stats", file, "--all"]);
    assert!(all.contains("\n```text\n|====") && all.contains("PyTorch CUDA memory summary, device ID 0"), "{all}");
}

#[test]
fn a_line_to_paste_is_code_and_comes_last() {
    let file = &*shipped("resnet50_sweep.limit5_oom");
    for arguments in [&["advise", file][..], &["diagnose", file], &["diagnose", "--message", "CUDA out of memory. Tried to"]] {
        let (marked, _) = begins_with_the_verdict(arguments);
        let text = call(arguments).out;
        let last = text.lines().last().unwrap_or_default();
        let is_code = last.starts_with("export ") || last.starts_with("parkade advise ");
        assert_eq!(is_code, arguments[1] == file, "{text}");
        assert_eq!(marked.ends_with(&format!("\n\n```sh\n{last}\n```\n")), is_code, "{marked}");
    }
}

#[test]
fn several_devices_and_files_are_told_apart() {
    let folder = Folder::new("markdown-several");
    let second = DeviceRecording { device: 3, ..good().devices[0].clone() };
    let both = Recording { devices: vec![good().devices[0].clone(), second], ..good() };
    let both = &*folder.recording("both.pickle", &both);
    for (arguments, tables) in [
        (&["diagnose", both][..], 4),
        (&["stats", both], 2),
        (&["replay", both, "--limit", "1GiB"], 1),
        (&["diff", both, both], 2),
        (&["verify", both, "--all"], 1),
    ] {
        let (marked, found) = markdown(arguments);
        assert!(marked.to_lowercase().contains("device 3") && found >= tables, "{arguments:?}: {found} {marked}");
    }
    let (first, second) = (folder.recording("first.pickle", &good()), folder.recording("second.pickle", &good()));
    for command in ["advise", "diagnose", "replay", "stats"] {
        let (marked, _) = markdown(&[command, &first, &second]);
        let lines: Vec<&str> = marked.lines().filter(|line| !line.is_empty()).collect();
        let verdict = |title: &str| lines.iter().position(|line| *line == title).and_then(|place| lines.get(place + 1));
        for title in ["#### first.pickle", "#### second.pickle"] {
            assert!(verdict(title).is_some_and(|line| line.starts_with("**")), "{command} {title}: {marked}");
        }
    }
    let ranks = ["rank0.pickle", "rank1.pickle"].map(|name| folder.recording(name, &good()));
    for command in ["advise", "diagnose", "replay", "stats"] {
        let (marked, tables) = markdown(&[command, &ranks[0], &ranks[1]]);
        assert!(tables == 1 && marked.contains("| rank | recording |") && marked.contains("\n| 1 | rank1.pickle |"), "{marked}");
        let (marked, _) = markdown(&[command, &ranks[0], &ranks[1], "--all"]);
        assert!(marked.contains("\n#### rank 1: rank1.pickle\n") && marked.contains("| rank | recording |"), "{marked}");
    }
}

/// A file's name neither ends a cell nor becomes a link, an element or a style.
#[test]
fn names_are_only_names() {
    let folder = Folder::new("markdown-names");
    let name = "a|b *c* _d_ [e](f) <i> `g`.pickle";
    let file = &*folder.recording(name, &good());
    let other = &*folder.recording("other.pickle", &good());
    let marked_name = "a\\|b \\*c\\* \\_d\\_ \\[e\\](f) \\<i> \\`g\\`.pickle";
    for arguments in [
        &["verify", file, "--all"][..],
        &["verify", file, other, "--all"],
        &["replay", file],
        &["diagnose", file],
        &["advise", file, other],
        &["diff", file, other, "--all"],
        &["pack", file, "--budget", "1000"],
    ] {
        let (marked, _) = markdown(arguments);
        let prose = prose(&marked).join("\n");
        assert!(prose.contains(marked_name) && !prose.contains(name), "{arguments:?}: {marked}");
    }
}

#[test]
fn one_form_is_chosen() {
    let folder = Folder::new("markdown-forms");
    let file = &*folder.recording("good.pickle", &good());
    for command in ["advise", "diagnose", "verify", "stats", "replay", "diff", "pack"] {
        let both = call(&[command, file, "--markdown", "--json"]);
        let said = "the argument '--markdown' cannot be used with '--json'";
        assert_eq!((both.code, both.out), (2, format!("{{\"error\":\"{said}\"}}\n")), "{command}");
        assert!(both.err.contains(said), "{command}: {}", both.err);
        let missing = call(&[command, "missing.pickle", "--markdown"]);
        assert_eq!((missing.code, missing.out.as_str()), (2, ""), "{command}");
        assert!(missing.err.starts_with("parkade: ") && missing.err.lines().count() == 1, "{command}: {}", missing.err);
    }
}

#[test]
fn one_blank_line_is_between_the_answers_about_ranks() {
    let folder = Folder::new("markdown-ranks");
    for name in ["rank0.pickle", "rank1.pickle"] {
        folder.recording(name, &good());
    }
    for command in ["advise", "diagnose", "replay", "stats"] {
        let (marked, _) = markdown(&[command, folder.path(), "--all"]);
        assert!(marked.starts_with("**") || marked.starts_with("####"), "{command}: {marked}");
        assert!(marked.contains("\n\n#### rank 1: rank1.pickle\n\n**"), "{command}: {marked}");
    }
}
