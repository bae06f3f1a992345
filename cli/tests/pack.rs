//! `parkade pack`: CSV files and recordings, table and JSON, what is written, and files that it cannot use.

use std::fs;

use crate::common::{BASE, Folder, MIB, call, entry, good, recording, segment, unused, used};
use parkade_recording::{Action, DeviceRecording, RecordedSettings, Recording};

/// Three buffers that need 8 bytes at the second time and 9 at the third, and can be packed so.
const CSV: &str = "id,lower,upper,size\na,0,2,4\nb,1,3,4\nc,2,4,5\n";

/// Enough steps for these files, but not many.
const QUICK: [&str; 2] = ["--budget", "100000"];

fn json(arguments: &[&str]) -> (i32, serde_json::Value) {
    let run = call(&[&["pack", "--json"], &QUICK[..], arguments].concat());
    (run.code, serde_json::from_str(run.out.trim_end()).unwrap_or_else(|_| panic!("one JSON object: {}{}", run.out, run.err)))
}

/// 5 MiB and a byte under `roundup_power2_divisions:4`, which rounds them up to 6 MiB, and 30 MiB that ran out of memory.
fn refused() -> Recording {
    let asked = 5 * MIB + 1;
    let trace =
        vec![entry(Action::SegmentAlloc, BASE, 20 * MIB), entry(Action::Alloc, BASE, asked), entry(Action::Oom, 0, 30 * MIB)];
    let mut block = used(BASE, 6 * MIB);
    block.requested = Some(asked);
    let mut recording = recording(trace, vec![segment(vec![block, unused(BASE + 6 * MIB, 14 * MIB)])]);
    let settings = recording.settings.take().expect("settings");
    let text = Some("roundup_power2_divisions:4".to_owned());
    recording.settings = Some(RecordedSettings { text, roundup_power2_divisions: Some([4; 16]), ..settings });
    recording
}

#[test]
fn a_csv_file_is_packed_and_written_with_offsets() {
    let folder = Folder::new("pack-csv");
    let file = folder.file("three.csv", CSV.as_bytes());
    let placed = format!("{}/placed.csv", folder.path());
    let run = call(&["pack", &file, "-o", &placed, "--budget", "100000"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    let expected = "three.csv: 3 buffers\n  load     9 bytes  the most live bytes at once\n  \
                    packing  9 bytes  1.0000 of the load: no packing needs less\n";
    assert!(run.out.starts_with(expected), "{}", run.out);
    let rows: Vec<Vec<String>> = fs::read_to_string(&placed)
        .expect("the packing")
        .lines()
        .map(|line| line.split(',').map(str::to_owned).collect())
        .collect();
    assert_eq!(rows[0].join(","), "id,lower,upper,size,offset");
    let at = |row: usize| rows[row][4].parse::<u64>().expect("an offset");
    assert_eq!(rows.iter().skip(1).map(|row| row[0].as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(at(1).abs_diff(at(2)) >= 4 && (at(2) + 4 <= at(3) || at(3) + 5 <= at(2)), "{rows:?}");
    assert!(at(1) + 4 <= 9 && at(2) + 4 <= 9 && at(3) + 5 <= 9, "{rows:?}");
}

#[test]
fn alignments_are_written_again() {
    let folder = Folder::new("pack-aligned");
    let file = folder.file("two.csv", b"id,size,alignment,lower,upper\na,3,1,0,2\nb,4,8,1,3\n");
    let placed = format!("{}/placed.csv", folder.path());
    assert_eq!(call(&["pack", &file, "-o", &placed, "--budget", "100000"]).code, 0);
    let written = fs::read_to_string(&placed).expect("the packing");
    assert_eq!(written, "id,lower,upper,size,alignment,offset\na,0,2,3,1,4\nb,1,3,4,8,0\n");
}

#[test]
fn json_has_the_same_numbers() {
    let folder = Folder::new("pack-json");
    let file = folder.file("three.csv", CSV.as_bytes());
    let (code, object) = json(&[&file, "--seed", "7"]);
    assert_eq!((code, &object["buffers"], &object["load_bytes"], &object["packing_bytes"]), (0, &3.into(), &9.into(), &9.into()));
    assert_eq!((&object["is_best"], &object["seed"], &object["budget"]), (&true.into(), &7.into(), &100_000.into()));
    assert!(object.get("refused_requests").is_none(), "a CSV file refuses nothing: {object}");
}

#[test]
fn a_recording_is_packed_in_multiples_of_512_bytes_whatever_its_settings() {
    let folder = Folder::new("pack-recording");
    let file = folder.recording("refused.pickle", &refused());
    let (code, object) = json(&[&file]);
    assert_eq!((code, &object["load_bytes"]), (0, &(5 * MIB + 512).into()), "not the 6 MiB of its own rounding: {object}");
}

#[test]
fn what_was_out_of_memory_is_said() {
    let folder = Folder::new("pack-refused");
    let file = folder.recording("refused.pickle", &refused());
    let (_, object) = json(&[&file]);
    assert_eq!((&object["refused_requests"], &object["refused_bytes"]), (&1.into(), &(30 * MIB).into()));
    assert_eq!(object["load_with_last_refused_bytes"], 35 * MIB + 512);
    let run = call(&["pack", &file]);
    let said = "  Left out: 1 request for 30.00 MiB that ran out of memory; with it the load is 35.00 MiB.\n";
    assert!(run.out.contains(said), "{}", run.out);
    let (_, object) = json(&[&folder.recording("good.pickle", &good())]);
    assert_eq!((&object["refused_requests"], &object["load_with_last_refused_bytes"]), (&0.into(), &object["load_bytes"]));
}

#[test]
fn several_devices_are_packed_one_by_one() {
    let folder = Folder::new("pack-devices");
    let mut both = good();
    both.devices.push(DeviceRecording { device: 3, ..refused().devices[0].clone() });
    let file = folder.recording("both.pickle", &both);
    let (_, object) = json(&[&file]);
    let loads: Vec<_> = object["devices"].as_array().expect("devices").iter().map(|one| one["load_bytes"].clone()).collect();
    assert_eq!(loads, [8 * MIB, 5 * MIB + 512]);
    let placed = format!("{}/placed.csv", folder.path());
    let run = call(&["pack", &file, "-o", &placed]);
    assert!(run.code == 2 && run.err.contains("2 devices: choose one with --device"), "{}", run.err);
    assert_eq!(json(&[&file, "--device", "3", "-o", &placed]).0, 0);
    let run = call(&["pack", &file, "--device", "5"]);
    assert!(run.code == 2 && run.err.contains("device 5 has no trace entries; those that have: 0, 3"), "{}", run.err);
}

#[test]
fn the_file_itself_is_not_overwritten() {
    let folder = Folder::new("pack-own");
    let file = folder.file("three.csv", CSV.as_bytes());
    let again = format!("{}/./three.csv", folder.path());
    let run = call(&["pack", &file, "-o", &again]);
    assert!(run.code == 2 && run.err.contains("the output is the input file"), "{}", run.err);
    assert_eq!(fs::read_to_string(&file).expect("the file"), CSV);
}

#[test]
fn files_that_it_cannot_use_are_named_in_one_line() {
    let folder = Folder::new("pack-bad");
    let missing = format!("{}/none.csv", folder.path());
    let header = "line 1 has no column `lower`";
    for (file, said) in [
        (missing, "cannot be read"),
        (folder.file("noise.pickle", &[0x80, 2, 0xff, 0, 1]), "opcode"),
        (folder.file("semicolons.csv", b"id;lower;upper;size\na;0;2;4\n"), header),
        (folder.file("blank.csv", format!("\n{CSV}").as_bytes()), header),
        (folder.file("twice.csv", b"id,lower,upper,size,size\na,0,2,4,5\n"), "column `size` appears twice"),
        (folder.file("empty.csv", b"lower,upper,size\n2,2,4\n"), "line 2: the buffer's range is empty or reversed"),
        (folder.file("zero.csv", b"id,lower,upper,size\na,0,2,4\nb,0,2,0\n"), "line 3, id `b`: `size` is 0"),
    ] {
        let run = call(&["pack", &file]);
        assert_eq!((run.code, run.err.lines().count(), run.out.as_str()), (2, 1, ""), "{file}: {}", run.err);
        assert!(run.err.contains(said) && run.err.contains(&file), "{}", run.err);
        let (code, object) = json(&[&file]);
        assert!(code == 2 && object["error"].as_str().is_some_and(|error| error.contains(said)), "{object}");
    }
}

#[test]
fn options_for_recordings_are_refused_with_a_csv_file() {
    let folder = Folder::new("pack-options");
    let file = folder.file("three.csv", CSV.as_bytes());
    for (option, value) in [("--device", "0"), ("--recorded-limit", "1GiB")] {
        let run = call(&["pack", &file, option, value]);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
        assert!(run.err.contains(&format!("{option} is for recordings")), "{}", run.err);
    }
}
