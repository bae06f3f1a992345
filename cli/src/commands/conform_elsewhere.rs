//! `parkade conform` in a build without the conformance suite, as the Python package is: a `parkade` on the path runs it.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::terminal::output;
use crate::terminal::runner::Outcome;

/// Run the conformance suite with the `parkade` that `cargo install --path cli` installs.
///
/// This build does not contain the suite: the first `parkade` on the path that is not a Python script gets the arguments.
#[derive(Parser)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// The arguments for that `parkade conform`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Set for the program that is run: if it does not contain the suite either, it must not look for another one.
const LOOKED_FOR: &str = "PARKADE_CONFORM_LOOKED_FOR";

impl Args {
    /// Runs the suite elsewhere, and returns the outcome.
    pub(crate) fn run(&self) -> Outcome {
        self.try_run().unwrap_or_else(|error| {
            output::complain(&format!("{error:#}"));
            Outcome::CouldNotRun
        })
    }

    fn try_run(&self) -> Result<Outcome> {
        let found = if std::env::var_os(LOOKED_FOR).is_some() { None } else { on_the_path() };
        let Some(program) = found else {
            bail!(
                "this build of parkade does not contain the conformance suite, and no `parkade` on the PATH does: run `cargo \
                 install --path cli` in parkade's source folder"
            );
        };
        let mut command = Command::new(&program);
        command.arg("conform").args(&self.arguments).env(LOOKED_FOR, "1");
        let status = command.status().with_context(|| format!("cannot run {}", program.display()))?;
        Ok(match status.code() {
            Some(0) => Outcome::Good,
            Some(1) => Outcome::CheckFailed,
            _ => Outcome::CouldNotRun,
        })
    }
}

/// The first `parkade` on the path that is not a Python script: the Python package installs such a script, which would only
/// lead back here.
fn on_the_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let name = format!("parkade{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&path).map(|folder| folder.join(&name)).find(|file| file.is_file() && !is_python(file))
}

/// Whether a file's first line names Python.
fn is_python(file: &Path) -> bool {
    let mut begin = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(4096).read_to_end(&mut begin));
    let first = begin.split(|&byte| byte == b'\n').next().unwrap_or_default();
    read.is_ok() && first.starts_with(b"#!") && String::from_utf8_lossy(first).contains("python")
}
