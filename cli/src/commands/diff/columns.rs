//! A table that sets values of one run or of two beside each other.

use parkade_analysis::diff::Run;

use super::words::{change, percent};
use crate::terminal::size::show_bytes;
use crate::terminal::table::Table;

/// A table with a column for each run and, for two, the change.
pub(super) struct Columns<'r> {
    runs: &'r [&'r Run],
    pub(super) table: Table,
}

impl<'r> Columns<'r> {
    pub(super) fn new(title: &str, runs: &'r [&'r Run]) -> Columns<'r> {
        let heads: &[&str] = if runs.len() > 1 { &["A", "B", "change", "%"] } else { &["this run"] };
        Columns { runs, table: Table::new(std::iter::once(title).chain(heads.iter().copied())) }
    }

    fn row(
        &mut self,
        name: &str,
        value: impl Fn(&Run) -> u64,
        show: impl Fn(u64) -> String,
        change: impl Fn(u64, u64) -> String,
    ) {
        let values: Vec<u64> = self.runs.iter().map(|run| value(run)).collect();
        let mut cells = vec![name.to_owned()];
        cells.extend(values.iter().map(|&value| show(value)));
        if let [a, b] = values[..] {
            cells.extend([change(a, b), percent(a, b)]);
        }
        self.table.row(cells);
    }

    pub(super) fn bytes(&mut self, name: &str, value: impl Fn(&Run) -> u64) {
        self.row(name, value, show_bytes, change);
    }

    pub(super) fn number(&mut self, name: &str, value: impl Fn(&Run) -> u64) {
        self.row(name, value, |number| number.to_string(), number_change);
    }

    /// Numbers that are mostly 0: a row only where one is not.
    pub(super) fn rare_number(&mut self, name: &str, value: impl Fn(&Run) -> u64) {
        if self.runs.iter().any(|run| value(run) > 0) {
            self.number(name, value);
        }
    }

    pub(super) fn text(&mut self, name: &str, text: impl Fn(&Run) -> String) {
        let cells: Vec<String> = std::iter::once(name.to_owned()).chain(self.runs.iter().map(|run| text(run))).collect();
        self.table.row(cells);
    }
}

fn number_change(a: u64, b: u64) -> String {
    match b.cmp(&a) {
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", b - a),
        std::cmp::Ordering::Less => format!("-{}", a - b),
    }
}
