//! The five steps, which the texts for a recording and for a message share.

use parkade_analysis::diagnose::Applies;

use crate::terminal::json_struct::view;
use crate::terminal::table::{Mark, Table};

/// The names of the five steps.
pub(super) const STEPS: [&str; 5] = ["capacity", "fragmentation", "settings", "empty_cache", "snapshot"];
/// The limit of what settings can change.
pub(super) const POOLS_DO_NOT_SHARE: &str =
    "no setting makes a private pool share its cached memory: free the CUDA graphs and MemPools you no longer need";

/// An empty table of steps.
pub(super) fn steps() -> Table {
    Table::bare(2).with_left([0, 1, 2, 3])
}

/// Adds a step: its number, name, whether it applies, and the finding.
pub(super) fn add_step(table: &mut Table, place: usize, applies: Applies, finding: impl Into<String>) {
    let mark = if applies == Applies::Yes { Mark::Bad } else { Mark::Plain };
    table.marked([(place + 1).to_string(), STEPS[place].to_owned(), applies.name().to_owned(), finding.into()], 2, mark);
}

view! {
    /// One of the five steps.
    pub(super) struct Step(place: usize, applies: &'static str, finding: String) {
        step: &'static str = STEPS[place],
        applies: &'static str = applies,
        finding: String = finding,
    }
}
