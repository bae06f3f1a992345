//! `parkade report` about several recordings: one page with a table of all, and with the most informative ones in full.

use std::fs;

use crate::common::pages::{pieces, shipped};
use crate::common::*;
use parkade_recording::{Action, Recording};
use serde_json::Value;

/// `good`, a microsecond later for each rank, with a last block of this many MiB.
fn rank(number: u64, last_mib: u64) -> Recording {
    let mut rank = good();
    let device = &mut rank.devices[0];
    for (place, entry) in device.trace.iter_mut().enumerate() {
        entry.set_time(Some(1_700_000_000_000_000 + 1000 * place as u64 + number));
    }
    device.trace[2].size = last_mib * MIB;
    let rest = unused(BASE + (5 + last_mib) * MIB, (15 - last_mib) * MIB);
    device.segments = vec![segment(vec![unused(BASE, 5 * MIB), used(BASE + 5 * MIB, last_mib * MIB), rest])];
    rank
}

/// Twelve ranks: the tenth stands out, and the last but one runs out of memory.
fn twelve(folder: &Folder) {
    for number in 0..12 {
        let mut rank = rank(number, if number == 9 { 12 } else { 3 });
        if number == 10 {
            rank.devices[0].trace.push(entry(Action::Oom, 1, 64 * MIB));
            rank.devices[0].trace[5].set_time(Some(1_700_000_000_500_000));
        }
        folder.recording(&format!("rank{number}.pickle"), &rank);
    }
}

/// The values of an attribute, in their order.
fn values<'p>(page: &'p str, attribute: &str) -> Vec<&'p str> {
    let begin = format!("{attribute}=\"");
    page.split(begin.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The parts of a page that are sections, each from its beginning.
fn sections(page: &str) -> Vec<&str> {
    page.split("<section class=\"device").skip(1).collect()
}

#[test]
fn a_page_has_a_row_for_all_and_those_that_say_most_in_full() {
    let folder = Folder::new("report-ranks-twelve");
    twelve(&folder);
    let target = format!("{}/page.html", folder.path());
    let run = call(&["report", folder.path(), "-o", &target]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(
        run.out.starts_with("Of 12 ranks, only rank 10 ran out of memory, at entry 5") && run.out.contains("\nrank  recording"),
        "{}",
        run.out
    );
    assert!(run.out.contains("\n8 of 12 are shown in full, 4 only in the table"), "{}", run.out);
    let page = fs::read_to_string(&target).expect("a page");
    assert_eq!(page.matches("<th scope=\"row\">").count(), 12);
    let in_full = ["0", "1", "2", "3", "4", "5", "9", "10"];
    assert_eq!(
        (values(&page, "data-show"), values(&page, "section class=\"device traced\" data-section")),
        (in_full.to_vec(), in_full.to_vec())
    );
    // The most informative ones are in view, and each section has its own rank's data.
    let in_view: Vec<bool> =
        sections(&page).iter().map(|section| !section.split_once('>').expect("an end").0.contains("hidden")).collect();
    assert_eq!(in_view, [false, false, false, false, false, false, true, true]);
    for ((section, number), (object, _)) in sections(&page).iter().zip(in_full).zip(pieces(&page)) {
        assert!(section.contains(&format!("<h2>rank {number}</h2>")), "{number}");
        assert_eq!(object["entries"], if number == "10" { 6 } else { 5 }, "{number}");
    }
    assert!(page.contains("rank 9</label> <span class=\"tag warn\">stands out</span>"));
    assert!(page.contains("rank 10</label> <span class=\"tag bad\">fails first</span>"));
    assert!(page.contains("4 rows without a tick box"));
}

/// What `advise` recommends for the same folder is above the table: the same line, in the same words, in the same memory.
#[test]
fn the_page_recommends_the_one_setting_that_advise_does() {
    let folder = Folder::new("report-ranks-setting");
    let target = format!("{}/page.html", folder.path());
    for (ranks, limit) in [
        ([reuses_a_part(), good()], &["--limit", "140MiB"][..]),
        ([reuses_a_part(), good()], &["--limit", "1GiB"]),
        ([died_of_a_hole(), reuses_a_part()], &[]),
    ] {
        for (number, rank) in ranks.iter().enumerate() {
            folder.recording(&format!("rank{number}.pickle"), rank);
        }
        let advised = call(&[&["advise", "--json", folder.path()], limit].concat());
        let advised: Value = serde_json::from_str(advised.out.lines().last().expect("a line")).expect("JSON");
        let found = &advised["one_setting"];
        let run = call(&[&["report", folder.path(), "-o", &target, "--force"], limit].concat());
        assert_eq!(run.code, 0, "{}", run.err);
        let page = fs::read_to_string(&target).expect("a page");
        let above = page.split("<article class=\"card ranks-card\">").next().expect("the top");
        let (_, above) = above.split_once("<h2>What to do on all ranks</h2>").expect("a box");
        let line = found["line"].as_str().filter(|_| found["own"] == false);
        let shown = line.map(|line| format!("<pre>{line}</pre>"));
        assert_eq!(above.contains("<pre>"), shown.is_some(), "{above}");
        assert!(shown.is_none_or(|shown| above.contains(&shown)), "{found} {above}");
        assert_eq!(above.contains("Keep the settings as they are."), found["own"] == true && line.is_none(), "{found} {above}");
        for note in found["notes"].as_array().expect("notes") {
            let note = note.as_str().expect("text").replace('>', "&gt;");
            assert!(above.contains(&format!("<p>{note}</p>")), "{note}: {above}");
        }
        let json = call(&[&["report", "--json", folder.path(), "-o", &target, "--force"], limit].concat()).out;
        let json: Value = serde_json::from_str(json.lines().last().expect("a line")).expect("JSON");
        assert_eq!(json["one_setting"], *found);
    }
}

#[test]
fn sections_share_the_size_of_a_page() {
    let folder = Folder::new("report-ranks-size");
    for number in 0..4 {
        let limit = format!("{}MiB", 6500 - 100 * number);
        let output = format!("{}/rank{number}.pickle", folder.path());
        let run = call(&["export", &shipped("resnet50_sweep.default"), "--limit", &limit, "-o", &output]);
        assert_eq!(run.code, 0, "{}", run.err);
    }
    let target = format!("{}/page.html", folder.path());
    let run = call(&["report", folder.path(), "-o", &target, "--page-size", "320KiB"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    let page = fs::read_to_string(&target).expect("a page");
    assert!(page.len() < 320 << 10, "{}", page.len());
    assert_eq!(pieces(&page).iter().filter(|(object, _)| object["moments"].is_array()).count(), 4);
}

#[test]
fn json_has_each_file_and_the_ranks_beside_the_page() {
    let folder = Folder::new("report-ranks-json");
    for number in 0..2 {
        folder.recording(&format!("rank{number}.pickle"), &rank(number, 3));
    }
    let target = format!("{}/page.html", folder.path());
    let lines = |arguments: &[&str]| -> Vec<Value> {
        call(arguments).out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let mut with_page = lines(&["report", "--json", folder.path(), "-o", &target]);
    assert_eq!((with_page.len(), with_page[2]["ranks"].as_array().map(Vec::len)), (3, Some(2)));
    assert_eq!(pieces(&fs::read_to_string(&target).expect("a page")).len(), 2);
    // Only a page recommends settings.
    let setting = with_page[2].as_object_mut().and_then(|ranks| ranks.remove("one_setting"));
    assert_eq!(setting.expect("one setting")["own"], true);
    assert!(lines(&["report", "--json", folder.path()]) == with_page);
    // Text: the table, then each file's.
    let text = call(&["report", folder.path()]).out;
    let places = ["rank  recording", "rank 0: rank0.pickle", "rank 1: rank1.pickle"].map(|part| text.find(part).unwrap_or(0));
    assert!(places[0] < places[1] && places[1] < places[2], "{places:?}: {text}");
}

#[test]
fn a_bad_file_is_named_and_the_others_are_shown() {
    let folder = Folder::new("report-ranks-bad");
    folder.recording("rank0.pickle", &rank(0, 3));
    folder.file("rank1.pickle", b"</script><img src=x>");
    let target = format!("{}/page.html", folder.path());
    let run = call(&["report", folder.path(), "-o", &target]);
    assert_eq!(run.code, 2, "{}", run.out);
    assert!(run.err.starts_with(&format!("parkade: {}/rank1.pickle: ", folder.path())), "{}", run.err);
    let page = fs::read_to_string(&target).expect("a page");
    assert!(page.contains("Not on this page: rank1.pickle (") && !page.contains("<img"));
    assert_eq!(pieces(&page).len(), 1);
    fs::remove_file(format!("{}/rank0.pickle", folder.path())).expect("removed");
    folder.file("rank2.pickle", b"neither");
    let other = format!("{}/other.html", folder.path());
    assert_eq!(call(&["report", folder.path(), "-o", &other]).code, 2);
    assert!(fs::metadata(other).is_err());
}

#[test]
fn files_that_nothing_calls_ranks_stand_beside_each_other_by_name() {
    let folder = Folder::new("report-ranks-unnumbered");
    let files = ["before.pickle", "after.pickle"].map(|name| folder.recording(name, &rank(0, 3)));
    let target = format!("{}/page.html", folder.path());
    let run = call(&["report", &files[0], &files[1], "-o", &target]);
    assert_eq!((run.code, run.out.lines().count()), (0, 1), "{}", run.out);
    let page = fs::read_to_string(&target).expect("a page");
    assert!(page.contains("<h2>before.pickle</h2>") && page.contains("<h2>after.pickle</h2>"));
    assert!(!page.contains(">rank 0<") && !page.contains("runs out of memory"));
}

#[test]
fn what_is_of_one_recording_is_refused() {
    let folder = Folder::new("report-ranks-refused");
    let files = [0, 1].map(|number| folder.recording(&format!("rank{number}.pickle"), &rank(number, 3)));
    let before = files.clone().map(|file| fs::read(file).expect("a recording"));
    let target = format!("{}/target", folder.path());
    for option in ["--svg", "--flamegraph", "--folded"] {
        let run = call(&["report", &files[0], &files[1], option, &target]);
        assert!(run.code == 2 && run.err.contains("one recording, but 2 are given"), "{}", run.err);
    }
    let run = call(&["report", &files[0], &files[1], "--force", "-o", &files[1]]);
    assert!(run.code == 2 && run.err.contains("never overwritten"), "{}", run.err);
    assert_eq!(files.map(|file| fs::read(file).expect("a recording")), before);
    assert!(fs::metadata(target).is_err());
}

/// A folder with one recording is that recording.
#[test]
fn one_file_has_the_page_that_it_always_had() {
    let folder = Folder::new("report-ranks-one");
    let file = folder.recording("rank3.pickle", &rank(3, 3));
    let pages = [("a.html", file.as_str()), ("b.html", folder.path())].map(|(name, input)| {
        let target = format!("{}/{name}", folder.path());
        assert_eq!(call(&["report", input, "-o", &target]).code, 0);
        fs::read_to_string(&target).expect("a page")
    });
    assert_eq!(pages[0], pages[1]);
    assert!(!pages[0].contains("class=\"ranks\"") && pages[0].contains("<main>"));
}
