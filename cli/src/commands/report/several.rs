//! The page of several recordings: a table of the ranks with its findings in sentences, and the most informative ranks in full,
//! side by side.
//!
//! Files are read more than once (for the table, for the one setting, and for the ranks in full), so that no more than a few
//! are ever in memory. A page stays below its size however many ranks there are.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use parkade_analysis::ranks::{RankAdvice, RankRun};
use parkade_recording::DeviceRecording;
use parkade_replay::VerifyOptions;
use parkade_replay::recognition::Asked;

use super::gather::{self, Args, Limit, Part, wrote};
use super::html::{self, Frame, Place};
use crate::commands::advise;
use crate::commands::advise::advised::Job;
use crate::commands::advise::words::what_to_do;
use crate::each::{Finished, Together};
use crate::ranks::{Ranks, Row, Standing};
use crate::recordings::{Inputs, each};
use crate::terminal::answer::Answer;
use crate::terminal::markup::{counted, escape};
use crate::terminal::output;
use crate::terminal::outputs::Target;
use crate::terminal::recording::{self, short_name};
use crate::terminal::runner::Outcome;

/// The maximum size of the text on the one setting for all ranks, including everything that it may break.
const SETTING_BYTES: usize = 8 << 10;

/// The compared numbers of the runs in a file, under the limit that its section assumes.
pub(super) fn runs(args: &Args) -> Result<Vec<RankRun>> {
    gather::given_settings(args, args.profile.map_or_else(recording::newest_release, crate::terminal::args::Profile::rules))?;
    let recording = recording::read_run(&args.file)?;
    let made_by = recording::made_by(&recording, &Asked { limit_bytes: args.limit, ..Asked::default() })?;
    let chosen = gather::chosen_devices(&recording, args.device)?;
    let own = VerifyOptions { settings: made_by.settings.clone(), limit_bytes: args.limit, stats_file: None };
    let limits = Limit::of_each(args, &chosen, &own)?;
    let run = |(device, limit): (&&DeviceRecording, &Limit)| {
        let own = VerifyOptions { limit_bytes: limit.run_bytes, ..own.clone() };
        let run = RankRun::of_recording(device, &own).map(|run| run.made_by(&made_by));
        recording::of_device(run, device.device, chosen.len())
    };
    chosen.iter().zip(&limits).map(run).collect()
}

/// Writes the page of all.
pub(super) fn write_page(args: &Args, together: &Together<'_, ()>, target: &Target) -> Result<Finished> {
    let rows = together.ranks.rows();
    if rows.is_empty() {
        bail!("no page is written: there is nothing to show");
    }
    let named: Vec<Named<'_>> = rows.iter().map(|row| Named::of(row, together.are_ranks)).collect();
    let asked = advise::Args::of_page(args.capacity.or(args.limit), args.limit, &args.settings, args.device).under(args.profile);
    let mut choice = Choice::of(&rows, &together.ranks.by_weight());
    let table_bytes = table(&named, &choice, together, None).len() + SETTING_BYTES;
    let page_bytes = usize::try_from(args.page_size).unwrap_or(usize::MAX);
    let share = html::share(page_bytes.saturating_sub(table_bytes), choice.in_full.len());
    let Sections { html: sections, advised, outcome } = all_sections(args, &named, &mut choice, share)?;
    let known = advised.into_iter().collect();
    let job = Job::of_files(&asked, together, known)?;
    let (in_full, of) = (choice.in_full.len(), rows.len());
    let frame = Frame {
        title: &title(&rows, together),
        path: "",
        meta: &if in_full < of { format!("<span>{in_full} of {of} in full</span>") } else { String::new() },
        tabs: "",
        table: &table(&named, &choice, together, job.as_ref()),
        layout: " class=\"beside\"",
        sections: &sections,
    };
    args.outputs::<&Path>(&[])?.write(target, html::frame(&frame).as_bytes())?;
    let mut answer = Answer::new();
    answer.paragraphs(wrote(target));
    if in_full < of {
        answer.paragraph(format!(
            "{in_full} of {of} are shown in full, {} only in the table: a page for files that you name shows up to \
             {MOST_IN_FULL} in full",
            of - in_full
        ));
    }
    Ok(Finished { outcome, answer, addition: job.map(|job| serde_json::to_value(advise::Addition::of(&job))).transpose()? })
}

/// The sections of the runs in full, each of at most this many bytes. Runs whose section cannot be made are dropped from the
/// choice.
fn all_sections(args: &Args, named: &[Named<'_>], choice: &mut Choice, share: usize) -> Result<Sections> {
    let files = choice.files(named.iter().map(|named| named.row.file));
    let paths: Vec<PathBuf> = files.iter().map(|&(path, _)| path.to_owned()).collect();
    let at_first = choice.at_first.clone();
    let work = |path: &Path| {
        let runs = files.iter().find(|(file, _)| *file == path).map_or(&[][..], |(_, runs)| runs);
        sections(args, path, runs, named, &at_first, share)
    };
    let mut made = Sections { html: String::new(), advised: Vec::new(), outcome: Outcome::Good };
    each(&Inputs::of(&paths), args.json.json, work, |place, result| {
        match result {
            Ok((sections, advice)) => {
                made.html.push_str(&sections);
                made.advised.extend(advice.map(|advice| (paths[place].clone(), advice)));
            }
            Err(error) => {
                output::complain(&format!("{}: only in the table: {error:#}", paths[place].display()));
                choice.in_full.retain(|&run| named[run].row.file != paths[place]);
                made.outcome = Outcome::CouldNotRun;
            }
        }
        Ok(())
    })?;
    Ok(made)
}

/// The runs in full.
struct Sections {
    html: String,
    /// The advice on each of their files, for the one setting.
    advised: Vec<(PathBuf, RankAdvice)>,
    outcome: Outcome,
}

/// The sections of a file, each of at most this many bytes, and the advice on the file.
fn sections(
    args: &Args,
    path: &Path,
    runs: &[usize],
    named: &[Named<'_>],
    at_first: &[usize],
    share: usize,
) -> Result<(String, Option<RankAdvice>)> {
    let args = Args { file: path.to_owned(), part: Part::Whole, ..args.clone() };
    let report = gather::gather(&args)?;
    if report.devices.len() != runs.len() {
        bail!("it has changed since it was first read");
    }
    let mut html = String::new();
    for (device, &run) in report.devices.iter().zip(runs) {
        let piece = html::piece(&report, device, share)?;
        let name = format!(
            "<div class=\"of-file\"><h2>{}</h2><p class=\"meta\"><span title=\"{}\">{}</span>{}</p></div>",
            escape(&named[run].name),
            escape(&path.display().to_string()),
            escape(&short_name(path)),
            html::meta(&report)
        );
        let place = Place { number: run, is_shown: at_first.contains(&run), name: &name };
        html.push_str(&html::section(&report, device, &piece, &place));
    }
    Ok((html, report.found.as_ref().map(RankAdvice::of)))
}

fn title(rows: &[Row<'_>], together: &Together<'_, ()>) -> String {
    let mut files: Vec<usize> = rows.iter().map(|row| row.place).collect();
    files.dedup();
    let what = counted(files.len() as u64, if together.are_ranks { "rank" } else { "recording" });
    let folder = rows.first().and_then(|row| row.file.parent());
    let folder = folder.filter(|folder| rows.iter().all(|row| row.file.parent() == Some(folder)));
    match folder.and_then(Path::file_name) {
        Some(folder) => format!("{}: {what}", output::one_line(&folder.to_string_lossy())),
        None => what,
    }
}

/// The maximum number of runs in full: each takes about 140 KiB without its blocks, and minutes if it is long.
const MOST_IN_FULL: usize = 8;
/// The number of sections that are side by side when the page is opened.
const AT_FIRST: usize = 2;

/// A choice of runs, by their indices among the rows.
struct Choice {
    /// The runs shown in full, in the order of the rows.
    in_full: Vec<usize>,
    /// The runs that are shown at first.
    at_first: Vec<usize>,
}

impl Choice {
    /// Chooses whole files, the most informative first, up to [`MOST_IN_FULL`] runs, or one file if it has more.
    fn of(rows: &[Row<'_>], by_weight: &[usize]) -> Choice {
        let mut in_full: Vec<usize> = Vec::new();
        for &run in by_weight {
            let Some(row) = rows.get(run) else { continue };
            // A file that was given twice is shown once.
            if in_full.iter().any(|&chosen| rows[chosen].file == row.file) {
                continue;
            }
            let of_file = rows.iter().enumerate().filter(|(_, other)| other.place == row.place).map(|(place, _)| place);
            let of_file: Vec<usize> = of_file.collect();
            if in_full.is_empty() || in_full.len() + of_file.len() <= MOST_IN_FULL {
                in_full.extend(of_file);
            }
        }
        in_full.sort_unstable();
        let at_first = by_weight.iter().copied().filter(|run| in_full.contains(run)).take(AT_FIRST).collect();
        Choice { in_full, at_first }
    }

    /// The files of the runs in full, each with its runs, in the order of the rows. `of_rows` are the files of all rows.
    fn files<'r>(&self, of_rows: impl Iterator<Item = &'r Path>) -> Vec<(&'r Path, Vec<usize>)> {
        let mut files: Vec<(&Path, Vec<usize>)> = Vec::new();
        for (run, file) in of_rows.enumerate().filter(|(run, _)| self.in_full.contains(run)) {
            match files.last_mut() {
                Some((path, runs)) if *path == file => runs.push(run),
                _ => files.push((file, vec![run])),
            }
        }
        files
    }
}

/// The maximum number of files named that could not be shown.
const NAMED: usize = 8;

/// A run and its name.
struct Named<'a> {
    row: &'a Row<'a>,
    /// `rank 3`, or the file's name if files are not ranks.
    name: String,
    /// The file that the run comes from.
    file: String,
}

impl<'a> Named<'a> {
    /// Names a run.
    fn of(row: &'a Row<'a>, are_ranks: bool) -> Named<'a> {
        let device = row.device.map_or_else(String::new, |device| format!(" device {device}"));
        let path = || output::one_line(&row.file.display().to_string());
        let (name, file) =
            if are_ranks { (format!("rank {}", row.rank), short_name(row.file)) } else { (short_name(row.file), path()) };
        Named { row, name: format!("{name}{device}"), file }
    }
}

/// The sentences, the setting for all ranks, the table, and what the page leaves out.
fn table(named: &[Named<'_>], choice: &Choice, together: &Together<'_, ()>, job: Option<&Job>) -> String {
    let mut html = String::new();
    let are_compared = together.are_ranks && together.ranks.are_of_several_files();
    let sentences = if are_compared { together.ranks.sentences() } else { Vec::new() };
    let mut sentences = sentences.iter().map(|said| escape(said));
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
    let rows: String = named.iter().enumerate().map(|(run, named)| table_row(run, named, choice)).collect();
    let _ = write!(
        html,
        "<article class=\"card ranks-card\"><div class=\"head\"><h2>{}</h2></div><p class=\"hint\">Those with a tick are shown \
         below, side by side where there is \
         room.</p><div class=\"wide\"><table class=\"ranks\"><thead><tr><th>{first}</th><th>{second}</th>\
         {heads}</tr></thead><tbody>{rows}</tbody></table></div>{}</article>",
        if together.are_ranks { "All ranks" } else { "All recordings" },
        left_out(named, choice, together)
    );
    html
}

fn table_row(run: usize, named: &Named<'_>, choice: &Choice) -> String {
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
            "<p class=\"hint\">{} without a tick box: this page shows only the most informative ones in full. <code>parkade \
             report FILE -o page.html</code> shows any of them, and of several files up to {MOST_IN_FULL}.</p>",
            counted(left_out as u64, "row")
        );
    }
    if !together.failures.is_empty() {
        let says = |(path, why): &(&Path, String)| format!("{} ({})", short_name(path), why);
        let said = output::list(together.failures.iter().take(NAMED).map(says));
        let more = if together.failures.len() > NAMED { " ..." } else { "" };
        let _ = write!(html, "<p class=\"hint failed\">Not on this page: {}{more}</p>", escape(&said));
    }
    html
}
