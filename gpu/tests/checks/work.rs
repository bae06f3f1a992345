//! Checks of work: a kernel takes the requested time, streams run concurrently, and one stream waits for another on
//! request. Also checks the device's identity.

use std::time::{Duration, Instant};

use parkade::device::DeviceBackend;
use parkade::units::StreamId;
use parkade_gpu::{CudaDevice, LONGEST_SPIN_NS};

use super::{ORDINAL, Outcome, ensure};

const MS_NS: u64 = 1_000_000;
/// A handle that no driver has returned.
const MADE_UP: StreamId = StreamId(0xdead_beef_f000);

pub(super) fn takes_its_time() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    let streams = [device.create_stream()?, device.create_stream()?];
    device.spin(streams[0], 0)?; // this loads the kernel
    device.synchronize()?;
    let mut alone_us = Vec::new();
    for duration_ms in [1, 20, 100] {
        let start = Instant::now();
        device.spin(streams[0], duration_ms * MS_NS)?;
        device.synchronize_stream(streams[0])?;
        let took = start.elapsed();
        let asked = Duration::from_millis(duration_ms);
        ensure(took >= asked && took < asked + asked / 2 + Duration::from_millis(5), || format!("{asked:?} took {took:?}"))?;
        alone_us.push(took.as_micros());
    }
    let start = Instant::now();
    for stream in streams {
        device.spin(stream, 100 * MS_NS)?;
    }
    let queued = start.elapsed();
    device.synchronize()?;
    let both = start.elapsed();
    ensure(both < Duration::from_millis(180), || {
        format!("two streams of 100 ms each took {both:?}: they ran one after the other")
    })?;
    ensure(queued < Duration::from_millis(50), || format!("the launch took {queued:?}"))?;
    let start = Instant::now();
    for _ in 0..2 {
        device.spin(streams[0], 50 * MS_NS)?;
    }
    device.synchronize_stream(streams[1])?;
    let other = start.elapsed();
    device.synchronize_stream(streams[0])?;
    let one = start.elapsed();
    ensure(one >= Duration::from_millis(100), || format!("two 50 ms kernels in one stream took {one:?}"))?;
    ensure(other < Duration::from_millis(50), || format!("waiting for an idle stream took {other:?}"))?;
    ensure(device.spin(streams[0], LONGEST_SPIN_NS + 1).is_err(), || String::from("a launch that never ends was accepted"))?;
    let calls = device.driver_calls();
    ensure(device.spin(MADE_UP, 1).is_err(), || String::from("a made-up stream was accepted"))?;
    ensure(device.synchronize_stream(MADE_UP).is_err(), || String::from("a wait for a made-up stream was accepted"))?;
    ensure(device.driver_calls() == calls, || String::from("a driver call was made for a made-up stream"))?;
    Ok(format!("1, 20, 100 ms took {alone_us:?} us; two streams of 100 ms {} us", both.as_micros()))
}

pub(super) fn waits_for_an_event() -> Outcome {
    let mut device = CudaDevice::open(ORDINAL)?;
    let [busy, waiting, free] = [device.create_stream()?, device.create_stream()?, device.create_stream()?];
    device.spin(busy, 0)?;
    device.synchronize()?;
    let (mut done, mut after, mut beside) = (device.create_event()?, device.create_event()?, device.create_event()?);
    device.stream_wait(waiting, &done)?; // never recorded: nothing to wait for
    device.record_event(&mut after, waiting)?;
    device.wait(&after)?;
    let start = Instant::now();
    device.spin(busy, 60 * MS_NS)?;
    device.record_event(&mut done, busy)?;
    device.stream_wait(waiting, &done)?;
    device.record_event(&mut after, waiting)?;
    device.record_event(&mut beside, free)?;
    device.wait(&beside)?;
    let beside_us = start.elapsed().as_micros();
    ensure(!device.is_complete(&after)?, || String::from("the stream did not wait"))?;
    device.wait(&after)?;
    let took = start.elapsed();
    ensure(device.is_complete(&done)?, || String::from("the stream continued before the event for which it waits"))?;
    ensure(took >= Duration::from_millis(60), || format!("the waiting stream was done after only {took:?}"))?;
    ensure(device.stream_wait(MADE_UP, &done).is_err(), || String::from("a made-up stream was accepted"))?;
    let holdings = device.holdings();
    ensure((holdings.events, holdings.streams) == (3, 3), || format!("{holdings:?}"))?;
    for event in [done, after, beside] {
        device.destroy_event(event);
    }
    for stream in [busy, waiting, free] {
        device.destroy_stream(stream)?;
    }
    ensure(device.holdings() == parkade_gpu::Holdings::default(), || format!("left: {:?}", device.holdings()))?;
    Ok(format!("the idle stream was done after {beside_us} us, the waiting one after {} us", took.as_micros()))
}

pub(super) fn identity() -> Outcome {
    let (device, count) = (CudaDevice::open(ORDINAL)?, CudaDevice::count()?);
    let (uuid, place) = (device.uuid()?, device.pci_bus_id()?);
    ensure(count > ORDINAL, || format!("device {ORDINAL} of {count}"))?;
    let is_hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let groups: Vec<&str> = uuid.split('-').skip(1).collect();
    let is_uuid = groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(|group| is_hexadecimal(group));
    ensure(is_uuid, || format!("{uuid} is not an identifier"))?;
    ensure(place.split([':', '.']).all(is_hexadecimal), || format!("{place} is not a bus address"))?;
    ensure(CudaDevice::open(count).is_err(), || format!("device {count} of {count} was opened"))?;
    ensure(!device.can_access_peer(ORDINAL)?, || String::from("a device is its own peer"))?;
    ensure(device.can_access_peer(count).is_err(), || format!("a query about device {count} of {count} was accepted"))?;
    Ok(format!("{uuid} at {place}, one of {count}"))
}
