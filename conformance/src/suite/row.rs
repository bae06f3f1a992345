//! The result of a run: one row per entry, and a summary.

use std::time::Duration;

use super::entry::{Entry, Group};
use super::verdict::{Evidence, Trouble, Verdict};

/// How an entry ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It holds.
    Pass,
    /// It does not.
    Fail,
    /// It could not be run.
    Skip,
}

impl Status {
    /// Its name in tables and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Fail => "fail",
            Status::Skip => "skip",
        }
    }
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The entry's kind.
    pub group: Group,
    /// Its name.
    pub name: String,
    /// What holds.
    pub says: &'static str,
    /// The backend's name.
    pub backend: &'static str,
    /// How it ended.
    pub status: Status,
    /// Why, if it did not pass.
    pub reason: String,
    /// A sequence that shows the failure, as a script for `parkade ops`.
    pub script: Option<String>,
    /// What it showed.
    pub evidence: Evidence,
    /// How long it took.
    pub took: Duration,
}

impl Row {
    pub(super) fn new(entry: &Entry, backend: &'static str, verdict: Verdict, took: Duration) -> Row {
        let (status, reason, script, evidence) = match verdict {
            Ok(evidence) => (Status::Pass, String::new(), None, evidence),
            Err(Trouble::Skip(reason)) => (Status::Skip, reason, None, Evidence::default()),
            Err(Trouble::Fail { reason, script }) => (Status::Fail, reason, script, Evidence::default()),
        };
        Row { group: entry.group, name: entry.name.clone(), says: entry.says, backend, status, reason, script, evidence, took }
    }
}

/// Counts of rows by status, and of operations.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Rows that passed.
    pub passed: usize,
    /// Rows that failed.
    pub failed: usize,
    /// Rows that could not be run.
    pub skipped: usize,
    /// Operations performed.
    pub operations: u64,
}

impl Summary {
    /// Sums up the rows.
    #[must_use]
    pub fn of(rows: &[Row]) -> Summary {
        let count = |status| rows.iter().filter(|row| row.status == status).count();
        Summary {
            passed: count(Status::Pass),
            failed: count(Status::Fail),
            skipped: count(Status::Skip),
            operations: rows.iter().map(|row| row.evidence.operations).sum(),
        }
    }
}
