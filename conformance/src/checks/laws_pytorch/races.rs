//! The no-race law: a program that uses one stream, or records every stream that uses its memory, never races.
//!
//! Programs declare what they access. They run on the allocator and its device, next to a record of what each buffer
//! must hold and which stream used it last. The simulated device's detector checks every access by physical bytes,
//! whenever events complete. On every backend the contents are read back and must match the program's own order. As a
//! control for the detector, the same programs also run without recording their streams, and a good part of them must
//! race.

use parkade::device::DeviceBackend as _;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::campaign::{Stopped, run_cases};
use super::trial::stream_name;
use crate::backend::{AnyBackend, AnyDevice, Core, EventTiming, Needs, Simulation, TestDevice, Unable, WitnessedDevice};
use crate::law::{Broken, Law, ensure};
use crate::program::search::{may_expand, timings};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// Of the programs that do not record their streams, at least one in this many must race.
const RACING_ONE_IN: u32 = 2;
/// The maximum number of steps of a program.
const LONGEST: usize = 120;

/// A program and its event timing.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Program {
    timing: EventTiming,
    is_virtual: bool,
    steps: Vec<Step>,
}

/// Returns the entries of this law.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = Vec::new();
    let kinds = [
        (Kind::OneStream, "one-stream", "a program with one stream never races, and reads back what it wrote"),
        (Kind::Told, "told-streams", "a program that records every stream's use never races, and reads back what it wrote"),
    ];
    for (kind, kind_name, says) in kinds {
        for (timing_name, timing) in timings(backend) {
            let name = format!("{}/{kind_name}/{timing_name}", Law::NoRace.name());
            entries.push(Entry::new(Group::Law, name, says, move |backend, effort| no_race(backend, effort, kind, timing)));
        }
    }
    if backend.is_simulated() {
        let says = "control: the same programs race if they do not record their streams";
        entries.push(Entry::new(Group::Law, format!("{}/untold-streams-race", Law::NoRace.name()), says, untold));
    }
    entries
}

fn programs(timing: EventTiming, may_expand: bool) -> impl Strategy<Value = Program> {
    let timing = match timing {
        EventTiming::Seeded(_) => any::<u64>().prop_map(EventTiming::Seeded).boxed(),
        other => Just(other).boxed(),
    };
    // Some sizes repeat, so that blocks are reused.
    let again = prop::sample::select(vec![512, MIB, 4 * MIB, 12 * MIB]);
    let size = prop_oneof![3 => again, 2 => 4..MIB, 2 => MIB..12 * MIB, 1 => 12 * MIB..24 * MIB];
    let (which, stream) = (0..64_usize, 0..4_usize);
    let step = prop_oneof![
        6 => (size, stream.clone()).prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
        5 => which.clone().prop_map(Step::Free),
        4 => which.clone().prop_map(Step::Replace),
        3 => (which.clone(), stream.clone()).prop_map(|(which, stream)| Step::Fill(which, stream)),
        5 => (which.clone(), which.clone(), stream.clone()).prop_map(|(from, to, stream)| Step::Copy(from, to, stream)),
        3 => (stream, 1_000..200_000_u64).prop_map(|(stream, duration)| Step::Spin(stream, duration)),
        1 => which.prop_map(Step::Read),
        1 => Just(Step::ProcessEvents),
        1 => Just(Step::ReleaseCached),
    ];
    (timing, any::<bool>(), prop::collection::vec(step, 1..LONGEST)).prop_map(move |(timing, is_virtual, steps)| Program {
        timing,
        is_virtual: is_virtual && may_expand,
        steps,
    })
}

/// Runs a program to its end, and returns the number of races and the program's script.
fn play(backend: &AnyBackend, program: &Program, kind: Kind) -> Result<(usize, String), Stopped> {
    let mut play = Play::new(backend, program.timing, program.is_virtual, kind).map_err(Stopped::Unable)?;
    for &step in &program.steps {
        play.step(step).map_err(|broken| Stopped::Broken(broken.during(format!("{step:?}")), play.script()))?;
    }
    let script = play.script();
    let races = play.finish().map_err(|broken| Stopped::Broken(broken.during("at the end"), script.clone()))?;
    Ok((races, script))
}

fn no_race(backend: &AnyBackend, effort: &Effort, kind: Kind, timing: EventTiming) -> Verdict {
    let salt = 0x4ace_u64 + u64::from(kind == Kind::Told);
    run_cases(effort, salt, &programs(timing, may_expand(backend)), |program| {
        play(backend, program, kind).map(|_| program.steps.len() as u64)
    })
}

/// With fewer programs per timing, the share of racing programs would vary too much.
const LEAST_OF_EACH: u32 = 20;

/// Runs the control programs under all timings in turn.
fn untold(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let (racing, all) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let share = Effort { cases: effort.cases.div_ceil(4).max(LEAST_OF_EACH), ..*effort };
    let mut operations = 0;
    for (_, timing) in timings(backend) {
        let verdict = run_cases(&share, 0x4acf_u64, &programs(timing, may_expand(backend)), |program| {
            let (races, _) = play(backend, program, Kind::Untold)?;
            all.set(all.get() + 1);
            racing.set(racing.get() + u32::from(races > 0));
            Ok(program.steps.len() as u64)
        })?;
        operations += verdict.operations;
    }
    let (racing, all) = (racing.get(), all.get());
    if racing * RACING_ONE_IN < all {
        return Err(Trouble::fail(format!("only {racing} of {all} programs that do not record their streams race")));
    }
    Ok(Evidence { measured: format!("{racing} of {all} programs race"), operations, text: String::new() })
}

/// The device's memory in these programs.
const CAPACITY: Bytes = Bytes(192 * MIB);
/// Number of bytes read back at the start and at the end of each stretch that is filled with one
/// word.
const READ_BYTES: u64 = 512;

/// The way in which a program uses streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// All steps on one stream.
    OneStream,
    /// On all streams; each use by another stream is recorded with `record_stream`.
    Told,
    /// On all streams; the allocator is not told about uses by other streams.
    Untold,
}

/// A step of a program. A buffer is given as an index into the live ones, which wraps around; a stream as its index.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
enum Step {
    /// Allocates a buffer of this many bytes and fills it on its stream.
    Allocate(u64, usize),
    /// Frees a buffer; work that uses it may still run.
    Free(usize),
    /// Frees a buffer and allocates one of the same size on the same stream, as a loop does.
    Replace(usize),
    /// Fills a buffer with a new word, on a stream.
    Fill(usize, usize),
    /// Copies as much of the first buffer as fits to the start of the second, on a stream.
    Copy(usize, usize, usize),
    /// Keeps a stream busy for this many nanoseconds.
    Spin(usize, u64),
    /// The host reads a buffer.
    Read(usize),
    /// Makes the allocator query its events.
    ProcessEvents,
    /// `empty_cache`.
    ReleaseCached,
}

struct Buffer {
    allocation: Allocation,
    name: u32,
    size: u64,
    home: StreamId,
    /// The stream that used it last. Every user waits for the previous one, so all uses are ordered.
    last: StreamId,
    /// Its contents, as runs of one repeated word: the end offset and the word of each run.
    holds: Vec<(u64, u32)>,
}

impl Buffer {
    fn address(&self) -> DeviceAddress {
        self.allocation.address()
    }
}

/// A program in progress.
struct Play {
    core: Core<AnyDevice>,
    device: WitnessedDevice<AnyDevice>,
    streams: [StreamId; 4],
    kind: Kind,
    live: Vec<Buffer>,
    names: u32,
    words: u32,
    script: Vec<String>,
}

impl Play {
    fn new(backend: &AnyBackend, timing: EventTiming, is_virtual: bool, kind: Kind) -> Result<Play, Unable> {
        let needs = Needs { capacity: Some(CAPACITY), simulation: Simulation { timing, ..Simulation::default() } };
        let device = backend.open(&needs)?;
        let streams = device.streams();
        let device = WitnessedDevice::new(device);
        let settings = if is_virtual { "expandable_segments:True" } else { "" };
        let head = format!("# parkade ops SCRIPT --capacity {CAPACITY} --settings '{settings}'\n# events: {timing:?}");
        let settings = Settings::from_environment(settings).expect("legal settings");
        let core = Allocator::new(device.clone(), PyTorch::new(settings), Vec::new());
        Ok(Play { core, device, streams, kind, live: Vec::new(), names: 0, words: 0, script: vec![head] })
    }

    /// Returns the program so far as a script for `parkade ops`; steps that a script cannot express are comments.
    fn script(&self) -> String {
        self.script.iter().map(|line| format!("{line}\n")).collect()
    }

    fn step(&mut self, step: Step) -> Result<(), Broken> {
        match step {
            Step::Allocate(bytes, stream) => self.allocate(bytes, self.place(stream))?,
            Step::Spin(stream, duration_ns) => {
                let place = self.place(stream);
                self.script.push(format!("# work of {duration_ns} ns on stream {}", stream_name(place)));
                self.device.steer().spin(self.streams[place], duration_ns).map_err(device_failed)?;
            }
            Step::ProcessEvents => {
                self.script.push("# process_events".to_owned());
                self.core.process_events().map_err(device_failed)?;
            }
            Step::ReleaseCached => {
                self.script.push("empty_cache".to_owned());
                self.core.release_cached().map_err(device_failed)?;
            }
            _ if self.live.is_empty() => {}
            Step::Free(which) => self.free(which % self.live.len())?,
            Step::Replace(which) => {
                let which = which % self.live.len();
                let (bytes, home) = (self.live[which].size, self.live[which].home);
                self.free(which)?;
                self.allocate(bytes, self.streams.iter().position(|&stream| stream == home).unwrap_or(0))?;
            }
            Step::Fill(which, stream) => self.fill(which % self.live.len(), self.place(stream))?,
            Step::Copy(from, to, stream) => self.copy(from % self.live.len(), to % self.live.len(), self.place(stream))?,
            Step::Read(which) => self.read(which % self.live.len())?,
        }
        self.no_race()
    }

    /// Reads all buffers, frees all memory, checks that nothing is left, and returns the number of races.
    fn finish(mut self) -> Result<usize, Broken> {
        for which in 0..self.live.len() {
            self.read(which)?;
        }
        while !self.live.is_empty() {
            self.free(0)?;
        }
        self.device.steer().settle();
        self.core.release_cached().map_err(device_failed)?;
        self.no_race()?;
        let Play { core, device, .. } = self;
        drop(core);
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("these were not returned to the device: {left:?}"))?;
        Ok(device.steer().insight().map_or(0, |device| device.races().len()))
    }

    /// Returns the index of the stream to use, which is always the same in a program with only one
    /// stream.
    fn place(&self, stream: usize) -> usize {
        if self.kind == Kind::OneStream { 1 } else { stream }
    }

    fn no_race(&self) -> Result<(), Broken> {
        if self.kind == Kind::Untold {
            return Ok(());
        }
        let mut device = self.device.steer();
        let race = device.insight().and_then(|device| device.races().first().map(ToString::to_string));
        ensure(Law::NoRace, race.is_none(), || race.unwrap_or_default())
    }

    fn next_word(&mut self) -> u32 {
        self.words += 1;
        self.words.wrapping_mul(0x9e37_79b1)
    }

    fn allocate(&mut self, bytes: u64, place: usize) -> Result<(), Broken> {
        let stream = self.streams[place];
        self.script.push(format!("alloc a{} {bytes} {}", self.names + 1, stream_name(place)));
        match self.core.allocate(Bytes(bytes), stream) {
            Ok(allocation) => {
                let (size, word) = (bytes / 4 * 4, self.next_word());
                self.names += 1;
                let address = allocation.address();
                let holds = vec![(size, word)];
                self.live.push(Buffer { allocation, name: self.names, size, home: stream, last: stream, holds });
                self.device.steer().fill(address, Bytes(size), word, stream).map_err(device_failed)
            }
            Err(AllocError::OutOfMemory(_)) => Ok(()),
            Err(error) => Err(Broken::new(Law::NoFalseOutOfMemory, error)),
        }
    }

    fn free(&mut self, which: usize) -> Result<(), Broken> {
        let buffer = self.live.swap_remove(which);
        self.script.push(format!("free a{}", buffer.name));
        self.core.free(buffer.allocation).map_err(|error| Broken::new(Law::Faults, error))
    }

    /// Makes a stream use a buffer after its last user, and records the use with the allocator.
    fn hand_to(&mut self, which: usize, place: usize) -> Result<(), Broken> {
        let (stream, last) = (self.streams[place], self.live[which].last);
        if stream != last {
            let mut device = self.device.steer();
            let mut event = device.create_event().map_err(device_failed)?;
            let ordered = device.record_event(&mut event, last).and_then(|()| device.stream_wait(stream, &event));
            device.destroy_event(event);
            ordered.map_err(device_failed)?;
            self.script.push(format!("# stream {} waits for the last user of a{}", stream_name(place), self.live[which].name));
        }
        let buffer = &mut self.live[which];
        buffer.last = stream;
        if self.kind == Kind::Told && stream != buffer.home {
            self.core.record_stream(&buffer.allocation, stream);
            self.script.push(format!("record_stream a{} {}", buffer.name, stream_name(place)));
        }
        Ok(())
    }

    fn fill(&mut self, which: usize, place: usize) -> Result<(), Broken> {
        self.hand_to(which, place)?;
        let word = self.next_word();
        let buffer = &mut self.live[which];
        self.script.push(format!("# stream {} fills a{}", stream_name(place), buffer.name));
        buffer.holds = vec![(buffer.size, word)];
        let (address, size) = (buffer.address(), Bytes(buffer.size));
        self.device.steer().fill(address, size, word, self.streams[place]).map_err(device_failed)
    }

    fn copy(&mut self, from: usize, to: usize, place: usize) -> Result<(), Broken> {
        if from == to {
            return Ok(());
        }
        self.hand_to(from, place)?;
        self.hand_to(to, place)?;
        let (source, target) = (&self.live[from], &self.live[to]);
        self.script.push(format!("# stream {} copies a{} to a{}", stream_name(place), source.name, target.name));
        let size = source.size.min(target.size);
        let mut holds: Vec<(u64, u32)> = source.holds.iter().map(|&(end, word)| (end.min(size), word)).collect();
        let cut = holds.iter().position(|&(end, _)| end == size).map_or(holds.len(), |last| last + 1);
        holds.truncate(cut);
        holds.extend(target.holds.iter().filter(|&&(end, _)| end > size));
        let (source, target) = (source.address(), target.address());
        self.live[to].holds = holds;
        self.device.steer().copy(source, target, Bytes(size), self.streams[place]).map_err(device_failed)
    }

    /// Waits for the last user and reads both ends of each stretch.
    fn read(&mut self, which: usize) -> Result<(), Broken> {
        let buffer = &self.live[which];
        self.script.push(format!("# a{} is read", buffer.name));
        let mut device = self.device.steer();
        device.synchronize_stream(buffer.last).map_err(device_failed)?;
        let mut start = 0;
        for &(end, word) in &buffer.holds {
            let piece = READ_BYTES.min(end - start);
            for offset in [start, end - piece] {
                let mut bytes = vec![0; piece as usize];
                device.read(buffer.address().offset(Bytes(offset)), &mut bytes).map_err(device_failed)?;
                let same = self.kind == Kind::Untold || bytes == word.to_le_bytes().repeat(bytes.len() / 4);
                ensure(Law::Contents, same, || {
                    format!("a{} at byte {offset} should hold {word:#x}, but holds {:x?}", buffer.name, &bytes[..4])
                })?;
            }
            start = end;
        }
        Ok(())
    }
}

fn device_failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Faults, format!("the device failed without a planned fault: {error}"))
}
