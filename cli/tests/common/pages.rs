//! Makes pages of `parkade report`, and reads their data back.

use std::fs;
use std::io::Read;

use flate2::read::GzDecoder;
use parkade_analysis::timeline::{Column, HeapLog, Packed};
use parkade_recording::{Frame, StackTable};
use serde_json::Value;

use super::{Folder, call};

/// A recording of the repository.
pub(crate) fn shipped(name: &str) -> String {
    format!("{}/../conformance/recordings/{name}.pickle.xz", env!("CARGO_MANIFEST_DIR"))
}

/// Makes a page; returns it.
pub(crate) fn page(folder: &Folder, file: &str, more: &[&str]) -> String {
    let target = format!("{}/page.html", folder.path());
    let run = call(&[&["report", file, "-o", &target, "--force"], more].concat());
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    fs::read_to_string(&target).expect("a page")
}

/// The text before the data of a device.
const BEGIN: &str = "<script type=\"application/octet-stream\" class=\"data\">";

/// The data that a page's script draws, for each device: the object and the log.
pub(crate) fn pieces(page: &str) -> Vec<(Value, HeapLog)> {
    let texts = page.split(BEGIN).skip(1).map(|rest| rest.split_once("</script>").expect("an end").0);
    texts.map(piece).map(|(object, packed)| (object, packed.unpack().expect("a log"))).collect()
}

/// The same, with the numbers of another column.
pub(crate) fn pieces_with(page: &str, column: &str) -> Vec<(Value, HeapLog, Vec<u64>)> {
    let texts = page.split(BEGIN).skip(1).map(|rest| rest.split_once("</script>").expect("an end").0);
    let with = |(object, packed): (Value, Packed)| {
        let column = packed.columns.iter().find(|one| one.name == column).expect("the column");
        (object, packed.unpack().expect("a log"), sums(&column.bytes))
    };
    texts.map(piece).map(with).collect()
}

/// Numbers as `pack_numbers` packs them.
fn sums(bytes: &[u8]) -> Vec<u64> {
    let (mut numbers, mut sum, mut number, mut shift) = (Vec::new(), 0_u64, 0_u64, 0);
    for byte in bytes {
        number |= u64::from(byte & 127) << shift;
        shift += 7;
        if byte & 128 == 0 {
            let folded = number >> 1;
            sum = sum.wrapping_add(if number & 1 == 1 { !folded } else { folded });
            numbers.push(sum);
            (number, shift) = (0, 0);
        }
    }
    numbers
}

fn piece(text: &str) -> (Value, Packed) {
    let mut bytes = Vec::new();
    GzDecoder::new(from_base64(text).as_slice()).read_to_end(&mut bytes).expect("gzip");
    let (length, rest) = bytes.split_first_chunk().expect("a length");
    let (object, mut rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
    let object: Value = serde_json::from_slice(object).expect("JSON");
    let log = &object["log"];
    let mut packed = Packed {
        base: u64::from_str_radix(log["base"].as_str().expect("hexadecimal"), 16).expect("hexadecimal"),
        unit: log["unit"].as_u64().expect("a unit"),
        blocks: log["blocks"].as_u64().expect("a number") as usize,
        segments: log["segments"].as_u64().expect("a number") as usize,
        ..Packed::default()
    };
    let number = |value: &Value| value.as_str().expect("text").parse::<u64>().expect("a number");
    packed.streams = log["streams"].as_array().expect("streams").iter().map(number).collect();
    packed.pools = log["pools"].as_array().expect("pools").iter().map(|pool| (number(&pool[0]), number(&pool[1]))).collect();
    // The page has the frames of its stacks, by the same numbers.
    let mut table = StackTable::default();
    for (place, _) in object["stacks"].as_array().expect("stacks").iter().enumerate() {
        let frame = Frame { filename: "stack".into(), line: place as u32, name: "stack".into() };
        let frame = table.intern_frame(frame);
        packed.stacks.push(table.intern_stack(&[frame]));
    }
    for column in object["columns"].as_array().expect("columns") {
        let (bytes, others) = rest.split_at(column[1].as_u64().expect("a length") as usize);
        packed.columns.push(Column { name: column[0].as_str().expect("a name").to_owned(), bytes: bytes.to_vec() });
        rest = others;
    }
    assert!(rest.is_empty());
    (object, packed)
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{c} is no digit"),
    };
    let digits: Vec<u8> = text.trim().bytes().filter(|&c| c != b'=').map(digit).collect();
    let chunk = |chunk: &[u8]| {
        let bits = chunk.iter().fold(0_u32, |bits, &digit| bits << 6 | u32::from(digit)) << (6 * (4 - chunk.len()));
        bits.to_be_bytes()[1..chunk.len()].to_vec()
    };
    digits.chunks(4).flat_map(chunk).collect()
}
