//! The five steps, which the texts for a recording and for a message share.

use parkade_analysis::diagnose::Applies;

use crate::terminal::json_struct::{Word, view};
use crate::terminal::table::{Mark, Table};

/// The name of a step.
#[derive(Clone, Copy)]
pub(super) enum StepName {
    Capacity,
    Fragmentation,
    Settings,
    EmptyCache,
    Snapshot,
}

parkade_recording::names! {
    StepName {
        StepName::Capacity => "capacity",
        StepName::Fragmentation => "fragmentation",
        StepName::Settings => "settings",
        StepName::EmptyCache => "empty_cache",
        StepName::Snapshot => "snapshot",
    }
}

/// The five steps.
pub(super) const STEPS: [StepName; 5] =
    [StepName::Capacity, StepName::Fragmentation, StepName::Settings, StepName::EmptyCache, StepName::Snapshot];
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
    let (number, name) = ((place + 1).to_string(), STEPS[place].name().to_owned());
    table.marked([number, name, applies.name().to_owned(), finding.into()], 2, mark);
}

view! {
    /// One of the five steps.
    pub(super) struct Step(place: usize, applies: Applies, finding: String) {
        /// The step's name.
        step: Word<StepName> = Word::of(&STEPS[place]),
        /// Whether it applies.
        applies: Word<Applies> = Word::of(&applies),
        /// What was found.
        finding: String = finding,
    }
}
