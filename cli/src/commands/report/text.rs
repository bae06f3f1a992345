//! A timeline for terminals, as wide as the terminal, readable without colours.

use std::fmt::Write as _;

use crate::terminal::size::show_bytes;
use parkade_analysis::advise::Outcome;
use parkade_analysis::timeline::{Curve, MarkerKind};

use super::gather::{Device, Report, curves};
use super::{holders, words};
use crate::commands::advise::words::REACHES_BEYOND;
use crate::terminal::answer::Answer;
use crate::terminal::markup::grouped;
use crate::terminal::output::{self, Tone, wrapped};
use crate::terminal::recording::short_name;
use crate::terminal::size;
use crate::terminal::table::{Mark, Table};

/// Columns left of the graph.
const LABELS: usize = 12;

/// The size of the drawing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    /// Columns in all.
    columns: usize,
    /// Lines of the graph.
    lines: usize,
}

impl Size {
    /// The size of the terminal, or 80 columns without one, so that output in files does not depend on where it was made.
    pub(super) fn of_terminal() -> Size {
        output::terminal().map_or(Size::new(80, 40), |(columns, lines)| Size::new(columns, lines))
    }

    /// The size for a terminal of this many columns and lines. A wider graph is taller, but words should stay in view beside it.
    fn new(columns: usize, lines: usize) -> Size {
        Size { columns, lines: (columns / 6).clamp(14, 28).min(lines / 2).max(8) }
    }

    /// Columns of the graph.
    const fn graph(self) -> usize {
        self.columns.saturating_sub(LABELS)
    }
}

/// The lower eighths of a cell.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Reserved but not in use.
const RESERVED: char = '░';
/// The number of holders listed.
const HOLDERS: usize = 5;

pub(super) fn answer(report: &Report, size: Size) -> Answer {
    let name = short_name(&report.file);
    let mut answer = Answer::new();
    for (place, device) in report.devices.iter().enumerate() {
        if place > 0 {
            answer.gap();
        }
        let of = if report.devices.len() > 1 { format!(" device {}", device.number) } else { String::new() };
        answer.headline(Tone::Plain, words::what_happened(device));
        let of_run = match words::settings(report) {
            _ if device.simulated.is_some() => String::new(),
            default if default == "default settings" => default + "; ",
            other => format!("settings {other}; "),
        };
        let settings = format!("{of_run}{}; {}", words::exactness(device), words::version(report));
        answer.toned(Tone::Dim, format!("{name}{of}: {settings}"));
        answer.gap();
        if device.timeline.entries > 0 {
            answer.drawing(graph(device, size));
            answer.gap();
        }
        held(&mut answer, report, device);
        holders::kinds(&mut answer, device);
        tried(&mut answer, device);
        in_the_way(&mut answer, device);
        words::notes(report, device).into_iter().for_each(|note| answer.toned(Tone::Dim, note));
    }
    answer
}

/// The graph, with its axes and its legend.
fn graph(device: &Device, size: Size) -> String {
    let mut drawn = String::new();
    let out = &mut drawn;
    let (columns, lines) = (size.graph(), size.lines);
    let curves = curves(&device.timeline.levels, columns);
    let top = curves.reserved.peak().max(device.limit.run_bytes.unwrap_or(0)).max(1);
    let heights = |curve: &Curve| -> Vec<usize> {
        let height = |bytes: u64| (u128::from(bytes) * (lines * 8) as u128).div_ceil(u128::from(top)) as usize;
        // A short trace has fewer moments than columns.
        let buckets = &curve.buckets;
        (0..columns).filter_map(|column| buckets.get(column * buckets.len() / columns)).map(|bucket| height(bucket.max)).collect()
    };
    let (active, reserved) = (heights(&curves.active), heights(&curves.reserved));
    let limit_line = device
        .limit
        .run_bytes
        .map(|limit| lines - 1 - ((u128::from(limit) * lines as u128).saturating_sub(1) / u128::from(top)) as usize);
    for line in 0..lines {
        let floor = (lines - 1 - line) * 8;
        let label = match line {
            0 => show_bytes(top),
            line if line == lines / 2 => show_bytes(top / 2),
            line if line == lines - 1 => "0".to_owned(),
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
        let _ = writeln!(out, "{label:>10} {}{cells}", if label.is_empty() { '│' } else { '┤' });
    }
    let _ = writeln!(out, "{:>10} └{}", "", "─".repeat(active.len()));
    markers(out, device, active.len(), size);
    let last = format!("entry {}", grouped(device.timeline.entries as u64));
    let _ = writeln!(out, "{:>10}  0{last:>width$}", "", width = active.len().saturating_sub(1));
    let assumed = if device.limit.is_assumed() { ", assumed" } else { "" };
    let limit = device.limit.run_bytes.map_or_else(String::new, |limit| format!("  ┄ limit {}{assumed}", show_bytes(limit)));
    indented(out, &format!("█ in use  {RESERVED} reserved, not in use{limit}"), size);
    drawn
}

/// Words below the graph.
fn indented(out: &mut String, text: &str, size: Size) {
    for line in wrapped(text, size.columns.saturating_sub(LABELS).max(10)) {
        let _ = writeln!(out, "{:>10}  {line}", "");
    }
}

/// A line with a letter for the most serious event of each column.
fn markers(out: &mut String, device: &Device, columns: usize, size: Size) {
    let moments = device.timeline.entries + 1;
    let mut worst: Vec<Option<MarkerKind>> = vec![None; columns];
    for marker in &device.timeline.markers {
        // The column that covers this moment.
        let column = (((marker.moment as usize + 1) * columns - 1) / moments).min(columns - 1);
        worst[column] = Some(worst[column].map_or(marker.kind, |kind| kind.min(marker.kind)));
    }
    if worst.iter().all(Option::is_none) {
        return;
    }
    let letter = |kind: &Option<MarkerKind>| match kind {
        None => " ".to_owned(),
        Some(MarkerKind::OutOfMemory) => output::bad("X"),
        Some(MarkerKind::Retry) => "R".to_owned(),
        Some(MarkerKind::EmptyCache) => "e".to_owned(),
    };
    let line: String = worst.iter().map(letter).collect();
    let _ = writeln!(out, "{:>10}  {}", "", line.trim_end());
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
    indented(out, &said.join("  "), size);
}

fn held(answer: &mut Answer, report: &Report, device: &Device) {
    let total = device.curves.allocated.peak();
    if total == 0 {
        return;
    }
    let place = if device.verdict.is_some() {
        format!("at the peak of allocated memory ({})", words::after(device.peak_allocated_moment))
    } else {
        "at the end".to_owned()
    };
    answer.title(format!("who holds the {} {place}", show_bytes(total)));
    let mut table = Table::bare(2).with_left([3]);
    for holder in device.holders.iter().take(HOLDERS) {
        let share = format!("{:.1} %", holder.bytes as f64 / total as f64 * 100.0);
        let blocks = format!("{} x", grouped(holder.blocks));
        table.row([show_bytes(holder.bytes), share, blocks, words::holder(report, holder.key)]);
    }
    answer.table(table);
    answer.gap();
}

/// The blocks that are in the way of a policy.
fn in_the_way(answer: &mut Answer, device: &Device) {
    let Some(against) = device.simulated.as_ref().and_then(|simulated| simulated.against.as_ref()) else { return };
    if let Some(table) = against.table() {
        answer.title("the largest blocks in the way of the policy, where it first needs more than the packing");
        answer.table(table);
        against.table_notes().into_iter().for_each(|note| answer.indented(2, note));
        answer.gap();
    }
}

fn tried(answer: &mut Answer, device: &Device) {
    if device.tried.is_empty() {
        return;
    }
    let assumed = if device.limit.is_assumed() { " (assumed)" } else { "" };
    let memory = device.limit.tried_bytes.map_or_else(|| "as much memory as is needed".to_owned(), show_bytes);
    answer.title(format!("with other settings, in {memory}{assumed}"));
    let mut table = Table::new(["peak reserved", "fits", "retries", "settings"]).with_left([1, 3]);
    for (tried, _) in &device.tried {
        let (fits, mark) = match tried.outcome {
            Outcome::Fits => ("yes", Mark::Good),
            Outcome::GetsPast => ("past", Mark::Plain),
            Outcome::DoesNotFit => ("no", Mark::Bad),
            Outcome::Unknown => ("-", Mark::Plain),
        };
        let (peak, retries) = (size::show(tried.run().peak_reserved_bytes), tried.run().retries.to_string());
        let own = if tried.is_own { " (the run's own)" } else { "" };
        table.marked([peak, fits.to_owned(), retries, format!("{}{own}", tried.label)], 1, mark);
    }
    answer.table(table);
    if device.tried.iter().any(|(tried, _)| tried.outcome == Outcome::GetsPast) {
        let rest = if device.rest.is_some() { "is estimated" } else { "is not known" };
        answer.toned(Tone::Dim, format!("past: gets past the error that ended the run; the rest {rest}"));
    }
    if device.tried.iter().any(|(tried, _)| tried.reaches_beyond(device.limit.tried_bytes)) {
        answer.toned(Tone::Dim, REACHES_BEYOND);
    }
    if device.rest.is_some() {
        answer.toned(Tone::Dim, "peaks and retries include the estimated rest");
    }
    answer.gap();
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::super::gather::{self, Args};
    use super::*;
    use crate::each::OnEach;

    fn drawn(file: &str, columns: usize) -> Vec<String> {
        let file = format!("{}/../conformance/recordings/{file}.pickle.xz", env!("CARGO_MANIFEST_DIR"));
        let report =
            gather::gather(&Args::parse_from(["report", "--json", &file]).on(Path::new(&file), false)).expect("a report");
        let text = answer(&report, Size::new(columns, 50)).text(columns);
        let text = anstream::adapter::strip_str(&text).to_string();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_graph_is_as_wide_as_the_terminal_and_nothing_is_wider() {
        for (file, columns) in [
            ("gpt2_varlen.limit12_oom", 80),
            ("gpt2_varlen.limit12_oom", 211),
            ("gpt2_varlen.limit12_oom", 50),
            ("deep_mlp.default", 60),
        ] {
            let lines = drawn(file, columns);
            let graph: Vec<usize> =
                lines.iter().filter(|line| line.contains(['┤', '│'])).map(|line| line.chars().count()).collect();
            assert!(graph.len() >= 14 && graph.iter().all(|&width| width == columns), "{columns}: {graph:?}");
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{columns}: {}", lines.join("\n"));
        }
    }

    #[test]
    fn a_graph_grows_with_its_terminal() {
        assert_eq!(
            [(80, 40), (200, 50), (200, 24), (60, 10)].map(|(columns, lines)| Size::new(columns, lines).lines),
            [14, 25, 12, 8]
        );
    }
}
