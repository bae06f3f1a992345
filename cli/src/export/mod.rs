//! `parkade export`: the replayed run as a snapshot file that PyTorch's own viewers open.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;
use parkade::profile::Profile as Rules;
use parkade::stats::Family;
use parkade_recording::{Action, DeviceRecording, Recording, Style, write};
use parkade_replay::export::{ExportOptions, Exported, ExportedDevice, export};
use parkade_replay::{AfterFailure, ReplaySettings, VerifyOptions, newer_release, verify_device};
use serde_json::{Value, json};

use crate::verify::{self, Profile};
use crate::{Outcome, output, replay, size, target};

/// Write the run that a recorded program would have had under other settings as a snapshot file.
///
/// The file opens where PyTorch's own do: https://pytorch.org/memory_viz, torch/cuda/_memory_viz.py, parkade verify. The requests are
/// the recording's, with their stacks, times and annotations; every decision is made anew, as by parkade replay. If the recording
/// lost its beginning, the blocks that were in use by then are asked for before everything else.
///
/// Without --settings the trace is the recording's, entry by entry, if that has its beginning and its settings, is verified, and had no
/// memory limit or gets the same one by --limit: else what failed or was tried again for want of memory succeeds, which is said.
/// Addresses of expandable segments may be others.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade export snapshot.pickle --settings expandable_segments:True -o expandable.pickle
  parkade export snapshot.pickle --settings '' --limit 12GiB --stop-at-oom -o oom.pickle
  parkade verify oom.pickle --limit 12GiB

Exit code: 0 the file is written (whether or not the run was out of memory), 2 it is not.")]
pub(crate) struct Args {
    /// The recording.
    file: PathBuf,
    /// The snapshot file to write, not packed. A file that is there is not overwritten without --force.
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
    /// Overwrite whatever is there, but for the recording itself.
    #[arg(long)]
    force: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What a device's recorded run met for want of memory.
#[derive(Clone, Copy)]
struct Shortage {
    /// Requests that failed.
    ooms: i64,
    /// Requests for which the device was asked again after memory was given back, if the recording is exact.
    retries: Option<i64>,
}

/// The exported run, and beside each of its replayed devices what the recorded one met.
struct Made {
    exported: Exported,
    recorded: Vec<Shortage>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let made = match make(args) {
        Ok(made) => made,
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
    match print(args, &made) {
        Err(error) if !output::is_broken_pipe(&error) => Err(error),
        _ => Ok(Outcome::Good),
    }
}

fn make(args: &Args) -> Result<Made> {
    // Before the file is read: whoever mistyped the settings need not wait.
    let profile = args.profile.rules();
    let given = args.settings.as_deref().map(|text| ReplaySettings::given_as(profile, text)).transpose()?;
    target::refuse_source(&args.file, &args.output)?;
    // A pipe or a terminal loses nothing.
    if !args.force && fs::metadata(&args.output).is_ok_and(|data| data.is_file()) {
        bail!("{} is there already: --force overwrites it", args.output.display());
    }
    let recording = verify::read(&args.file)?;
    let recorded_profile = newer_release(&recording, None).map_or(&Rules::PYTORCH_2_11, |(profile, _)| profile);
    let own = ReplaySettings::of_recording_as(recorded_profile, recording.settings.as_ref())?;
    let settings = given.unwrap_or_else(|| own.clone()).settings;
    let limit_bytes = replay::limit(args.limit, args.capacity, settings.per_process_memory_fraction, profile)?;
    let options = ExportOptions {
        own: VerifyOptions { settings: own, limit_bytes: args.recorded_limit, stats_file: None },
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
    target::write(&args.output, &write(&exported.recording, Style::Python))?;
    let recorded = shortages(&recording, &exported, &options.own)?;
    Ok(Made { exported, recorded })
}

fn shortages(recording: &Recording, exported: &Exported, own: &VerifyOptions) -> Result<Vec<Shortage>> {
    let replayed = |device: &&DeviceRecording| exported.devices.iter().any(|found| found.device == device.device);
    let of_device = |device: &DeviceRecording| {
        let ooms = device.trace.iter().filter(|entry| entry.action == Action::Oom).count() as i64;
        let verdict = verify_device(device, own, &mut |_| ())?;
        let retries = (verdict.mismatches == 0).then_some(verdict.stats.num_alloc_retries);
        Ok(Shortage { ooms, retries })
    };
    recording.devices.iter().filter(replayed).map(of_device).collect()
}

fn print(args: &Args, made: &Made) -> Result<()> {
    let exported = &made.exported;
    let mut out = output::stdout();
    if args.json {
        writeln!(out, "{}", object(args, made))?;
        return Ok(out.flush()?);
    }
    for (device, &recorded) in exported.devices.iter().zip(&made.recorded) {
        let is_one_of_many = exported.recording.devices.len() > 1;
        let name = if is_one_of_many { format!("device {}: ", device.device) } else { String::new() };
        let reserved = device.stats.family(Family::ReservedBytes).all.peak;
        let entries = count(device.entries as u64, "entry", "entries");
        writeln!(out, "{name}{entries}, {} reserved at most", size::show(reserved))?;
        for note in notes(args, device, recorded) {
            writeln!(out, "  {note}")?;
        }
    }
    for device in &exported.kept_devices {
        writeln!(out, "device {device}: no trace, its segments are as recorded")?;
    }
    writeln!(out, "written to {}", output::one_line(&args.output.display().to_string()))?;
    Ok(out.flush()?)
}

/// How often, in words.
fn times(count: i64) -> String {
    match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

/// So many of something.
fn count(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

fn notes(args: &Args, device: &ExportedDevice, recorded: Shortage) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(entry) = device.first_failure {
        notes.push(format!("out of memory {}, first at entry {entry} of the file", times(device.stats.num_ooms)));
    }
    let hint = if args.limit.is_none() && args.capacity.is_none() { " (--limit gives it a memory limit)" } else { "" };
    let (ooms, retries) = (device.stats.num_ooms, device.stats.num_alloc_retries);
    if recorded.ooms > ooms {
        notes.push(format!("the recorded run was out of memory {}, this one {}{hint}", times(recorded.ooms), times(ooms)));
    }
    if let Some(recorded) = recorded.retries.filter(|&recorded| recorded > retries) {
        let (recorded, retries) = (times(recorded), times(retries));
        notes.push(format!("the recorded run gave memory back and asked again {recorded}, this one {retries}{hint}"));
    }
    if let Some(blocks) = device.early_blocks {
        let blocks = match blocks {
            1 => "the block in use by then is".to_owned(),
            _ => format!("the {blocks} blocks in use by then are"),
        };
        notes.push(format!("the recording lost its beginning: {blocks} asked for first"));
    }
    if device.mismatches > 0 {
        let decisions = count(device.mismatches, "decision of the recording is", "decisions of the recording are");
        notes.push(format!("under its own settings {decisions} made otherwise: is there a --recorded-limit?"));
    }
    if device.device_errors > 0 {
        notes.push(format!(
            "{} could not be followed by the simulated device",
            count(device.device_errors, "request", "requests")
        ));
    }
    notes
}

fn object(args: &Args, made: &Made) -> Value {
    let exported = &made.exported;
    let devices: Vec<Value> = exported
        .devices
        .iter()
        .zip(&made.recorded)
        .map(|(device, recorded)| {
            json!({
                "device": device.device,
                "entries": device.entries,
                "ooms": device.stats.num_ooms,
                "retries": device.stats.num_alloc_retries,
                "recorded_ooms": recorded.ooms,
                "recorded_retries": recorded.retries,
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
