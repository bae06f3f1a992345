//! `parkade report`: a recorded run as a page, as pictures, as text for a terminal.
//!
//! `gather` computes everything there is to show, once; `page`, `svg`, `text` and `json` only show it. What the page's script draws
//! from is packed by `data`; the page's style and script are the files in `page/`.

mod advice;
mod data;
mod gather;
mod json;
pub(crate) mod markup;
mod page;
mod svg;
mod target;
mod text;
mod words;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::verify::Profile;
use crate::{Outcome, output, size};

use gather::Report;

/// Show what happened in a recorded run: memory over time, the heap at any moment, other settings.
///
/// With --output, one page that any browser opens, without a network. With --svg, a picture. Without either, text for the terminal.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade report snapshot.pickle -o report.html
  parkade report snapshot.pickle -o report.html --limit 16GiB --settings max_split_size_mb:256
  parkade report snapshot.pickle --svg timeline.svg
  parkade report snapshot.pickle --svg heap.svg --entry 8652
  parkade report snapshot.pickle

Exit code: 0 shown, 2 it could not be run.")]
pub(crate) struct Args {
    /// The recording.
    file: PathBuf,
    /// Write a page here. A file that is no page or picture of parkade's is not overwritten without --force.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a picture here: the timeline, or with --entry the heap.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The picture shows the heap after so many entries.
    #[arg(long, value_name = "N", requires = "svg")]
    entry: Option<usize>,
    /// Only this device.
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// The memory limit of the recorded run (set_per_process_memory_fraction), which a recording does not contain.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// The memory that other settings are tried with; the limit if not given, else as much as is needed.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    capacity: Option<u64>,
    /// Try these settings too, as in PYTORCH_CUDA_ALLOC_CONF. Can be given several times.
    #[arg(long, value_name = "SETTINGS")]
    settings: Vec<String>,
    /// The version of PyTorch whose decisions are made under other settings; without it what the file shows, else 2.11.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// Where the log of all blocks of the run would make the page larger than this, the heap is shown at chosen moments only. The
    /// rest of a page takes some 80 KiB whatever is given here.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "10MiB")]
    page_size: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Overwrite whatever is there, but for the recording.
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match show(args) {
        Err(error) if output::is_broken_pipe(&error) => Ok(Outcome::Good),
        Err(error) if args.json => {
            let mut out = output::stdout();
            writeln!(out, "{}", json::failed(&args.file, &error)?)?;
            out.flush()?;
            Err(error)
        }
        shown => shown.map(|()| Outcome::Good),
    }
}

fn show(args: &Args) -> Result<()> {
    // Before the file is read, which may take a while.
    target::check(&args.file, args.output.as_deref(), args.svg.as_deref(), args.force)?;
    let report = gather::gather(args).with_context(|| args.file.display().to_string())?;
    let picture = args.svg.as_ref().map(|target| Ok::<_, anyhow::Error>((target, picture(&report, args.entry)?))).transpose()?;
    if let Some(target) = &args.output {
        crate::target::write(target, page::page(&report)?.as_bytes())?;
    }
    if let Some((target, picture)) = picture {
        crate::target::write(target, picture.as_bytes())?;
    }
    let mut out = output::stdout();
    if args.json {
        writeln!(out, "{}", json::report(&report)?)?;
    } else if args.output.is_none() && args.svg.is_none() {
        text::print(&mut out, &report, output::Paint::for_stdout())?;
    } else {
        for target in [&args.output, &args.svg].into_iter().flatten() {
            let bytes = fs::metadata(target).map_or(0, |data| data.len());
            writeln!(
                out,
                "wrote {} ({})",
                output::one_line(&target.display().to_string()),
                parkade::texts::format_bytes(bytes)
            )?;
        }
    }
    Ok(out.flush()?)
}

/// The picture of the only device.
fn picture(report: &Report, entry: Option<usize>) -> Result<String> {
    let [device] = report.devices.as_slice() else {
        let numbers: Vec<String> = report.devices.iter().map(|device| device.number.to_string()).collect();
        bail!("a picture shows one device, and the recording has {}: choose one with --device", numbers.join(", "));
    };
    match entry {
        None => Ok(svg::timeline(report, device)),
        Some(entry) if entry > device.timeline.entries => {
            bail!("there is no entry {entry}: the trace has {} entries", device.timeline.entries)
        }
        Some(entry) => Ok(svg::heap(report, device, entry as u32)),
    }
}

/// What pages and pictures of parkade's have near their beginnings.
const OWN_MARK: &str = "made by parkade report";
