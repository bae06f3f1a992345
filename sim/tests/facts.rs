//! The measured facts (`docs/driver-facts.md`) for which only the simulated device can be tested: exact times, the
//! H200's size, and options that no driver has. The other facts are in the conformance suite's contract, which also
//! runs on a real device.

use parkade::device::{BackendError, DeviceBackend, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_sim::{CallName, EventTiming, NoCost, SimDevice, SimOptions};

const PAGE: u64 = 2 * MIB;

fn device(mib: u64) -> SimDevice {
    SimDevice::new(SimOptions::new(Bytes::mib(mib)))
}

fn free_bytes(device: &mut SimDevice) -> u64 {
    device.memory_info().unwrap().free.get()
}

/// Returns the amount by which one cudaMalloc reduces free memory.
fn taken_by(device: &mut SimDevice, bytes: u64) -> u64 {
    let before = free_bytes(device);
    device.malloc(Bytes(bytes)).unwrap();
    before - free_bytes(device)
}

/// Makes cudaMallocs of this size until the device is out of memory.
fn fill(device: &mut SimDevice, bytes: u64) -> Vec<DeviceAddress> {
    let mut blocks = Vec::new();
    loop {
        match device.malloc(Bytes(bytes)) {
            Ok(address) => blocks.push(address),
            Err(error) => {
                assert_eq!(error, BackendError::OutOfMemory { requested: Bytes(bytes) });
                return blocks;
            }
        }
    }
}

fn free_every_other(device: &mut SimDevice, blocks: &[DeviceAddress]) {
    for &address in blocks.iter().step_by(2) {
        device.free(address).unwrap();
    }
}

#[test]
fn sizes_without_sharing_every_malloc_takes_pages() {
    let mut device = SimDevice::new(SimOptions::new(Bytes::mib(6)).shares_pages(false));
    assert_eq!([(); 2].map(|()| taken_by(&mut device, 1)), [PAGE; 2]);
    assert_eq!(device.live_ranges().map(|(_, bytes)| bytes.get()).collect::<Vec<_>>(), [PAGE; 2]);
}

#[test]
fn sizes_zero_and_beyond_64_bits_are_refused() {
    let mut device = SimDevice::new(SimOptions::new(Bytes::MAX));
    assert_eq!(device.malloc(Bytes::ZERO), Err(BackendError::Driver { call: "cudaMalloc", code: 1 }));
    for bytes in [u64::MAX, u64::MAX - PAGE + 2] {
        assert_eq!(device.malloc(Bytes(bytes)), Err(BackendError::OutOfMemory { requested: Bytes(bytes) }), "{bytes}");
    }
    assert_eq!((device.used_bytes(), device.live_ranges().count()), (Bytes::ZERO, 0));
}

#[test]
fn device_the_h200_reports_what_was_measured() {
    let mut device = SimDevice::new(SimOptions::h200());
    let info = device.memory_info().unwrap();
    assert_eq!((info.free, info.total), (Bytes(149_557_477_376), Bytes(150_109_880_320)));
    assert_eq!(device.total_memory(), info.total);
}

#[test]
fn holes_any_range_is_backed_by_any_pages() {
    let mut device = SimDevice::new(SimOptions::h200().cost_model(NoCost));
    let blocks = fill(&mut device, 1024 * MIB);
    assert_eq!(blocks.len(), 139);
    free_every_other(&mut device, &blocks);
    for gib in [2, 10] {
        let address = device.malloc(Bytes::mib(gib * 1024)).expect("from scattered pages");
        device.free(address).unwrap();
    }
    // facts: Holes. With 75,469,291,520 free bytes, the largest single cudaMalloc that succeeds is 75,466,014,720
    // bytes: all but 3,276,800 bytes.
    let free = free_bytes(&mut device);
    let largest = free - 3_276_800;
    assert_eq!(largest % PAGE, 0);
    assert!(device.malloc(Bytes(largest + 1)).is_err());
    let address = device.malloc(Bytes(largest)).unwrap();
    assert!(device.pages_at(address).len() > 50, "scattered");
}

#[test]
fn time_calls_cost_the_measured_medians() {
    let mut device = device(2048);
    let address = device.malloc(Bytes::mib(20)).unwrap();
    assert_eq!(device.now_ns(), 29_100);
    device.free(address).unwrap();
    assert_eq!(device.now_ns(), 59_000);
    let mut event = device.create_event().unwrap();
    device.record_event(&mut event, StreamId::DEFAULT).unwrap();
    device.is_complete(&event).unwrap();
    assert_eq!(device.now_ns(), 59_000 + 165 + 145);
    assert_eq!((device.driver_ns(), device.driver_calls(), device.waited_ns()), (59_310, 5, 0));
    assert_eq!(device.totals(CallName::Malloc).calls, 1);
}

#[test]
fn waiting_free_completes_events_under_every_timing() {
    for timing in [EventTiming::Clock, EventTiming::Eager, EventTiming::Lazy, EventTiming::Seeded(7)] {
        let mut device = SimDevice::new(SimOptions::new(Bytes::mib(100)).event_timing(timing));
        let address = device.malloc(Bytes::mib(4)).unwrap();
        device.spin(StreamId(5), 1_000_000);
        let mut event = device.create_event().unwrap();
        device.record_event(&mut event, StreamId(5)).unwrap();
        assert_eq!(device.is_complete(&event), Ok(timing == EventTiming::Eager), "{timing:?}");
        device.free(address).unwrap();
        assert_eq!(device.is_complete(&event), Ok(true), "{timing:?}");
    }
}

#[test]
fn processes_this_one_includes_the_context() {
    let mut device = SimDevice::new(SimOptions::new(Bytes::mib(1000)).base(Bytes::mib(500)));
    device.malloc(Bytes::mib(100)).unwrap();
    device.set_process_bytes(77, Bytes::mib(30));
    device.set_process_bytes(12, Bytes::mib(20));
    let list = |device: &mut SimDevice| device.processes().iter().map(|p| (p.pid, p.used.get() / MIB)).collect::<Vec<_>>();
    assert_eq!(list(&mut device), [(None, 600), (Some(12), 20), (Some(77), 30)]);
    assert_eq!(free_bytes(&mut device), 350 * MIB);
    device.set_process_bytes(12, Bytes::MAX);
    assert_eq!(free_bytes(&mut device), 0, "never below zero");
    device.set_process_bytes(12, Bytes::ZERO);
    assert_eq!(list(&mut device), [(None, 600), (Some(77), 30)]);
    assert_eq!(free_bytes(&mut device), 370 * MIB);
    device.set_external_bytes(Bytes::mib(70));
    assert_eq!((list(&mut device).len(), free_bytes(&mut device)), (2, 300 * MIB), "missing from free memory, but in no list");
    let mut silent = SimDevice::new(SimOptions::new(Bytes::mib(10)).reports_processes(false));
    assert_eq!(silent.processes(), Vec::<ProcessMemory>::new());
}
