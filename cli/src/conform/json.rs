//! A run as JSON: one object a line for each entry.

use std::io::Write;

use anyhow::Result;
use parkade_conformance::suite::Row;
use serde::Serialize;

use super::Run;

#[derive(Serialize)]
struct Line<'a> {
    group: &'static str,
    name: &'a str,
    backend: &'static str,
    status: &'static str,
    reason: &'a str,
    says: &'static str,
    operations: u64,
    seconds: f64,
    measured: &'a str,
    text: &'a str,
    script: Option<&'a str>,
}

pub(super) fn print(out: &mut impl Write, run: &Run) -> Result<()> {
    for row in &run.rows {
        let Row { group, name, says, backend, status, reason, script, evidence, took } = row;
        let line = Line {
            group: group.name(),
            name,
            backend,
            status: status.name(),
            reason,
            says,
            operations: evidence.operations,
            seconds: took.as_secs_f64(),
            measured: &evidence.measured,
            text: &evidence.text,
            script: script.as_deref(),
        };
        writeln!(out, "{}", serde_json::to_string(&line)?)?;
    }
    Ok(())
}
