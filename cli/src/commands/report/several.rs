//! The page of several recordings: a table of the ranks, and those that say most in full, beside each other.
//!
//! Files are read more than once: for the table, ranks for the one setting, and those shown in full, so that no more than a few are ever
//! in memory. A page stays below its size however many ranks there are.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use parkade_analysis::ranks::{RankAdvice, RankRun};
use parkade_recording::DeviceRecording;
use parkade_replay::VerifyOptions;
use parkade_replay::recognition::Asked;

use super::choice::{Choice, MOST_IN_FULL};
use super::html::{self, Frame, Place};
use super::limit::Limit;
use super::markup::{counted, escape};
use super::ranks_table::{self, Named};
use super::{Args, Part, data, gather, tries, wrote};
use crate::commands::advise;
use crate::commands::advise::advised::Job;
use crate::each::{Finished, Together};
use crate::ranks::Row;
use crate::recordings::{Inputs, each};
use crate::terminal::outputs::Target;
use crate::terminal::recording::{self, short_name};
use crate::terminal::runner::Outcome;
use crate::terminal::{output, release};

/// What the one setting for all ranks takes at most, with all that it may break.
const SETTING_BYTES: usize = 8 << 10;

/// What is compared of the runs in a file, under the limit that its section assumes.
pub(super) fn runs(args: &Args) -> Result<Vec<RankRun>> {
    tries::given_settings(args, args.profile.map_or_else(release::newest, crate::terminal::args::Profile::rules))?;
    let recording = recording::read(&args.file)?;
    let made_by = release::of(&recording, &Asked { limit_bytes: args.limit, ..Asked::default() })?;
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
pub(super) fn write_page(args: &Args, together: &Together<'_, ()>, target: &Target, out: &mut dyn Write) -> Result<Finished> {
    let rows = together.ranks.rows();
    if rows.is_empty() {
        bail!("no page is written: there is nothing to show");
    }
    let named: Vec<Named<'_>> = rows.iter().map(|row| Named::of(row, together.are_ranks)).collect();
    let asked = advise::Args::of_page(args.capacity.or(args.limit), args.limit, &args.settings, args.device).under(args.profile);
    let mut choice = Choice::of(&rows, &together.ranks.by_weight());
    let table_bytes = ranks_table::html(&named, &choice, together, None).len() + SETTING_BYTES;
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
        table: &ranks_table::html(&named, &choice, together, job.as_ref()),
        layout: " class=\"beside\"",
        sections: &sections,
    };
    args.outputs::<&Path>(&[])?.write(target, html::frame(&frame).as_bytes())?;
    wrote(out, target)?;
    if in_full < of {
        let said = format!(
            "{in_full} of {of} are in full, {} in the table only: a page of the files that you name shows up to {MOST_IN_FULL} in full",
            of - in_full
        );
        write!(out, "{}", output::paragraph(&said, 0))?;
    }
    Ok(Finished { outcome, addition: job.map(|job| job.addition()).transpose()? })
}

/// The sections of the runs in full, at most of so many bytes each. Those that cannot be made after all leave the choice.
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

/// The sections of a file, at most of so many bytes each, and the advice on it.
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
        let piece = data::piece(&report, device, share)?;
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
