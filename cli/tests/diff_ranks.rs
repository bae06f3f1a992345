//! `parkade diff` of two folders of ranks: which ranks are compared, in which order, and one check over all.

use crate::common::documented::check_all;
use crate::common::*;
use parkade_recording::{Action, Recording};
use serde_json::Value;

/// A run that holds this many MiB in one segment.
fn holding(mebibytes: u64) -> Recording {
    let bytes = mebibytes * MIB;
    let trace = vec![entry(Action::SegmentAlloc, BASE, bytes), entry(Action::Alloc, BASE, bytes)];
    recording(trace, vec![segment(vec![used(BASE, bytes)])])
}

fn folder(name: &str, ranks: &[(&str, u64)]) -> Folder {
    let folder = Folder::new(name);
    for (file, mebibytes) in ranks {
        folder.recording(file, &holding(*mebibytes));
    }
    folder
}

fn json(args: &[&str]) -> (i32, Vec<Value>) {
    let run = call(&[&["diff", "--json"], args].concat());
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{args:?}: {error}: {line}"));
    (run.code, run.out.lines().map(line).collect())
}

#[test]
fn each_rank_is_compared_with_its_own_and_the_worst_comes_first() {
    // The names say more than the rank, and differ; in the order of the names, 10 precedes 2.
    let a = folder("diff-ranks-a", &[("rank0_v1.pickle", 100), ("rank2_v1.pickle", 100), ("rank10_v1.pickle", 100)]);
    let b = folder("diff-ranks-b", &[("rank0_v2.pickle", 101), ("rank2_v2.pickle", 130), ("rank10_v2.pickle", 90)]);
    let (code, lines) = json(&[a.path(), b.path(), "--fail-above", "20%"]);
    let job = lines.last().expect("the ranks");
    let order: Vec<_> = job["pairs"].as_array().expect("pairs").iter().map(|pair| &pair["rank"]).collect();
    assert_eq!((code, order), (1, vec![&Value::from(2), &Value::from(0), &Value::from(10)]), "{job}");
    let worst = &job["pairs"][0];
    assert_eq!((&worst["peak_reserved_bytes_a"], &worst["peak_reserved_bytes"]), (&(100 * MIB).into(), &(130 * MIB).into()));
    let checks: Vec<_> = (0..3).map(|place| job["pairs"][place]["check"].as_str().unwrap_or_default()).collect();
    assert_eq!((checks, &job["exceeded"]), (vec!["exceeded", "holds", "holds"], &true.into()));
    // The lines of the ranks are in the same order.
    assert!(
        lines.len() == 4 && lines[0]["b"]["file"].as_str().is_some_and(|file| file.ends_with("rank2_v2.pickle")),
        "{lines:?}"
    );
    let rare = [
        "devices[].comparison.begins.step",
        "devices[].comparison.steps[]",
        "a.made_by.differing[]",
        "a.made_by.refuted_limit",
        "b.made_by.differing[]",
        "b.made_by.refuted_limit",
    ];
    check_all("diff", &format!("{}\n{}\n{}", lines[0], diff_of_everything(), single()), &rare);
    let one_folder = json(&[b.path()]).1.pop().expect("the ranks");
    check_all("diff of folders", &format!("{job}\n{one_folder}\n"), &[]);

    let text = call(&["diff", a.path(), b.path(), "--fail-above", "20%"]);
    assert_eq!((text.code, text.err.as_str()), (1, ""), "{}", text.out);
    assert!(
        text.out.starts_with("1 of 3 ranks is above a bound; rank 2 is the worst. The exit code is 1.\n")
            && text.out.contains("\n\nrank 2\ntoo much: "),
        "{}",
        text.out
    );
    assert!(text.out.contains("too much: ") && !text.out.contains("rank0_v1.pickle"), "only the worst in full: {}", text.out);
    let all = call(&["diff", a.path(), b.path(), "--all"]);
    assert!(all.code == 0 && all.out.contains("rank0_v1.pickle"), "{}", all.out);
    assert_eq!(call(&["diff", a.path(), b.path(), "--fail-above", "30%"]).code, 0);
}

/// The other keys of the section about two files, from a shipped recording.
fn diff_of_everything() -> String {
    let shipped = |name: &str| format!("{}/../conformance/recordings/{name}.pickle.xz", env!("CARGO_MANIFEST_DIR"));
    let run = call(&["diff", "--json", &shipped("gpt2_varlen.frames_tail20k"), "--steps", "19:23"]);
    run.out.trim_end().to_owned()
}

fn single() -> String {
    let one = folder("diff-ranks-single", &[("one.pickle", 10)]);
    call(&["diff", "--json", &format!("{}/one.pickle", one.path()), "--fail-above", "1GiB"]).out.trim_end().to_owned()
}

#[test]
fn ranks_without_partner_are_named_and_pass_no_check() {
    let a = folder("diff-ranks-alone-a", &[("rank0.pickle", 100), ("rank1.pickle", 100), ("rank3.pickle", 100)]);
    let b = folder("diff-ranks-alone-b", &[("rank0.pickle", 100), ("rank1.pickle", 100), ("rank2.pickle", 100)]);
    let run = call(&["diff", a.path(), b.path()]);
    assert_eq!(run.code, 0, "{}", run.err);
    for said in ["Only A has rank 3, so", "Only B has rank 2, so", "Reserved memory grew on none of 2 ranks."] {
        assert!(run.out.contains(said), "{said}: {}", run.out);
    }
    assert_eq!(call(&["diff", a.path(), b.path(), "--fail-above", "2%"]).code, 3, "ranks 2 and 3 are not checked");
    let (code, lines) = json(&[a.path(), b.path(), "--fail-above", "0%"]);
    let job = lines.last().expect("the ranks");
    assert_eq!((code, &job["only_a"], &job["check"]), (3, &Value::from(vec![3]), &"not_known".into()), "{job}");
}

#[test]
fn one_folder_is_shown_rank_by_rank_and_checked() {
    let a = folder("diff-ranks-one", &[("rank0.pickle", 100), ("rank1.pickle", 120)]);
    let run = call(&["diff", a.path(), "--fail-above", "110MiB"]);
    assert!(run.code == 1 && run.out.contains("1 of 2 ranks is above a bound; rank 1"), "{}{}", run.out, run.err);
    assert_eq!(call(&["diff", a.path(), "--fail-above", "120MiB"]).code, 0);
    let growth = call(&["diff", a.path(), "--fail-above", "2%"]);
    assert!(growth.code == 2 && growth.err.lines().count() == 1 && growth.err.contains("only one is given"), "{}", growth.err);
}

#[test]
fn a_folder_with_one_recording_is_as_that_file() {
    let (a, b) = (folder("diff-ranks-file-a", &[("x.pickle", 100)]), folder("diff-ranks-file-b", &[("y.pickle", 102)]));
    let files = [format!("{}/x.pickle", a.path()), format!("{}/y.pickle", b.path())];
    let of_files = call(&["diff", &files[0], &files[1], "--fail-above", "1%"]);
    for (one, other) in [(a.path(), b.path()), (a.path(), files[1].as_str())] {
        let run = call(&["diff", one, other, "--fail-above", "1%"]);
        assert_eq!((run.code, &run.out), (1, &of_files.out));
    }
}

#[test]
fn what_cannot_be_compared_is_said_in_one_line() {
    let two = folder("diff-ranks-bad", &[("rank0.pickle", 100), ("rank1.pickle", 100)]);
    let other = folder("diff-ranks-other", &[("rank5.pickle", 100), ("rank6.pickle", 100)]);
    let empty = Folder::new("diff-ranks-empty");
    let file = format!("{}/rank0.pickle", two.path());
    let refused: [(&str, &str, &str); 3] = [
        (two.path(), &file, "is a file and cannot be compared with a folder of several files"),
        (two.path(), empty.path(), "this folder contains no snapshots"),
        (two.path(), other.path(), "no rank is in both folders: Only A has ranks 0, 1"),
    ];
    for (a, b, said) in refused {
        let run = call(&["diff", a, b]);
        assert_eq!((run.code, run.out.as_str(), run.err.lines().count()), (2, "", 1), "{}", run.err);
        assert!(run.err.contains(said), "{said}: {}", run.err);
    }
    // One bad file does not hide the others.
    let mixed = folder("diff-ranks-mixed", &[("rank0.pickle", 100)]);
    mixed.file("rank1.pickle", b"nonsense");
    let run = call(&["diff", two.path(), mixed.path()]);
    assert!(
        run.code == 2 && run.err.contains("rank 1: ") && run.out.contains("Reserved memory grew on none of 1 rank"),
        "{}",
        run.out
    );
    // Nor is one without a counterpart ignored.
    mixed.recording("rank1.pickle", &holding(100));
    let bad = mixed.file("rank2.pickle", b"nonsense");
    for (a, b, alone) in [(two.path(), mixed.path(), "Only B has rank 2"), (mixed.path(), two.path(), "Only A has rank 2")] {
        let run = call(&["diff", a, b]);
        assert_eq!((run.code, run.err.lines().count()), (2, 1), "{}", run.err);
        assert!(run.err.contains(&format!("rank 2, found in only one folder: {bad}: ")), "{}", run.err);
        assert!(run.out.contains(alone) && run.out.contains("none of 2 ranks"), "{}", run.out);
        let (code, lines) = json(&[a, b]);
        assert!(code == 2 && lines.iter().any(|line| line["error"].is_string()), "{lines:?}");
    }
}

#[test]
fn one_folder_says_which_rank_differs_and_by_how_much() {
    let cases: [(&str, &[u64], &str); 5] = [
        ("low", &[100, 100, 100, 50], "Rank 3 reserves 50.00 MiB; the other 3 ranks reserve 100.00 MiB each.\n"),
        ("odd", &[100, 100, 130, 100], "Rank 2 reserves 130.00 MiB; the other 3 ranks reserve 100.00 MiB each.\n"),
        ("two", &[100, 130], "Rank 1 reserves 130.00 MiB, the other rank 100.00 MiB.\n"),
        ("same", &[100, 100, 100], "All 3 ranks reserve the same: 100.00 MiB.\n"),
        (
            "all-differ",
            &[100, 120, 110],
            "Of 3 ranks, rank 1 reserves the most: 120.00 MiB; the others reserve 100.00 MiB to 110.00 MiB.\n",
        ),
    ];
    for (name, mebibytes, says) in cases {
        let files: Vec<_> = (0..).map(|rank| format!("rank{rank}.pickle")).zip(mebibytes.iter().copied()).collect();
        let ranks: Vec<_> = files.iter().map(|(file, mebibytes)| (file.as_str(), *mebibytes)).collect();
        let folder = folder(&format!("diff-ranks-{name}"), &ranks);
        let run = call(&["diff", folder.path()]);
        assert!(run.out.starts_with(says), "{name}: {}{}", run.out, run.err);
        let why = run.out.lines().nth(1).is_some_and(|line| line.starts_with("why    rank ") && line.contains(" in use"));
        assert_eq!(why, name != "same", "{name}: {}", run.out);
    }
}

/// What only the odd rank holds is in the lines below the verdict.
#[test]
fn one_folder_says_why_a_rank_differs() {
    let folder = folder("diff-ranks-why", &[("rank0.pickle", 100), ("rank1.pickle", 100), ("rank3.pickle", 100)]);
    let mut odd = holding(100);
    odd.devices[0].trace.extend([entry(Action::SegmentAlloc, OTHER, 30 * MIB), entry(Action::Alloc, OTHER, 30 * MIB)]);
    odd.devices[0].segments.push(segment(vec![used(OTHER, 30 * MIB)]));
    folder.recording("rank2.pickle", &odd);
    let run = call(&["diff", folder.path()]);
    let lines: Vec<&str> = run.out.lines().take(6).collect();
    let expected = [
        "Rank 2 reserves 130.00 MiB; the other 3 ranks reserve 100.00 MiB each.",
        "why    rank 2 has 30.00 MiB more in use at its peak of reserved memory; what is reserved but unused (fragmentation and cache) is the same",
        "blocks +30.00 MiB in blocks of 16 MiB to 32 MiB (0 in rank 0, 1 in rank 2)",
        "above  rank 2 first exceeds rank 0's peak of 100.00 MiB at entry 3 of rank 2: 30.00 MiB is requested (no stack is recorded)",
        "same   Most requests are in both rank 0 and rank 2: 100.0 % of the requests in the shorter trace are also in the other.",
        "with   rank 2 is compared with rank 0, whose memory is nearest to the median of the others",
    ];
    assert_eq!(lines, expected, "{}{}", run.out, run.err);
    // The last line compares the two in full, and so does --all.
    let command = format!("parkade diff {0}/rank0.pickle {0}/rank2.pickle", folder.path());
    assert_eq!(run.out.lines().last(), Some(command.as_str()), "{}", run.out);
    let all = call(&["diff", folder.path(), "--all"]).out;
    assert!(all.contains("\nrank 0 (A) and rank 2 (B)\nB reserves 30.00 MiB more than A"), "{all}");
    let (_, objects) = json(&[folder.path()]);
    let odd = &objects.last().expect("the ranks")["odd_one_out"];
    assert_eq!((&odd["rank"], &odd["compared_with"]), (&2.into(), &0.into()), "{odd}");
}
