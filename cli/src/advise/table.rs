//! Advice as a table, one line an option, and the recommendation as the last lines.

use std::io::{self, Write};

use parkade_analysis::advise::{Advice, AdvisedOption, Verdict};

use super::{Advised, short_name, words};
use crate::output::{self, Paint};
use crate::size::{show, show_bytes};

const HEADS: [&str; 8] = ["fits", "fails at", "oom", "peak reserved", "headroom", "smallest memory", "retries", "driver time"];
/// How many options are shown if not all are asked for.
const SHOWN: usize = 12;
/// How many things are named that may break and do not show.
const UNKNOWN: usize = 1;

pub(super) fn print(out: &mut impl Write, advised: &Advised, report: &Advice, all: bool, paint: Paint) -> io::Result<()> {
    let name = short_name(&advised.file);
    writeln!(out, "{}", paint.dim(&format!("{name}: {}", header(report))))?;
    options(out, report, all, paint)?;
    let notes = words::notes(advised, report);
    if !notes.is_empty() {
        writeln!(out)?;
    }
    for note in notes {
        writeln!(out, "{}", output::one_line(&note))?;
    }
    writeln!(out)?;
    end(out, advised, report, paint)
}

fn header(report: &Advice) -> String {
    let requests: usize = report.programs.iter().map(|program| program.requests.operations.len()).sum();
    let mismatches: u64 = report.programs.iter().map(|program| program.requests.mismatches).sum();
    let exact = if mismatches == 0 { "every decision verified".to_owned() } else { format!("{mismatches} decisions differ") };
    let live = report.programs.iter().map(|program| program.live.bytes).max().unwrap_or(0);
    let memory = match report.own().available_bytes {
        Some(available) => format!("{} of memory", show_bytes(available)),
        None => "any amount of memory".to_owned(),
    };
    format!(
        "{requests} requests, {exact}; {} in use at most, {memory}; {} settings tried",
        show_bytes(live),
        report.options.len()
    )
}

/// The recorded run's own first, then the most useful.
fn options(out: &mut impl Write, report: &Advice, all: bool, paint: Paint) -> io::Result<()> {
    let count = if all { report.options.len() } else { SHOWN };
    let recommended = report.recommendation.as_ref().map(|recommendation| recommendation.option);
    let shown = |&(place, option): &(usize, &AdvisedOption)| {
        place < count || option.is_given || option.settings.text.is_empty() || recommended == Some(place)
    };
    let options: Vec<&AdvisedOption> = report.options.iter().enumerate().filter(shown).map(|(_, option)| option).collect();
    let name = |option: &AdvisedOption| {
        let own = if option.is_own { " (the run's own)" } else { "" };
        let caution = if option.has_warnings() { " (!)" } else { "" };
        format!("{}{own}{caution}", words::name(option))
    };
    let rows: Vec<(String, [String; HEADS.len()])> = options.iter().map(|option| (name(option), cells(option))).collect();
    let width =
        |column: usize| rows.iter().map(|(_, cells)| cells[column].chars().count()).max().unwrap_or(0).max(HEADS[column].len());
    // Without a memory there is nothing to fail in and nothing left.
    let has_memory = report.own().available_bytes.is_some();
    let columns: Vec<usize> = (0..HEADS.len()).filter(|&column| has_memory || !matches!(column, 0..=2 | 4)).collect();
    let name_width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max("settings".len());
    let heads: Vec<String> = columns.iter().map(|&column| format!("{:>1$}", HEADS[column], width(column))).collect();
    writeln!(out, "{}", paint.dim(&format!("{:<name_width$}  {}", "settings", heads.join("  "))))?;
    for ((name, cells), option) in rows.iter().zip(&options) {
        let cell = |&column: &usize| {
            let cell = format!("{:>1$}", cells[column], width(column));
            match column {
                0 if option.fits() => paint.good(&cell),
                0 => paint.bad(&cell),
                _ => cell,
            }
        };
        writeln!(out, "{name:<name_width$}  {}", columns.iter().map(cell).collect::<Vec<_>>().join("  "))?;
    }
    let left = report.options.len() - options.len();
    if left > 0 { writeln!(out, "{}", paint.dim(&format!("and {left} more (--all)"))) } else { Ok(()) }
}

fn cells(option: &AdvisedOption) -> [String; HEADS.len()] {
    let fits = match (option.fits(), option.is_close(), option.may_survive()) {
        (true, false, _) => "yes",
        (true, true, _) => "just",
        (false, _, true) => "may go on",
        (false, true, false) => "just not",
        (false, false, false) => "no",
    };
    [
        fits.to_owned(),
        option.fails_at_entry().map_or_else(|| "-".to_owned(), |entry| entry.to_string()),
        option.ooms().to_string(),
        show(option.peak_reserved_bytes()),
        option.headroom_bytes().map_or_else(String::new, show_signed),
        show_bytes(option.smallest_capacity_bytes()),
        option.retries().to_string(),
        format!("{:.1} ms", option.driver_us() as f64 / 1000.0),
    ]
}

fn show_signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", show_bytes(bytes.unsigned_abs()))
}

fn end(out: &mut impl Write, advised: &Advised, report: &Advice, paint: Paint) -> io::Result<()> {
    if report.verdict != Verdict::Fits {
        writeln!(out, "{}: {}", paint.bad(report.verdict.name()), words::verdict(report))?;
    }
    let Some((recommendation, option)) = report.recommendation.as_ref().zip(report.recommended()) else {
        return none(out, advised, report, paint);
    };
    for caution in option.warnings() {
        writeln!(out, "{} {} {} [{}]", paint.bad("beware:"), caution.what, caution.instead, caution.source)?;
    }
    let unknown = words::unknown(option);
    for caution in unknown.iter().take(UNKNOWN) {
        writeln!(out, "before you use it, check what no recording shows: {} [{}]", caution.what, caution.source)?;
    }
    if let Some(more @ 1..) = unknown.len().checked_sub(UNKNOWN) {
        writeln!(out, "{}", paint.dim(&format!("and {more} more that do not show (--json has all, with what to do instead)")))?;
    }
    if option.is_close() {
        writeln!(out, "close: less than 1 % of memory more or less may change this")?;
    }
    if let Some(also) = words::also(option) {
        writeln!(out, "{also}")?;
    }
    writeln!(out, "{}", words::why(report))?;
    writeln!(out, "costs: {}", words::costs(report))?;
    let line = output::one_line(&recommendation.line);
    if option.is_own {
        writeln!(out, "{}", paint.good(&format!("keep the settings as they are ({})", words::name(option))))
    } else {
        writeln!(out, "{}", paint.good(&line))
    }
}

/// No setting helps.
fn none(out: &mut impl Write, advised: &Advised, report: &Advice, paint: Paint) -> io::Result<()> {
    let Some(fullest) = report.programs.iter().max_by_key(|program| program.live.bytes) else { return Ok(()) };
    let least = report.options.iter().min_by_key(|option| option.smallest_capacity_bytes());
    let holders = words::holders(advised, fullest);
    if !holders.is_empty() {
        writeln!(out, "what holds the most at entry {}:", fullest.live.entry)?;
    }
    for holder in holders {
        writeln!(out, "  {holder}")?;
    }
    if let Some(least) = least {
        let smallest = least.smallest_capacity_bytes();
        writeln!(out, "least that suffices: {} with {}", show_bytes(smallest), words::name(least))?;
        if least.is_close() {
            writeln!(out, "close: less than 1 % of memory more or less may change this")?;
        }
    }
    if report.options.iter().any(AdvisedOption::may_survive) {
        writeln!(out, "the requests that fail may be workspaces that a library (cuDNN) goes on without")?;
    }
    writeln!(out, "{}", paint.bad(&words::no_setting(report)))
}
