//! The ranks in a table, each with what is best for it alone and with the one setting for all.

use std::io::{self, Write};

use parkade_analysis::advise::{Outcome as Fit, paste_line};

use super::job::Job;
use super::job_words as words;
use super::table::show_signed;
use super::words::shown;
use crate::terminal::output;
use crate::terminal::recording::short_name;
use crate::terminal::size::show_bytes;
use crate::terminal::table::{Mark, Table};

const HEADS: [&str; 7] = ["rank", "recording", "best alone", "needs", "one for all", "needs with it", "headroom"];
/// The columns of text.
const TEXT: [usize; 3] = [0, 1, 2];
/// The column that is coloured.
const ONE_FOR_ALL: usize = 4;
const HEADROOM: usize = 6;

/// Prints the table, what it shows, and the line to paste last.
pub(super) fn print(out: &mut dyn Write, job: &Job) -> io::Result<()> {
    // Without any memory nothing fails and there is no headroom.
    let has_memory = job.advice.ranks.iter().any(|rank| rank.available_bytes.is_some());
    let is_shown = |column: &usize| has_memory || ![ONE_FOR_ALL, HEADROOM].contains(column);
    let columns =
        |cells: [String; HEADS.len()]| cells.into_iter().enumerate().filter(|(column, _)| is_shown(column)).map(|(_, cell)| cell);
    let mut table = Table::new(columns(HEADS.map(str::to_owned)));
    for (rank, standing) in job.ranks.iter().zip(&job.advice.ranks) {
        let best = rank.advice.best();
        let cells = [
            rank.number.to_string(),
            short_name(&rank.file),
            best.map_or_else(|| "none".to_owned(), |best| shown(&best.settings)),
            best.map_or_else(|| "-".to_owned(), |best| show_bytes(best.needs_bytes)),
            fit(standing.outcome).to_owned(),
            show_bytes(standing.needs_bytes),
            standing.margin_bytes().map_or_else(|| "-".to_owned(), show_signed),
        ];
        let mark = match standing.outcome {
            Fit::Fits => Mark::Good,
            Fit::DoesNotFit => Mark::Bad,
            Fit::GetsPast | Fit::Unknown => Mark::Plain,
        };
        table.marked(columns(cells), if has_memory { ONE_FOR_ALL } else { usize::MAX }, mark);
    }
    writeln!(out)?;
    write!(out, "{}", table.text_with_left(&TEXT))?;
    for found in &job.policies {
        write!(out, "{}", output::paragraph(&found.words(&words::ranks(found.worst_ranks())), 0))?;
    }
    for warning in words::warnings(job) {
        write!(out, "{}", output::alert("warning:", &warning))?;
    }
    let sentences = words::sentences(job);
    let (last, others) = sentences.split_last().map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
    for sentence in others {
        write!(out, "{}", output::paragraph(sentence, 0))?;
    }
    if !job.advice.serves_all {
        return writeln!(out, "{}", output::bad(output::paragraph(last, 0).trim_end()));
    }
    write!(out, "{}", output::paragraph(last, 0))?;
    // The last line is pasted into a shell, so it is not wrapped.
    let line = output::one_line(&paste_line(&job.advice.settings));
    let keep = format!("keep the settings as they are ({})", shown(&job.advice.settings));
    writeln!(out, "{}", output::good(if job.advice.is_own { &keep } else { &line }))
}

const fn fit(outcome: Fit) -> &'static str {
    match outcome {
        Fit::Fits => "fits",
        Fit::GetsPast => "gets past",
        Fit::DoesNotFit => "no",
        Fit::Unknown => "not known",
    }
}
