//! A command's work on a separate thread, while the interpreter's thread checks for signals and reports the progress.

use std::ffi::OsString;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use parkade_cli::in_process::{Answered, answer};
use parkade_cli::terminal::progress::Failure;
use parkade_cli::terminal::progress::Watch;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{CommandError, UsageError};

/// The interval between two checks for signals, too short for a person to notice.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The interval between two reports of progress.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// The maximum wait for cancelled work. Work that reports nothing for longer, such as reading a large file, ends in the
/// background.
const END_WITHIN: Duration = Duration::from_secs(2);

/// The output that a command would have printed on standard output, its exit code, and the answer as text and as HTML.
pub(crate) type Printed<'py> = (Bound<'py, PyBytes>, u8, String, String);

/// Runs a command, without printing. With `with_text`, the answer is also returned as text and as HTML. `progress` is called
/// with the amount done, the total and the unit; if it raises, the work is cancelled.
#[pyfunction]
#[pyo3(signature = (arguments, progress=None, threads=None, with_text=false))]
pub(crate) fn run<'py>(
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

/// Does work on a separate thread, with the interpreter free for other threads.
///
/// # Errors
/// The error of the work, of the progress, or of a signal's handler, such as `KeyboardInterrupt`.
pub(crate) fn interruptible<T: Send + 'static>(
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
