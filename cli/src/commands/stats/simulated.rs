//! The statistics of a run under a policy.

use anyhow::{Result, bail};
use parkade::stats::Family;
use parkade_analysis::annotations::steps;
use parkade_analysis::fragmentation::Sampler;
use parkade_policies::Named;
use parkade_recording::Recording;
use parkade_research::study::{Outcome, RunOptions, make_for, watch};

use super::recorded::{Args, Device, Moment, OfDevice, regularly, series, single, with_peaks};
use crate::commands::simulated::packing::{AgainstPacking, Compared};
use crate::commands::simulated::program::{Asked, Kind, Program, Programs};
use crate::commands::simulated::{self, Memory};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::output::Tone;
use crate::terminal::recording::{self, MadeBy};

/// The statistics of programs under a policy.
pub(crate) struct Simulated {
    policy: Named,
    programs: Programs,
    memory: Memory,
    pub(super) devices: Vec<Device>,
    runs: Vec<Run>,
}

/// How a run went.
struct Run {
    outcome: Outcome,
    against: Option<AgainstPacking>,
}

/// Runs the programs under a policy.
pub(super) fn simulate(args: &Args, policy: Named) -> Result<Simulated> {
    args.under.excludes("--settings", args.settings.is_some())?;
    args.under.excludes("--profile", args.profile.is_some())?;
    let programs = args.under.programs(&args.file, &Asked { device: args.device, recorded_limit: args.recorded_limit })?;
    let memory = Memory { capacity_bytes: args.capacity, limit_bytes: args.limit };
    let options = memory.options();
    let (mut devices, mut runs) = (Vec::new(), Vec::new());
    for program in &programs.all {
        let one = || -> Result<(Device, Run)> {
            let (device, outcome) = sample(args, (program, &programs.recording), &policy, &options)?;
            simulated::check(&policy, program, &outcome)?;
            let steps = (args.packing.steps(), args.print.json);
            let against = AgainstPacking::of((program, &programs.recording), &policy, &options, steps)?;
            Ok((device, Run { outcome, against }))
        };
        let (device, run) = recording::of_device(one(), program.device, programs.all.len())?;
        devices.push(device);
        runs.push(run);
    }
    Ok(Simulated { policy, programs, memory, devices, runs })
}

/// Samples the run at the states that were asked for, or at its peak and its end.
fn sample(
    args: &Args,
    (program, source): (&Program, &Recording),
    policy: &Named,
    options: &RunOptions,
) -> Result<(Device, Outcome)> {
    let events = program.workload.events.len();
    let length = program.recorded.as_ref().map_or(events, |recorded| recorded.length);
    if length == 0 {
        bail!("the program has no events");
    }
    if let Some(entry) = args.entry.filter(|&entry| entry >= length) {
        let places = program.places();
        bail!("there is no {places} {entry}: the program has {length}, counted from 0");
    }
    let make = make_for(policy, &program.workload);
    let mut device = Device::new(program.device, length, program.places());
    let mut numbers = None;
    let at = match (args.entry, args.every, &args.steps) {
        (Some(entry), _, _) => vec![entry],
        (_, Some(every), _) => regularly(length, every),
        (_, _, Some(prefix)) => {
            let found = steps_of(program, source, prefix.as_deref(), &mut device)?;
            numbers = Some(found.iter().map(|&(number, _)| number).collect::<Vec<_>>());
            found.iter().map(|&(_, last)| last).collect()
        }
        _ => {
            let mut most = (0, 0, 0);
            watch(&program.workload, make(), options, |moment| {
                let current = |family| moment.stats().family(family).all.current;
                let now = (current(Family::ReservedBytes), current(Family::AllocatedBytes), 0);
                if (now.0, now.1) > (most.0, most.1) {
                    most = (now.0, now.1, moment.event);
                }
            });
            let (peak, last) = (program.place(most.2), length - 1);
            if peak < last { vec![peak, last] } else { vec![last] }
        }
    };
    let mut sampler = Sampler::new(&at);
    let outcome = watch(&program.workload, make(), options, |moment| {
        let is_last = moment.has_failed || moment.event + 1 == events;
        let done = if is_last { length } else { program.place(moment.event + 1) };
        sampler.pass(done, moment.stats(), &mut || moment.segments());
    });
    let step = |place: usize| numbers.as_ref().and_then(|numbers: &Vec<usize>| numbers.get(place).copied());
    let (samples, peak) = with_peaks(sampler.finish(), args.is_series());
    device.peak = peak;
    device.moments = samples.into_iter().enumerate().map(|(place, sample)| Moment { step: step(place), sample }).collect();
    Ok((device, outcome))
}

/// The number and the last place of each step.
fn steps_of(program: &Program, source: &Recording, prefix: Option<&str>, device: &mut Device) -> Result<Vec<(usize, usize)>> {
    if let Some(recorded) = source.devices.iter().find(|recorded| recorded.device == program.device) {
        let found = steps(&source.annotations, recorded, prefix)?;
        (device.mark, device.lost_steps) = (Some(found.mark), found.lost);
        return Ok(found.steps.iter().map(|step| (step.number, step.last_entry)).collect());
    }
    if prefix.is_some() {
        bail!(
            "--steps=PREFIX chooses annotations of a recording, and this program has none: --steps shows the program's own steps"
        );
    }
    let steps = &program.workload.steps;
    if steps.is_empty() {
        bail!("the program marks no steps: --every 1000 shows every thousandth event");
    }
    device.mark = Some("the steps of the program".to_owned());
    let ends = steps.iter().skip(1).map(|&begin| begin as usize).chain([program.workload.events.len()]);
    Ok(ends.map(|end| end.saturating_sub(1)).enumerate().collect())
}

pub(super) fn answer(args: &Args, simulated: &Simulated) -> Answer {
    let mut answer = Answer::new();
    let policy = &simulated.policy;
    for (place, ((device, run), program)) in
        simulated.devices.iter().zip(&simulated.runs).zip(&simulated.programs.all).enumerate()
    {
        if place > 0 {
            answer.gap();
        }
        if args.is_series() {
            series(&mut answer, device);
        } else if let Some(Moment { sample, .. }) = device.moments.first() {
            single(&mut answer, args, device, sample);
        }
        if args.keys {
            continue;
        }
        answer.paragraph(format!("a simulation of the policy {}, not of the recorded allocator", policy.name));
        if let Some(event) = run.outcome.failed_at_event {
            let (places, place) = (program.places(), program.place(event));
            answer.toned(Tone::Bad, format!("out of memory at {places} {place}, which ends the run"));
        }
        if let Some(against) = &run.against {
            answer.paragraphs(against.words(policy, |_| None));
            if let Some(table) = against.table() {
                answer.table(table);
            }
            against.table_notes().into_iter().for_each(|note| answer.indented(2, note));
        }
        answer.paragraphs(simulated::notes(program, policy, simulated.memory, run.outcome.peak_reserved_bytes));
    }
    if let Some(made_by) = simulated.programs.made_by.as_ref().filter(|_| !args.keys) {
        answer.paragraph(recording::made_by_words(made_by));
    }
    answer
}

view! {
    /// The statistics of a run under a policy. Entries are events if the program is not from a recording.
    pub(super) struct SimulatedObject<'a>(simulated: &'a Simulated) {
        /// The recording, the request trace or the workload.
        file: String = simulated.programs.path.display().to_string(),
        /// The policy of the simulation.
        policy: &'a str = &simulated.policy.name,
        /// `recording`, `trace` or `workload`.
        program: Word<Kind> = Word::of(&simulated.programs.kind),
        /// The release that made the recording; null for other programs.
        made_by: Option<MadeBy> = simulated.programs.made_by.as_ref().map(MadeBy::of),
        /// `--limit`.
        limit_bytes: Option<u64> = simulated.memory.limit_bytes,
        /// `--capacity`.
        capacity_bytes: Option<u64> = simulated.memory.capacity_bytes,
        /// Each device.
        devices: Vec<OfDevice<'a>> = all(&simulated.devices, OfDevice::of),
        /// How the run of each device went.
        runs: Vec<OfRun<'a>> = all(simulated.runs.iter().zip(&simulated.programs.all), |(run, program)| OfRun::of(run, program)),
    }
}

view! {
    /// How a run under a policy went.
    struct OfRun<'a>(run: &'a Run, program: &Program) {
        /// Whether every request was served.
        fits: bool = run.outcome.fits(),
        /// The first request that was refused, which ends the run; null if none was.
        fails_at: Option<usize> = run.outcome.failed_at_event.map(|event| program.place(event)),
        /// Peak of allocated memory.
        peak_allocated_bytes: u64 = run.outcome.peak_allocated_bytes,
        /// Peak of reserved memory.
        peak_reserved_bytes: u64 = run.outcome.peak_reserved_bytes,
        /// `num_alloc_retries`.
        retries: u64 = run.outcome.retries,
        /// Driver calls.
        driver_calls: u64 = run.outcome.driver_calls,
        /// The cost of these calls.
        driver_ns: u64 = run.outcome.driver_ns,
        /// The comparison with the best packing; null with `--bounds 0`.
        packing: Option<Compared<'a>> = run.against.as_ref().map(Compared::of),
    }
}
