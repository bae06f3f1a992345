//! Runs everything that reads a file or a text from an untrusted source.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use parkade::settings::{Dialect, Settings};
use parkade_analysis::diagnose::diagnose_message;
use parkade_cli::terminal::size as sizes;
use parkade_recording::message::{MessageLog, OutOfMemoryMessage};
use parkade_recording::{Recording, StackId, StackTable, Style, read, write};
use parkade_replay::StatsFile;
use parkade_research::packing::{is_csv, read_csv};

use super::case::Reached;
use crate::choices::Choices;
use crate::{recordings, texts};

fn reached<T, E>(result: Result<T, E>) -> Reached {
    if result.is_ok() { Reached::Read } else { Reached::Refused }
}

pub(super) fn recording(choices: &mut Choices<'_>) -> Vec<u8> {
    recordings::spelled(choices)
}

pub(super) fn written(choices: &mut Choices<'_>) -> Vec<u8> {
    recordings::plausible(choices)
}

pub(super) fn damaged(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = recordings::sound(choices);
    choices.damage(&mut bytes, 6);
    bytes
}

/// Opcodes with plausible arguments, in any order.
pub(super) fn opcodes(choices: &mut Choices<'_>) -> Vec<u8> {
    const CODES: &[u8] = b"(.012N)]}ludtesaRbQo\x80\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x95\x97\x98";
    const TEXTS: [&str; 12] = [
        "segments",
        "device_traces",
        "action",
        "alloc",
        "size",
        "blocks",
        "address",
        "addr",
        "stream",
        "frames",
        "state",
        "total_size",
    ];
    let mut bytes = Vec::new();
    for _ in 0..choices.below(160) {
        match choices.below(16) {
            0..=4 => bytes.push(choices.pick(CODES)),
            5 | 6 => bytes.extend([b'K', choices.byte()]),
            7 => bytes.extend([choices.pick(b"hq"), choices.byte() % 8]),
            8 => {
                bytes.push(choices.pick(b"JjrXTB"));
                bytes.extend((choices.number() as u32 >> choices.below(32)).to_le_bytes());
            }
            9 => {
                let length = choices.below(20);
                bytes.extend([0x8a, length as u8]);
                bytes.extend((0..length).map(|_| choices.byte()));
            }
            10 | 11 => bytes.extend(b"(}"),
            12 => {
                bytes.extend(choices.pick(&[&b"I12\n"[..], b"L-5L\n", b"F1e400\n", b"Vx\n", b"S'a'\n", b"p3\n", b"g3\n", b"c\n"]))
            }
            13 => bytes.push(choices.byte()),
            _ => {
                let text = choices.pick(&TEXTS);
                bytes.extend([&[0x8c, text.len() as u8], text.as_bytes()].concat());
            }
        }
    }
    bytes.push(b'.');
    bytes
}

pub(super) fn compressed(choices: &mut Choices<'_>) -> Vec<u8> {
    // Complete files of the formats that parkade reads but this crate does not write.
    const XZ: &[u8] = include_bytes!("../../../../recording/tests/data/snapshot.xz.bin");
    const ZSTD: &[u8] = include_bytes!("../../../../recording/tests/data/snapshot.zst.bin");
    let mut bytes = match choices.below(5) {
        0 => XZ.to_vec(),
        1 => ZSTD.to_vec(),
        2 => {
            let zeros = vec![b'N'; 1 << choices.below(21)];
            gzip(&[recordings::sound(choices), zeros].concat())
        }
        _ => gzip(&recordings::plausible(choices)),
    };
    match choices.below(6) {
        // Adds another member, stream or frame.
        0 => bytes.extend(choices.pick(&[XZ, ZSTD, b"\0\0\0\0", b"\x1f\x8b"])),
        1..=3 => choices.damage(&mut bytes, 3),
        _ => {}
    }
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default()
}

pub(super) fn read_recording(bytes: &[u8], _: u8) -> Reached {
    reached(read(bytes))
}

/// Checks that writing a recording in both styles and reading it back yields the same recording.
pub(super) fn read_again(bytes: &[u8], _: u8) -> Reached {
    let Ok(mut recording) = read(bytes) else { return Reached::Refused };
    recording.tolerated = Default::default();
    let again = |recording: &Recording, style| {
        read(&write(recording, style)).expect(
            "a recording that was read can be written and \
                                                                              read again",
        )
    };
    // A NaN does not equal itself, so NaNs are removed after the recording has been written and read once. From here
    // on, the recording is written without them: settings without any value reveal less about the release.
    again(&recording, Style::Python);
    recording = without_nan(recording);
    let (python, mut cpp) = (again(&recording, Style::Python), again(&recording, Style::Cpp));
    // Snapshots in the C++ style reveal less about their release, and the written file may belong to a later release
    // than the file that was read.
    cpp.fields = python.fields;
    recording.fields = python.fields;
    assert!(python == cpp, "the same recording written in two styles is read as two different recordings");
    assert!(again(&python, Style::Python) == python, "the written recording is read as a different one");
    // The order of segments in the file affects only how stacks are numbered.
    let is_same = without_stacks(recording) == without_stacks(python);
    assert!(is_same, "the written recording differs from the one that was read");
    Reached::Read
}

fn without_stacks(mut recording: Recording) -> Recording {
    recording.stacks = StackTable::default();
    for device in &mut recording.devices {
        device.trace.iter_mut().for_each(|entry| entry.stack = StackId::NONE);
        for segment in &mut device.segments {
            segment.stack = StackId::NONE;
            segment.blocks.iter_mut().for_each(|block| block.stack = StackId::NONE);
        }
    }
    recording
}

/// NaN is not equal to itself.
fn without_nan(mut recording: Recording) -> Recording {
    if let Some(settings) = &mut recording.settings {
        settings.garbage_collection_threshold = settings.garbage_collection_threshold.filter(|value| !value.is_nan());
    }
    recording
}

pub(super) fn settings(choices: &mut Choices<'_>) -> Vec<u8> {
    texts::settings(choices).into_bytes()
}

pub(super) fn read_settings(bytes: &[u8], _: u8) -> Reached {
    let text = String::from_utf8_lossy(bytes);
    let newer = Settings::from_environment_as(&Dialect::PYTORCH_2_15, &text);
    if let Err(error) = &newer {
        assert!(!error.to_string().is_empty());
    }
    reached(Settings::from_environment(&text))
}

pub(super) fn message(choices: &mut Choices<'_>) -> Vec<u8> {
    texts::message(choices).into_bytes()
}

pub(super) fn read_message(bytes: &[u8], _: u8) -> Reached {
    let parsed = OutOfMemoryMessage::parse(&String::from_utf8_lossy(bytes));
    reached(parsed.map(diagnose_message))
}

pub(super) fn log(choices: &mut Choices<'_>) -> Vec<u8> {
    texts::log(choices).into_bytes()
}

pub(super) fn read_log(bytes: &[u8], _: u8) -> Reached {
    let log = MessageLog::read(&String::from_utf8_lossy(bytes));
    let (begin, end) = bytes.split_at(bytes.len() / 2);
    assert!(MessageLog::read_from(begin.chain(end)).is_ok_and(|halves| halves == log));
    let explained = log.explained();
    assert!(explained.is_none_or(|place| place < log.messages.len()));
    if log.messages.is_empty() {
        return Reached::Refused;
    }
    for logged in log.messages {
        drop(diagnose_message(logged.message));
    }
    Reached::Read
}

pub(super) fn statistics(choices: &mut Choices<'_>) -> Vec<u8> {
    texts::statistics(choices).into_bytes()
}

pub(super) fn read_statistics(bytes: &[u8], _: u8) -> Reached {
    match serde_json::from_slice::<BTreeMap<String, i64>>(bytes) {
        Ok(entries) => reached(StatsFile::new(entries)),
        Err(_) => Reached::Refused,
    }
}

pub(super) fn buffers(choices: &mut Choices<'_>) -> Vec<u8> {
    texts::buffers(choices).into_bytes()
}

pub(super) fn read_buffers(bytes: &[u8], _: u8) -> Reached {
    if !is_csv(bytes) {
        return Reached::Refused;
    }
    reached(read_csv(&String::from_utf8_lossy(bytes)))
}

pub(super) fn size(choices: &mut Choices<'_>) -> Vec<u8> {
    texts::size(choices).into_bytes()
}

pub(super) fn read_size(bytes: &[u8], _: u8) -> Reached {
    let text = String::from_utf8_lossy(bytes);
    let parsed = sizes::parse(&text);
    if let Ok(bytes) = parsed {
        assert!(!sizes::show_bytes(bytes).is_empty());
    }
    let _ = sizes::parse_bytes(&text);
    reached(parsed)
}
