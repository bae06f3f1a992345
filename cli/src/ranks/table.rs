//! The table of ranks.

use super::Ranks;
use crate::recording::short_name;
use crate::size;
use crate::table::{Mark, Table};

const HEADS: [&str; 9] = [
    "rank",
    "recording",
    "entries",
    "out of memory",
    "retries",
    "peak allocated",
    "peak reserved",
    "free at the end",
    "largest hole",
];
/// The column that is coloured.
const OUT_OF_MEMORY: usize = 3;

/// A row for each run. What a run does not have is a dash.
pub(super) fn table(ranks: &Ranks) -> Table {
    let mut table = Table::new(HEADS);
    let has_devices = ranks.have_devices();
    for ranked in &ranks.runs {
        let run = &ranked.run;
        let dash = || "-".to_owned();
        let show = |bytes: Option<i64>| bytes.map_or_else(dash, size::show);
        let show_end = |bytes: Option<u64>| bytes.map_or_else(dash, size::show_bytes);
        let device = if has_devices { format!(" device {}", run.device) } else { String::new() };
        let cells: [String; HEADS.len()] = [
            format!("{}{device}", ranked.rank),
            short_name(&ranked.file),
            run.entries.to_string(),
            run.failure.map_or_else(dash, |failure| format!("entry {}", failure.entry)),
            run.retries.map_or_else(dash, |retries| retries.to_string()),
            show(run.peak_allocated_bytes),
            show(run.peak_reserved_bytes),
            show_end(run.end.map(|end| end.free_bytes)),
            show_end(run.end.map(|end| end.largest_hole_bytes)),
        ];
        table.marked(cells, OUT_OF_MEMORY, if run.failure.is_some() { Mark::Bad } else { Mark::Plain });
    }
    table
}
