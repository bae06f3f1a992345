//! The export of a run under a policy: a snapshot or a trace file of what the policy did, and the requests of a workload.

use anyhow::{Error, Result, bail};
use parkade::stats::Family;
use parkade_analysis::holders::Holders;
use parkade_analysis::timeline::Timeline;
use parkade_policies::Named;
use parkade_recording::{Style, write};
use parkade_research::study::Ending;
use parkade_research::workload::trace;

use super::args::{Args, Format};
use super::perfetto::{Run, Slices, write_trace};
use crate::commands::simulated::program::{self, Asked, Kind};
use crate::commands::simulated::{self, Memory, Simulation};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::output::{self, Tone};
use crate::terminal::outputs::Wanted;
use crate::terminal::recording::MadeBy;
use crate::terminal::size::show_bytes;

/// A run under a policy that was written, or the requests of a program without a recorded run.
pub(crate) struct Made {
    /// `None` if only the requests were written.
    simulation: Option<Simulation>,
    events: usize,
    /// The marks of steps that were written with the requests.
    steps: usize,
    slices: Option<Slices>,
}

/// Exports a run under a policy, or the requests of a workload; `None` if the recorded run is wanted.
pub(super) fn export(args: &Args) -> Result<Option<Made>> {
    let is_without_run = args.under.is_workload() || program::is_request_trace(args.file());
    if is_without_run && args.format == Format::Requests && args.under.policy.is_none() {
        return requests(args).map(Some);
    }
    let Some(policy) = args.under.policy_for(args.file())? else { return Ok(None) };
    args.under.excludes("--settings", args.replay.settings.is_some())?;
    args.under.excludes("--profile", args.replay.profile.is_some())?;
    if args.format == Format::Requests {
        bail!("--format requests writes what the program requests, which is the same under every policy: leave --policy out");
    }
    under_policy(args, (policy, memory(args))).map(Some)
}

/// Exports a file under the policy that parkade simulated it with, if this is why its decisions cannot be replayed.
pub(super) fn of_simulation(args: &Args, error: Error) -> Result<Made> {
    let (under, policy, as_simulated) = args.under.of_simulation(error)?;
    under.excludes("--profile", args.replay.profile.is_some())?;
    under_policy(args, (policy, memory(args).or(as_simulated)))
}

fn memory(args: &Args) -> Memory {
    Memory { capacity_bytes: args.replay.capacity, limit_bytes: args.replay.limit }
}

fn asked(args: &Args) -> Asked {
    Asked { device: args.device, recorded_limit: args.replay.recorded.recorded_limit }
}

fn requests(args: &Args) -> Result<Made> {
    let outputs = wanted(args).check()?;
    let programs = args.under.programs(args.file(), &asked(args))?;
    let [program] = programs.all.as_slice() else { bail!("--format requests writes one program") };
    outputs.write_with(&args.output, |out| trace::write(&program.workload, out))?;
    let (events, steps) = (program.workload.events.len(), program.workload.steps.len());
    Ok(Made { simulation: None, events, steps, slices: None })
}

fn wanted(args: &Args) -> Wanted<'_> {
    Wanted::new(args.force.force, args.json.form()).reads(args.file.iter()).writes("--output", Some(&args.output))
}

fn under_policy(args: &Args, (policy, memory): (Named, Memory)) -> Result<Made> {
    let outputs = wanted(args).check()?;
    let programs = args.under.programs(args.file(), &asked(args))?;
    let simulation = Simulation::of(programs, policy, memory)?;
    let events = simulation.runs.iter().map(|run| run.recorded.events.len()).sum();
    if args.format == Format::Snapshot {
        let simulation = simulation.for_a_file();
        outputs.write(&args.output, &write(&simulation.recording, Style::Python))?;
        return Ok(Made { simulation: Some(simulation), events, steps: 0, slices: None });
    }
    let recording = &simulation.recording;
    let devices = recording.devices.iter().zip(&simulation.runs);
    let runs: Vec<Run<'_>> = devices
        .map(|(device, run)| {
            let timeline = Timeline::of_served(device, &run.served);
            let holders = Holders::of(&timeline.log, device, &recording.annotations, &recording.stacks);
            Run { device, timeline, holders }
        })
        .collect();
    let source = simulation.programs.path.display().to_string();
    let slices = outputs.write_with(&args.output, |out| write_trace(out, &source, recording, &runs, args.blocks))?;
    drop(runs);
    Ok(Made { events, steps: 0, slices: Some(slices), simulation: Some(simulation) })
}

/// The lines of a file of requests.
pub(super) fn lines_words(events: usize, steps: usize) -> String {
    let (events, steps) = (output::count(events as u64, "event"), output::count(steps as u64, "mark"));
    format!("the requests of the program: {events}, one a line, and {steps} of steps")
}

pub(super) fn answer(args: &Args, made: &Made) -> Answer {
    let mut answer = Answer::new();
    answer.headline(Tone::Good, format!("written to {}", args.output));
    let Some(simulation) = &made.simulation else {
        answer.paragraph(lines_words(made.events, made.steps));
        return answer;
    };
    let policy = &simulation.policy;
    answer.paragraph(format!("a simulation of the policy {}, not of the recorded allocator", policy.name));
    let is_one_of_many = simulation.recording.devices.len() > 1;
    for ((device, run), program) in simulation.recording.devices.iter().zip(&simulation.runs).zip(&simulation.programs.all) {
        let name = if is_one_of_many { format!("device {}: ", device.device) } else { String::new() };
        let entries = output::count(device.trace.len() as u64, "entry");
        let reserved = run.recorded.outcome.peak_reserved_bytes;
        let events = output::count(run.recorded.events.len() as u64, "event");
        answer.paragraph(format!("{name}{entries} of {events}, at most {} reserved", show_bytes(reserved)));
        if let Some(event) = run.recorded.outcome.failed_at_event {
            let (places, place) = (program.places(), program.place(event));
            answer.indented(2, format!("out of memory at {places} {place} of the program, which ends the run"));
        }
        let notes = simulated::notes(program, policy, simulation.memory, reserved);
        notes.into_iter().for_each(|note| answer.indented(2, note));
    }
    answer
}

view! {
    /// The export of a run under a policy, or of a workload's requests.
    pub(super) struct SimulatedObject<'a>(args: &'a Args, made: &'a Made) {
        /// The recording, the request trace or the workload.
        file: String = made.simulation.as_ref().map_or_else(|| args.program_name(), |simulation| simulation.programs.path.display().to_string()),
        /// The file that was written.
        output: String = args.output.path().display().to_string(),
        /// The policy of the simulation; null if only the requests were written.
        policy: Option<&'a str> = made.simulation.as_ref().map(|simulation| &*simulation.policy.name),
        /// `recording`, `trace` or `workload`; null if only the requests were written.
        program: Option<Word<Kind>> = made.simulation.as_ref().map(|simulation| Word::of(&simulation.programs.kind)),
        /// The release that made the recording; null for other programs.
        made_by: Option<MadeBy> = made.simulation.as_ref().and_then(|simulation| simulation.programs.made_by.as_ref()).map(MadeBy::of),
        /// The number of events of the program that were carried out, over all devices.
        events: usize = made.events,
        /// The number of marks of steps that were written with the requests, one a line as each event.
        steps: usize = made.steps,
        /// Each device; empty if only the requests were written.
        devices: Vec<SimulatedDevice> = made.simulation.as_ref().map_or_else(Vec::new, |simulation| {
            all(simulation.recording.devices.iter().zip(&simulation.runs), |(device, run)| {
                SimulatedDevice::of(device.device, device.trace.len(), &run.recorded)
            })
        }),
        /// With `--format perfetto`: the number of blocks written as slices.
        slices: Option<usize> = made.slices.map(|slices| slices.blocks),
        /// With `--format perfetto`: the number of smaller blocks left out.
        left_out_slices: Option<usize> = made.slices.map(|slices| slices.left_out),
    }
}

view! {
    struct SimulatedDevice(device: u32, entries: usize, run: &parkade_research::study::RecordedRun) {
        /// The device.
        device: u32 = device,
        /// The number of entries in its new trace.
        entries: usize = entries,
        /// Whether every request was served.
        fits: bool = run.outcome.ending == Ending::Fits,
        /// The event at which the run ran out of memory; null if it did not.
        fails_at_event: Option<usize> = run.outcome.failed_at_event,
        /// `num_alloc_retries`.
        retries: u64 = run.outcome.retries,
        /// Peak of allocated memory.
        peak_allocated_bytes: i64 = run.stats.family(Family::AllocatedBytes).all.peak,
        /// Peak of reserved memory.
        peak_reserved_bytes: i64 = run.stats.family(Family::ReservedBytes).all.peak,
    }
}
