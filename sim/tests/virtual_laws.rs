//! Tests the costs and waits of the virtual memory calls (facts: Time of one call; facts: Waiting for the device),
//! their effect on contents, and how they fail on demand.

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{
    AccessError, CallName, EventTiming, FaultError, FaultPlan, SimDevice, SimEvent, SimOptions, SimPhysical, UNWRITTEN, When,
};

const PAGE: Bytes = Bytes::mib(2);
const TWENTY: Bytes = Bytes::mib(20);

fn device(mib: u64) -> SimDevice {
    SimDevice::new(SimOptions::new(Bytes::mib(mib)))
}

/// Creates a device with 1 GiB reserved.
fn reserved() -> (SimDevice, DeviceAddress) {
    let mut device = device(4096);
    let start = device.reserve(Bytes::mib(1024)).unwrap();
    (device, start)
}

/// Creates memory and maps it at an address, with access.
fn mapped(device: &mut SimDevice, address: DeviceAddress, size: Bytes) -> SimPhysical {
    let memory = device.create(size).unwrap();
    device.map(address, size, &memory).unwrap();
    device.set_access(address, size).unwrap();
    memory
}

fn refused<T>(call: &'static str, code: u32) -> Result<T, BackendError> {
    Err(BackendError::Driver { call, code })
}

/// Returns how long an action takes, in nanoseconds.
fn time(device: &mut SimDevice, act: impl FnOnce(&mut SimDevice)) -> u64 {
    let before_ns = device.now_ns();
    act(device);
    device.now_ns() - before_ns
}

#[test]
fn time_of_one_call() {
    // (MiB, create, map, set access, unmap, release), microseconds.
    let rows = [
        (2, [12.1, 0.8, 26.9, 17.8, 13.3]),
        (20, [11.5, 0.8, 27.2, 17.7, 23.7]),
        (128, [8.4, 0.5, 32.5, 20.0, 41.2]),
        (1024, [38.0, 0.6, 54.9, 28.2, 253.9]),
    ];
    for (mib, prices_us) in rows {
        let (mut device, start) = reserved();
        let size = Bytes::mib(mib);
        let mut memory = None;
        let create_ns = time(&mut device, |device| memory = device.create(size).ok());
        let memory = memory.unwrap();
        let map_ns = time(&mut device, |device| device.map(start, size, &memory).unwrap());
        let access_ns = time(&mut device, |device| device.set_access(start, size).unwrap());
        let unmap_ns = time(&mut device, |device| device.unmap(start, size).unwrap());
        let release_ns = time(&mut device, |device| device.release(memory).unwrap());
        let measured_ns = prices_us.map(|us: f64| (us * 1000.0).round() as u64);
        assert_eq!([create_ns, map_ns, access_ns, unmap_ns, release_ns], measured_ns, "{mib}");
    }
    let reserve_ns = time(&mut device(2), |device| {
        device.reserve(Bytes::mib(1024)).unwrap();
    });
    assert!((3_000..=24_000).contains(&reserve_ns));
}

#[test]
fn time_of_one_call_over_many_handles() {
    // (MiB of a handle, how many, set access, unmap), microseconds.
    for (mib, count, access_us, unmap_us) in [(2, 512, 10_462, 7_014), (20, 51, 933, 640), (1024, 1, 56, 28)] {
        let (mut device, start) = reserved();
        for index in 0..count {
            let memory = device.create(Bytes::mib(mib)).unwrap();
            device.map(start.offset(Bytes::mib(mib * index)), Bytes::mib(mib), &memory).unwrap();
        }
        let whole = Bytes::mib(mib * count);
        let access_ns = time(&mut device, |device| device.set_access(start, whole).unwrap());
        let unmap_ns = time(&mut device, |device| device.unmap(start, whole).unwrap());
        assert!(access_ns.abs_diff(access_us * 1000) * 40 <= access_ns, "{mib}: {access_ns}");
        assert!(unmap_ns.abs_diff(unmap_us * 1000) * 40 <= unmap_ns, "{mib}: {unmap_ns}");
        assert_eq!((device.totals(CallName::MemSetAccess).calls, device.totals(CallName::MemUnmap).calls), (1, 1));
    }
}

#[test]
fn waiting_none_of_the_calls_waits() {
    let (mut device, start) = reserved();
    let begin_ns = device.now_ns();
    device.spin(StreamId(1), 100_000_000);
    let memory = mapped(&mut device, start, TWENTY);
    device.unmap(start, TWENTY).unwrap();
    device.release(memory).unwrap();
    device.unreserve(start, Bytes::mib(1024)).unwrap();
    device.reserve(TWENTY).unwrap();
    assert!(device.now_ns() - begin_ns < 120_000, "{}", device.now_ns() - begin_ns);
    assert_eq!(device.waited_ns(), 0);
}

#[test]
fn waiting_for_a_stream_waits_for_that_stream_only() {
    for timing in [EventTiming::Clock, EventTiming::Lazy, EventTiming::Seeded(3)] {
        let mut device = SimDevice::new(SimOptions::new(Bytes::mib(100)).event_timing(timing));
        let recorded = |device: &mut SimDevice, stream: u64| -> SimEvent {
            device.spin(StreamId(stream), 1_000_000 * stream);
            let mut event = device.create_event().unwrap();
            device.record_event(&mut event, StreamId(stream)).unwrap();
            event
        };
        let events = [1, 9].map(|stream| recorded(&mut device, stream));
        device.synchronize_stream(StreamId(1)).unwrap();
        assert_eq!(events.each_ref().map(|event| device.is_complete(event)), [Ok(true), Ok(false)], "{timing:?}");
        assert!((1_000_000..1_001_000).contains(&device.now_ns()), "{timing:?}");
        assert_eq!(device.waited_ns(), device.totals(CallName::StreamSynchronize).wait_ns);
    }
}

/// The value that reads return for memory that has never been written.
const NOTHING: u32 = u32::from_le_bytes([UNWRITTEN; 4]);

fn word(device: &mut SimDevice, address: DeviceAddress) -> Result<u32, AccessError> {
    let mut bytes = [0; 4];
    device.read(address, &mut bytes).map(|()| u32::from_le_bytes(bytes))
}

#[test]
fn contents_survive_unmapping_and_mapping_elsewhere() {
    let (mut device, start) = reserved();
    let at = |mib| start.offset(Bytes::mib(mib));
    let memory = mapped(&mut device, start, Bytes::mib(6));
    for page in 0..3 {
        device.fill(at(2 * page), PAGE, 100 + page as u32, StreamId(1)).unwrap();
    }
    device.unmap(start, Bytes::mib(6)).unwrap();
    assert_eq!(word(&mut device, start), Err(AccessError::NotMapped));
    device.map(at(100), Bytes::mib(6), &memory).unwrap();
    assert_eq!(
        (word(&mut device, at(100)), device.fill(at(100), Bytes(4), 1, StreamId(1))),
        (Err(AccessError::NoAccess), Err(AccessError::NoAccess))
    );
    device.set_access(at(100), Bytes::mib(6)).unwrap();
    assert_eq!([100, 102, 105].map(|mib| word(&mut device, at(mib))), [100, 101, 102].map(Ok));
    device.release(memory).unwrap();
    assert_eq!(word(&mut device, at(100)), Ok(100), "released and still mapped");
    device.unmap(at(100), Bytes::mib(6)).unwrap();
    mapped(&mut device, start, Bytes::mib(6));
    assert_eq!(word(&mut device, start), Ok(NOTHING), "the contents are gone with the memory");
}

#[test]
fn contents_are_seen_through_every_alias() {
    let (mut device, start) = reserved();
    let memory = mapped(&mut device, start, TWENTY);
    let alias = start.offset(Bytes::mib(500));
    device.map(alias, TWENTY, &memory).unwrap();
    assert_eq!(word(&mut device, alias), Err(AccessError::NoAccess), "access belongs to the mapping");
    device.set_access(alias, TWENTY).unwrap();
    device.fill(alias.offset(Bytes::mib(3)), Bytes(4), 7, StreamId(1)).unwrap();
    assert_eq!(word(&mut device, start.offset(Bytes::mib(3))), Ok(7));
    assert_eq!(word(&mut device, start.offset(PAGE)), Ok(NOTHING));
    device.unmap(start, TWENTY).unwrap();
    device.map(start, TWENTY, &memory).unwrap();
    assert_eq!(word(&mut device, start), Err(AccessError::NoAccess), "and ends with it");
    assert_eq!(device.page_behind(alias), Ok(device.pages_at(start)[0].first));
}

#[test]
fn contents_work_for_mallocs_and_scattered_pages() {
    let mut device = device(12);
    let blocks = [(); 6].map(|()| device.malloc(PAGE).unwrap());
    for (tag, &block) in (0..).zip(&blocks) {
        device.fill(block, PAGE, tag, StreamId(1)).unwrap();
    }
    assert_eq!(blocks.map(|block| word(&mut device, block)), [0, 1, 2, 3, 4, 5].map(Ok));
    for block in [blocks[1], blocks[3], blocks[5]] {
        device.free(block).unwrap();
        assert_eq!(word(&mut device, block), Err(AccessError::NotMapped));
    }
    let start = device.reserve(Bytes::mib(6)).unwrap();
    let memory = mapped(&mut device, start, Bytes::mib(6));
    assert_eq!(device.pages_at(start).len(), 3, "a single piece of memory with scattered pages");
    assert_eq!([0, 2, 4].map(|mib| device.page_behind(start.offset(Bytes::mib(mib))).unwrap().0), [1, 3, 5]);
    assert_eq!(device.create(PAGE), Err(BackendError::OutOfMemory { requested: PAGE }));
    device.unmap(start, Bytes::mib(6)).unwrap();
    device.release(memory).unwrap();
    device.malloc(Bytes::mib(6)).expect("the pages came back");
}

/// Makes each virtual memory call once; stops at the first failure.
fn program(device: &mut SimDevice) -> Result<(), BackendError> {
    let start = device.reserve(TWENTY)?;
    let memory = device.create(TWENTY)?;
    device.map(start, TWENTY, &memory)?;
    device.set_access(start, TWENTY)?;
    device.synchronize_stream(StreamId(1))?;
    device.unmap(start, TWENTY)?;
    device.release(memory).map_err(|(_, error)| error)?;
    device.unreserve(start, TWENTY)
}

#[test]
fn faults_every_call_can_be_made_to_fail() {
    let calls = [
        (CallName::AddressReserve, 0),
        (CallName::MemCreate, 0),
        (CallName::MemMap, 20),
        (CallName::MemSetAccess, 20),
        (CallName::StreamSynchronize, 20),
        (CallName::MemUnmap, 20),
        (CallName::MemRelease, 20),
        (CallName::AddressFree, 0),
    ];
    for (n, (call, used_mib)) in (1..).zip(calls) {
        for when in [When::Nth(n), When::NthOf(call, 1)] {
            let mut device = device(100);
            device.set_fault_plan(FaultPlan::none().and(when, FaultError::Code(719)));
            assert_eq!(program(&mut device), refused(call.as_str(), 719));
            assert_eq!((device.fault_plan().fired(), device.totals(call).failures), (1, 1));
            assert_eq!(device.used_bytes(), Bytes::mib(used_mib), "{call:?} changed nothing");
            program(&mut device).expect("the fault happens once");
        }
    }
}

#[test]
fn faults_of_create_are_out_of_memory_when_asked() {
    let mut device = device(100);
    device.set_fault_plan(FaultPlan::none().and(When::NthOf(CallName::MemCreate, 2), FaultError::OutOfMemory));
    device.create(PAGE).unwrap();
    assert_eq!(device.create(PAGE), Err(BackendError::OutOfMemory { requested: PAGE }));
    device.fail_next(2);
    assert_eq!(device.malloc(PAGE), Err(BackendError::OutOfMemory { requested: PAGE }));
    assert_eq!(device.create(Bytes::mib(3)), refused("cuMemCreate", 1));
    assert_eq!(device.create(PAGE), Err(BackendError::OutOfMemory { requested: PAGE }), "one count for both kinds of call");
    device.create(PAGE).unwrap();
}

#[test]
fn clones_go_their_own_way() {
    let (mut device, start) = reserved();
    let memory = mapped(&mut device, start, TWENTY);
    device.fill(start, PAGE, 1, StreamId(1)).unwrap();
    let mut other = device.clone();
    other.unmap(start, TWENTY).unwrap();
    other.release(memory.clone()).unwrap();
    assert_eq!(other.used_bytes(), Bytes::ZERO);
    assert_eq!((device.used_bytes(), word(&mut device, start)), (TWENTY, Ok(1)));
    device.release(memory).unwrap();
    assert_eq!(device.reserve(TWENTY), other.reserve(TWENTY), "the models are cloned too");
}
