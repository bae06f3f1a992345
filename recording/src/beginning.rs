//! Telling snapshot files from others by how they begin, without reading them whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::compression;

/// How much of a file is read, in bytes. A Zstandard block, the least that can be decompressed, is at most 128 KiB long.
const HEAD: u64 = 1 << 18;
/// How much of the decompressed data is looked at, in bytes.
const LOOKED_AT: u64 = 1 << 12;
/// What the outermost object of a snapshot contains near its beginning, or the first segment of a bare list of segments.
const NAMES: [&[u8]; 4] = [b"segments", b"device_traces", b"total_size", b"allocator_settings"];

/// Whether a file begins as a snapshot does: a pickle, plain or compressed, that names a snapshot's parts. What follows may still be damaged.
///
/// # Errors
/// If the file cannot be opened or read.
pub fn begins_as_snapshot(path: impl AsRef<Path>) -> io::Result<bool> {
    let mut bytes = Vec::new();
    File::open(path)?.take(HEAD).read_to_end(&mut bytes)?;
    let head = compression::beginning(&bytes, LOOKED_AT);
    // The opcodes for a protocol, a mark, an empty dict or an empty list.
    let is_pickle = matches!(head.first(), Some(0x80 | b'(' | b'}' | b']'));
    Ok(is_pickle && NAMES.iter().any(|name| head.windows(name.len()).any(|window| window == *name)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_kind_of_snapshot_is_known_by_its_beginning_and_nothing_else_is() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let mut found = 0;
        for file in fs::read_dir(folder).expect("a folder") {
            let path = file.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
            let is_snapshot = name != "make.py" && !name.starts_with("n.");
            assert_eq!(begins_as_snapshot(&path).expect("readable"), is_snapshot, "{name}");
            found += usize::from(is_snapshot);
        }
        assert!(found > 10, "{found}");
    }
}
