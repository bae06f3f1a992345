//! The table of ranks on a page, with what it shows in sentences.

use std::fmt::Write as _;

use super::choice::{Choice, MOST_IN_FULL};
use super::markup::{counted, escape};
use super::{html, words};
use crate::commands::advise::advised::Job;
use crate::commands::advise::words::what_to_do;
use crate::each::Together;
use crate::ranks::{Ranks, Row, Standing};
use crate::terminal::output;
use crate::terminal::recording::short_name;

/// How many files that could not be shown are named.
const NAMED: usize = 8;

/// A run and what it is called.
pub(super) struct Named<'a> {
    pub(super) row: &'a Row<'a>,
    /// `rank 3`, or the file's name where files are no ranks.
    pub(super) name: String,
    /// Where it comes from.
    pub(super) file: String,
}

impl<'a> Named<'a> {
    /// Names a run.
    pub(super) fn of(row: &'a Row<'a>, are_ranks: bool) -> Named<'a> {
        let device = row.device.map_or_else(String::new, |device| format!(" device {device}"));
        let path = || output::one_line(&row.file.display().to_string());
        let (name, file) =
            if are_ranks { (format!("rank {}", row.rank), short_name(row.file)) } else { (short_name(row.file), path()) };
        Named { row, name: format!("{name}{device}"), file }
    }
}

/// The sentences, the setting for all, the table, and what is left out.
pub(super) fn html(named: &[Named<'_>], choice: &Choice, together: &Together<'_, ()>, job: Option<&Job>) -> String {
    let mut html = String::new();
    let are_compared = together.are_ranks && together.ranks.are_of_several_files();
    let sentences = if are_compared { together.ranks.sentences() } else { Vec::new() };
    let mut sentences = sentences.iter().map(|said| escape(&words::sentence(said)));
    if let Some(first) = sentences.next() {
        let class = if named.iter().any(|named| named.row.fails_first) { " bad" } else { "" };
        let _ = write!(html, "<p class=\"happened{class}\">{first}</p>");
    }
    let others: String = sentences.map(|said| format!("<li>{said}</li>")).collect();
    let _ = write!(html, "<ul class=\"notes\">{others}</ul>");
    if let Some((command, lines)) = job.map(what_to_do) {
        html.push_str(&html::what_to_do("What to do on all ranks", command.as_deref(), &lines));
    }
    let first = if together.are_ranks { "rank" } else { "recording" };
    let second = if together.are_ranks { "recording" } else { "file" };
    let heads: String = Ranks::COLUMNS.iter().map(|head| format!("<th class=\"number\">{head}</th>")).collect();
    let rows: String = named.iter().enumerate().map(|(run, named)| row(run, named, choice)).collect();
    let _ = write!(
        html,
        "<article class=\"card ranks-card\"><div class=\"head\"><h2>{}</h2></div><p class=\"hint\">Those with a tick are shown below, \
         beside each other where there is room.</p><div class=\"wide\"><table class=\"ranks\"><thead><tr><th>{first}</th><th>{second}</th>\
         {heads}</tr></thead><tbody>{rows}</tbody></table></div>{}</article>",
        if together.are_ranks { "All ranks" } else { "All recordings" },
        left_out(named, choice, together)
    );
    html
}

fn row(run: usize, named: &Named<'_>, choice: &Choice) -> String {
    let is_in_full = choice.in_full.contains(&run);
    let name = escape(&named.name);
    let name = if is_in_full {
        let checked = if choice.at_first.contains(&run) { " checked" } else { "" };
        format!("<label><input type=\"checkbox\" data-show=\"{run}\"{checked}>{name}</label>")
    } else {
        format!("<span class=\"unshown\">{name}</span>")
    };
    let mut tags = String::new();
    for (has, tag, class) in [(named.row.fails_first, "fails first", "bad"), (named.row.is_odd, "stands out", "warn")] {
        if has {
            let _ = write!(tags, " <span class=\"tag {class}\">{tag}</span>");
        }
    }
    let mut cells = String::new();
    for (cell, standing) in &named.row.cells {
        let class = match standing {
            Standing::Ordinary => "",
            Standing::Odd => " odd",
            Standing::Failed => " failed",
        };
        let _ = write!(cells, "<td class=\"number{class}\">{}</td>", escape(cell));
    }
    let path = escape(&named.row.file.display().to_string());
    let class = if is_in_full { "" } else { " class=\"rest\"" };
    format!(
        "<tr{class}><th scope=\"row\">{name}{tags}</th><td class=\"file\" title=\"{path}\">{}</td>{cells}</tr>",
        escape(&named.file)
    )
}

fn left_out(named: &[Named<'_>], choice: &Choice, together: &Together<'_, ()>) -> String {
    let mut html = String::new();
    let left_out = named.len() - choice.in_full.len();
    if left_out > 0 {
        let _ = write!(
            html,
            "<p class=\"hint\">{} without a tick box: only those that say most are in this page in full. <code>parkade report FILE \
             -o page.html</code> shows any of them, and of several files up to {MOST_IN_FULL}.</p>",
            counted(left_out as u64, "row")
        );
    }
    if !together.failures.is_empty() {
        let says = |(path, why): &(&std::path::Path, String)| format!("{} ({})", short_name(path), why);
        let said = output::list(together.failures.iter().take(NAMED).map(says));
        let more = if together.failures.len() > NAMED { " ..." } else { "" };
        let _ = write!(html, "<p class=\"hint failed\">Not in this page: {}{more}</p>", escape(&said));
    }
    html
}
