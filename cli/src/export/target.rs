//! The file that is written: never the recording, only by force one that is there, and never half of one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Refuses the recording itself, which is the only copy of what happened, and without `force` whatever else is there.
pub(super) fn refuse_to_overwrite(recording: &Path, target: &Path, force: bool) -> Result<()> {
    if is_same_file(recording, target) {
        bail!("the output is the recording itself: write to another file");
    }
    // A pipe or a terminal loses nothing.
    if !force && fs::metadata(target).is_ok_and(|data| data.is_file()) {
        bail!("{} is there already: --force overwrites it", target.display());
    }
    Ok(())
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let (Ok(one), Ok(other)) = (fs::canonicalize(one), fs::canonicalize(other)) else { return false };
    one == other || is_same_inode(&one, &other)
}

/// Whether one is a hard link to the other.
#[cfg(unix)]
fn is_same_inode(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |path| fs::metadata(path).map(|data| (data.dev(), data.ino()));
    place(one).is_ok_and(|one| place(other).is_ok_and(|other| one == other))
}

#[cfg(not(unix))]
fn is_same_inode(_: &Path, _: &Path) -> bool {
    false
}

/// Writes the file: beside its place first, so that what was there stays whole until it is replaced.
pub(super) fn write(target: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(target, bytes).with_context(|| format!("cannot write {}", target.display()))
}

fn write_beside(target: &Path, bytes: &[u8]) -> io::Result<()> {
    // Where a link points is what is replaced, not the link.
    let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    if fs::metadata(&target).is_ok_and(|data| !data.is_file()) {
        return fs::write(&target, bytes);
    }
    let temporary = temporary(&target)?;
    let written = create(&temporary, bytes).and_then(|()| fs::rename(&temporary, &target));
    if written.is_err() && !is_taken(&written) {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// A file of that name was there before: it is another's.
fn is_taken(written: &io::Result<()>) -> bool {
    written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
}

fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(bytes)
}

/// A hidden name in the same folder, this process's own.
fn temporary(target: &Path) -> io::Result<PathBuf> {
    let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.part", std::process::id()));
    Ok(target.with_file_name(hidden))
}
