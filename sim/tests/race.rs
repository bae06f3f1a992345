//! Examples of races: the three classic two-stream programs, calls that the host makes too early, and contents that
//! move with the memory.

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{
    Access, AccessError, AccessKind, EventTiming, Kernel, RaceUse, SimDevice, SimEvent, SimOptions, SimPhysical, UNWRITTEN,
};

const PAGE: Bytes = Bytes::mib(2);
const SIZE: Bytes = Bytes::mib(4);
const TIMINGS: [EventTiming; 4] = [EventTiming::Clock, EventTiming::Eager, EventTiming::Lazy, EventTiming::Seeded(5)];

fn device() -> SimDevice {
    SimDevice::new(SimOptions::new(Bytes::mib(256)))
}

fn recorded(device: &mut SimDevice, stream: StreamId) -> SimEvent {
    let mut event = device.create_event().unwrap();
    device.record_event(&mut event, stream).unwrap();
    event
}

fn slow_reader(device: &mut SimDevice, stream: StreamId, x: DeviceAddress) {
    let accesses = vec![Access::read(x, SIZE)];
    device.kernel(Kernel { stream, duration_ns: 1_000_000, label: "slow reader".into(), accesses }).unwrap();
}

/// Creates memory and maps it at an address, with access.
fn mapped(device: &mut SimDevice, address: DeviceAddress, size: Bytes) -> SimPhysical {
    let memory = device.create(size).unwrap();
    device.map(address, size, &memory).unwrap();
    device.set_access(address, size).unwrap();
    memory
}

fn bytes<const N: usize>(device: &mut SimDevice, address: DeviceAddress) -> [u8; N] {
    let mut into = [0; N];
    device.read(address, &mut into).unwrap();
    into
}

/// Sets up a scenario: one stream writes x, and then a slow kernel on another stream reads it, in order.
fn x_in_use(timing: EventTiming) -> (SimDevice, [StreamId; 2], DeviceAddress) {
    let mut device = SimDevice::new(SimOptions::new(Bytes::mib(256)).event_timing(timing));
    let streams = [(); 2].map(|()| device.create_stream());
    let x = device.malloc(SIZE).unwrap();
    device.fill(x, SIZE, 1, streams[0]).unwrap();
    let made = recorded(&mut device, streams[0]);
    device.stream_wait(streams[1], &made);
    slow_reader(&mut device, streams[1], x);
    (device, streams, x)
}

#[test]
fn b1_reuse_without_a_wait_is_a_race() {
    for timing in TIMINGS {
        let (mut device, [s1, _], x) = x_in_use(timing);
        device.fill(x.offset(PAGE), Bytes(512), 2, s1).unwrap();
        let race = &device.races()[0];
        assert_eq!((device.races().len(), race.first.number, race.second.number), (1, 2, 3), "{timing:?}");
    }
    let (mut device, [s1, _], x) = x_in_use(EventTiming::Clock);
    let begin_ns = device.now_ns();
    device.fill(x.offset(PAGE), Bytes(512), 2, s1).unwrap();
    let text = format!(
        "read by `slow reader` on stream 0x2000 (access 2, 4194304 bytes at {x}, {begin_ns} to {} ns) and \
         written by `fill` on stream 0x1000 (access 3, 512 bytes at {}, {begin_ns} to {begin_ns} ns), with no order between them",
        begin_ns + 1_000_000,
        x.offset(PAGE)
    );
    assert_eq!(device.races()[0].to_string(), text);
}

#[test]
fn b2_reuse_after_an_event_was_seen_complete_is_not_a_race() {
    for timing in TIMINGS {
        let (mut device, [s1, s2], x) = x_in_use(timing);
        let done = recorded(&mut device, s2);
        let mut polls = 0;
        while !device.is_complete(&done).unwrap() {
            device.advance(100_000);
            polls += 1;
            if polls == 1000 {
                device.complete(s2); // with lazy timing, nothing completes on its own
            }
        }
        device.fill(x, SIZE, 2, s1).unwrap();
        assert_eq!(device.races(), [], "{timing:?}");
    }
}

#[test]
fn b2_an_event_that_is_not_complete_orders_nothing() {
    let (mut device, [s1, s2], x) = x_in_use(EventTiming::Clock);
    let done = recorded(&mut device, s2);
    assert_eq!(device.is_complete(&done), Ok(false));
    device.advance(1 << 30);
    device.fill(x, SIZE, 2, s1).unwrap();
    assert_eq!(device.races().len(), 1, "time passed, but the host did not ask");
}

#[test]
fn b3_reuse_on_a_stream_that_waits_is_not_a_race() {
    for timing in TIMINGS {
        let (mut device, [s1, s2], x) = x_in_use(timing);
        let done = recorded(&mut device, s2);
        device.stream_wait(s1, &done);
        device.fill(x, SIZE, 2, s1).unwrap();
        assert_eq!(device.races(), [], "{timing:?}");
        let before_ns = device.now_ns();
        device.synchronize_stream(s1).unwrap();
        let waited = device.now_ns() - before_ns >= 900_000;
        assert_eq!(waited, timing != EventTiming::Eager, "{timing:?}: the fill came after the reader");
    }
}

#[test]
fn an_event_orders_what_was_before_its_newest_record() {
    let (mut device, [s1, s2], x) = x_in_use(EventTiming::Clock);
    let never = device.create_event().unwrap();
    device.stream_wait(s1, &never);
    let early = {
        let mut event = recorded(&mut device, s1);
        device.record_event(&mut event, s2).unwrap();
        event
    };
    slow_reader(&mut device, s2, x.offset(Bytes(0)));
    device.stream_wait(s1, &early);
    device.fill(x, SIZE, 2, s1).unwrap();
    let numbers: Vec<u64> = device.races().iter().map(|race| race.first.number).collect();
    assert_eq!(numbers, [3], "the first reader was queued before the record, and the second was not");
}

#[test]
fn stream_zero_is_a_stream_like_any_other() {
    let (mut device, _, x) = x_in_use(EventTiming::Clock);
    device.fill(x, SIZE, 2, StreamId::DEFAULT).unwrap();
    assert_eq!(device.races().len(), 2, "with the fill and with the reader");
}

#[test]
fn neither_two_readers_nor_one_kernel_race() {
    let (mut device, [s1, s2], x) = x_in_use(EventTiming::Clock);
    slow_reader(&mut device, s1, x);
    device.copy(x, x.offset(Bytes(512)), Bytes(2048), s2).unwrap();
    let kinds: Vec<_> = device.races().iter().map(|race| (race.first.number, race.first.what, race.second.what)).collect();
    assert_eq!(kinds, [(3, RaceUse::Read, RaceUse::Written)], "the copy writes the bytes that the second reader reads");
}

#[test]
fn a_read_waits_for_the_default_stream_only() {
    let mut device = device();
    let stream = device.create_stream();
    let x = device.malloc(SIZE).unwrap();
    device.spin(StreamId::DEFAULT, 1000);
    device.fill(x, PAGE, 0x0403_0201, StreamId::DEFAULT).unwrap();
    let before_ns = device.now_ns();
    assert_eq!(bytes(&mut device, x), [1, 2, 3, 4]);
    assert_eq!((device.now_ns() - before_ns, device.races().len()), (1000, 0));
    device.spin(stream, 1000);
    device.fill(x.offset(PAGE), PAGE, 7, stream).unwrap();
    assert_eq!(bytes(&mut device, x.offset(PAGE)), [7, 0], "contents are in program order");
    assert_eq!(device.now_ns() - before_ns, 1000, "it did not wait");
    let race = &device.races()[0];
    assert_eq!((race.second.stream, race.second.what, &*race.second.label), (None, RaceUse::Read, "read"));
    device.synchronize_stream(stream).unwrap();
    bytes::<8>(&mut device, x.offset(PAGE));
    assert_eq!(device.races().len(), 1);
}

#[test]
fn unmapping_races_with_accesses_through_that_address_only() {
    let mut device = device();
    let stream = device.create_stream();
    let start = device.reserve(Bytes::mib(64)).unwrap();
    let alias = start.offset(Bytes::mib(32));
    let memory = mapped(&mut device, start, SIZE);
    device.map(alias, SIZE, &memory).unwrap();
    device.set_access(alias, SIZE).unwrap();
    slow_reader(&mut device, stream, start);
    device.unmap(alias, SIZE).unwrap();
    assert_eq!(device.races(), [], "it reads through the other address");
    device.unmap(start, Bytes::mib(64)).unwrap();
    let race = device.races()[0].to_string();
    assert!(race.contains("and unmapped by `cuMemUnmap` on the host (access 3, 67108864 bytes"), "{race}");
    device.synchronize_stream(stream).unwrap();
    device.map(start, SIZE, &memory).unwrap();
    device.set_access(start, SIZE).unwrap();
    slow_reader(&mut device, stream, start);
    device.synchronize_stream(stream).unwrap();
    device.unmap(start, SIZE).unwrap();
    assert_eq!((device.races().len(), device.more_races()), (1, 0));
}

#[test]
fn only_a_free_that_does_not_wait_is_a_race() {
    for waits in [true, false] {
        let mut device = SimDevice::new(SimOptions::new(Bytes::mib(64)).free_waits(waits));
        let stream = device.create_stream();
        let small = [(); 2].map(|()| device.malloc(Bytes(4096)).unwrap());
        let accesses = vec![Access::write(small[0], Bytes(4096))];
        device.kernel(Kernel { stream, duration_ns: 100, label: "writer".into(), accesses }).unwrap();
        device.free(small[1]).unwrap();
        assert_eq!(device.races(), [], "the neighbour in the page");
        device.free(small[0]).unwrap();
        let freed: Vec<_> = device.races().iter().map(|race| race.second.what).collect();
        assert_eq!(freed, if waits { vec![] } else { vec![RaceUse::Freed] });
    }
}

#[test]
fn returned_memory_loses_its_accesses_and_contents() {
    let mut device = SimDevice::new(SimOptions::new(SIZE).free_waits(false));
    let streams = [(); 2].map(|()| device.create_stream());
    let start = device.reserve(SIZE).unwrap();
    let memory = mapped(&mut device, start, SIZE);
    device.fill(start, SIZE, 1, streams[0]).unwrap();
    device.synchronize();
    device.fill(start, SIZE, 2, streams[0]).unwrap();
    device.release(memory).unwrap();
    assert_eq!(bytes(&mut device, start), [2], "released and still mapped");
    assert_eq!(device.races().len(), 1, "that read did not wait for the fill");
    device.unmap(start, SIZE).unwrap();
    assert_eq!(device.races().len(), 2, "nor did the unmapping");
    let again = device.malloc(SIZE).unwrap();
    device.fill(again.offset(PAGE), PAGE, 3, streams[1]).unwrap();
    assert_eq!(device.races().len(), 2, "different memory, although the pages are the same");
    assert_eq!(bytes(&mut device, again), [UNWRITTEN; 3]);
}

#[test]
fn contents_follow_the_memory_byte_for_byte() {
    let mut device = device();
    let start = device.reserve(Bytes::mib(64)).unwrap();
    let [first, second] = [0, 32].map(|mib| start.offset(Bytes::mib(mib)));
    let memory = mapped(&mut device, first, SIZE);
    let edge = |base: DeviceAddress| base.offset(Bytes(PAGE.get() - 4));
    device.fill(edge(first), Bytes(8), 0x0403_0201, StreamId::DEFAULT).unwrap();
    device.copy(edge(first), first.offset(Bytes(1)), Bytes(6), StreamId::DEFAULT).unwrap();
    device.map(second, SIZE, &memory).unwrap();
    device.set_access(second, SIZE).unwrap();
    device.fill(edge(second), Bytes(4), u32::MAX, StreamId::DEFAULT).unwrap();
    assert_eq!(bytes(&mut device, edge(first)), [255, 255, 255, 255, 1, 2, 3, 4, UNWRITTEN], "seen through both");
    device.unmap(first, SIZE).unwrap();
    assert_eq!(device.read(first, &mut [0]), Err(AccessError::NotMapped));
    assert_eq!(bytes(&mut device, second), [UNWRITTEN, 1, 2, 3, 4, 1, 2, UNWRITTEN], "and at the next address");
    let accesses = vec![Access { address: second.offset(Bytes(2)), size: Bytes(2), kind: AccessKind::Write }];
    device.kernel(Kernel { stream: StreamId::DEFAULT, duration_ns: 1, label: "secret".into(), accesses }).unwrap();
    assert_eq!(
        bytes(&mut device, second.offset(Bytes(1))),
        [1, UNWRITTEN, UNWRITTEN, 4],
        "the data that a kernel writes is \
                                                                                           unknown"
    );
}

#[test]
fn small_mallocs_in_one_page_stay_apart() {
    let mut device = device();
    let blocks = [(); 3].map(|()| device.malloc(Bytes(512)).unwrap());
    for (word, block) in (1..).zip(blocks) {
        device.fill(block, Bytes(512), word, StreamId(1)).unwrap();
    }
    device.free(blocks[1]).unwrap();
    assert_eq!(device.malloc(Bytes(512)), Ok(blocks[1]), "the same place");
    assert_eq!(blocks.map(|block| bytes(&mut device, block)), [[1], [UNWRITTEN], [3]]);
}

#[test]
fn illegal_accesses_change_nothing() {
    let mut device = device();
    let x = device.malloc(PAGE).unwrap();
    let stream = StreamId(1);
    let beyond = PAGE + Bytes(4);
    assert_eq!(device.fill(x, beyond, 1, stream), Err(AccessError::NotMapped));
    assert_eq!(device.fill(x.offset(Bytes(2)), Bytes(4), 1, stream), Err(AccessError::NotWords));
    assert_eq!(device.fill(x, Bytes(6), 1, stream), Err(AccessError::NotWords));
    assert_eq!(device.copy(x, x.offset(Bytes(4)), PAGE, stream), Err(AccessError::NotMapped));
    let accesses = vec![Access::write(x, PAGE), Access::read(DeviceAddress(u64::MAX), Bytes(1))];
    let kernel = Kernel { stream, duration_ns: 1 << 40, label: "illegal".into(), accesses };
    assert_eq!(device.kernel(kernel), Err(AccessError::NotMapped));
    device.fill(DeviceAddress(0), Bytes::ZERO, 1, stream).expect("an empty fill is legal");
    let now_ns = device.now_ns();
    device.synchronize_stream(stream).unwrap();
    assert_eq!(device.waited_ns(), 0);
    assert!(device.now_ns() < now_ns + 1_000_000);
    assert_eq!(bytes(&mut device, x), [UNWRITTEN; 5]);
}

#[test]
fn the_first_hundred_races_are_kept_and_the_rest_counted() {
    let mut device = device();
    let x = device.malloc(PAGE).unwrap();
    device.fill(x, PAGE, 0, StreamId(1)).unwrap();
    for block in 0..130 {
        device.fill(x.offset(Bytes(512 * block)), Bytes(512), 1, StreamId(2)).unwrap();
    }
    assert_eq!((device.races().len(), device.more_races()), (100, 30));
}

#[test]
fn clones_know_the_same_order() {
    let (mut device, [s1, s2], x) = x_in_use(EventTiming::Clock);
    let done = recorded(&mut device, s2);
    let (mut other, its_event) = (device.clone(), done.clone());
    other.stream_wait(s1, &its_event);
    other.fill(x, SIZE, 2, s1).unwrap();
    device.fill(x, SIZE, 2, s1).unwrap();
    assert_eq!((other.races().len(), device.races().len()), (0, 1));
}
