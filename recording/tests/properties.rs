//! Tests that reading any bytes ends without a panic and that a recording can be written and read again.

use std::sync::OnceLock;

use parkade_recording::{FileFields, ReadError, Recording, Style, read, read_file, write};
use proptest::collection::vec;
use proptest::prelude::*;

fn fixture(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns small valid files in several protocols, for the tests to damage.
fn seeds() -> &'static [Vec<u8>] {
    static SEEDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let mut seeds: Vec<Vec<u8>> = (0..6).map(|number| fixture(&format!("snapshot.protocol{number}.pickle"))).collect();
        let newer = read(&fixture("newer.pickle")).expect("a fixture");
        seeds.push(write(&newer, Style::Cpp));
        seeds.push(fixture("old.pickle"));
        seeds.extend(["snapshot.gz.bin", "snapshot.xz.bin", "snapshot.zst.bin"].map(fixture));
        seeds
    })
}

/// Checks that writing and reading produce the same recording if the bytes are a recording.
fn survives(bytes: &[u8]) {
    let Ok(mut recording) = read(bytes) else {
        return;
    };
    recording.tolerated = Default::default();
    let again = read(&write(&recording, Style::Python)).expect("what was read can be written");
    assert_eq!(normal(again), normal(recording));
}

/// Returns the recording without NaN, which is not equal to itself, and without the fields that show its release.
fn normal(mut recording: Recording) -> Recording {
    if let Some(settings) = &mut recording.settings {
        settings.garbage_collection_threshold = settings.garbage_collection_threshold.filter(|value| !value.is_nan());
    }
    // A snapshot is written in the form used by 2.11 or later.
    recording.fields = FileFields::default();
    recording
}

/// Generates opcodes with plausible arguments, which get further than random bytes do.
fn opcode() -> impl Strategy<Value = Vec<u8>> {
    let one = proptest::sample::select(b"(.012N)]}ludtesaRbQo\x85\x86\x87\x88\x89\x8f\x90\x94".to_vec());
    prop_oneof![
        8 => one.prop_map(|code| vec![code]),
        3 => any::<u8>().prop_map(|byte| vec![b'K', byte]),
        3 => (0_u8..8).prop_map(|slot| vec![b'h', slot]),
        2 => (0_u8..8).prop_map(|slot| vec![b'q', slot]),
        1 => any::<i32>().prop_map(|value| [b"J".to_vec(), value.to_le_bytes().to_vec()].concat()),
        1 => any::<u32>().prop_map(|slot| [b"r".to_vec(), slot.to_le_bytes().to_vec()].concat()),
        1 => vec(any::<u8>(), 0..20).prop_map(|bytes| [vec![0x8a, bytes.len() as u8], bytes].concat()),
        2 => proptest::sample::select(vec!["segments", "device_traces", "action", "alloc", "size", "blocks", "address"])
            .prop_map(|text| [vec![0x8c, text.len() as u8], text.as_bytes().to_vec()].concat()),
        1 => any::<[u8; 3]>().prop_map(|bytes| bytes.to_vec()),
    ]
}

/// Generates complete opcodes, as they occur in the dicts of entries.
fn dict_opcode() -> impl Strategy<Value = Vec<u8>> {
    let key = proptest::sample::select(vec!["action", "alloc", "addr", "size", "stream", "frames", "device_traces"]);
    prop_oneof![
        4 => Just(b"}".to_vec()),
        4 => Just(b"(".to_vec()),
        4 => Just(b"u".to_vec()),
        2 => proptest::sample::select(b"N]se\x85\x86\x94a0".to_vec()).prop_map(|code| vec![code]),
        8 => key.prop_map(|text| [vec![0x8c, text.len() as u8], text.as_bytes().to_vec()].concat()),
        4 => any::<u8>().prop_map(|byte| vec![b'K', byte]),
        2 => (0_u8..4).prop_map(|slot| vec![b'h', slot]),
        2 => (0_u8..4).prop_map(|slot| vec![b'q', slot]),
    ]
}

/// Returns the result of reading, without file offsets.
fn outcome(bytes: &[u8]) -> Result<Recording, String> {
    read(bytes).map_err(|error| match error {
        ReadError::Pickle(error) => error.problem.to_string(),
        other => other.to_string(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_survived(bytes in vec(any::<u8>(), 0..400)) {
        survives(&bytes);
    }

    #[test]
    fn random_opcodes_are_survived(opcodes in vec(opcode(), 0..200)) {
        let mut bytes = opcodes.concat();
        bytes.push(b'.');
        survives(&bytes);
    }

    /// The shortcut for simple dicts does not change the result. `N0` after EMPTY_DICT (None, popped immediately) disables
    /// it.
    #[test]
    fn the_short_cut_is_only_a_short_cut(opcodes in vec(dict_opcode(), 0..40)) {
        let plain = [opcodes.concat(), b".".to_vec()].concat();
        let detour: Vec<Vec<u8>> =
            opcodes.into_iter().map(|code| if code == b"}" { b"}N0".to_vec() } else { code }).collect();
        let detour = [detour.concat(), b".".to_vec()].concat();
        prop_assert_eq!(outcome(&plain), outcome(&detour));
    }

    #[test]
    fn damaged_snapshots_are_survived(
        seed in 0..11_usize,
        damage in vec((any::<proptest::sample::Index>(), any::<u8>(), 0..4_u8), 1..6),
    ) {
        let mut bytes = seeds()[seed].clone();
        for (place, byte, kind) in damage {
            if bytes.is_empty() {
                break;
            }
            let at = place.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        survives(&bytes);
    }
}

#[test]
fn snapshots_cut_at_every_byte_are_refused() {
    for (number, seed) in seeds().iter().take(8).enumerate() {
        for length in 0..seed.len() {
            assert!(read(&seed[..length]).is_err(), "seed {number} cut at {length}");
        }
        // Bytes after STOP are ignored.
        let longer = [&seed[..], b"anything"].concat();
        assert_eq!(read(&longer).expect("a sound file"), read(seed).expect("a sound file"));
    }
}

#[test]
fn single_flipped_bits_are_survived() {
    let seed = &seeds()[4];
    for at in 0..seed.len() {
        let mut bytes = seed.clone();
        bytes[at] ^= 1 << (at % 8);
        survives(&bytes);
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = read_file("/nowhere/at.all").expect_err("no such file");
    assert!(error.to_string().starts_with("/nowhere/at.all: "), "{error}");
}
