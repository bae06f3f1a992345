//! The rows of the measured facts about the driver (shared facts page), one test a row, named after it.

use parkade::device::{BackendError, DeviceBackend, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_sim::device::{Adversary, CallName, NoCost, SimDevice, SimOptions};

const PAGE: u64 = 2 * MIB;

fn device(mib: u64) -> SimDevice {
    SimDevice::new(SimOptions::new(Bytes::mib(mib)))
}

fn free_bytes(device: &mut SimDevice) -> u64 {
    device.memory_info().unwrap().free.get()
}

/// How much free memory falls by one cudaMalloc.
fn price(device: &mut SimDevice, bytes: u64) -> u64 {
    let before = free_bytes(device);
    device.malloc(Bytes(bytes)).unwrap();
    before - free_bytes(device)
}

/// cudaMallocs of this size until one fails for want of memory.
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
fn sizes_small_ones_share_a_page_spaced_by_512() {
    // (bytes, spacing), from `malloc_cost` and `small_spacing`.
    let rows = [
        (1, 512),
        (512, 512),
        (700, 1_024),
        (3_000, 3_072),
        (4_096, 4_096),
        (5_000, 5_120),
        (65_536, 65_536),
        (70_000, 70_144),
        (300_000, 300_032),
        (524_288, 524_288),
        (700_000, 700_416),
        (1_048_576, 1_048_576),
    ];
    for (bytes, spacing) in rows {
        let mut device = device(100);
        let first = device.malloc(Bytes(bytes)).unwrap().get();
        assert_eq!(device.used_bytes(), Bytes(PAGE), "a new page for {bytes}");
        let second = device.malloc(Bytes(bytes)).unwrap().get();
        assert_eq!(device.used_bytes(), Bytes(PAGE), "no second page for {bytes}");
        assert_eq!((first % PAGE, second - first), (0, spacing), "{bytes}");
    }
}

#[test]
fn sizes_the_third_of_700000_begins_a_new_page() {
    let mut device = device(100);
    assert_eq!([(); 3].map(|()| price(&mut device, 700_000)), [PAGE, 0, PAGE]);
}

#[test]
fn sizes_large_ones_take_whole_pages_of_their_own() {
    let rows = [
        (MIB + 1, PAGE),
        (PAGE, PAGE),
        (PAGE + 1, 2 * PAGE),
        (3 * MIB, 2 * PAGE),
        (20 * MIB, 20 * MIB),
        (20 * MIB + 1, 22 * MIB),
        (21 * MIB, 22 * MIB),
        (1024 * MIB, 1024 * MIB),
        (1024 * MIB + 1, 1026 * MIB),
    ];
    for (bytes, taken) in rows {
        let mut device = device(4096);
        assert_eq!([(); 2].map(|()| price(&mut device, bytes)), [taken; 2], "{bytes}");
    }
}

#[test]
fn sizes_without_sharing_every_malloc_takes_pages() {
    let mut device = SimDevice::new(SimOptions::new(Bytes::mib(6)).shares_pages(false));
    assert_eq!([(); 2].map(|()| price(&mut device, 1)), [PAGE; 2]);
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
        let address = device.malloc(Bytes::mib(gib * 1024)).expect("out of scattered pages");
        device.free(address).unwrap();
    }
    // "of 75,469,291,520 B free the largest single one that succeeds is 75,466,014,720 B": all but 3,276,800, whatever is free.
    let free = free_bytes(&mut device);
    let largest = free - 3_276_800;
    assert_eq!(largest % PAGE, 0);
    assert!(device.malloc(Bytes(largest + 1)).is_err());
    let address = device.malloc(Bytes(largest)).unwrap();
    assert!(device.pages_at(address).len() > 50, "scattered");
}

/// Fills what a ballast left over, frees every other block: (blocks, free when full, free after, 8 MiB ok, same size ok).
fn subpage_holes(bytes: u64) -> (usize, u64, u64, bool, bool) {
    let left = 2047 * PAGE + 3_276_800;
    let mut device = SimDevice::new(SimOptions::h200().cost_model(NoCost));
    let ballast = free_bytes(&mut device) - left;
    device.malloc(Bytes(ballast)).unwrap();
    let blocks = fill(&mut device, bytes);
    let when_full = free_bytes(&mut device);
    free_every_other(&mut device, &blocks);
    let after = free_bytes(&mut device);
    let eight = device.malloc(Bytes::mib(8)).is_ok();
    (blocks.len(), when_full, after, eight, device.malloc(Bytes(bytes)).is_ok())
}

#[test]
fn holes_below_the_page_give_nothing_back() {
    assert_eq!(subpage_holes(MIB), (4_094, 3_276_800, 3_276_800, false, true));
    assert_eq!(subpage_holes(MIB / 2), (8_188, 3_276_800, 3_276_800, false, true));
}

#[test]
fn holes_of_1536_kib_are_pages_and_come_back() {
    assert_eq!(subpage_holes(3 * MIB / 2), (2_047, 3_276_800, 2_150_760_448, true, true));
}

#[test]
fn holes_a_page_returns_with_its_last_tenant() {
    let mut device = device(2);
    let blocks = fill(&mut device, MIB);
    assert_eq!(blocks.len(), 2);
    device.free(blocks[0]).unwrap();
    assert_eq!(free_bytes(&mut device), 0);
    device.free(blocks[1]).unwrap();
    assert_eq!(free_bytes(&mut device), PAGE);
    assert!(device.malloc(Bytes(PAGE)).is_ok());
}

#[test]
fn refusals_double_free_interior_and_unknown() {
    let refused = Err(BackendError::Driver { call: "cudaFree", code: 1 });
    for bytes in [1000, 20 * MIB] {
        let mut device = device(100);
        let keep = device.malloc(Bytes(bytes)).unwrap();
        let gone = device.malloc(Bytes(bytes)).unwrap();
        device.free(gone).unwrap();
        let used = device.used_bytes();
        for address in [gone, keep.offset(Bytes(512)), keep.offset(Bytes(1)), DeviceAddress(0), DeviceAddress(u64::MAX)] {
            assert_eq!(device.free(address), refused, "{address}");
        }
        assert_eq!((device.used_bytes(), device.live_ranges().count()), (used, 1));
        device.free(keep).expect("still whole");
        assert_eq!(device.used_bytes(), Bytes::ZERO);
    }
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
fn waiting_malloc_does_not_and_free_waits_for_the_whole_device() {
    let mut device = device(1024);
    let first = device.malloc(Bytes::mib(200)).unwrap();
    let kernel_starts_ns = device.now_ns();
    device.spin(StreamId(0x1000), 100_000_000);
    device.malloc(Bytes::mib(200)).unwrap();
    assert!(device.now_ns() - kernel_starts_ns < 60_000, "cudaMalloc took {}", device.now_ns() - kernel_starts_ns);
    device.free(first).unwrap();
    assert_eq!(device.now_ns(), kernel_starts_ns + 100_000_000);
    assert!(device.totals(CallName::Free).wait_ns > 99_000_000);
    assert_eq!(device.waited_ns(), device.totals(CallName::Free).wait_ns);
}

#[test]
fn waiting_free_completes_events_under_every_adversary() {
    for adversary in [Adversary::Clock, Adversary::Eager, Adversary::Lazy, Adversary::Seeded(7)] {
        let mut device = SimDevice::new(SimOptions::new(Bytes::mib(100)).adversary(adversary));
        let address = device.malloc(Bytes::mib(4)).unwrap();
        device.spin(StreamId(5), 1_000_000);
        let mut event = device.create_event().unwrap();
        device.record_event(&mut event, StreamId(5)).unwrap();
        assert_eq!(device.is_complete(&event), Ok(adversary == Adversary::Eager), "{adversary:?}");
        device.free(address).unwrap();
        assert_eq!(device.is_complete(&event), Ok(true), "{adversary:?}");
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
    assert_eq!((list(&mut device).len(), free_bytes(&mut device)), (2, 300 * MIB), "missing from the free memory, in no list");
    let mut silent = SimDevice::new(SimOptions::new(Bytes::mib(10)).reports_processes(false));
    assert_eq!(silent.processes(), Vec::<ProcessMemory>::new());
}
