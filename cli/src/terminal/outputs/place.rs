//! Writing one file: beside its place, on the disk, then renamed, so that it is there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::draft::{self, Draft};
use super::target::{end_of_links, folder_of};
use crate::terminal::output::Stream;

/// What is at the end of a path.
pub(super) enum Place {
    /// Nothing yet, or a file. The path is behind all links.
    File(PathBuf),
    /// A device or a pipe, which is written to as it is: nothing in it is lost. Nobody may read it.
    Device(PathBuf),
}

impl Place {
    /// Where this path leads.
    ///
    /// # Errors
    /// To a folder, to nowhere, or into a folder that is not there.
    pub(super) fn of(path: &Path) -> io::Result<Place> {
        match fs::metadata(path) {
            Ok(data) if data.is_dir() => return Err(io::Error::other("it is a folder")),
            Ok(data) if !data.is_file() => return Ok(Place::Device(path.to_owned())),
            _ => {}
        }
        let file = end_of_links(path)?;
        if file.file_name().is_none() {
            return Err(io::Error::other("it is not the name of a file"));
        }
        match fs::metadata(folder_of(&file)) {
            Ok(folder) if folder.is_dir() => Ok(Place::File(file)),
            Ok(_) => Err(io::Error::other(format!("{} is not a folder", folder_of(&file).display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(io::Error::other(format!("there is no folder {}", folder_of(&file).display())))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a file is there that would be lost.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Place::File(file) if fs::symlink_metadata(file).is_ok())
    }

    /// Removes what killed processes left in the folder.
    pub(super) fn tidy(&self) {
        if let Place::File(file) = self {
            draft::remove_left_over(folder_of(file));
        }
    }

    /// Tries what [`Place::write`] begins with.
    pub(super) fn try_beside(&self) -> io::Result<()> {
        let Place::File(file) = self else { return Ok(()) };
        Draft::beside(file).map(drop)
    }

    /// Writes it piece by piece. A file that is there is replaced only if `replaces`, also if it came after all checks.
    pub(super) fn write<T>(&self, replaces: bool, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
        let file = match self {
            Place::Device(device) => {
                return written(Stream::unnamed(OpenOptions::new().write(true).open(device)?), pieces);
            }
            Place::File(file) => file,
        };
        let draft = Draft::beside(file)?;
        let made = written(draft.file(), pieces)?;
        draft.file().sync_all()?;
        if let Ok(old) = fs::metadata(file) {
            draft.file().set_permissions(old.permissions())?;
        }
        draft.put(file, replaces)?;
        if let Ok(folder) = File::open(folder_of(file)) {
            // The file is whole already; some file systems cannot do this to a folder.
            let _ = folder.sync_all();
        }
        Ok(made)
    }
}

fn written<T>(file: impl Write, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    let mut out = BufWriter::new(file);
    let made = pieces(&mut out)?;
    out.flush()?;
    Ok(made)
}
