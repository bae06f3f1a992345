//! Events: markers in a stream's queue that complete when all work queued before them is done.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, MIB, StreamId};

use crate::backend::{AnyBackend, AnyDevice, AnyEvent, TestDevice};
use crate::checks::contract::probe::{Watch, ends_empty, ensure, free_bytes, open};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// How long a kernel runs that must be seen running, in nanoseconds.
const SPIN_NS: u64 = 50_000_000;

/// The entries of these rows.
pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::new(Group::Contract, "events/never-recorded", "an event that was never recorded is complete", never_recorded),
        Entry::new(
            Group::Contract,
            "events/stay-complete",
            "a complete event stays complete no matter what its stream does",
            stays,
        ),
        Entry::new(Group::Contract, "events/recorded-again", "an event recorded again follows its newest record", again),
        Entry::new(Group::Contract, "events/stream-order", "an event completes after everything before it in its stream", order),
        Entry::new(
            Group::Contract,
            "events/streams-are-apart",
            "work on one stream does not delay another stream's events",
            apart,
        ),
        Entry::new(
            Group::Contract,
            "events/stream-wait",
            "work queued after a stream's wait starts after the event",
            stream_wait,
        ),
        Entry::new(Group::Contract, "events/wait", "waiting for an event lasts until its work is done", wait),
        Entry::new(Group::Contract, "events/synchronize-stream", "synchronizing a stream completes its events", synchronize),
    ]
}

/// A new event, recorded at the end of a stream.
fn recorded(device: &mut AnyDevice, stream: StreamId) -> Result<AnyEvent, Trouble> {
    let mut event = device.create_event()?;
    device.record_event(&mut event, stream)?;
    Ok(event)
}

fn is(device: &mut AnyDevice, event: &AnyEvent, complete: bool, when: &str) -> Result<(), Trouble> {
    let found = device.is_complete(event)?;
    ensure(found == complete, || format!("{when}: complete is {found}, not {complete}"))
}

/// Destroys the events and checks that nothing is left.
fn done(mut device: AnyDevice, events: impl IntoIterator<Item = AnyEvent>, text: &str) -> Verdict {
    device.settle();
    events.into_iter().for_each(|event| device.destroy_event(event));
    let held = device.holdings();
    ensure(held.is_empty(), || format!("the device keeps {held:?}"))?;
    Ok(Evidence { text: text.to_owned(), operations: 1, ..Evidence::default() })
}

fn never_recorded(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let stream = device.streams()[1];
    let event = device.create_event()?;
    is(&mut device, &event, true, "never recorded")?;
    device.wait(&event)?;
    device.spin(stream, SPIN_NS)?;
    is(&mut device, &event, true, "never recorded, with work running")?;
    // Waiting for it returns at once.
    device.stream_wait(device.streams()[2], &event)?;
    device.synchronize_stream(device.streams()[2])?;
    let running = recorded(&mut device, stream)?;
    is(&mut device, &running, false, "the running work")?;
    done(device, [event, running], "complete, and a wait for it returns at once")
}

fn stays(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let stream = device.streams()[1];
    device.spin(stream, 1_000)?;
    let event = recorded(&mut device, stream)?;
    device.wait(&event)?;
    is(&mut device, &event, true, "after the wait")?;
    device.spin(stream, SPIN_NS)?;
    let later = recorded(&mut device, stream)?;
    is(&mut device, &event, true, "with later work running")?;
    is(&mut device, &later, false, "the later work")?;
    device.settle();
    is(&mut device, &event, true, "at the end")?;
    done(device, [event, later], "complete before, during and after later work")
}

fn again(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let [_, first, second, _] = device.streams();
    let mut event = recorded(&mut device, first)?;
    device.wait(&event)?;
    is(&mut device, &event, true, "the first record")?;
    device.spin(second, SPIN_NS)?;
    device.record_event(&mut event, second)?;
    is(&mut device, &event, false, "the second record, on another stream")?;
    device.wait(&event)?;
    is(&mut device, &event, true, "after the wait for the second")?;
    done(device, [event], "complete; recorded again: not complete; after a wait: complete")
}

fn order(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let stream = device.streams()[1];
    device.spin(stream, SPIN_NS / 2)?;
    let first = recorded(&mut device, stream)?;
    device.spin(stream, SPIN_NS)?;
    let second = recorded(&mut device, stream)?;
    let third = recorded(&mut device, stream)?;
    is(&mut device, &first, false, "the first at the beginning")?;
    device.wait(&first)?;
    is(&mut device, &second, false, "the second when the first is complete")?;
    is(&mut device, &third, false, "the third when the first is complete")?;
    device.wait(&third)?;
    is(&mut device, &second, true, "the second when the third is complete")?;
    is(&mut device, &first, true, "the first when the third is complete")?;
    done(device, [first, second, third], "three events complete in their order")
}

fn apart(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let [default, first, second, third] = device.streams();
    device.spin(first, 2 * SPIN_NS)?;
    let slow = recorded(&mut device, first)?;
    let mut events = Vec::new();
    for stream in [default, second, third] {
        device.spin(stream, 1_000)?;
        let event = recorded(&mut device, stream)?;
        device.wait(&event)?;
        events.push(event);
    }
    is(&mut device, &slow, false, "the slow stream after three others")?;
    events.push(slow);
    done(device, events, "three streams, including the default one, finish while a fourth is busy")
}

/// The contents show the order, too: the second stream copies what the first one writes late.
fn stream_wait(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let free_before = free_bytes(&mut device)?;
    let [_, producer, consumer, _] = device.streams();
    let size = Bytes(4 * MIB);
    let (made, copied) = (device.malloc(size)?, device.malloc(size)?);
    device.fill(made, size, 1, producer)?;
    device.spin(producer, SPIN_NS)?;
    device.fill(made, size, 2, producer)?;
    let ready = recorded(&mut device, producer)?;
    device.stream_wait(consumer, &ready)?;
    device.copy(made, copied, size, consumer)?;
    let consumed = recorded(&mut device, consumer)?;
    is(&mut device, &consumed, false, "the consumer while the producer runs")?;
    device.wait(&consumed)?;
    is(&mut device, &ready, true, "the producer when the consumer is done")?;
    let mut bytes = vec![0; 4 << 20];
    device.read(copied, &mut bytes)?;
    let whole = bytes == 2_u32.to_le_bytes().repeat(bytes.len() / 4);
    ensure(whole, || "the consumer read what was there before the producer wrote".to_owned())?;
    device.destroy_event(ready);
    device.destroy_event(consumed);
    let races = device.insight().map_or(0, |device| device.races().len());
    ensure(races == 0, || format!("{races} races"))?;
    device.free(made)?;
    device.free(copied)?;
    ends_empty(&mut device, free_before)?;
    Ok(Evidence::text("the consumer waits, and reads what was written"))
}

fn wait(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let stream = device.streams()[1];
    let watch = Watch::new();
    device.spin(stream, SPIN_NS)?;
    let event = recorded(&mut device, stream)?;
    let ((), took_ns) = watch.time(&mut device, |device| device.wait(&event))?;
    ensure(took_ns > SPIN_NS / 2, || format!("the wait for work of {SPIN_NS} ns took {took_ns} ns"))?;
    is(&mut device, &event, true, "after the wait")?;
    let ((), next_ns) = watch.time(&mut device, |device| device.wait(&event))?;
    ensure(next_ns < SPIN_NS / 2, || format!("the second wait took {next_ns} ns"))?;
    let measured = format!("waited {} us for {} us of work, then {} us", took_ns / 1000, SPIN_NS / 1000, next_ns / 1000);
    let evidence = done(device, [event], "the first wait takes as long as the work, the second returns at once")?;
    Ok(Evidence { measured, ..evidence })
}

fn synchronize(backend: &AnyBackend, _: &Effort) -> Verdict {
    let mut device = open(backend, None)?;
    let [_, first, second, _] = device.streams();
    device.spin(first, SPIN_NS)?;
    let short = recorded(&mut device, first)?;
    device.spin(second, 4 * SPIN_NS)?;
    let long = recorded(&mut device, second)?;
    device.synchronize_stream(first)?;
    is(&mut device, &short, true, "the stream that was waited for")?;
    is(&mut device, &long, false, "the other stream")?;
    done(device, [short, long], "the stream's events are complete, another stream's are not")
}
