//! The messages of a log in a table: one row for each different message of each rank.

use std::io::{self, Write};

use parkade_analysis::diagnose::MessageVerdict;
use parkade_recording::message::{FirstFailure, Size, ToldBy};

use super::super::layout::hanging;
use super::{Explained, LogDiagnosis};
use crate::terminal::output::count;
use crate::terminal::table::{Mark, Table};

/// So many rows are shown; JSON has all.
const SHOWN: usize = 40;

/// The messages of a log with more than one, before the first is explained.
pub(super) fn print(out: &mut dyn Write, diagnosis: &LogDiagnosis) -> io::Result<()> {
    let messages = &diagnosis.log.messages;
    hanging(out, "", 0, &heading(diagnosis))?;
    writeln!(out)?;
    let mut table = Table::new(["rank", "device", "line", "times", "tried", "allocated", "reserved", "free", "verdict"]);
    for (place, (logged, explained)) in messages.iter().zip(&diagnosis.diagnoses).enumerate().take(SHOWN) {
        let or_dash = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let size = |size: Option<Size>| size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        let figures = Figures::of(explained);
        let cut = if matches!(explained, Explained::Partial(_)) { " (cut)" } else { "" };
        let cells = [
            or_dash(logged.rank),
            or_dash(figures.device),
            logged.line.to_string(),
            logged.times.to_string(),
            size(figures.tried),
            size(figures.allocated),
            size(figures.reserved),
            size(figures.free),
            format!("{}{cut}", words(explained.verdict())),
        ];
        table.marked(cells, 0, if place == diagnosis.explained { Mark::Bad } else { Mark::Plain });
    }
    write!(out, "{}", table.text_with_left(&[8]))?;
    if let Some(more @ 1..) = messages.len().checked_sub(SHOWN) {
        writeln!(out, "and {} more; --json lists all", count(more, "message"))?;
    }
    let logged = &messages[diagnosis.explained];
    let rank = logged.rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
    writeln!(out, "\nexplained: {rank}line {}\n", logged.line)
}

/// How many there are and who failed first.
fn heading(diagnosis: &LogDiagnosis) -> String {
    let messages = &diagnosis.log.messages;
    let mut ranks: Vec<u32> = messages.iter().filter_map(|message| message.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let of = if ranks.is_empty() { String::new() } else { format!(" of {}", count(ranks.len(), "rank")) };
    let first = match &diagnosis.log.first {
        Some(first) => told(diagnosis, first),
        None => "which came first is not known, because their lines have no times that tell; the first in the log is explained"
            .to_owned(),
    };
    let found = count(messages.len(), "different out-of-memory message");
    match diagnosis.log.left_out {
        0 => format!("{found}{of}; {first}"),
        more => format!("the first {found}{of}, and {more} more behind them that are only counted; {first}"),
    }
}

fn told(diagnosis: &LogDiagnosis, first: &FirstFailure) -> String {
    let rank = first.rank.map_or_else(
        || format!("that of line {}", diagnosis.log.messages[diagnosis.explained].line),
        |rank| format!("rank {rank}"),
    );
    let by = match first.told_by {
        ToldBy::Times => "by the times of the lines",
        ToldBy::Launcher => "as torchrun observed",
    };
    let without = match (first.message, diagnosis.log.left_out) {
        (Some(_), _) => "",
        (None, 0) => ", but no message of it is in the text",
        (None, _) => ", but no message of it is among the first",
    };
    format!("{rank} failed first, at {}, {by}{without}", crate::terminal::output::one_line(&first.time))
}

/// The verdict in words.
fn words(verdict: MessageVerdict) -> &'static str {
    match verdict {
        MessageVerdict::Capacity => "capacity",
        MessageVerdict::Fragmentation => "fragmentation",
        MessageVerdict::PrivatePools => "private pools",
        MessageVerdict::DeviceHadRoom => "the device had room",
        MessageVerdict::Undecided => "undecided",
    }
}

/// The figures that a message has.
pub(super) struct Figures {
    pub(super) device: Option<u32>,
    pub(super) tried: Option<Size>,
    pub(super) total: Option<Size>,
    pub(super) free: Option<Size>,
    pub(super) limit: Option<Size>,
    pub(super) allocated: Option<Size>,
    pub(super) reserved: Option<Size>,
    pub(super) unallocated: Option<Size>,
    pub(super) private_pools: Option<Size>,
}

impl Figures {
    pub(super) fn of(explained: &Explained) -> Figures {
        match explained {
            Explained::Whole(diagnosis) => {
                let message = &diagnosis.message;
                Figures {
                    device: Some(message.device),
                    tried: Some(message.tried),
                    total: Some(message.total),
                    free: Some(message.free),
                    limit: message.limit,
                    allocated: Some(message.allocated),
                    reserved: Some(message.reserved),
                    unallocated: Some(message.unallocated),
                    private_pools: message.private_pools,
                }
            }
            Explained::Partial(diagnosis) => {
                let message = &diagnosis.message;
                Figures {
                    device: message.device,
                    tried: message.tried,
                    total: message.total,
                    free: message.free,
                    limit: message.limit,
                    allocated: message.allocated,
                    reserved: message.reserved,
                    unallocated: message.unallocated,
                    private_pools: message.private_pools,
                }
            }
        }
    }
}
