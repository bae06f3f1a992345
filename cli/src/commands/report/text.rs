//! A timeline for terminals, as wide as the terminal, readable without colours.

use std::io::{self, Write};

use crate::terminal::size::show_bytes;
use parkade_analysis::advise::Outcome;
use parkade_analysis::timeline::{Curve, MarkerKind};

use super::gather::{Device, Report, curves};
use super::{holders, words};
use crate::commands::advise::words::REACHES_BEYOND;
use crate::terminal::markup::grouped;
use crate::terminal::output::{self, wrapped};
use crate::terminal::recording::short_name;
use crate::terminal::size;

/// Columns left of the graph.
const LABELS: usize = 12;
/// The maximum width of a line of words, because longer lines are hard to read.
const WORDS: usize = 110;

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

    /// Columns of words.
    fn words(self) -> usize {
        self.columns.min(WORDS)
    }
}

/// The lower eighths of a cell.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Reserved but not in use.
const RESERVED: char = '░';
/// The columns of a row of tried settings that precede the settings.
const ROW: usize = 31;
/// Names are not cut shorter than this.
const SHORTEST: usize = 10;
/// The number of holders listed.
const HOLDERS: usize = 5;

pub(super) fn print(out: &mut dyn Write, report: &Report, size: Size) -> io::Result<()> {
    let name = short_name(&report.file);
    for (place, device) in report.devices.iter().enumerate() {
        if place > 0 {
            writeln!(out)?;
        }
        let of = if report.devices.len() > 1 { format!(" device {}", device.number) } else { String::new() };
        writeln!(out, "{}{of}", name)?;
        for line in wrapped(&words::what_happened(device), size.words()) {
            writeln!(out, "{line}")?;
        }
        let settings = format!("settings {}; {}; {}", words::settings(report), words::exactness(device), words::version(report));
        writeln!(out, "{}\n", output::dim(&wrapped(&output::one_line(&settings), size.words()).join("\n")))?;
        if device.timeline.entries > 0 {
            graph(out, device, size)?;
        }
        holders(out, report, device, size)?;
        holders::print_kinds(out, device, size.words())?;
        tried(out, device, size)?;
        for note in words::notes(report, device) {
            for line in wrapped(&output::one_line(&note), size.words()) {
                writeln!(out, "{}", output::dim(&line))?;
            }
        }
    }
    Ok(())
}

fn graph(out: &mut dyn Write, device: &Device, size: Size) -> io::Result<()> {
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
        writeln!(out, "{label:>10} {}{cells}", if label.is_empty() { '│' } else { '┤' })?;
    }
    writeln!(out, "{:>10} └{}", "", "─".repeat(active.len()))?;
    markers(out, device, active.len(), size)?;
    let last = format!("entry {}", grouped(device.timeline.entries as u64));
    writeln!(out, "{:>10}  0{last:>width$}", "", width = active.len().saturating_sub(1))?;
    let assumed = if device.limit.is_assumed() { ", assumed" } else { "" };
    let limit = device.limit.run_bytes.map_or_else(String::new, |limit| format!("  ┄ limit {}{assumed}", show_bytes(limit)));
    indented(out, &format!("█ in use  {RESERVED} reserved, not in use{limit}"), size)?;
    writeln!(out)
}

/// Words below the graph.
fn indented(out: &mut dyn Write, text: &str, size: Size) -> io::Result<()> {
    wrapped(text, size.columns.saturating_sub(LABELS).max(10)).iter().try_for_each(|line| writeln!(out, "{:>10}  {line}", ""))
}

/// A line with a letter for the most serious event of each column.
fn markers(out: &mut dyn Write, device: &Device, columns: usize, size: Size) -> io::Result<()> {
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
    indented(out, &said.join("  "), size)
}

fn holders(out: &mut dyn Write, report: &Report, device: &Device, size: Size) -> io::Result<()> {
    let total = device.curves.allocated.peak();
    if total == 0 {
        return Ok(());
    }
    let place = if device.verdict.is_some() {
        format!("at the peak of allocated memory ({})", words::after(device.peak_allocated_moment))
    } else {
        "at the end".to_owned()
    };
    let title = format!("who holds the {} {place}", show_bytes(total));
    writeln!(out, "{}", wrapped(&title, size.words()).join("\n"))?;
    for holder in device.holders.iter().take(HOLDERS) {
        let share = holder.bytes as f64 / total as f64 * 100.0;
        let words =
            output::fitted(&output::one_line(&words::holder(report, holder.key)), size.columns.saturating_sub(32).max(SHORTEST));
        let (bytes, blocks) = (show_bytes(holder.bytes), grouped(holder.blocks));
        writeln!(out, "{bytes:>12} {share:>5.1} %  {blocks:>6} x  {words}")?;
    }
    writeln!(out)
}

fn tried(out: &mut dyn Write, device: &Device, size: Size) -> io::Result<()> {
    if device.tried.is_empty() {
        return Ok(());
    }
    let assumed = if device.limit.is_assumed() { " (assumed)" } else { "" };
    let memory = device.limit.tried_bytes.map_or_else(|| "as much memory as is needed".to_owned(), show_bytes);
    writeln!(out, "{}", wrapped(&format!("with other settings, in {memory}{assumed}"), size.words()).join("\n"))?;
    writeln!(out, "{}", output::dim("peak reserved  fits   retries  settings"))?;
    for (tried, _) in &device.tried {
        let fits = match tried.outcome {
            Outcome::Fits => output::good("yes  "),
            Outcome::GetsPast => "past ".to_owned(),
            Outcome::DoesNotFit => output::bad("no   "),
            Outcome::Unknown => "-    ".to_owned(),
        };
        let (peak, retries) = (size::show(tried.run().peak_reserved_bytes), tried.run().retries);
        let own = if tried.is_own { " (the run's own)" } else { "" };
        let room = size.columns.saturating_sub(ROW);
        let own = if room < own.len() + SHORTEST { "" } else { own };
        let label = output::fitted(&output::one_line(&tried.label), room.saturating_sub(own.len()).max(SHORTEST));
        writeln!(out, "{peak:>13}  {fits}  {retries:>7}  {label}{own}")?;
    }
    if device.tried.iter().any(|(tried, _)| tried.outcome == Outcome::GetsPast) {
        let rest = if device.rest.is_some() { "is estimated" } else { "is not known" };
        let past = format!("past: gets past the error of which the run died; the rest {rest}");
        for line in wrapped(&past, size.words()) {
            writeln!(out, "{}", output::dim(&line))?;
        }
    }
    if device.tried.iter().any(|(tried, _)| tried.reaches_beyond(device.limit.tried_bytes)) {
        for line in wrapped(REACHES_BEYOND, size.words()) {
            writeln!(out, "{}", output::dim(&line))?;
        }
    }
    if device.rest.is_some() {
        for line in wrapped("peaks and retries include what is estimated of the rest", size.words()) {
            writeln!(out, "{}", output::dim(&line))?;
        }
    }
    writeln!(out)
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
        let mut text = Vec::new();
        print(&mut text, &report, Size::new(columns, 50)).expect("text");
        let text = anstream::adapter::strip_str(std::str::from_utf8(&text).expect("text")).to_string();
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
