//! B4: random programs never race on one stream; on two streams they do.

use crate::backend::{AnyBackend, TestDevice};
use crate::checks::draw::runner;
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};
use parkade::units::{Bytes, StreamId};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestError};

use crate::scenarios::story::Story;

/// The most steps of a program.
const LONGEST: usize = 60;
/// The fewest programs on two streams: about one in four races.
const LEAST_OF_TWO_STREAMS: u32 = 40;
/// The most programs on a real device: each opens it anew.
const MOST_ON_A_REAL_DEVICE: u32 = 20;
/// Added to the effort's seed, so that these programs are not those of another check.
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

pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let says = "on one stream no synchronization is needed: no program races, and memory holds what was written";
    let mut entries =
        vec![Entry::new(Group::Scenario, "B4", says, |backend: &AnyBackend, effort: &Effort| one_stream(backend, effort))];
    if backend.is_simulated() {
        // Only the race detector sees every race, whatever the timing.
        let says = "the same programs on two streams, without record_stream, do race";
        entries.push(Entry::new(Group::Scenario, "B4/control", says, |backend: &AnyBackend, effort: &Effort| {
            two_streams(backend, effort)
        }));
    }
    entries
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![4..=4096_u64, 1_u64 << 19..=3 << 20, 10_u64 << 20..=30 << 20].prop_map(|size| size / 4 * 4);
    let which = 0..1_000_usize;
    prop_oneof![
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

/// A program that is running.
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

    /// Copies on the source's stream. A copy may be shorter than the target, of which only the first word is known then.
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

    /// Reads the first word, which copies of all lengths write, once the device has done everything.
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
        Err(Trouble::fail(format!("{} holds {first:?} at its beginning, where {word} was written", live.name)))
    }

    /// How many races a simulated device has found.
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
    let outcome = runner(&effort, SALT).run(&steps(), |steps| {
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
    let mut runner = runner(effort, SALT + 1);
    let cases = effort.cases.max(LEAST_OF_TWO_STREAMS);
    let (mut racing, mut operations) = (0, 0);
    for _ in 0..cases {
        let steps = steps().new_tree(&mut runner).map_err(|reason| Trouble::fail(reason.to_string()))?.current();
        let mut program = Program::new(backend, 2)?;
        // In such a program the data may be wrong: only the detector counts.
        steps.iter().filter(|step| !matches!(step, Step::Check(_))).try_for_each(|step| program.step(step))?;
        racing += u64::from(program.finish(false)? > 0);
        operations += steps.len() as u64;
    }
    if racing == 0 {
        return Err(Trouble::fail(format!("none of {cases} programs on two streams races")));
    }
    let text = "of the random programs on two streams without record_stream, some race\n".to_owned();
    Ok(Evidence { text, measured: format!("{racing} of {cases} programs race\n"), operations })
}
