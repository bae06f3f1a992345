//! Runs as a trace file for Perfetto: JSON in the Trace Event Format, written event by event.

use std::cmp::Reverse;
use std::io::{self, Write};

use parkade_analysis::StackNames;
use parkade_analysis::annotations::{Scope, scopes};
use parkade_analysis::holders::{Holders, Told};
use parkade_analysis::timeline::{BlockLife, NEVER, Timeline};
use parkade_recording::{Action, DeviceRecording, Recording, StackId};
use serde::Serialize;

use crate::terminal::output;

/// One device's run.
pub(super) struct Run<'a> {
    pub(super) device: &'a DeviceRecording,
    pub(super) timeline: Timeline,
    pub(super) holders: Holders,
}

/// The number of blocks written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slices {
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
pub(super) fn write_trace(
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
        simulated_policy: recording.simulated.as_ref().map(|simulated| &*simulated.policy),
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
