//! Where an output goes, and which file that is: through links, whether it exists or not.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where an output goes, as given on the command line: a file, or `-` for standard output.
///
/// An option that writes a file has this type, and one that reads a file is a [`PathBuf`]: so the tests find all that write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target(PathBuf);

impl Target {
    /// Whether it is standard output.
    pub fn is_stdout(&self) -> bool {
        self.0.as_os_str() == "-"
    }

    /// The path, which is `-` for standard output.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file, unless it is standard output.
    pub fn file(&self) -> Option<&Path> {
        if self.is_stdout() { None } else { Some(&self.0) }
    }
}

impl From<OsString> for Target {
    fn from(given: OsString) -> Target {
        Target(given.into())
    }
}

impl From<PathBuf> for Target {
    fn from(path: PathBuf) -> Target {
        Target(path)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_stdout() { f.write_str("standard output") } else { self.0.display().fmt(f) }
    }
}

/// Whether two paths lead to the same file, also through links, and of a file that is not there yet. Neither needs to exist.
pub(super) fn is_same_file(one: &Path, other: &Path) -> bool {
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
    let end = end_of_links(path).ok()?;
    Some(folder_of(&end).canonicalize().ok()?.join(end.file_name()?))
}

/// The path behind all links, which need not exist: an output through a link replaces the file, not the link.
pub(super) fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    /// As many as Linux follows.
    const MOST_LINKS: usize = 40;
    let mut end = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&end) {
            Ok(next) => end = folder_of(&end).join(next),
            Err(_) => return Ok(end),
        }
    }
    Err(io::Error::other("too many links lead from one to the next"))
}

/// The folder that a file is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
