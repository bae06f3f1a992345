//! Access to the files that commands read: the machine's files, or those that the [surroundings](super::surroundings) provide.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::surroundings::provided;

/// A file that is being read.
pub type Opened = Box<dyn Read>;

/// Opens a file, and returns its length; pipes and devices have none.
///
/// # Errors
/// It cannot be opened.
pub fn open(path: &Path) -> io::Result<(Opened, Option<u64>)> {
    if let Some(here) = provided() {
        let (file, length) = here.open(path)?;
        return Ok((Box::new(file), Some(length)));
    }
    let file = File::open(path)?;
    let length = file.metadata().ok().filter(fs::Metadata::is_file).map(|data| data.len());
    Ok((Box::new(file), length))
}

/// Reads an entire file.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.0.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns whether the path leads to a file, as opposed to a folder, a pipe or nothing.
pub fn is_file(path: &Path) -> bool {
    provided().map_or_else(|| path.is_file(), |here| here.is_file(path))
}

/// Returns whether the path leads to a folder.
pub fn is_folder(path: &Path) -> bool {
    provided().map_or_else(|| path.is_dir(), |here| here.is_folder(path))
}

/// Returns whether the path leads to anything.
pub fn exists(path: &Path) -> bool {
    provided().map_or_else(|| path.exists(), |here| here.is_file(path) || here.is_folder(path))
}

/// Returns the length of a file; 0 if it is not a file.
pub fn length(path: &Path) -> u64 {
    match provided() {
        Some(here) => here.open(path).map_or(0, |(_, length)| length),
        None => fs::metadata(path).map_or(0, |data| if data.is_file() { data.len() } else { 0 }),
    }
}

/// Returns everything in a folder, in no particular order.
///
/// # Errors
/// The folder cannot be read.
pub fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match provided() {
        Some(here) => Ok(here.entries(folder)),
        None => fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect(),
    }
}
