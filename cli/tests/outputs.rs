//! What every option that writes a file does with existing files, links, folders, full disks and standard output.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use crate::common::sweeps::{at, bytes};
use crate::common::writers::{WITHOUT_INPUT, WRITERS, Writer};
use crate::common::{Folder, Run, call, good, parkade};

/// A folder with the files that commands read.
struct Place(Folder);

impl Place {
    fn new(name: &str) -> Place {
        let folder = Folder::new(name);
        let recording = folder.recording("run.pickle", &good());
        let rows = at(&folder, "rows.jsonl");
        let run = call(&["sweep", "-w", &recording, "-p", "pytorch", "-c", "1.0", "--bounds", "0", "-o", &rows]);
        assert_eq!(run.code, 0, "{}", run.err);
        Place(folder)
    }

    fn at(&self, name: &str) -> String {
        at(&self.0, name)
    }

    /// The arguments without the option.
    fn arguments(&self, writer: &Writer) -> Vec<String> {
        let named = |word: &&str| match *word {
            "RECORDING" => self.at("run.pickle"),
            "ROWS" => self.at("rows.jsonl"),
            "OTHER" => self.at("other"),
            word => word.to_owned(),
        };
        let _ = fs::remove_file(self.at("other"));
        writer.line.iter().map(named).collect()
    }

    /// Makes the command write the file to `target`.
    fn run(&self, writer: &Writer, target: &str, more: &[&str]) -> Run {
        self.output(writer, target, more).into()
    }

    fn output(&self, writer: &Writer, target: &str, more: &[&str]) -> Output {
        let option = format!("--{}", writer.option);
        let arguments = self.arguments(writer);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain([option.as_str(), target]).collect();
        parkade(&[&arguments[..], more].concat()).current_dir(self.0.path()).output().expect("the binary runs")
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).expect("the folder");
        let mut names: Vec<String> =
            names.map(|name| name.expect("a name").file_name().to_str().expect("UTF-8").to_owned()).collect();
        names.sort();
        names
    }

    /// Removes what a test made.
    fn clean(&self) {
        for name in self.names().iter().filter(|name| !["rows.jsonl", "run.pickle"].contains(&name.as_str())) {
            let path = self.at(name);
            let removed = if Path::new(&path).is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.expect("it is removed");
        }
    }
}

fn all() -> impl Iterator<Item = &'static Writer> {
    WRITERS.iter().chain(&WITHOUT_INPUT)
}

fn name(writer: &Writer) -> String {
    format!("{} --{}", writer.command(), writer.option)
}

/// One line that says it.
fn refused(run: &Run, what: &str, said: &str) {
    assert_eq!((run.code, run.err.lines().count(), run.out.as_str()), (2, 1, ""), "{what}: {}", run.err);
    assert!(run.err.starts_with("parkade: ") && run.err.contains(said), "{what}: {} lacks {said:?}", run.err);
}

#[test]
fn an_existing_file_is_replaced_by_force_alone() {
    let place = Place::new("outputs-existing");
    for writer in all() {
        let what = name(writer);
        place.clean();
        let (file, link) = (place.at("mine"), place.at("link"));
        symlink("mine", &link).expect("a link");
        for target in [&file, &link] {
            for contents in ["mine\n", ""].iter().filter(|contents| !(writer.is_continued && contents.is_empty())) {
                fs::write(&file, contents).expect("a file");
                let said = if writer.is_continued { "is not a file of rows" } else { "already exists: --force overwrites it" };
                refused(&place.run(writer, target, &[]), &what, said);
                assert_eq!(bytes(&file), *contents, "{what}");
                assert!(!fs::exists(place.at("other")).expect("a folder"), "{what}: nothing is half done");
            }
            fs::write(&file, "mine\n").expect("a file");
            let run = place.run(writer, target, &["--force"]);
            if writer.is_continued {
                refused(&run, &what, "is not a file of rows");
                assert_eq!(bytes(&file), "mine\n", "{what}");
            } else {
                assert_eq!(run.code, 0, "{what}: {}", run.err);
                assert_ne!(fs::read(&file).expect("a file"), b"mine\n", "{what}");
            }
            assert!(fs::symlink_metadata(&link).expect("a link").is_symlink(), "{what}: the link stays");
        }
        assert!(place.names().iter().all(|name| !name.contains(".part")), "{what}: {:?}", place.names());
    }
}

#[test]
fn an_input_is_never_overwritten() {
    let place = Place::new("outputs-input");
    for writer in &WRITERS {
        let what = name(writer);
        place.clean();
        let input = if writer.command() == "merge" { "rows.jsonl" } else { "run.pickle" };
        let before = fs::read(place.at(input)).expect("the input");
        let folder = Path::new(place.0.path()).file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        fs::hard_link(place.at(input), place.at("hard")).expect("a hard link");
        symlink(input, place.at("soft")).expect("a link");
        symlink("soft", place.at("softer")).expect("a link");
        for target in [input.to_owned(), place.at(input), format!("../{folder}/{input}"), "hard".into(), "softer".into()] {
            for more in [&[][..], &["--force"]] {
                refused(&place.run(writer, &target, more), &what, "the output is the input file, which is never overwritten");
                assert_eq!(fs::read(place.at(input)).expect("the input"), before, "{what} {target}");
            }
        }
    }
}

#[test]
fn a_file_is_made_behind_a_link_that_leads_to_none() {
    let place = Place::new("outputs-dangling");
    for writer in all() {
        let what = name(writer);
        place.clean();
        fs::create_dir(place.at("folder")).expect("a folder");
        symlink("folder/behind", place.at("link")).expect("a link");
        let run = place.run(writer, "link", &[]);
        assert_eq!(run.code, 0, "{what}: {}", run.err);
        assert!(fs::symlink_metadata(place.at("link")).expect("a link").is_symlink(), "{what}: the link stays");
        assert!(fs::metadata(place.at("folder/behind")).is_ok_and(|data| data.len() > 0), "{what}");
        assert_eq!(fs::read_dir(place.at("folder")).expect("a folder").count(), 1, "{what}: no draft is left");
        symlink("round", place.at("round")).expect("a link");
        refused(&place.run(writer, "round", &["--force"]), &what, "round");
        symlink("none/behind", place.at("nowhere")).expect("a link");
        refused(&place.run(writer, "nowhere", &["--force"]), &what, "there is no folder");
    }
}

/// Also where neither is there yet.
#[test]
fn two_outputs_are_never_one_file() {
    let place = Place::new("outputs-two");
    symlink("one", place.at("link")).expect("a link");
    fs::write(place.at("hard"), "").expect("a file");
    fs::hard_link(place.at("hard"), place.at("harder")).expect("a hard link");
    for (position, one) in WRITERS.iter().enumerate() {
        for other in WRITERS[..position].iter().filter(|other| other.command() == one.command()) {
            for (target, same) in [("one", "link"), ("link", "./one"), ("hard", "harder"), ("-", "-"), ("/dev/null", "/dev/null")]
            {
                let what = format!("{} {target}, --{} {same}", name(one), other.option);
                // A line without `OTHER`, where one of them is what it stands for.
                let (first, second) = if other.option == "output" { (other, one) } else { (one, other) };
                let run = place.run(first, target, &[&format!("--{}", second.option), same, "--force"]);
                refused(&run, &what, "would both be written to");
                assert!(!fs::exists(place.at("one")).expect("a folder"), "{what}");
            }
        }
    }
}

#[test]
fn what_cannot_be_written_is_one_line_before_the_work() {
    let place = Place::new("outputs-unwritable");
    for writer in all() {
        let what = name(writer);
        place.clean();
        fs::create_dir(place.at("folder")).expect("a folder");
        // Nobody can create files in /proc, not even the superuser.
        for target in
            ["folder", "folder/", "none/file", "run.pickle/file", "/proc/parkade-none/file", "/proc/parkade-none", "..", "/"]
        {
            let run = place.run(writer, target, &["--force"]);
            refused(&run, &what, target.trim_end_matches('/'));
            assert!(run.err.contains("cannot write"), "{what} {target}: {}", run.err);
            assert!(!fs::exists(place.at("other")).expect("a folder"), "{what} {target}");
        }
        refused(&place.run(writer, &"n".repeat(300), &[]), &what, "cannot write");
        refused(&place.run(writer, "", &[]), &what, "cannot write");
        let run = place.run(writer, &"n".repeat(255), &[]);
        assert_eq!(run.code, 0, "{what}: a long name is one: {}", run.err);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line() {
    let place = Place::new("outputs-full");
    for writer in all().filter(|writer| !writer.is_continued) {
        refused(&place.run(writer, "/dev/full", &[]), &name(writer), "/dev/full: No space left on device");
        assert_eq!(place.run(writer, "/dev/null", &[]).code, 0, "{}", name(writer));
    }
}

#[test]
fn a_hyphen_is_standard_output() {
    let place = Place::new("outputs-stdout");
    for writer in all() {
        let what = name(writer);
        place.clean();
        let file = place.run(writer, "file", &[]);
        let Output { status, stdout, stderr } = place.output(writer, "-", &[]);
        let said = String::from_utf8(stderr).expect("UTF-8");
        assert_eq!((status.code(), file.code), (Some(0), 0), "{what}: {said}");
        if writer.command() == "conform" {
            assert!(stdout.starts_with(b"# Conformance report\n"), "{what}");
        } else {
            assert_eq!(stdout, fs::read(place.at("file")).expect("a file"), "{what}");
        }
        // Text other than the file is printed elsewhere.
        let first = |text: &str| text.lines().find(|line| !line.starts_with("wr")).map(str::to_owned);
        if !["conform", "pack"].contains(&writer.command()) {
            assert_eq!(first(&said), first(&file.out), "{what}");
        }
        assert!(!fs::exists(place.at("-")).expect("a folder"), "{what}");
        refused_json(&place.run(writer, "-", &["--json"]), &what);
        let named = place.run(writer, "./-", &[]);
        assert_eq!((named.code, fs::exists(place.at("-")).expect("a folder")), (0, true), "{what}: a file of that name");
    }
}

fn refused_json(run: &Run, what: &str) {
    assert_eq!((run.code, run.err.lines().count()), (2, 1), "{what}: {}", run.err);
    assert!(run.err.contains("- and --json would both be printed on standard output"), "{what}: {}", run.err);
}

#[test]
fn manual_pages_are_written_all_or_none() {
    let place = Place::new("outputs-man");
    let folder = place.at("man1");
    assert_eq!(call(&["man", "-o", &folder]).code, 0);
    fs::remove_file(format!("{folder}/parkade.1")).expect("a page");
    fs::write(format!("{folder}/parkade-verify.1"), "mine").expect("a page");
    refused(&call(&["man", "-o", &folder]), "man", "already exists: --force overwrites it");
    assert!(!fs::exists(format!("{folder}/parkade.1")).expect("a folder"));
    assert_eq!(bytes(&format!("{folder}/parkade-verify.1")), "mine");
    assert_eq!(call(&["man", "-o", &folder, "--force"]).code, 0);
    assert_ne!(bytes(&format!("{folder}/parkade-verify.1")), "mine");
    assert_eq!(call(&["man", "-o", "-"]).out, call(&["man"]).out);
}

/// The file keeps its permissions.
#[test]
fn a_replaced_file_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("outputs-mode");
    let file = place.at("page.html");
    fs::write(&file, "mine").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    assert_eq!(call(&["report", &place.at("run.pickle"), "-o", &file, "--force"]).code, 0);
    assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
}

/// A file written in a different way would escape all of these checks.
#[test]
fn files_are_written_in_one_way() {
    const WAYS: [&str; 5] = ["File::create", "fs::write(", "OpenOptions", "fs::rename", "fs::copy"];
    // The place for it, and the rows that grow.
    const PLACES: [&str; 2] = ["terminal/outputs.rs", "commands/sweep/rows.rs"];
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for found in fs::read_dir(folder).expect("a folder") {
            let path = found.expect("a file").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let name = path.to_str().expect("UTF-8");
                let text = fs::read_to_string(&path).expect("a source");
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&text);
                let way = WAYS.iter().find(|way| code.contains(**way));
                assert!(way.is_none() || PLACES.iter().any(|place| name.ends_with(place)), "{name} has {way:?}");
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "{seen}");
}
