//! Writing one file: beside its place, on the disk, then renamed, so that it is there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::target::{end_of_links, folder_of};
use crate::output::Stream;

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

    /// Tries what [`Place::write`] begins with.
    pub(super) fn try_beside(&self) -> io::Result<()> {
        let Place::File(file) = self else { return Ok(()) };
        let (temporary, _) = create_beside(file)?;
        fs::remove_file(temporary)
    }

    /// Writes it piece by piece. A file that is there is replaced only if `replaces`, also if it came after all checks.
    pub(super) fn write<T>(&self, replaces: bool, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
        let file = match self {
            Place::Device(device) => {
                return written(Stream::unnamed(OpenOptions::new().write(true).open(device)?), pieces);
            }
            Place::File(file) => file,
        };
        let (temporary, draft) = create_beside(file)?;
        let made = written(&draft, pieces).and_then(|made| {
            draft.sync_all()?;
            if let Ok(old) = fs::metadata(file) {
                fs::set_permissions(&temporary, old.permissions())?;
            }
            put(&temporary, file, replaces)?;
            Ok(made)
        });
        if made.is_err() {
            let _ = fs::remove_file(&temporary);
        } else if let Ok(folder) = File::open(folder_of(file)) {
            // The file is whole already; some file systems cannot do this to a folder.
            let _ = folder.sync_all();
        }
        made
    }
}

/// Moves the draft to its place.
fn put(draft: &Path, file: &Path, replaces: bool) -> io::Result<()> {
    if replaces {
        return fs::rename(draft, file);
    }
    // A hard link never replaces anything. A file system without them leaves what `Outputs::check` found.
    match fs::hard_link(draft, file) {
        Ok(()) => fs::remove_file(draft),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if fs::symlink_metadata(file).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(draft, file),
    }
}

fn written<T>(file: impl Write, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    let mut out = BufWriter::new(file);
    let made = pieces(&mut out)?;
    out.flush()?;
    Ok(made)
}

/// A new hidden file in the same folder. Its name is short, however long the file's own is.
fn create_beside(file: &Path) -> io::Result<(PathBuf, File)> {
    let mut number = 0_u32;
    loop {
        let path = file.with_file_name(format!(".parkade-{}-{number}.part", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(draft) => return Ok((path, draft)),
            // Of another thread, or of a process that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => number += 1,
            Err(error) => return Err(error),
        }
    }
}
