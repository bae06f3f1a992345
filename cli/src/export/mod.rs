//! `parkade export`: the replayed run as a snapshot file that PyTorch's own viewers open.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use parkade::profile::Profile as Rules;
use parkade::stats::Family;
use parkade_sim::export::{ExportOptions, Exported, ExportedDevice, export};
use parkade_sim::recording::{Style, write};
use parkade_sim::replay::{AfterFailure, ReplaySettings, VerifyOptions, newer_profile};
use serde_json::{Value, json};

use crate::verify::{self, Profile};
use crate::{Outcome, output, replay, size};

/// Write the run that a recorded program would have had under other settings as a snapshot file.
///
/// The file opens where PyTorch's own do: https://pytorch.org/memory_viz, torch/cuda/_memory_viz.py, parkade verify. The requests are
/// the recording's, with their stacks, times and annotations; every decision is made anew, as by parkade replay. If the recording
/// lost its beginning, the blocks that were in use by then are asked for before everything else.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade export snapshot.pickle --settings expandable_segments:True -o expandable.pickle
  parkade export snapshot.pickle --settings '' --limit 12GiB --stop-at-oom -o oom.pickle
  parkade verify oom.pickle --limit 12GiB

Exit code: 0 the file is written (whether or not the run was out of memory), 2 it is not.")]
pub(crate) struct Args {
    /// The recording.
    file: PathBuf,
    /// The snapshot file to write, not packed.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
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
    /// The version of PyTorch whose decisions are made, and whose file is written.
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Only this device. Without this, all of them.
    #[arg(long, value_name = "NUMBER")]
    device: Option<u32>,
    /// End at the first request that is out of memory, as a program does that dies of it. Without this, it goes on with its other
    /// requests.
    #[arg(long)]
    stop_at_oom: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let exported = match make(args) {
        Ok(exported) => exported,
        Err(error) => {
            if args.json {
                let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
                let mut out = output::stdout();
                writeln!(out, "{}", json!({ "file": args.file.display().to_string(), "error": causes.join(": ") }))?;
                out.flush()?;
            }
            return Err(error.context(args.file.display().to_string()));
        }
    };
    match print(args, &exported) {
        Err(error) if !output::is_broken_pipe(&error) => Err(error),
        _ => Ok(Outcome::Good),
    }
}

fn make(args: &Args) -> Result<Exported> {
    // Before the file is read: whoever mistyped the settings need not wait.
    let profile = args.profile.rules();
    let given = args.settings.as_deref().map(|text| ReplaySettings::given_as(profile, text)).transpose()?;
    output::refuse_own_file(&args.file, &args.output)?;
    let recording = verify::read(&args.file)?;
    let recorded_profile = newer_profile(&recording, None).map_or(&Rules::PYTORCH_2_11, |(profile, _)| profile);
    let own = ReplaySettings::of_recording_as(recorded_profile, recording.settings.as_ref())?;
    let settings = given.unwrap_or_else(|| own.clone()).settings;
    let limit_bytes = replay::limit(args.limit, args.capacity, settings.per_process_memory_fraction, profile)?;
    let options = ExportOptions {
        own: VerifyOptions { settings: own, limit_bytes: args.recorded_limit, statistics: None },
        profile,
        settings,
        limit_bytes,
        capacity_bytes: args.capacity,
        after_failure: if args.stop_at_oom { AfterFailure::Stop } else { AfterFailure::GoOn },
        device: args.device,
    };
    let bar = verify::progress_bar(args.json);
    bar.set_length(recording.devices.iter().map(|device| device.trace.len() as u64).sum());
    let exported = export(&recording, &options, &mut |entries| bar.set_position(entries as u64));
    bar.finish_and_clear();
    let exported = exported?;
    let name = || format!("cannot write {}", args.output.display());
    fs::write(&args.output, write(&exported.recording, Style::Python)).with_context(name)?;
    Ok(exported)
}

fn print(args: &Args, exported: &Exported) -> Result<()> {
    let mut out = output::stdout();
    if args.json {
        writeln!(out, "{}", object(args, exported))?;
        return Ok(out.flush()?);
    }
    for device in &exported.devices {
        let is_one_of_many = exported.recording.devices.len() > 1;
        let name = if is_one_of_many { format!("device {}: ", device.device) } else { String::new() };
        let reserved = device.stats.family(Family::ReservedBytes).all.peak;
        writeln!(out, "{name}{} entries, {} reserved at most", device.entries, size::show(reserved))?;
        for note in notes(device) {
            writeln!(out, "  {note}")?;
        }
    }
    for device in &exported.kept_devices {
        writeln!(out, "device {device}: no trace, its segments are as recorded")?;
    }
    writeln!(out, "written to {}", output::one_line(&args.output.display().to_string()))?;
    Ok(out.flush()?)
}

fn notes(device: &ExportedDevice) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(entry) = device.first_failure {
        notes.push(format!("out of memory {} times, first at entry {entry} of the file", device.stats.num_ooms));
    }
    if let Some(blocks) = device.early_blocks {
        notes.push(format!("the recording lost its beginning: the {blocks} blocks in use by then are asked for first"));
    }
    if device.mismatches > 0 {
        let mismatches = device.mismatches;
        notes.push(format!(
            "under its own settings {mismatches} decisions of the recording are made otherwise: is there a --recorded-limit?"
        ));
    }
    if device.device_errors > 0 {
        notes.push(format!("{} requests could not be followed by the simulated device", device.device_errors));
    }
    notes
}

fn object(args: &Args, exported: &Exported) -> Value {
    let devices: Vec<Value> = exported
        .devices
        .iter()
        .map(|device| {
            json!({
                "device": device.device,
                "entries": device.entries,
                "ooms": device.stats.num_ooms,
                "fails_at_entry": device.first_failure,
                "peak_allocated_bytes": device.stats.family(Family::AllocatedBytes).all.peak,
                "peak_reserved_bytes": device.stats.family(Family::ReservedBytes).all.peak,
                "early_blocks": device.early_blocks,
                "mismatches": device.mismatches,
                "device_errors": device.device_errors,
            })
        })
        .collect();
    json!({
        "file": args.file.display().to_string(),
        "output": args.output.display().to_string(),
        "settings": exported.recording.settings.as_ref().and_then(|settings| settings.text.clone()),
        "profile": args.profile.rules().name,
        "devices": devices,
        "kept_devices": exported.kept_devices,
    })
}
