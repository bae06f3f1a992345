//! A run as a Markdown report.

use std::fmt::Write;

use parkade_conformance::suite::{Group, Row, Status};

use super::Run;

/// The most lines shown of a scenario.
const SHOWN_LINES: usize = 36;
/// The groups in the order of the report.
const GROUPS: [Group; 5] = [Group::Law, Group::Contract, Group::Scenario, Group::PyTorchTest, Group::Lockstep];

// Writing to a string does not fail.
pub(super) fn markdown(run: &Run) -> String {
    let mut out = String::from("# Conformance report\n\n");
    for (name, value) in &run.facts {
        let _ = writeln!(out, "- {name}: {}", cell(value));
    }
    let summary = run.summary();
    let (cases, seed) = (run.effort.cases, run.effort.seed);
    let _ = writeln!(
        out,
        "- parkade {}, seed {seed}, {cases} random sequences for each law and event timing",
        env!("CARGO_PKG_VERSION")
    );
    if let Some(filter) = &run.filter {
        let _ = writeln!(out, "- only entries whose name contains `{}`", cell(filter));
    }
    let (operations, seconds) = (summary.operations, run.took.as_secs_f64());
    let _ = writeln!(
        out,
        "- **{} passed, {} failed, {} skipped**; {operations} random operations; {seconds:.1} s\n",
        summary.passed, summary.failed, summary.skipped
    );
    for group in GROUPS {
        let rows: Vec<&Row> = run.rows.iter().filter(|row| row.group == group).collect();
        if !rows.is_empty() {
            write_group(&mut out, group, &rows);
        }
    }
    write_texts(&mut out, run);
    out
}

fn write_group(out: &mut String, group: Group, rows: &[&Row]) {
    let _ = writeln!(out, "## {}\n\n| name | what holds | | seconds | measured |\n|---|---|---|---|---|", group.name());
    for row in rows {
        let status = if row.status == Status::Fail { "**FAIL**" } else { row.status.name() };
        let first = row.evidence.measured.lines().next().unwrap_or("");
        let note = if row.status == Status::Pass { cell(first) } else { cell(&row.reason) };
        let _ = writeln!(out, "| {} | {} | {status} | {:.3} | {note} |", cell(&row.name), cell(row.says), row.took.as_secs_f64());
    }
    out.push('\n');
    for row in rows.iter().filter(|row| row.script.is_some()) {
        let script = row.script.as_deref().unwrap_or("");
        let _ = writeln!(out, "`{}` fails with this script for `parkade ops`:\n\n```\n{script}```\n", row.name);
    }
}

/// Measured tables and the output of scenarios.
fn write_texts(out: &mut String, run: &Run) {
    let tables = run.rows.iter().filter(|row| row.evidence.measured.lines().count() > 1);
    for row in tables {
        let _ = writeln!(out, "## Measured: {}\n\n```\n{}\n```\n", row.name, row.evidence.measured.trim_end());
    }
    let shown: Vec<&Row> = run.rows.iter().filter(|row| row.group == Group::Scenario && !row.evidence.text.is_empty()).collect();
    if !shown.is_empty() {
        out.push_str("## What the scenarios showed\n\n");
    }
    for row in shown {
        let _ = writeln!(out, "### {}: {}\n\n```", row.name, cell(row.says));
        for line in row.evidence.text.lines().take(SHOWN_LINES) {
            let _ = writeln!(out, "{}", line.trim_end());
        }
        let more = row.evidence.text.lines().count().saturating_sub(SHOWN_LINES);
        let _ = writeln!(out, "{}```\n", if more > 0 { format!("... {more} more lines\n") } else { String::new() });
    }
}

/// Text in a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
