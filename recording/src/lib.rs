#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod beginning;
pub mod compression;
mod dated_keys;
mod error;
mod format;
pub mod message;
mod pickle;
mod recording;
mod summary;

use std::fs::File;
use std::io::{self, Read, Take};
use std::path::Path;

pub use beginning::begins_as_snapshot;
pub use dated_keys::{DATED_KEYS, DatedKey, FieldEvidence, FileFields, Minor, Part};
pub use error::ReadError;
pub use format::{FormatError, FormatProblem, Place, write};
pub use pickle::{PickleError, PickleProblem, Style, memory_bound};
pub use recording::{
    Action, Annotation, Block, BlockState, DeviceRecording, Entry, Frame, PoolId, PoolTable, RecordedSettings, Recording,
    Segment, StackId, StackTable, Tolerated,
};
pub use summary::memory_summary;

use compression::{Compression, DecompressError};
use pickle::Length;

/// Reads a recording from the bytes of a file: a pickle, plain or compressed with gzip, xz or Zstandard. It is decompressed
/// beside the reading.
///
/// Memory in use, in addition to `bytes`, is at most [`memory_bound`] of the decompressed size (bounded by
/// [`compression::decompressed_limit`]), plus its texts, plus the recording.
/// An entry of a recording takes 48 bytes; a whole recording is usually 0.7 times the
/// decompressed size and at most six times.
///
/// # Errors
/// [`ReadError`]: one line with the place, what is wrong there and, often, what to do about it.
pub fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    let loaded = match compression::detect(bytes) {
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

/// About how many times its length a compressed recording is long.
const EXPANDS: usize = 32;
/// The most that is expected of a compressed file, in bytes: room is made for it.
const MOST_ESTIMATED: usize = 1 << 30;

/// Reads a recording from a file. The file's name does not matter. A file that is not compressed is not kept in memory.
///
/// # Errors
/// As [`read`], and [`ReadError::File`] if the file cannot be read, or [`DecompressError::TooLarge`] if it is
/// larger than [`compression::LARGEST`].
pub fn read_file(path: impl AsRef<Path>) -> Result<Recording, ReadError> {
    let path = path.as_ref();
    let failed = |cause| ReadError::File { path: path.to_owned(), cause };
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut bytes).map_err(failed)?;
    refuse_by_head(&bytes)?;
    let mut rest = file.take(compression::LARGEST + 1 - HEAD);
    if compression::detect(&bytes) == Compression::None {
        compression::refuse_other_kinds(&bytes)?;
        return read_pieces(bytes, &mut rest, &failed);
    }
    rest.read_to_end(&mut bytes).map_err(failed)?;
    refuse_large(bytes.len() as u64)?;
    read(&bytes)
}

/// Reads a file that is not compressed piece by piece.
fn read_pieces(head: Vec<u8>, rest: &mut Take<File>, failed: &dyn Fn(io::Error) -> ReadError) -> Result<Recording, ReadError> {
    let length = match rest.get_ref().metadata() {
        Ok(data) if data.is_file() => Length::Known(usize::try_from(data.len()).unwrap_or(usize::MAX)),
        // A pipe does not tell.
        _ => Length::Estimated(head.len()),
    };
    let (mut read, mut outcome, mut head) = (head.len() as u64, Ok(()), Some(head));
    let loaded = pickle::load(length, &mut |input| match head.take() {
        Some(head) => input.extend_from_slice(&head),
        None => match rest.by_ref().take(PIECE).read_to_end(input) {
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

/// How much of a file is read at a time, in bytes.
const PIECE: u64 = 1 << 18;
/// How much of a file is read and checked before the rest, in bytes.
const HEAD: u64 = 1 << 16;

/// Refuses what cannot be a recording however it continues, so that a disk image or
/// an endless device is not read whole.
fn refuse_by_head(head: &[u8]) -> Result<(), ReadError> {
    match read(head) {
        Err(error @ ReadError::Decompress(DecompressError::OtherKind { .. })) => Err(error),
        Err(ReadError::Pickle(error)) if matches!(error.problem, PickleProblem::UnknownOpcode { .. }) => Err(error.into()),
        _ => Ok(()),
    }
}
