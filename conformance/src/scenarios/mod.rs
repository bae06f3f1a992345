#![doc = include_str!("README.md")]

mod allocator;
mod experiments;
mod models;
mod story;
mod streams;
mod tools;

use std::fmt::Write;
use std::path::Path;

use crate::backend::AnyBackend;
use crate::suite::Entry;

pub use story::{Finding, Row, id_of};

/// Returns everything that `parkade conform` runs on a backend: the suite and the scenarios, group by group.
///
/// `parkade` has the same meaning as in [`entries`].
#[must_use]
pub fn everything(backend: &AnyBackend, parkade: Option<&Path>) -> Vec<Entry> {
    let mut all = crate::checks::entries(backend);
    all.extend(entries(backend, parkade));
    all.sort_by_key(|entry| entry.group);
    all
}

/// Returns only the scenarios, in the order of their ids.
///
/// Some scenarios run commands of the binary `parkade`. If its path is not given, they are skipped.
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

/// One row for each scenario in the documents, in the order of their ids.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [allocator::ROWS, streams::ROWS, experiments::ROWS, tools::ROWS, models::ROWS].into_iter().flatten()
}

/// The part of docs/scenarios.md that precedes the table.
const HEAD: &str = "# Scenarios

parkade was written after lecture notes and guides on GPU memory.
This table has every scenario and every claim in them, what they say, and what was found when it was tried.

- **reproduced**: it is as the documents say.
- **different**: it is so in part, or with other figures.
- **refuted**: it is not so.

Each row has one or more entries in the conformance suite, which fail if what the table says is no longer so.
`parkade conform --filter scenario/A5` runs those of A5; with `--report FILE` the report has what they show: statistics, pictures of the heap, driver calls.
What they show on the simulated device is also in [conformance/tests/snapshots](../conformance/tests/snapshots).
Figures of PyTorch were recorded with PyTorch 2.11 on an H200 ([driver-facts.md](driver-facts.md)); the entries must give them to the byte.

This page is made by a command; `cargo test -p parkade-conformance --test laws` fails if it is out of date:

```
cargo run -p parkade-conformance --example scenarios_table > docs/scenarios.md
```

";

/// Returns the entire page docs/scenarios.md: a table of all rows, with the names of their entries.
#[must_use]
pub fn docs_page() -> String {
    let names: Vec<String> = entries(&AnyBackend::simulated(), None).into_iter().map(|entry| entry.name).collect();
    let mut page = HEAD.to_owned();
    page.push_str("| id | what the documents say | finding | what was found | entries |\n|---|---|---|---|---|\n");
    for row in rows() {
        let of_row: Vec<&str> = names.iter().filter(|name| id_of(name) == row.id).map(String::as_str).collect();
        let entries = in_short(row.id, &of_row);
        // Writing to a string does not fail.
        let _ = writeln!(page, "| {} | {} | {} | {} | {entries} |", row.id, row.claim, row.finding, row.found);
    }
    page
}

/// Returns the names of a scenario's entries: the first one in full, the others reduced to the part
/// that differs.
fn in_short(id: &str, names: &[&str]) -> String {
    let name = |(at, name): (usize, &&str)| match name.strip_prefix(id) {
        Some(rest) if at > 0 && !rest.is_empty() => format!("`{rest}`"),
        _ => format!("`scenario/{name}`"),
    };
    names.iter().enumerate().map(name).collect::<Vec<_>>().join(", ")
}
