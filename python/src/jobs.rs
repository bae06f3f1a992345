//! The jobs of a sweep, for executors: numbers in, the bytes of rows out.

use std::ffi::OsString;
use std::sync::Arc;

use parkade_cli::commands::sweep;
use parkade_cli::terminal::progress::{Failure, on_threads};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::run::interruptible;

/// The jobs of a sweep.
#[pyclass(frozen, module = "parkade._parkade")]
pub(crate) struct Jobs {
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

    /// The line of each of these jobs. `progress` is the same as in [`run`](crate::run::run).
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
