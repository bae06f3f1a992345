#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod beginning;
pub mod compression;
mod data;
mod error;
mod format;
pub mod message;
mod pickle;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use beginning::begins_as_snapshot;
pub use data::{
    Action, Annotation, Block, BlockState, DeviceRecording, Entry, Frame, PoolId, PoolTable, RecordedSettings, Recording,
    Segment, StackId, StackTable, Tolerated,
};
pub use error::ReadError;
pub use format::{FormatError, FormatProblem, Place, write};
pub use pickle::{PickleError, PickleProblem, Style, memory_bound};

use compression::DecompressError;

/// Reads a recording from the bytes of a file: a pickle, plain or compressed with gzip, xz or Zstandard.
///
/// Memory in use, in addition to `bytes`, is at most the decompressed size (bounded by
/// [`compression::decompressed_limit`]), plus [`memory_bound`] of that size, plus the recording.
/// An entry of a recording takes 48 bytes; a whole recording is usually 0.7 times the
/// decompressed size and at most six times.
///
/// # Errors
/// [`ReadError`]: one line with the place, what is wrong there and, often, what to do about it.
pub fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    let decompressed = compression::decompress(bytes)?;
    let text = DecompressError::OtherKind { kind: compression::TEXT };
    let loaded = pickle::load(&decompressed)
        .map_err(|error| if compression::is_text(&decompressed) { ReadError::from(text) } else { error.into() })?;
    Ok(format::read_snapshot(&loaded)?)
}

/// Reads a recording from a file. The file's name does not matter.
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
    file.take(compression::LARGEST + 1 - HEAD).read_to_end(&mut bytes).map_err(failed)?;
    let length = bytes.len() as u64;
    if length > compression::LARGEST {
        return Err(DecompressError::TooLarge { limit: compression::LARGEST, length }.into());
    }
    read(&bytes)
}

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
