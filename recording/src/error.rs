//! The one error of reading a recording.

use std::io;
use std::path::PathBuf;

use crate::compression::DecompressError;
use crate::format::FormatError;
use crate::pickle::PickleError;

/// Why a recording could not be read; the display is one line.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file itself could not be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the system says; the display has it.
        cause: io::Error,
    },
    /// It could not be unpacked, or is no recording at all.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// Its pickle is damaged, or would run code.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// Its contents cannot be true.
    #[error(transparent)]
    Format(#[from] FormatError),
}
