//! The one way in which commands write files: never an input, never over another file unless forced, whole or not at all.
//!
//! `target` tells what a path leads to, `place` writes one file, as a `draft` at first; `maker` tells whose a draft is.

mod draft;
mod maker;
mod place;
mod target;

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

use crate::terminal::output;
use crate::terminal::runner::Form;
use place::Place;
use target::is_same_file;

pub use draft::remove_on_signals;
pub use target::Target;

/// The files that a command was asked to write, before they are checked.
pub struct Wanted<'a> {
    force: bool,
    form: Form,
    inputs: Vec<&'a Path>,
    targets: Vec<(&'static str, &'a Target, Kind)>,
}

/// What becomes of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It is made anew.
    Made,
    /// It grows; the command reads what is there, and refuses what is not its own.
    Continued,
}

impl<'a> Wanted<'a> {
    /// Nothing yet. `form` is what the command prints on standard output.
    pub fn new(force: bool, form: Form) -> Wanted<'a> {
        Wanted { force, form, inputs: Vec::new(), targets: Vec::new() }
    }

    /// Files that the command reads.
    #[must_use]
    pub fn reads<P: AsRef<Path> + ?Sized + 'a>(mut self, files: impl IntoIterator<Item = &'a P>) -> Wanted<'a> {
        self.inputs.extend(files.into_iter().map(AsRef::as_ref));
        self
    }

    /// A file that is written if this option, such as `--csv`, is given.
    #[must_use]
    pub fn writes(mut self, option: &'static str, target: Option<&'a Target>) -> Wanted<'a> {
        self.targets.extend(target.map(|target| (option, target, Kind::Made)));
        self
    }

    /// A file that the command continues by itself.
    #[must_use]
    pub fn continues(mut self, option: &'static str, target: Option<&'a Target>) -> Wanted<'a> {
        self.targets.extend(target.map(|target| (option, target, Kind::Continued)));
        self
    }

    /// Refuses what must not or cannot be written, before work that may take long. From now on text for people goes to standard error
    /// if an output goes to standard output.
    ///
    /// # Errors
    /// A file is an input, exists and is not forced, or cannot be written; or two outputs go to the same place.
    pub fn check(&self) -> Result<Outputs> {
        for (place, &(option, target, kind)) in self.targets.iter().enumerate() {
            if let Some((other, ..)) = self.targets[..place].iter().find(|(_, other, _)| is_same_target(other, target)) {
                bail!("{other} and {option} are both to be written to {target}: choose two files");
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
            Form::Data => "the tables",
            Form::Json => "--json",
        };
        bail!("{option} - and {other} would both be printed on standard output: give {option} a file");
    }

    fn check_file(&self, what: &str, file: &Path, kind: Kind) -> Result<()> {
        if self.inputs.iter().any(|input| is_same_file(input, file)) {
            bail!("{what}: the output is the input file, which is never overwritten: choose another file");
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
    /// Writes one of them: beside its place first, so that it is there whole or not at all.
    ///
    /// # Errors
    /// What the system answered, with the name of the file.
    pub fn write(self, target: &Target, bytes: &[u8]) -> Result<()> {
        self.write_with(target, |out| out.write_all(bytes))
    }

    /// Writes one of them in the same way, piece by piece.
    ///
    /// # Errors
    /// What the system or `pieces` answered, with the name of the file.
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
