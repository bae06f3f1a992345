//! Recordings: PyTorch memory snapshot files (`_dump_snapshot`, `memory_snapshot()`), read into plain, checked data.
//!
//! `container` unpacks, `pickle` reads the pickle without running any of it, `format` makes a [`Recording`] of it,
//! `write` makes a pickle of a recording. Every version of the format since 1.x is read (spec 7.8), and a file from a
//! stranger can at worst be refused: nothing is executed, memory and time are bounded by the file's length.

#![forbid(unsafe_code)]

pub mod compression;
mod data;
mod error;
mod format;
pub mod message;
mod pickle;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use data::{
    Action, Annotation, Block, BlockState, DeviceRecording, Entry, Frame, PoolId, PoolTable, RecordedSettings, Recording,
    Segment, StackId, StackTable, Tolerated,
};
pub use error::ReadError;
pub use format::{FormatError, FormatProblem, Place, write};
pub use pickle::{PickleError, PickleProblem, Style, memory_bound};

use compression::DecompressError;

/// Reads a recording from a file's bytes: a pickle, plain or packed with gzip, xz or Zstandard.
///
/// Memory in use beside `bytes` stays below the unpacked size (bounded by [`compression::decompressed_limit`]) plus
/// [`memory_bound`] of it plus the recording (48 bytes for an entry; at most six times the unpacked size, usually 0.7).
///
/// # Errors
/// [`ReadError`], a line that names the place, what is wrong there, and often what to do.
pub fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    let unpacked = compression::decompress(bytes)?;
    let loaded = pickle::load(&unpacked)?;
    Ok(format::read_snapshot(&loaded)?)
}

/// Reads a recording from a file, whatever its name.
///
/// # Errors
/// As [`read`], and [`ReadError::File`] if the file cannot be read or is larger than [`compression::LARGEST`].
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
        return Err(DecompressError::TooLarge { limit: compression::LARGEST, packed: length }.into());
    }
    read(&bytes)
}

/// How much of a file is looked at before the rest is read, in bytes.
const HEAD: u64 = 1 << 16;

/// Refuses what is no recording whatever follows, so that a disk image or an endless device is not read whole first.
fn refuse_by_head(head: &[u8]) -> Result<(), ReadError> {
    match read(head) {
        Err(error @ ReadError::Decompress(DecompressError::OtherKind { .. })) => Err(error),
        Err(ReadError::Pickle(error)) if matches!(error.problem, PickleProblem::UnknownOpcode { .. }) => Err(error.into()),
        _ => Ok(()),
    }
}
