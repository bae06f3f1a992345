//! The laws of the allocator alone, as entries: they are the same on every backend.

use crate::core_laws::{CoreLaw, Draws, LAWS};

use crate::backend::AnyBackend;
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// The entries of these laws.
pub(super) fn entries() -> Vec<Entry> {
    let entry =
        |law: CoreLaw| Entry::new(Group::Law, law.name, law.says, move |_: &AnyBackend, effort: &Effort| check(law, effort));
    LAWS.into_iter().map(entry).collect()
}

fn check(law: CoreLaw, effort: &Effort) -> Verdict {
    let draws = Draws { cases: effort.cases, seed: effort.seed };
    let operations = (law.check)(&draws).map_err(|failure| Trouble::Fail {
        reason: failure.broken.to_string(),
        script: Some(failure.script).filter(|script| !script.is_empty()),
    })?;
    Ok(Evidence { operations, measured: format!("{operations} operations"), text: String::new() })
}
