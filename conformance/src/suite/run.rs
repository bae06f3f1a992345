//! Running a list of entries: in parallel on a simulated backend, one after another on a real device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use rayon::prelude::*;

use super::entry::Entry;
use super::progress::Progress;
use super::reference::Reference;
use super::row::Row;
use super::verdict::{Effort, Trouble, Verdict};
use crate::backend::AnyBackend;

/// Runs the entries and returns their rows in the same order. A panic counts as a failure of its entry.
///
/// With a reference, each entry must also show what the entry with its title shows there; see [`check`].
pub fn run(
    backend: &AnyBackend,
    entries: &[Entry],
    reference: Option<&Reference>,
    effort: &Effort,
    progress: &dyn Progress,
) -> Vec<Row> {
    let one = |entry: &Entry| {
        progress.begins(&entry.title());
        let start = Instant::now();
        let verdict = check(backend, entry, reference, effort);
        let row = Row::new(entry, backend.name(), verdict, start.elapsed());
        progress.ends(&row);
        row
    };
    if backend.is_simulated() { entries.par_iter().map(one).collect() } else { entries.iter().map(one).collect() }
}

/// Checks one entry. A panic counts as a failure.
///
/// With a reference whose facts equal the device's, the entry must also show what it shows there. A device with other
/// facts rightly shows other things, so only the entry's own assertions count for it.
///
/// # Errors
/// Why it did not pass.
pub fn check(backend: &AnyBackend, entry: &Entry, reference: Option<&Reference>, effort: &Effort) -> Verdict {
    let verdict = catch_unwind(AssertUnwindSafe(|| entry.check(backend, effort)));
    let evidence = verdict.unwrap_or_else(|panic| Err(Trouble::fail(format!("panicked: {}", message(&*panic)))))?;
    match reference {
        Some(reference) if reference.compares_with(&backend.facts()) => reference.compare(&entry.title(), evidence, effort),
        _ => Ok(evidence),
    }
}

/// The message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
