//! `parkade export` writes the replayed run as a snapshot file that PyTorch's own viewers open, or as a trace file for
//! Perfetto.
//!
//! A trace is JSON in the Trace Event Format, which Chrome's tracing page opens too. Counters show the allocated, active and reserved
//! bytes after each entry; blocks are asynchronous slices by address, named after what they hold; out-of-memory errors and driver calls
//! are instants; annotations are slices. Events are written one by one.
//!
//! `simulated` exports a run under a policy.

mod simulated;

use std::cmp::Reverse;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use parkade::profile::Profile as Rules;
use parkade::stats::Family;
use parkade_analysis::StackNames;
use parkade_analysis::annotations::{Scope, scopes};
use parkade_analysis::holders::{Holders, Told};
use parkade_analysis::timeline::{BlockLife, NEVER, Timeline};
use parkade_recording::{Action, DeviceRecording, Recording, StackId, Style, write};
use parkade_replay::export::{ExportOptions, Exported, ExportedDevice, export};
use parkade_replay::recognition::Recognition;
use parkade_replay::{AfterFailure, ReplaySettings, Requests, SelfCheck, VerifyError, VerifyOptions, verify_device};
use parkade_research::workload::trace;
use serde::Serialize;

use crate::commands::simulated::UnderPolicy;
use crate::commands::sweep::plan::{recorded_program, stem};
use crate::terminal::answer::Answer;
use crate::terminal::args::{self, Force, Json};
use crate::terminal::json_struct::{all, sections, view};
use crate::terminal::output::{self, Tone};
use crate::terminal::outputs::{Outputs, Target, Wanted};
use crate::terminal::recording::{self, MadeBy};
use crate::terminal::run_words::{self, Checked};
use crate::terminal::runner::{Command, Form, Lines, Subject};
use crate::terminal::{progress, size};

/// Write the replay of a snapshot as a snapshot or a Perfetto trace.
///
/// The file opens wherever PyTorch's own files do: https://pytorch.org/memory_viz, torch/cuda/_memory_viz.py, parkade verify.
/// The requests are the recording's, with their stacks, times and annotations; every decision is made again, as in parkade
/// replay. If its oldest entries are missing, the blocks in use before its first entry are requested first.
///
/// Without --settings the trace equals the recording's, entry by entry, if the recording has its oldest entries and its settings,
/// verifies, and had no memory limit or is given the same one by --limit. Under other conditions, requests that failed or were
/// retried for lack of memory may succeed, which the command reports. Addresses of expandable segments may differ.
///
/// With --format perfetto the result is a trace for https://ui.perfetto.dev and chrome://tracing: counters of allocated, active
/// and reserved bytes, blocks named after what they hold, out-of-memory errors, driver calls, annotations. Without --settings,
/// --limit, --capacity and --stop-at-oom it is the recorded run itself.
///
/// With --format requests the result is the program's requests and frees, which any simulator can read and which parkade sweep
/// -w trace.jsonl runs under any policy; docs/trace.md describes the lines.
///
/// With --policy the result is a simulation: the policy serves the requests of the recording, of a request trace or of a workload.
/// The file states the policy, and PyTorch's viewers show its heap.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade export snapshot.pickle --settings expandable_segments:True -o expandable.pickle
  parkade export snapshot.pickle --settings '' --limit 12GiB --stop-at-oom -o oom.pickle
  parkade verify oom.pickle --limit 12GiB
  parkade export snapshot.pickle --format perfetto -o trace.json
  parkade export snapshot.pickle --format requests -o trace.jsonl
  parkade export snapshot.pickle --policy bfc -o bfc.pickle
  parkade export -w gpt2 --policy compaction -o compaction.pickle
  parkade export snapshot.pickle --format perfetto --blocks 1000 --settings expandable_segments:True -o trace.json

Exit code: 0 the file is written (even if the run ran out of memory), 2 could not run.")]
pub(crate) struct Args {
    /// The recording.
    #[arg(required_unless_present = "workload")]
    file: Option<PathBuf>,
    #[command(flatten)]
    under: UnderPolicy,
    #[command(flatten)]
    replay: args::Replay,
    /// The file to write, uncompressed; `-` is standard output. An existing file is not overwritten without --force.
    #[arg(short, long, value_name = "FILE")]
    output: Target,
    /// What to write: a snapshot, a trace for Perfetto, or the requests alone.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// With --format perfetto: the number of blocks of each device to show as slices, the largest first. The counters include all
    /// blocks.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    blocks: usize,
    /// Only this device [default: all].
    #[arg(long, value_name = "NUMBER")]
    device: Option<u32>,
    /// Stop at the first out-of-memory error, as a program that does not catch it would. Without this option the replay continues with
    /// the other requests.
    #[arg(long)]
    stop_at_oom: bool,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    json: Json,
}

/// A format to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum Format {
    /// A snapshot file, as PyTorch writes.
    #[default]
    Snapshot,
    /// A trace file in Chrome's JSON format.
    Perfetto,
    /// The requests alone, one JSON object per line, for any simulator of allocators (docs/trace.md).
    Requests,
}

/// How often memory ran short in a device's recorded run.
#[derive(Clone, Copy)]
struct Shortage {
    /// Requests that failed.
    ooms: i64,
    /// Requests retried after cached memory was released; unknown unless the recording is exact.
    retries: Option<i64>,
}

/// What was exported.
pub(crate) enum Found {
    /// The recorded run, or its replay under settings.
    Replayed(Box<Made>),
    /// A run under a policy.
    Simulated(Box<simulated::Made>),
}

/// The exported run, and for each replayed device how the recorded run fared.
pub(crate) struct Made {
    exported: Exported,
    profile: &'static Rules,
    made_by: Recognition,
    recorded: Vec<Shortage>,
    /// The number of blocks in a trace file.
    slices: Option<Slices>,
}

impl Command for Args {
    type Found = Found;

    fn compute(&self) -> Result<Found> {
        match simulated::export(self)? {
            Some(made) => Ok(Found::Simulated(Box::new(made))),
            None => self.replayed().map(|made| Found::Replayed(Box::new(made))),
        }
    }

    fn form(&self) -> Form {
        self.json.form()
    }

    fn subject(&self) -> Subject<'_> {
        self.file.as_deref().map_or(Subject::None, Subject::File)
    }

    fn answer(&self, found: &Found) -> Answer {
        match found {
            Found::Replayed(made) => self.answer_replayed(made),
            Found::Simulated(made) => simulated::answer(self, made),
        }
    }

    fn json(&self, found: &Found, lines: &mut Lines) -> Result<()> {
        match found {
            Found::Replayed(made) => lines.add(&Object::of(self, made)),
            Found::Simulated(made) => lines.add(&simulated::SimulatedObject::of(self, made)),
        }
    }
}

impl Args {
    /// The recording; empty if the program is a workload.
    fn file(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(""))
    }

    /// The recording or the workload, as it was given.
    fn program_name(&self) -> String {
        self.file.as_ref().map_or_else(|| self.under.workload_name(), |file| file.display().to_string())
    }

    fn replayed(&self) -> Result<Made> {
        let args = &self.replay;
        // Parsed before the file is read, so that mistyped settings fail immediately.
        args.given(recording::newest_release())?;
        let wanted = Wanted::new(self.force.force, self.form()).reads([self.file()]).writes("--output", Some(&self.output));
        let outputs = wanted.check()?;
        let recording = recording::read(self.file())?;
        let (own, _, made_by) = args.own_or_found(&recording)?;
        let rules = own.settings.profile;
        let settings = args.given(rules)?.unwrap_or_else(|| own.settings.clone()).settings;
        let limit_bytes = args.limit(settings.per_process_memory_fraction, rules)?;
        let profile = args.rules(rules);
        let options = ExportOptions {
            own,
            profile,
            settings,
            limit_bytes,
            capacity_bytes: args.capacity,
            after_failure: if self.stop_at_oom { AfterFailure::Stop } else { AfterFailure::GoOn },
            device: self.device,
        };
        let bar = progress::entries(self.json.json);
        bar.set_length(recording.devices.iter().map(|device| device.trace.len() as u64).sum());
        if self.format == Format::Perfetto && !self.replays() && recording.devices.iter().any(|device| !device.trace.is_empty()) {
            bar.finish_and_clear();
            let (exported, recorded) = as_recorded(recording, &options.own, self.device)?;
            let slices = Some(self.write_trace(outputs, &exported, &options.own)?);
            return Ok(Made { exported, profile, made_by, recorded, slices });
        }
        if self.format == Format::Requests {
            bar.finish_and_clear();
            return self.write_requests(outputs, recording, &options, made_by);
        }
        let exported = export(&recording, &options, &mut |entries| bar.set_position(entries as u64));
        bar.finish_and_clear();
        let exported = exported?;
        // Computed before the file is written, so that a command that fails leaves no file.
        let recorded = shortages(&recording, &exported, &options.own)?;
        let slices = match self.format {
            Format::Snapshot => {
                outputs.write(&self.output, &write(&exported.recording, Style::Python))?;
                None
            }
            Format::Perfetto => {
                let settings = ReplaySettings::of_recording_as(options.profile, exported.recording.settings.as_ref())?;
                let own = VerifyOptions { settings, limit_bytes: options.limit_bytes, stats_file: None };
                Some(self.write_trace(outputs, &exported, &own)?)
            }
            Format::Requests => None,
        };
        Ok(Made { exported, profile, made_by, recorded, slices })
    }

    fn answer_replayed(&self, made: &Made) -> Answer {
        let mut answer = Answer::new();
        answer.headline(Tone::Good, format!("written to {}", self.output));
        let exported = &made.exported;
        for (device, &recorded) in exported.devices.iter().zip(&made.recorded) {
            let is_one_of_many = exported.recording.devices.len() > 1;
            let name = if is_one_of_many { format!("device {}: ", device.device) } else { String::new() };
            let reserved = device.stats.family(Family::ReservedBytes).all.peak;
            let entries = output::count(device.entries, "entry");
            answer.paragraph(format!("{name}{entries}, at most {} reserved", size::show(reserved)));
            notes(&self.replay, device, recorded).into_iter().for_each(|note| answer.indented(2, note));
        }
        answer.paragraph(recording::made_by_words(&made.made_by));
        for device in &exported.kept_devices {
            answer.paragraph(format!("device {device}: no trace, its segments are as recorded"));
        }
        if let Some(slices) = made.slices.filter(|slices| slices.left_out > 0) {
            let (blocks, left_out) = (slices.blocks, slices.left_out);
            answer.paragraph(format!(
                "the {blocks} largest blocks are slices; {left_out} smaller ones are left out (--blocks); the counters include all"
            ));
        }
        answer
    }
}

impl Args {
    /// Whether the run must be replayed under other settings or in other memory.
    const fn replays(&self) -> bool {
        let args = &self.replay;
        args.settings.is_some() || args.limit.is_some() || args.capacity.is_some() || self.stop_at_oom
    }

    /// Writes the requests of one device, which no settings change.
    fn write_requests(
        &self,
        outputs: Outputs,
        recording: Recording,
        options: &ExportOptions,
        made_by: Recognition,
    ) -> Result<Made> {
        if self.replays() {
            bail!(
                "--format requests writes what the program requests, whatever the settings and the memory: leave the other options out"
            );
        }
        let (exported, recorded) = as_recorded(recording, &options.own, self.device)?;
        let traced: Vec<&DeviceRecording> = exported.recording.devices.iter().filter(|device| !device.trace.is_empty()).collect();
        let [device] = traced.as_slice() else {
            let known = output::list(traced.iter().map(|device| device.device));
            bail!("--format requests writes one device: choose one of {known} with --device");
        };
        let program = recorded_program(&stem(self.file()), &exported.recording, device, &options.own)?;
        outputs.write_with(&self.output, |out| trace::write(&program, out))?;
        Ok(Made { profile: options.profile, made_by, recorded, slices: None, exported })
    }

    /// Writes the trace file. `own` are the settings and the limit of the exported run.
    fn write_trace(&self, outputs: Outputs, exported: &Exported, own: &VerifyOptions) -> Result<Slices> {
        let recording = &exported.recording;
        let run = |device| {
            let requests = Requests::of_recording(device, own, &mut |_| ())?;
            let timeline = Timeline::of_device(device, own, &requests)?;
            let holders = Holders::of(&timeline.log, device, &recording.annotations, &recording.stacks);
            Ok(Run { device, timeline, holders })
        };
        let traced = recording.devices.iter().filter(|device| !device.trace.is_empty());
        let runs = traced.map(run).collect::<Result<Vec<_>, VerifyError>>()?;
        let source = self.file().display().to_string();
        outputs.write_with(&self.output, |out| write_trace(out, &source, recording, &runs, self.blocks))
    }
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

fn notes(args: &args::Replay, device: &ExportedDevice, recorded: Shortage) -> Vec<String> {
    let mut notes: Vec<String> = run_words::failed_check(device.self_check).into_iter().collect();
    if let Some(entry) = device.first_failure {
        notes.push(format!("out of memory {}, first at entry {entry} of the file", output::times(device.stats.num_ooms)));
    }
    let hint = if args.limit.is_none() && args.capacity.is_none() { " (--limit sets a memory limit)" } else { "" };
    let (ooms, retries) = (device.stats.num_ooms, device.stats.num_alloc_retries);
    if recorded.ooms > ooms {
        notes.push(format!(
            "the recorded run ran out of memory {}, this one {}{hint}",
            output::times(recorded.ooms),
            output::times(ooms)
        ));
    }
    if let Some(recorded) = recorded.retries.filter(|&recorded| recorded > retries) {
        let (recorded, retries) = (output::times(recorded), output::times(retries));
        notes.push(format!("the recorded run released cached memory and retried {recorded}, this one {retries}{hint}"));
    }
    if let Some(blocks) = device.early_blocks {
        let blocks = output::count(blocks, "block");
        notes.push(format!("the oldest entries are missing: the {blocks} live at the first entry are requested first"));
    }
    if device.mismatches > 0 {
        let decisions = output::count(device.mismatches, "recorded decision");
        notes.push(format!("{decisions} not reproduced under the recording's own settings: does --recorded-limit apply?"));
    }
    if device.device_errors > 0 {
        notes.push(recording::other_failures(device.device_errors));
    }
    notes
}

/// The recording unchanged, with the results of its replay under its own settings.
fn as_recorded(mut recording: Recording, own: &VerifyOptions, device: Option<u32>) -> Result<(Exported, Vec<Shortage>)> {
    let chosen: Vec<u32> = recording::chosen(recording.devices.iter(), device)?.iter().map(|device| device.device).collect();
    recording.devices.retain(|device| chosen.contains(&device.device));
    let (mut devices, mut shortages, mut kept_devices) = (Vec::new(), Vec::new(), Vec::new());
    for device in &recording.devices {
        if device.trace.is_empty() {
            kept_devices.push(device.device);
            continue;
        }
        let verdict = recording::of_device(verify_device(device, own, &mut |_| ()), device.device, chosen.len())?;
        let requests = recording::of_device(Requests::of_recording(device, own, &mut |_| ()), device.device, chosen.len())?;
        let retries = (verdict.mismatches == 0).then_some(verdict.stats.num_alloc_retries);
        shortages.push(Shortage { ooms: verdict.ooms as i64, retries });
        devices.push(ExportedDevice {
            device: device.device,
            entries: verdict.entries,
            first_failure: device.trace.iter().position(|entry| entry.action == Action::Oom),
            device_errors: 0,
            mismatches: verdict.mismatches,
            self_check: SelfCheck::of(device, own, &requests),
            early_blocks: None,
            stats: verdict.stats,
        });
    }
    Ok((Exported { recording, devices, kept_devices }, shortages))
}

view! {
    struct Object<'a>(args: &'a Args, made: &'a Made) {
        /// The recording.
        file: String = args.file().display().to_string(),
        /// The file that was written.
        output: String = args.output.path().display().to_string(),
        /// The settings that the new file states.
        settings: Option<&'a str> = made.exported.recording.settings.as_ref().and_then(|settings| settings.text.as_deref()),
        /// The PyTorch version.
        profile: &'static str = made.profile.name,
        /// The release that made the recording.
        made_by: MadeBy = MadeBy::of(&made.made_by),
        /// Whether a replay under the run's own settings needs as much as the run did.
        self_check: Option<Checked> = SelfCheck::worst(made.exported.devices.iter().filter_map(|device| device.self_check)).map(Checked::of),
        /// Each replayed device.
        devices: Vec<Device> = all(made.exported.devices.iter().zip(&made.recorded), Device::of),
        /// Devices without a trace, whose segments are as recorded.
        kept_devices: &'a [u32] = &made.exported.kept_devices,
        /// With `--format perfetto`: the number of blocks written as slices.
        slices: Option<usize> = made.slices.map(|slices| slices.blocks),
        /// With `--format perfetto`: the number of smaller blocks left out.
        left_out_slices: Option<usize> = made.slices.map(|slices| slices.left_out),
    }
}

sections! {
    "export": Object<'_>;
    "export --policy": simulated::SimulatedObject<'_>;
}

view! {
    struct Device(device: (&ExportedDevice, &Shortage)) {
        /// The device.
        device: u32 = device.0.device,
        /// The number of entries in its new trace.
        entries: usize = device.0.entries,
        /// The number of requests that run out of memory.
        ooms: i64 = device.0.stats.num_ooms,
        /// `num_alloc_retries`.
        retries: i64 = device.0.stats.num_alloc_retries,
        /// The number of requests that ran out of memory in the recording.
        recorded_ooms: i64 = device.1.ooms,
        /// `num_alloc_retries` of the recorded run, if its replay is exact.
        recorded_retries: Option<i64> = device.1.retries,
        /// The first out-of-memory entry of the new trace.
        fails_at_entry: Option<usize> = device.0.first_failure,
        /// Peak of allocated memory.
        peak_allocated_bytes: i64 = device.0.stats.family(Family::AllocatedBytes).all.peak,
        /// Peak of reserved memory.
        peak_reserved_bytes: i64 = device.0.stats.family(Family::ReservedBytes).all.peak,
        /// The self-check of the device.
        self_check: Option<Checked> = device.0.self_check.map(Checked::of),
        /// The number of blocks in use before the first entry; they are requested first.
        early_blocks: Option<usize> = device.0.early_blocks,
        /// The number of decisions in the recording that differ.
        mismatches: u64 = device.0.mismatches,
        /// The number of requests that failed for a reason other than memory.
        device_errors: u64 = device.0.device_errors,
    }
}

/// One device's run.
pub(super) struct Run<'a> {
    pub(super) device: &'a DeviceRecording,
    pub(super) timeline: Timeline,
    pub(super) holders: Holders,
}

/// The number of blocks written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slices {
    /// Blocks written.
    pub(super) blocks: usize,
    /// Smaller blocks left out.
    pub(super) left_out: usize,
}

/// An event.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    ph: &'static str,
    pid: u32,
    tid: u32,
    ts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The scope of an instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<u64>,
    args: EventArgs<'a>,
}

#[derive(Serialize, Default)]
struct EventArgs<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    told_by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<&'a str>,
}

/// Information about the file.
#[derive(Serialize)]
struct Metadata<'a> {
    source: &'a str,
    settings: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated_policy: Option<&'a str>,
    timestamps: &'static str,
    first_time_us: Option<u64>,
    blocks: usize,
    smaller_blocks_left_out: usize,
}

const THREAD_OF_ANNOTATIONS: u32 = 1;
const THREAD_OF_EVENTS: u32 = 2;

/// Writes the runs, with the `most_blocks` largest blocks of each device.
fn write_trace(
    out: &mut dyn Write,
    source: &str,
    recording: &Recording,
    runs: &[Run<'_>],
    most_blocks: usize,
) -> io::Result<Slices> {
    let is_timed = runs.iter().all(|run| run.device.trace.iter().all(|entry| entry.time().is_some()));
    let times = runs.iter().filter_map(|run| run.device.trace.iter().filter_map(|entry| entry.time()).min());
    let first_time_us = times.min().filter(|_| is_timed);
    let kept = |run: &Run<'_>| run.timeline.log.blocks.len().min(most_blocks);
    let blocks = runs.iter().map(kept).sum();
    let all: usize = runs.iter().map(|run| run.timeline.log.blocks.len()).sum();
    let slices = Slices { blocks, left_out: all - blocks };
    let metadata = Metadata {
        source,
        settings: recording.settings.as_ref().and_then(|settings| settings.text.as_deref()).unwrap_or_default(),
        simulated_policy: recording.simulated.as_deref(),
        timestamps: match first_time_us {
            Some(_) => "microseconds since first_time_us, which is in microseconds since 1970",
            None => "the file has no times: the number of an entry stands for microseconds",
        },
        first_time_us,
        blocks: slices.blocks,
        smaller_blocks_left_out: slices.left_out,
    };
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[", output::json(&metadata)?)?;
    let mut events = Events { out, is_first: true };
    let names = StackNames::of(&recording.stacks);
    for run in runs {
        let mut writer =
            OfDevice { recording, names: &names, run, clock: Clock::of(run.device, first_time_us), events: &mut events };
        writer.write(&scopes(&recording.annotations, run.device), most_blocks)?;
    }
    writeln!(out, "\n]}}")?;
    Ok(slices)
}

/// Writes events one after the other, separated by commas.
struct Events<'a> {
    out: &'a mut dyn Write,
    is_first: bool,
}

impl Events<'_> {
    fn add(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.out.write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        self.out.write_all(output::json(event)?.as_bytes())
    }
}

/// The times of moments.
struct Clock(Vec<u64>);

impl Clock {
    /// Microseconds since the first time of all devices; a clock that goes back counts as standing still.
    fn of(device: &DeviceRecording, first_us: Option<u64>) -> Clock {
        let mut now = 0;
        let times = device.trace.iter().enumerate().map(|(at, entry)| {
            now = first_us.map_or(at as u64, |first| entry.time().unwrap_or(0).saturating_sub(first).max(now));
            now
        });
        Clock(times.collect())
    }

    /// The beginning of a moment: the time of the entry that leads to it, and for the first moment that of the first entry.
    fn at(&self, moment: u32) -> u64 {
        let entry = (moment as usize).saturating_sub(1);
        self.0.get(entry).or(self.0.last()).copied().unwrap_or(0)
    }
}

struct OfDevice<'a, 'e, 'o> {
    recording: &'a Recording,
    names: &'a StackNames,
    run: &'a Run<'a>,
    clock: Clock,
    events: &'e mut Events<'o>,
}

impl<'a> OfDevice<'a, '_, '_> {
    fn write(&mut self, scopes: &[Scope], most_blocks: usize) -> io::Result<()> {
        let number = self.run.device.device;
        self.name("process_name", 0, format!("GPU {number}: memory"))?;
        self.name("thread_name", THREAD_OF_ANNOTATIONS, "annotations".to_owned())?;
        self.name("thread_name", THREAD_OF_EVENTS, "the driver's calls and errors".to_owned())?;
        for scope in scopes {
            let (from, to) = (self.clock.at(scope.from.saturating_add(1)), self.clock.at(scope.to));
            let event = self.event("X", &scope.name, from, EventArgs::default());
            self.events.add(&Event { tid: THREAD_OF_ANNOTATIONS, dur: Some(to.saturating_sub(from)), ..event })?;
        }
        let log = &self.run.timeline.log;
        let starts = largest(&log.blocks, most_blocks);
        let ends_later = |block: &BlockLife| block.freed != NEVER && block.freed > block.born;
        let mut ends: Vec<usize> = starts.iter().copied().filter(|&place| ends_later(&log.blocks[place])).collect();
        ends.sort_by_key(|&place| log.blocks[place].freed);
        let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
        let mut stacks = Stacks { names: self.names, known: None, text: String::new() };
        for moment in 0..=self.run.timeline.entries as u32 {
            self.counters(moment)?;
            while let Some(place) = ends.next_if(|&place| log.blocks[place].freed <= moment) {
                self.end(place, self.clock.at(moment))?;
            }
            while let Some(place) = starts.next_if(|&place| log.blocks[place].born <= moment) {
                self.begin(place, self.clock.at(moment), &mut stacks)?;
                // The block was freed before the first entry, but other streams still used it then.
                if log.blocks[place].freed <= log.blocks[place].born {
                    self.end(place, self.clock.at(moment))?;
                }
            }
            self.instant(moment)?;
        }
        Ok(())
    }

    fn event<'n>(&self, ph: &'static str, name: &'n str, ts: u64, args: EventArgs<'n>) -> Event<'n> {
        // Viewers reserve process 0 for the idle process.
        let pid = self.run.device.device.saturating_add(1);
        Event { name, ph, pid, tid: 0, ts, cat: None, id: None, s: None, dur: None, args }
    }

    fn name(&mut self, what: &str, tid: u32, name: String) -> io::Result<()> {
        let event = self.event("M", what, 0, EventArgs { name: Some(name), ..EventArgs::default() });
        self.events.add(&Event { tid, ..event })
    }

    /// The levels at a moment that differ from those of the moment before.
    fn counters(&mut self, moment: u32) -> io::Result<()> {
        let levels = &self.run.timeline.levels;
        for (name, level) in [("allocated", &levels.allocated), ("active", &levels.active), ("reserved", &levels.reserved)] {
            let at = moment as usize;
            let now = level.get(at).copied().unwrap_or(0);
            if at == 0 || level.get(at - 1) != Some(&now) {
                let args = EventArgs { bytes: Some(now), ..EventArgs::default() };
                self.events.add(&self.event("C", name, self.clock.at(moment), args))?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, place: usize, ts: u64, stacks: &mut Stacks<'_>) -> io::Result<()> {
        let block = &self.run.timeline.log.blocks[place];
        let told = self.told(place);
        let args = EventArgs {
            bytes: Some(block.size),
            requested_bytes: Some(block.requested),
            told_by: Some(told.how.name()),
            stack: stacks.text(self.recording, block.stack),
            ..EventArgs::default()
        };
        let event = self.event("b", told.kind.name(), ts, args);
        self.events.add(&Event { cat: Some("block"), id: Some(id(block)), ..event })
    }

    fn end(&mut self, place: usize, ts: u64) -> io::Result<()> {
        let event = self.event("e", self.told(place).kind.name(), ts, EventArgs::default());
        self.events.add(&Event { cat: Some("block"), id: Some(id(&self.run.timeline.log.blocks[place])), ..event })
    }

    fn told(&self, place: usize) -> Told {
        self.run.holders.told.get(place).copied().unwrap_or(Told::NOTHING)
    }

    /// The entry that leads to a moment, if it is an error or a driver call.
    fn instant(&mut self, moment: u32) -> io::Result<()> {
        let Some(at) = (moment as usize).checked_sub(1) else { return Ok(()) };
        let Some(entry) = self.run.device.trace.get(at) else { return Ok(()) };
        let args = EventArgs { entry: Some(at), stream: Some(entry.stream), ..EventArgs::default() };
        let (name, scope, args) = match entry.action {
            Action::Oom => {
                ("out of memory", "p", EventArgs { requested_bytes: Some(entry.size), free_bytes: Some(entry.address), ..args })
            }
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap => {
                let address = Some(format!("{:#x}", entry.address));
                (entry.action.name(), "t", EventArgs { bytes: Some(entry.size), address, ..args })
            }
            _ => return Ok(()),
        };
        let event = self.event("i", name, self.clock.at(moment), args);
        self.events.add(&Event { tid: THREAD_OF_EVENTS, s: Some(scope), ..event })
    }
}

fn id(block: &BlockLife) -> String {
    format!("{:#x}", block.address)
}

/// The indices of the largest blocks, in order of allocation; among equals the first.
fn largest(blocks: &[BlockLife], most: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..blocks.len()).collect();
    if places.len() > most {
        places.sort_by_key(|&place| (Reverse(blocks[place].size), place));
        places.truncate(most);
        places.sort_unstable();
    }
    places
}

/// Caches the text of the most recently requested stack, because neighbouring blocks often share theirs.
struct Stacks<'n> {
    names: &'n StackNames,
    known: Option<StackId>,
    text: String,
}

impl Stacks<'_> {
    /// The calls that matter to a reader, the innermost first; `None` without a stack.
    fn text(&mut self, recording: &Recording, stack: StackId) -> Option<&str> {
        if self.known != Some(stack) {
            let mut calls = self.names.readable(&recording.stacks, stack);
            calls.reverse();
            self.text = calls.join("\n");
            self.known = Some(stack);
        }
        Some(self.text.as_str()).filter(|text| !text.is_empty())
    }
}
