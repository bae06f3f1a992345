//! A run of a program under a policy, which `report`, `stats` and `export` show in place of the run that was recorded.
//!
//! `program` makes programs from recordings, request traces and generated workloads. A [`Simulation`] runs them and turns the runs into
//! a recording, as PyTorch's memory history would contain it: addresses, segments and blocks are the policy's; if the program is from a
//! recording, each entry has the time and the stack of the recorded entry that led to it. `packing` compares a policy's need with the
//! best packing and names the blocks that are in the way.

// Without the feature, only the option and its checks are used.
#![cfg_attr(not(feature = "native"), allow(dead_code, reason = "the page for browsers shows recorded runs only"))]

pub(crate) mod packing;
pub(crate) mod program;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Error, Result, anyhow};
use clap::Args;
use parkade::snapshot::SegmentInfo;
use parkade::trace::TraceEntry;
use parkade::units::{PoolId, StreamId};
use parkade_analysis::timeline::Served;
use parkade_policies::Named;
use parkade_recording::{
    Action, DeviceRecording, Entry, FileFields, Minor, Part, PoolTable, Recording, Segment, Simulated, StackId,
};
use parkade_replay::Decision;
use parkade_replay::export::{recorded_segment, recorded_settings};
use parkade_research::packing::COMPARED_STEPS;
use parkade_research::study::{Ending, PLENTY_BYTES, RecordedRun, RunOptions, make_for, record, stream_number};
use parkade_research::workload::Event;

use self::program::{Kind, Program, Programs};
use crate::terminal::progress::WrongArgument;
use crate::terminal::recording::{self, IsSimulation};
use crate::terminal::{args, output, size};

/// `--policy`, and the program to run under it.
#[derive(Args, Clone, Default)]
pub(crate) struct UnderPolicy {
    /// Show the program under a parkade policy, such as bfc or compaction: a simulation in place of the recorded run, with the same
    /// requests, as in parkade replay --policy. FILE may then also be a request trace (docs/trace.md). --limit and --capacity are the
    /// policy's memory. parkade sweep --list lists all policies.
    #[arg(long, value_name = "NAME", group = "other_run")]
    pub(crate) policy: Option<String>,
    /// Show a workload instead of FILE: a name of the catalogue or a description of a generated workload, as in parkade sweep.
    /// Seed 1, unless the description sets the seed.
    #[cfg(feature = "native")]
    #[arg(short, long, value_name = "WORKLOAD")]
    workload: Option<std::ffi::OsString>,
}

/// `--bounds`.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct PackingSteps {
    /// With --policy: the steps spent on packing the program offline, which shows where the policy first needs more memory; 0 omits
    /// this [default: 100000000].
    #[arg(long, value_name = "STEPS", requires = "policy")]
    bounds: Option<u64>,
}

impl PackingSteps {
    /// Returns the steps that the packer may take; 0 if it is not wanted.
    pub(crate) fn steps(self) -> u64 {
        self.bounds.unwrap_or(COMPARED_STEPS)
    }
}

impl UnderPolicy {
    /// Returns the policy; `None` if the recorded run is to be shown.
    ///
    /// # Errors
    /// There is no policy of this name.
    pub(crate) fn named(&self) -> Result<Option<Named>> {
        self.policy.as_deref().map(args::policy).transpose()
    }

    /// Returns the policy, unless the recorded run of `file` is to be shown.
    ///
    /// # Errors
    /// The program has no recorded run, or there is no policy of this name.
    pub(crate) fn policy_for(&self, file: &Path) -> Result<Option<Named>> {
        let policy = self.named()?;
        let what = match policy {
            None if self.is_workload() => "workload",
            None if program::is_request_trace(file) => "request trace",
            _ => return Ok(policy),
        };
        let why =
            format!("a {what} has no recorded run: --policy NAME chooses the policy to show it under (parkade sweep --list)");
        Err(WrongArgument(why).into())
    }

    /// Returns the policy under which parkade simulated a file, as option and by name, and the memory there, if this is why the file
    /// cannot be replayed.
    ///
    /// # Errors
    /// The given error, if it has a different cause; or this program does not have the policy.
    pub(crate) fn of_simulation(&self, error: Error) -> Result<(UnderPolicy, Named, Memory)> {
        let IsSimulation(simulated) = error.downcast()?;
        let policy = simulated.policy.to_string();
        let named = args::policy(&policy).map_err(|_| {
            anyhow!(
                "the file is parkade's simulation of the policy {policy}, which this program does not have: run the program that \
                 declares it, or show the requests under a different policy with --policy NAME (parkade sweep --list)"
            )
        })?;
        let memory = Memory { capacity_bytes: simulated.capacity_bytes, limit_bytes: simulated.limit_bytes };
        let mut under = self.clone();
        under.policy = Some(policy);
        Ok((under, named, memory))
    }

    /// Refuses `option`, which applies to PyTorch's allocator, beside a policy.
    ///
    /// # Errors
    /// Both are given.
    pub(crate) fn excludes(&self, option: &str, is_given: bool) -> Result<()> {
        args::excluded_by(self.policy.as_deref(), option, is_given)
    }

    /// Whether the program is a workload, and not in the file.
    #[cfg(feature = "native")]
    pub(crate) fn is_workload(&self) -> bool {
        self.workload.is_some()
    }

    /// Whether the program is a workload, and not in the file.
    #[cfg(not(feature = "native"))]
    pub(crate) const fn is_workload(&self) -> bool {
        false
    }

    /// Returns the workload, as it was given.
    #[cfg(feature = "native")]
    pub(crate) fn workload_name(&self) -> String {
        self.workload.as_ref().map_or_else(String::new, |workload| workload.display().to_string())
    }

    /// Returns the programs of the file, or the workload.
    ///
    /// # Errors
    /// There is no such program, or it cannot be read.
    pub(crate) fn programs(&self, file: &Path, asked: &program::Asked) -> Result<Programs> {
        #[cfg(feature = "native")]
        if let Some(workload) = &self.workload {
            if !file.as_os_str().is_empty() {
                let why = format!("{} and --workload are two programs: leave one out", file.display());
                return Err(WrongArgument(why).into());
            }
            return Programs::of_workload(workload, asked);
        }
        Programs::of_file(file, asked)
    }
}

/// The release whose files have all keys that a simulation fills in.
const RELEASE: Minor = (2, 12);

/// The memory of a policy.
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    pub(crate) capacity_bytes: Option<u64>,
    pub(crate) limit_bytes: Option<u64>,
}

impl Memory {
    /// Returns this memory on the device of the other, unless this has a device; without a limit, it is also the other's.
    pub(crate) fn or(self, other: Memory) -> Memory {
        if self.capacity_bytes.is_some() {
            return self;
        }
        Memory { capacity_bytes: other.capacity_bytes, limit_bytes: self.limit_bytes.or(other.limit_bytes) }
    }

    pub(crate) fn options(self) -> RunOptions {
        RunOptions { limit_bytes: self.limit_bytes, ..RunOptions::new(self.capacity_bytes.unwrap_or(PLENTY_BYTES)) }
    }
}

/// Programs that ran under a policy.
pub(crate) struct Simulation {
    pub(crate) policy: Named,
    pub(crate) memory: Memory,
    pub(crate) programs: Programs,
    /// What a snapshot at the end would contain.
    pub(crate) recording: Recording,
    /// The run of each program.
    pub(crate) runs: Vec<Run>,
}

/// The run of one program.
pub(crate) struct Run {
    pub(crate) recorded: RecordedRun,
    /// The events, as operations of the recording.
    pub(crate) served: Vec<Served>,
}

impl Simulation {
    /// Runs the programs.
    ///
    /// # Errors
    /// The policy breaks, or a program is malformed.
    pub(crate) fn of(programs: Programs, policy: Named, memory: Memory) -> Result<Simulation> {
        let fields = if programs.kind == Kind::Recording { programs.recording.fields } else { FileFields::of_release(RELEASE) };
        let settings = policy.make().as_pytorch().map(|pytorch| recorded_settings(&pytorch.settings, fields));
        let mut recording = Recording {
            settings,
            annotations: programs.recording.annotations.clone(),
            stacks: programs.recording.stacks.clone(),
            simulated: Some(Simulated {
                policy: policy.name.as_ref().into(),
                capacity_bytes: memory.capacity_bytes,
                limit_bytes: memory.limit_bytes,
            }),
            fields,
            ..Recording::default()
        };
        let mut runs = Vec::new();
        for program in &programs.all {
            let run = record(&program.workload, make_for(&policy, &program.workload)(), &memory.options());
            recording::of_device(check(&policy, program, &run.outcome), program.device, programs.all.len())?;
            let source = programs.recording.devices.iter().find(|device| device.device == program.device);
            let (device, served) = Writer::of(program, source).device(&run);
            recording.devices.push(device);
            runs.push(Run { recorded: run, served });
        }
        Ok(Simulation { policy, memory, programs, recording, runs })
    }

    /// Removes the pools of entries if files of the recording's release have none.
    pub(crate) fn for_a_file(mut self) -> Simulation {
        if !self.recording.fields.has(Part::Entry, "pool_id") {
            for device in &mut self.recording.devices {
                let none = Entry::new(Action::Alloc, 0, 0, 0).pool;
                device.trace.iter_mut().for_each(|entry| entry.pool = none);
                device.pools = Arc::default();
            }
        }
        self
    }
}

/// Refuses a run that ended for a reason other than memory.
pub(crate) fn check(policy: &Named, program: &Program, outcome: &parkade_research::study::Outcome) -> Result<()> {
    let Ending::Fault(fault) = &outcome.ending else { return Ok(()) };
    let place = program.place(outcome.failed_at_event.unwrap_or(0));
    let places = program.places();
    Err(anyhow!("the policy {} cannot serve {places} {place}, for a reason other than memory: {fault}", policy.name))
}

/// The memory in which a file was simulated.
fn within(simulated: &Simulated) -> String {
    let bytes = simulated.limit_bytes.or(simulated.capacity_bytes);
    bytes.map_or_else(String::new, |bytes| format!(" in {}", size::show_bytes(bytes)))
}

/// Returns notes on the figures of a run under a policy.
pub(crate) fn notes(program: &Program, policy: &Named, memory: Memory, peak_reserved_bytes: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if memory.capacity_bytes.is_none() && memory.limit_bytes.is_none() && peak_reserved_bytes >= PLENTY_BYTES / 2 {
        notes.push(format!(
            "{} reserves a share of all memory in advance: --limit or --capacity sets how much memory the device has",
            policy.name
        ));
    }
    let Some(recorded) = &program.recorded else { return notes };
    if let Some((simulated, peak)) = recorded.simulated.as_ref().filter(|(_, peak)| *peak != peak_reserved_bytes) {
        let is_same = *simulated.policy == *policy.name;
        let is_same = is_same && (simulated.capacity_bytes, simulated.limit_bytes) == (memory.capacity_bytes, memory.limit_bytes);
        let why =
            if is_same { ": its requests cannot be read exactly, so run the program from which it was exported" } else { "" };
        notes.push(format!(
            "the file is parkade's simulation of the policy {}{}, with at most {} reserved{why}",
            simulated.policy,
            within(simulated),
            size::show_bytes(*peak)
        ));
    }
    if recorded.late_frees > 0 {
        notes.push(format!(
            "{} waited for other streams in the recorded run; the memory becomes free at the same point as it did then",
            output::count(recorded.late_frees, "free")
        ));
    }
    if recorded.unnamed_requests > 0 {
        let requests = output::count(recorded.unnamed_requests, "request");
        notes.push(format!("{requests} left out: there are too many streams or pools"));
    }
    if let Some(entry) = recorded.died_at {
        notes.push(format!("the recorded run died at entry {entry}; the simulation ends with that request"));
    }
    notes
}

/// Writes the recording of a device.
struct Writer<'a> {
    program: &'a Program,
    source: Option<&'a DeviceRecording>,
    pools: PoolTable,
    /// The stacks of the blocks in use, by address.
    stacks: HashMap<u64, StackId>,
}

impl<'a> Writer<'a> {
    fn of(program: &'a Program, source: Option<&'a DeviceRecording>) -> Writer<'a> {
        Writer { program, source, pools: PoolTable::default(), stacks: HashMap::new() }
    }

    fn device(mut self, run: &RecordedRun) -> (DeviceRecording, Vec<Served>) {
        let mut trace = Vec::with_capacity(run.entries.len());
        let mut served = Vec::with_capacity(run.events.len());
        for (number, event) in run.events.iter().enumerate() {
            let (time, stack) = self.origin(number, &event.event);
            for happened in &run.entries[trace.len()..event.entries] {
                trace.push(self.entry(happened, time, stack));
            }
            served.push(Served {
                entries: event.entries,
                allocated_bytes: event.allocated_bytes,
                is_retried: event.is_retried,
                empties_cache: event.event == Event::EmptyCache,
            });
        }
        let segments = run.segments.iter().map(|segment| self.segment(segment)).collect();
        let device = self.program.device;
        let pools = Arc::new(self.pools);
        (DeviceRecording { device, segments, trace, pools, left_out: None }, served)
    }

    /// The time and the stack of the recorded entry that led to an event.
    fn origin(&self, number: usize, event: &Event) -> (Option<u64>, StackId) {
        let Some((recorded, source)) = self.program.recorded.as_ref().zip(self.source) else { return (None, StackId::NONE) };
        let at = recorded.entries.get(number).map_or(0, |&entry| entry as usize);
        let entry = source.trace.get(at);
        let stack = match event {
            Event::Allocate { buffer, .. } if (*buffer as usize) < recorded.early => {
                recorded.early_stacks.get(buffer).copied().unwrap_or(StackId::NONE)
            }
            _ => entry.map_or(StackId::NONE, |entry| entry.stack),
        };
        (entry.and_then(Entry::time), stack)
    }

    fn entry(&mut self, happened: &TraceEntry, time: Option<u64>, stack: StackId) -> Entry {
        let Decision { action, address, size, .. } = Decision::from(happened);
        let mut entry = Entry::new(action, address, size, self.stream(happened.stream));
        entry.set_time(time);
        entry.stack = stack;
        let PoolId(first, second) = self.pool(happened.pool);
        entry.pool = self.pools.intern((first, second));
        match action {
            Action::Alloc => drop(self.stacks.insert(address, stack)),
            Action::FreeCompleted => drop(self.stacks.remove(&address)),
            _ => {}
        }
        entry
    }

    /// The handle of the recording's stream; other programs number their streams.
    fn stream(&self, handle: StreamId) -> u64 {
        let number = stream_number(handle);
        let handles = self.program.recorded.as_ref().map(|recorded| &recorded.streams);
        handles.map_or(u64::from(number), |handles| handles.get(usize::from(number)).copied().unwrap_or(0))
    }

    /// The recording's pool; other programs number their pools.
    fn pool(&self, pool: PoolId) -> PoolId {
        let pools = self.program.recorded.as_ref().map(|recorded| &recorded.pools);
        let named = |pools: &Vec<PoolId>| pools.get(usize::try_from(pool.0.checked_sub(1)?).ok()?).copied();
        pools.and_then(named).unwrap_or(pool)
    }

    fn segment(&self, segment: &SegmentInfo) -> Segment {
        let PoolId(first, second) = self.pool(segment.pool);
        let stack_at = |address| self.stacks.get(&address).copied().unwrap_or(StackId::NONE);
        let stream = self.stream(segment.stream);
        Segment { stream, pool: Some((first, second)), ..recorded_segment(segment, &stack_at) }
    }
}
