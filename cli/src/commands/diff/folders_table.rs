//! The ranks in a table, the worst first, after the full comparison of the worst.

use std::io::{self, Write};

use super::folders::{Job, Rank};
use super::words::{change, percent};
use crate::terminal::output::{self, count};
use crate::terminal::recording::short_name;
use crate::terminal::runner::Outcome;
use crate::terminal::size::show_bytes;
use crate::terminal::table::{Mark, Table};

/// The columns of text.
const TEXT: [usize; 2] = [0, 1];

/// Prints the comparison of the worst rank, or of all, then the table.
pub(super) fn print(out: &mut dyn Write, job: &Job, all: bool) -> io::Result<()> {
    let in_full = if all { job.ranks.len() } else { 1 };
    for rank in job.ranks.iter().take(in_full) {
        writeln!(out, "{}\n", output::dim(&format!("rank {}", rank.number)))?;
        out.write_all(&rank.answer)?;
        writeln!(out)?;
    }
    write!(out, "{}", table(job).text_with_left(&TEXT))?;
    let mut said = job.matched.notes.clone();
    said.extend(sentence(job));
    for text in said {
        write!(out, "{}", output::paragraph(&text, 0))?;
    }
    if job.ranks.len() > in_full {
        let others = job.ranks.len() - in_full;
        writeln!(out, "{}", output::dim(&format!("the comparison in full is that of the worst; of {others} more with --all")))?;
    }
    Ok(())
}

fn table(job: &Job) -> Table {
    let are_pairs = job.ranks.iter().any(|rank| rank.levels.before.is_some());
    let mut heads = vec!["rank", "recording"];
    heads.extend(if are_pairs {
        &["peak reserved A", "B", "change", "", "change of allocated"][..]
    } else {
        &["peak reserved", "peak allocated"]
    });
    heads.push(if job.has_bounds { "check" } else { "ended" });
    let marked = heads.len() - 1;
    let mut table = Table::new(heads);
    for rank in &job.ranks {
        let mark = match rank.outcome {
            Outcome::CheckFailed | Outcome::CouldNotRun => Mark::Bad,
            Outcome::NotKnown => Mark::Plain,
            Outcome::Good => {
                if job.has_bounds {
                    Mark::Good
                } else {
                    Mark::Plain
                }
            }
        };
        table.marked(cells(rank, job.has_bounds), marked, mark);
    }
    table
}

fn cells(rank: &Rank, has_bounds: bool) -> Vec<String> {
    let last = rank.levels.last;
    let mut cells = vec![rank.number.to_string(), short_name(rank.b.as_deref().unwrap_or(&rank.a))];
    match rank.levels.before {
        None => cells.extend([show_bytes(last.reserved_bytes), show_bytes(last.allocated_bytes)]),
        Some(before) => cells.extend([
            show_bytes(before.reserved_bytes),
            show_bytes(last.reserved_bytes),
            change(before.reserved_bytes, last.reserved_bytes),
            percent(before.reserved_bytes, last.reserved_bytes),
            change(before.allocated_bytes, last.allocated_bytes),
        ]),
    }
    let ended = if rank.died { "died" } else { "-" };
    cells.push(match rank.outcome {
        _ if !has_bounds => ended.to_owned(),
        Outcome::Good => "holds".to_owned(),
        Outcome::CheckFailed | Outcome::CouldNotRun => "too much".to_owned(),
        Outcome::NotKnown => "not known".to_owned(),
    });
    cells
}

/// How many ranks are above a bound, or which grew most.
fn sentence(job: &Job) -> Option<String> {
    let worst = job.ranks.first()?;
    let all = count(job.ranks.len() as u64, "rank");
    let failed = job.ranks.iter().filter(|rank| rank.outcome == Outcome::CheckFailed).count();
    let unknown = job.ranks.iter().filter(|rank| rank.outcome == Outcome::NotKnown).count();
    if failed > 0 {
        return Some(format!("{failed} of {all} above a bound; rank {} is the worst.", worst.number));
    }
    if unknown > 0 {
        let peak = "its peak is that of what came before it died, or is compared with such a peak";
        return Some(format!("{unknown} of {all} not known to be within the bounds, first rank {}: {peak}.", worst.number));
    }
    let growth = worst.levels.growth_bytes();
    Some(match worst.levels.before {
        None => format!("Of {all}, rank {} reserves most.", worst.number),
        Some(_) if growth > 0 => format!("Of {all}, reserved memory grew most on rank {}.", worst.number),
        Some(_) => format!("Reserved memory grew on none of {all}."),
    })
}
