//! The error of reading a recording.

use std::io;
use std::path::PathBuf;

use crate::compression::DecompressError;
use crate::format::FormatError;
use crate::pickle::PickleError;

/// Why a recording could not be read. Displays as one line.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the system says; part of the message.
        cause: io::Error,
    },
    /// It could not be decompressed, or is another kind of file.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// Its pickle is damaged, or would run code.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// It is a sound pickle, but its contents are not a snapshot's.
    #[error(transparent)]
    Format(#[from] FormatError),
}
