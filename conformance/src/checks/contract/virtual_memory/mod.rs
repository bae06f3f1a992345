//! What each virtual memory call returns, one cause at a time, and what it does (facts: Virtual memory calls).
//!
//! Every row starts from the same [`Scene`]. A refusal must leave it unchanged: memory, holdings and contents.

mod breaking;
mod effects;
mod rows;
mod scene;

use crate::backend::{AnyBackend, TestDevice};
use crate::checks::contract::probe::ensure;
use crate::suite::{Entry, Evidence, Group, Requirement, Verdict};
use rows::Row;
use scene::{Scene, WORD};

/// The entries of these rows.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let rows = rows::rows(backend.facts().codes).into_iter();
    let mut entries: Vec<Entry> =
        rows.map(|row| Entry::new(Group::Contract, row.name, row.says, move |backend, _| check(backend, &row))).collect();
    entries.extend(effects::entries());
    entries.extend(breaking::entries());
    entries.into_iter().map(|entry| entry.requires(Requirement::VirtualMemory)).collect()
}

/// Makes a row's call; a refusal must change nothing.
fn check(backend: &AnyBackend, row: &Row) -> Verdict {
    let mut scene = Scene::new(backend)?;
    let before = (scene.device.holdings(), scene.taken()?);
    let found = backend.facts().codes.of(&(row.call)(&mut scene));
    ensure(found == row.code, || format!("code {found}, not {}", row.code))?;
    if found != 0 {
        let after = (scene.device.holdings(), scene.taken()?);
        ensure(before == after, || format!("refused with {found}, and {before:?} became {after:?}"))?;
        ensure(scene.holds(0, scene.large + scene.page, WORD)?, || format!("refused with {found}, and contents changed"))?;
    }
    scene.finish()?;
    Ok(Evidence { text: format!("code {found}"), operations: 12, ..Evidence::default() })
}
