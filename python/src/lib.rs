#![doc = include_str!("../README.md")]

mod jobs;
mod run;

// Linked for its C functions.
use parkade_capi as _;

use std::ffi::OsString;
use std::path::PathBuf;

use parkade_cli::recordings::Inputs;
use parkade_cli::terminal;
use parkade_cli::terminal::runner::{self, Lines, Subject};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

create_exception!(_parkade, CommandError, PyException, "A command could not be run; the text says why.");
create_exception!(_parkade, UsageError, CommandError, "The arguments of a command are wrong.");

/// The extension module. The part that users see is in `parkade/`.
#[pymodule]
mod _parkade {
    #[pymodule_export]
    use super::jobs::Jobs;
    #[pymodule_export]
    use super::run::run;
    #[pymodule_export]
    use super::{CommandError, UsageError, failure, inputs, main, size};

    /// The version of parkade.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}

/// Runs the command `parkade` with these arguments, the program's name first, and returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| parkade_cli::run_command(&arguments) as u8)
}

/// A size in bytes, as the commands read it: `12GiB` is one.
#[pyfunction]
fn size(text: &str) -> PyResult<u64> {
    terminal::size::parse(text).map_err(UsageError::new_err)
}

/// The line of JSON for a file about which no answer was possible.
#[pyfunction]
fn failure<'py>(py: Python<'py>, path: PathBuf, message: &str) -> PyResult<Bound<'py, PyBytes>> {
    let mut lines = Lines::default();
    let added = lines.add(&runner::failure(Subject::File(&path), message));
    added.map_err(|error| CommandError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, lines.text().as_bytes()))
}

/// The files that these files and folders stand for, in the order of the command `parkade`, each with the reason if there is
/// nothing to read; and remarks.
#[pyfunction]
fn inputs(py: Python<'_>, paths: Vec<PathBuf>) -> (Vec<(OsString, Option<String>)>, Vec<String>) {
    let found = py.detach(|| Inputs::of(&paths));
    let files = found.all.into_iter().map(|input| (input.path.into_os_string(), input.refusal));
    (files.collect(), found.remarks)
}
