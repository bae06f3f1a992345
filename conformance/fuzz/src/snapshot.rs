//! Target `snapshot`: the readers of recordings, and the writers that they must agree with.
//!
//! Few pickles with damaged bytes are accepted. Most inputs are therefore recordings that were changed as values and then
//! written.

use std::io::Write;

use parkade_recording::{Recording, StackId, StackTable, Style, read, write};

use crate::choices::Choices;
use crate::recordings;

/// Reads what the bytes describe: a file, or the choices that make one. Returns whether the reader accepted the file.
///
/// # Panics
/// If the reader panics, or if a recording that it accepted is not read back unchanged after it was written.
pub fn run(data: &[u8]) -> bool {
    let Some((kind, rest)) = data.split_first() else { return false };
    let mut choices = Choices::new(rest);
    is_read_again(&match kind % 8 {
        0 => rest.to_vec(),
        1 => opcodes(&mut choices),
        2 => compressed(&mut choices),
        3 => damaged(&mut choices),
        4 => recordings::plausible(&mut choices),
        _ => recordings::spelled(&mut choices),
    })
}

fn damaged(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = recordings::sound(choices);
    choices.damage(&mut bytes, 6);
    bytes
}

/// Opcodes with plausible arguments, in any order.
fn opcodes(choices: &mut Choices<'_>) -> Vec<u8> {
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

fn compressed(choices: &mut Choices<'_>) -> Vec<u8> {
    // Complete files of the formats that parkade reads but this crate does not write.
    const XZ: &[u8] = include_bytes!("../../../recording/tests/data/snapshot.xz.bin");
    const ZSTD: &[u8] = include_bytes!("../../../recording/tests/data/snapshot.zst.bin");
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

/// Returns whether the reader accepts the file.
///
/// # Panics
/// If writing the recording in both styles and reading it back does not yield the same recording.
pub fn is_read_again(bytes: &[u8]) -> bool {
    let Ok(mut recording) = read(bytes) else { return false };
    recording.tolerated = Default::default();
    let again = |recording: &Recording, style| {
        read(&write(recording, style)).expect("a recording that was read can be written and read again")
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
    true
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
