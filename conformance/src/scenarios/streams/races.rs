//! B1 to B3: memory that two streams use.
//!
//! A real device shows wrong data. The simulated one keeps contents in program order; its race detector says that they could
//! have been wrong.

use crate::backend::{AnyBackend, AnyDevice, AnyEvent, Race, RaceSide, TestDevice, Touch};
use crate::suite::{Entry, Trouble, Verdict};
use parkade::device::BackendError;
use parkade::device::DeviceBackend as _;
use parkade::stats::Family;
use parkade::units::{Bytes, StreamId};

use crate::scenarios::story::{Story, claim, scenario};

/// How long the kernel runs before x is read.
const SPIN_NS: u64 = 50_000_000;
/// 1,024 floats, as in the text.
const SIZE: Bytes = Bytes(4096);
/// What is written to x, and to the tensor that gets its memory.
const OLD: u32 = 2;
const NEW: u32 = 31;
/// How often to look for wrong data on a real device, where timing decides.
const ATTEMPTS: u32 = 3;

pub(super) fn entries() -> Vec<Entry> {
    vec![
        scenario(
            "B1",
            "a tensor that another stream still reads is freed and its memory reused: a race, and wrong data on a real device",
            unprotected,
        ),
        scenario("B2", "with record_stream the memory is not reused while the other stream may read it", recorded),
        scenario("B3", "if the first stream waits for the other, the memory is reused at once without a race", ordered),
    ]
}

/// What protects the data of the reading stream.
#[derive(Clone, Copy, PartialEq)]
enum Guard {
    Nothing,
    RecordStream,
    StreamWait,
}

/// x is written on the first stream and read, late, on the second.
struct Reader {
    writes: StreamId,
    reads: StreamId,
    events: Vec<AnyEvent>,
}

impl Reader {
    /// Everything before x is freed.
    fn start(story: &mut Story, guard: Guard) -> Result<Reader, Trouble> {
        let [_, writes, reads, _] = story.stage.streams();
        let mut reader = Reader { writes, reads, events: Vec::new() };
        story.stage.alloc_on("y", SIZE, reads)?.served()?;
        story.stage.alloc_on("x", SIZE, writes)?.served()?;
        let (x, y) = (story.stage.address("x")?, story.stage.address("y")?);
        let mut guarded = story.stage.device().steer();
        let device: &mut AnyDevice = &mut guarded;
        // On first use a driver loads its kernels for filling and copying, and may wait for the device then.
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

    /// Makes later work of `second` wait for the work that `first` has now.
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

    /// Waits for the device, destroys the events, and returns the word that y is filled with, if it is a single one.
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
        Ok(words.chunks_exact(4).all(|word| word == first.to_le_bytes()).then_some(first))
    }
}

/// The races that a simulated device has found.
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
        story.show("x is freed; c has its memory");
        let races = races(&story);
        let y = reader.finish(&mut story)?;
        if story.stage.device().steer().insight().is_some() {
            let [race] = &races[..] else { return Err(Trouble::fail(format!("expected one race, found {races:?}"))) };
            let side = |access: &RaceSide| (access.touch, access.stream, access.address, access.size);
            claim(side(&race.first) == (Touch::Read, Some(reads), x, SIZE), || format!("the first side is {}", race.first))?;
            claim(side(&race.second) == (Touch::Written, Some(writes), x, SIZE), || {
                format!("the second side is {}", race.second)
            })?;
            story.measure(&format!("the race: {race}"));
        } else if y == Some(OLD) && attempt < ATTEMPTS {
            attempt += 1;
            continue;
        } else {
            claim(y != Some(OLD), || format!("y is right in each of {ATTEMPTS} attempts"))?;
            story.measure(&format!("y holds {y:?} where {OLD} was copied (attempt {attempt})"));
        }
        story.say("c lies where x lay, and is written while x is still to be read: the reader has no order with the writer");
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
    // allocated counts y and c, active counts x too.
    claim(bytes(&story) == (8192, 12_288), || format!("x waits: {:?}", bytes(&story)))?;
    story.expect_same_place(x, "c", false)?;
    story.show("x is freed and waits for the other stream; c lies elsewhere");
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
    story.show("x is freed; c has its memory");
    let races = races(&story);
    let y = reader.finish(&mut story)?;
    claim(races.is_empty() && y == Some(OLD), || format!("y holds {y:?}, races {races:?}"))?;
    story.say("c lies where x lay, and is written when the other stream has read x; y holds what was copied");
    story.finish()
}
