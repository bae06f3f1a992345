//! `parkade report`: pages that contain what the recording contains, hostile files that stay text, pictures, text, bad input.

use std::fs;
use std::sync::Arc;

use crate::common::pages::{page, pieces, shipped};
use crate::common::*;
use parkade_analysis::timeline::HeapLog;
use parkade_recording::{self, Action, BlockState, DeviceRecording, Frame, RecordedSettings, Recording, Style, write};
use serde_json::Value;

/// Segments as address, size and blocks in use; blocks as address and size.
type Heap = Vec<(u64, u64, Vec<(u64, u64)>)>;

/// The log in a page ends with the segments and blocks that the file lists.
#[test]
fn a_page_holds_the_whole_run() {
    let folder = Folder::new("report-whole");
    for (name, limit) in [("gpt2_varlen.limit12_oom", "12GiB"), ("prefetch_streams.limit6", "6GiB")] {
        let page = page(&folder, &shipped(name), &["--limit", limit]);
        assert!(page.len() < 1 << 20, "{}", page.len());
        let found = pieces(&page);
        let [(object, log)] = found.as_slice() else { panic!("one device") };
        let recording = parkade_recording::read_file(shipped(name)).expect("a recording");
        let device = &recording.devices[0];
        let end = object["entries"].as_u64().expect("a number") as u32;
        assert_eq!((end as usize, &object["moments"]), (device.trace.len(), &Value::Null));
        let drawn: Heap = log
            .at(end)
            .iter()
            .map(|segment| {
                (segment.address, segment.size, segment.blocks.iter().map(|block| (block.address, block.size)).collect())
            })
            .collect();
        let used = |segment: &parkade_recording::Segment| {
            let used = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
            used.map(|block| (block.address, block.size)).collect()
        };
        let listed: Heap = device.segments.iter().map(|segment| (segment.address, segment.total_bytes, used(segment))).collect();
        assert_eq!(drawn, listed, "{name}");
    }
}

/// If a page may not hold every block, it holds those of some points in time completely, and says so.
#[test]
fn a_small_page_holds_some_moments() {
    let folder = Folder::new("report-small");
    let file = shipped("resnet50_sweep.default");
    let whole = pieces(&page(&folder, &file, &[]));
    let small = page(&folder, &file, &["--page-size", "164KiB"]);
    assert!(small.len() < 164 << 10, "{}", small.len());
    let found = pieces(&small);
    let moments: Vec<u32> =
        found[0].0["moments"].as_array().expect("moments").iter().map(|m| m.as_u64().expect("a number") as u32).collect();
    assert!(moments.len() > 20 && moments.windows(2).all(|pair| pair[0] < pair[1]), "{moments:?}");
    assert!(small.contains(&format!("the heap is shown at {} selected points", moments.len())));
    assert!(found[0].1.blocks.len() < whole[0].1.blocks.len());
    for key in ["peak_allocated", "peak_reserved", "entries"] {
        assert!(moments.contains(&(found[0].0[key].as_u64().expect("a number") as u32)), "{key}");
    }
    for &moment in &moments {
        let heap = |log: &HeapLog| -> Vec<(u64, u64, usize)> {
            log.at(moment).iter().map(|segment| (segment.address, segment.size, segment.blocks.len())).collect()
        };
        assert_eq!(heap(&found[0].1), heap(&whole[0].1), "moment {moment}");
    }
}

#[test]
fn figures_are_those_of_verify_and_replay() {
    let file = shipped("gpt2_varlen.limit12_oom");
    let object = |arguments: &[&str]| -> Value { serde_json::from_str(call(arguments).out.trim_end()).expect("JSON") };
    let report = object(&["report", "--json", &file, "--limit", "12GiB"]);
    let verify = object(&["verify", "--json", &file, "--limit", "12GiB"]);
    let device = &report["devices"][0];
    assert_eq!(device["mismatches"], 0);
    for key in ["peak_allocated_bytes", "peak_reserved_bytes"] {
        assert!(verify[key].is_u64(), "{verify}");
        assert_eq!(device[key], verify[key], "{key}");
    }
    for tried in device["what_if"].as_array().expect("settings") {
        let settings = tried["settings"].as_str().expect("text").replace("default", "");
        let arguments = ["replay", "--json", &file, "--settings", &settings, "--limit", "12GiB", "--recorded-limit", "12GiB"];
        let replay = object(&arguments);
        for key in ["outcome", "fails_at_entry", "peak_reserved_bytes", "retries", "driver_calls"] {
            assert_eq!(tried[key], replay[key], "{settings}: {key}");
        }
    }
    let kinds: Vec<&str> = device["markers"].as_array().expect("markers").iter().filter_map(|m| m["kind"].as_str()).collect();
    assert_eq!(kinds, ["oom", "retry"]);
    assert!(device["what_happened"].as_str().expect("a sentence").starts_with("Out of memory at entry 7,268: 1.53 GiB was"));
}

/// A recording whose every text tries to leave its place.
fn hostile() -> Recording {
    const TEXT: &str =
        "</script></style><script>document.title='taken'</script><img src=x onerror=alert(1)>\"'`{{data}}${1}\u{202e}\n";
    let mut recording = good();
    let frame = recording.stacks.intern_frame(Frame { filename: TEXT.into(), line: 1, name: TEXT.into() });
    let stack = recording.stacks.intern_stack(&[frame]);
    for entry in &mut recording.devices[0].trace {
        entry.stack = stack;
        entry.set_time(Some(1000));
    }
    let note = |stage: &str| parkade_recording::Annotation {
        name: Arc::from(TEXT),
        stage: stage.into(),
        device: Some(0),
        time_us: Some(if stage == "START" { 0 } else { 2000 }),
    };
    recording.annotations = vec![note("START"), note("END")];
    recording.settings = Some(RecordedSettings { text: Some(TEXT.to_owned()), ..default_settings() });
    recording
}

#[test]
fn a_hostile_file_stays_text() {
    let folder = Folder::new("report-hostile");
    let file = folder.recording("<img src=x onerror=alert(1)>\"'{{data}}.pickle", &hostile());
    let page = page(&folder, &file, &[]);
    let scripts = page.matches("<script").count();
    let ordinary = self::page(&folder, &folder.recording("good.pickle", &good()), &[]);
    assert_eq!(scripts, ordinary.matches("<script").count());
    assert_eq!(page.matches("</script").count(), ordinary.matches("</script").count());
    assert_eq!(page.matches("<img").count() + page.matches("taken'").count(), 0);
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;{{data}}.pickle"));
    assert!(!page.contains('\u{202e}'));
    let svg = format!("{}/picture.svg", folder.path());
    for more in [&[][..], &["--entry", "5"]] {
        let run = call(&[&["report", &file, "--force", "--svg", &svg], more].concat());
        assert_eq!(run.code, 0, "{}", run.err);
        let picture = fs::read_to_string(&svg).expect("a picture");
        assert_eq!(picture.matches("<img").count() + picture.matches("<script").count(), 0);
    }
    let run = call(&["report", &file]);
    assert!(run.code == 0 && !run.out.contains('\u{202e}'), "{}", run.err);
}

#[test]
fn one_is_not_called_many() {
    let folder = Folder::new("report-plurals");
    let page = page(&folder, &shipped("gpt2_varlen.limit12_oom"), &["--limit", "12GiB"]);
    assert!(page.contains("<dd>1</dd><p>request failed</p>"));
    let mut twice = good();
    twice.devices[0].trace.extend([entry(Action::Oom, 0, 64 * MIB), entry(Action::Oom, 0, 64 * MIB)]);
    let run = call(&["report", &folder.recording("twice.pickle", &twice)]);
    assert!(run.out.replace('\n', " ").contains("1 more request failed later"), "{}{}", run.out, run.err);
}

/// A page's script loads nothing, which the page also tells the browser; and it names no network address.
#[test]
fn a_page_needs_no_network() {
    let folder = Folder::new("report-offline");
    let page = page(&folder, &folder.recording("good.pickle", &good()), &[]);
    assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none';"));
    for word in ["http://", "https://", "@import", "url(", " src="] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn the_terminal_gets_80_columns_without_colours() {
    let run = call(&["report", &shipped("gpt2_varlen.limit12_oom"), "--limit", "12GiB"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(!run.out.contains('\u{1b}'));
    let graph: Vec<&str> = run.out.lines().filter(|line| line.contains(['┤', '│'])).collect();
    assert_eq!(graph.len(), 14, "{}", run.out);
    assert!(graph.iter().all(|line| line.chars().count() == 80), "{}", run.out);
    assert!(graph[0].starts_with(" 12.00 GiB ┤┄") && graph[13].starts_with("         0 ┤"), "{}", run.out);
    assert!(run.out.contains("X out of memory (1)  R retry (1)"), "{}", run.out);
    assert!(run.out.contains("exact: all 9,081 recorded decisions"), "{}", run.out);
}

#[test]
fn devices_are_told_apart() {
    let folder = Folder::new("report-devices");
    let mut both = good();
    both.devices.push(DeviceRecording { device: 3, ..good().devices[0].clone() });
    let file = folder.recording("both.pickle", &both);
    let all = page(&folder, &file, &[]);
    let devices = |page: &str| pieces(page).iter().map(|(object, _)| object["device"].clone()).collect::<Vec<_>>();
    assert_eq!(devices(&all), [0, 3]);
    assert_eq!(all.matches("role=\"tab\" data-section").count(), 2);
    assert_eq!(devices(&page(&folder, &file, &["--device", "3"])), [3]);
    let run = call(&["report", &file, "--device", "1"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.ends_with("the file contains nothing about device 1, only about 0, 3\n"), "{}", run.err);
    let run = call(&["report", &file, "--svg", &format!("{}/x.svg", folder.path())]);
    assert!(run.code == 2 && run.err.contains("choose one with --device"), "{}", run.err);
}

#[test]
fn a_file_without_a_trace_shows_its_segments() {
    let folder = Folder::new("report-segments");
    let mut recording = good();
    recording.devices[0].trace.clear();
    let file = folder.recording("segments.pickle", &recording);
    let page = page(&folder, &file, &[]);
    assert!(page.contains("The file has no history, only the segments at the end: 3.00 MiB in use"));
    let found = pieces(&page);
    assert_eq!((found[0].1.segments.len(), found[0].1.blocks.len(), &found[0].0["entries"]), (1, 1, &0.into()));
    let run = call(&["report", &file]);
    assert!(run.code == 0 && run.out.contains("who holds the 3.00 MiB at the end"), "{}{}", run.out, run.err);
    let run = call(&["report", &folder.recording("empty.pickle", &Recording::default())]);
    assert!(run.code == 2 && run.err.contains("no trace entries and no segments"), "{}", run.err);
}

/// A trace that begins in the middle: what existed before is shown from moment 0 on.
#[test]
fn a_lost_beginning_is_rebuilt_and_said() {
    let folder = Folder::new("report-lost");
    let mut recording = good();
    recording.devices[0].trace.drain(..2);
    let page = page(&folder, &folder.recording("lost.pickle", &recording), &[]);
    assert!(page.contains("As far back as the file goes, the program held at most 8.00 MiB"), "{page}");
    assert!(page.contains("The oldest entries are missing from the file: 1 segment (20.00 MiB) and 1 block existed"));
    let found = pieces(&page);
    let start: Vec<u64> = found[0].1.at(0).iter().flat_map(|s| s.blocks.iter().map(|block| block.size)).collect();
    assert_eq!(start, [5 * MIB]);
}

/// A replay under a limit that the run did not have says nothing about what happened; only the recording's entries do.
#[test]
fn a_wrong_limit_does_not_change_what_happened() {
    let said = |name: &str, limit: &str| {
        let run = call(&["report", "--json", &shipped(name), "--limit", limit]);
        let object: Value = serde_json::from_str(run.out.trim_end()).expect("JSON");
        let device = &object["devices"][0];
        (device["what_happened"].as_str().expect("a sentence").to_owned(), device["mismatches"].as_u64().expect("a number"))
    };
    let (text, mismatches) = said("prefetch_streams.default", "8GiB");
    assert!(mismatches > 1, "{mismatches}");
    assert!(text.starts_with("The replay differs from the recording ("), "{text}");
    assert!(text.contains("No request failed in the recording") && !text.contains("released"), "{text}");
    assert!(text.contains("The recorded run reserved 11.73 GiB, more than the limit of 8.00 GiB"), "{text}");
    assert!(text.contains("--capacity"), "{text}");
    let (text, mismatches) = said("gpt2_varlen.limit12_oom", "40GiB");
    assert!(text.contains("Out of memory at entry 7,268: 1.53 GiB was requested"), "{mismatches}: {text}");
    assert!(!text.contains("The limit left") || mismatches == 0, "{text}");
    assert!(!text.contains("--capacity"), "{text}");
}

#[test]
fn what_cannot_be_shown_is_said_in_one_line() {
    let folder = Folder::new("report-bad");
    let good_file = folder.recording("good.pickle", &good());
    let mut contradicting = good();
    contradicting.devices[0].trace.push(entry(Action::Alloc, 512, 512));
    let broken = folder.file("broken.pickle", &write(&contradicting, Style::Python));
    let nonsense = folder.file("nonsense.pickle", b"nonsense");
    let missing = format!("{}/missing.pickle", folder.path());
    for (arguments, text) in [
        (vec![&*broken], "entry 5: alloc at 0x200"),
        (vec![&*nonsense], "nonsense.pickle"),
        (vec![&*missing], "cannot be read"),
        (vec![&*good_file, "--settings", "nonsense:1"], "Unrecognized"),
        (vec![&*good_file, "-o", "/nowhere/page.html"], "cannot write"),
        (vec![&*good_file, "--svg", "-", "--entry", "6"], "there is no entry 6: the trace has 5 entries"),
    ] {
        let run = call(&[&["report"], &arguments[..]].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{arguments:?}");
        assert!(run.err.starts_with("parkade: ") && run.err.contains(text) && run.err.lines().count() == 1, "{}", run.err);
    }
}

/// Each colour of a picture is explained: a rectangle of the heap has the fill of a symbol in the legend.
#[test]
fn a_picture_explains_its_colours() {
    let folder = Folder::new("report-legend");
    let svg = format!("{}/heap.svg", folder.path());
    for (name, entry) in [("prefetch_streams.limit6", "3125"), ("gpt2_varlen.limit12_oom", "7268")] {
        assert_eq!(call(&["report", &shipped(name), "--svg", &svg, "--force", "--entry", entry]).code, 0);
        let picture = fs::read_to_string(&svg).expect("a picture");
        let fills = |part: &str| -> Vec<String> {
            let fills = part.split("<rect fill=\"").skip(1).map(|rest| rest.split_once('"').expect("a fill").0.to_owned());
            fills.collect()
        };
        let (drawn, legend) = picture.split_once("<g transform").expect("a legend");
        let (drawn, legend) = (fills(drawn), fills(legend));
        assert!(drawn.len() > 20 && legend.len() > 2, "{name}: {} {legend:?}", drawn.len());
        assert!(
            drawn.iter().all(|fill| legend.contains(fill)) && legend.iter().all(|fill| drawn.contains(fill)),
            "{name}: {legend:?}"
        );
        assert_eq!(picture.contains("freed, still used by other streams"), name.starts_with("prefetch"), "{name}");
    }
}
