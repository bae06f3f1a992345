//! Which runs a page shows in full, and which of them at first.

use std::path::Path;

use crate::ranks::Row;

/// The most runs in full: each takes about 140 KiB without its blocks, and minutes if it is long.
pub(super) const MOST_IN_FULL: usize = 8;
/// How many stand beside each other when the page is opened.
const AT_FIRST: usize = 2;

/// A choice of runs, by their places among the rows.
pub(super) struct Choice {
    /// Those with everything, in the order of the rows.
    pub(super) in_full: Vec<usize>,
    /// Those of them that are shown at first.
    pub(super) at_first: Vec<usize>,
}

impl Choice {
    /// Chooses whole files, those that say most first, up to [`MOST_IN_FULL`] runs, or one file if that has more.
    pub(super) fn of(rows: &[Row<'_>], by_weight: &[usize]) -> Choice {
        let mut in_full: Vec<usize> = Vec::new();
        for &run in by_weight {
            let Some(row) = rows.get(run) else { continue };
            // A file that was given twice is shown once.
            if in_full.iter().any(|&chosen| rows[chosen].file == row.file) {
                continue;
            }
            let of_file = rows.iter().enumerate().filter(|(_, other)| other.place == row.place).map(|(place, _)| place);
            let of_file: Vec<usize> = of_file.collect();
            if in_full.is_empty() || in_full.len() + of_file.len() <= MOST_IN_FULL {
                in_full.extend(of_file);
            }
        }
        in_full.sort_unstable();
        let at_first = by_weight.iter().copied().filter(|run| in_full.contains(run)).take(AT_FIRST).collect();
        Choice { in_full, at_first }
    }

    /// The files of the runs in full, each with its runs, in the order of the rows. `of_rows` are the files of all rows.
    pub(super) fn files<'r>(&self, of_rows: impl Iterator<Item = &'r Path>) -> Vec<(&'r Path, Vec<usize>)> {
        let mut files: Vec<(&Path, Vec<usize>)> = Vec::new();
        for (run, file) in of_rows.enumerate().filter(|(run, _)| self.in_full.contains(run)) {
            match files.last_mut() {
                Some((path, runs)) if *path == file => runs.push(run),
                _ => files.push((file, vec![run])),
            }
        }
        files
    }
}
