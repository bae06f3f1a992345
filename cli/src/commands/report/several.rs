//! The page of several recordings: a table of the ranks, and those that say most in full, beside each other.
//!
//! Files are read twice: all for the table, and those shown in full once more, so that no more than a few are ever in memory. A page
//! stays below its size however many ranks there are.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use parkade::profile::Profile as Rules;
use parkade_analysis::ranks::RankRun;
use parkade_replay::{ReplaySettings, VerifyOptions, newer_release};

use super::choice::{Choice, MOST_IN_FULL};
use super::html::{self, Frame, Place};
use super::limit::Limit;
use super::markup::{counted, escape};
use super::ranks_table::Named;
use super::{Args, Part, data, gather, ranks_table, wrote};
use crate::each::Together;
use crate::output;
use crate::ranks::Row;
use crate::recording::{self, short_name};
use crate::recordings::{Inputs, each};
use crate::runner::Outcome;

/// What is compared of the runs in a file, under the limit that its section assumes.
pub(super) fn runs(args: &Args) -> Result<Vec<RankRun>> {
    let given_profile = args.profile.map(crate::args::Profile::rules);
    gather::given_settings(args, given_profile.unwrap_or(&Rules::PYTORCH_2_15))?;
    let recording = recording::read(&args.file)?;
    let profile = newer_release(&recording, None).map_or(&Rules::PYTORCH_2_11, |(profile, _)| profile);
    let settings = ReplaySettings::of_recording_as(profile, recording.settings.as_ref())?;
    let chosen = gather::chosen_devices(&recording, args.device)?;
    let own = VerifyOptions { settings, limit_bytes: args.limit, stats_file: None };
    let limit = Limit::of(args, &chosen, &own)?;
    let own = VerifyOptions { limit_bytes: limit.run_bytes, ..own };
    let run = |device| recording::of_device(RankRun::of_recording(&recording, device, &own), device.device, chosen.len());
    chosen.iter().copied().map(run).collect()
}

/// Writes the page of all.
pub(super) fn write_page(args: &Args, together: &Together<'_>, target: &Path, out: &mut dyn Write) -> Result<Outcome> {
    let rows = together.ranks.rows();
    if rows.is_empty() {
        bail!("no page is written: there is nothing to show");
    }
    let named: Vec<Named<'_>> = rows.iter().map(|row| Named::of(row, together.are_ranks)).collect();
    let mut choice = Choice::of(&rows, &together.ranks.by_weight());
    let sentences =
        if together.are_ranks && together.ranks.are_of_several_files() { together.ranks.sentences() } else { Vec::new() };
    let words_bytes = ranks_table::html(&named, &choice, &sentences, together).len();
    let page_bytes = usize::try_from(args.page_size).unwrap_or(usize::MAX);
    let share = html::share(page_bytes.saturating_sub(words_bytes), choice.in_full.len());
    let failed = |choice: &mut Choice, path: &Path, error: &anyhow::Error| {
        output::complain(&format!("{}: only in the table: {error:#}", path.display()));
        choice.in_full.retain(|&run| rows[run].file != path);
    };
    let files = choice.files(&rows);
    let paths: Vec<PathBuf> = files.iter().map(|&(path, _)| path.to_owned()).collect();
    let of_file: BTreeMap<&Path, &[usize]> = files.iter().map(|(path, runs)| (*path, runs.as_slice())).collect();
    let first_shown = choice.at_first.clone();
    let work = |path: &Path| {
        let runs = of_file.get(path).copied().unwrap_or_default();
        sections(args, path, runs, &named, &first_shown, share)
    };
    let (mut made, mut outcome) = (String::new(), Outcome::Good);
    each(&Inputs::of(&paths), args.json.json, work, |place, result| {
        match result {
            Ok(sections) => made.push_str(&sections),
            Err(error) => {
                failed(&mut choice, &paths[place], &error);
                outcome = Outcome::CouldNotRun;
            }
        }
        Ok(())
    })?;
    let title = title(&rows, together);
    let left_out = rows.len() - choice.in_full.len();
    let meta =
        if left_out > 0 { format!("<span>{} of {} in full</span>", choice.in_full.len(), rows.len()) } else { String::new() };
    let frame = Frame {
        title: &title,
        path: "",
        meta: &meta,
        tabs: "",
        table: &ranks_table::html(&named, &choice, &sentences, together),
        layout: " class=\"beside\"",
        sections: &made,
    };
    crate::output_file::write(target, html::frame(&frame).as_bytes())?;
    wrote(out, target)?;
    if left_out > 0 {
        let said = format!(
            "{} of {} are in full, {left_out} in the table only: a page of the files that you name shows up to {MOST_IN_FULL} in full",
            choice.in_full.len(),
            rows.len()
        );
        write!(out, "{}", output::paragraph(&said, 0))?;
    }
    Ok(outcome)
}

/// The sections of a file, at most of so many bytes each.
fn sections(args: &Args, path: &Path, runs: &[usize], named: &[Named<'_>], at_first: &[usize], share: usize) -> Result<String> {
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
    Ok(html)
}

fn title(rows: &[Row<'_>], together: &Together<'_>) -> String {
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
