#![doc = include_str!("../README.md")]

// Linked for its C functions.
use parkade_capi as _;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use parkade_cli::commands::sweep;
use parkade_cli::in_process::{Answered, answer};
use parkade_cli::recordings::Inputs;
use parkade_cli::terminal;
use parkade_cli::terminal::progress::{Failure, Watch, on_threads};
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
    use super::{CommandError, Jobs, UsageError, failure, inputs, main, run, size};

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

/// The interval between two checks for signals, too short for a person to notice.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The interval between two reports of progress.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// The maximum wait for cancelled work. Work that reports nothing for longer, such as reading a large file, ends in the
/// background.
const END_WITHIN: Duration = Duration::from_secs(2);

/// The output that a command would have printed on standard output, its exit code, and the answer as text and as HTML.
type Printed<'py> = (Bound<'py, PyBytes>, u8, String, String);

/// Runs a command, without printing. With `with_text`, the answer is also returned as text and as HTML. `progress` is called
/// with the amount done, the total and the unit; if it raises, the work is cancelled.
#[pyfunction]
#[pyo3(signature = (arguments, progress=None, threads=None, with_text=false))]
fn run<'py>(
    py: Python<'py>,
    arguments: Vec<OsString>,
    progress: Option<Bound<'py, PyAny>>,
    threads: Option<usize>,
    with_text: bool,
) -> PyResult<Printed<'py>> {
    let Answered { printed, text, html, outcome, .. } =
        interruptible(py, progress.as_ref(), move |watch| answer(&arguments, threads, watch, with_text))?;
    Ok((PyBytes::new(py, &printed), outcome as u8, text, html))
}

/// Does work on a separate thread, with the interpreter free for other threads, while the interpreter's thread checks for signals
/// and reports the progress.
///
/// # Errors
/// The error of the work, of the progress, or of a signal's handler, such as `KeyboardInterrupt`.
fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Arc<Watch>) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let watch = Arc::new(Watch::default());
    let (sender, receiver) = sync_channel(1);
    let of_work = Arc::clone(&watch);
    // The caller may no longer be waiting for the result.
    let started = thread::Builder::new().spawn(move || drop(sender.send(work(&of_work))));
    let thread = started.map_err(|error| CommandError::new_err(format!("cannot start a thread: {error}")))?;
    // Not shared with anyone; `detach` cannot know that.
    let receiver = Mutex::new(receiver);
    let wait = |at_most| py.detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(at_most));
    let mut told = Instant::now();
    loop {
        match wait(LOOK_EVERY) {
            Ok(done) => {
                py.detach(|| thread.join()).unwrap_or_default();
                return done.map_err(raised);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(CommandError::new_err("parkade failed without a message")),
        }
        let mut looked = py.check_signals();
        if let Some(progress) = progress.filter(|_| looked.is_ok() && told.elapsed() >= TELL_EVERY) {
            told = Instant::now();
            let (done, of, what) = watch.progress();
            looked = if what.is_empty() { Ok(()) } else { progress.call1((done, of, what)).map(drop) };
        }
        if let Err(raised) = looked {
            watch.cancel();
            let _ended = wait(END_WITHIN);
            return Err(raised);
        }
    }
}

/// A failure as an exception.
fn raised(failure: Failure) -> PyErr {
    match failure {
        Failure::Usage(_) => UsageError::new_err(failure.to_string()),
        _ => CommandError::new_err(failure.to_string()),
    }
}

/// The jobs of a sweep, for executors: numbers in, the bytes of rows out.
#[pyclass(frozen, module = "parkade._parkade")]
struct Jobs {
    jobs: Arc<sweep::Jobs>,
}

#[pymethods]
impl Jobs {
    /// A hash of everything that affects rows. Workers must have the same one.
    #[classattr]
    fn program() -> String {
        sweep::entire_build()
    }

    /// The build that makes the rows of this policy, as rows name it.
    #[staticmethod]
    fn build_of(policy: &str) -> String {
        sweep::current_build(policy)
    }

    /// Reads the arguments of `parkade sweep`, the program's name first.
    #[new]
    fn new(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<Jobs> {
        let found = interruptible(py, None, move |watch| on_threads(None, watch, || sweep::Jobs::of(arguments)))?;
        Ok(Jobs { jobs: Arc::new(found) })
    }

    /// How many there are.
    #[getter]
    fn number(&self) -> u64 {
        self.jobs.number()
    }

    /// The first line of the file of rows.
    fn header<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let jobs = Arc::clone(&self.jobs);
        let header = interruptible(py, None, move |_| jobs.header().map_err(|error| Failure::CouldNotRun(error.to_string())))?;
        Ok(PyBytes::new(py, &header))
    }

    /// The line of each of these jobs. `progress` is the same as in [`run`].
    #[pyo3(signature = (numbers, progress=None))]
    fn rows<'py>(
        &self,
        py: Python<'py>,
        numbers: Vec<u64>,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let jobs = Arc::clone(&self.jobs);
        let rows = interruptible(py, progress.as_ref(), move |watch| on_threads(Some(1), watch, || jobs.rows(&numbers)))?;
        Ok(rows.iter().map(|row| PyBytes::new(py, row)).collect())
    }
}
