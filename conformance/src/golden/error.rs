//! The errors of golden files.

use std::io;
use std::path::PathBuf;

use parkade::settings::SettingsError;
use parkade_recording::compression::DecompressError;
use thiserror::Error;

use super::difference::Difference;

/// Why a golden file could not be read, or its runs not checked.
#[derive(Debug, Error)]
pub enum GoldenError {
    /// There is no folder of golden files. They are part of the repository, not of the published crate.
    #[error("no golden files, which come with parkade's repository and not with the published crate: there is no folder {}", folder.display())]
    NoFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The file could not be read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// What the system says; part of the message.
        cause: io::Error,
    },
    /// The file could not be decompressed.
    #[error("{}: {cause}", path.display())]
    Decompress {
        /// Its path.
        path: PathBuf,
        /// What is wrong; part of the message.
        cause: DecompressError,
    },
    /// The file does not begin with the line `golden answers 1`.
    #[error("{}: not a golden file: its first line is not `golden answers 1`", path.display())]
    NotGolden {
        /// Its path.
        path: PathBuf,
    },
    /// A run in the file cannot be read.
    #[error("{}: damaged in the run with the header {header:.300}", path.display())]
    Damaged {
        /// The file's path.
        path: PathBuf,
        /// The header line of the run.
        header: String,
    },
    /// An answer does not say which operation it answers.
    #[error("line {line} of {run} is not the answer to an operation: {answer:.300}")]
    NoOperation {
        /// The run: its flavour and configuration.
        run: String,
        /// The answer's place in the run, from 0.
        line: usize,
        /// The answer.
        answer: String,
    },
    /// The settings of the run are refused.
    #[error("{run}: {cause}")]
    Settings {
        /// The run: its flavour and configuration.
        run: String,
        /// PyTorch's error; part of the message.
        cause: SettingsError,
    },
    /// An answer differs from the real allocator's.
    #[error(transparent)]
    Differs(#[from] Difference),
}
