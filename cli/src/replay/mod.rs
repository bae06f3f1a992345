//! `parkade replay`: what would a recorded program have needed under other settings, and would it have fitted?

mod json;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use parkade::profile::Profile as Rules;
use parkade_replay::{Outlook, OutlookOptions, ReplaySettings, VerifyOptions, newer_release, replay_device};

use crate::verify::{self, Profile};
use crate::{Outcome, output, size};

/// Replay a recorded program's requests under other settings, with another limit, or on a smaller device.
///
/// Every decision of PyTorch's allocator is made anew on a simulated device. Segments lie where the recorded process's driver would have
/// put them, as far as the recording shows. Calls of empty_cache are found in the trace. A request that is out of memory
/// does not end the replay: some programs catch the error and go on. If the recording lost its beginning, the blocks that were in use
/// by then count as asked for before its first entry.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade replay snapshot.pickle --settings expandable_segments:True
  parkade replay snapshot.pickle --settings max_split_size_mb:128,garbage_collection_threshold:0.7 --limit 16GiB
  parkade replay snapshot.pickle --settings '' --capacity 24GiB --json

Exit code: 0 it fits, 1 it does not, 2 it could not be run.")]
pub(crate) struct Args {
    /// The recording.
    file: PathBuf,
    /// The settings to replay under, as in PYTORCH_CUDA_ALLOC_CONF; '' is PyTorch's defaults. Without this, the recording's own.
    #[arg(long, value_name = "SETTINGS")]
    settings: Option<String>,
    /// The memory that the device has for the allocator (without the driver's own, some 500 MiB); also the limit, unless that is
    /// given. Without this, as much as is needed.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    capacity: Option<u64>,
    /// The memory limit (set_per_process_memory_fraction).
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// The memory limit of the recorded run, which a recording does not contain; it tells calls of empty_cache from memory given
    /// back because of the limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    recorded_limit: Option<u64>,
    /// The version of PyTorch whose decisions are made.
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A replayed recording.
struct Replayed {
    file: PathBuf,
    settings: ReplaySettings,
    capacity: Option<u64>,
    limit: Option<u64>,
    profile: Profile,
    devices: Vec<Outlook>,
    seconds: f64,
}

impl Replayed {
    fn fits(&self) -> bool {
        self.devices.iter().all(Outlook::fits)
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let replayed = match replay(args) {
        Ok(replayed) => replayed,
        Err(error) => {
            if args.json {
                let mut out = output::stdout();
                writeln!(out, "{}", json::failed(&args.file, &error)?)?;
                out.flush()?;
            }
            return Err(error.context(args.file.display().to_string()));
        }
    };
    let outcome = if replayed.fits() { Outcome::Good } else { Outcome::CheckFailed };
    match print(args, &replayed) {
        // Whoever reads only the first lines still gets the exit code.
        Err(error) if output::is_broken_pipe(&error) => Ok(outcome),
        printed => printed.map(|()| outcome),
    }
}

fn print(args: &Args, replayed: &Replayed) -> Result<()> {
    let mut out = output::stdout();
    if args.json {
        writeln!(out, "{}", json::replayed(replayed)?)?;
    } else {
        table::print(&mut out, replayed, output::Paint::for_stdout())?;
    }
    Ok(out.flush()?)
}

fn replay(args: &Args) -> Result<Replayed> {
    let start = Instant::now();
    // Before the file is read: whoever mistyped the settings need not wait.
    let profile = args.profile.rules();
    let given = args.settings.as_deref().map(|text| ReplaySettings::given_as(profile, text)).transpose()?;
    let recording = verify::read(&args.file)?;
    // What was asked for is read as the version that made the recording decided; what comes of it is the chosen one's business.
    let recorded_profile = newer_release(&recording, None).map_or(&Rules::PYTORCH_2_11, |(profile, _)| profile);
    let own = ReplaySettings::of_recording_as(recorded_profile, recording.settings.as_ref())?;
    let settings = given.unwrap_or_else(|| own.clone());
    let limit = limit(args.limit, args.capacity, settings.settings.per_process_memory_fraction, profile)?;
    let options = OutlookOptions {
        own: VerifyOptions { settings: own, limit_bytes: args.recorded_limit, stats_file: None },
        profile,
        settings: settings.settings.clone(),
        limit_bytes: limit,
        capacity_bytes: args.capacity,
    };
    let traced: Vec<_> = recording.devices.iter().filter(|device| !device.trace.is_empty()).collect();
    if traced.is_empty() {
        bail!("the file has no trace entries to replay: record it with torch.cuda.memory._record_memory_history()");
    }
    let bar = verify::progress_bar(args.json);
    bar.set_length(traced.iter().map(|device| device.trace.len() as u64).sum());
    let mut devices = Vec::new();
    let mut done = 0;
    for device in &traced {
        let outlook = replay_device(device, &options, &mut |entries| bar.set_position((done + entries) as u64));
        done += device.trace.len();
        devices.push(match outlook {
            Err(error) if traced.len() > 1 => return Err(anyhow!("device {}: {error}", device.device)),
            outlook => outlook?,
        });
    }
    bar.finish_and_clear();
    let (file, seconds) = (args.file.clone(), start.elapsed().as_secs_f64());
    Ok(Replayed { file, settings, capacity: args.capacity, limit, profile: args.profile, devices, seconds })
}

/// The limit in bytes. A fraction of the device's memory says nothing as long as that is not known.
pub(crate) fn limit(limit: Option<u64>, capacity: Option<u64>, fraction: f64, profile: &Rules) -> Result<Option<u64>> {
    match (limit, capacity) {
        (Some(limit), _) => Ok(Some(limit)),
        (None, Some(capacity)) if fraction < 1.0 => Ok(Some(profile.limit_rounding.limit(fraction, capacity))),
        (None, capacity) if fraction >= 1.0 => Ok(capacity),
        _ => Err(anyhow!("per_process_memory_fraction:{fraction} is a part of the device's memory, which --capacity gives")),
    }
}

/// The file's own name.
pub(crate) fn short_name(file: &Path) -> String {
    output::one_line(&file.file_name().unwrap_or(file.as_os_str()).to_string_lossy())
}
