//! The recordings of real runs that are part of the repository, in `conformance/recordings`.
//!
//! A recording is a snapshot file, `NAME.pickle.xz`, together with the program's final `memory_stats()` in
//! `NAME.stats.json`. Neither file contains the memory limit of the run, but the name does ([`limit_bytes_of`]).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use parkade_recording::{DeviceRecording, ReadError, Recording};
use parkade_replay::{DeviceVerdict, ReplaySettings, StatsFile, StatsFileError, VerifyError, VerifyOptions, verify_device};
use thiserror::Error;

const GIB: u64 = 1 << 30;
/// The file name ending of recordings.
const ENDING: &str = ".pickle.xz";

/// A recording and the options for verifying it.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// The file's name without its ending.
    pub name: String,
    /// The contents of the file.
    pub recording: Recording,
    /// The run's settings, memory limit and final stats.
    pub options: VerifyOptions,
}

/// The reason why a recording could not be read.
#[derive(Debug, Error)]
pub enum ShippedError {
    /// The folder does not exist. The recordings are part of the repository, not of the published crate.
    #[error("no recordings: there is no folder {}; the recordings are part of parkade's repository, not of the published crate", folder.display())]
    NoFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder or the stats file could not be read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// The system's error; part of the message.
        cause: io::Error,
    },
    /// The snapshot file could not be read.
    #[error("{}: {cause}", path.display())]
    Recording {
        /// Its path.
        path: PathBuf,
        /// The error; part of the message.
        cause: Box<ReadError>,
    },
    /// No device in the snapshot file has a trace.
    #[error("{}: no device has a trace; was the memory history recorded?", path.display())]
    NoTrace {
        /// The file's path.
        path: PathBuf,
    },
    /// The stats file is not a JSON dictionary of integers.
    #[error("{}: not a dictionary of integers: {cause}", path.display())]
    Json {
        /// Its path.
        path: PathBuf,
        /// The error; part of the message.
        cause: serde_json::Error,
    },
    /// The stats file lacks a key.
    #[error("{}: {cause}", path.display())]
    Stats {
        /// Its path.
        path: PathBuf,
        /// The error; part of the message.
        cause: StatsFileError,
    },
    /// PyTorch refuses the settings in the snapshot file.
    #[error("{}: {cause}", path.display())]
    Settings {
        /// The file's path.
        path: PathBuf,
        /// The reason; part of the message.
        cause: Box<VerifyError>,
    },
}

/// Returns the repository's folder with recordings. It exists only in a checkout of the repository.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings")
}

/// Returns the memory limit of a run by the name of its recording; `None` for a run without a
/// limit.
///
/// `limit16` in a name is 16 GiB. The names of `cuda_graph.limit1`, `mempool_oom*` and `*_gc.*` stand for limits that are not a
/// whole number of GiB.
#[must_use]
pub fn limit_bytes_of(name: &str) -> Option<u64> {
    if name == "cuda_graph.limit1" {
        // This is 1.15 GiB, which is not a multiple of 2 MiB.
        return Some(GIB * 115 / 100);
    }
    if name.starts_with("mempool_oom") {
        // This is one byte below 400 MiB, because the limit was set as a fraction of the device's
        // memory.
        return Some((400 << 20) - 1);
    }
    if name.contains("_gc.") {
        return Some(260 << 20);
    }
    let (_, after) = name.split_once("limit")?;
    let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    after[..digits].parse::<u64>().ok()?.checked_mul(GIB)
}

/// Returns the names of all recordings in the repository, sorted.
///
/// # Errors
/// Those of [`names_in`].
pub fn names() -> Result<Vec<String>, ShippedError> {
    names_in(&folder())
}

/// Returns the names of all recordings in a folder, sorted; subfolders are not searched.
///
/// # Errors
/// [`ShippedError::NoFolder`] if the folder does not exist, [`ShippedError::Io`] if it cannot be listed.
pub fn names_in(folder: &Path) -> Result<Vec<String>, ShippedError> {
    check_folder(folder)?;
    let failed = |cause| ShippedError::Io { path: folder.to_owned(), cause };
    let mut names = Vec::new();
    for file in std::fs::read_dir(folder).map_err(failed)? {
        let file = file.map_err(failed)?.file_name();
        names.extend(file.to_string_lossy().strip_suffix(ENDING).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Reads a recording from the repository, for example `gpt2_varlen.limit12_oom`.
///
/// # Errors
/// Those of [`read_from`].
pub fn read(name: &str) -> Result<Shipped, ShippedError> {
    read_from(&folder(), name)
}

/// Reads a recording from a folder.
///
/// # Errors
/// [`ShippedError::NoFolder`] if the folder does not exist, and a different error if one of the recording's two files
/// is missing or damaged.
pub fn read_from(folder: &Path, name: &str) -> Result<Shipped, ShippedError> {
    check_folder(folder)?;
    let path = folder.join(format!("{name}{ENDING}"));
    let stats_path = folder.join(format!("{name}.stats.json"));
    let recording = match parkade_recording::read_file(&path) {
        Ok(recording) if recording.devices.iter().all(|device| device.trace.is_empty()) => {
            return Err(ShippedError::NoTrace { path });
        }
        Ok(recording) => recording,
        Err(ReadError::File { path, cause }) => return Err(ShippedError::Io { path, cause }),
        Err(cause) => return Err(ShippedError::Recording { path, cause: Box::new(cause) }),
    };
    let settings = ReplaySettings::of_recording(recording.settings.as_ref())
        .map_err(|cause| ShippedError::Settings { path, cause: Box::new(cause) })?;
    let stats_file = Some(read_stats(&stats_path)?);
    let options = VerifyOptions { settings, limit_bytes: limit_bytes_of(name), stats_file };
    Ok(Shipped { name: name.to_owned(), recording, options })
}

fn read_stats(path: &Path) -> Result<StatsFile, ShippedError> {
    let text = std::fs::read(path).map_err(|cause| ShippedError::Io { path: path.to_owned(), cause })?;
    let entries: BTreeMap<String, i64> =
        serde_json::from_slice(&text).map_err(|cause| ShippedError::Json { path: path.to_owned(), cause })?;
    StatsFile::new(entries).map_err(|cause| ShippedError::Stats { path: path.to_owned(), cause })
}

fn check_folder(folder: &Path) -> Result<(), ShippedError> {
    if folder.is_dir() { Ok(()) } else { Err(ShippedError::NoFolder { folder: folder.to_owned() }) }
}

impl Shipped {
    /// Returns the first device with a trace.
    ///
    /// # Panics
    /// If `recording` was changed so that no device has a trace; [`read_from`] refuses such files.
    #[must_use]
    pub fn device(&self) -> &DeviceRecording {
        self.recording.devices.iter().find(|device| !device.trace.is_empty()).expect("there is a device with a trace")
    }

    /// Verifies a device of the recording, or a changed copy of it, under the recording's own options.
    ///
    /// # Errors
    /// Those of [`verify_device`].
    pub fn verify(&self, device: &DeviceRecording) -> Result<DeviceVerdict, VerifyError> {
        verify_device(device, &self.options, &mut |_| ())
    }

    /// Returns a copy of [`Shipped::device`] as if the first `lost` entries of its trace had been overwritten in the
    /// ring buffer.
    #[must_use]
    pub fn without_beginning(&self, lost: usize) -> DeviceRecording {
        let device = self.device();
        let trace = device.trace.get(lost..).unwrap_or_default().to_vec();
        DeviceRecording { trace, ..device.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_is_an_error_that_says_where_the_recordings_are() {
        let folder = Path::new("no/such/folder");
        for error in [names_in(folder).err(), read_from(folder, "any").err()] {
            let error = error.expect("an error");
            assert!(matches!(error, ShippedError::NoFolder { .. }), "{error:?}");
            assert!(error.to_string().contains("there is no folder no/such/folder"), "{error}");
        }
    }

    #[test]
    fn a_missing_recording_is_an_error_that_names_the_file() {
        let error = read_from(Path::new(env!("CARGO_MANIFEST_DIR")), "missing").expect_err("an error");
        assert!(error.to_string().contains("missing.pickle.xz: "), "{error}");
    }

    #[test]
    fn limits_are_in_the_names() {
        let gib = |name| limit_bytes_of(name).map(|limit| limit >> 30);
        assert_eq!(gib("gpt2_varlen.limit12_oom"), Some(12));
        assert_eq!(gib("prefetch_streams.limit6"), Some(6));
        assert_eq!(gib("deep_mlp.default"), None);
        assert_eq!(gib("any.limit99999999999"), None);
    }
}
