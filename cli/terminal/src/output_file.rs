//! Writing files: never over the recording, never half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Refuses to overwrite the file that is read.
///
/// # Errors
/// Both paths lead to the same file.
pub fn refuse_source(source: &Path, target: &Path) -> Result<()> {
    if is_same_file(source, target) {
        bail!("the output is the input file, which is never overwritten: choose another file");
    }
    Ok(())
}

/// Whether two paths lead to the same file, also through links. Neither needs to exist.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    is_same_inode(one, other) || resolved(one).is_some_and(|one| Some(one) == resolved(other))
}

/// Whether both exist and are the same file: hard links have different canonical paths.
#[cfg(unix)]
fn is_same_inode(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

#[cfg(not(unix))]
fn is_same_inode(_: &Path, _: &Path) -> bool {
    false
}

/// The canonical path; of a missing file, its folder's canonical path and its name.
fn resolved(path: &Path) -> Option<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Some(path);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}

/// Refuses a target that [`write()`] could not write, before work that may take long. Existing files stay as they are.
///
/// # Errors
/// The target is a folder, or nothing can be written beside it.
pub fn refuse_unwritable(target: &Path) -> Result<()> {
    try_beside(target).with_context(|| format!("cannot write {}", target.display()))
}

fn try_beside(target: &Path) -> io::Result<()> {
    let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    match fs::metadata(&target) {
        Ok(data) if data.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // A device or a pipe: its reader would notice.
        Ok(data) if !data.is_file() => Ok(()),
        _ => {
            let temporary = temporary(&target)?;
            create(&temporary)?;
            fs::remove_file(&temporary)
        }
    }
}

/// Writes the file beside its place and renames it, so that an existing file stays whole until it is replaced.
///
/// # Errors
/// What the system answered, with the name of the file.
pub fn write(target: &Path, bytes: &[u8]) -> Result<()> {
    write_with(target, |out| out.write_all(bytes))
}

/// Writes the file in the same way, piece by piece.
///
/// # Errors
/// What the system or `pieces` answered, with the name of the file.
pub fn write_with<T>(target: &Path, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> Result<T> {
    write_beside(target, pieces).with_context(|| format!("cannot write {}", target.display()))
}

fn write_beside<T>(target: &Path, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    // A link stays; its target is replaced.
    let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    if fs::metadata(&target).is_ok_and(|data| !data.is_file()) {
        return write_to(File::create(&target)?, pieces);
    }
    let temporary = temporary(&target)?;
    // If it exists, it is not ours.
    let file = create(&temporary)?;
    let written = write_to(file, pieces).and_then(|made| fs::rename(&temporary, &target).map(|()| made));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_to<T>(file: File, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    let mut out = BufWriter::new(file);
    let made = pieces(&mut out)?;
    out.flush()?;
    Ok(made)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// A hidden name in the same folder, unique to this process.
fn temporary(target: &Path) -> io::Result<PathBuf> {
    let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.part", std::process::id()));
    Ok(target.with_file_name(hidden))
}
