//! The policy suite for a policy outside the catalogue.

use std::fmt;

use parkade::policy::Policy;

use super::subject::Subject;
use super::trial::Habits;
use super::{Share, entries_of};
use crate::backend::AnyBackend;
use crate::suite;
use crate::suite::{Effort, Row, Silent, Status};

/// The suite's report on a policy. Displays as one line per entry; failures also show the reason and the shortest program found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// One row for each entry.
    pub rows: Vec<Row>,
}

impl Report {
    /// Whether everything passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.rows.iter().all(|row| row.status == Status::Pass)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            writeln!(f, "{}: {}: {}", row.name, row.status.name(), row.says)?;
            if row.status == Status::Pass {
                writeln!(f, "    {}", row.evidence.measured)?;
                continue;
            }
            writeln!(f, "    {}", row.reason)?;
            for line in row.script.iter().flat_map(|script| script.lines()) {
                writeln!(f, "        {line}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

/// Checks a policy on the simulated device against every policy law. `make` creates a policy in its initial state.
///
/// # Errors
/// The report, if anything failed.
pub fn check<P: Policy + 'static>(make: impl Fn() -> P + Send + Sync + 'static, effort: &Effort) -> Result<Report, Report> {
    check_with(Habits::default(), make, effort)
}

/// Like [`check`], for a policy that keeps its memory, or does not search again after waiting.
///
/// # Errors
/// The report, if anything failed.
pub fn check_with<P: Policy + 'static>(
    habits: Habits,
    make: impl Fn() -> P + Send + Sync + 'static,
    effort: &Effort,
) -> Result<Report, Report> {
    let name = make().name();
    let subject = Subject::new(name, move |_| make()).with(habits);
    let backend = AnyBackend::simulated();
    let entries = entries_of(&backend, &subject, Share::Whole);
    let report = Report { rows: suite::run(&backend, &entries, None, effort, &Silent) };
    if report.passed() { Ok(report) } else { Err(report) }
}
