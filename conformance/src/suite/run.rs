//! Running a list of entries: on a simulated backend side by side, on a real device one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use rayon::prelude::*;

use super::entry::Entry;
use super::progress::Progress;
use super::reference::Reference;
use super::row::Row;
use super::verdict::{Effort, Trouble, Verdict};
use crate::backend::Backend;

/// Runs the entries. The rows are in the entries' order. A panic is a failure of its entry.
///
/// Where there is a reference, each entry must also show what the one of its title shows there; see [`check`].
pub fn run<B: Backend + Sync>(
    backend: &B,
    entries: &[Entry<B>],
    reference: Option<&Reference>,
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

/// Checks one entry. A panic is a failure.
///
/// If there is a reference, and the device's facts are the reference's, the entry must also show what it shows there. Devices with other
/// facts show other things, rightly; of them only what the entry itself asserts is checked.
///
/// # Errors
/// Why it did not pass.
pub fn check<B: Backend>(backend: &B, entry: &Entry<B>, reference: Option<&Reference>, effort: &Effort) -> Verdict {
    let verdict = catch_unwind(AssertUnwindSafe(|| entry.check(backend, effort)));
    let evidence = verdict.unwrap_or_else(|panic| Err(Trouble::fail(format!("panicked: {}", message(&*panic)))))?;
    match reference {
        Some(reference) if reference.compares_with(&backend.facts()) => reference.compare(&entry.title(), evidence, effort),
        _ => Ok(evidence),
    }
}

/// What a panic said.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without words".to_owned())
}
