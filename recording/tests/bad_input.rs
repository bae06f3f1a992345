//! Tests files that are not recordings: each is refused, at little cost, with a typed one-line error that names the position.

use parkade_recording::compression::DecompressError;
use parkade_recording::{FormatError, FormatProblem, PickleError, PickleProblem, Place, ReadError, read};

fn refused(bytes: &[u8]) -> ReadError {
    let error = read(bytes).expect_err("this must be refused");
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 400, "{line}");
    error
}

fn pickle_error(bytes: &[u8]) -> (u64, PickleProblem) {
    match refused(bytes) {
        ReadError::Pickle(PickleError { offset, problem }) => (offset, problem),
        other => panic!("expected a pickle error, got: {other}"),
    }
}

fn format_error(bytes: &[u8]) -> (String, FormatProblem) {
    match refused(bytes) {
        ReadError::Format(FormatError { place, problem }) => (place.to_string(), problem),
        other => panic!("expected a format error, got: {other}"),
    }
}

#[test]
fn code_is_never_run() {
    let refused_at = |bytes: &[u8], offset, code| {
        assert_eq!(pickle_error(bytes), (offset, PickleProblem::Refused { code }));
    };
    refused_at(b"cos\nsystem\n(S'echo'\ntR.", 0, b'c');
    refused_at(b"\x80\x04\x8c\x02os\x8c\x06system\x93.", 14, 0x93);
    refused_at(b"\x80\x02}q\x00ctorch.jit._pickle\nbuild_intlist\n.", 5, b'c');
    refused_at(b"(S'echo'\nios\nsystem\n.", 9, b'i');
    refused_at(b"(No.", 2, b'o');
    refused_at(b"N)\x81.", 2, 0x81);
    refused_at(b"N)}\x92.", 3, 0x92);
    refused_at(b"N}b.", 2, b'b');
    refused_at(b"Pid\n.", 0, b'P');
    refused_at(b"NQ.", 1, b'Q');
    refused_at(b"\x82\x01.", 0, 0x82);
    refused_at(b"\x83\x01\x00.", 0, 0x83);
    refused_at(b"\x84\x01\x00\x00\x00.", 0, 0x84);
    refused_at(b"\x97.", 0, 0x97);
    refused_at(b"N\x98.", 1, 0x98);
    refused_at(b"N)R.", 2, b'R');
    let message = refused(b"cos\nsystem\n(S'echo'\ntR.").to_string();
    assert!(message.starts_with("pickle byte 0: opcode GLOBAL (0x63) would import or call code"), "{message}");
}

/// The only accepted use of GLOBAL and REDUCE (spec 7.6): very old C++ dumps.
#[test]
fn the_type_tag_of_old_cpp_dumps_is_the_object_itself() {
    // The order is that of old picklers: function, (list, "List[Any]"), REDUCE.
    let mut bytes = b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\nq\x000}(X\x08\x00\x00\x00segments".to_vec();
    bytes.extend(b"h\x00(]X\x09\x00\x00\x00List[Any]tRu.");
    assert!(read(&bytes).expect("a tagged list").devices.is_empty());
    // The reader refuses arguments other than (object, str). It also refuses the function as a value.
    let wrong = b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\n(]K\x01tR.";
    assert!(matches!(pickle_error(wrong), (_, PickleProblem::Refused { code: b'R' })));
    let bare = b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\n.";
    assert!(matches!(format_error(bare).1, FormatProblem::NotASnapshot { .. }));
}

/// A list with one snapshot per rank is not a list of segments.
#[test]
fn a_list_of_snapshots_is_named() {
    let list = b"\x80\x02](}X\x08\x00\x00\x00segments]s}X\x0d\x00\x00\x00device_traces]se.";
    assert!(matches!(format_error(list).1, FormatProblem::ListOfSnapshots { count: 2 }));
}

#[test]
fn damaged_pickles_are_named_with_their_offset() {
    use PickleProblem::*;
    assert_eq!(pickle_error(b"\x80\x04J\x01"), (2, Truncated { needed: 4, left: 1 }));
    assert_eq!(pickle_error(b"\x80\x04"), (2, Truncated { needed: 1, left: 0 }));
    assert_eq!(pickle_error(b"\x80\x06N."), (0, Protocol { version: 6 }));
    assert_eq!(pickle_error(b"I12"), (0, UnfinishedLine));
    assert_eq!(pickle_error(b"."), (0, StackUnderflow { code: b'.' }));
    assert_eq!(pickle_error(b"(."), (1, StackUnderflow { code: b'.' }));
    assert_eq!(pickle_error(b"N\x86."), (1, StackUnderflow { code: 0x86 }));
    assert_eq!(pickle_error(b"N(\x85."), (2, StackUnderflow { code: 0x85 }));
    assert_eq!(pickle_error(b"2."), (0, StackUnderflow { code: b'2' }));
    assert_eq!(pickle_error(b"q\x00."), (0, StackUnderflow { code: b'q' }));
    assert_eq!(pickle_error(b"\x94."), (0, StackUnderflow { code: 0x94 }));
    assert_eq!(pickle_error(b"]e."), (1, MissingMark { code: b'e' }));
    assert_eq!(pickle_error(b"t."), (0, MissingMark { code: b't' }));
    assert_eq!(pickle_error(b"0."), (0, MissingMark { code: b'0' }));
    assert_eq!(pickle_error(b"(u."), (1, StackUnderflow { code: b'u' }));
    assert_eq!(pickle_error(b"](u."), (2, WrongTarget { code: b'u', expected: "dict", found: "list" }));
    assert_eq!(pickle_error(b"}(Ne."), (3, WrongTarget { code: b'e', expected: "list", found: "dict" }));
    assert_eq!(pickle_error(b"NNa."), (2, WrongTarget { code: b'a', expected: "list", found: "None" }));
    assert_eq!(pickle_error(b"}(Nu."), (3, OddItems { code: b'u' }));
    assert_eq!(pickle_error(b"}]Ns."), (3, UnhashableKey { found: "list" }));
    assert_eq!(pickle_error(b"}(}Nu."), (4, UnhashableKey { found: "dict" }));
    assert_eq!(pickle_error(b"h\x05."), (0, MissingMemo { index: 5 }));
    assert_eq!(pickle_error(b"j\xff\xff\xff\xff."), (0, MissingMemo { index: u64::from(u32::MAX) }));
    assert_eq!(pickle_error(b"g-1\n."), (0, BadNumber));
    assert_eq!(pickle_error(b"Ix\n."), (0, BadNumber));
    assert_eq!(pickle_error(b"F1.x\n."), (0, BadNumber));
    assert_eq!(pickle_error(b"S'a\n."), (0, BadText));
    assert_eq!(pickle_error(b"V\\u12\n."), (0, BadText));
    assert_eq!(pickle_error(b"\xff."), (0, UnknownOpcode { code: 0xff }));
    assert_eq!(pickle_error(b"\x8f."), (0, Unsupported { code: 0x8f }));
}

#[test]
fn announced_lengths_are_not_believed() {
    use PickleProblem::*;
    assert_eq!(pickle_error(b"X\xff\xff\xff\xffa"), (0, Truncated { needed: u64::from(u32::MAX), left: 1 }));
    assert_eq!(pickle_error(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffa"), (0, Truncated { needed: u64::MAX, left: 1 }));
    assert_eq!(pickle_error(b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fa"), (0, Truncated { needed: u64::MAX >> 1, left: 1 }));
    assert_eq!(pickle_error(b"\x8b\xff\xff\xff\xff"), (0, NegativeLength { length: -1 }));
    assert_eq!(pickle_error(b"T\x00\x00\x00\x80"), (0, NegativeLength { length: i32::MIN }));
    assert_eq!(pickle_error(b"\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00N."), (2, Truncated { needed: 255, left: 2 }));
    // A memo slot with a huge number costs nothing.
    assert!(matches!(format_error(b"Nr\xff\xff\xff\xff.").1, FormatProblem::NotASnapshot { .. }));
    assert!(matches!(format_error(b"Np99999999999999\n.").1, FormatProblem::NotASnapshot { .. }));
}

#[test]
fn bombs_are_bounded() {
    // Lists within lists, MARKs and dicts, a million deep.
    let nested = [vec![b']'; 1_000_000], vec![b'a'; 999_999], vec![b'.']].concat();
    assert!(matches!(format_error(&nested).1, FormatProblem::NotASnapshot { .. }));
    let tuples = [vec![b')'], vec![0x85; 1_000_000], vec![b'.']].concat();
    assert!(matches!(format_error(&tuples).1, FormatProblem::NotASnapshot { .. }));
    let marks = [vec![b'('; 1_000_000], vec![b'.']].concat();
    assert!(matches!(pickle_error(&marks).1, PickleProblem::StackUnderflow { .. }));
    // Many containers from little input.
    let memo = b"}\x94".repeat(20_000_000);
    assert!(matches!(pickle_error(&memo).1, PickleProblem::TooMuchMemory { .. }));
    // A list that contains itself, as segments and as frames.
    assert!(matches!(format_error(b"]q\x00(h\x00h\x00e.").1, FormatProblem::NotASnapshot { .. }));
    // One empty list as the trace of a million devices, and the same entry a million times.
    let entry: &[u8] = b"}(X\x06\x00\x00\x00actionX\x05\x00\x00\x00allocX\x04\x00\x00\x00addrK\x01X\x04\x00\x00\x00sizeK\x01X\x06\x00\x00\x00streamK\x00uq\x00";
    let mut same = b"}X\x0d\x00\x00\x00device_traces](](".to_vec();
    same.extend(entry);
    same.extend(b"h\x00".repeat(1_000_000));
    same.extend(b"ees.");
    assert_eq!(format_error(&same), ("the trace of device 0".to_owned(), FormatProblem::Repeated));
}

#[test]
fn packed_bombs_and_damage_are_refused() {
    assert!(matches!(refused(b""), ReadError::Decompress(DecompressError::Empty)));
    assert!(matches!(refused(b"\n "), ReadError::Decompress(DecompressError::Empty)));
    for other in [&b"PK\x03\x04rest"[..], b"{\"version\": 1}", b"[1, 2]", b"<!DOCTYPE html>", b"BZh91AY"] {
        assert!(matches!(refused(other), ReadError::Decompress(DecompressError::OtherKind { .. })));
    }
    let log =
        "step 1, loss 2.3\nTraceback (most recent call last):\n \u{1b}[31mtorch.OutOfMemoryError\u{1b}[0m: CUDA out of memory.";
    for text in [log.as_bytes(), b"Epoch 1/3", b"#!/bin/sh -e\n", &log.as_bytes().repeat(5000)] {
        let error = refused(text);
        assert!(matches!(error, ReadError::Decompress(DecompressError::OtherKind { .. })), "{error}");
        assert!(error.to_string().contains("parkade diagnose FILE"), "{error}");
    }
    for log in ["[rank0]: Traceback (most recent call last):", "[2026-11-27 10:00:01] step 1, loss 2.3"] {
        assert!(refused(log.as_bytes()).to_string().contains("parkade diagnose FILE"), "{log}");
    }
    // Damaged pickles in text form.
    for pickle in [&b"cos\nsystem\n(S'echo'\ntR."[..], b"(dp0\nVa b\np1\n"] {
        assert!(matches!(refused(pickle), ReadError::Pickle(_)));
    }
    for name in ["snapshot.gz.bin", "snapshot.xz.bin", "snapshot.zst.bin"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        let whole = std::fs::read(path).expect("fixture");
        for length in 6..whole.len() {
            let error = read(&whole[..length]).expect_err("cut short");
            // If the file is cut after the first of its two members, only the pickle is incomplete.
            let known = matches!(error, ReadError::Decompress(DecompressError::Damaged { .. }) | ReadError::Pickle(_));
            assert!(known, "{name} {length}: {error}");
        }
        let mut flipped = whole.clone();
        let middle = whole.len() / 4;
        flipped[middle] ^= 0x10;
        assert!(read(&flipped).is_err(), "{name}: a flipped bit is noticed by the checksum");
    }
}

/// The error states that JSON or a page is cut short or damaged, and the reader uses none of its contents.
#[test]
fn damaged_json_and_pages_are_refused() {
    let fixture = |name| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        std::fs::read(path).expect("fixture")
    };
    let (json, page) = (fixture("snapshot.json"), fixture("snapshot.html"));
    for length in 1..json.len() {
        assert!(matches!(refused(&json[..length]), ReadError::Json(_)), "{length}");
    }
    let begins = page.windows(6).position(|window| window == b"base64").expect("the key") + 12;
    let ends = page.len() - 100;
    for length in (begins..ends).step_by(7) {
        assert!(read(&page[..length]).is_err(), "{length}");
    }
    let line = refused(br#"{"segments": [{"address": 5, "total_size": 0, "blocks": []}]}"#).to_string();
    assert_eq!(line, "segment 0: `total_size` is 0 but should be a whole number from 1 to 2^64 - 1");
    let line = refused(br#"[{"segments": [], "device_traces": []}, {"segments": []}]"#).to_string();
    assert!(line.starts_with("the snapshot: it is a list of 2 snapshots"), "{line}");
    let line = refused(b"{\"segments\": [1, 2").to_string();
    assert!(line.starts_with("the JSON is damaged or cut short: EOF"), "{line}");
}

/// Returns the opcodes for a dict. Its values are passed as opcodes.
fn dict(pairs: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = b"}(".to_vec();
    for (key, value) in pairs {
        bytes.extend([0x8c, key.len() as u8]);
        bytes.extend(key.bytes());
        bytes.extend(*value);
    }
    bytes.push(b'u');
    bytes
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    [b"](".to_vec(), items.concat(), b"e".to_vec()].concat()
}

fn int(value: i128) -> Vec<u8> {
    format!("I{value}\n").into_bytes()
}

fn text(value: &str) -> Vec<u8> {
    format!("V{value}\n").into_bytes()
}

fn segments(list_of: &[Vec<u8>]) -> Vec<u8> {
    [dict(&[("segments", &list(list_of))]), b".".to_vec()].concat()
}

fn trace(entries: &[Vec<u8>]) -> Vec<u8> {
    [dict(&[("device_traces", &list(&[list(entries)]))]), b".".to_vec()].concat()
}

fn block(address: i128, size: i128) -> Vec<u8> {
    dict(&[("address", &int(address)), ("size", &int(size)), ("state", &text("inactive"))])
}

fn segment(address: i128, total: i128, blocks: &[Vec<u8>]) -> Vec<u8> {
    dict(&[("address", &int(address)), ("total_size", &int(total)), ("blocks", &list(blocks))])
}

fn entry(action: &str, address: i128, size: i128) -> Vec<u8> {
    dict(&[("action", &text(action)), ("addr", &int(address)), ("size", &int(size)), ("stream", &int(0))])
}

#[test]
fn segments_that_make_no_sense_are_named() {
    let good = segment(4096, 1024, &[block(4096, 512), block(4608, 512)]);
    assert_eq!(read(&segments(std::slice::from_ref(&good))).expect("good").devices[0].segments.len(), 1);
    let check = |bad: Vec<u8>, place: Place, expected: FormatProblem| {
        let found = format_error(&segments(&[segment(1 << 20, 512, &[block(1 << 20, 512)]), bad]));
        assert_eq!(found, (place.to_string(), expected));
    };
    let here = Place::Segment { segment: 1 };
    let in_block = |block| Place::Block { segment: 1, block };
    check(segment(0, 1024, &[block(0, 512)]), here, FormatProblem::WrongSum { blocks: 512, total: 1024 });
    check(segment(0, 1024, &[]), here, FormatProblem::WrongSum { blocks: 0, total: 1024 });
    check(segment(0, 512, &[block(8, 512)]), in_block(0), FormatProblem::Gap { expected: 0, found: 8 });
    let end = u64::MAX;
    let beyond = FormatProblem::EndsBeyond { address: end, size: 2 };
    check(segment(end.into(), 2, &[block(0, 2)]), here, beyond);
    let beyond = FormatProblem::EndsBeyond { address: 512, size: end };
    check(segment(0, 1024, &[block(0, 512), block(512, end.into())]), in_block(1), beyond);
    let range = "a whole number from 1 to 2^64 - 1";
    check(segment(0, 0, &[]), here, FormatProblem::OutOfRange { key: "total_size", value: "0".into(), range });
    let zero = FormatProblem::OutOfRange { key: "size", value: "0".into(), range };
    check(segment(0, 512, &[block(0, 0)]), in_block(0), zero);
    let range = "a whole number from 0 to 2^64 - 1";
    let negative = FormatProblem::OutOfRange { key: "address", value: "-512".into(), range };
    check(segment(-512, 512, &[]), here, negative);
    let huge = FormatProblem::OutOfRange { key: "total_size", value: (1_i128 << 64).to_string(), range };
    check(segment(0, 1 << 64, &[]), here, huge);
    check(dict(&[("address", &int(0))]), here, FormatProblem::Missing { key: "total_size" });
    check(
        dict(&[("address", &int(0)), ("total_size", &text("x"))]),
        here,
        FormatProblem::WrongType { key: "total_size", expected: "int", found: "str" },
    );
    let overlap = FormatProblem::Overlap { other: 0, device: 0, address: (1 << 20) + 256 };
    check(segment((1 << 20) + 256, 512, &[]), here, overlap);
    check(b"N".to_vec(), here, FormatProblem::WrongType { key: "segments", expected: "dict", found: "None" });
    let odd = dict(&[("size", &int(512)), ("state", &text("odd"))]);
    let (place, problem) = format_error(&segments(&[segment(0, 512, &[odd])]));
    assert!(matches!(problem, FormatProblem::UnknownName { key: "state", .. }), "{place}: {problem}");
    let far = dict(&[("device", &int(128)), ("address", &int(0)), ("total_size", &int(1)), ("blocks", &list(&[]))]);
    assert!(matches!(format_error(&segments(&[far])).1, FormatProblem::OutOfRange { key: "device", .. }));
}

#[test]
fn entries_that_make_no_sense_are_named() {
    let check = |bad: Vec<u8>, expected: FormatProblem| {
        let found = format_error(&trace(&[entry("alloc", 4096, 1), bad]));
        assert_eq!(found, ("entry 1 of device 0".to_owned(), expected));
    };
    let range = "a whole number from 1 to 2^64 - 1";
    check(entry("alloc", 0, 0), FormatProblem::OutOfRange { key: "size", value: "0".into(), range });
    let range = "a whole number from 0 to 2^64 - 1";
    check(entry("alloc", 0, -5), FormatProblem::OutOfRange { key: "size", value: "-5".into(), range });
    check(entry("alloc", -1, 5), FormatProblem::OutOfRange { key: "addr", value: "-1".into(), range });
    let end = FormatProblem::EndsBeyond { address: u64::MAX, size: 1 };
    check(entry("segment_free", u64::MAX.into(), 1), end);
    let no_stream = dict(&[("action", &text("alloc")), ("addr", &int(1)), ("size", &int(1))]);
    check(no_stream, FormatProblem::Missing { key: "stream" });
    let no_address = dict(&[("action", &text("alloc")), ("size", &int(1)), ("stream", &int(1))]);
    check(no_address, FormatProblem::Missing { key: "addr" });
    check(dict(&[("action", &int(1))]), FormatProblem::WrongType { key: "action", expected: "str", found: "int" });
    check(b"]".to_vec(), FormatProblem::WrongType { key: "device_traces", expected: "dict", found: "list" });
    let many: Vec<(String, Vec<u8>)> = (0..65).map(|number| (format!("key{number}"), int(1))).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|(key, value)| (key.as_str(), value.as_slice())).collect();
    check(dict(&many), FormatProblem::TooManyKeys { limit: 64 });
    let list_of_none = [dict(&[("device_traces", &list(&[b"N".to_vec()]))]), b".".to_vec()].concat();
    assert_eq!(format_error(&list_of_none).0, "the trace of device 0");
}

#[test]
fn settings_and_annotations_are_checked() {
    let with = |key: &str, value: Vec<u8>| [dict(&[("segments", b"]"), (key, &value)]), b".".to_vec()].concat();
    let settings = with("allocator_settings", dict(&[("expandable_segments", &text("yes"))]));
    assert_eq!(format_error(&settings).0, "allocator_settings");
    let divisions = dict(&[("1", &int(-1))]);
    let settings = with("allocator_settings", dict(&[("roundup_power2_divisions", &divisions)]));
    assert!(matches!(format_error(&settings).1, FormatProblem::OutOfRange { .. }));
    let notes = with("external_annotations", list(&[dict(&[]), dict(&[("name", &int(1))])]));
    assert_eq!(format_error(&notes).0, "annotation 1");
    let (place, problem) = format_error(&[dict(&[("weights", b"]")]), b".".to_vec()].concat());
    assert_eq!(place, "the snapshot");
    assert!(problem.to_string().contains(r#"a dict with the keys weights"#), "{problem}");
}

/// A change to a value that has already been memoised is visible through every reference.
#[test]
fn shared_objects_stay_shared() {
    // The segments list is memoised and put into the dict while it is empty; the segment is appended afterwards.
    let mut bytes = b"}q\x00X\x08\x00\x00\x00segments]q\x01sh\x01".to_vec();
    bytes.extend(segment(4096, 512, &[block(4096, 512)]));
    bytes.extend(b"a0.");
    assert_eq!(read(&bytes).expect("a snapshot").devices[0].segments.len(), 1);
    // A dict that receives more keys, one by one, after other values have been written. Of equal keys, the last one counts.
    let mut bytes = b"}q\x00X\x0d\x00\x00\x00device_traces]q\x01s".to_vec();
    bytes.extend(b"h\x01(](}q\x02(");
    bytes.extend([text("action"), text("alloc"), b"u".to_vec()].concat());
    bytes.extend(b"h\x02(");
    bytes.extend(b"V");
    bytes.extend(b"\nI1\nu0"); // An unknown key.
    bytes.extend(b"]0}0)0"); // Other things.
    bytes.extend([text("n"), b"\x850".to_vec()].concat());
    bytes.extend(b"h\x02(");
    bytes.extend([text("addr"), int(9), text("size"), int(9), text("size"), int(8), text("stream"), int(0)].concat());
    bytes.extend(b"u0ee0.");
    let recording = read(&bytes).expect("a snapshot");
    let entry = recording.devices[0].trace[0];
    assert_eq!((entry.address, entry.size), (9, 8));
    assert_eq!(recording.tolerated.unknown_entry_keys.get(""), Some(&1));
}
