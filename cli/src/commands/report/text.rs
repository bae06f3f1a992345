//! A timeline for terminals: 80 columns, readable without colours.

use std::io::{self, Write};

use parkade::texts::format_bytes;
use parkade_analysis::timeline::{Curve, MarkerKind};

use super::gather::{Device, Report, curves};
use super::markup::grouped;
use super::words;
use crate::output::{self, wrapped};
use crate::recording::short_name;
use crate::size;

/// Columns of the graph; labels to its left take the rest of 80.
const COLUMNS: usize = 68;
/// Lines of the graph.
const LINES: usize = 14;
/// The lower eighths of a cell.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Reserved and not in use.
const RESERVED: char = '░';
/// How many holders are listed.
const HOLDERS: usize = 5;

pub(super) fn print(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let name = short_name(&report.file);
    for (place, device) in report.devices.iter().enumerate() {
        if place > 0 {
            writeln!(out)?;
        }
        let of = if report.devices.len() > 1 { format!(" device {}", device.number) } else { String::new() };
        writeln!(out, "{}{of}", name)?;
        for line in wrapped(&words::what_happened(report, device), 80) {
            writeln!(out, "{line}")?;
        }
        let settings = format!("settings {}; {}", words::settings(report), words::exactness(device));
        writeln!(out, "{}\n", output::dim(&wrapped(&output::one_line(&settings), 80).join("\n")))?;
        if device.timeline.entries > 0 {
            graph(out, report, device)?;
        }
        holders(out, report, device)?;
        tried(out, report, device)?;
        for note in words::notes(report, device) {
            for line in wrapped(&output::one_line(&note), 80) {
                writeln!(out, "{}", output::dim(&line))?;
            }
        }
    }
    Ok(())
}

fn graph(out: &mut dyn Write, report: &Report, device: &Device) -> io::Result<()> {
    let curves = curves(&device.timeline.levels, COLUMNS);
    let top = curves.reserved.peak().max(report.limit.run_bytes.unwrap_or(0)).max(1);
    let heights = |curve: &Curve| -> Vec<usize> {
        let height = |bytes: u64| (u128::from(bytes) * (LINES * 8) as u128).div_ceil(u128::from(top)) as usize;
        curve.buckets.iter().map(|bucket| height(bucket.max)).collect()
    };
    let (active, reserved) = (heights(&curves.active), heights(&curves.reserved));
    let limit_line =
        report.limit.run_bytes.map(|limit| LINES - 1 - ((u128::from(limit) * LINES as u128 - 1) / u128::from(top)) as usize);
    for line in 0..LINES {
        let floor = (LINES - 1 - line) * 8;
        let label = match line {
            0 => format_bytes(top),
            line if line == LINES / 2 => format_bytes(top / 2),
            line if line == LINES - 1 => "0".to_owned(),
            _ => String::new(),
        };
        let cells: String = active
            .iter()
            .zip(&reserved)
            .map(|(&active, &reserved)| match active.saturating_sub(floor).min(8) {
                0 if reserved > floor => RESERVED,
                0 if limit_line == Some(line) => '┄',
                eighths => EIGHTHS[eighths],
            })
            .collect();
        writeln!(out, "{label:>10} {}{cells}", if label.is_empty() { '│' } else { '┤' })?;
    }
    writeln!(out, "{:>10} └{}", "", "─".repeat(active.len()))?;
    markers(out, device, active.len())?;
    let last = format!("entry {}", grouped(device.timeline.entries as u64));
    writeln!(out, "{:>10}  0{last:>width$}", "", width = active.len().saturating_sub(1))?;
    let limit = report.limit.run_bytes.map_or_else(String::new, |limit| format!("  ┄ limit {}", format_bytes(limit)));
    writeln!(out, "{:>10}  █ in use  {RESERVED} reserved, not in use{limit}\n", "")
}

/// A line with a letter for the most serious event of each column.
fn markers(out: &mut dyn Write, device: &Device, columns: usize) -> io::Result<()> {
    let moments = device.timeline.entries + 1;
    let mut worst: Vec<Option<MarkerKind>> = vec![None; columns];
    for marker in &device.timeline.markers {
        // The column that covers this moment.
        let column = (((marker.moment as usize + 1) * columns - 1) / moments).min(columns - 1);
        worst[column] = Some(worst[column].map_or(marker.kind, |kind| kind.min(marker.kind)));
    }
    if worst.iter().all(Option::is_none) {
        return Ok(());
    }
    let letter = |kind: &Option<MarkerKind>| match kind {
        None => " ".to_owned(),
        Some(MarkerKind::OutOfMemory) => output::bad("X"),
        Some(MarkerKind::Retry) => "R".to_owned(),
        Some(MarkerKind::EmptyCache) => "e".to_owned(),
    };
    let line: String = worst.iter().map(letter).collect();
    writeln!(out, "{:>10}  {}", "", line.trim_end())?;
    let kinds =
        [(MarkerKind::OutOfMemory, "X out of memory"), (MarkerKind::Retry, "R retry"), (MarkerKind::EmptyCache, "e empty_cache")];
    let count = |kind| words::count_of(device, kind) as u64;
    let said = kinds.iter().filter(|(kind, _)| count(*kind) > 0);
    let said: Vec<String> = said
        .map(|(kind, name)| {
            let is_guess = *kind == MarkerKind::Retry && device.verdict.as_ref().is_some_and(|verdict| verdict.mismatches > 0);
            format!("{name}{} ({})", if is_guess { " in the replay" } else { "" }, grouped(count(*kind)))
        })
        .collect();
    writeln!(out, "{:>10}  {}", "", said.join("  "))
}

fn holders(out: &mut dyn Write, report: &Report, device: &Device) -> io::Result<()> {
    let total = device.curves.allocated.peak();
    if total == 0 {
        return Ok(());
    }
    let place = if device.verdict.is_some() { "at the peak of allocated memory" } else { "at the end" };
    writeln!(out, "who holds the {} {place} (entry {})", format_bytes(total), device.peak_allocated_moment)?;
    for holder in device.holders.iter().take(HOLDERS) {
        let share = holder.bytes as f64 / total as f64 * 100.0;
        let words = output::shorten(&output::one_line(&words::holder(report, holder.key)), 45);
        let (bytes, blocks) = (format_bytes(holder.bytes), grouped(holder.blocks));
        writeln!(out, "{bytes:>12} {share:>5.1} %  {blocks:>6} x  {words}")?;
    }
    writeln!(out)
}

fn tried(out: &mut dyn Write, report: &Report, device: &Device) -> io::Result<()> {
    if device.tried.is_empty() {
        return Ok(());
    }
    writeln!(out, "{}", output::dim("peak reserved  fits   retries  settings"))?;
    for (tried, _) in &device.tried {
        let fits = match tried.fits(report.limit.tried_bytes) {
            Some(true) => output::good("yes  "),
            Some(false) => output::bad("no   "),
            None => "-    ".to_owned(),
        };
        let (peak, retries) = (size::show(tried.peak_reserved_bytes), tried.retries);
        let own = if tried.is_own { " (the run's own)" } else { "" };
        let label = output::shorten(&output::one_line(&tried.label), 60);
        writeln!(out, "{peak:>13}  {fits}  {retries:>7}  {label}{own}")?;
    }
    writeln!(out)
}
