//! A run as text: a line for each entry, then failures and how to repeat them.

use std::io::{self, Write};

use parkade_conformance::suite::{Row, Status};

use super::Run;
use crate::terminal::output;

/// Longer scripts are cut; `--json` and the report have all of it.
const SCRIPT_LINES: usize = 40;

pub(super) fn print(out: &mut dyn Write, run: &Run) -> io::Result<()> {
    let width = run.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut group = None;
    for row in &run.rows {
        if group != Some(row.group) {
            group = Some(row.group);
            writeln!(out, "{}", output::dim(row.group.name()))?;
        }
        let status = match row.status {
            Status::Pass => output::good("pass"),
            Status::Fail => output::bad("FAIL"),
            Status::Skip => output::dim("skip"),
        };
        let name = format!("{:width$}", row.name);
        writeln!(out, "  {name}  {status}  {:>7.3} s  {}", row.took.as_secs_f64(), note(row))?;
    }
    for row in run.rows.iter().filter(|row| row.status == Status::Fail) {
        print_failure(out, row)?;
    }
    let summary = run.summary();
    let failed = format!("{} failed", summary.failed);
    let failed = if summary.failed == 0 { failed } else { output::bad(&failed) };
    writeln!(
        out,
        "{} passed, {failed}, {} skipped; {} random operations, seed {}, {:.1} s",
        summary.passed,
        summary.skipped,
        summary.operations,
        run.effort.seed,
        run.took.as_secs_f64()
    )
}

/// The rest of the line.
fn note(row: &Row) -> String {
    match row.status {
        Status::Pass => output::shorten(&output::one_line(row.evidence.measured.lines().next().unwrap_or("")), 90),
        Status::Fail => "see below".to_owned(),
        Status::Skip => output::shorten(&output::one_line(&row.reason), 90),
    }
}

fn print_failure(out: &mut dyn Write, row: &Row) -> io::Result<()> {
    writeln!(out, "\n{} {}/{}: {}", output::bad("FAIL"), row.group.name(), row.name, row.says)?;
    for line in row.reason.lines() {
        writeln!(out, "  {}", output::one_line(line))?;
    }
    let Some(script) = &row.script else { return Ok(()) };
    writeln!(out, "  the shortest sequence found (for `parkade ops`, unless it concerns a policy):")?;
    for line in script.lines().take(SCRIPT_LINES) {
        writeln!(out, "    {}", output::one_line(line))?;
    }
    if script.lines().count() > SCRIPT_LINES {
        writeln!(out, "    # ... {} lines in all (--json or --report has them)", script.lines().count())?;
    }
    Ok(())
}
