//! Tests reading recordings in every pickle protocol, compression and PyTorch version. `tests/data/make.py` creates the
//! fixtures.

use std::path::PathBuf;

use parkade_recording::{
    Action, BlockState, FileFields, LimitSource, Recording, RunLimit, Simulated, StackId, Style, compression, read, read_file,
    write,
};

const BASE: u64 = 0x7f30_0000_0000;
const MIB: u64 = 1 << 20;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn load(name: &str) -> Recording {
    read_file(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Checks every field of the snapshot in `make.py` once; the other forms are compared with this one.
#[test]
fn a_snapshot_is_read_field_by_field() {
    let recording = load("snapshot.protocol4.pickle");
    assert_eq!(recording.devices.iter().map(|device| device.device).collect::<Vec<_>>(), [0, 1]);
    let [small] = &recording.devices[0].segments[..] else { panic!("one segment on device 0") };
    assert_eq!((small.address, small.total_bytes, small.stream), (BASE, 2 * MIB, 0));
    assert_eq!((small.large, small.pool, small.expandable), (false, Some((0, 0)), false));
    assert_eq!((small.allocated_bytes, small.active_bytes, small.requested_bytes), (Some(512), Some(1536), Some(1100)));
    assert_eq!(small.stack, StackId::NONE);
    let blocks: Vec<_> = small.blocks.iter().map(|block| (block.address - BASE, block.size, block.requested)).collect();
    assert_eq!(blocks, [(0, 512, Some(100)), (512, 1024, Some(1000)), (1536, 2 * MIB - 1536, Some(0))]);
    let states: Vec<_> = small.blocks.iter().map(|block| block.state).collect();
    assert_eq!(states, [BlockState::ActiveAllocated, BlockState::ActivePendingFree, BlockState::Inactive]);

    let [large] = &recording.devices[1].segments[..] else { panic!("one segment on device 1") };
    assert_eq!((large.stream, large.large, large.pool, large.expandable), (0x5_5812_3456_7890, true, Some((3, 1)), true));

    let trace = &recording.devices[0].trace;
    let actions: Vec<_> = trace.iter().map(|entry| (entry.action, entry.address, entry.size)).collect();
    assert_eq!(
        actions,
        [
            (Action::SegmentAlloc, BASE, 2 * MIB),
            (Action::Alloc, BASE, 100),
            (Action::Alloc, BASE + 512, 1000),
            (Action::FreeRequested, BASE + 512, 1000),
            (Action::Oom, 123_456_789, 1 << 40),
            (Action::Snapshot, 0, 0),
        ]
    );
    assert!(trace.iter().all(|entry| entry.time() == Some(1_795_176_304_954_573)));
    let streams: Vec<_> = recording.devices[1].trace.iter().map(|entry| entry.stream).collect();
    assert_eq!(streams, [u64::MAX - 1, u64::MAX - 1, 0, 0]);

    let settings = recording.settings.as_ref().expect("settings");
    assert_eq!(settings.text.as_deref(), Some("expandable_segments:True"));
    assert_eq!((settings.max_split_size, settings.garbage_collection_threshold), (Some(-1), Some(0.75)));
    assert_eq!((settings.expandable_segments, settings.release_lock_on_cudamalloc), (Some(true), Some(false)));
    assert_eq!(settings.roundup_power2_divisions, Some([0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]));
    assert!(!settings.has_newer_keys);
    let notes: Vec<_> = recording.annotations.iter().map(|note| (&*note.name, &*note.stage, note.time_us)).collect();
    assert_eq!(notes, [("step", "START", Some(5)), ("step", "END", Some(9))]);
}

#[test]
fn stacks_are_kept_once() {
    let recording = load("snapshot.protocol4.pickle");
    assert_eq!(recording.stacks.len(), 2);
    let trace = &recording.devices[0].trace;
    let blocks = &recording.devices[0].segments[0].blocks;
    assert_eq!((trace[0].stack, trace[1].stack), (blocks[0].stack, blocks[1].stack));
    assert_ne!(trace[2].stack, trace[0].stack);
    assert_eq!(trace[4].stack, StackId::NONE);
    let frames: Vec<_> =
        recording.stacks.frames(trace[0].stack).map(|frame| (&*frame.filename, frame.line, &*frame.name)).collect();
    assert_eq!(frames, [("/home/u/model.py", 12, "forward"), ("/home/u/train \u{20ac}.py", 34, "<module>")]);
}

/// PyTorch 2.11 wrote 2^64 - 1 for calls in code that `torch.compile` generated.
#[test]
fn a_frame_without_a_line_is_read() {
    let plain = std::fs::read(fixture("snapshot.protocol0.pickle")).expect("fixture");
    let text = String::from_utf8(plain).expect("protocol 0 is text");
    let of = |text: &str| {
        let recording = read(text.as_bytes()).expect("a recording");
        recording.stacks.frames(recording.devices[0].trace[0].stack).map(|frame| frame.line).collect::<Vec<_>>()
    };
    assert_eq!(of(&text), [12, 34]);
    for unknown in ["L18446744073709551615L", "I-1", "I0"] {
        assert_eq!(of(&text.replace("I12\n", &format!("{unknown}\n"))), [0, 34], "{unknown}");
    }
}

/// Anomaly mode records the calls of the forward pass that created a node in a backward pass.
#[test]
fn the_forward_pass_of_an_entry_is_read_and_written() {
    let mut recording = load("snapshot.protocol4.pickle");
    let frame = |line| parkade_recording::Frame { filename: "/home/u/model.py".into(), line, name: "forward".into() };
    let calls = [recording.stacks.intern_frame(frame(7)), recording.stacks.intern_frame(frame(9))];
    let forward = recording.stacks.intern_stack(&calls);
    for place in [1, 2, 4] {
        let stack = recording.devices[0].trace[place].stack;
        recording.devices[0].trace[place].stack = recording.stacks.intern_with_forward(stack, forward);
    }
    let found = read(&write(&recording, Style::Python)).expect("a recording");
    let trace = &found.devices[0].trace;
    for place in [1, 2, 4] {
        let forward = found.stacks.forward(trace[place].stack);
        assert_eq!(found.stacks.frames(forward).map(|frame| frame.line).collect::<Vec<_>>(), [7, 9], "the innermost first");
        let own =
            |recording: &Recording| recording.stacks.frames(recording.devices[0].trace[place].stack).cloned().collect::<Vec<_>>();
        assert_eq!(own(&found), own(&recording), "entry {place}");
    }
    assert_eq!(found.stacks.forward(trace[0].stack), StackId::NONE);
    let again = read(&write(&found, Style::Python)).expect("a recording");
    assert_eq!((&again.stacks, &again.devices), (&found.stacks, &found.devices));
}

/// These calls only help to name a block, so the file is read regardless of what they are.
#[test]
fn a_forward_pass_of_another_form_is_left_out() {
    let plain = std::fs::read(fixture("snapshot.protocol0.pickle")).expect("fixture");
    let text = String::from_utf8(plain).expect("protocol 0 is text");
    let expected = read(text.as_bytes()).expect("a recording");
    for key in ["compile_context", "time_us"] {
        let other = text.replacen(&format!("V{key}\n"), "Vforward_frames\n", 1);
        assert_ne!(text, other, "{key}");
        let found = read(other.as_bytes()).expect("a text and a number are no reason to refuse it");
        assert_eq!(found.stacks, expected.stacks, "{key}");
    }
}

#[test]
fn every_protocol_and_compression_gives_the_same_recording() {
    let expected = load("snapshot.protocol4.pickle");
    let names = ["protocol0", "protocol1", "protocol2", "protocol3", "protocol5", "python-pickler", "unmemoised"];
    for name in names {
        let found = load(&format!("snapshot.{name}.pickle"));
        assert_eq!(Recording { fields: expected.fields, ..found }, expected, "{name}");
    }
    for (name, compressed) in [
        ("snapshot.gz.bin", compression::Compression::Gzip),
        ("snapshot.xz.bin", compression::Compression::Xz),
        ("snapshot.zst.bin", compression::Compression::Zstd),
    ] {
        let bytes = std::fs::read(fixture(name)).expect("fixture");
        assert_eq!(compression::detect(&bytes), compressed);
        assert_eq!(read(&bytes).expect(name), expected, "{name}");
    }
}

/// The same dicts as JSON, and the pickle in a page from PyTorch's memory viewer.
#[test]
fn json_and_pages_are_read_as_the_pickle_is() {
    let expected = load("snapshot.protocol4.pickle");
    for name in ["snapshot.json", "snapshot.html"] {
        assert_eq!(load(name), expected, "{name}");
        assert_eq!(read(&std::fs::read(fixture(name)).expect("fixture")).expect(name), expected, "{name}");
    }
}

/// A program that dumps repeatedly to an open file.
#[test]
fn of_several_snapshots_in_one_file_the_last_is_read() {
    let [old, new] = ["old.pickle", "snapshot.protocol4.pickle"].map(|name| std::fs::read(fixture(name)).expect("fixture"));
    let mut expected = load("snapshot.protocol4.pickle");
    assert_eq!(expected.tolerated.earlier_snapshots, 0);
    expected.tolerated.earlier_snapshots = 3;
    let several = [old.as_slice(), &new, &old, &new].concat();
    assert_eq!(read(&several).expect("four snapshots"), expected);
    // The bytes after the last pickle are not another pickle.
    assert_eq!(read(&[several.as_slice(), b"\0\0\x80"].concat()).expect("four snapshots"), expected);
    assert!(read(&several[..several.len() - 1]).is_err(), "the last is cut short");
}

#[test]
fn old_snapshots_are_read() {
    let recording = load("old.pickle");
    assert!(recording.settings.is_none());
    let device = &recording.devices[0];
    let segment = &device.segments[0];
    assert_eq!((segment.pool, segment.requested_bytes, segment.expandable), (None, None, false));
    let blocks: Vec<_> = segment.blocks.iter().map(|block| (block.address - BASE, block.requested, block.state)).collect();
    assert_eq!(
        blocks,
        [
            (0, Some(100), BlockState::ActiveAllocated),
            (512, None, BlockState::ActivePendingFree),
            (1536, None, BlockState::Inactive)
        ]
    );
    assert_eq!(recording.stacks.frames(segment.blocks[0].stack).len(), 2);
    assert_eq!((device.trace[0].time(), device.trace[0].stack), (None, segment.blocks[0].stack));

    let list = load("list.pickle");
    assert_eq!(list.devices[0].segments, recording.devices[0].segments);
    assert!(list.devices[0].trace.is_empty());
}

/// A block of 1.x or 2.0 serves the first request in its history. Keys of its own take precedence.
#[test]
fn a_block_serves_the_first_request_in_its_history() {
    let stack = |line: u64| format!(r#"[{{"filename": "a.py", "line": {line}, "name": "f"}}]"#);
    let own = [(None, None), (Some(7), None), (None, Some(7)), (Some(7), Some(7))];
    for (requests, (size, line)) in (0..4).flat_map(|requests| own.map(|own| (requests, own))) {
        let item = |number: u64| format!(r#"{{"addr": 0, "real_size": {}, "frames": {}}}"#, 100 + number, stack(10 + number));
        let history: Vec<String> = (0..requests).map(item).collect();
        let size_key = size.map_or(String::new(), |size: u64| format!(r#""requested_size": {size}, "#));
        let stack_key = line.map_or(String::new(), |line| format!(r#""frames": {}, "#, stack(line)));
        let json = format!(
            r#"[{{"address": 0, "total_size": 512, "blocks": [{{{size_key}{stack_key}
                "size": 512, "state": "active_allocated", "history": [{}]}}]}}]"#,
            history.join(", ")
        );
        let recording = read(json.as_bytes()).unwrap_or_else(|error| panic!("{json}: {error}"));
        let block = recording.devices[0].segments[0].blocks[0];
        let first = |number: u64| (requests > 0).then_some(number);
        assert_eq!(block.requested, size.or(first(100)), "{json}");
        let lines: Vec<u32> = recording.stacks.frames(block.stack).map(|frame| frame.line).collect();
        assert_eq!(lines, Vec::from_iter(line.or(first(10)).map(|line| line as u32)), "{json}");
    }
}

#[test]
fn newer_snapshots_are_read_and_what_is_unknown_is_counted() {
    let recording = load("newer.pickle");
    let pools: Vec<_> = recording.devices[0].trace.iter().map(|entry| recording.devices[0].pools.get(entry.pool)).collect();
    assert_eq!(pools, vec![Some((0, 7)); 6]);
    assert!(recording.settings.as_ref().is_some_and(|settings| settings.has_newer_keys));
    let one = |names: &std::collections::BTreeMap<String, u64>| {
        names.iter().map(|(name, &times)| (name.clone(), times)).collect::<Vec<_>>()
    };
    assert_eq!(one(&recording.tolerated.unknown_actions), [("user_defined".to_owned(), 1)]);
    assert_eq!(one(&recording.tolerated.unknown_entry_keys), [("category".to_owned(), 1)]);
    assert_eq!(one(&recording.tolerated.unknown_segment_keys), [("registered".to_owned(), 1)]);
    assert_eq!(one(&recording.tolerated.unknown_block_keys), [("colour".to_owned(), 1)]);
    assert_eq!(one(&recording.tolerated.unknown_top_keys), [("version".to_owned(), 1)]);
}

#[test]
fn an_unknown_key_is_counted_each_time_that_it_occurs() {
    let block = r#"{"size": 512, "state": "inactive", "colour": 1}"#;
    let json = format!(r#"[{{"address": 0, "total_size": 1536, "blocks": [{block}, {block}, {block}]}}]"#);
    let recording = read(json.as_bytes()).expect("a snapshot");
    assert_eq!(recording.tolerated.unknown_block_keys.get("colour"), Some(&3));
}

#[test]
fn what_is_written_is_read_back() {
    for name in ["snapshot.protocol4.pickle", "old.pickle", "newer.pickle"] {
        let mut recording = load(name);
        recording.tolerated = Default::default();
        recording = without_fields(recording);
        for style in [Style::Python, Style::Cpp] {
            let written = write(&recording, style);
            assert_eq!(without_fields(read(&written).expect("written by us")), recording, "{name} {style:?}");
        }
    }
}

#[test]
fn the_limit_that_parkade_adds_is_read_and_written() {
    for source in [LimitSource::Fraction, LimitSource::Device, LimitSource::Given] {
        let limited = Recording { run_limit: Some(RunLimit { bytes: 14 << 30, source }), ..load("snapshot.protocol4.pickle") };
        for style in [Style::Python, Style::Cpp] {
            let again = read(&write(&limited, style)).expect("written by us");
            assert_eq!(again.run_limit, limited.run_limit, "{source:?} {style:?}");
            assert!(again.tolerated.unknown_top_keys.is_empty());
        }
    }
    assert_eq!(load("snapshot.protocol4.pickle").run_limit, None);
}

#[test]
fn the_policy_of_a_simulation_is_read_and_written() {
    let limit = RunLimit { bytes: 14 << 30, source: LimitSource::Given };
    for run_limit in [None, Some(limit)] {
        let limit_bytes = run_limit.map(|limit| limit.bytes);
        let policy = "best-fit-remap:handle=20MiB".into();
        let simulated = Some(Simulated { policy, capacity_bytes: Some(16 << 30), limit_bytes });
        let simulation = Recording { run_limit, simulated, ..load("snapshot.protocol4.pickle") };
        for style in [Style::Python, Style::Cpp] {
            let again = read(&write(&simulation, style)).expect("written by us");
            assert_eq!((&again.simulated, again.run_limit), (&simulation.simulated, run_limit), "{style:?}");
        }
    }
    let recorded = load("snapshot.protocol4.pickle");
    assert_eq!((&recorded.simulated, recorded.other_policy()), (&None, None));
}

/// A recording of a real run, compared with known figures.
#[test]
fn a_real_recording_is_read() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings/deep_mlp.default.pickle.xz");
    let recording = read_file(path).expect("a real recording");
    let [device] = &recording.devices[..] else { panic!("one device") };
    assert_eq!((device.device, device.trace.len(), device.segments.len()), (0, 1316, 4));
    let count = |action| device.trace.iter().filter(|entry| entry.action == action).count();
    assert_eq!(Action::ALL.map(count), [372, 368, 368, 106, 102, 0, 0, 0, 0]);
    let first = &device.trace[0];
    assert_eq!((first.action, first.address, first.size), (Action::SegmentAlloc, 140_056_501_157_888, 67_108_864));
    assert_eq!(first.time(), Some(1_795_176_276_326_671));
    assert_eq!(recording.tolerated.unknown_entry_keys.len() + recording.tolerated.unknown_segment_keys.len(), 0);
    for style in [Style::Python, Style::Cpp] {
        let again = read(&write(&recording, style)).expect("written by us");
        assert_eq!(without_fields(again), without_fields(recording.clone()));
    }
}

/// Returns the recording without the fields that show its release: a snapshot is written in the form used by 2.11 or later.
fn without_fields(recording: Recording) -> Recording {
    Recording { fields: FileFields::default(), ..recording }
}

/// Returns the releases from 2.0 to 2.15 that a file's keys allow.
fn releases(recording: &Recording) -> Vec<u8> {
    (0..=15).filter(|&minor| recording.fields.evidence().all(|fact| fact.allows((2, minor)))).collect()
}

#[test]
fn keys_show_which_releases_may_have_written_a_file() {
    assert_eq!(releases(&load("snapshot.protocol4.pickle")), [10, 11], "user_metadata, but no pool_id");
    assert_eq!(releases(&load("snapshot.protocol2.pickle")), [10, 11, 12, 13, 14, 15], "C++ writes some keys later than Python");
    assert!(releases(&load("newer.pickle")).is_empty(), "no release writes only max_cached_size");
    assert_eq!(releases(&load("old.pickle")), [0], "history");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../conformance/recordings/deep_mlp.default.pickle.xz");
    assert_eq!(releases(&read_file(path).expect("a real recording")), [10, 11]);
}
