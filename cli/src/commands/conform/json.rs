//! A run as JSON: one object for each entry.

use parkade_conformance::suite::Row;

use crate::terminal::json_struct::view;

view! {
    pub(super) struct Line<'a>(row: &'a Row) {
        group: &'static str = row.group.name(),
        name: &'a str = &row.name,
        backend: &'static str = row.backend,
        status: &'static str = row.status.name(),
        reason: &'a str = &row.reason,
        says: &'static str = row.says,
        operations: u64 = row.evidence.operations,
        seconds: f64 = row.took.as_secs_f64(),
        measured: &'a str = &row.evidence.measured,
        text: &'a str = &row.evidence.text,
        script: Option<&'a str> = row.script.as_deref(),
    }
}
