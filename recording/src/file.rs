//! Reads a file: decompresses it and reads its pickle and the snapshot in the pickle, in one pass. Also recognises snapshot
//! files by their beginning, without reading the entire file, and finds the pickle in a page written by PyTorch's
//! `torch.cuda._memory_viz` (`trace_plot`, `segment_plot`), where it is in base64.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, Engine as _, GeneralPurpose, GeneralPurposeConfig};

use crate::compression::{self, Compression, DecompressError};
use crate::format::{self, FormatError, FormatProblem};
use crate::json::{self, JsonError};
use crate::pickle::{self, Length, PickleError, PickleProblem};
use crate::recording::Recording;

/// Reads a recording from the bytes of a file: a pickle, plain or compressed with gzip, xz or Zstandard (decompressed in
/// parallel); the same snapshot as JSON; or a page from `torch.cuda._memory_viz` that contains it. If there are several
/// consecutive pickles, the recording is the last one.
///
/// Besides `bytes`, the memory in use is at most [`memory_bound`](crate::memory_bound) of the decompressed size (bounded by
/// [`compression::decompressed_limit`]), plus its strings, plus the recording. An entry in a recording takes 48 bytes; an
/// entire recording usually takes 0.7 times the decompressed size and at most six times.
///
/// # Errors
/// Returns [`ReadError`]: one line that states the position, the problem there and, often, a remedy.
pub fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    let loaded = match compression::detect(bytes) {
        Compression::None if is_text_form(bytes) => return read_text_form(bytes),
        Compression::None => {
            compression::refuse_other_kinds(bytes)?;
            pickle::load_bytes(bytes)
        }
        _ => {
            let length = Length::Estimated(bytes.len().saturating_mul(EXPANDS).min(MOST_ESTIMATED));
            compression::decompress_beside(bytes, |next_piece| pickle::load(length, next_piece))?
        }
    };
    let loaded = loaded.map_err(|error| {
        let is_text = compression::is_text(&compression::beginning(bytes, compression::TEXT_HEAD as u64));
        if is_text { ReadError::from(DecompressError::OtherKind { kind: compression::TEXT }) } else { error.into() }
    })?;
    Ok(format::read_snapshot(&loaded)?)
}

/// Returns whether the bytes are JSON or a web page.
fn is_text_form(bytes: &[u8]) -> bool {
    let refused = compression::refuse_other_kinds(bytes);
    matches!(refused, Err(DecompressError::OtherKind { kind: compression::JSON | compression::PAGE }))
}

/// Reads JSON, or the pickle in a web page.
fn read_text_form(bytes: &[u8]) -> Result<Recording, ReadError> {
    let other = |kind| ReadError::from(DecompressError::OtherKind { kind });
    if bytes.trim_ascii_start().starts_with(b"<") {
        let pickle = snapshot_in(bytes).ok_or_else(|| other(compression::PAGE))?;
        return Ok(format::read_snapshot(&pickle::load_bytes(&pickle)?)?);
    }
    let names_parts =
        || NAMES.iter().any(|name| bytes.windows(name.len()).take(LOOKED_AT as usize).any(|window| window == *name));
    let loaded = match json::load(bytes) {
        Ok(loaded) => loaded,
        Err(error) if error.is_cut_short() || names_parts() => return Err(error.into()),
        // The lines of a log may begin with a bracket.
        Err(_) if compression::is_text(bytes) => return Err(other(compression::TEXT)),
        Err(_) => return Err(other(compression::JSON)),
    };
    let first = loaded.objects.as_items(loaded.root).and_then(|items| items.first());
    if first.is_some_and(|&first| loaded.objects.as_dict(first).is_none()) {
        return Err(other(compression::JSON));
    }
    format::read_snapshot(&loaded).map_err(|error| match error.problem {
        FormatProblem::NotASnapshot { .. } => other(compression::JSON),
        _ => error.into(),
    })
}

/// The approximate ratio of a compressed recording's decompressed length to its file's length.
const EXPANDS: usize = 32;
/// The maximum number of bytes to reserve for a compressed file.
const MOST_ESTIMATED: usize = 1 << 30;

/// Reads a recording from a file. The file's name does not matter. An uncompressed file is not kept in memory.
///
/// # Errors
/// Returns the errors of [`read`]; [`ReadError::File`] if the file cannot be read; and [`DecompressError::TooLarge`] if it is
/// larger than [`compression::LARGEST`].
pub fn read_file(path: impl AsRef<Path>) -> Result<Recording, ReadError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|cause| ReadError::File { path: path.to_owned(), cause })?;
    // A pipe has no length.
    let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|data| data.len());
    read_opened(path, file, length)
}

/// Reads a recording from a file that the caller has opened, whose length may be unknown. `path` is for error messages.
///
/// # Errors
/// Returns the errors of [`read_file`].
pub fn read_opened(path: &Path, mut file: impl Read, length: Option<u64>) -> Result<Recording, ReadError> {
    let failed = |cause| ReadError::File { path: path.to_owned(), cause };
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut bytes).map_err(failed)?;
    refuse_by_head(&bytes)?;
    if is_text_form(&bytes) {
        let length = file.take(LARGEST_TEXT + 1 - HEAD).read_to_end(&mut bytes).map_err(failed)?;
        return if length as u64 > LARGEST_TEXT - HEAD {
            Err(ReadError::TextTooLarge { limit: LARGEST_TEXT })
        } else {
            read(&bytes)
        };
    }
    let mut rest = file.take(compression::LARGEST + 1 - HEAD);
    if compression::detect(&bytes) == Compression::None {
        compression::refuse_other_kinds(&bytes)?;
        return read_pieces(bytes, &mut rest, length, &failed);
    }
    rest.read_to_end(&mut bytes).map_err(failed)?;
    refuse_large(bytes.len() as u64)?;
    read(&bytes)
}

/// Reads an uncompressed file piece by piece.
fn read_pieces(
    head: Vec<u8>,
    rest: &mut dyn Read,
    length: Option<u64>,
    failed: &dyn Fn(io::Error) -> ReadError,
) -> Result<Recording, ReadError> {
    let known = |length| Length::Known(usize::try_from(length).unwrap_or(usize::MAX));
    let length = length.map_or(Length::Estimated(head.len()), known);
    let (mut read, mut outcome, mut head) = (head.len() as u64, Ok(()), Some(head));
    let loaded = pickle::load(length, &mut |input| match head.take() {
        Some(head) => input.extend_from_slice(&head),
        None => match (&mut *rest).take(PIECE).read_to_end(input) {
            Ok(count) => read += count as u64,
            Err(cause) => outcome = Err(cause),
        },
    });
    outcome.map_err(failed)?;
    refuse_large(read)?;
    Ok(format::read_snapshot(&loaded?)?)
}

fn refuse_large(length: u64) -> Result<(), DecompressError> {
    let limit = compression::LARGEST;
    if length > limit { Err(DecompressError::TooLarge { limit, length }) } else { Ok(()) }
}

/// The size of the pieces in which a file is read, in bytes.
const PIECE: u64 = 1 << 18;
/// The largest JSON file or web page that is read, in bytes: these are held in memory completely.
const LARGEST_TEXT: u64 = 1 << 30;
/// The length of a file's beginning that is read and checked before the rest, in bytes.
const HEAD: u64 = 1 << 16;

/// Refuses files whose beginning shows that they cannot be recordings, so that a disk image or an endless device is not read
/// in full.
fn refuse_by_head(head: &[u8]) -> Result<(), ReadError> {
    match read(head) {
        Err(error @ ReadError::Decompress(DecompressError::OtherKind { .. })) => Err(error),
        Err(ReadError::Pickle(error)) if matches!(error.problem, PickleProblem::UnknownOpcode { .. }) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The reason why a recording could not be read. Displayed as one line.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error; part of the message.
        cause: io::Error,
    },
    /// The file could not be decompressed or is of a different kind.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// The file's pickle is damaged, or would run code.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// The file's JSON is damaged or cut short.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The file is JSON or a web page and is too large.
    #[error("JSON and web pages are read only up to {limit} bytes; pass the file that torch.cuda.memory._dump_snapshot writes")]
    TextTooLarge {
        /// The largest size that is read, in bytes.
        limit: u64,
    },
    /// The file is a valid pickle, but it does not contain a snapshot.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl ReadError {
    /// Returns whether the file is text, such as a log, instead of a snapshot.
    #[must_use]
    pub fn is_log(&self) -> bool {
        use compression::{TEXT, UTF_16};
        matches!(self, ReadError::Decompress(DecompressError::OtherKind { kind: TEXT | UTF_16 }))
    }
}

/// The length of the beginning of a file to read, in bytes. A Zstandard block, the smallest unit that can be decompressed, is
/// at most 128 KiB.
const BEGINNING: u64 = 1 << 18;
/// The length of the decompressed data to examine, in bytes.
const LOOKED_AT: u64 = 1 << 12;
/// Names that occur near the beginning of a snapshot's outermost object, or of the first segment in a bare list of segments.
const NAMES: [&[u8]; 4] = [b"segments", b"device_traces", b"total_size", b"allocator_settings"];

/// Returns whether a file begins like a snapshot: a pickle, plain or compressed, that names a snapshot's parts. The rest of
/// the file may still be damaged.
///
/// # Errors
/// Fails if the file cannot be opened or read.
pub fn begins_as_snapshot(path: impl AsRef<Path>) -> io::Result<bool> {
    opened_as_snapshot(File::open(path)?)
}

/// Returns the same for a file that the caller has opened.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn opened_as_snapshot(file: impl Read) -> io::Result<bool> {
    let mut bytes = Vec::new();
    file.take(BEGINNING).read_to_end(&mut bytes)?;
    let head = compression::beginning(&bytes, LOOKED_AT);
    // These are the opcodes for a protocol, a mark, an empty dict or an empty list.
    let is_pickle = matches!(head.first(), Some(0x80 | b'(' | b'}' | b']'));
    Ok(is_pickle && NAMES.iter().any(|name| head.windows(name.len()).any(|window| window == *name)))
}

/// The text before the snapshot: a key in the list of files that the page shows.
const PAGE_KEY: &[u8] = b"\"base64\"";
/// The number of bytes at the beginning of a page in which to look for that text; in PyTorch's pages, it is within the first
/// 500.
const BEFORE_KEY: usize = 1 << 12;

/// Returns the bytes of the snapshot in a page, up to the first damage, or `None` if the page contains no snapshot.
fn snapshot_in(page: &[u8]) -> Option<Vec<u8>> {
    let head = page.get(..BEFORE_KEY).unwrap_or(page);
    let after = head.windows(PAGE_KEY.len()).position(|window| window == PAGE_KEY)? + PAGE_KEY.len();
    let value = page.get(after..)?.trim_ascii_start().strip_prefix(b":")?;
    Some(decode_base64(value.trim_ascii_start().strip_prefix(b"\"")?))
}

/// Decodes base64 up to the first character that is not a base64 digit. If the text is cut short, returns the complete bytes.
fn decode_base64(text: &[u8]) -> Vec<u8> {
    let is_digit = |symbol: &u8| symbol.is_ascii_alphanumeric() || matches!(symbol, b'+' | b'/');
    let digits = text.iter().take_while(|symbol| is_digit(symbol)).count();
    // A single digit left over after groups of four does not make a complete byte.
    let whole = if digits % 4 == 1 { digits - 1 } else { digits };
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&STANDARD, config).decode(&text[..whole]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    #[cfg_attr(target_family = "wasm", ignore = "there are no files")]
    fn every_kind_of_snapshot_is_known_by_its_beginning_and_nothing_else_is() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let mut found = 0;
        for file in fs::read_dir(folder).expect("a folder") {
            let path = file.expect("an entry").path();
            // Python caches what it imports from here.
            if path.is_dir() {
                continue;
            }
            let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
            // Most JSON files and web pages in a folder are something else.
            let is_snapshot =
                name != "make.py" && !name.starts_with("n.") && !name.ends_with(".json") && !name.ends_with(".html");
            assert_eq!(begins_as_snapshot(&path).expect("readable"), is_snapshot, "{name}");
            found += usize::from(is_snapshot);
        }
        assert!(found > 10, "{found}");
    }

    #[test]
    fn the_bytes_are_found_and_decoded() {
        let page = |value: &str| format!("<!DOCTYPE html>\nconst local_files = [{{\"name\": \"snapshot.pickle\", {value}");
        let found = |value: &str| snapshot_in(page(value).as_bytes());
        assert_eq!(found("\"base64\": \"TWFu\"}]"), Some(b"Man".to_vec()));
        assert_eq!(found("\"base64\":\"TWE=\"}]"), Some(b"Ma".to_vec()));
        assert_eq!(found("\"base64\": \"+/8\"}]"), Some(vec![0xfb, 0xff]));
        assert_eq!(found("\"base64\": \"TW"), Some(b"M".to_vec()), "cut short");
        assert_eq!(found("\"base64\": \"TWFuT"), Some(b"Man".to_vec()), "cut within a byte");
        assert_eq!(found("\"base64\": 5"), None);
        assert_eq!(found("\"base64\""), None);
        assert_eq!(found(&format!("{}\"base64\": \"TWFu\"", " ".repeat(BEFORE_KEY))), None, "too far");
    }
}
