//! Where a page or a picture is written: never over the recording, nor over one another, nor unasked over somebody else's file.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::OWN_MARK;

/// Refuses targets that must not be written to. `force` permits only what can be made again.
pub(super) fn check(recording: &Path, page: Option<&Path>, picture: Option<&Path>, force: bool) -> Result<()> {
    for target in [page, picture].into_iter().flatten() {
        if is_same_file(target, recording) {
            bail!("{} is the recording itself, which is not overwritten: choose another file", target.display());
        }
        refuse_to_overwrite(target, force)?;
    }
    match (page, picture) {
        (Some(page), Some(picture)) if is_same_file(page, picture) => {
            bail!("the page and the picture are both to be written to {}: choose two files", page.display())
        }
        _ => Ok(()),
    }
}

/// Writes the file.
pub(super) fn write(target: &Path, text: &str) -> Result<()> {
    fs::write(target, text).with_context(|| format!("{} cannot be written", target.display()))
}

fn refuse_to_overwrite(target: &Path, force: bool) -> Result<()> {
    let Ok(file) = File::open(target) else { return Ok(()) };
    let mut head = Vec::new();
    let is_own = file.take(1024).read_to_end(&mut head).is_ok() && String::from_utf8_lossy(&head).contains(OWN_MARK);
    if !is_own && !head.is_empty() && !force {
        bail!("{} is there already and was not {OWN_MARK}: --force overwrites it", target.display());
    }
    Ok(())
}

/// Whether two names lead to one file, through links too. Neither needs to be there yet.
fn is_same_file(one: &Path, other: &Path) -> bool {
    is_same_inode(one, other) || resolved(one).is_some_and(|one| Some(one) == resolved(other))
}

/// Whether both are there and are one file: a hard link's canonical path is another.
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

/// The path without links and detours; of a file that is not there, that of its folder and its name.
fn resolved(path: &Path) -> Option<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Some(path);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}
