//! What is known of each scenario: what the documents say, and what was found.

use std::fmt;

/// Whether the documents are right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// It is as the documents say.
    Reproduced,
    /// It is so in part, or with other figures.
    Different,
    /// It is not so.
    Refuted,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Finding::Reproduced => "reproduced",
            Finding::Different => "different",
            Finding::Refuted => "refuted",
        })
    }
}

/// A scenario of the documents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its id, as `A5`. The names of its entries begin with it: `A5/default`.
    pub id: &'static str,
    /// What the documents say.
    pub claim: &'static str,
    /// Whether they are right.
    pub finding: Finding,
    /// What was found, with the key figures. Every number is in what an entry of the scenario shows, which a test checks.
    pub found: &'static str,
}

/// The scenario that an entry belongs to.
#[must_use]
pub fn id_of(entry: &str) -> &str {
    entry.split('/').next().unwrap_or(entry)
}
