//! The report on a run under a policy: the same page, pictures and figures as for a recorded run, and where the policy first
//! needs more memory than the best packing.

#![cfg_attr(not(feature = "native"), allow(dead_code, reason = "the page for browsers shows recorded runs only"))]

use std::sync::Arc;

use anyhow::Result;
use parkade_analysis::StackNames;
use parkade_analysis::annotations::{Scope, scopes};
use parkade_analysis::ending::Ending;
use parkade_analysis::holders::Holders;
use parkade_analysis::timeline::{Levels, Served, TimeSamples, Timeline, holders};
use parkade_policies::Named;
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::{DeviceVerdict, NotInFile};

use super::gather::{
    Args, Device, Limit, MOST_TIMES, OVERVIEW_BUCKETS, Origin, Report, Simulated, curves, longest_phases, peak_reserved_moment,
};
use super::holders::{OfKind, kinds_at_peak};
use super::json::{Drawn, Held, Marked, Span};
use super::labels::Labels;
use super::words;
use crate::commands::simulated::packing::{AgainstPacking, Compared};
use crate::commands::simulated::program::{Asked, Kind, Program};
use crate::commands::simulated::{self, Memory, Run, Simulation};
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::recording::{self, MadeBy};

/// Runs the programs under a policy.
pub(super) fn gather(args: &Args, policy: Named) -> Result<Report> {
    args.under.excludes("--settings", !args.settings.is_empty())?;
    args.under.excludes("--profile", args.profile.is_some())?;
    let programs = args.under.programs(&args.file, &Asked { device: args.device, recorded_limit: None })?;
    let memory = Memory { capacity_bytes: args.capacity, limit_bytes: args.limit };
    let Simulation { policy, programs, recording, runs, .. } = Simulation::of(programs, policy, memory)?;
    let mut devices = Vec::new();
    for ((device, run), program) in recording.devices.iter().zip(runs).zip(&programs.all) {
        let steps = (args.packing.steps(), args.json.json);
        let against = AgainstPacking::of((program, &programs.recording), &policy, &memory.options(), steps);
        let against = recording::of_device(against, program.device, programs.all.len())?;
        let reserved = run.recorded.outcome.peak_reserved_bytes;
        let entry_of = |event: usize| run.served.get(event)?.entries.checked_sub(1);
        let simulated = Simulated {
            policy: policy.name.to_string(),
            fails_at: run.recorded.outcome.failed_at_event.map(|event| program.place(event)),
            outcome: run.recorded.outcome.clone(),
            words: against.as_ref().map_or_else(Vec::new, |against| against.words(&policy, entry_of)),
            against,
            notes: simulated::notes(program, &policy, memory, reserved),
        };
        devices.push(gather_device((device, &recording), run, program, memory, simulated));
    }
    let used = devices.iter().flat_map(|device| device.timeline.log.blocks.iter().map(|block| block.stack));
    let names = StackNames::of(&recording.stacks);
    let labels = Labels::of((&names, &recording.stacks), used);
    Ok(Report {
        file: programs.path,
        origin: Origin::Simulated { policy: policy.name.to_string(), kind: programs.kind, made_by: programs.made_by },
        page_bytes: args.page_size,
        stacks: recording.stacks,
        names,
        labels,
        devices,
        runs: Vec::new(),
        found: None,
    })
}

fn gather_device(
    (device, recording): (&DeviceRecording, &Recording),
    run: Run,
    program: &Program,
    memory: Memory,
    simulated: Simulated,
) -> Device {
    let timeline = Timeline::of_served(device, &run.served);
    let peak_allocated_moment = Levels::peak_moment(&timeline.levels.allocated) as u32;
    let limit_bytes = memory.limit_bytes.or(memory.capacity_bytes);
    let verdict = DeviceVerdict {
        device: device.device,
        entries: device.trace.len(),
        decisions: 0,
        mismatches: 0,
        first: None,
        ooms: run.recorded.stats.num_ooms.try_into().unwrap_or(0),
        stats: run.recorded.stats,
        not_in_file: NotInFile::default(),
        stats_check: None,
    };
    let phases = if program.recorded.is_some() { scopes(&recording.annotations, device) } else { steps(program, &run.served) };
    Device {
        number: device.device,
        limit: Limit { run_bytes: limit_bytes, tried_bytes: limit_bytes, assumed: None },
        verdict: Some(verdict),
        has_history: true,
        left_out: None,
        self_check: None,
        curves: curves(&timeline.levels, OVERVIEW_BUCKETS),
        times: TimeSamples::of(device, MOST_TIMES),
        phases: longest_phases(phases),
        ending: Ending::NoError,
        peak_allocated_moment,
        peak_reserved_moment: peak_reserved_moment(&timeline.levels) as u32,
        recorded_peak_bytes: 0,
        holders: holders(&timeline.log, peak_allocated_moment),
        told: Holders::of(&timeline.log, device, &recording.annotations, &recording.stacks),
        tried: Vec::new(),
        rest: None,
        timeline,
        simulated: Some(simulated),
    }
}

/// The steps of a generated workload, as phases.
fn steps(program: &Program, served: &[Served]) -> Vec<Scope> {
    let steps = &program.workload.steps;
    let moment = |event: usize| {
        event.checked_sub(1).map_or(0, |last| served.get(last.min(served.len() - 1)).map_or(0, |done| done.entries))
    };
    if served.is_empty() {
        return Vec::new();
    }
    let ends = steps.iter().skip(1).map(|&next| next as usize).chain([program.workload.events.len()]);
    let scopes = steps.iter().zip(ends).enumerate().map(|(number, (&begin, end))| Scope {
        name: Arc::from(format!("step {number}")),
        from: moment(begin as usize) as u32,
        to: moment(end) as u32,
        depth: 0,
    });
    scopes.filter(|scope| scope.to > scope.from).collect()
}

view! {
    /// The report on a run under a policy: a simulation, not the recorded run.
    pub(super) struct SimulatedObject<'a>(report: &'a Report, policy: &'a str, kind: Kind) {
        /// The recording, the request trace or the workload.
        file: String = report.file.display().to_string(),
        /// The policy of the simulation.
        policy: &'a str = policy,
        /// `recording`, `trace` or `workload`.
        program: Word<Kind> = Word::of(&kind),
        /// The release that made the recording; null for other programs.
        made_by: Option<MadeBy> = report.origin.made_by().map(MadeBy::of),
        /// Each device.
        devices: Vec<SimulatedDevice<'a>> =
            report.devices.iter().filter_map(|device| Some(SimulatedDevice::of(report, device, device.simulated.as_ref()?))).collect(),
    }
}

view! {
    /// A device's run under a policy.
    struct SimulatedDevice<'a>(report: &Report, device: &'a Device, simulated: &'a Simulated) {
        /// The device.
        device: u32 = device.number,
        /// The number of entries in the simulated trace, which entries below refer to.
        entries: usize = device.timeline.entries,
        /// The run in a sentence or two.
        what_happened: String = words::what_happened(device),
        /// Whether every request was served.
        fits: bool = simulated.outcome.fits(),
        /// The event of the program at which the run ran out of memory; for a recording, its entry. Null if it did not.
        fails_at: Option<usize> = simulated.fails_at,
        /// The memory that the policy had; null if it was not limited.
        capacity_bytes: Option<u64> = device.limit.run_bytes,
        /// The peak of allocated memory.
        peak_allocated_bytes: u64 = device.curves.allocated.peak(),
        /// The peak of active memory: allocated, or freed but still used by another stream.
        peak_active_bytes: u64 = device.curves.active.peak(),
        /// The peak of reserved memory.
        peak_reserved_bytes: u64 = device.curves.reserved.peak(),
        /// The first entry after which allocated memory is at its peak; null if before the first.
        peak_allocated_entry: Option<u32> = device.peak_allocated_moment.checked_sub(1),
        /// Of the entries after which reserved memory is at its peak, the first with the most allocated.
        peak_reserved_entry: Option<u32> = device.peak_reserved_moment.checked_sub(1),
        /// `num_alloc_retries`.
        retries: u64 = simulated.outcome.retries,
        /// The number of driver calls.
        driver_calls: u64 = simulated.outcome.driver_calls,
        /// What those calls cost.
        driver_us: u64 = simulated.outcome.driver_ns / 1000,
        /// The comparison with the best packing; null with `--bounds 0`.
        packing: Option<Compared<'a>> = simulated.against.as_ref().map(Compared::of),
        /// Memory over time.
        curves: Drawn = Drawn::of(&curves(&device.timeline.levels, super::json::BUCKETS)),
        /// Events worth seeing.
        markers: Vec<Marked> = all(&device.timeline.markers, Marked::of),
        /// The annotated phases, or the steps of a workload.
        phases: Vec<Span> = all(&device.phases, Span::of),
        /// Up to 50 holders that hold the most when allocated memory peaks.
        holders_at_peak: Vec<Held> = all(device.holders.iter().take(50), |holder| Held::of(report, holder)),
        /// The live blocks when allocated memory peaks, by kind, the most bytes first.
        holders_by_kind: Vec<OfKind> = all(&kinds_at_peak(device), OfKind::of),
        /// What to know before trusting the curves.
        notes: Vec<String> = words::notes(report, device),
    }
}
