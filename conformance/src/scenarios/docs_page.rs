//! The page docs/scenarios.md: a table of all rows, with the names of their entries.

use std::fmt::Write;

use crate::backend::AnyBackend;

use crate::scenarios::row::id_of;

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

/// The whole page docs/scenarios.md.
#[must_use]
pub fn docs_page() -> String {
    let names: Vec<String> =
        crate::scenarios::entries(&AnyBackend::simulated(), None).into_iter().map(|entry| entry.name).collect();
    let mut page = HEAD.to_owned();
    page.push_str("| id | what the documents say | finding | what was found | entries |\n|---|---|---|---|---|\n");
    for row in crate::scenarios::rows() {
        let of_row: Vec<&str> = names.iter().filter(|name| id_of(name) == row.id).map(String::as_str).collect();
        let entries = in_short(row.id, &of_row);
        // Writing to a string does not fail.
        let _ = writeln!(page, "| {} | {} | {} | {} | {entries} |", row.id, row.claim, row.finding, row.found);
    }
    page
}

/// The names of a scenario's entries: the first one in full, of the others only what differs.
fn in_short(id: &str, names: &[&str]) -> String {
    let name = |(at, name): (usize, &&str)| match name.strip_prefix(id) {
        Some(rest) if at > 0 && !rest.is_empty() => format!("`{rest}`"),
        _ => format!("`scenario/{name}`"),
    };
    names.iter().enumerate().map(name).collect::<Vec<_>>().join(", ")
}
