//! The table that is printed at the end.

use std::io::{self, Write};
use std::time::Duration;

use super::account::Row;
use super::options::Options;
use crate::targets::{Kind, Target};

/// Prints a row for each target, and one for all readers and all commands.
pub(super) fn print(options: &Options, targets: &[&Target], rows: &[Row], elapsed: Duration) {
    let mut out = io::stdout().lock();
    // A closed pipe does not change how the inputs fared.
    let _ = write_table(&mut out, options, targets, rows, elapsed);
}

fn write_table(out: &mut impl Write, options: &Options, targets: &[&Target], rows: &[Row], elapsed: Duration) -> io::Result<()> {
    let Options { seed, threads, .. } = options;
    writeln!(out, "seed {seed}, {threads} threads, {:.0} s", elapsed.as_secs_f64())?;
    writeln!(out, "| target | executions | read | failures | peak memory | slowest | mean input |")?;
    writeln!(out, "|---|--:|--:|--:|--:|--:|--:|")?;
    for (target, &row) in targets.iter().zip(rows) {
        write_row(out, target.name, row)?;
    }
    for (kind, name) in [(Kind::Reader, "**all readers**"), (Kind::Command, "**all commands**")] {
        let of_kind = targets.iter().zip(rows).filter(|(target, _)| target.kind == kind);
        if let Some(row) = of_kind.map(|(_, &row)| row).reduce(Row::and) {
            write_row(out, name, row)?;
        }
    }
    Ok(())
}

fn write_row(out: &mut impl Write, name: &str, row: Row) -> io::Result<()> {
    let of_all = |part: u64| part as f64 / row.executions.max(1) as f64;
    writeln!(
        out,
        "| {name} | {} | {:.1} % | {} | {:.1} MiB | {:.1} ms | {:.0} B |",
        row.executions,
        100.0 * of_all(row.read),
        row.failures,
        row.peak_bytes as f64 / f64::from(1 << 20),
        row.slowest_us as f64 / 1000.0,
        of_all(row.input_bytes),
    )
}
