#![doc = include_str!("README.md")]

mod allocator;
mod docs_page;
mod experiments;
mod models;
mod recordings;
mod row;
mod story;
mod streams;
mod tools;

use std::path::Path;

use crate::backend::AnyBackend;
use crate::suite::Entry;

pub use docs_page::docs_page;
pub use row::{Finding, Row, id_of};

/// Everything that `parkade conform` runs on a backend: the suite and the scenarios, group by group.
///
/// `parkade` is as for [`entries`].
#[must_use]
pub fn everything(backend: &AnyBackend, parkade: Option<&Path>) -> Vec<Entry> {
    let mut all = crate::checks::entries(backend);
    all.extend(entries(backend, parkade));
    all.sort_by_key(|entry| entry.group);
    all
}

/// The scenarios alone, in the order of their ids.
///
/// Some run commands of the binary `parkade`. Where its path is not given, these are skipped.
#[must_use]
pub fn entries(backend: &AnyBackend, parkade: Option<&Path>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = [
        allocator::entries(backend),
        streams::entries(backend),
        experiments::entries(backend),
        tools::entries(backend, parkade),
        models::entries(backend),
    ]
    .into_iter()
    .flatten()
    .collect();
    let place = |entry: &Entry| rows().position(|row| row.id == id_of(&entry.name));
    entries.sort_by_cached_key(place);
    entries
}

/// One row for each scenario of the documents, in the order of their ids.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [allocator::ROWS, streams::ROWS, experiments::ROWS, tools::ROWS, models::ROWS].into_iter().flatten()
}
