//! `parkade export` writes the replayed run as a snapshot file that PyTorch's own viewers open, or as a trace file for
//! Perfetto.
//!
//! A trace is JSON in the Trace Event Format, which Chrome's tracing page opens too. Counters show the allocated, active and reserved
//! bytes after each entry; blocks are asynchronous slices by address, named after what they hold; out-of-memory errors and driver calls
//! are instants; annotations are slices. Events are written one by one.
//!
//! `args` has the arguments, `perfetto` writes traces, and `simulated` exports a run under a policy.

mod args;
mod perfetto;
mod simulated;

use anyhow::{Result, bail};
use parkade::profile::Profile as Rules;
use parkade::stats::Family;
use parkade_analysis::holders::Holders;
use parkade_analysis::timeline::Timeline;
use parkade_recording::{Action, DeviceRecording, Recording, Style, write};
use parkade_replay::export::{ExportOptions, Exported, ExportedDevice, export};
use parkade_replay::recognition::Recognition;
use parkade_replay::{AfterFailure, ReplaySettings, Requests, SelfCheck, VerifyError, VerifyOptions, verify_device};
use parkade_research::workload::trace;

use self::args::Format;
use self::perfetto::{Run, Slices, write_trace};
use crate::commands::sweep::plan::{recorded_program, stem};
use crate::terminal::answer::Answer;
use crate::terminal::args::Replay;
use crate::terminal::json_struct::{all, sections, view};
use crate::terminal::output::{self, Tone};
use crate::terminal::outputs::{Outputs, Wanted};
use crate::terminal::recording::{self, MadeBy};
use crate::terminal::run_words::{self, Checked};
use crate::terminal::runner::{Command, Form, Lines, Subject};
use crate::terminal::{progress, size};

pub(crate) use self::args::Args;

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
    /// The events and the marks of steps in a file of requests.
    lines: Option<(usize, usize)>,
}

impl Command for Args {
    type Found = Found;

    fn compute(&self) -> Result<Found> {
        match simulated::export(self)? {
            Some(made) => Ok(Found::Simulated(Box::new(made))),
            None => match self.replayed() {
                Ok(made) => Ok(Found::Replayed(Box::new(made))),
                Err(error) => simulated::of_simulation(self, error).map(|made| Found::Simulated(Box::new(made))),
            },
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
    fn replayed(&self) -> Result<Made> {
        let args = &self.replay;
        // Parsed before the file is read, so that mistyped settings fail immediately.
        args.given(recording::newest_release())?;
        let wanted = Wanted::new(self.force.force, self.form()).reads([self.file()]).writes("--output", Some(&self.output));
        let outputs = wanted.check()?;
        // Settings replace the allocator in any case, and requests do not depend on it.
        let is_any = args.settings.is_some() || self.format == Format::Requests;
        let recording = if is_any { recording::read(self.file()) } else { recording::read_run(self.file()) }?;
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
            return Ok(Made { exported, profile, made_by, recorded, slices, lines: None });
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
        Ok(Made { exported, profile, made_by, recorded, slices, lines: None })
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
        answer.paragraphs(made.lines.map(|(events, steps)| simulated::lines_words(events, steps)));
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
        let lines = Some((program.events.len(), program.steps.len()));
        Ok(Made { profile: options.profile, made_by, recorded, slices: None, lines, exported })
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

fn notes(args: &Replay, device: &ExportedDevice, recorded: Shortage) -> Vec<String> {
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
