//! Running a list of entries: on a simulated backend side by side, on a real device one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::progress::Progress;
use super::{Effort, Entry, Evidence, Group, Trouble, Verdict};
use crate::backend::{Backend, Simulated};

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

/// The line of a report.
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
    /// What it has to show.
    pub evidence: Evidence,
    /// How long it took.
    pub took: Duration,
}

impl Row {
    fn new<B: Backend>(entry: &Entry<B>, backend: &'static str, verdict: Result<Evidence, Trouble>, took: Duration) -> Row {
        let (status, reason, script, evidence) = match verdict {
            Ok(evidence) => (Status::Pass, String::new(), None, evidence),
            Err(Trouble::Skip(reason)) => (Status::Skip, reason, None, Evidence::default()),
            Err(Trouble::Fail { reason, script }) => (Status::Fail, reason, script, Evidence::default()),
        };
        Row { group: entry.group, name: entry.name.clone(), says: entry.says, backend, status, reason, script, evidence, took }
    }
}

/// How many rows ended how, and how much was done for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Rows that passed.
    pub passed: usize,
    /// Rows that failed.
    pub failed: usize,
    /// Rows that could not be run.
    pub skipped: usize,
    /// Operations carried out.
    pub operations: u64,
}

impl Summary {
    /// The sum of rows.
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

/// Runs the entries. The rows are in the entries' order. A panic is a failure of its entry.
///
/// `reference` has entries for the simulated device: on any other device, an entry must show what the one of its name shows there.
pub fn run<B: Backend + Sync>(
    backend: &B,
    entries: &[Entry<B>],
    reference: &[Entry<Simulated>],
    effort: &Effort,
    progress: &dyn Progress,
) -> Vec<Row> {
    let one = |entry: &Entry<B>| {
        progress.begins(&entry.title());
        let start = Instant::now();
        let verdict = check(backend, entry, reference, effort);
        let row = Row::new(entry, backend.name(), verdict, start.elapsed());
        progress.ends(&row);
        row
    };
    if backend.is_simulated() { entries.par_iter().map(one).collect() } else { entries.iter().map(one).collect() }
}

/// Checks one entry; on a real device, also that it shows what the simulated one shows ([`run`]). A panic is a failure.
///
/// # Errors
/// Why it did not pass.
pub fn check<B: Backend>(backend: &B, entry: &Entry<B>, reference: &[Entry<Simulated>], effort: &Effort) -> Verdict {
    let verdict = catch_unwind(AssertUnwindSafe(|| entry.check(backend, effort)));
    let verdict = verdict.unwrap_or_else(|panic| Err(Trouble::fail(format!("panicked: {}", message(&*panic)))));
    verdict.and_then(|evidence| same_as_simulated(backend, entry, reference, effort, evidence))
}

/// What a real device showed is what the simulated one shows, line by line.
fn same_as_simulated<B: Backend>(
    backend: &B,
    entry: &Entry<B>,
    reference: &[Entry<Simulated>],
    effort: &Effort,
    evidence: Evidence,
) -> Verdict {
    if backend.is_simulated() || evidence.text.is_empty() {
        return Ok(evidence);
    }
    let Some(simulated) = reference.iter().find(|other| other.title() == entry.title()) else { return Ok(evidence) };
    let expected = simulated.check(&Simulated, effort)?.text;
    let (mut ours, mut theirs) = (evidence.text.lines(), expected.lines());
    loop {
        match (ours.next(), theirs.next()) {
            (None, None) => return Ok(evidence),
            (ours, theirs) if ours == theirs => {}
            (ours, theirs) => {
                let [ours, theirs] = [ours, theirs].map(|line| line.unwrap_or("(nothing more)"));
                return Err(Trouble::fail(format!("this device shows\n{ours}\nwhere the simulated one shows\n{theirs}")));
            }
        }
    }
}

/// What a panic said.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without words".to_owned())
}
