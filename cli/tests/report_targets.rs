//! Where `parkade report` writes: never over the recording, and over another file only on request.

use std::fs;

use crate::common::*;

#[test]
fn no_file_is_overwritten_without_force() {
    let folder = Folder::new("report-overwrite");
    let file = folder.recording("good.pickle", &good());
    let precious = folder.file("precious.html", b"<p>mine</p>");
    let run = call(&["report", &file, "-o", &precious]);
    assert!(run.code == 2 && run.err.contains("already exists: --force"), "{}", run.err);
    assert_eq!(fs::read(&precious).expect("a file"), b"<p>mine</p>");
    assert_eq!(call(&["report", &file, "-o", &file]).code, 2, "not even the recording itself");
    assert_eq!(call(&["report", &file, "-o", &precious, "--force"]).code, 0);
    assert_eq!(call(&["report", &file, "-o", &precious]).code, 2, "a page neither");
}

/// An input cannot be recreated, so it is not overwritten under its own name or a different one, even with `--force`.
#[test]
fn the_recording_is_never_overwritten() {
    let folder = Folder::new("report-itself");
    let file = folder.recording("good.pickle", &good());
    let before = fs::read(&file).expect("the recording");
    let roundabout = format!("{}/../{}/good.pickle", folder.path(), folder.path().rsplit('/').next().expect("a name"));
    let hard = format!("{}/hard.html", folder.path());
    fs::hard_link(&file, &hard).expect("a hard link");
    let mut names = vec![file.clone(), roundabout, hard];
    #[cfg(unix)]
    {
        let soft = format!("{}/soft.html", folder.path());
        std::os::unix::fs::symlink(&file, &soft).expect("a symbolic link");
        names.push(soft);
    }
    for name in &names {
        for option in ["-o", "--svg"] {
            let run = call(&["report", &file, option, name, "--force"]);
            assert!(run.code == 2 && run.err.contains("the output is the input file"), "{option} {name}: {}", run.err);
            assert_eq!(fs::read(&file).expect("the recording"), before, "{option} {name}");
        }
    }
}

#[test]
fn a_page_and_a_picture_need_two_files() {
    let folder = Folder::new("report-two");
    let file = folder.recording("good.pickle", &good());
    let (one, same) = (format!("{}/x", folder.path()), format!("{}/./x", folder.path()));
    for _ in 0..2 {
        let run = call(&["report", &file, "-o", &one, "--svg", &same, "--force"]);
        assert!(run.code == 2 && run.err.contains("would both be written to"), "{}", run.err);
        fs::write(&one, "there already").expect("a file");
    }
    assert_eq!(fs::read(&one).expect("a file"), b"there already");
}
