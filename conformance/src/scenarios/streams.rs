//! Scenarios B: memory that two streams use.

use parkade::device::{BackendError, DeviceBackend as _};
use parkade::stats::Family;
use parkade::units::{Bytes, StreamId};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestError};

use crate::backend::{AnyBackend, AnyDevice, AnyEvent, Race, RaceSide, TestDevice, Touch, first_other_word};
use crate::drawn::{one_of, runner};
use crate::scenarios::story::{Finding, Row, Story, claim, scenario};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

pub(crate) const ROWS: &[Row] = &[
    Row {
        id: "B1",
        claim: "A tensor created on stream 1 is read by a slow kernel on stream 2, then freed, and its memory is reused on \
                stream 1: the kernel reads wrong data.",
        finding: Finding::Reproduced,
        found: "The new tensor gets the same address, and the race detector names both accesses. PyTorch on the H200 read \
                wrong data in most runs ([driver-facts.md](driver-facts.md)).",
    },
    Row {
        id: "B2",
        claim: "`record_stream` prevents the wrong data. `memory_allocated()` counts the tensor as freed as soon as it is \
                deleted.",
        finding: Finding::Reproduced,
        found: "There is no race: the memory is not reused until the other stream is done. `allocated` falls at the free, \
                `active` only when the event completes.",
    },
    Row {
        id: "B3",
        claim: "Making stream 1 wait for stream 2 also prevents the wrong data.",
        finding: Finding::Reproduced,
        found: "There is no race, and the memory is reused immediately.",
    },
    Row {
        id: "B4",
        claim: "No synchronization is needed on a single stream.",
        finding: Finding::Reproduced,
        found: "No random program on one stream races; some of the same programs race on two streams.",
    },
];

pub(crate) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    [data_races(), random_programs(backend)].into_iter().flatten().collect()
}

/// The time for which the kernel runs before it reads x.
const SPIN_NS: u64 = 50_000_000;
/// 1,024 floats, as in the document's text.
const SIZE: Bytes = Bytes(4096);
/// The words written to x, and to the tensor that gets its memory.
const OLD: u32 = 2;
const NEW: u32 = 31;
/// The number of attempts to see wrong data on a real device, where timing decides.
const ATTEMPTS: u32 = 3;

/// B1 to B3: memory that two streams use.
///
/// A real device shows wrong data. The simulated one keeps contents in program order; its race detector reports that they could
/// have been wrong.
fn data_races() -> Vec<Entry> {
    vec![
        scenario(
            "B1",
            "a tensor that another stream still reads is freed and its memory reused: this is a race, and a real device reads \
             wrong data",
            unprotected,
        )
        .requires(Requirement::PendingWork),
        scenario("B2", "with record_stream, the memory is not reused while the other stream may read it", recorded)
            .requires(Requirement::PendingWork),
        scenario(
            "B3",
            "if the first stream waits for the other one, the memory is reused immediately and without a race",
            ordered,
        ),
    ]
}

/// The protection of the data that the reading stream uses.
#[derive(Clone, Copy, PartialEq)]
enum Guard {
    Nothing,
    RecordStream,
    StreamWait,
}

/// A program in which x is written on the first stream and read later on the second.
struct Reader {
    writes: StreamId,
    reads: StreamId,
    events: Vec<AnyEvent>,
}

impl Reader {
    /// Runs everything up to the free of x.
    fn start(story: &mut Story, guard: Guard) -> Result<Reader, Trouble> {
        let [_, writes, reads, _] = story.stage.streams();
        let mut reader = Reader { writes, reads, events: Vec::new() };
        story.stage.alloc_on("y", SIZE, reads)?.served()?;
        story.stage.alloc_on("x", SIZE, writes)?.served()?;
        let (x, y) = (story.stage.address("x")?, story.stage.address("y")?);
        let mut guarded = story.stage.device().steer();
        let device: &mut AnyDevice = &mut guarded;
        // On first use, a driver loads its kernels for filling and copying, and may wait for the device.
        device.fill(y, SIZE, 0, writes)?;
        device.copy(y, x, SIZE, writes)?;
        device.settle();
        device.fill(x, SIZE, OLD, writes)?;
        reader.order(device, writes, reads)?;
        device.spin(reads, SPIN_NS)?;
        device.copy(x, y, SIZE, reads)?;
        if guard == Guard::StreamWait {
            reader.order(device, reads, writes)?;
        }
        drop(guarded);
        if guard == Guard::RecordStream {
            story.stage.record_stream("x", reads)?;
        }
        story.count(2);
        Ok(reader)
    }

    /// Makes later work on `second` wait for the work now queued on `first`.
    fn order(&mut self, device: &mut AnyDevice, first: StreamId, second: StreamId) -> Result<(), BackendError> {
        let mut event = device.create_event()?;
        let outcome = device.record_event(&mut event, first).and_then(|()| device.stream_wait(second, &event));
        self.events.push(event);
        outcome
    }

    /// Frees x, allocates c on the same stream and writes to it.
    fn replace(&self, story: &mut Story) -> Result<(), Trouble> {
        story.free("x")?;
        story.stage.alloc_on("c", SIZE, self.writes)?.served()?;
        story.stage.device().steer().fill(story.stage.address("c")?, SIZE, NEW, self.writes)?;
        story.count(1);
        Ok(())
    }

    /// Waits for the device, destroys the events, and returns the word that fills y if it is a single one.
    fn finish(self, story: &mut Story) -> Result<Option<u32>, Trouble> {
        let y = story.stage.address("y")?;
        let mut device = story.stage.device().steer();
        device.settle();
        let mut words = vec![0; SIZE.get() as usize];
        device.read(y, &mut words)?;
        for event in self.events {
            device.destroy_event(event);
        }
        let first = u32::from_le_bytes([words[0], words[1], words[2], words[3]]);
        Ok(first_other_word(&words, first).is_none().then_some(first))
    }
}

/// Returns the races that a simulated device has found.
fn races(story: &Story) -> Vec<Race> {
    story.stage.device().steer().insight().map(|device| device.races()).unwrap_or_default()
}

fn unprotected(backend: &AnyBackend) -> Verdict {
    let mut attempt = 1;
    loop {
        let mut story = Story::new(backend, "", None)?;
        let reader = Reader::start(&mut story, Guard::Nothing)?;
        let (x, reads, writes) = (story.stage.address("x")?, reader.reads, reader.writes);
        story.show("x is in use");
        reader.replace(&mut story)?;
        story.expect_same_place(x, "c", true)?;
        story.show("x is freed; c gets its memory");
        let races = races(&story);
        let y = reader.finish(&mut story)?;
        if story.stage.device().steer().insight().is_some() {
            let [race] = &races[..] else { return Err(Trouble::fail(format!("expected one race, found {races:?}"))) };
            let side = |access: &RaceSide| (access.touch, access.stream, access.address, access.size);
            claim(side(&race.first) == (Touch::Read, Some(reads), x, SIZE), || {
                format!("the first access of the race is {}", race.first)
            })?;
            claim(side(&race.second) == (Touch::Written, Some(writes), x, SIZE), || {
                format!("the second access of the race is {}", race.second)
            })?;
            story.measure(&format!("the race: {race}"));
        } else if y == Some(OLD) && attempt < ATTEMPTS {
            attempt += 1;
            continue;
        } else {
            claim(y != Some(OLD), || format!("y is correct in all {ATTEMPTS} attempts"))?;
            story.measure(&format!("y contains {y:?}, but {OLD} was copied into it (attempt {attempt})"));
        }
        story
            .say("c is placed where x was, and is written while x has yet to be read: the reader is not ordered with the writer");
        return story.finish();
    }
}

fn recorded(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    let reader = Reader::start(&mut story, Guard::RecordStream)?;
    let x = story.stage.address("x")?;
    let bytes = |story: &Story| {
        let now = |family| story.stage.stats().family(family).all.current;
        (now(Family::AllocatedBytes), now(Family::ActiveBytes))
    };
    claim(bytes(&story) == (8192, 8192), || format!("in use: {:?}", bytes(&story)))?;
    story.show("x is in use");
    reader.replace(&mut story)?;
    // `allocated` counts y and c; `active` also counts x.
    claim(bytes(&story) == (8192, 12_288), || format!("x waits: {:?}", bytes(&story)))?;
    story.expect_same_place(x, "c", false)?;
    story.show("x is freed and waits for the other stream; c is placed elsewhere");
    let races = races(&story);
    let y = reader.finish(&mut story)?;
    story.stage.core().process_events()?;
    claim(bytes(&story) == (8192, 8192), || format!("x is free: {:?}", bytes(&story)))?;
    story.show("the other stream is done");
    claim(races.is_empty() && y == Some(OLD), || format!("y holds {y:?}, races {races:?}"))?;
    story.say("y holds what was copied");
    story.finish()
}

fn ordered(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    let reader = Reader::start(&mut story, Guard::StreamWait)?;
    let x = story.stage.address("x")?;
    story.show("x is in use");
    reader.replace(&mut story)?;
    story.expect_same_place(x, "c", true)?;
    story.show("x is freed; c gets its memory");
    let races = races(&story);
    let y = reader.finish(&mut story)?;
    claim(races.is_empty() && y == Some(OLD), || format!("y holds {y:?}, races {races:?}"))?;
    story.say("c is placed where x was, and is written after the other stream has read x; y holds what was copied");
    story.finish()
}

/// The maximum number of steps of a program.
const LONGEST: usize = 60;
/// The minimum number of programs on two streams; about one in four of them races.
const LEAST_OF_TWO_STREAMS: u32 = 40;
/// The maximum number of programs on a real device, because each opens the device again.
const MOST_ON_A_REAL_DEVICE: u32 = 20;
/// A number added to the effort's seed, so that these programs differ from those of other checks.
const SALT: u64 = 0xB4;

/// A step of a program. Indices choose among the live allocations.
#[derive(Clone, Debug)]
enum Step {
    Alloc(u64, usize),
    Free(usize),
    Write(usize),
    Copy(usize, usize),
    Work,
    Check(usize),
    ReleaseCached,
}

/// B4: random programs never race on one stream, but some do on two streams.
fn random_programs(backend: &AnyBackend) -> Vec<Entry> {
    let says = "no synchronization is needed on one stream: no program races, and memory holds what was written";
    let mut entries =
        vec![Entry::new(Group::Scenario, "B4", says, |backend: &AnyBackend, effort: &Effort| one_stream(backend, effort))];
    if backend.is_simulated() {
        // Only the race detector finds every race, whatever the timing.
        let says = "some of the same programs race on two streams without record_stream";
        entries.push(Entry::new(Group::Scenario, "B4/control", says, |backend: &AnyBackend, effort: &Effort| {
            two_streams(backend, effort)
        }));
    }
    entries
}

fn step() -> impl Strategy<Value = Step> {
    let size = one_of![4..=4096_u64, 1_u64 << 19..=3 << 20, 10_u64 << 20..=30 << 20].prop_map(|size| size / 4 * 4);
    let which = 0..1_000_usize;
    one_of![
        6 => (size, which.clone()).prop_map(|(size, stream)| Step::Alloc(size, stream)),
        4 => which.clone().prop_map(Step::Free),
        4 => which.clone().prop_map(Step::Write),
        4 => (which.clone(), which.clone()).prop_map(|(from, to)| Step::Copy(from, to)),
        1 => Just(Step::Work),
        1 => which.prop_map(Step::Check),
        1 => Just(Step::ReleaseCached),
    ]
}

/// A live allocation: its name, its size, its first word if one was written, its stream.
struct Live {
    name: String,
    bytes: u64,
    word: Option<u32>,
    stream: StreamId,
}

/// A program in progress.
struct Program {
    story: Story,
    streams: Vec<StreamId>,
    live: Vec<Live>,
    made: u32,
}

impl Program {
    fn new(backend: &AnyBackend, streams: usize) -> Result<Self, Trouble> {
        let story = Story::new(backend, "", None)?;
        let streams = story.stage.streams()[1..=streams].to_vec();
        Ok(Program { story, streams, live: Vec::new(), made: 0 })
    }

    fn step(&mut self, step: &Step) -> Result<(), Trouble> {
        let count = self.live.len().max(1);
        match *step {
            Step::Alloc(bytes, stream) => return self.alloc(bytes, self.streams[stream % self.streams.len()]),
            Step::ReleaseCached => return self.story.stage.release_cached(),
            Step::Work => self.story.stage.device().steer().spin(self.streams[0], 20_000)?,
            _ if self.live.is_empty() => {}
            Step::Free(which) => {
                let gone = self.live.swap_remove(which % count);
                return self.story.free(&gone.name);
            }
            Step::Write(which) => {
                self.made += 1;
                let word = self.made;
                let live = &mut self.live[which % count];
                live.word = Some(word);
                let address = self.story.stage.address(&live.name)?;
                self.story.stage.device().steer().fill(address, Bytes(live.bytes), word, live.stream)?;
            }
            Step::Copy(from, to) => self.copy(from % count, to % count)?,
            Step::Check(which) => self.check(which % count)?,
        }
        Ok(())
    }

    fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<(), Trouble> {
        self.made += 1;
        let name = format!("{:06}", self.made);
        self.story.stage.alloc_on(&name, Bytes(bytes), stream)?.served()?;
        self.live.push(Live { name, bytes, word: None, stream });
        Ok(())
    }

    /// Makes a copy on the source's stream. If the copy is shorter than the target, only the target's first word is
    /// known afterwards.
    fn copy(&mut self, from: usize, to: usize) -> Result<(), Trouble> {
        if from == to {
            return Ok(());
        }
        let bytes = self.live[from].bytes.min(self.live[to].bytes);
        let (source, target) = (self.story.stage.address(&self.live[from].name)?, self.story.stage.address(&self.live[to].name)?);
        self.story.stage.device().steer().copy(source, target, Bytes(bytes), self.live[from].stream)?;
        self.live[to].word = self.live[from].word;
        Ok(())
    }

    /// Reads the first word, which copies of every length write, after the device has finished everything.
    fn check(&mut self, which: usize) -> Result<(), Trouble> {
        let Some(word) = self.live[which].word else { return Ok(()) };
        let live = &self.live[which];
        let address = self.story.stage.address(&live.name)?;
        let mut device = self.story.stage.device().steer();
        device.settle();
        let mut first = [0; 4];
        device.read(address, &mut first)?;
        if first == word.to_le_bytes() {
            return Ok(());
        }
        Err(Trouble::fail(format!("{} begins with {first:?}, but {word} was written there", live.name)))
    }

    /// Returns the number of races that a simulated device has found.
    fn races(&self) -> u64 {
        let mut device = self.story.stage.device().steer();
        device.insight().map_or(0, |device| device.race_count())
    }

    fn finish(mut self, checks: bool) -> Result<u64, Trouble> {
        for which in 0..if checks { self.live.len() } else { 0 } {
            self.check(which)?;
        }
        let races = self.races();
        self.story.finish()?;
        Ok(races)
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..LONGEST)
}

fn one_stream(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let operations = std::cell::Cell::new(0_u64);
    let most = if backend.is_simulated() { effort.cases } else { MOST_ON_A_REAL_DEVICE };
    let effort = Effort { cases: effort.cases.min(most), ..*effort };
    let outcome = runner(effort.cases, effort.seed, SALT).run(&steps(), |steps| {
        let run = || -> Result<u64, Trouble> {
            let mut program = Program::new(backend, 1)?;
            steps.iter().try_for_each(|step| program.step(step))?;
            program.finish(true)
        };
        operations.set(operations.get() + steps.len() as u64);
        match run() {
            Ok(0) => Ok(()),
            Ok(races) => Err(TestCaseError::fail(format!("{races} races"))),
            Err(Trouble::Fail { reason, .. }) => Err(TestCaseError::fail(reason)),
            Err(Trouble::Skip(reason)) => Err(TestCaseError::reject(reason)),
        }
    });
    match outcome {
        Ok(()) => {
            let text = "no race, and memory holds what was written, in any random program on one stream\n".to_owned();
            Ok(Evidence { text, operations: operations.get(), ..Evidence::default() })
        }
        Err(TestError::Fail(reason, steps)) => Err(Trouble::fail(format!("{reason}, in {steps:?}"))),
        Err(TestError::Abort(reason)) => Err(Trouble::Skip(reason.to_string())),
    }
}

fn two_streams(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let mut runner = runner(effort.cases, effort.seed, SALT + 1);
    let cases = effort.cases.max(LEAST_OF_TWO_STREAMS);
    let (mut racing, mut operations) = (0, 0);
    for _ in 0..cases {
        let steps = steps().new_tree(&mut runner).map_err(|reason| Trouble::fail(reason.to_string()))?.current();
        let mut program = Program::new(backend, 2)?;
        // The data in these programs may be wrong, so only the detector counts.
        steps.iter().filter(|step| !matches!(step, Step::Check(_))).try_for_each(|step| program.step(step))?;
        racing += u64::from(program.finish(false)? > 0);
        operations += steps.len() as u64;
    }
    if racing == 0 {
        return Err(Trouble::fail(format!("none of the {cases} programs on two streams races")));
    }
    let text = "some random programs on two streams without record_stream race\n".to_owned();
    Ok(Evidence { text, measured: format!("{racing} of the {cases} programs race\n"), operations })
}
