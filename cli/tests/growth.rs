//! The cost of a command grows in proportion to what it reads.
//!
//! Two recordings differ in one dimension only, one eight times as large as the other. Twice as much may cost 2.3 times the
//! processor time: a little more than twice, as larger tables are slower. The processor's time hardly depends on what else
//! runs. `ALWAYS` has the pairs of dimension and command that each run measures. This is a separate test program because it
//! counts the time of the entire process.
#![cfg(unix)]

mod common;

use std::ffi::OsString;
use std::time::Duration;

use common::{BASE, Folder, MIB, default_settings, segment, unused, used};
use parkade_recording::{
    Action, Annotation, Block, BlockState, DeviceRecording, Entry, Frame, Recording, Segment, StackId, StackTable,
};
use rustix::time::{ClockId, clock_gettime};

/// The factor by which the larger recording is larger.
const TIMES: usize = 8;
/// The factor by which the cost may grow if the input doubles.
const MOST: f64 = 2.3;
/// A shorter time shows nothing.
const FLOOR: Duration = Duration::from_millis(15);
/// How often a measurement that is too high is repeated; the lowest counts.
const TRIES: usize = 6;

/// A recording in the making.
#[derive(Default)]
struct Made {
    trace: Vec<Entry>,
    segments: Vec<Segment>,
    annotations: Vec<Annotation>,
    stacks: StackTable,
}

impl Made {
    fn add(&mut self, action: Action, address: u64, size: u64) -> &mut Entry {
        let mut entry = Entry::new(action, address, size, 0);
        entry.set_time(Some(self.time()));
        self.trace.push(entry);
        self.trace.last_mut().expect("an entry")
    }

    /// The same of several blocks of 512 bytes.
    fn add_each<'a>(&mut self, action: Action, blocks: impl IntoIterator<Item = &'a u64>) {
        for &block in blocks {
            self.add(action, block, 512);
        }
    }

    fn time(&self) -> u64 {
        1_700_000_000_000_000 + 10 * self.trace.len() as u64
    }

    /// A block that is allocated and freed.
    fn cycle(&mut self, address: u64, size: u64, stack: StackId) {
        self.add(Action::Alloc, address, size).stack = stack;
        self.add(Action::FreeRequested, address, size);
        self.add(Action::FreeCompleted, address, size);
    }

    fn annotate(&mut self, name: String, stage: &str) {
        let time_us = Some(self.time() as i64 - 5);
        self.annotations.push(Annotation { name: name.into(), stage: stage.into(), device: Some(0), time_us });
    }

    /// A stack of this many calls, the innermost on this line.
    fn stack(&mut self, line: usize, calls: usize) -> StackId {
        let frame = |line: usize| Frame { filename: "f.py".into(), line: line as u32, name: format!("g{line}").into() };
        let calls: Vec<u32> = (line..line + calls).map(|line| self.stacks.intern_frame(frame(line))).collect();
        self.stacks.intern_stack(&calls)
    }

    /// Small segments with this many blocks of 512 bytes; returns the blocks.
    fn small(&mut self, count: usize, state: BlockState) -> Vec<u64> {
        let mut all = Vec::new();
        for (place, from) in (0..count).step_by(4096).enumerate() {
            let address = BASE + place as u64 * 2 * MIB;
            let blocks: Vec<u64> = (0..4096.min(count - from) as u64).map(|block| address + block * 512).collect();
            self.add(Action::SegmentAlloc, address, 2 * MIB);
            self.add_each(Action::Alloc, &blocks);
            let rest = address + blocks.len() as u64 * 512;
            let left = address + 2 * MIB - rest;
            let mut kept: Vec<Block> = blocks.iter().map(|&block| Block { state, ..used(block, 512) }).collect();
            kept.extend((left > 0).then(|| unused(rest, left)));
            self.segments.push(segment(if state == BlockState::Inactive { vec![unused(address, 2 * MIB)] } else { kept }));
            all.extend(blocks);
        }
        all
    }

    /// A segment with 512 KiB in use.
    fn small_segment(&mut self, place: usize, is_traced: bool) -> &mut Segment {
        let address = BASE + place as u64 * 2 * MIB;
        if is_traced {
            self.add(Action::SegmentAlloc, address, 2 * MIB);
            self.add(Action::Alloc, address, MIB / 2);
        }
        self.segments.push(segment(vec![used(address, MIB / 2), unused(address + MIB / 2, 3 * MIB / 2)]));
        self.segments.last_mut().expect("a segment")
    }

    /// A 20 MiB segment, and what is in it at the end.
    fn large_segment(&mut self, used_bytes: u64) {
        self.add(Action::SegmentAlloc, BASE, 20 * MIB);
        let in_use = (used_bytes > 0).then(|| used(BASE, used_bytes));
        let blocks = in_use.into_iter().chain([unused(BASE + used_bytes, 20 * MIB - used_bytes)]);
        self.segments.push(segment(blocks.collect()));
    }

    fn recording(self) -> Recording {
        let Made { trace, segments, annotations, stacks } = self;
        let devices = vec![DeviceRecording { segments, trace, ..DeviceRecording::default() }];
        Recording { devices, settings: Some(default_settings()), annotations, stacks, ..Recording::default() }
    }
}

fn pools(made: &mut Made, count: usize, is_traced: bool) {
    (0..count).for_each(|pool| made.small_segment(pool, is_traced).pool = Some((0, pool as u64 + 1)));
    if !is_traced {
        made.add(Action::Alloc, BASE, MIB / 2);
        // A lone entry would be no history.
        made.add(Action::Snapshot, 0, 0);
    }
}

fn streams(made: &mut Made, count: usize, is_traced: bool) {
    for stream in 0..count {
        made.small_segment(stream, is_traced).stream = stream as u64;
        made.trace.iter_mut().rev().take(2).for_each(|entry| entry.stream = stream as u64);
    }
    if !is_traced {
        made.add(Action::Alloc, BASE, MIB / 2);
        // A lone entry would be no history.
        made.add(Action::Snapshot, 0, 0);
    }
}

/// Frees that complete late: in reverse order, or one each request from the second on, while the first never does.
fn late_frees(made: &mut Made, count: usize, is_reverse: bool) {
    let blocks = made.small(count, BlockState::Inactive);
    made.add_each(Action::FreeRequested, &blocks);
    if is_reverse {
        made.add_each(Action::FreeCompleted, blocks.iter().rev());
    } else {
        for pair in blocks.chunks(2) {
            made.add_each(Action::FreeCompleted, pair);
            made.cycle(pair[0], 512, StackId::NONE);
        }
    }
}

fn segments(made: &mut Made, count: usize, are_freed: bool) {
    for place in 0..count {
        let address = BASE + place as u64 * 16 * MIB;
        let stack = made.stack(place, 1);
        made.add(Action::SegmentAlloc, address, 16 * MIB);
        if are_freed {
            made.cycle(address, 16 * MIB, stack);
            made.add(Action::SegmentFree, address, 16 * MIB);
        } else {
            made.add(Action::Alloc, address, 16 * MIB).stack = stack;
            made.segments.push(segment(vec![used(address, 16 * MIB)]));
        }
    }
}

/// This many requests, each from a different place in the program, or from one of a few.
fn requests(made: &mut Made, count: usize, stacks: usize, depth: usize) {
    made.large_segment(0);
    for place in 0..count {
        let stack = made.stack(place % stacks, depth);
        made.cycle(BASE, 5 * MIB, stack);
    }
}

fn annotations(made: &mut Made, count: usize, are_steps: bool) {
    made.large_segment(0);
    for step in 0..count {
        made.annotate(if are_steps { format!("ProfilerStep#{step}") } else { format!("scope {step}") }, "START");
        made.cycle(BASE, 5 * MIB, StackId::NONE);
        if are_steps {
            made.annotate(format!("ProfilerStep#{step}"), "END");
        }
    }
    (0..count).rev().filter(|_| !are_steps).for_each(|scope| made.annotate(format!("scope {scope}"), "END"));
}

/// A dimension: its name, the larger number, and how to make a recording with that many.
type Dimension = (&'static str, usize, fn(&mut Made, usize));

const DIMENSIONS: [Dimension; 16] = [
    ("private pools", 2_000, |made, count| pools(made, count, true)),
    ("private pools from before the first entry", 2_000, |made, count| pools(made, count, false)),
    ("streams", 2_000, |made, count| streams(made, count, true)),
    ("streams from before the first entry", 2_000, |made, count| streams(made, count, false)),
    ("segments", 2_000, |made, count| segments(made, count, false)),
    ("segments given back", 2_000, |made, count| segments(made, count, true)),
    ("out-of-memory entries", 16_000, |made, count| {
        made.large_segment(5 * MIB);
        made.add(Action::Alloc, BASE, 5 * MIB);
        for _ in 0..count {
            made.add(Action::Oom, 100 * MIB, 200 * MIB);
        }
    }),
    ("late frees in reverse order", 4_000, |made, count| late_frees(made, count, true)),
    ("late frees between requests", 4_000, |made, count| late_frees(made, count, false)),
    ("frees that never complete", 4_000, |made, count| {
        let blocks = made.small(count, BlockState::ActivePendingFree);
        made.add_each(Action::FreeRequested, &blocks);
    }),
    ("live blocks", 4_000, |made, count| drop(made.small(count, BlockState::ActiveAllocated))),
    ("entries", 4_000, |made, count| requests(made, count, 50, 3)),
    ("stacks", 4_000, |made, count| requests(made, count, usize::MAX, 1)),
    ("calls of a stack", 2_000, |made, count| requests(made, 40, 40, count)),
    ("steps", 4_000, |made, count| annotations(made, count, true)),
    ("scopes inside of each other", 4_000, |made, count| annotations(made, count, false)),
];

/// A way to read a recording, with `FILE` for it and `OUT` for a file to write, and by how much smaller ones it takes.
type Command = (usize, &'static [&'static str]);

const COMMANDS: [Command; 19] = [
    (1, &["verify", "FILE"]),
    (1, &["diagnose", "FILE"]),
    (1, &["diff", "FILE", "FILE"]),
    (1, &["report", "FILE"]),
    (8, &["report", "FILE", "-o", "OUT"]),
    (1, &["report", "FILE", "--svg", "OUT"]),
    (1, &["report", "FILE", "--svg", "OUT", "--entry", "1"]),
    (1, &["report", "FILE", "--flamegraph", "OUT"]),
    (1, &["stats", "FILE", "--every", "1000", "--csv"]),
    (1, &["stats", "FILE", "--steps", "--json"]),
    (1, &["stats", "FILE", "--settings", "expandable_segments:True"]),
    (1, &["export", "FILE", "-o", "OUT"]),
    (1, &["export", "FILE", "-o", "OUT", "--format", "perfetto"]),
    (1, &["replay", "FILE"]),
    (1, &["replay", "FILE", "--settings", "expandable_segments:True"]),
    (1, &["replay", "FILE", "--policy", "compaction"]),
    (1, &["pack", "FILE", "--budget", "1000"]),
    (2, &["advise", "FILE", "--only", "--settings", "expandable_segments:True"]),
    (8, &["advise", "FILE"]),
];

/// What each run measures: the dimension, and how the command begins. With `PARKADE_GROWTH=all`, which takes minutes, all dimensions and
/// commands are measured.
const ALWAYS: [(&str, &str); 11] = [
    ("private pools", "diff FILE FILE"),
    ("private pools", "report FILE"),
    ("private pools", "export FILE -o OUT --format perfetto"),
    ("private pools from before the first entry", "report FILE"),
    ("out-of-memory entries", "report FILE --svg"),
    ("late frees in reverse order", "advise FILE --only"),
    ("late frees in reverse order", "replay FILE"),
    ("late frees between requests", "pack FILE"),
    ("segments given back", "advise FILE --only"),
    ("stacks", "report FILE --flamegraph"),
    ("entries", "verify FILE"),
];

fn is_always_measured(dimension: &str, command: &[&str]) -> bool {
    let command = command.join(" ");
    ALWAYS.iter().any(|(name, begins)| *name == dimension && command.starts_with(begins))
}

fn is_measured(dimension: &str, command: &[&str]) -> bool {
    std::env::var("PARKADE_GROWTH").is_ok_and(|value| value == "all") || is_always_measured(dimension, command)
}

fn used_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The processor time of a command that may fail.
fn cost(command: &[&str], file: &str, out: &str) -> Duration {
    run(command, file, out).0
}

/// The processor time of a command, and how it failed.
fn run(command: &[&str], file: &str, out: &str) -> (Duration, Result<(), String>) {
    let argument = |&argument: &&str| OsString::from(argument.replace("FILE", file).replace("OUT", out));
    let force = ["export", "report"].contains(&command[0]) && command.contains(&"OUT");
    let arguments = ["parkade"].iter().chain(command).chain(force.then_some(&"--force")).map(argument);
    let begin = used_time();
    let answered = parkade_cli::answer(arguments.collect::<Vec<_>>());
    (used_time() - begin, answered.map(drop).map_err(|error| format!("{error:#}")))
}

/// How much a doubling costs, at least as often as was measured, and the larger time. `None` if that is too short.
fn growth(command: &[&str], files: &[String; 2], out: &str) -> Option<(f64, Duration)> {
    let [mut small, mut large] = files.each_ref().map(|file| cost(command, file, out));
    let mut growth = f64::INFINITY;
    for attempt in 0..TRIES {
        if attempt > 0 {
            small = small.min(cost(command, &files[0], out));
            large = large.min(cost(command, &files[1], out));
        }
        if large < FLOOR {
            return None;
        }
        growth = (large.as_secs_f64() / small.as_secs_f64().max(1e-6)).powf(1.0 / (TIMES as f64).log2());
        if growth <= MOST {
            break;
        }
    }
    Some((growth, large))
}

#[test]
fn twice_as_much_of_anything_costs_about_twice() {
    let folder = Folder::new("growth");
    let out = format!("{}/out", folder.path());
    let mut failures = Vec::new();
    for (name, most, make) in DIMENSIONS {
        for part in [1, 2, 8] {
            let files = [most / part / TIMES, most / part].map(|count| {
                let mut made = Made::default();
                make(&mut made, count);
                folder.recording(&format!("{count}.pickle"), &made.recording())
            });
            for (_, command) in COMMANDS.iter().filter(|(parts, command)| *parts == part && is_measured(name, command)) {
                let line = format!("{name}, {}", command.join(" "));
                // A command that fails immediately costs nothing, no matter how large its input is.
                if is_always_measured(name, command)
                    && let (_, Err(error)) = run(command, &files[1], &out)
                {
                    failures.push(format!("{line}: {error}"));
                }
                let Some((growth, took)) = growth(command, &files, &out) else { continue };
                let verdict = format!("{line}: {growth:.2} for each doubling; {} took {took:?}", most / part);
                eprintln!("{verdict}");
                if growth > MOST {
                    failures.push(verdict);
                }
            }
        }
    }
    assert!(failures.is_empty(), "these fail, or grow faster than what they read:\n{}", failures.join("\n"));
}
