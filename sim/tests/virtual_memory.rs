//! Tests which virtual memory calls the device refuses (facts: Virtual memory calls): each fact at many addresses,
//! scripted addresses, and cases that were not measured. Prices and waits are tested in `virtual_laws`, and the facts
//! themselves in the conformance suite's contract.

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB};
use parkade_sim::address::{RESERVATION_START, Scripted};
use parkade_sim::{SimDevice, SimOptions, SimPhysical};

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

#[test]
fn sizes_create_takes_the_memory_at_once() {
    let mut device = device(100);
    let free = device.memory_info().unwrap().free;
    let memory = device.create(TWENTY).unwrap();
    assert_eq!(free - device.memory_info().unwrap().free, TWENTY);
    assert_eq!(device.used_bytes(), TWENTY);
    assert_eq!(device.create(Bytes::mib(82)), Err(BackendError::OutOfMemory { requested: Bytes::mib(82) }));
    assert_eq!(device.malloc(Bytes::mib(82)), Err(BackendError::OutOfMemory { requested: Bytes::mib(82) }));
    device.release(memory).unwrap();
    assert_eq!((device.used_bytes(), device.peak_used_bytes()), (Bytes::ZERO, TWENTY));
}

#[test]
fn map_over_a_mapped_range() {
    let (mut device, start) = reserved();
    mapped(&mut device, start.offset(TWENTY), TWENTY);
    let memory = device.create(TWENTY).unwrap();
    for offset in [2, 20, 38] {
        assert_eq!(device.map(start.offset(Bytes::mib(offset)), TWENTY, &memory), refused("cuMemMap", 1), "{offset}");
    }
    assert_eq!([0, 40].map(|offset| device.map(start.offset(Bytes::mib(offset)), TWENTY, &memory)), [Ok(()); 2]);
}

#[test]
fn map_outside_a_reservation() {
    let (mut device, start) = reserved();
    let elsewhere = device.malloc(Bytes::mib(100)).unwrap();
    let memory = device.create(TWENTY).unwrap();
    let outside = [1006, 1024].map(|offset| start.offset(Bytes::mib(offset)));
    for address in [elsewhere, DeviceAddress(0), DeviceAddress(u64::MAX - PAGE.get() + 1), outside[0], outside[1]] {
        assert_eq!(device.map(address, TWENTY, &memory), refused("cuMemMap", 1), "{address}");
    }
    assert_eq!(device.map(start.offset(Bytes::mib(1004)), TWENTY, &memory), Ok(()), "the last place");
}

#[test]
fn map_across_two_reservations_that_touch() {
    let a = 1 << 40;
    let model = Scripted::for_reservations([a, a + TWENTY.get()]);
    let mut device = SimDevice::new(SimOptions::new(Bytes::mib(100)).reservation_model(model));
    let addresses = [(); 2].map(|()| device.reserve(TWENTY).unwrap().get());
    assert_eq!(addresses, [a, a + TWENTY.get()]);
    let memory = device.create(TWENTY).unwrap();
    assert_eq!(device.map(DeviceAddress(a + PAGE.get()), TWENTY, &memory), refused("cuMemMap", 1));
    assert_eq!(device.unmap(DeviceAddress(a), Bytes::mib(40)), refused("cuMemUnmap", 1));
}

#[test]
fn map_of_a_part_of_a_handle_or_of_more() {
    let (mut device, start) = reserved();
    let memory = device.create(TWENTY).unwrap();
    for mib in [2, 18, 22, 1024] {
        assert_eq!(device.map(start, Bytes::mib(mib), &memory), refused("cuMemMap", 801), "{mib}");
    }
}

#[test]
fn set_access_on_mapped_and_unmapped_ranges() {
    let (mut device, start) = reserved();
    let at = |mib| start.offset(Bytes::mib(mib));
    let memory = device.create(TWENTY).unwrap();
    device.map(start, TWENTY, &memory).unwrap();
    device.map(at(20), TWENTY, &memory).unwrap();
    assert_eq!(device.set_access(start, Bytes::mib(40)), Ok(()), "two at once");
    assert_eq!(device.set_access(at(40), TWENTY), refused("cuMemSetAccess", 1));
    assert_eq!(device.set_access(at(20), Bytes::mib(40)), refused("cuMemSetAccess", 1), "partly unmapped");
    assert_eq!(device.set_access(start, PAGE), refused("cuMemSetAccess", 1), "a part of a mapping");
    device.release(memory).unwrap();
    assert_eq!(device.set_access(start, TWENTY), Ok(()), "even after the handle was released");
}

#[test]
fn release_of_a_handle_that_is_still_mapped() {
    let (mut device, start) = reserved();
    let memory = mapped(&mut device, start, TWENTY);
    device.map(start.offset(TWENTY), TWENTY, &memory).unwrap();
    let copy = memory.clone();
    assert_eq!(device.release(memory), Ok(()));
    assert_eq!(device.used_bytes(), TWENTY, "the memory still exists");
    device.unmap(start, TWENTY).unwrap();
    assert_eq!(device.used_bytes(), TWENTY, "in its other mapping");
    device.unmap(start.offset(TWENTY), TWENTY).unwrap();
    assert_eq!(device.used_bytes(), Bytes::ZERO, "until it is unmapped");
    assert_eq!(device.map(start, TWENTY, &copy), refused("cuMemMap", 1));
    assert_eq!(device.release(copy).map_err(|(_, error)| error), refused("cuMemRelease", 1));
}

#[test]
fn unmap_of_a_part_of_a_mapping() {
    let (mut device, start) = reserved();
    let at = |mib| start.offset(Bytes::mib(mib));
    mapped(&mut device, at(20), TWENTY);
    mapped(&mut device, at(40), TWENTY);
    for (from, mib) in [(20, 18), (22, 18), (24, 2), (0, 22), (20, 22), (38, 22), (58, 10)] {
        assert_eq!(device.unmap(at(from), Bytes::mib(mib)), refused("cuMemUnmap", 1), "{from} {mib}");
    }
    assert_eq!(device.set_access(at(20), Bytes::mib(40)), Ok(()), "nothing was unmapped");
}

#[test]
fn unmap_of_several_whole_mappings_of_gaps_and_of_nothing() {
    let (mut device, start) = reserved();
    let at = |mib| start.offset(Bytes::mib(mib));
    for offset in [0, 20, 60, 100] {
        let memory = mapped(&mut device, at(offset), TWENTY);
        device.release(memory).unwrap();
    }
    assert_eq!(device.unmap(start, Bytes::mib(40)), Ok(()), "several whole mappings");
    assert_eq!(device.unmap(start, Bytes::mib(40)), Ok(()), "nothing");
    assert_eq!(device.used_bytes(), Bytes::mib(40));
    assert_eq!(device.unmap(at(50), Bytes::mib(100)), Ok(()), "mappings and gaps");
    assert_eq!(device.used_bytes(), Bytes::ZERO);
}

#[test]
fn unmap_outside_a_reservation_of_no_bytes_and_off_the_pages() {
    let (mut device, start) = reserved();
    let rows = [(start.get() - PAGE.get(), PAGE.get()), (start.get(), 0), (start.get() + 512, PAGE.get()), (start.get(), 512)];
    for (address, bytes) in rows {
        assert_eq!(device.unmap(DeviceAddress(address), Bytes(bytes)), refused("cuMemUnmap", 1), "{address:#x} {bytes}");
    }
    assert_eq!(device.unmap(start, Bytes(u64::MAX - 0x1f_ffff)), refused("cuMemUnmap", 1));
}

#[test]
fn create_of_1_mib() {
    let mut device = device(100);
    for bytes in [MIB, 0, 3 * MIB, u64::MAX] {
        assert_eq!(device.create(Bytes(bytes)), refused("cuMemCreate", 1), "{bytes}");
    }
    assert_eq!(device.used_bytes(), Bytes::ZERO);
}

#[test]
fn address_free_only_whole_and_empty() {
    let (mut device, start) = reserved();
    let whole = Bytes::mib(1024);
    let call = "cuMemAddressFree";
    mapped(&mut device, start.offset(TWENTY), TWENTY);
    assert_eq!(device.unreserve(start, whole), refused(call, 1), "something is mapped");
    device.unmap(start, whole).unwrap();
    assert_eq!(device.unreserve(start, Bytes::mib(512)), refused(call, 1), "a part");
    assert_eq!(device.unreserve(start.offset(Bytes::mib(512)), Bytes::mib(512)), refused(call, 1), "a part");
    assert_eq!(device.unreserve(start, Bytes::mib(1026)), refused(call, 1), "more");
    assert_eq!(device.unreserve(start, whole), Ok(()));
    assert_eq!(device.unreserve(start, whole), refused(call, 1), "twice");
    let memory = device.create(TWENTY).unwrap();
    assert_eq!(device.map(start, TWENTY, &memory), refused("cuMemMap", 1), "it is no longer a reservation");
}

#[test]
fn reservations_and_mallocs_never_overlap_and_are_not_each_others() {
    let scripted = Scripted::for_reservations([1 << 40, 1 << 40, (1 << 40) + 512]);
    let options = SimOptions::new(Bytes::mib(100)).reservation_model(scripted).address_model(Scripted::new([1 << 40, 1 << 41]));
    let mut device = SimDevice::new(options);
    let start = device.reserve(TWENTY).unwrap();
    assert_eq!(start, DeviceAddress(1 << 40));
    assert_eq!(device.malloc(PAGE), refused("cudaMalloc", 999), "the address that the model chose is reserved");
    let malloc = device.malloc(PAGE).unwrap();
    assert_eq!(device.free(start), refused("cudaFree", 1));
    assert_eq!(device.unreserve(malloc, PAGE), refused("cuMemAddressFree", 1));
    assert_ne!(device.reserve(TWENTY), Ok(start));
    assert_eq!(device.reservation_model::<Scripted>().unwrap().fallbacks(), 1);
    device.unreserve(start, TWENTY).unwrap();
    device.reservation_model_mut::<Scripted>().unwrap().clear();
    device.reservation_model_mut::<Scripted>().unwrap().push(start.get());
    assert_eq!(device.reserve(TWENTY), Ok(start), "the model was informed of the release");
    assert_eq!([0, MIB, u64::MAX].map(|bytes| device.reserve(Bytes(bytes))), [(); 3].map(|()| refused("cuMemAddressReserve", 1)));
    assert_eq!(device.live_ranges().count(), 1, "cudaMallocs only");
}

#[test]
fn reservations_need_no_memory_but_addresses() {
    let mut device = device(2);
    assert_eq!(device.reserve(Bytes(1 << 40)).unwrap(), DeviceAddress(RESERVATION_START));
    assert_eq!(device.used_bytes(), Bytes::ZERO);
    assert_eq!(device.reserve(Bytes(u64::MAX - 0x1f_ffff)), refused("cuMemAddressReserve", 2));
}
