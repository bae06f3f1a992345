//! How commands write files: never over an input, over an existing file only with `--force`, and completely or not at all.
//!
//! A file is first written as a draft in the same folder, synced to disk, and then renamed.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

use super::draft::{self, Draft};
use super::output::{self, Stream};
use super::runner::Form;

pub use super::draft::remove_on_signals;

/// The files that a command was asked to write, before they are checked.
pub struct Wanted<'a> {
    force: bool,
    form: Form,
    inputs: Vec<&'a Path>,
    targets: Vec<(&'static str, &'a Target, Kind)>,
}

/// What a command does to a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Writes a new one.
    Made,
    /// Appends to it. The command reads the existing contents, and refuses a file that is not its own.
    Continued,
}

impl<'a> Wanted<'a> {
    /// Returns an empty list of files. `form` is the format of standard output.
    pub fn new(force: bool, form: Form) -> Wanted<'a> {
        Wanted { force, form, inputs: Vec::new(), targets: Vec::new() }
    }

    /// Adds files that the command reads.
    #[must_use]
    pub fn reads<P: AsRef<Path> + ?Sized + 'a>(mut self, files: impl IntoIterator<Item = &'a P>) -> Wanted<'a> {
        self.inputs.extend(files.into_iter().map(AsRef::as_ref));
        self
    }

    /// Adds the file that an option such as `--csv` names, if it is given.
    #[must_use]
    pub fn writes(mut self, option: &'static str, target: Option<&'a Target>) -> Wanted<'a> {
        self.targets.extend(target.map(|target| (option, target, Kind::Made)));
        self
    }

    /// Adds a file that the command continues.
    #[must_use]
    pub fn continues(mut self, option: &'static str, target: Option<&'a Target>) -> Wanted<'a> {
        self.targets.extend(target.map(|target| (option, target, Kind::Continued)));
        self
    }

    /// Refuses files that must not or cannot be written, before work that may take long. If an output goes to standard output, text for
    /// people goes to standard error from now on.
    ///
    /// # Errors
    /// A file is an input, exists without `--force`, or cannot be written; or two outputs have the same destination.
    pub fn check(&self) -> Result<Outputs> {
        for (place, &(option, target, kind)) in self.targets.iter().enumerate() {
            if let Some((other, ..)) = self.targets[..place].iter().find(|(_, other, _)| is_same_target(other, target)) {
                bail!("{other} and {option} would both be written to {target}: choose two files");
            }
            match target.file() {
                None => self.check_stdout(option)?,
                Some(file) => self.check_file(&format!("{option} {target}"), file, kind)?,
            }
        }
        if self.targets.iter().any(|(_, target, _)| target.is_stdout()) {
            output::leave_stdout_to_data();
        }
        Ok(Outputs { force: self.force })
    }

    fn check_stdout(&self, option: &str) -> Result<()> {
        let other = match self.form {
            Form::Text => return Ok(()),
            Form::Markdown => "--markdown",
            Form::Data => "the tables",
            Form::Json => "--json",
        };
        bail!("{option} - and {other} would both be printed on standard output: give {option} a file");
    }

    fn check_file(&self, what: &str, file: &Path, kind: Kind) -> Result<()> {
        if self.inputs.iter().any(|input| is_same_file(input, file)) {
            bail!("{what}: the output is the input file, which is never overwritten: choose a different file");
        }
        let cannot = |error: io::Error| anyhow!("cannot write {what}: {error}");
        let place = Place::of(file).map_err(cannot)?;
        if kind == Kind::Continued {
            place.tidy();
            return Ok(());
        }
        if !self.force && place.is_taken() {
            bail!("{what} already exists: --force overwrites it");
        }
        place.tidy();
        place.try_beside().map_err(cannot)
    }
}

fn is_same_target(one: &Target, other: &Target) -> bool {
    match (one.file(), other.file()) {
        (Some(one), Some(other)) => is_same_file(one, other),
        (one, other) => one == other,
    }
}

/// The right to write the files that [`Wanted::check`] accepted.
#[derive(Clone, Copy)]
pub struct Outputs {
    force: bool,
}

impl Outputs {
    /// Writes one of them through a draft, so that it is written completely or not at all.
    ///
    /// # Errors
    /// The system's error, with the name of the file.
    pub fn write(self, target: &Target, bytes: &[u8]) -> Result<()> {
        self.write_with(target, |out| out.write_all(bytes))
    }

    /// Writes one of them in the same way, piece by piece.
    ///
    /// # Errors
    /// The error of the system or of `pieces`, with the name of the file.
    pub fn write_with<T>(self, target: &Target, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> Result<T> {
        let Some(file) = target.file() else {
            let mut out = output::stdout();
            let made = pieces(&mut out)?;
            out.flush()?;
            return Ok(made);
        };
        let written = Place::of(file).and_then(|place| place.write(self.force, pieces));
        written.with_context(|| format!("cannot write {target}"))
    }
}

/// The destination of an output, as given on the command line: a file, or `-` for standard output.
///
/// Options that write a file have this type, and those that read one have the type [`PathBuf`], so that tests find all options that write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target(PathBuf);

impl Target {
    /// Returns whether it is standard output.
    pub fn is_stdout(&self) -> bool {
        self.0.as_os_str() == "-"
    }

    /// Returns the path, which is `-` for standard output.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the file, unless it is standard output.
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

/// Returns whether two paths lead to the same file, including through links. The file need not exist.
fn is_same_file(one: &Path, other: &Path) -> bool {
    is_same_inode(one, other) || resolved(one).is_some_and(|one| Some(one) == resolved(other))
}

/// Returns whether both exist and are the same file. Hard links have different canonical paths.
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

/// Returns the canonical path; for a missing file, the canonical path of its folder with its name.
fn resolved(path: &Path) -> Option<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Some(path);
    }
    let end = end_of_links(path).ok()?;
    Some(folder_of(&end).canonicalize().ok()?.join(end.file_name()?))
}

/// Resolves all links; the result need not exist. An output through a link replaces the file, not the link.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    /// The maximum number that Linux follows.
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

/// Returns the folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What a path leads to.
enum Place {
    /// A file that may not exist yet. All links in the path are resolved.
    File(PathBuf),
    /// A device or a pipe, which is written to directly because it has nothing to lose. It may have no reader.
    Device(PathBuf),
}

impl Place {
    /// Resolves a path.
    ///
    /// # Errors
    /// It is a folder, it leads nowhere, or its folder does not exist.
    fn of(path: &Path) -> io::Result<Place> {
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

    /// Returns whether writing would replace an existing file.
    fn is_taken(&self) -> bool {
        matches!(self, Place::File(file) if fs::symlink_metadata(file).is_ok())
    }

    /// Removes the drafts that killed processes left in the folder.
    fn tidy(&self) {
        if let Place::File(file) = self {
            draft::remove_left_over(folder_of(file));
        }
    }

    /// Tries the first step of [`Place::write`].
    fn try_beside(&self) -> io::Result<()> {
        let Place::File(file) = self else { return Ok(()) };
        Draft::beside(file).map(drop)
    }

    /// Writes it piece by piece. An existing file is replaced only if `replaces` is true, even if it was created after all checks.
    fn write<T>(&self, replaces: bool, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
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
            // The file is already complete; some file systems cannot sync a folder.
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
