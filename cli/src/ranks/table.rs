//! The table of ranks.

use super::{Ranked, Ranks};
use crate::terminal::recording::short_name;
use crate::terminal::size;
use crate::terminal::table::{Mark, Table};

/// The columns of what is compared.
pub(super) const COLUMNS: [&str; 7] =
    ["entries", "out of memory", "retries", "peak allocated", "peak reserved", "free at the end", "largest hole"];
/// The column that is coloured.
pub(super) const OUT_OF_MEMORY: usize = 1;

/// A row for each run. What a run does not have is a dash.
pub(super) fn table(ranks: &Ranks) -> Table {
    let mut table = Table::new(["rank", "recording"].into_iter().chain(COLUMNS));
    let has_devices = ranks.have_devices();
    for ranked in &ranks.runs {
        let device = if has_devices { format!(" device {}", ranked.run.device) } else { String::new() };
        let names = [format!("{}{device}", ranked.rank), short_name(&ranked.file)];
        let marked = names.len() + OUT_OF_MEMORY;
        let mark = if ranked.run.failure.is_some() { Mark::Bad } else { Mark::Plain };
        table.marked(names.into_iter().chain(cells(ranked)), marked, mark);
    }
    table
}

/// What is in the [`COLUMNS`] of a run.
pub(super) fn cells(ranked: &Ranked) -> [String; COLUMNS.len()] {
    let run = &ranked.run;
    let dash = || "-".to_owned();
    let show = |bytes: Option<i64>| bytes.map_or_else(dash, size::show);
    let show_end = |bytes: Option<u64>| bytes.map_or_else(dash, size::show_bytes);
    [
        run.entries.to_string(),
        match run.failure {
            Some(failure) => format!("entry {}", failure.entry),
            None if run.ooms > 0 => format!("survived {}", run.ooms),
            None => dash(),
        },
        run.retries.map_or_else(dash, |retries| retries.to_string()),
        show(run.peak_allocated_bytes),
        show(run.peak_reserved_bytes),
        show_end(run.end.map(|end| end.free_bytes)),
        show_end(run.end.map(|end| end.largest_hole_bytes)),
    ]
}
